"""What the rest of the package asks of a kind of server.

One :class:`Backend` per kind answers; nothing outside this folder asks
which kind it is.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Mapping
from enum import Enum
from typing import Any
from typing import Protocol

from sqlalchemy import Connection
from sqlalchemy import create_engine
from sqlalchemy import Engine
from sqlalchemy.engine import URL
from sqlalchemy.exc import NoSuchModuleError
from sqlalchemy.ext.asyncio import create_async_engine

from sqla_shard.dialects.catalogue import Catalogue
from sqla_shard.dialects.ddl import DDL
from sqla_shard.dialects.parts import NumberForm
from sqla_shard.exc import MissingDriverError

__all__ = ["Backend", "Failure", "check_driver", "new_engine"]


class Failure(Enum):
    """What an error of the server says about the transaction."""

    CONFLICT = "lost against another transaction, rolled back; repeat it"
    BUSY = "a lock was not freed in time; repeat it"
    LOST = "the connection is gone"
    FENCED = "the server is read-only, and has written nothing; repeat it"
    MISPLACED = "there is no such table or database, or no grant for it"
    TIMEOUT = "the statement took longer than it was allowed to"
    COLLATIONS = "it compares texts that were made of two collations"
    OTHER = "an error of the statement"


class Backend(Protocol):
    """Everything that differs by kind of server.

    :ivar waits: whether a statement waits for another process, so that
        others can run meanwhile.
    :ivar collates: whether the order of texts is one that only the server
        knows.
    :ivar catalogue: reads which databases and tables there are.
    :ivar ddl: changes tables in many databases.
    """

    waits: bool
    collates: bool
    catalogue: Catalogue
    ddl: DDL

    def locate(self, url: URL, database: str) -> tuple[URL, str]:
        """Return the URL of the engine of a database, and its schema.

        :param url: the server's, with user and password filled in.
        :param database: name of the virtual shard's database.
        :returns: an URL equal for all databases that share a connection,
            and the name that qualifies tables in a statement.
        """
        ...

    def open(
        self,
        url: URL,
        options: Mapping[str, Any],
        *,
        timeout: float | None = None,
    ) -> Engine:
        """Return a new engine; no connection is opened yet.

        :param options: keyword arguments for
            :func:`sqlalchemy.create_engine`.
        :param timeout: seconds for connecting, and for each answer, whatever
            the options say; infinite for no limit of answers.
        """
        ...

    def abandon(self, dbapi_connection: Any) -> None:
        """Give up a connection that a parent process is still using.

        It must not say a word to the server, and nothing may be said
        later, not even by a finalizer.
        """
        ...

    def give_up(self, dbapi_connection: Any) -> None:
        """Close a connection whose event loop is closed already.

        Nothing can be awaited any more, so it is done without a goodbye.
        """
        ...

    def in_transaction(self, dbapi_connection: Any) -> bool:
        """Tell whether the driver knows of a transaction that is open."""
        ...

    def abort(self, dbapi_connection: Any) -> None:
        """Make a call that waits in another thread fail, where possible."""
        ...

    def limited(
        self, connection: Connection, text: str, seconds: float
    ) -> str:
        """Return a SELECT that the server ends after some time itself."""
        ...

    def use(self, connection: Connection, cursor: Any, schema: str) -> None:
        """Make ``schema`` the default for textual SQL on a cursor.

        The connection does not go back to the pool with it.
        """
        ...

    def lock(self, connection: Connection) -> None:
        """Take the locks that SELECT .. FOR UPDATE would not take."""
        ...

    def number(self, value: Any, form: NumberForm) -> str:
        """Return a number, or NULL, in SQL."""
        ...

    def begin_locking(self, connection: Connection) -> None:
        """Begin a transaction whose locks hold what is not there, too.

        A locking read of a whole table then keeps others from inserting,
        whatever the connection was configured to.
        """
        ...

    def create_file(self, engine: Engine) -> None:
        """Make the file of a database, without which nothing connects.

        :raises OSError: when it cannot be made.
        """
        ...

    def create_database(self, connection: Connection, schema: str) -> None:
        """Create the database of a virtual shard unless it is there."""
        ...

    def tables(
        self, connection: Connection, schemas: Iterable[str]
    ) -> dict[str, set[str]]:
        """Return the names of the tables of some databases, by database."""
        ...

    def classify(self, error: BaseException) -> Failure:
        """Tell what a driver's error says about the transaction."""
        ...

    def lacks(self, error: BaseException) -> str:
        """Tell what is missing: a ``table``, a ``database``, a ``grant``.

        :param error: one that is :attr:`Failure.MISPLACED`.
        """
        ...


def new_engine(
    url: URL, settings: Mapping[str, Any], *, asynchronous: bool
) -> Engine:
    """Return a new engine, or the inner one of an ``AsyncEngine``.

    :raises MissingDriverError: when the driver is not installed.
    """
    try:
        if asynchronous:
            return create_async_engine(url, **settings).sync_engine
        return create_engine(url, **settings)
    except (ImportError, NoSuchModuleError) as error:
        raise _missing(url, error) from error


def check_driver(url: URL) -> None:
    """Refuse a URL whose driver this process does not have.

    :raises MissingDriverError: when it cannot be loaded.
    """
    try:
        url.get_dialect().import_dbapi()
    except (ImportError, NoSuchModuleError) as error:
        raise _missing(url, error) from error


def _missing(url: URL, error: Exception) -> MissingDriverError:
    _, _, driver = url.drivername.partition("+")
    return MissingDriverError(
        driver=driver or url.drivername, reason=str(error)
    )
