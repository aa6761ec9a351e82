"""The shells of ``sqla-shard shell``, on one virtual shard.

Statements of the Python session that name their shards are routed as in any
session.  Other statements, such as ``select(Pin)`` or SQL text, are executed
on the bound shard instead of being refused.

The programs ``mariadb`` and ``mysql`` read the password from a pipe, which is
their option file, so that the password is in no argument, environment variable
or file.  They read the user's ``~/.my.cnf`` first, for the prompt and the
pager; the server, the account and the certificates in the URL take precedence.
See :mod:`sqla_shard.fleet.client_options` for the settings of the URL.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import click
from sqlalchemy import Connection, Engine, event, make_url, Table
from sqlalchemy.engine import URL
from sqlalchemy.ext.horizontal_shard import set_shard_id
from sqlalchemy.orm import ORMExecuteState
from sqlalchemy.sql import visitors
from sqlalchemy.sql.lambdas import LambdaElement

from sqla_shard.cluster.cluster import Cluster
from sqla_shard.dialects import backend_for
from sqla_shard.engine import Scatter
from sqla_shard.exc import NoShardKeyError
from sqla_shard.fleet.client_options import address_arguments, client_options, pipe_with
from sqla_shard.session import ShardSession
from sqla_shard.topology import Location, Server, ShardRange, Topology
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


@dataclass(frozen=True, kw_only=True)
class ClientProgram:
    """A program and its arguments.

    :param program: path of the program.
    :param arguments: arguments of the program, without secrets.
    :param options: content of the option file; None if the program has no
        option file.
    """

    program: str
    arguments: tuple[str, ...]
    options: str | None = None

    def __repr__(self) -> str:
        return f"Client({self.program!r}, {self.arguments!r})"

    def replace_process(self) -> NoReturn:
        """Replace this process with the program, on the same terminal.

        :raises OSError: if the program cannot be started.
        """
        arguments = [self.program]
        if self.options is not None:
            arguments.append(f"--defaults-file=/dev/fd/{pipe_with(self.options)}")
        sys.stdout.flush()
        sys.stderr.flush()
        os.execv(self.program, [*arguments, *self.arguments])  # noqa: S606  # no shell is wanted


def client_for(
    url: str,
    database: str,
    *,
    environ: Mapping[str, str],
    statement: str | None = None,
    read_only: bool = False,
) -> ClientProgram:
    """Return the client for a database of a server.

    :param url: URL of the server, from the topology.
    :param database: name of the database.
    :param environ: values of the placeholders.
    :param statement: SQL to run; None for an interactive client.
    :param read_only: whether to make transactions read-only.
    :raises click.ClickException: if no client is installed, a file is not
        found, or the client does not support a setting.
    """
    parsed = make_url(url)
    backend = backend_for(parsed.drivername, driver="pymysql")
    parsed, schema = backend.locate(parsed, database)
    if parsed.get_backend_name() == "sqlite":
        return _sqlite(str(parsed.database), statement, read_only)
    program = _found("mariadb", "mysql", package="mariadb-client")
    return ClientProgram(
        program=program,
        arguments=tuple(_arguments(parsed, schema, statement)),
        options=_options(parsed, environ, program, read_only=read_only),
    )


def _found(*names: str, package: str) -> str:
    for name in names:
        path = shutil.which(name)
        if path is not None:
            return path
    raise click.ClickException(
        f"{' or '.join(names)} is not installed, or not in PATH; on Debian and Ubuntu: "
        f"apt-get install {package}; --python does not need a client"
    )


def _sqlite(path: str, statement: str | None, read_only: bool) -> ClientProgram:
    if not Path(path).is_file():
        # Refuse it: sqlite3 would create an empty database.
        raise click.ClickException(
            f"{path} not found; the shard was not created yet, or the "
            "directory in the topology is relative to another one"
        )
    arguments = ["-readonly"] if read_only else []
    arguments += ["-cmd", ".timeout 30000", "-cmd", "PRAGMA foreign_keys=ON"]
    # Use an absolute path, and a space before the statement: an argument that
    # begins with '-', such as a comment, would be parsed as an option.
    arguments.append(str(Path(path).absolute()))
    if statement is not None:
        arguments.append(f" {statement}")
    return ClientProgram(
        program=_found("sqlite3", package="sqlite3"), arguments=tuple(arguments)
    )


def _arguments(url: URL, schema: str, statement: str | None) -> Iterator[str]:
    yield from address_arguments(url)
    if statement is not None:
        yield f"--execute={statement}"
    yield f"--database={schema}"


def _options(
    url: URL, environ: Mapping[str, str], program: str, *, read_only: bool
) -> str:
    """Return the option file."""
    own = Path.home() / ".my.cnf"
    last = ("[mysql]", 'init-command="SET SESSION TRANSACTION READ ONLY"')
    try:
        return client_options(
            url,
            environ,
            program,
            first=(f"!include {own}",) if own.is_file() else (),
            last=last if read_only else (),
        )
    except ValueError as error:
        raise click.ClickException(str(error)) from error
