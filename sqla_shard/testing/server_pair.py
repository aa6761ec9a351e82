"""A primary and its standbys for tests, in replication.

::

    with MySQLPair() as pair:
        with pair.primary.connect() as connection:
            ...                      # write
        pair.wait_caught_up()
        with pair.standby.connect() as connection:
            ...                      # read; writing fails with error 1290

Needs what :mod:`.database_server` needs; :meth:`ServerPair.attach` with
``demote=True`` needs MariaDB 10.10.  Replication is asynchronous, by GTID:
acknowledged writes may be lost with the primary.  Nothing is promoted
automatically.  :meth:`ServerPair.attach` and :meth:`ServerPair.name_primary`
are two of the steps of a test that promotes a standby; the others, such as
making the old primary read-only first, are statements of root.

All servers of a pair have the same application user and password, and with
MariaDB the same GTID domain.  The standbys are started with ``read_only``,
which holds for the application user, but neither for root nor for
replication.  A standby that is started after a crash is read-only and
continues replication; a primary that is started after a crash is writable,
even if another was promoted meanwhile.

Do not control (start, stop, attach) one pair from several threads at the same
time.
"""

from __future__ import annotations

import abc
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

from sqla_shard import exc
from sqla_shard.testing.database_server import DatabaseServer
from sqla_shard.testing.local_server import in_parallel, Startable
from sqla_shard.testing.mariadb import MariaDBServer
from sqla_shard.testing.mysql import MySQLServer
from sqla_shard.testing.server_setup import PREFIXES, random_password

__all__ = ["MariaDBPair", "MySQLPair", "ServerPair"]

_LETTERS = "abcdefghijklmnopqrstuvwxyz"

_Server = TypeVar("_Server", bound=DatabaseServer)
_Pair = TypeVar("_Pair", bound="ServerPair[Any]")


class ServerPair(Startable, Generic[_Server]):
    """A primary and its standbys for tests.

    :param name: name of the pair, as in a topology; the servers are
        ``server1a``, ``server1b`` and so on.
    :param standbys: number of standbys, 1 to 25.
    :param password: password of the application user, the same on all servers;
        by default random.
    :param prefixes: see :class:`~.database_server.DatabaseServer`.
    :param fast: see :class:`~.database_server.DatabaseServer`.
    :param options: arguments of every server, which override the others.
    :param base: directory of an unpacked server; by default the one of
        :mod:`.programs`.
    :param parent: parent of the servers' directories; by default the directory
        for temporary files (``TMPDIR``).
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
        base: Path | None = None,
        parent: Path | None = None,
        start_timeout: float = 60.0,
    ) -> None:
        if not 1 <= standbys < len(_LETTERS):
            raise ValueError(f"standbys={standbys!r} must be from 1 to 25")
        self.name = name
        shared = random_password() if password is None else password
        servers: list[_Server] = []
        for letter in _LETTERS[: standbys + 1]:
            closed = ("--read-only=1",) if servers else ()
            server = self._make(
                f"{name}{letter}",
                servers[0] if servers else None,
                password=shared,
                prefixes=prefixes,
                fast=fast,
                options=(*closed, *options),
                base=base,
                parent=parent,
                start_timeout=start_timeout,
            )
            servers.append(server)
        self.servers: tuple[_Server, ...] = tuple(servers)
        """All servers, in an order that promotions do not change."""
        self._primary = servers[0]
        self._replication_password = secrets.token_urlsafe(18)
        self._attached = False

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} {self.name} "
            f"primary={self._primary.name} servers={len(self.servers)}>"
        )

    @abc.abstractmethod
    def _make(self, name: str, primary: _Server | None, **arguments: Any) -> _Server:
        """Return a new server.

        :param primary: the first one of the pair; None if this is it.
        """

    # -- roles ------------------------------------------------------------

    @property
    def primary(self) -> _Server:
        """The server that the others replicate from."""
        return self._primary

    @property
    def standby(self) -> _Server:
        """The first of the standbys."""
        return self.standbys[0]

    @property
    def standbys(self) -> tuple[_Server, ...]:
        """All servers but the primary."""
        return tuple(s for s in self.servers if s is not self._primary)

    def name_primary(self, server: _Server) -> None:
        """Set the primary of the pair, without a statement to the servers.

        :param server: one of :attr:`servers`.
        :raises ValueError: if the server belongs to another pair.
        """
        if server not in self.servers:
            raise ValueError(f"{server!r} is not a server of {self!r}")
        self._primary = server

    def start(self: _Pair) -> _Pair:
        """Start all servers in parallel, and replication the first time.

        If one fails, all are stopped.

        :raises sqla_shard.exc.ServerProcessError: if the program is missing,
            or a server does not start.
        """
        with self._stopped_on_error():
            in_parallel(self.servers, DatabaseServer.start)
            if not self._attached:
                for server in self.servers:
                    self._create_account(server)
                for server in self.standbys:
                    self.attach(server)
                self._attached = True
        return self

    def stop(self) -> None:
        """Stop all servers and remove their data."""
        in_parallel(self.servers, DatabaseServer.stop)
        self._attached = False
        self._primary = self.servers[0]

    # -- replication ------------------------------------------------------

    def attach(self, server: _Server, *, demote: bool = False) -> None:
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
        server.replicate_from(
            self._primary,
            user=self.replication_user,
            password=self._replication_password,
            demote=demote,
        )

    def wait_caught_up(self, timeout: float = 30.0) -> None:
        """Wait until the standbys have applied all writes of the primary.

        :param timeout: seconds for each standby.
        :raises sqla_shard.exc.ServerProcessError: if a standby is too late;
            has its replication status.
        """
        position = self._primary.position()
        for server in self.standbys:
            if not server.reaches(position, timeout):
                raise exc.ServerProcessError(
                    f"{server!r} has not reached {position} of "
                    f"{self._primary.name} within {timeout:g} s",
                    log=server.replication_state(),
                )

    def _create_account(self, server: _Server) -> None:
        account = f"'{self.replication_user}'@'{server.host}'"
        with server.root_connect() as connection:
            cursor = connection.cursor()
            # Do not replicate this: every server has the account, since each
            # may become the primary.
            cursor.execute("SET SESSION sql_log_bin = 0")
            cursor.execute(
                f"CREATE USER {account} IDENTIFIED BY %s", (self._replication_password,)
            )
            cursor.execute(f"GRANT REPLICATION SLAVE ON *.* TO {account}")


class MariaDBPair(ServerPair[MariaDBServer]):
    """Servers of MariaDB; the arguments are those of :class:`ServerPair`."""

    def _make(
        self, name: str, primary: MariaDBServer | None, **arguments: Any
    ) -> MariaDBServer:
        # A single applier is slower than a primary with a few busy writers.
        options = ("--slave-parallel-threads=4", *arguments.pop("options"))
        return MariaDBServer(
            name,
            gtid_domain_id=None if primary is None else primary.gtid_domain_id,
            options=options,
            **arguments,
        )


class MySQLPair(ServerPair[MySQLServer]):
    """Servers of MySQL; the arguments are those of :class:`ServerPair`."""

    def _make(
        self, name: str, primary: MySQLServer | None, **arguments: Any
    ) -> MySQLServer:
        return MySQLServer(name, **arguments)
