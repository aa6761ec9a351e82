"""The commands ``flask shard ...``.

::

    flask shard explain ID      where an object lives
    flask shard topology        which server holds what
    flask shard health          the source of the topology, and whether the
                                servers answer
    flask shard create-all      makes tables, for development

``explain`` and ``topology`` connect to nothing.  ``health`` ends with status
1 when a server does not answer, so that scripts can use it.  A password is
never shown.
"""

from __future__ import annotations

from typing import Any
from typing import Protocol

import click
from flask import current_app
from flask.cli import AppGroup
from sqlalchemy import MetaData
from sqlalchemy.exc import SQLAlchemyError

from sqla_shard.cluster import Cluster
from sqla_shard.topology import describe

__all__ = ["EXTENSION", "Installed", "shard_commands"]

#: Where an application has its extension, in ``app.extensions``.
EXTENSION = "sqla_shard"


class Installed(Protocol):
    """What the commands need of the extension."""

    metadata: MetaData | None

    @property
    def cluster(self) -> Cluster:
        """The cluster of the current application."""
        ...


class _Commands(AppGroup):
    """Shows errors of servers and ids as messages."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except SQLAlchemyError as error:
            raise click.ClickException(str(error)) from error


shard_commands = _Commands("shard", help="Look at the cluster of sqla_shard.")


def _installed() -> Installed:
    found: Installed = current_app.extensions[EXTENSION]
    return found


@shard_commands.command("explain")
@click.argument("object_id", metavar="ID", type=int)
def _explain(object_id: int) -> None:
    """Tell where the object of an ID lives, without going there."""
    click.echo(str(_installed().cluster.explain(object_id)))


@shard_commands.command("topology")
def _topology() -> None:
    """Show keyspaces, servers and the shards on them."""
    click.echo(describe(_installed().cluster.topology))


@shard_commands.command("health")
def _health() -> None:
    """Ask every server for a sign of life; status 1 if one is down.

    Also tells where the topology is from, and whether that has confirmed it.
    """
    health = _installed().cluster.health()
    line = f"topology: {health.state}, epoch {health.epoch}"
    if health.state != "fixed":
        line += f" of {health.source}, confirmed {health.age:.0f} s ago"
    click.echo(line)
    if health.last_error is not None and health.state == "stale":
        click.echo(f"  {health.last_error}".replace("\n", "\n  "))
    found = health.servers
    for server, wrong in found.items():
        shown = "up" if wrong is None else f"DOWN: {wrong}"
        # Errors of SQLAlchemy have several lines.
        click.echo(f"{server}: {shown}".replace("\n", "\n  "))
    down = sum(wrong is not None for wrong in found.values())
    if down:
        raise click.ClickException(
            f"{down} of {len(found)} servers did not answer"
        )


@shard_commands.command("create-all")
@click.option("--keyspace", metavar="NAME", help="Only of this keyspace.")
def _create_all(keyspace: str | None) -> None:
    """Create missing databases and tables on every shard.

    For development: a table that exists is never changed.
    """
    installed = _installed()
    if installed.metadata is None:
        raise click.ClickException(
            "the tables are not known; say FlaskCluster(metadata="
            "Base.metadata)"
        )
    cluster = installed.cluster
    cluster.create_all(installed.metadata, keyspace=keyspace)
    click.echo(f"every table is there now: {cluster!r}")
