"""``sqla-shard shell``: SQL client or Python on one virtual shard."""

from __future__ import annotations

import code
import contextlib
import os
from typing import Any, TYPE_CHECKING

import click

from sqla_shard.cli.options import (
    cache_of_option,
    cache_option,
    CacheOption,
    completed,
    keyspace_option,
    models_option,
    names,
    number,
    pass_settings,
    Settings,
)
from sqla_shard.cli.output import command, option

if TYPE_CHECKING:
    from sqla_shard.topology import Location, Topology


@command(
    "shell",
    "sqla-shard shell 241294492511762325",
    "sqla-shard shell --shard 5 --standby",
    'sqla-shard shell --keyspace main -e "SHOW TABLES"',
    "sqla-shard shell --shard 5 --python --models shop.models",
    "sqla-shard shell --shard 5 --models shop.models \\",
    '    -c "print(session.scalars(select(Pin)).all())"',
)
@click.argument("object_id", metavar="[ID]", required=False, type=number)
@option(
    "--shard N", "Shard, instead of an ID.", number, shell_complete=completed("shard")
)
@keyspace_option("Keyspace; a global one needs neither ID nor --shard.")
@option("--standby", "Connect to the standby of the server, read-only.")
@option(
    "-e --execute SQL",
    "Run this SQL, and exit with the status of the client.",
    to="statement",
)
@option("--python", "Open Python instead of the SQL client.")
@option(
    "-c --command PYTHON",
    "Run this Python code, and exit with its status.",
    to="program",
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
    """Open a shell on a virtual shard, or on the shard of an object.

    The shell is the client mariadb or mysql, or sqlite3 for SQLite files,
    with the account in the topology.  With --python it is Python with the
    names cluster, session and location, and the public names of SQLAlchemy,
    sqla_shard and the modules in --models.  Statements of that session
    without a shard run on this one.  Call session.commit() to commit.

    With --cache, rows that Python writes are invalidated in the cache of the
    application.  The SQL client does not invalidate rows.
    """
    from sqla_shard.cli.shells import client_for, standby_alone

    uses_python = python or program is not None
    if statement is not None and uses_python:
        raise click.UsageError("--execute cannot be used with --python or -c")
    if models and not uses_python:
        raise click.UsageError("--models requires --python or -c")
    topology = settings.topology(connects=True)
    location = _location(topology, object_id, shard, keyspace)
    url = _url(location, standby=standby)
    if uses_python:
        namespace = names(models)
        used = standby_alone(location) if standby else topology
        # Rows of a standby may be outdated and must not enter the cache.
        unused = "a standby is read-only" if standby else None
        option = cache_of_option(cache, unused)
        _python(used, location, namespace, program, option, read_only=standby)
        return
    cache_of_option(
        cache, "the SQL client does not invalidate rows; use --python or -c"
    )
    client_for(
        url,
        location.database,
        environ=os.environ,
        statement=statement,
        read_only=standby,
    ).replace_process()


def _location(
    topology: Topology, object_id: int | None, shard: int | None, keyspace: str | None
) -> Location:
    from sqla_shard.topology import find_object, find_shard

    if object_id is not None and shard is not None:
        raise click.UsageError("specify either an ID or --shard, not both")
    if object_id is not None:
        return find_object(topology, object_id, keyspace)
    if shard is not None:
        return find_shard(topology, shard, keyspace)
    if keyspace and topology.keyspace(keyspace).kind == "global":
        return find_shard(topology, 0, keyspace)
    raise click.UsageError(
        "specify a shard: an ID, --shard N, or --keyspace NAME of a global keyspace"
    )


def _url(location: Location, *, standby: bool) -> str:
    server = location.server
    if not standby:
        return server.primary
    if server.standby is None:
        raise click.ClickException(
            f"the server {server.name!r} of shard {location.shard_id} has no "
            "standby in the topology; omit --standby"
        )
    return server.standby


def _python(
    topology: Topology,
    location: Location,
    namespace: dict[str, Any],
    program: str | None,
    option: CacheOption,
    *,
    read_only: bool,
) -> None:
    from sqla_shard.cli.shells import opened

    with opened(topology, location, read_only=read_only) as (cluster, session):
        option.configure(cluster)
        # A shell shows the rows of the shard, not those of the cache.
        session.uses_cache = False
        namespace.update(
            __name__="__main__", cluster=cluster, session=session, location=location
        )
        if program is not None:
            exec(compile(program, "<command>", "exec"), namespace)  # noqa: S102  # the user's own code
            return
        _interact(namespace, location, read_only=read_only)


def _interact(
    namespace: dict[str, Any], location: Location, *, read_only: bool
) -> None:
    from sqla_shard.topology import redact

    with contextlib.suppress(ImportError):
        # readline adds a history and line editing to input().
        import readline  # noqa: F401
    url = redact(_url(location, standby=read_only))
    role = "standby" if read_only else "primary"
    code.interact(
        f"shard {location.shard_id} of {location.keyspace.name}: database "
        f"{location.database} on {location.server.name}, {role} {url}\n"
        "Names: cluster, session, location, select, pack, unpack ...; "
        "call session.commit() to commit.",
        local=namespace,
        exitmsg="",
    )
