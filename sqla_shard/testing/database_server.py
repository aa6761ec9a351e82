"""A database server for tests: what MariaDB and MySQL have in common.

::

    with MySQLServer() as server:
        with pymysql.connect(host=server.host, port=server.port, ...) as c:
            ...
        server.kill()       # like a crash
        server.start()      # and recover

Needs Linux and PyMySQL.  The server listens on 127.0.0.1 only, writes a
binary log (ROW, GTID), starts with strict SQL modes, UTC and utf8mb4, and has
one application user with all privileges on databases with certain prefixes,
but without SUPER: a server that is ``read_only`` is read-only for it.

Everything is in one directory, removed by :meth:`DatabaseServer.stop`, when
the interpreter exits, or by a guard process when the test run is killed.  Do
not control (start, stop, kill) a server from several threads at the same time;
several threads may connect to it.

Environment variables:

``SQLA_SHARD_TEST_PASSWORD``
    Password of the application user, instead of a random one.

A data directory is created once and kept in the cache of the user, below
``$XDG_CACHE_HOME`` or ``~/.cache``; each server gets a copy.  To create one
takes a second or three, a copy 0.05 s.
"""

from __future__ import annotations

import abc
import contextlib
import fcntl
import itertools
import os
import pwd
import re
import resource
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, ClassVar, Literal
from urllib.parse import quote

import pymysql
from pymysql.cursors import Cursor, DictCursor

from sqla_shard import exc
from sqla_shard.dialects.mysql.pymysql_connections import SharedContext
from sqla_shard.exc import ServerProcessError
from sqla_shard.testing.local_server import guard, is_listening, LocalServer
from sqla_shard.testing.programs import DatabasePrograms

PREFIXES = ("db", "main", "lookup")

"""Default beginnings of database names."""

_SYSTEM_DATABASES = ("information_schema", "mysql", "performance_schema", "sys")


def random_password() -> str:
    """Return ``SQLA_SHARD_TEST_PASSWORD`` if set, else a random password."""
    return os.environ.get("SQLA_SHARD_TEST_PASSWORD") or (secrets.token_urlsafe(18))


def check_prefixes(prefixes: Sequence[str]) -> tuple[str, ...]:
    """Return the prefixes, if they are valid.

    :raises ValueError: if there is no prefix, or one has other characters, or
        matches a system database.
    """
    if not prefixes:
        raise ValueError("prefixes must have at least one item")
    for prefix in prefixes:
        if not re.fullmatch(r"[A-Za-z0-9_$-]+", prefix):
            raise ValueError(f"prefix {prefix!r} must be letters, digits, _, $ or -")
        for name in _SYSTEM_DATABASES:
            if name.startswith(prefix.lower()):
                raise ValueError(
                    f"prefix {prefix!r} matches the system database {name!r}"
                )
    return tuple(prefixes)


def create_user(
    cursor: Cursor, account: str, *, password: str, prefixes: Sequence[str]
) -> None:
    """Create a user with all privileges on databases with the given prefixes.

    :param cursor: cursor of a connection of root.
    :param account: user and host, quoted.
    :param prefixes: beginnings of the names of its databases.
    """
    cursor.execute(f"CREATE USER {account} IDENTIFIED BY %s", (password,))
    for prefix in prefixes:
        # An unescaped underscore would match any character.
        pattern = re.sub(r"([\\_%])", r"\\\1", prefix) + "%"
        cursor.execute(f"GRANT ALL PRIVILEGES ON `{pattern}`.* TO {account}")


def _limits() -> tuple[int, int]:
    """Return the numbers of files and tables that a server may open."""
    # mariadbd requests two files for each table of its cache.  Above the hard
    # limit it gets the soft limit only: 1,024.
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = 65_535 if hard == resource.RLIM_INFINITY else min(hard, 65_535)
    return files, max(400, min(16_384, (files - 1_000) // 2))


def server_options(
    directory: Path, *, port: int, socket: Path, server_id: int, fast: bool
) -> list[str]:
    """Return the arguments that servers of all kinds have.

    :param directory: directory of this server; contains ``data`` and ``tmp``.
    :param port: port on 127.0.0.1.
    :param fast: whether a power failure may lose commits.
    """
    files, tables = _limits()
    return [
        f"--datadir={directory / 'data'}",
        # A starting server removes all `#sql*` files of its tmpdir, even
        # those of other servers.
        f"--tmpdir={directory / 'tmp'}",
        f"--socket={socket}",
        f"--pid-file={directory / 'tmp' / 'server.pid'}",
        f"--port={port}",
        "--bind-address=127.0.0.1",
        "--skip-name-resolve",
        f"--server-id={server_id}",
        "--log-bin=binlog",
        "--relay-log=relay",
        "--character-set-server=utf8mb4",
        "--default-time-zone=+00:00",
        "--performance-schema=OFF",
        "--max-connections=500",
        # For thousands of virtual shards with a few tables each; with the
        # defaults (2,000 and 400) tables would be reopened all the time.
        f"--open-files-limit={files}",
        f"--table-open-cache={tables}",
        "--table-open-cache-instances=1",
        f"--innodb-open-files={tables}",
        "--table-definition-cache=16384",
        # A small server starts and stops faster without these features.
        "--innodb-buffer-pool-dump-at-shutdown=OFF",
        "--innodb-buffer-pool-load-at-startup=OFF",
        f"--innodb-flush-log-at-trx-commit={2 if fast else 1}",
        f"--sync-binlog={0 if fast else 1}",
    ]


#: Seconds after which a data directory that no server was copied from is
#: removed: that of a former version, for example.
_KEPT_UNUSED = 30 * 24 * 3600.0


@dataclass(frozen=True, slots=True)
class Account:
    """The operating system account of a server.

    :ivar name: name of the account; None if it has none.
    :ivar change: whether this process runs as root and the server does not.
    """

    name: str | None
    change: bool

    @classmethod
    def for_directory(cls, parent: Path) -> Account:
        """Return ``mysql`` for root, if possible, else the current account.

        :param parent: parent of the server's directory.
        """
        if os.geteuid() == 0:
            # In a private directory, such as that of pytest, another account
            # cannot read its own files.
            reachable = all(
                folder.stat().st_mode & 0o001 for folder in (parent, *parent.parents)
            )
            try:
                pwd.getpwnam("mysql")
            except KeyError:
                reachable = False
            if reachable:
                return cls("mysql", change=True)
        return cls(system_user(), change=False)

    @property
    def server_options(self) -> list[str]:
        """``--user``, which a server requires of root only."""
        return [f"--user={self.name}"] if os.geteuid() == 0 else []

    def own(self, path: Path) -> None:
        """Change the owner of a file or directory, not of its contents."""
        if self.change:
            shutil.chown(path, self.name, self._group)

    @property
    def _group(self) -> int:
        return pwd.getpwnam(str(self.name)).pw_gid

    def run(self, command: list[str], *, cwd: Path) -> subprocess.CompletedProcess[str]:
        """Run a program under this account, and capture its output."""
        return subprocess.run(
            command,
            cwd=cwd,
            # Not with --user: mariadb-install-db would change files of the
            # installed MariaDB.
            user=self.name if self.change else None,
            group=self._group if self.change else None,
            extra_groups=[] if self.change else None,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )


def system_user() -> str | None:
    """Return the name of the account of this process; None if it has none."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return None


def make_directory(parent: Path, account: Account) -> Path:
    """Create a directory of an account, without access for other users."""
    # Short: the path of a socket in it is limited to 107 bytes.
    made = Path(tempfile.mkdtemp(prefix="sqlashard-", dir=parent))
    account.own(made)
    return made


def data_template(
    programs: DatabasePrograms,
    options: Sequence[str],
    install: Callable[[Path, Account], None],
) -> Path:
    """Return a data directory to copy, which is created if there is none.

    :param programs: the programs whose server uses the copies.
    :param options: options that determine the files.
    :param install: called to create a data directory, with its path, which
        does not exist, and the account that is to own it.
    :raises sqla_shard.exc.ServerProcessError: if it cannot be created.
    """
    server = os.stat(programs.server)
    key = repr((programs, list(options), server.st_size, server.st_mtime_ns))
    cache = _cache()
    template = cache / sha256(key.encode()).hexdigest()[:16]
    # Servers of a fleet, and processes of pytest, start at the same time.
    with open(f"{template}.lock", "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if template.exists():
            os.utime(template)
            return template
        _remove_unused(cache)
        # Not in the cache: the account of the server cannot reach it.
        parent = Path(tempfile.gettempdir()).resolve()
        account = Account.for_directory(parent)
        base = make_directory(parent, account)
        guard.add(0, base)
        try:
            install(base / "data", account)
            part = Path(tempfile.mkdtemp(dir=cache))
            shutil.copytree(base / "data", part, dirs_exist_ok=True)
            part.rename(template)
        finally:
            shutil.rmtree(base, ignore_errors=True)
            guard.remove(base)
    return template


def _cache() -> Path:
    """Return the directory with data directories to copy.

    :raises sqla_shard.exc.ServerProcessError: if others could write to it.
    """
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    try:
        cache = Path(home, "sqla-shard", "servers").expanduser()
        cache.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # no home, or one that cannot be written
        cache = Path(tempfile.gettempdir(), f"sqla-shard-{os.geteuid()}")
        cache.mkdir(mode=0o700, exist_ok=True)
    found = cache.stat()
    # Their programs would run in the servers of this user.
    if found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise ServerProcessError(
            f"{cache} must belong to this user, without access for others. "
            "Remove it, or set XDG_CACHE_HOME",
            log="",
        )
    return cache


def _remove_unused(cache: Path) -> None:
    """Remove data directories that no server was copied from for long."""
    for path in cache.iterdir():
        if path.is_dir() and path.stat().st_mtime < time.time() - _KEPT_UNUSED:
            shutil.rmtree(path, ignore_errors=True)


def copy_data(template: Path, directory: Path, account: Account) -> None:
    """Copy a data directory that no server uses.

    :param template: directory that :func:`data_template` has returned.
    :param directory: must not exist.
    """
    shutil.copytree(template, directory)
    for folder, _, names in os.walk(directory):
        account.own(Path(folder))
        for name in names:
            account.own(Path(folder, name))


_server_ids = itertools.count(1)

_connect: Any = type(
    "Connection",
    (SharedContext, pymysql.connections.Connection),
    {"shared_context": None},
)


_STATEMENTS = frozenset({"Query", "Execute"})


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


class DatabaseServer(SQLServer, LocalServer):
    """A MariaDB or MySQL server for tests.

    :param name: name of the server, for messages and in a topology.
    :param password: password of the application user ``app``; by default
        random.
    :param prefixes: the application user has all privileges on databases
        whose names begin with one of these.
    :param fast: commit without waiting for the disk, use little memory, and on
        MariaDB keep all tables in one file.
        Survives :meth:`kill`, not a power failure of the machine.
    :param server_id: 1 to 2**32 - 1; by default the next of this process.
    :param options: arguments of the server, which override the others.
    :param base: directory of an unpacked server; by default the one of
        :mod:`.local_server`.
    :param parent: parent of the server's directory; by default the
        directory for temporary files (``TMPDIR``).
    :param template: a data directory to copy; by default one that all
        servers of the process share.
    :param start_timeout: seconds to wait for a start.
    :param stop_timeout: seconds to wait for a clean shutdown before SIGKILL.
    :raises ValueError: if an argument is not valid.
    """

    kind: ClassVar[Literal["mariadb", "mysql"]]
    """Kind of the server."""

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
        options: Sequence[str] = (),
        base: Path | None = None,
        parent: Path | None = None,
        template: Path | None = None,
        start_timeout: float = 60.0,
        stop_timeout: float = 30.0,
    ) -> None:
        if server_id is None:
            server_id = next(_server_ids)
        if not 1 <= server_id < 2**32:
            raise ValueError(f"server_id={server_id!r} must be from 1 to 2**32 - 1")
        super().__init__(
            name, parent=parent, start_timeout=start_timeout, stop_timeout=stop_timeout
        )
        self.password: str = random_password() if password is None else password
        self.prefixes: tuple[str, ...] = check_prefixes(prefixes)
        self.fast = fast
        self.server_id = server_id
        self.options: tuple[str, ...] = tuple(options)
        self.base = base
        self.template = template
        """Data directory to copy on the first start."""
        self._account = Account(None, change=False)

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
            user=self.root_user,
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

    # -- replication ------------------------------------------------------

    @abc.abstractmethod
    def replicate_from(
        self, primary: DatabaseServer, *, user: str, password: str, demote: bool = False
    ) -> None:
        """Replicate from another server, from the current position on.

        :param primary: a running server of the same kind.
        :param user: an account of the primary with REPLICATION SLAVE.
        :param demote: whether this server has been the primary, and the new
            one has all its writes.
        :raises pymysql.err.MySQLError: if the server refuses.
        """

    @abc.abstractmethod
    def position(self) -> str:
        """Return the GTIDs of all that is in the binary log."""

    @abc.abstractmethod
    def reaches(self, position: str, timeout: float) -> bool:
        """Wait until a standby has applied a position of its primary.

        :param timeout: seconds, more than 0.
        :return: False if it has not, after that time.
        """

    def replication_state(self) -> str:
        """Return the replication status of a standby, in a few lines."""
        # A standby whose disk is full does not respond to this statement.
        with self.root_connect(read_timeout=10) as connection:
            cursor = connection.cursor(DictCursor)
            cursor.execute("SHOW REPLICA STATUS")
            row: dict[str, object] | None = cursor.fetchone()
        if row is None:
            return "it has no primary"
        return "\n".join(
            f"{name}: {value}"
            for name, value in row.items()
            if re.search("Running$|IO_Error$|SQL_Error$|(?i:gtid)", name)
        )

    # -- what each kind has of its own ------------------------------------

    @property
    @abc.abstractmethod
    def root_user(self) -> str | None:
        """Name of the user root."""

    @classmethod
    @abc.abstractmethod
    def _find(cls, base: Path | None) -> DatabasePrograms:
        """Return the programs.

        :param base: directory of an unpacked server; None for the default.
        :raises sqla_shard.exc.ServerProcessError: if one is not installed.
        """

    @abc.abstractmethod
    def _install(self, data: Path, account: Account) -> None:
        """Create a data directory with system tables only.

        Its only user is root, who connects over the socket without a
        password.

        :raises sqla_shard.exc.ServerProcessError: if it cannot be created.
        """

    @abc.abstractmethod
    def _options(self) -> list[str]:
        """Arguments that the other kinds do not have."""

    @abc.abstractmethod
    def _storage_options(self) -> list[str]:
        """Arguments that determine the files of the server."""

    # -- the process ------------------------------------------------------

    def _make_directory(self, parent: Path) -> Path:
        self._find(self.base)
        self._account = Account.for_directory(parent.resolve())
        return make_directory(parent, self._account)

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
        template = self.template or data_template(
            self._find(self.base), self._storage_options(), self._install
        )
        copy_data(template, data, account)

    def _command(self, directory: Path) -> list[str]:
        programs = self._find(self.base)
        return [
            programs.server,
            *programs.options,
            *self._account.server_options,
            *server_options(
                directory,
                port=self.port,
                socket=self.socket,
                server_id=self.server_id,
                fast=self.fast,
            ),
            *self._storage_options(),
            *self._options(),
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


class QueryLog:
    """Log of the connections and statements that one server receives.

    It is created by :meth:`.DatabaseServer.query_log` and reads the general
    log of the server, so it shows each connection and each statement as it
    arrived.  Statements of root are left out.  Servers log neither pings nor
    resets.  Use one log per server at a time, and none in benchmarks: the
    general log is slow.

    :param server: a running server.
    """

    def __init__(self, server: DatabaseServer) -> None:
        self._server = server
        self._open = False
        self._entries: tuple[LoggedCommand, ...] = ()

    def __repr__(self) -> str:
        state = "open" if self._open else "closed"
        return f"<QueryLog of {self._server.name} {state}>"

    def __enter__(self) -> QueryLog:
        self._execute("SET GLOBAL log_output = 'TABLE'")
        self.clear()
        self._execute("SET GLOBAL general_log = 1")
        self._open = True
        return self

    def __exit__(self, *details: object) -> None:
        self._open = False
        if not self._server.running:
            return  # the test has killed the server; its log is lost
        self._execute("SET GLOBAL general_log = 0")
        self._entries = self._read()

    @property
    def entries(self) -> tuple[LoggedCommand, ...]:
        """All messages so far, in the order of their arrival."""
        return self._read() if self._open else self._entries

    @property
    def statements(self) -> list[str]:
        """The text of all statements, in the order of their arrival."""
        return [e.text for e in self.entries if e.command in _STATEMENTS]

    @property
    def connections(self) -> frozenset[int]:
        """Numbers of the connections that sent statements."""
        return frozenset(
            e.connection_id for e in self.entries if e.command in _STATEMENTS
        )

    @property
    def opened(self) -> int:
        """Number of connections opened since the start of the log."""
        return sum(e.command == "Connect" for e in self.entries)

    def clear(self) -> None:
        """Remove all entries."""
        self._execute("TRUNCATE TABLE mysql.general_log")
        self._entries = ()

    def _execute(self, sql: str) -> None:
        with self._server.root_connect() as connection:
            cursor = connection.cursor()
            # Do not replicate this: it is not part of the test.
            cursor.execute("SET SESSION sql_log_bin = 0")
            cursor.execute(sql)

    def _read(self) -> tuple[LoggedCommand, ...]:
        rows = self._server.root_execute(
            "SELECT thread_id, command_type, CONVERT(argument USING utf8mb4)"
            " FROM mysql.general_log WHERE user_host LIKE %s",
            (f"%[{self._server.user}]%",),
        )
        return tuple(
            LoggedCommand(connection_id=number, command=command, text=text)
            for number, command, text in rows
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedCommand:
    """A message from the application to the server.

    :ivar connection_id: the server's number of the connection; the same as
        ``CONNECTION_ID()`` and PyMySQL's ``thread_id()``.
    :ivar command: the kind: ``Connect``, ``Query``, ``Execute``, ``Quit``...
    :ivar text: the statement, or other contents of the message.
    """

    connection_id: int
    command: str
    text: str
