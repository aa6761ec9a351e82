"""One MariaDB server of your own, for as long as a test needs it.

::

    with MariaDBServer() as server:
        with pymysql.connect(host=server.host, port=server.port, ...) as c:
            ...
        server.kill()       # in mid-air, as a crash would
        server.start()      # and recover

Needs Linux, PyMySQL, and MariaDB 10.6 or later on the machine.  The server
listens on 127.0.0.1 only, keeps a binary log (ROW, GTID), starts with strict
SQL modes, UTC and utf8mb4, and has one application user, who may do anything
to databases with the agreed prefixes and nothing else: no SUPER, so that a
server that is ``read_only`` is read-only for it.

Everything is in one directory, removed by :meth:`MariaDBServer.stop`, when
the interpreter exits, or by a guard process when the test run is killed.
A server that is controlled (started, stopped, killed) by several threads at
once is not supported; connecting from several is.

Environment variables:

``SQLA_SHARD_TEST_PASSWORD``
    Password of the application user, in place of a random one.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pymysql
from pymysql.cursors import Cursor

from sqla_shard import exc
from sqla_shard.testing import datadir
from sqla_shard.testing._processes import accepts
from sqla_shard.testing._server import LocalServer
from sqla_shard.testing.accounts import check_prefixes
from sqla_shard.testing.accounts import create_user
from sqla_shard.testing.accounts import PREFIXES
from sqla_shard.testing.accounts import random_password
from sqla_shard.testing.options import server_options
from sqla_shard.testing.options import storage_options
from sqla_shard.testing.querylog import QueryLog

__all__ = ["MariaDBServer"]

_server_ids = itertools.count(1)


class MariaDBServer(LocalServer):
    """A MariaDB server that is started, used and thrown away.

    :param name: for messages; also the name in a topology.
    :param password: of the application user ``app``; by default random.
    :param prefixes: the application user may do anything to databases whose
        names begin with one of these.
    :param fast: commit without waiting for the disk, and use little memory.
        Survives :meth:`kill`, not a power failure of the machine.
    :param server_id: 1 to 2**32 - 1; by default the next of this process.
    :param gtid_domain_id: by default the ``server_id``.  Give a standby that
        of its primary.
    :param options: further arguments of ``mariadbd``; they win.
    :param parent: where to make the server's directory; by default where
        the system wants such things (``TMPDIR``).
    :param template: a data directory to copy; by default one that all
        servers of the process share, see :mod:`.datadir`.
    :param start_timeout: seconds to wait for a start.
    :param stop_timeout: seconds to wait for an orderly end before SIGKILL.
    :raises ValueError: if an argument makes no sense.
    """

    user = "app"
    local = True
    """Whether the server is a process of ours, which we can kill."""

    _log_name = "error.log"

    def __init__(
        self,
        name: str = "server1",
        *,
        password: str | None = None,
        prefixes: Sequence[str] = PREFIXES,
        fast: bool = False,
        server_id: int | None = None,
        gtid_domain_id: int | None = None,
        options: Sequence[str] = (),
        parent: Path | None = None,
        template: Path | None = None,
        start_timeout: float = 60.0,
        stop_timeout: float = 30.0,
    ) -> None:
        if server_id is None:
            server_id = next(_server_ids)
        if not 1 <= server_id < 2**32:
            raise ValueError(f"server_id {server_id!r} is not 1 to 2**32 - 1")
        super().__init__(
            name,
            parent=parent,
            start_timeout=start_timeout,
            stop_timeout=stop_timeout,
        )
        self.password = random_password() if password is None else password
        self.prefixes = check_prefixes(prefixes)
        self.fast = fast
        self.server_id = server_id
        self.gtid_domain_id = (
            server_id if gtid_domain_id is None else gtid_domain_id
        )
        self.options = tuple(options)
        self.template = template
        """Data directory to copy on the first start."""
        self._account = datadir.Account(None, change=False)

    @property
    def url(self) -> str:
        """Where and as whom the application connects; has the password."""
        password = quote(self.password, safe="")
        return f"mysql://{self.user}:{password}@{self.host}:{self.port}"

    @property
    def socket(self) -> Path:
        """Where root connects.

        :raises sqla_shard.exc.ServerProcessError: if the server has no
            directory.
        """
        return self._directory() / "s.sock"

    @property
    def log_tail(self) -> str:
        """The last lines of the error log; empty once it was removed."""
        return super().log_tail

    # -- starting and ending ----------------------------------------------

    def start(self) -> MariaDBServer:
        """Start the server and wait until it answers.

        After :meth:`kill` or an end of its own it has its data and its port
        again.  Nothing happens if it is running.

        :raises sqla_shard.exc.ServerProcessError: if MariaDB is missing or
            does not start in time; has the end of its log.
        """
        self._start()
        return self

    # -- talking to it ----------------------------------------------------

    def connect(self, **arguments: Any) -> pymysql.Connection[Cursor]:
        """Connect as the application does.

        :param arguments: for :func:`pymysql.connect`.
        :raises pymysql.err.OperationalError: if the server does not answer.
        """
        return pymysql.connect(
            host=self.host,
            port=self.port,
            user=self.user,
            password=self.password,
            charset="utf8mb4",
            **arguments,
        )

    def root_connect(self, **arguments: Any) -> pymysql.Connection[Cursor]:
        """Connect as root over the socket, in autocommit mode.

        :param arguments: for :func:`pymysql.connect`.
        :raises sqla_shard.exc.ServerProcessError: if it is not running.
        """
        self._running_process()
        return pymysql.connect(
            unix_socket=str(self.socket),
            user=datadir.system_user(),
            charset="utf8mb4",
            autocommit=True,
            **arguments,
        )

    def root_execute(
        self, sql: str, parameters: Sequence[object] = ()
    ) -> list[tuple[Any, ...]]:
        """Run one statement as root, in a connection of its own.

        :param parameters: for ``%s`` in the statement, if any.
        :return: the rows; none for a statement without.
        :raises sqla_shard.exc.ServerProcessError: if it is not running.
        :raises pymysql.err.MySQLError: if the statement fails.
        """
        with self.root_connect() as connection, connection.cursor() as cursor:
            cursor.execute(sql, tuple(parameters) or None)
            return list(cursor.fetchall())

    def query_log(self) -> QueryLog:
        """Return a log of what the application sends, as it arrives.

        ::

            with server.query_log() as log:
                ...
            assert len(log.statements) == 1
        """
        return QueryLog(self)

    # -- inside -----------------------------------------------------------

    def _make_directory(self, parent: Path) -> Path:
        datadir.require()
        self._account = datadir.Account.for_directory(parent.resolve())
        return datadir.make_directory(parent, self._account)

    def _fill(self, directory: Path) -> None:
        if len(os.fsencode(self.socket)) > 107:
            raise exc.ServerProcessError(
                f"{self.socket} is too long a path for a socket. Set TMPDIR "
                "to a directory with a shorter one",
                log="",
            )
        account = self._account
        (directory / "tmp").mkdir()
        account.own(directory / "tmp")
        data = directory / "data"
        template = self.template or datadir.made(storage_options(self.fast))
        datadir.copy_data(template, data, account)

    def _command(self, directory: Path) -> list[str]:
        binaries = datadir.require()
        return [
            binaries.server,
            *binaries.options,
            *self._account.server_options,
            *server_options(
                directory,
                port=self.port,
                socket=self.socket,
                server_id=self.server_id,
                gtid_domain_id=self.gtid_domain_id,
                fast=self.fast,
            ),
            *self.options,
        ]

    def _serves(self) -> bool:
        if not accepts(self.socket):
            # PyMySQL would leave the socket that it tried open.
            return False
        try:
            with self.root_connect(connect_timeout=5):
                return True
        except pymysql.err.OperationalError:
            return False

    def _first_start(self) -> None:
        super()._first_start()
        self._create_user()

    def _create_user(self) -> None:
        with self.root_connect() as connection, connection.cursor() as cursor:
            # Each server has its own users; in the binary log they would
            # collide with those of a server that replicates from this one.
            cursor.execute("SET SESSION sql_log_bin = 0")
            create_user(
                cursor,
                f"'{self.user}'@'{self.host}'",
                password=self.password,
                prefixes=self.prefixes,
            )

    def _end(self, how: signal.Signals) -> None:
        super()._end(how)
        with contextlib.suppress(FileNotFoundError):
            # Left by SIGKILL; whoever connects should see that it is gone.
            self.socket.unlink()
