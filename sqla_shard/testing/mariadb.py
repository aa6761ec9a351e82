"""A MariaDB server for tests.

::

    with MariaDBServer() as server:
        with pymysql.connect(host=server.host, port=server.port, ...) as c:
            ...
        server.kill()       # like a crash
        server.start()      # and recover

Needs Linux, PyMySQL, and MariaDB 10.6 or later on the machine.  The server
listens on 127.0.0.1 only, writes a binary log (ROW, GTID), starts with strict
SQL modes, UTC and utf8mb4, and has one application user with all privileges
on databases with certain prefixes, but without SUPER: a server that is
``read_only`` is read-only for it.

Everything is in one directory, removed by :meth:`MariaDBServer.stop`, when the
interpreter exits, or by a guard process when the test run is killed.  Do not
control (start, stop, kill) a server from several threads at the same time;
several threads may connect to it.

Environment variables:

``SQLA_SHARD_TEST_PASSWORD``
    Password of the application user, instead of a random one.
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
from sqla_shard.dialects.mysql.pymysql_connections import SharedContext
from sqla_shard.testing import mariadb_setup
from sqla_shard.testing.local_server import is_listening
from sqla_shard.testing.local_server import LocalServer
from sqla_shard.testing.mariadb_setup import check_prefixes
from sqla_shard.testing.mariadb_setup import create_user
from sqla_shard.testing.mariadb_setup import PREFIXES
from sqla_shard.testing.mariadb_setup import random_password
from sqla_shard.testing.mariadb_setup import server_options
from sqla_shard.testing.mariadb_setup import storage_options
from sqla_shard.testing.statement_log import QueryLog

__all__ = ["MariaDBServer", "SQLServer"]

_server_ids = itertools.count(1)
_connect: Any = type(
    "Connection",
    (SharedContext, pymysql.connections.Connection),
    {"shared_context": None},
)


class SQLServer:
    """A server that tests connect to, as the application or as root."""

    name: str
    host: str
    port: int
    user: str
    password: str

    def connect(self, **arguments: Any) -> pymysql.Connection[Cursor]:
        """Connect as the application does.

        :param arguments: arguments of :func:`pymysql.connect`.
        :raises pymysql.err.OperationalError: if the server does not respond.
        """
        connection: pymysql.Connection[Cursor] = _connect(
            host=self.host,
            port=self.port,
            user=self.user,
            password=self.password,
            charset="utf8mb4",
            **arguments,
        )
        return connection

    def root_connect(self, **arguments: Any) -> pymysql.Connection[Cursor]:
        """Connect in autocommit mode, as root or the user of the URL.

        :param arguments: arguments of :func:`pymysql.connect`.
        """
        return self.connect(autocommit=True, **arguments)

    def root_execute(
        self, sql: str, parameters: Sequence[object] = ()
    ) -> list[tuple[Any, ...]]:
        """Execute a statement, in a new connection of :meth:`root_connect`.

        :param parameters: values for ``%s`` in the statement, if any.
        :return: the rows; empty if the statement returns none.
        :raises sqla_shard.exc.ServerProcessError: if a local server is not
            running.
        :raises pymysql.err.MySQLError: if the statement fails.
        """
        with self.root_connect() as connection, connection.cursor() as cursor:
            cursor.execute(sql, tuple(parameters) or None)
            return list(cursor.fetchall())


class MariaDBServer(SQLServer, LocalServer):
    """A MariaDB server for tests.

    :param name: name of the server, for messages and in a topology.
    :param password: password of the application user ``app``; by default
        random.
    :param prefixes: the application user has all privileges on databases
        whose names begin with one of these.
    :param fast: commit without waiting for the disk, and use little memory.
        Survives :meth:`kill`, not a power failure of the machine.
    :param server_id: 1 to 2**32 - 1; by default the next of this process.
    :param gtid_domain_id: domain of its GTIDs, by default the ``server_id``.
        Give a standby the id of its primary.
    :param options: arguments of ``mariadbd``, which override the others.
    :param parent: parent of the server's directory; by default the
        directory for temporary files (``TMPDIR``).
    :param template: a data directory to copy; by default one that all
        servers of the process share, see :mod:`.mariadb_setup`.
    :param start_timeout: seconds to wait for a start.
    :param stop_timeout: seconds to wait for a clean shutdown before SIGKILL.
    :raises ValueError: if an argument is not valid.
    """

    user = "app"
    local = True
    """Whether the server is a local process that tests can kill."""

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
            raise ValueError(
                f"server_id={server_id!r} must be from 1 to 2**32 - 1"
            )
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
        self._account = mariadb_setup.Account(None, change=False)

    @property
    def url(self) -> str:
        """URL of the application user, with the password."""
        password = quote(self.password, safe="")
        return f"mysql://{self.user}:{password}@{self.host}:{self.port}"

    @property
    def socket(self) -> Path:
        """Path of the Unix socket, where root connects.

        :raises sqla_shard.exc.ServerProcessError: if the server has no
            directory.
        """
        return self._directory() / "s.sock"

    def root_connect(self, **arguments: Any) -> pymysql.Connection[Cursor]:
        """Connect as root over the socket, in autocommit mode.

        :param arguments: arguments of :func:`pymysql.connect`.
        :raises sqla_shard.exc.ServerProcessError: if it is not running.
        """
        self._running_process()
        connection: pymysql.Connection[Cursor] = _connect(
            unix_socket=str(self.socket),
            user=mariadb_setup.system_user(),
            charset="utf8mb4",
            autocommit=True,
            **arguments,
        )
        return connection

    def query_log(self) -> QueryLog:
        """Return a log of the statements of the application.

        ::

            with server.query_log() as log:
                ...
            assert len(log.statements) == 1
        """
        return QueryLog(self)

    def _make_directory(self, parent: Path) -> Path:
        mariadb_setup.mariadb_programs()
        self._account = mariadb_setup.Account.for_directory(parent.resolve())
        return mariadb_setup.make_directory(parent, self._account)

    def _prepare(self, directory: Path) -> None:
        if len(os.fsencode(self.socket)) > 107:
            raise exc.ServerProcessError(
                f"the path of the socket is too long: {self.socket}. Set "
                "TMPDIR to a directory with a shorter path",
                log="",
            )
        account = self._account
        (directory / "tmp").mkdir()
        account.own(directory / "tmp")
        data = directory / "data"
        template = self.template or mariadb_setup.data_template(
            storage_options(self.fast)
        )
        mariadb_setup.copy_data(template, data, account)

    def _command(self, directory: Path) -> list[str]:
        binaries = mariadb_setup.mariadb_programs()
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

    def _is_ready(self) -> bool:
        if not is_listening(self.socket):
            # After a failure PyMySQL does not close its socket.
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
            # Do not replicate this: CREATE USER would fail on a standby, which
            # has its own users.
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
            # SIGKILL leaves the socket file; connecting should fail
            # immediately.
            self.socket.unlink()
