"""``sqla-shard shell``: SQL client or Python on one virtual shard.

Statements of the Python session that name their shards are routed as in any
session.  Other statements, such as ``select(Pin)`` or SQL text, are executed
on the bound shard instead of being refused.
"""

from __future__ import annotations

import code
import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import click
from sqlalchemy import Connection, Engine, event, Table
from sqlalchemy.ext.horizontal_shard import set_shard_id
from sqlalchemy.orm import ORMExecuteState
from sqlalchemy.sql import visitors
from sqlalchemy.sql.lambdas import LambdaElement

from sqla_shard.cli.application_options import (
    cache_of_option,
    cache_option,
    CacheOption,
    models_option,
    names,
)
from sqla_shard.cli.options import number, pass_settings, Settings
from sqla_shard.cli.output import examples
from sqla_shard.cli.sql_clients import client_for
from sqla_shard.cluster.cluster import Cluster
from sqla_shard.engine import Scatter
from sqla_shard.exc import NoShardKeyError
from sqla_shard.session import ShardSession
from sqla_shard.topology import (
    find_object,
    find_shard,
    Location,
    redact,
    Server,
    ShardRange,
    Topology,
)
from sqla_shard.util import sqlalchemy_private as private


class BoundSession(ShardSession):
    """A session with a default shard for statements and new roots.

    Only ``commit()`` commits.

    :param location: the shard.
    """

    def __init__(self, *, cluster: Cluster, location: Location) -> None:
        sharded = location.keyspace.kind == "objects"
        super().__init__(
            cluster=cluster, shard_id=location.shard_id if sharded else None
        )
        self._bound = {
            "shard_id": location.shard_id,
            "keyspace": location.keyspace.name,
        }

    def connection(
        self, bind_arguments: Any = None, execution_options: Any = None
    ) -> Connection:
        """Return the connection to the bound shard, or to the given one."""
        return super().connection(bind_arguments or self._bound, execution_options)

    def route_to_bound(self, context: ORMExecuteState) -> None:
        """Handle ``do_orm_execute``: use the bound shard by default."""
        if not self._has_shards(context) and self._needs_shard(context):
            context.bind_arguments.update(self._bound)

    def _has_shards(self, context: ORMExecuteState) -> bool:
        given = context.bind_arguments
        return (
            any(given.get(key) is not None for key in (*self._bound, "place"))
            # Rows with ids are routed to their shards.
            or context.is_insert
            or isinstance(context.parameters, list)
            or isinstance(context.statement, LambdaElement)
            or any(
                isinstance(option, (Scatter, set_shard_id))
                for option in private.with_options(context.statement)
            )
        )

    def _needs_shard(self, context: ORMExecuteState) -> bool:
        statement: Any = context.statement
        if not any(isinstance(part, Table) for part in visitors.iterate(statement)):
            return True
        try:
            self.execute_chooser(context)
        except NoShardKeyError:
            return True
        return False


# Insert it before the listener of ShardSession, which would refuse
# these statements.
event.listen(
    BoundSession,
    "do_orm_execute",
    lambda context: context.session.route_to_bound(context),
    insert=True,
)


def standby_alone(location: Location) -> Topology:
    """Return a topology of one server: the standby of a shard.

    It has all shards of the keyspace.  Reading a shard that is on another
    server fails with the server's error for an unknown database.

    :param location: a shard whose server has a standby.
    """
    keyspace, server = location.keyspace, location.server
    alone = replace(
        keyspace,
        servers=(
            Server(
                name=server.name,
                primary=str(server.standby),
                shards=(ShardRange(0, keyspace.shards - 1),),
            ),
        ),
    )
    return Topology(epoch=0, keyspaces={keyspace.name: alone})


@contextlib.contextmanager
def opened(
    topology: Topology,
    location: Location,
    *,
    environ: Mapping[str, str] | None = None,
    read_only: bool = False,
) -> Iterator[tuple[Cluster, BoundSession]]:
    """Open a cluster, and a session bound to one of its shards.

    :param topology: the topology of the cluster.
    :param location: the shard.
    :param environ: values of the placeholders; the environment by default.
    :param read_only: whether to make the connections to the shard's server
        read-only.
    """
    with Cluster(topology, environ=environ) as cluster:
        if read_only:
            places = cluster.places
            keyspace = places.keyspace(location.keyspace.name, "")
            refuse_writes(places.place(keyspace, location.shard_id).engine)
        with BoundSession(cluster=cluster, location=location) as session:
            yield cluster, session


def refuse_writes(engine: Engine) -> None:
    """Make the new connections of an engine read-only."""
    statement = "SET SESSION TRANSACTION READ ONLY"
    if engine.dialect.name == "sqlite":
        statement = "PRAGMA query_only=ON"

    def _on_connect(connection: Any, record: Any) -> None:
        cursor = connection.cursor()
        cursor.execute(statement)
        cursor.close()

    event.listen(engine, "connect", _on_connect)


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
@click.option("--shard", metavar="N", type=number, help="Shard, instead of an ID.")
@click.option(
    "--keyspace",
    metavar="NAME",
    help="Keyspace; a global one needs neither ID nor --shard.",
)
@click.option(
    "--standby", is_flag=True, help="Connect to the standby of the server, read-only."
)
@click.option(
    "-e",
    "--execute",
    "statement",
    metavar="SQL",
    help="Run this SQL, and exit with the status of the client.",
)
@click.option("--python", is_flag=True, help="Open Python instead of the SQL client.")
@click.option(
    "-c",
    "--command",
    "program",
    metavar="PYTHON",
    help="Run this Python code, and exit with its status.",
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
