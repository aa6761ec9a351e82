"""The commands ``flask shard ...``.

::

    flask shard explain ID      show the route of an id
    flask shard topology        list keyspaces, servers and shards
    flask shard health          show the state of the topology and the servers
    flask shard create-all      create tables, for development
    flask shard worker          run jobs, in an application context each

``explain`` and ``topology`` do not connect to any server.  ``health`` exits
with status 1 if a server does not respond.  Passwords are never shown.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TYPE_CHECKING

import click
from flask import current_app, Flask
from flask.cli import AppGroup
from flask.ctx import AppContext
from sqlalchemy import event
from sqlalchemy.exc import SQLAlchemyError

from sqla_shard.topology import describe
from sqla_shard.util.processes import ending

if TYPE_CHECKING:
    from sqla_shard import Cluster
    from sqla_shard.jobs import ClaimedJob, JobReport

__all__ = ["EXTENSION", "shard_commands"]

EXTENSION = "sqla_shard"
"""Key of the extension in ``app.extensions``."""


class _Commands(AppGroup):
    """Shows errors of servers and ids without tracebacks."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except SQLAlchemyError as error:
            raise click.ClickException(str(error)) from error


shard_commands: _Commands = _Commands(
    "shard", help="Inspect the cluster, create tables, and run jobs."
)


def _cluster() -> Cluster:
    cluster: Cluster = current_app.extensions[EXTENSION].cluster
    return cluster


@shard_commands.command("explain")
@click.argument("object_id", metavar="ID", type=int)
def _explain(object_id: int) -> None:
    """Show the shard and the server of an ID, without connecting."""
    click.echo(str(_cluster().explain(object_id)))


@shard_commands.command("topology")
def _topology() -> None:
    """List keyspaces, servers and their shards."""
    click.echo(describe(_cluster().topology))


@shard_commands.command("health")
def _health() -> None:
    """Ping every server; exit with status 1 if one does not respond.

    It also shows the state of the topology and when it was last confirmed.
    """
    health = _cluster().health()
    line = f"topology: {health.state}, epoch {health.epoch}"
    if health.state != "fixed":
        line += f" of {health.source}, confirmed {health.age:.0f} s ago"
    click.echo(line)
    if health.last_error is not None and health.state == "stale":
        click.echo(f"  {health.last_error}".replace("\n", "\n  "))
    for server, error in health.servers.items():
        shown = "up" if error is None else f"DOWN: {error}"
        # Errors of SQLAlchemy have several lines.
        click.echo(f"{server}: {shown}".replace("\n", "\n  "))
    if health.down:
        raise click.ClickException(
            f"{len(health.down)} of {len(health.servers)} servers did not respond"
        )


@shard_commands.command("create-all")
@click.option("--keyspace", metavar="NAME", help="Only in this keyspace.")
def _create_all(keyspace: str | None) -> None:
    """Create missing databases and tables on every shard.

    This is for development: existing tables are not changed.
    """
    metadata = current_app.extensions[EXTENSION].metadata
    if metadata is None:
        raise click.ClickException(
            "the extension has no metadata; pass FlaskCluster(metadata=Base.metadata)"
        )
    cluster = _cluster()
    cluster.create_all(metadata, keyspace=keyspace)
    click.echo(f"all tables exist: {cluster!r}")


@shard_commands.command("worker")
@click.option(
    "--queues",
    metavar="NAME,NAME",
    default="default",
    show_default=True,
    help="Names of the queues.",
)
@click.option(
    "--concurrency",
    metavar="N",
    default=4,
    show_default=True,
    type=click.IntRange(1, 1000),
    help="Maximum number of tasks that run at the same time.",
)
@click.option(
    "--deliver",
    is_flag=True,
    help="Also apply operations and cache invalidations that are left.",
)
@click.option(
    "--hints",
    metavar="URL",
    envvar="SQLA_SHARD_HINTS",
    show_envvar=True,
    help="Redis server or ZooKeeper through which programs announce new jobs.",
)
@click.option(
    "--stop-timeout",
    metavar="S",
    default=25.0,
    show_default=True,
    type=click.FloatRange(0),
    help="Seconds for running tasks to end after SIGTERM, SIGHUP or Ctrl-C.",
)
@click.option(
    "--once",
    "--until-empty",
    "once",
    is_flag=True,
    help="Exit when no job is due any more.",
)
def _worker(
    queues: str,
    concurrency: int,
    deliver: bool,
    hints: str | None,
    stop_timeout: float,
    once: bool,
) -> None:
    """Run the jobs of queues, each task in an application context.

    After SIGTERM, SIGHUP or Ctrl-C no more jobs are claimed; the jobs of tasks that
    do not end in time are released for other workers.
    """
    from sqla_shard.jobs import share_hints, Worker

    app: Flask = current_app._get_current_object()  # type: ignore[attr-defined]  # of the proxy
    worker = Worker(
        _cluster(),
        [name.strip() for name in queues.split(",")],
        concurrency=concurrency,
        delivers=deliver,
    )
    if hints is not None:
        share_hints(_cluster(), hints)

    def stop(*signal_arguments: object) -> None:
        worker.stop(stop_timeout)

    with ending(stop), _contexts(app, _cluster()):
        report = worker.run(until_empty=once)
    click.echo(str(report))
    if once and (report.failed or report.lost or report.unknown):
        raise click.ClickException("not all jobs have succeeded")


@contextmanager
def _contexts(app: Flask, cluster: Cluster) -> Iterator[None]:
    """Return a context manager in which jobs have an application context."""
    contexts: dict[int, AppContext] = {}

    def enter(cluster: Cluster, job: ClaimedJob) -> None:
        context = contexts[id(job)] = app.app_context()
        context.push()

    def leave(cluster: Cluster, report: JobReport) -> None:
        contexts.pop(id(report.job)).pop()

    event.listen(cluster, "before_job", enter)
    event.listen(cluster, "after_job", leave)
    try:
        yield
    finally:
        event.remove(cluster, "before_job", enter)
        event.remove(cluster, "after_job", leave)
