"""Statements of tests in which MariaDB and MySQL differ.

STOP, START, RESET and SHOW REPLICA are words of both, and are not here.
"""

from __future__ import annotations

from typing import Any

from sqla_shard.fleet.replication import Replication, replication_kind
from sqla_shard.testing.database_server import DatabaseServer
from tests.servers.kinds import Kind


def words(server: DatabaseServer) -> type[Replication]:
    """Return the words of a server, which are those of the package."""
    return replication_kind(is_mariadb=server.kind == "mariadb")


def semi_sync_options(kind: Kind) -> tuple[str, ...]:
    """Return the arguments of a server of a fleet with semi-sync.

    It is closed when it starts, as every server of a fleet should be.
    """
    source, _ = replication_kind(is_mariadb=not kind.is_mysql).SEMI_SYNC
    name = source.replace("_", "-")
    return ("--read-only=1", f"--{name}-wait-point=AFTER_SYNC")


def change_source(server: DatabaseServer, **options: object) -> str:
    """Return the statement that changes how a standby replicates.

    :param options: names without MASTER or SOURCE, in lower case.
    """
    word = words(server).SOURCE
    what = "MASTER" if server.kind == "mariadb" else "REPLICATION SOURCE"
    values = ", ".join(
        f"{word}_{name.upper()} = {value}" for name, value in options.items()
    )
    return f"CHANGE {what} TO {values}"


def let_root_write(cursor: Any, kind: str) -> None:
    """Let root write on a server that a failover has closed."""
    if kind == "mysql":
        cursor.execute("SET GLOBAL super_read_only = 0")


def unlogged(server: DatabaseServer, sql: str) -> None:
    """Execute a statement as root, on this server only."""
    with server.root_connect() as connection:
        cursor = connection.cursor()
        let_root_write(cursor, server.kind)
        cursor.execute("SET SESSION sql_log_bin = 0")
        cursor.execute(sql)


def standby_state(server: DatabaseServer) -> tuple[str, str] | None:
    """Return whether a standby receives, and applies.

    :returns: such as ``("Connecting", "Yes")``; None if it has no primary.
    """
    with server.root_connect() as connection:
        cursor = connection.cursor()
        cursor.execute("SHOW REPLICA STATUS")
        names = [column[0] for column in cursor.description]
        row = cursor.fetchone()
    if row is None:
        return None
    status = dict(zip(names, row, strict=True))
    name = words(server).REPLICA.title()
    return status[f"{name}_IO_Running"], status[f"{name}_SQL_Running"]


def received(server: DatabaseServer) -> str | None:
    """Return whether a standby receives; None if it has no primary."""
    state = standby_state(server)
    return None if state is None else state[0]
