"""The interface of a kind of server, and the passwords of its connections.

Each kind has a subclass of :class:`Backend`; no module outside this folder
depends on the kind.
"""

from __future__ import annotations

import contextlib
import hashlib
import socket
import threading
from collections.abc import (
    Callable,
    Collection,
    Container,
    Generator,
    Iterable,
    Mapping,
    Sequence,
)
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, Literal, Protocol, TypeVar

from sqlalchemy import Connection, create_engine, Engine
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError, NoSuchModuleError
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.elements import ColumnElement
from sqlalchemy.sql.visitors import InternalTraversal

from sqla_shard.exc import MissingDriverError
from sqla_shard.util.processes import in_children

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class ServerLogin:
    """The account and the server that a password is for.

    :ivar server: name of the server in the topology, such as
        ``sharddb001``; that of a standby ends with ``" (standby)"``, and a
        server of several keyspaces may have several, with commas.
    :ivar host: its host, as in the URL.
    :ivar port: its port.
    :ivar user: the user in the URL.
    """

    server: str
    host: str
    port: int
    user: str


PasswordFunction = Callable[[ServerLogin], str]
"""Returns the password of an account on a server."""


class PasswordError(Exception):
    """Raised when a function returns no password."""


# By identity: a function may return the same password twice.
@dataclass(frozen=True, eq=False)
class Secret:
    """A password.

    :ivar text: the password.
    """

    text: str = field(repr=False)


class PasswordSource:
    """The password of an account on one server; thread-safe.

    :param function: returns the password.
    :param url: URL of the server.
    :param names: names of the server; more may be added later.
    """

    def __init__(
        self, function: PasswordFunction, url: URL, names: Iterable[str]
    ) -> None:
        self.names = names
        self._function = function
        self._host = url.host or "localhost"
        self._port = url.port or 3306
        self._user = url.username or ""
        #: The newest password; None before the first call.
        self.known: Secret | None = None
        self._lock = threading.Lock()
        in_children(self)

    def ask(self, used: Secret | None) -> Secret:
        """Call the function, unless another thread has done so meanwhile.

        :param used: the password that the server has refused; None if there
            was none.
        :raises PasswordError: if the function returns no password.
        """
        with self._lock:
            if self.known is None or self.known is used:
                self.known = Secret(self._call())
            return self.known

    def _call(self) -> str:
        login = ServerLogin(
            server=", ".join(self.names),
            host=self._host,
            port=self._port,
            user=self._user,
        )
        try:
            password = self._function(login)
        except Exception as error:
            # Its message is not shown: it may contain a token.
            raise PasswordError(
                f"the function for its password raised {_kind(error)}"
            ) from error
        if not isinstance(password, str):
            raise PasswordError(
                f"the function for its password returned {_kind(password)}, not a str"
            )
        return password

    def after_fork(self) -> None:
        """Replace the lock, which a thread of the parent may hold."""
        self._lock = threading.Lock()


class Passwords:
    """The passwords of all servers of a cluster.

    :param function: returns the password of a server.
    """

    def __init__(self, function: PasswordFunction) -> None:
        self._function = function
        self._sources: dict[tuple[object, ...], PasswordSource] = {}

    def of(self, url: URL, names: Iterable[str]) -> PasswordSource:
        """Return the password of a server.

        :param url: URL of the server.
        :param names: names of the server; more may be added later.
        """
        key = url.host, url.port, url.username
        source = self._sources.get(key)
        if source is None:
            source = self._sources.setdefault(
                key, PasswordSource(self._function, url, names)
            )
        source.names = names
        return source


def _kind(one: object) -> str:
    return type(one).__name__


def interrupt(dbapi_connection: Any) -> None:
    """Interrupt a call of a driver in another thread, where possible.

    The socket of PyMySQL is shut down; SQLite and the drivers of PostgreSQL
    and Oracle have a method for it.  A call of any other driver cannot be
    interrupted; it runs to its end.  The connection cannot be used afterwards.
    """
    sock = getattr(dbapi_connection, "_sock", None)
    if isinstance(sock, socket.socket):
        # If it was closed in the meantime, no call waits for it.
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)
        return
    for name in ("interrupt", "cancel"):
        method = getattr(dbapi_connection, name, None)
        if callable(method):
            method()
            return


DATABASE: Final = ""
"""The name that stands for the defaults of the database; no table has it."""


class Catalogue(Protocol):
    """The catalogue of a kind of server, ``backend.catalogue``.

    It only reads, and never reads the rows of a table.
    """

    def databases(self, engine: Engine) -> set[str]:
        """Return the names of the databases on the server of an engine.

        System databases, and databases that are not visible to the user, are
        left out.  If names are case-insensitive on the server, they are in
        lower case, and ``in`` is case-insensitive.

        :param engine: engine of any virtual shard on the server.
        """
        ...

    def having(
        self, engine: Engine, error: BaseException | None
    ) -> Container[str] | None:
        """Return the databases that have what an error says is missing.

        :param error: the driver's error about a table or a database.
        :returns: None if it is not known.
        """
        ...

    def kind(self, connection: Connection) -> str:
        """Return the name of the kind of server, such as ``"MySQL"``.

        Kinds write the same table differently, so that its digests differ.
        """
        ...

    def digests(
        self, connection: Connection, schemas: Iterable[str]
    ) -> dict[str, dict[str, str]]:
        """Return a digest of the definition of every table, by database.

        Tables of equal definitions have equal digests in any database of any
        server, if the servers have the same kind and version, and the
        accounts the same privileges.  :data:`DATABASE` stands for the
        defaults of the database.

        :param schemas: names of databases, not quoted; a database that does
            not exist is left out of the result.
        """
        ...

    def definition(self, connection: Connection, schema: str, table: str) -> str:
        """Return the definition of a table in readable form.

        :param schema: name of the database, not quoted.
        :param table: name of the table, as :meth:`digests` returns it.
        :returns: lines in a stable order; empty if the table does not exist.
        """
        ...


def hashed(parts: Iterable[str]) -> str:
    """Return a digest of several strings, independent of their order."""
    text = "\n".join(sorted(parts))
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


Statement = tuple[str, Sequence[Any]]
"""The text of a statement, and its parameters in the style of the driver."""


class Batch(Protocol):
    """Statements that are sent to a server in one round trip."""

    def send(
        self, statements: Sequence[Statement]
    ) -> Generator[tuple[int, Sequence[Any]]]:
        """Send statements; the server stops at the first one that fails.

        :returns: the number of changed rows and the rows of each statement.
        :raises DBAPIError: after the results of the statements before the
            one that has failed.
        """
        ...

    def end(self) -> None:
        """End sending several statements at once on the connection."""
        ...

    def enter(self, schema: str, seconds: float) -> list[Statement]:
        """Return statements that enter a database and acquire its lock.

        The last one returns a row: 1 if the lock was acquired, and the
        columns of :meth:`defaults`.

        :param seconds: maximum time to wait for the lock.
        """
        ...

    def leave(self, schema: str) -> list[Statement]:
        """Return statements that commit and release the lock."""
        ...

    def names(self) -> Statement:
        """Return the query of the names of the tables of the database."""
        ...

    def defaults(self) -> Statement:
        """Return the query of what a new table takes from its surroundings.

        It returns one row, of the server and of the database.
        """
        ...

    def creation(
        self, statements: Sequence[str], defaults: Sequence[Any]
    ) -> str | None:
        """Return one statement that creates a table as several do.

        :param statements: CREATE TABLE, and the statements after it.
        :param defaults: the row of :meth:`defaults` where they were sent.
        :returns: None if they are not known to be equal.
        """
        ...

    def definition(self, table: str) -> Statement:
        """Return the query of the definition of a table.

        :param table: name of the table, quoted if necessary.
        """
        ...

    def is_absent(self, error: DBAPIError) -> bool:
        """Return whether :meth:`definition` has failed without a table."""
        ...

    def digest(self, rows: Sequence[Any]) -> str:
        """Return the definition, as :meth:`DDL.definitions` does.

        :param rows: the result of :meth:`definition`.
        """
        ...


class DDL(Protocol):
    """DDL on many databases of a kind of server, ``backend.ddl``.

    :ivar undoes: whether a change of tables is rolled back with the
        transaction that it is part of.
    """

    undoes: bool

    def enter(self, connection: Connection, schema: str) -> None:
        """Make a database the default of statements and of reflection.

        :param schema: name of the database, not quoted.
        """
        ...

    def patience(self, connection: Connection, seconds: float) -> None:
        """Set the maximum time that a statement waits for a table lock."""
        ...

    def quicken(self, connection: Connection, table: str) -> None:
        """Make ``has_table()`` of SQLAlchemy cheap, if it is expensive.

        :param table: the table that alembic checks on each shard.
        """
        return

    def hold(self, connection: Connection, schema: str, seconds: float) -> str | None:
        """Acquire the lock of a database, which other runners acquire too.

        The connection holds the lock, so that it is held while a statement
        runs whose client was killed.

        :param schema: name of the database, not quoted.
        :param seconds: maximum time to wait for the lock.
        :returns: None if the lock was acquired, otherwise its holder.
        """
        ...

    def release(self, connection: Connection, schema: str) -> None:
        """Release the lock of a database."""
        ...

    def names(self, connection: Connection) -> set[str]:
        """Return the names of the tables of the database."""
        ...

    def definitions(
        self, connection: Connection, tables: Iterable[str]
    ) -> dict[str, str | None]:
        """Return the definitions of tables; None for one that does not exist.

        The definitions do not contain counters such as the next
        AUTO_INCREMENT.  A definition is one word, after the name of its
        kind of server where another kind would write the table differently.

        :param tables: names of the tables, quoted if necessary.
        """
        ...

    def missing_indexes(
        self, connection: Connection, statements: Sequence[str]
    ) -> list[str]:
        """Return the CREATE INDEX statements whose indexes do not exist.

        An index with other columns, or another uniqueness, is another one.

        :param statements: those that :meth:`Batch.creation` has joined with
            the CREATE TABLE of a table that exists.
        """
        return list(statements)

    def rolls_back(self, connection: Connection) -> bool:
        """Return whether every table of the database has transactions."""
        return True

    def batch(self, connection: Connection) -> Batch | None:
        """Return the batches of a connection; None if it has none."""
        return None

    def is_killed(self, error: BaseException) -> bool:
        """Return whether an error of a driver was caused by KILL QUERY.

        The connection may still be open.
        """
        return False

    def closes_database(self, error: BaseException) -> bool:
        """Return whether a driver's error says that a database is read-only.

        The other databases of the server can be written.
        """
        return False

    def read_table(
        self,
        engine: Engine,
        schemas: Sequence[str],
        table: str,
        columns: Sequence[str],
        where: str = "",
    ) -> dict[str, list[tuple[Any, ...]]]:
        """Read a small table in many databases with few statements.

        :param engine: engine of any virtual shard on the server.
        :param schemas: names of existing databases of the server, not quoted.
        :param table: name of the table, the same in all databases.
        :param columns: names of the columns.
        :param where: a condition without parameters.
        :returns: the rows by database; a database without the table is left
            out.
        """
        ...


@dataclass(frozen=True)
class NumberForm:
    """The form of a number in SQL.

    :ivar scale: number of digits after the point of a decimal.
    """

    name: Literal["integer", "decimal", "double"]
    scale: int = 0


class Averaged(ColumnElement[Any]):
    """A sum divided by a count, with the digits that ``avg()`` has.

    It is NULL if the count is 0.  MariaDB computes with the same digits of a
    quotient and of an average, which are more than it returns.  MySQL rounds
    a quotient.

    :param places: the decimal places of the average inside a server, for
        MySQL; None for a quotient.
    """

    __visit_name__ = "sqla_shard_averaged"
    inherit_cache: bool | None = True
    _traverse_internals = [  # noqa: RUF012  # SQLAlchemy's own protocol
        ("total", InternalTraversal.dp_clauseelement),
        ("count", InternalTraversal.dp_clauseelement),
        ("places", InternalTraversal.dp_plain_obj),
    ]

    def __init__(
        self, total: Any, count: Any, type_: Any, places: int | None = None
    ) -> None:
        self.total = total
        self.count = count
        self.type = type_
        self.places = places


@compiles(Averaged, "mysql", "mariadb")
def _averaged_mysql(element: Averaged, compiler: Any, **kw: Any) -> str:
    total = compiler.process(element.total, **kw)
    count = compiler.process(element.count, **kw)
    places = element.places
    if places is None or getattr(compiler.dialect, "is_mariadb", False):
        return f"({total} / {count})"
    # A quotient has four places more, and no number more than 30.
    zeros = "0" * min(places + 9, 26)
    return f"TRUNCATE(({total} + 0.{zeros}) / {count}, {min(places, 27)})"


@compiles(Averaged)
def _averaged(element: Averaged, compiler: Any, **kw: Any) -> str:
    # Division of two integers would cut off the fraction.
    total = compiler.process(element.total, **kw)
    count = compiler.process(element.count, **kw)
    return f"(CAST({total} AS REAL) / {count})"


class Failure(Enum):
    """The effect of a server error on the transaction."""

    CONFLICT = "lost against another transaction, rolled back; repeat it"
    BUSY = "a lock was not released in time; repeat it"
    LOST = "the connection was lost"
    FENCED = "the server is read-only; nothing was written; repeat it"
    MISPLACED = "there is no such table or database, or no grant for it"
    TIMEOUT = "the statement took longer than it was allowed to"
    LOGIN = "the server or the driver refuses the account"
    UNKEYED = "a foreign key refers to columns without a unique key"
    COLLATIONS = "it compares strings that mix two collations"
    OTHER = "an error of the statement"


class Backend(Protocol):
    """Everything that differs by kind of server.

    :ivar waits: whether statements wait for another process, so that several
        can run at the same time.
    :ivar collates: whether strings have collations that Python does not have.
    :ivar counts_upserts: whether an INSERT that has changed an existing row
        instead counts two rows.
    :ivar one_writer: whether a database has one writing transaction at a time.
    :ivar catalogue: reads which databases and tables exist.
    :ivar ddl: changes tables in many databases.
    """

    waits: bool
    collates: bool
    counts_upserts: bool
    one_writer: bool
    catalogue: Catalogue
    ddl: DDL

    def locate(self, url: URL, database: str) -> tuple[URL, str]:
        """Return the URL of the engine of a database, and its schema.

        :param url: URL of the server, with user and password filled in.
        :param database: name of the virtual shard's database.
        :returns: a URL that is equal for all databases that share a
            connection, and the name that qualifies tables in a statement.
        """
        ...

    def open(
        self,
        url: URL,
        options: Mapping[str, Any],
        *,
        timeout: float | None = None,
        password: PasswordSource | None = None,
    ) -> Engine:
        """Return a new engine; no connection is opened yet.

        :param options: keyword arguments for
            :func:`sqlalchemy.create_engine`.
        :param timeout: timeout in seconds for connecting and for each
            response; overrides the timeouts in ``options``.  Infinity: no
            timeout for responses.
        :param password: the password of the server; None for that of the
            URL.
        """
        ...

    def abandon(self, dbapi_connection: Any) -> None:
        """Drop a connection that the parent process is using.

        Nothing may be sent to the server, not even by a finalizer.
        """
        ...

    def give_up(self, dbapi_connection: Any) -> None:
        """Close a connection whose event loop is closed.

        QUIT is not sent, because nothing can be awaited.
        """
        ...

    def in_transaction(self, dbapi_connection: Any) -> bool:
        """Return whether the driver has an open transaction."""
        ...

    def abort(self, dbapi_connection: Any) -> None:
        """Interrupt a call in another thread, where possible."""
        ...

    def limited(self, connection: Connection, text: str, seconds: float) -> str:
        """Return a SELECT with a timeout that the server enforces, if any."""
        return text

    def use(self, connection: Connection, cursor: Any, schema: str) -> None:
        """Make ``schema`` the default for textual SQL on a cursor.

        The connection is not returned to the pool with this default.
        """
        return

    def lock(self, connection: Connection) -> None:
        """Acquire the locks that SELECT .. FOR UPDATE does not acquire."""
        return

    def number(self, value: Any, form: NumberForm) -> str:
        """Return a number, or NULL, in SQL."""
        ...

    def begin_locking(self, connection: Connection) -> None:
        """Begin a transaction whose locking reads also lock gaps.

        A locking read of a whole table then prevents inserts by other
        transactions, with any configured isolation level.
        """
        return

    def begin_skipping(self, connection: Connection) -> None:
        """Begin a transaction whose locking reads lock only their rows.

        With gaps locked, an INSERT of another transaction would wait.
        """
        return

    def logs_statements(self, connection: Connection) -> bool:
        """Return whether the server's binary log has statements."""
        return False

    def try_lock(self, connection: Connection, name: str) -> bool:
        """Acquire a named lock of the connection, if it is free."""
        return True

    def unlock(self, connection: Connection, name: str) -> None:
        """Release a named lock."""
        return

    def create_file(self, engine: Engine) -> None:
        """Create the file of a database, if it is a file.

        :raises OSError: if the file cannot be created.
        """
        return

    def create_database(self, connection: Connection, schema: str) -> None:
        """Create the database of a virtual shard if it does not exist."""
        return

    def tables(
        self, connection: Connection, schemas: Iterable[str]
    ) -> dict[str, set[str]]:
        """Return the names of the tables of the given databases."""
        ...

    def triggers(self, connection: Connection, table: str) -> list[str]:
        """Return the names of the triggers of a table of the database."""
        ...

    def character_sets(self, connection: Connection, table: str) -> dict[str, str]:
        """Return the character sets of columns of a table.

        Except those of which a conversion to Unicode changes no text.
        """
        ...

    def generated(self, connection: Connection, table: str) -> list[str]:
        """Return the columns of a table that the server generates."""
        ...

    def classify(self, error: BaseException) -> Failure:
        """Return the effect of an error of a driver on the transaction."""
        ...

    def lacks(self, error: BaseException) -> str:
        """Return what is missing: ``table``, ``database`` or ``grant``.

        :param error: an error that is :attr:`Failure.MISPLACED`.
        """
        ...


def retry_conflicts(
    attempt: Callable[[], T],
    backends: Callable[[], Collection[Backend]],
    *,
    attempts: int,
) -> T:
    """Run a transaction; retry it at once on a deadlock or lock wait timeout.

    :param backends: returns the kinds of its servers, which classify errors.
    :param attempts: maximum number of attempts.
    """
    for _ in range(attempts - 1):
        try:
            return attempt()
        except DBAPIError as error:
            original = error.orig
            if original is None or not any(
                backend.classify(original) is Failure.CONFLICT for backend in backends()
            ):
                raise
    return attempt()


def new_engine(url: URL, settings: Mapping[str, Any], *, asynchronous: bool) -> Engine:
    """Return a new engine, or the inner one of an ``AsyncEngine``.

    :raises MissingDriverError: if the driver is not installed.
    """
    try:
        if asynchronous:
            return create_async_engine(url, **settings).sync_engine
        return create_engine(url, **settings)
    except (ImportError, NoSuchModuleError) as error:
        raise _missing(url, error) from error


def check_driver(url: URL) -> None:
    """Refuse a URL whose driver this process does not have.

    :raises MissingDriverError: if it cannot be loaded.
    """
    try:
        url.get_dialect().import_dbapi()
    except (ImportError, NoSuchModuleError) as error:
        raise _missing(url, error) from error


def _missing(url: URL, error: Exception) -> MissingDriverError:
    _, _, driver = url.drivername.partition("+")
    return MissingDriverError(driver=driver or url.drivername, reason=str(error))
