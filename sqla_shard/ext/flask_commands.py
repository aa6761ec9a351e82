"""The commands ``flask shard ...``.

::

    flask shard explain ID      show the route of an id
    flask shard topology        list keyspaces, servers and shards
    flask shard health          show the state of the topology and the servers
    flask shard create-all      create tables, for development

``explain`` and ``topology`` do not connect to any server.  ``health`` exits
with status 1 if a server does not respond.  Passwords are never shown.
"""

from __future__ import annotations

from typing import Any
from typing import TYPE_CHECKING

import click
from flask import current_app
from flask.cli import AppGroup
from sqlalchemy.exc import SQLAlchemyError

from sqla_shard.topology import describe

if TYPE_CHECKING:
    from sqla_shard.ext.flask import FlaskCluster

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


shard_commands = _Commands(
    "shard", help="Inspect the cluster, and create tables."
)


def _extension() -> FlaskCluster:
    found: FlaskCluster = current_app.extensions[EXTENSION]
    return found


@shard_commands.command("explain")
@click.argument("object_id", metavar="ID", type=int)
def _explain(object_id: int) -> None:
    """Show the shard and the server of an ID, without connecting."""
    click.echo(str(_extension().cluster.explain(object_id)))


@shard_commands.command("topology")
def _topology() -> None:
    """List keyspaces, servers and their shards."""
    click.echo(describe(_extension().cluster.topology))


@shard_commands.command("health")
def _health() -> None:
    """Ping every server; exit with status 1 if one does not respond.

    It also shows the state of the topology and when it was last confirmed.
    """
    health = _extension().cluster.health()
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
            f"{len(health.down)} of {len(health.servers)} servers did not "
            "respond"
        )


@shard_commands.command("create-all")
@click.option("--keyspace", metavar="NAME", help="Only in this keyspace.")
def _create_all(keyspace: str | None) -> None:
    """Create missing databases and tables on every shard.

    This is for development: existing tables are not changed.
    """
    extension = _extension()
    if extension.metadata is None:
        raise click.ClickException(
            "the extension has no metadata; pass "
            "FlaskCluster(metadata=Base.metadata)"
        )
    cluster = extension.cluster
    cluster.create_all(extension.metadata, keyspace=keyspace)
    click.echo(f"all tables exist: {cluster!r}")
