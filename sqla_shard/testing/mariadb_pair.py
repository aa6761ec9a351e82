"""A primary and its standbys for tests, in replication.

::

    with MariaDBPair() as pair:
        with pair.primary.connect() as connection:
            ...                      # write
        pair.wait_caught_up()
        with pair.standby.connect() as connection:
            ...                      # read; writing fails with error 1290

Needs Linux, PyMySQL, and MariaDB 10.6 or later on the machine;
:meth:`MariaDBPair.attach` with ``demote=True`` needs 10.10.  Replication is
asynchronous, by GTID: acknowledged writes may be lost with the primary.
Nothing is promoted automatically.  :meth:`MariaDBPair.attach` and
:meth:`MariaDBPair.name_primary` are two of the steps of a test that promotes
a standby; the others, such as making the old primary read-only first, are
statements of root.

All servers of a pair have the same application user, password and GTID
domain.  The standbys are started with ``read_only``, which holds for the
application user, but neither for root nor for replication.  A standby that
is started after a crash is read-only and continues replication; a primary
that is started after a crash is writable, even if another was promoted
meanwhile.

Do not control (start, stop, attach) one pair from several threads at the same
time.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from pymysql.cursors import DictCursor

from sqla_shard import exc
from sqla_shard.testing.local_server import in_parallel
from sqla_shard.testing.local_server import Startable
from sqla_shard.testing.mariadb import MariaDBServer
from sqla_shard.testing.mariadb_setup import PREFIXES
from sqla_shard.testing.mariadb_setup import random_password

__all__ = ["MariaDBPair"]

_LETTERS = "abcdefghijklmnopqrstuvwxyz"

_OPTIONS = (
    # A single applier is slower than a primary with a few busy writers.
    "--slave-parallel-threads=4",
)


class MariaDBPair(Startable):
    """A primary and its standbys for tests.

    :param name: name of the pair, as in a topology; the servers are
        ``server1a``, ``server1b`` and so on.
    :param standbys: number of standbys, 1 to 25.
    :param password: password of the application user, the same on all servers;
        by default random.
    :param prefixes: see :class:`~.mariadb.MariaDBServer`.
    :param fast: see :class:`~.mariadb.MariaDBServer`.
    :param options: arguments of every ``mariadbd``, which override the others.
    :param start_timeout: seconds to wait for each server.
    :raises ValueError: if an argument is not valid.
    """

    replication_user = "replication"
    """User of the standbys on their primary, for replication only."""

    def __init__(
        self,
        name: str = "server1",
        *,
        standbys: int = 1,
        password: str | None = None,
        prefixes: Sequence[str] = PREFIXES,
        fast: bool = False,
        options: Sequence[str] = (),
        start_timeout: float = 60.0,
    ) -> None:
        if not 1 <= standbys < len(_LETTERS):
            raise ValueError(f"standbys={standbys!r} must be from 1 to 25")
        self.name = name
        shared = random_password() if password is None else password
        domain: int | None = None
        servers: list[MariaDBServer] = []
        for letter in _LETTERS[: standbys + 1]:
            closed = ("--read-only=1",) if servers else ()
            server = MariaDBServer(
                f"{name}{letter}",
                password=shared,
                prefixes=prefixes,
                fast=fast,
                gtid_domain_id=domain,
                options=(*_OPTIONS, *closed, *options),
                start_timeout=start_timeout,
            )
            domain = server.gtid_domain_id
            servers.append(server)
        self.servers: tuple[MariaDBServer, ...] = tuple(servers)
        """All servers, in an order that promotions do not change."""
        self._primary = servers[0]
        self._replication_password = secrets.token_urlsafe(18)
        self._attached = False

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} {self.name} "
            f"primary={self._primary.name} servers={len(self.servers)}>"
        )

    # -- roles ------------------------------------------------------------

    @property
    def primary(self) -> MariaDBServer:
        """The server that the others replicate from."""
        return self._primary

    @property
    def standby(self) -> MariaDBServer:
        """The first of the standbys."""
        return self.standbys[0]

    @property
    def standbys(self) -> tuple[MariaDBServer, ...]:
        """All servers but the primary."""
        return tuple(s for s in self.servers if s is not self._primary)

    def name_primary(self, server: MariaDBServer) -> None:
        """Set the primary of the pair, without a statement to the servers.

        :param server: one of :attr:`servers`.
        :raises ValueError: if the server belongs to another pair.
        """
        if server not in self.servers:
            raise ValueError(f"{server!r} is not a server of {self!r}")
        self._primary = server

    def start(self) -> MariaDBPair:
        """Start all servers in parallel, and replication the first time.

        If one fails, all are stopped.

        :raises sqla_shard.exc.ServerProcessError: if MariaDB is missing or a
            server does not start.
        """
        with self._stopped_on_error():
            in_parallel(self.servers, MariaDBServer.start)
            if not self._attached:
                for server in self.servers:
                    self._create_account(server)
                for server in self.standbys:
                    self.attach(server)
                self._attached = True
        return self

    def stop(self) -> None:
        """Stop all servers and remove their data."""
        in_parallel(self.servers, MariaDBServer.stop)
        self._attached = False
        self._primary = self.servers[0]

    # -- replication ------------------------------------------------------

    def attach(self, server: MariaDBServer, *, demote: bool = False) -> None:
        """Let a server replicate from the primary of this pair.

        It continues where it stopped; a new server gets all writes since
        the first.  ``read_only`` is not changed.

        :param server: a server of this pair or of another; not the primary.
        :param demote: whether it has been a primary, and the new primary has
            all its writes.
        :raises ValueError: if the server is the primary.
        :raises pymysql.err.MySQLError: if the server refuses.
        """
        if server is self._primary:
            raise ValueError(f"{server!r} cannot replicate from itself")
        sql = (
            "CHANGE MASTER TO MASTER_HOST = %s, MASTER_PORT = %s,"
            " MASTER_USER = %s, MASTER_PASSWORD = %s,"
            # Reconnect immediately after a crash, not after a minute.
            " MASTER_CONNECT_RETRY = 1, MASTER_USE_GTID = slave_pos"
        )
        if demote:
            sql += ", MASTER_DEMOTE_TO_SLAVE = 1"
        primary = self._primary
        with server.root_connect() as connection:
            cursor = connection.cursor()
            cursor.execute("STOP SLAVE")
            cursor.execute(
                sql,
                (
                    primary.host,
                    primary.port,
                    self.replication_user,
                    self._replication_password,
                ),
            )
            cursor.execute("START SLAVE")

    def wait_caught_up(self, timeout: float = 30.0) -> None:
        """Wait until the standbys have applied all writes of the primary.

        :param timeout: seconds for each standby.
        :raises sqla_shard.exc.ServerProcessError: if a standby is too late;
            has its replication status.
        """
        ((position,),) = self._primary.root_execute("SELECT @@gtid_binlog_pos")
        for server in self.standbys:
            ((answer,),) = server.root_execute(
                "SELECT MASTER_GTID_WAIT(%s, %s)", (position, timeout)
            )
            if answer != 0:
                raise exc.ServerProcessError(
                    f"{server!r} has not reached {position} of "
                    f"{self._primary.name} within {timeout:g} s",
                    log=_replication_state(server),
                )

    def _create_account(self, server: MariaDBServer) -> None:
        account = f"'{self.replication_user}'@'{server.host}'"
        with server.root_connect() as connection:
            cursor = connection.cursor()
            # Do not replicate this: every server has the account, since each
            # may become the primary.
            cursor.execute("SET SESSION sql_log_bin = 0")
            cursor.execute(
                f"CREATE USER {account} IDENTIFIED BY %s",
                (self._replication_password,),
            )
            cursor.execute(f"GRANT REPLICATION SLAVE ON *.* TO {account}")


def _replication_state(server: MariaDBServer) -> str:
    """Return the replication status of a standby, in a few lines."""
    # A standby whose disk is full does not respond to this statement.
    with server.root_connect(read_timeout=10) as connection:
        cursor = connection.cursor(DictCursor)
        cursor.execute("SHOW SLAVE STATUS")
        row = cursor.fetchone()
    if row is None:
        return "it has no primary"
    names = (
        "Slave_IO_Running",
        "Last_IO_Error",
        "Slave_SQL_Running",
        "Last_SQL_Error",
        "Gtid_IO_Pos",
    )
    return "\n".join(f"{name}: {row[name]}" for name in names)
