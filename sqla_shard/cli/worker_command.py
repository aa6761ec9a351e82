"""``sqla-shard worker``: runs the jobs of queues."""

from __future__ import annotations

import contextlib
import importlib
import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from sqla_shard.cli.application_options import (
    add_working_directory,
    cache_of_option,
    cache_option,
    CacheOption,
    models_option,
    names,
)
from sqla_shard.cli.options import FiniteRange, pass_settings, Settings
from sqla_shard.cli.output import data_option, end, examples, print_report
from sqla_shard.cli.service_loop import LineFormatter, once_option
from sqla_shard.cluster.cluster import Cluster
from sqla_shard.exc import JobOptionError
from sqla_shard.jobs.claims import LEASE
from sqla_shard.jobs.hints import share_hints
from sqla_shard.jobs.running import JobLogFilter
from sqla_shard.jobs.worker import RunReport, Worker
from sqla_shard.util.processes import ending

_log = logging.getLogger("sqla_shard.jobs.worker")

_FORMAT = "%(asctime)s %(levelname)s [%(job)s %(task)s %(attempt)s] %(message)s"
#: Seconds; containers are killed 30 seconds after SIGTERM, or later.
_STOP_TIMEOUT = 25.0


def _unused(
    context: click.Context, parameter: click.Parameter, path: Path | None
) -> Path | None:
    """Refuse a file that is not the ready file of a killed worker.

    The file is removed at the end: it must not be another one, nor a device.
    """
    if path is None or not path.exists():
        return path
    if path.is_file() and not path.stat().st_size:
        return path
    raise click.BadParameter(
        f"{path} exists and is not an empty file, as a ready file is; name another one"
    )


@click.command(
    "worker",
    epilog=examples(
        "sqla-shard worker --models shop.tasks --queues titles,emails",
        "sqla-shard worker --app shop.main:cluster --concurrency 16",
        "sqla-shard worker --models shop.tasks --once --json",
    ),
)
@click.option(
    "--queues", metavar="NAME,NAME", default="default", help="Names of the queues."
)
@click.option(
    "--concurrency",
    metavar="N",
    default=4,
    type=click.IntRange(1, 1000),
    help="Number of threads that run tasks, and maximum number of tasks that "
    "are awaited at the same time.",
)
@click.option(
    "--app",
    metavar="MODULE:NAME",
    help="Use this cluster of the application, instead of --topology and --cache.",
)
@models_option
@cache_option
@click.option(
    "--lease",
    metavar="S",
    default=LEASE,
    type=FiniteRange(least=1, most=86400),
    help="Seconds after which the jobs of a killed worker are run by "
    "another; claims of running tasks are extended.",
)
@click.option(
    "--deliver",
    is_flag=True,
    help='Also do what "sqla-shard repair" and "sqla-shard cache repair" do.',
)
@click.option(
    "--hints",
    metavar="URL",
    envvar="SQLA_SHARD_HINTS",
    show_envvar=True,
    help="Redis server through which programs announce new jobs.",
)
@click.option(
    "--stop-timeout",
    metavar="S",
    default=_STOP_TIMEOUT,
    type=FiniteRange(least=0),
    help="Seconds for running tasks to end after SIGTERM, SIGHUP or Ctrl-C.",
)
@click.option(
    "--ready-file",
    metavar="PATH",
    type=click.Path(dir_okay=False, path_type=Path),
    callback=_unused,
    help="File that exists while jobs are claimed, for probes.",
)
@once_option
@data_option
@pass_settings
def worker_command(
    settings: Settings,
    queues: str,
    concurrency: int,
    app: str | None,
    models: tuple[str, ...],
    cache: str | None,
    lease: float,
    deliver: bool,
    hints: str | None,
    stop_timeout: float,
    ready_file: Path | None,
    once: bool,
    as_data: bool,
) -> None:
    """Run the jobs of queues.

    The modules in --models, or that of --app, must define or import the tasks.
    Start as many workers as there is work for.

    After SIGTERM, SIGHUP or Ctrl-C no more jobs are claimed, and running tasks
    have --stop-timeout to end; the jobs of others are released for other workers,
    or failed in their last attempt.  A second signal does that immediately.  The
    status is then 0.

    With --deliver, it also applies the operations and cache invalidations that
    transactions have left: the modules must define the operations, and --cache
    is the cache of the application.  Two workers with it are enough.

    With --once, the status is 1 if an attempt has failed, or a task is not
    defined, and 3 if a server does not respond.
    """
    unused = None if app is None else "the cluster of --app has its own"
    option = cache_of_option(cache, unused)
    names(models)
    with _cluster(settings, app, option) as cluster:
        try:
            worker = Worker(
                cluster,
                [name.strip() for name in queues.split(",")],
                concurrency=concurrency,
                lease=lease,
                delivers=deliver,
            )
        except JobOptionError as error:
            raise click.BadParameter(str(error), param_hint="--queues") from error
        if hints is not None:
            try:
                share_hints(cluster, hints)
            except JobOptionError as error:
                raise click.BadParameter(str(error), param_hint="--hints") from error
        with _logging(), _stopped_by_signals(worker, stop_timeout):
            try:
                report = worker.run(
                    until_empty=once, on_ready=lambda: _ready(ready_file)
                )
            finally:
                if ready_file is not None:
                    ready_file.unlink(missing_ok=True)
    print_report(report, as_data)
    if once:
        end(is_good=_is_good(report), is_read=True)


def _is_good(report: RunReport) -> bool:
    return not (report.failed or report.lost or report.unknown)


def _ready(path: Path | None) -> None:
    _log.info("ready")
    if path is not None:
        path.touch()


@contextlib.contextmanager
def _cluster(
    settings: Settings, app: str | None, option: CacheOption
) -> Iterator[Cluster]:
    """Return a context manager with the cluster."""
    if app is not None:
        # The application closes it.
        yield _imported(app)
        return
    with Cluster.from_location(
        settings.location, placeholders=settings.placeholders
    ) as cluster:
        option.configure(cluster)
        yield cluster


def _imported(app: str) -> Cluster:
    """Return the cluster of an application.

    :param app: name of a module, a colon and the name of a cluster.
    :raises click.BadParameter: if it is not there.
    """
    module, _, name = app.partition(":")
    add_working_directory()
    try:
        found = getattr(importlib.import_module(module), name)
    except (AttributeError, ImportError, TypeError, ValueError) as error:
        raise click.BadParameter(
            f"{app!r} cannot be imported: {error}", param_hint="--app"
        ) from error
    if not isinstance(found, Cluster):
        raise click.BadParameter(
            f"{app!r} is {found!r:.80}, and not a Cluster", param_hint="--app"
        )
    return found


@contextlib.contextmanager
def _logging() -> Iterator[None]:
    """Log to standard error, unless the application has configured it.

    Log records have the job in any case.
    """
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    if not before:
        stream = logging.StreamHandler(sys.stderr)
        stream.setFormatter(LineFormatter(_FORMAT))
        root.addHandler(stream)
        root.setLevel(logging.INFO)
    seen = JobLogFilter()
    for handler in root.handlers:
        handler.addFilter(seen)
    try:
        yield
    finally:
        for handler in root.handlers:
            handler.removeFilter(seen)
        root.handlers[:] = before
        root.setLevel(level)


@contextlib.contextmanager
def _stopped_by_signals(worker: Worker, timeout: float) -> Iterator[None]:
    """Return a context manager in which signals stop a worker.

    :param timeout: seconds for running tasks after the first signal.
    """
    timeouts = [0.0, timeout]

    def stop(*signal_arguments: object) -> None:
        worker.stop(timeouts.pop() if len(timeouts) > 1 else timeouts[0])

    with ending(stop):
        yield
