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

import atexit
import contextlib
import itertools
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import quote

import pymysql
from pymysql.cursors import Cursor

from sqla_shard import exc
from sqla_shard.testing import datadir
from sqla_shard.testing._processes import accepts
from sqla_shard.testing._processes import free_port
from sqla_shard.testing._processes import guard
from sqla_shard.testing._processes import tail
from sqla_shard.testing._processes import wait_until
from sqla_shard.testing.accounts import check_prefixes
from sqla_shard.testing.accounts import create_user
from sqla_shard.testing.accounts import PREFIXES
from sqla_shard.testing.accounts import random_password
from sqla_shard.testing.options import server_options
from sqla_shard.testing.options import storage_options
from sqla_shard.testing.querylog import QueryLog

__all__ = ["MariaDBServer"]

_START_ATTEMPTS = 3

_server_ids = itertools.count(1)


class MariaDBServer:
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
    :param template: a data directory to copy, see :mod:`.datadir`.
    :param start_timeout: seconds to wait for a start.
    :param stop_timeout: seconds to wait for an orderly end before SIGKILL.
    :raises ValueError: if an argument makes no sense.
    """

    host = "127.0.0.1"
    user = "app"
    local = True
    """Whether the server is a process of ours, which we can kill."""

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
        self.name = name
        self.password = random_password() if password is None else password
        self.prefixes = check_prefixes(prefixes)
        self.fast = fast
        self.server_id = server_id
        self.gtid_domain_id = (
            server_id if gtid_domain_id is None else gtid_domain_id
        )
        self.options = tuple(options)
        self.start_timeout = start_timeout
        self.stop_timeout = stop_timeout
        self.port = 0
        """TCP port, the same from the first start on; 0 before."""
        self.directory: Path | None = None
        """All files of the server; None before the start, after the stop."""
        self.template = template
        """Data directory to copy on the first start."""
        self._parent = parent
        self._process: subprocess.Popen[bytes] | None = None
        self._account = datadir.Account(None, change=False)
        self._owner = 0
        self._paused = False

    def __repr__(self) -> str:
        state = "paused" if self._paused else "running"
        if not self.running:
            state = "stopped"
        return f"<{type(self).__name__} {self.name} port={self.port} {state}>"

    def __enter__(self) -> MariaDBServer:
        return self.start()

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    # -- state ------------------------------------------------------------

    @property
    def running(self) -> bool:
        """Whether the process is there; a paused one is, too."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int | None:
        """Number of the process; None if it is not running."""
        if self._process is None or not self.running:
            return None
        return self._process.pid

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
        if self.directory is None:
            return ""
        return tail(self.directory / "error.log")

    # -- starting and ending ----------------------------------------------

    def start(self) -> MariaDBServer:
        """Start the server and wait until it answers.

        After :meth:`kill` or an end of its own it has its data and its port
        again.  Nothing happens if it is running.

        :raises sqla_shard.exc.ServerProcessError: if MariaDB is missing or
            does not start in time; has the end of its log.
        """
        if self.running:
            return self
        if self._process is not None and self.directory is not None:
            self._launch()
            return self
        try:
            self._prepare()
            self._first_launch()
            self._create_user()
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """End the server and remove its directory.

        Nothing happens if there is none, nor in a forked child: the server
        belongs to the process that started it.
        """
        if self.directory is None or self._owner != os.getpid():
            return
        self._end(signal.SIGTERM)
        guard.remove(self.directory)
        shutil.rmtree(self.directory, ignore_errors=True)
        self.directory = None
        self._process = None
        atexit.unregister(self.stop)

    def restart(self) -> MariaDBServer:
        """End the server in good order and start it with the same data.

        :raises sqla_shard.exc.ServerProcessError: as :meth:`start`.
        """
        self._directory()
        self._end(signal.SIGTERM)
        return self.start()

    def kill(self) -> None:
        """End the server with SIGKILL; :meth:`start` lets it recover."""
        self._directory()
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        """Stop the process in mid-air: it accepts nothing, answers nothing.

        :raises sqla_shard.exc.ServerProcessError: if it is not running.
        """
        self._running_process().send_signal(signal.SIGSTOP)
        self._paused = True

    def resume(self) -> None:
        """Let a paused server go on.

        :raises sqla_shard.exc.ServerProcessError: if it is not running.
        """
        self._running_process().send_signal(signal.SIGCONT)
        self._paused = False

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

    def _directory(self) -> Path:
        if self.directory is None:
            raise exc.ServerProcessError(f"{self!r} was not started", log="")
        return self.directory

    def _running_process(self) -> subprocess.Popen[bytes]:
        process = self._process
        if process is None or not self.running:
            raise exc.ServerProcessError(
                f"{self!r} is not running", log=self.log_tail
            )
        return process

    def _prepare(self) -> None:
        datadir.require()
        parent = self._parent or Path(tempfile.gettempdir())
        account = datadir.Account.for_directory(parent.resolve())
        self._account = account
        self.directory = datadir.make_directory(parent, account)
        self._owner = os.getpid()
        # The guard first: at exit the order is reversed, and stop() needs
        # it still there.
        guard.add(0, self.directory)
        atexit.register(self.stop)
        if len(os.fsencode(self.socket)) > 107:
            raise exc.ServerProcessError(
                f"{self.socket} is too long a path for a socket. Set TMPDIR "
                "to a directory with a shorter one",
                log="",
            )
        (self.directory / "tmp").mkdir()
        account.own(self.directory / "tmp")
        data = self.directory / "data"
        if self.template is not None:
            datadir.copy_data(self.template, data, account)
        else:
            datadir.install_data(data, account, storage_options(self.fast))

    def _first_launch(self) -> None:
        for attempt in range(1, _START_ATTEMPTS + 1):
            self.port = free_port()
            try:
                self._launch()
            except exc.ServerProcessError as error:
                # Somebody else took the port between our look at it and
                # the server's.
                taken = "Address already in use" in error.log
                if not taken or attempt == _START_ATTEMPTS:
                    raise
            else:
                return

    def _launch(self) -> None:
        binaries = datadir.require()
        directory = self._directory()
        with (directory / "error.log").open("ab") as log:
            self._process = subprocess.Popen(
                [
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
                ],
                cwd=directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # Ctrl-C must end the tests, which end the server; not the
                # server first, under tests that are still running.
                start_new_session=True,
            )
        guard.add(self._process.pid, directory)
        started = time.monotonic()
        if not wait_until(self._answers, seconds=self.start_timeout):
            seconds = time.monotonic() - started
            log_tail = self.log_tail
            self._end(signal.SIGKILL)
            raise exc.ServerProcessError(
                f"{self!r} did not answer within {seconds:.0f} s", log=log_tail
            )

    def _answers(self) -> bool:
        process = self._process
        if process is None or process.poll() is not None:
            status = None if process is None else process.returncode
            raise exc.ServerProcessError(
                f"{self!r} ended with status {status} while it started",
                log=self.log_tail,
            )
        if not accepts(self.socket):
            # PyMySQL would leave the socket that it tried open.
            return False
        try:
            with self.root_connect(connect_timeout=5):
                return True
        except pymysql.err.OperationalError:
            return False

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
        process = self._process
        if process is None:
            return
        if process.poll() is None:
            process.send_signal(how)
            if self._paused:
                # A stopped process keeps every signal but SIGKILL for later.
                process.send_signal(signal.SIGCONT)
            try:
                process.wait(timeout=self.stop_timeout)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(timeout=self.stop_timeout)
        self._paused = False
        with contextlib.suppress(FileNotFoundError):
            # Left by SIGKILL; whoever connects should see that it is gone.
            self.socket.unlink()
