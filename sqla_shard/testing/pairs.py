"""A primary with its standby, in replication, for as long as a test needs.

::

    with MariaDBPair() as pair:
        with pair.primary.connect() as connection:
            ...                      # write
        pair.wait_caught_up()
        with pair.standby.connect() as connection:
            ...                      # read; writing fails with error 1290

Needs Linux, PyMySQL, and MariaDB 10.6 or later on the machine;
:meth:`MariaDBPair.attach` with ``demote=True`` needs 10.10.  Replication is
asynchronous, by GTID: what the primary has acknowledged may be lost with it.
Nothing is promoted by itself.  :meth:`MariaDBPair.attach` and
:meth:`MariaDBPair.name_primary` are two of the steps of a test that promotes
a standby; the others, such as making the old primary read-only first, are
statements of root.

All servers of a pair have the same application user, password and GTID
domain.  The standbys are started with ``read_only``, which holds for the
application user, but neither for root nor for replication.  A standby that
was killed and started again is read-only and goes on replicating by itself;
a primary that was killed comes back writable, even if another was promoted
in the meantime.

A pair that is controlled (started, stopped, attached) by several threads at
once is not supported.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from pymysql.cursors import DictCursor

from sqla_shard import exc
from sqla_shard.testing._started import at_once
from sqla_shard.testing._started import Started
from sqla_shard.testing.accounts import PREFIXES
from sqla_shard.testing.accounts import random_password
from sqla_shard.testing.mariadb import MariaDBServer

__all__ = ["MariaDBPair"]

_LETTERS = "abcdefghijklmnopqrstuvwxyz"

_OPTIONS = (
    # One that fails says so in wait_caught_up(), with its reason; a minute
    # until the next attempt would look like a standby that hangs.
    # A single applier falls behind a primary with a few busy writers.
    "--slave-parallel-threads=4",
)


class MariaDBPair(Started):
    """A primary and its standbys, started, used and thrown away.

    :param name: of the pair, as in a topology; the servers are ``server1a``,
        ``server1b`` and so on.
    :param standbys: how many, 1 to 25.
    :param password: of the application user, the same on all servers; by
        default random.
    :param prefixes: see :class:`~.mariadb.MariaDBServer`.
    :param fast: see :class:`~.mariadb.MariaDBServer`.
    :param options: further arguments of every ``mariadbd``; they win.
    :param start_timeout: seconds to wait for each server.
    :raises ValueError: if an argument makes no sense.
    """

    replication_user = "replication"
    """Who the standbys are on their primary; may do nothing else."""

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
            raise ValueError(f"standbys {standbys!r} is not 1 to 25")
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
        """All of them, in an order that promotions do not change."""
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
        """Say which server is the primary from now on; nothing is sent.

        :param server: one of :attr:`servers`.
        :raises ValueError: if it is of another pair.
        """
        if server not in self.servers:
            raise ValueError(f"{server!r} is not of {self!r}")
        self._primary = server

    # -- starting and ending ----------------------------------------------

    def start(self) -> MariaDBPair:
        """Start all servers at once, and replication the first time.

        If one fails, none is left running.

        :raises sqla_shard.exc.ServerProcessError: if MariaDB is missing or a
            server does not start.
        """
        with self._or_stopped():
            at_once(self.servers, MariaDBServer.start)
            if not self._attached:
                for server in self.servers:
                    self._create_account(server)
                for server in self.standbys:
                    self.attach(server)
                self._attached = True
        return self

    def stop(self) -> None:
        """End all servers and remove their data."""
        at_once(self.servers, MariaDBServer.stop)
        self._attached = False
        self._primary = self.servers[0]

    # -- replication ------------------------------------------------------

    def attach(self, server: MariaDBServer, *, demote: bool = False) -> None:
        """Have a server replicate from the primary of this pair.

        It goes on where it stopped; a new server gets all that was ever
        written.  Whether it is read-only is not changed.

        :param server: of this pair or of another; not its primary.
        :param demote: whether it has been a primary itself, and has no
            writes of its own that the new one lacks.
        :raises ValueError: if it is the primary.
        :raises pymysql.err.MySQLError: if the server refuses.
        """
        if server is self._primary:
            raise ValueError(f"{server!r} cannot replicate from itself")
        sql = (
            "CHANGE MASTER TO MASTER_HOST = %s, MASTER_PORT = %s,"
            " MASTER_USER = %s, MASTER_PASSWORD = %s,"
            # A server that was killed is back at once, not in a minute.
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
        """Wait until the standbys have all that the primary has now.

        :param timeout: seconds for each standby.
        :raises sqla_shard.exc.ServerProcessError: if one has not in time,
            with its state of replication.
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

    # -- inside -----------------------------------------------------------

    def _create_account(self, server: MariaDBServer) -> None:
        account = f"'{self.replication_user}'@'{server.host}'"
        with server.root_connect() as connection:
            cursor = connection.cursor()
            # Every server may be the primary one day, and has it already.
            cursor.execute("SET SESSION sql_log_bin = 0")
            cursor.execute(
                f"CREATE USER {account} IDENTIFIED BY %s",
                (self._replication_password,),
            )
            cursor.execute(f"GRANT REPLICATION SLAVE ON *.* TO {account}")


def _replication_state(server: MariaDBServer) -> str:
    """Return what a standby says of its replication, in a few lines."""
    # A standby whose disk is full does not answer this at all.
    with server.root_connect(read_timeout=10) as connection:
        cursor = connection.cursor(DictCursor)
        cursor.execute("SHOW SLAVE STATUS")
        row = cursor.fetchone()
    if row is None:
        return "it replicates from nobody"
    names = (
        "Slave_IO_Running",
        "Last_IO_Error",
        "Slave_SQL_Running",
        "Last_SQL_Error",
        "Gtid_IO_Pos",
    )
    return "\n".join(f"{name}: {row[name]}" for name in names)
