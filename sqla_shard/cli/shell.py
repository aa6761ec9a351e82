"""``sqla-shard shell``."""

from __future__ import annotations

import code
import contextlib
import os
from typing import Any

import click

from sqla_shard.cli.clients import client_for
from sqla_shard.cli.expressions import models_option
from sqla_shard.cli.expressions import names
from sqla_shard.cli.printing import examples
from sqla_shard.cli.sessions import opened
from sqla_shard.cli.sessions import standby_alone
from sqla_shard.cli.settings import number
from sqla_shard.cli.settings import pass_settings
from sqla_shard.cli.settings import Settings
from sqla_shard.cli.told import cache_option
from sqla_shard.cli.told import told_cache
from sqla_shard.cli.told import ToldCache
from sqla_shard.topology import find_object
from sqla_shard.topology import find_shard
from sqla_shard.topology import Location
from sqla_shard.topology import redact
from sqla_shard.topology import Topology

__all__ = ["shell_command"]


@click.command(
    "shell",
    epilog=examples(
        "sqla-shard shell 241294492511762325",
        "sqla-shard shell --shard 5 --standby",
        'sqla-shard shell --keyspace main -e "SHOW TABLES"',
        "sqla-shard shell --shard 5 --python --models shop.models",
        "sqla-shard shell --shard 5 --models shop.models \\",
        '    -c "print(session.scalars(select(Pin)).all())"',
    ),
)
@click.argument("object_id", metavar="[ID]", required=False, type=number)
@click.option("--shard", metavar="N", type=number, help="A shard, not an ID.")
@click.option(
    "--keyspace",
    metavar="NAME",
    help="The keyspace; a global one needs neither ID nor --shard.",
)
@click.option(
    "--standby",
    is_flag=True,
    help="The standby of the server, and nothing can be written.",
)
@click.option(
    "-e",
    "--execute",
    "statement",
    metavar="SQL",
    help="Run this SQL, and end with the status of the client.",
)
@click.option("--python", is_flag=True, help="Python in place of the client.")
@click.option(
    "-c",
    "--command",
    "program",
    metavar="PYTHON",
    help="Run this Python, and end with its status.",
)
@models_option
@cache_option
@pass_settings
def shell_command(
    settings: Settings,
    object_id: int | None,
    shard: int | None,
    keyspace: str | None,
    standby: bool,
    statement: str | None,
    python: bool,
    program: str | None,
    models: tuple[str, ...],
    cache: str | None,
) -> None:
    """Open a shell on a virtual shard, or that of an object.

    It is the client mariadb or mysql, or sqlite3 for SQLite files, with the
    account of the topology.  With --python it is Python with the names
    cluster, session and location, those of SQLAlchemy and sqla_shard, and
    those of the modules in --models.  Statements of that session that tell
    no shard go to this one; nothing is committed unless you say
    session.commit().

    With --cache what Python writes is told to the application's cache.  What
    SQL of the client writes, nobody tells it.
    """
    uses_python = python or program is not None
    if statement is not None and uses_python:
        raise click.UsageError("--execute is SQL: leave out --python and -c")
    if models and not uses_python:
        raise click.UsageError("--models is for --python and -c")
    topology = settings.topology(connects=True)
    location = _location(topology, object_id, shard, keyspace)
    url = _url(location, standby=standby)
    if uses_python:
        scope = names(models)
        used = standby_alone(location) if standby else topology
        # Of a standby, readers of the primary would get what is old there.
        unwanted = "nothing is written on a standby" if standby else None
        told = told_cache(cache, unwanted)
        _python(used, location, scope, program, told, read_only=standby)
        return
    told_cache(cache, "it is for --python and -c; SQL of a client is not told")
    client_for(
        url,
        location.database,
        environ=os.environ,
        statement=statement,
        read_only=standby,
    ).replace_process()


def _location(
    topology: Topology,
    object_id: int | None,
    shard: int | None,
    keyspace: str | None,
) -> Location:
    if object_id is not None and shard is not None:
        raise click.UsageError("say an ID or --shard, not both")
    if object_id is not None:
        return find_object(topology, object_id, keyspace)
    if shard is not None:
        return find_shard(topology, shard, keyspace)
    if keyspace and topology.keyspace(keyspace).kind == "global":
        return find_shard(topology, 0, keyspace)
    raise click.UsageError(
        "say which shard: an ID, --shard N, or --keyspace NAME of a global "
        "keyspace"
    )


def _url(location: Location, *, standby: bool) -> str:
    server = location.server
    if not standby:
        return server.primary
    if server.standby is None:
        raise click.ClickException(
            f"the server {server.name!r} of shard {location.shard_id} has no "
            "standby in the topology; leave out --standby"
        )
    return server.standby


def _python(
    topology: Topology,
    location: Location,
    scope: dict[str, Any],
    program: str | None,
    told: ToldCache,
    *,
    read_only: bool,
) -> None:
    with opened(topology, location, read_only=read_only) as (cluster, session):
        told.give(cluster)
        # It is there to see what the shard has.
        session.uses_cache = False
        scope.update(
            __name__="__main__",
            cluster=cluster,
            session=session,
            location=location,
        )
        if program is not None:
            exec(compile(program, "<command>", "exec"), scope)  # noqa: S102  # of whoever started us
            return
        _interact(scope, location, read_only=read_only)


def _interact(
    scope: dict[str, Any], location: Location, *, read_only: bool
) -> None:
    with contextlib.suppress(ImportError):
        # Where it is there, input() has a history and can be edited.
        import readline  # noqa: F401
    url = redact(_url(location, standby=read_only))
    role = "standby" if read_only else "primary"
    code.interact(
        f"shard {location.shard_id} of {location.keyspace.name}: database "
        f"{location.database} on {location.server.name}, {role} {url}\n"
        "There are cluster, session, location, select, pack, unpack ...; "
        "session.commit() keeps what you write.",
        local=scope,
        exitmsg="",
    )
