"""``sqla-shard worker`` and ``queue``: jobs, and what runs them."""

from __future__ import annotations

import contextlib
import json
import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import click

from sqla_shard.cli.options import (
    cache_of_option,
    cache_option,
    CacheOption,
    FiniteRange,
    imported_cluster,
    models_option,
    names,
    pass_settings,
    Settings,
)
from sqla_shard.cli.output import (
    command,
    CommandT,
    data_option,
    Decorator,
    echo,
    end,
    option,
    print_data,
    print_found,
    print_report,
)
from sqla_shard.cli.service_loop import LineFormatter
from sqla_shard.cluster.cluster import Cluster
from sqla_shard.engine.unreachable import unreachable_lines
from sqla_shard.exc import JobOptionError
from sqla_shard.jobs.claims import JobState, LEASE
from sqla_shard.jobs.context import JobLogFilter
from sqla_shard.jobs.hints import share_hints
from sqla_shard.jobs.queues import (
    limits,
    pause,
    queue_counts,
    QueueLimit,
    resume,
    set_limit,
    task_counts,
)
from sqla_shard.jobs.stored_jobs import (
    ChangeReport,
    DELETABLE,
    delete_jobs,
    delete_of,
    jobs_by_key,
    jobs_of,
    retry_failed,
    retry_jobs,
    stored_job,
)
from sqla_shard.jobs.worker import Worker
from sqla_shard.util.logs import careful_log
from sqla_shard.util.processes import ending

_UNKNOWN = "not defined in the modules of --models"

T = TypeVar("T")


def _checked(function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """Call a function; an invalid id, queue or key is a usage error."""
    try:
        return function(*args, **kwargs)
    except JobOptionError as error:
        raise click.UsageError(str(error)) from error


def _state_option(
    states: tuple[JobState, ...], text: str
) -> Callable[[CommandT], CommandT]:
    return option(
        "--state",
        text,
        click.Choice([one.name.lower() for one in states]),
        to="states",
        multiple=True,
    )


task_option: Decorator = option("--task NAME", "Only jobs of this task.")
dry_run_option: Decorator = option("--dry-run", "Print the number; write nothing.")


@command("list", "sqla-shard queue list", "sqla-shard queue list --json")
@data_option
@pass_settings
def list_command(settings: Settings, as_data: bool) -> None:
    """Show the number of jobs of each queue, by state.

    Of each shard, queue and state up to 10,000 jobs are counted; a number
    with a plus sign is a minimum.  The status is 1 if a queue has failed jobs.
    """
    with settings.cluster() as cluster:
        found, unreachable = queue_counts(cluster)
    lines = found if found or unreachable else ["no jobs"]
    failed = any(one.failed for one in found)
    print_found({"queues": found}, lines, unreachable, as_data, is_good=not failed)


@command(
    "stats",
    "sqla-shard queue stats titles",
    "sqla-shard queue stats titles --models shop.tasks --json",
)
@click.argument("queue")
@models_option
@data_option
@pass_settings
def stats_command(
    settings: Settings, queue: str, models: tuple[str, ...], as_data: bool
) -> None:
    """Show the number of jobs of a QUEUE, by task and state.

    Of each shard and state the first 10,000 jobs are counted.  With --models,
    the status is 1 if a task is not defined in the modules.
    """
    names(models)
    with settings.cluster() as cluster:
        found, unreachable = _checked(task_counts, cluster, queue)
    unknown = {one.task for one in found if models and not one.is_known}
    document = {"queue": queue, "tasks": found, "unknown": sorted(unknown)}
    lines = [f"{one}{f' ({_UNKNOWN})' if one.task in unknown else ''}" for one in found]
    print_found(document, lines, unreachable, as_data, is_good=not unknown)


@command(
    "scan",
    "sqla-shard queue scan titles --state failed",
    "sqla-shard queue scan titles --task pins.fetch_title --limit 20",
    "sqla-shard queue scan --unique-key 'refresh 17' --json",
)
@click.argument("queue", required=False)
@_state_option(tuple(JobState), "Only jobs with this state; repeatable.")
@task_option
@option("--unique-key KEY", "Only the unfinished jobs with this key, of all queues.")
@option("--limit N", "Maximum number of jobs.", click.IntRange(1, 10_000), default=100)
@models_option
@data_option
@pass_settings
def scan_command(
    settings: Settings,
    queue: str | None,
    states: tuple[str, ...],
    task: str | None,
    unique_key: str | None,
    limit: int,
    models: tuple[str, ...],
    as_data: bool,
) -> None:
    """List jobs of a QUEUE, by state, priority and the time they are due.

    With --task, the first 10,000 jobs of each shard and state are searched.
    """
    names(models)
    if (queue is None) == (unique_key is None):
        raise click.UsageError("pass either QUEUE or --unique-key")
    if unique_key is not None and (states or task):
        raise click.UsageError("--unique-key excludes --state and --task")
    with settings.cluster() as cluster:
        if queue is None:
            page = _checked(jobs_by_key, cluster, unique_key)
        else:
            page = _checked(
                jobs_of,
                cluster,
                queue,
                _states(states) or tuple(JobState),
                task=task,
                limit=limit,
            )
    lines = []
    for one in page.jobs:
        is_unknown = models and not one.is_known
        unknown = f" ({_UNKNOWN})" if is_unknown else ""
        lines.append(" ".join(f"{one}{unknown}".split()))
    if not page.is_complete:
        lines.append(f"more than {limit:,} jobs; raise --limit for others")
    document = {"jobs": page.jobs, "is_complete": page.is_complete}
    print_found(document, lines, page.unreachable, as_data, is_good=True)


@command("show", "sqla-shard queue show objects/7/1234")
@click.argument("job_ids", metavar="ID...", nargs=-1, required=True)
@data_option
@pass_settings
def show_command(settings: Settings, job_ids: tuple[str, ...], as_data: bool) -> None:
    """Show jobs with their arguments and progress.

    Jobs that have succeeded are deleted after a day, failed ones after a
    week, unless the worker has other times.  An ID is keyspace, shard and
    number, such as objects/7/1234.  The status is 1 if a job is not there.
    """
    with settings.cluster() as cluster:
        found = {one: _checked(stored_job, cluster, one) for one in job_ids}
    jobs = [job for job in found.values() if job is not None]
    missing = [name for name, job in found.items() if job is None]
    if as_data:
        print_data({"jobs": jobs, "missing": missing})
    else:
        for job in jobs:
            echo(" ".join(str(job).split()))
            echo(f"  enqueued: {job.created_at:%Y-%m-%d %H:%M:%S} UTC")
            echo(f"  arguments: {json.dumps(job.arguments)}")
            if job.checkpoint is not None:
                echo(f"  checkpoint: {json.dumps(job.checkpoint)}")
        for name in missing:
            echo(f"{name} not found", err=True)
    end(is_good=not missing, is_read=True)


@command(
    "retry",
    "sqla-shard queue retry objects/7/1234",
    "sqla-shard queue retry --queue titles --dry-run",
    "sqla-shard queue retry --queue titles --task pins.fetch_title",
)
@click.argument("job_ids", metavar="[ID...]", nargs=-1)
@option("--queue NAME", "All failed jobs of this queue.")
@task_option
@dry_run_option
@data_option
@pass_settings
def retry_command(
    settings: Settings,
    job_ids: tuple[str, ...],
    queue: str | None,
    task: str | None,
    dry_run: bool,
    as_data: bool,
) -> None:
    """Run failed jobs again, with all their attempts.

    The jobs of a queue are changed in batches, each of which is one
    transaction of one shard.  The status is 1 if a job was not changed: it
    has not failed, or another job has its unique key by now.
    """
    _check_selection(job_ids, queue, task)
    with settings.cluster() as cluster:
        if queue is None:
            report = _checked(retry_jobs, cluster, job_ids, dry_run=dry_run)
        else:
            report = _checked(retry_failed, cluster, queue, task=task, dry_run=dry_run)
    _end(report, "to be run again" if dry_run else "made pending", as_data)


@command(
    "delete",
    "sqla-shard queue delete objects/7/1234",
    "sqla-shard queue delete --queue titles --state failed --dry-run",
    "sqla-shard queue delete --queue titles --state pending --task pins.old",
)
@click.argument("job_ids", metavar="[ID...]", nargs=-1)
@option("--queue NAME", "The jobs of this queue.")
@_state_option(DELETABLE, "With --queue: jobs with this state; repeatable, required.")
@task_option
@dry_run_option
@data_option
@pass_settings
def delete_command(
    settings: Settings,
    job_ids: tuple[str, ...],
    queue: str | None,
    states: tuple[str, ...],
    task: str | None,
    dry_run: bool,
    as_data: bool,
) -> None:
    """Delete jobs that are not running.

    The jobs of a queue are deleted in batches, each of which is one
    transaction of one shard.  The status is 1 if a job was not deleted: it is
    running, or not there.
    """
    _check_selection(job_ids, queue, task)
    if bool(states) != (queue is not None):
        raise click.UsageError("--queue requires --state, and --state --queue")
    with settings.cluster() as cluster:
        if queue is None:
            report = _checked(delete_jobs, cluster, job_ids, dry_run=dry_run)
        else:
            report = _checked(
                delete_of, cluster, queue, _states(states), task=task, dry_run=dry_run
            )
    _end(report, "to be deleted" if dry_run else "deleted", as_data)


@command("pause", "sqla-shard queue pause titles")
@click.argument("queue")
@data_option
@pass_settings
def pause_command(settings: Settings, queue: str, as_data: bool) -> None:
    """Let workers claim no more jobs of a QUEUE; those that run go on."""
    with settings.cluster() as cluster:
        _print_limit(_checked(pause, cluster, queue), as_data)


@command("resume", "sqla-shard queue resume titles")
@click.argument("queue")
@data_option
@pass_settings
def resume_command(settings: Settings, queue: str, as_data: bool) -> None:
    """End the pause of a QUEUE; its limit is as before."""
    with settings.cluster() as cluster:
        _print_limit(_checked(resume, cluster, queue), as_data)


@command(
    "limit",
    "sqla-shard queue limit titles 20",
    "sqla-shard queue limit titles none",
    "sqla-shard queue limit",
)
@click.argument("queue", required=False)
@click.argument("per_second", required=False)
@data_option
@pass_settings
def limit_command(
    settings: Settings, queue: str | None, per_second: str | None, as_data: bool
) -> None:
    """Limit the jobs that all workers of a QUEUE claim in a second.

    PER_SECOND is a number of jobs, on average, or "none" for no limit; with 0
    no jobs are claimed.  Without arguments, list the queues that are paused,
    or were, or have a limit.  Workers read it every second.
    """
    if (queue is None) != (per_second is None):
        raise click.UsageError("pass QUEUE and PER_SECOND, or neither")
    with settings.cluster() as cluster:
        if queue is not None:
            number = _per_second(str(per_second))
            found = _checked(set_limit, cluster, queue, number)
            _print_limit(found, as_data)
        elif as_data:
            print_data({"queues": limits(cluster)})
        else:
            for one in limits(cluster):
                echo(_limit_text(one))


def _per_second(text: str) -> float | None:
    if text == "none":
        return None
    try:
        return float(text)
    except ValueError as error:
        raise click.UsageError(
            f'PER_SECOND is {text!r}; it must be a number, or "none"'
        ) from error


def _print_limit(limit: QueueLimit, as_data: bool) -> None:
    if as_data:
        print_data(limit)
    else:
        echo(_limit_text(limit))


def _limit_text(limit: QueueLimit) -> str:
    state = "paused" if limit.is_paused else "open"
    if limit.per_second is None:
        return f"{limit.queue}: {state}, no limit"
    return f"{limit.queue}: {state}, {limit.per_second:g} jobs a second"


def _states(given: tuple[str, ...]) -> tuple[JobState, ...]:
    return tuple(JobState[one.upper()] for one in given)


def _check_selection(
    job_ids: tuple[str, ...], queue: str | None, task: str | None
) -> None:
    if bool(job_ids) == (queue is not None):
        raise click.UsageError("pass either IDs or --queue")
    if task is not None and queue is None:
        raise click.UsageError("--task requires --queue")


def _end(report: ChangeReport, done: str, as_data: bool) -> None:
    if as_data:
        print_data(report)
    else:
        for line in (*report.skipped, *unreachable_lines(report.unreachable)):
            echo(" ".join(line.split()))
        echo(f"{report.changed:,} {done}")
    end(is_good=not report.skipped, is_read=not report.unreachable)


# -- The worker

_log = careful_log("sqla_shard.jobs.worker")

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


@command(
    "worker",
    "sqla-shard worker --models shop.tasks --queues titles,emails",
    "sqla-shard worker --app shop.main:cluster --concurrency 16",
    "sqla-shard worker --models shop.tasks --once --json",
)
@option("--queues NAME,NAME", "Names of the queues.", default="default")
@option(
    "--concurrency N",
    "Number of threads that run tasks, and maximum number of tasks that "
    "are awaited at the same time.",
    click.IntRange(1, 1000),
    default=4,
)
@option(
    "--app MODULE:NAME",
    "Use this cluster of the application, instead of --topology and --cache.",
)
@models_option
@cache_option
@option(
    "--lease S",
    "Seconds after which the jobs of a killed worker are run by "
    "another; claims of running tasks are extended.",
    FiniteRange(1, 86400),
    default=LEASE,
)
@option(
    "--deliver", 'Also do what "sqla-shard repair" and "sqla-shard cache repair" do.'
)
@option(
    "--hints URL",
    "Redis server or ZooKeeper through which programs announce new jobs.",
    envvar="SQLA_SHARD_HINTS",
    show_envvar=True,
)
@option(
    "--stop-timeout S",
    "Seconds for running tasks to end after SIGTERM, SIGHUP or Ctrl-C.",
    FiniteRange(0),
    default=_STOP_TIMEOUT,
)
@option(
    "--ready-file PATH",
    "File that exists while jobs are claimed, for probes.",
    click.Path(dir_okay=False, path_type=Path),
    callback=_unused,
)
@option("--once --until-empty", "Exit when no job is due any more.", to="once")
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
        end(is_good=not (report.failed or report.lost or report.unknown), is_read=True)


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
        yield imported_cluster(app, param_hint="--app")
        return
    with Cluster.from_location(
        settings.location, placeholders=settings.placeholders
    ) as cluster:
        option.configure(cluster)
        yield cluster


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
