"""Ways to write one token: a pin and its note, in one transaction.

A way is a picklable value with a method ``opened()``, a context manager: it
gives a function of token and shard that makes one attempt, and returns the
local id of the pin or raises :class:`Failed`.

======================  =====================================================
:class:`RawWriter`      plain PyMySQL; reads the topology again after an error
:class:`ClusterWriter`  ``cluster.run(..., key=token)``
======================  =====================================================
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pymysql
from pymysql.constants import CR, ER

from tests.servers.load_log import Outcome
from tests.servers.published import connect_to, Reader

Write = Callable[[str, int], int]

PINS = (
    "local_id BIGINT PRIMARY KEY AUTO_INCREMENT,"
    " token VARCHAR(64) NOT NULL, KEY (token)"
)

NOTES = "token VARCHAR(64) PRIMARY KEY, pin_local BIGINT NOT NULL"
"""The primary key tells a writer that its lost COMMIT was done."""

# After these it is unknown whether a COMMIT was executed.
_LOST = {
    CR.CR_SERVER_GONE_ERROR,
    CR.CR_SERVER_LOST,
    ER.SERVER_SHUTDOWN,
    ER.QUERY_INTERRUPTED,
    1927,  # the connection was killed
}
_TIMEOUT = 5


class Failed(Exception):  # noqa: N818 - an outcome, not always an error
    """An attempt did not return an id.

    :param outcome: the known state of the transaction.
    """

    def __init__(self, outcome: Outcome, error: BaseException) -> None:
        super().__init__(f"{type(error).__name__}: {error}")
        self.outcome = outcome


def create_tables(
    connection: pymysql.Connection[Any], databases: Iterable[str]
) -> None:
    """Create databases, and in each the tables of :class:`RawWriter`."""
    cursor = connection.cursor()
    for name in databases:
        cursor.execute(f"CREATE DATABASE `{name}`")
        for table, columns in (("load_pins", PINS), ("load_notes", NOTES)):
            cursor.execute(f"CREATE TABLE `{name}`.{table} ({columns})")


@dataclass(frozen=True, kw_only=True)
class RawWriter:
    """Writes with PyMySQL, to the servers of a topology file.

    It uses its topology until an attempt fails: unless the old server
    refuses writes, it writes there for ever.

    :ivar path: of the topology, see :mod:`tests.servers.published`.
    :ivar selects: whether its connections have a default database, whose
        privileges the server caches; for a load of one shard.
    :ivar lost: outcome of a COMMIT during which the connection was lost.
    """

    path: Path
    selects: bool = False
    lost: Outcome = "unknown"

    @contextlib.contextmanager
    def opened(self) -> Iterator[Write]:
        raw = _Connections(Reader(self.path), self.selects, self.lost)
        with contextlib.closing(raw):
            yield raw.write


class _Connections:
    """One connection to each server, made when it is needed."""

    def __init__(self, reader: Reader, selects: bool, lost: Outcome) -> None:
        self.reader = reader
        self.selects = selects
        self.lost = lost
        self.open: dict[str, pymysql.Connection[Any]] = {}

    def close(self) -> None:
        while self.open:
            self.open.popitem()[1].close()

    def write(self, token: str, shard: int) -> int:
        url, database = self.reader.places[shard]
        try:
            return self._write(url, database, token)
        except Failed:
            self._forget(url)
            self.reader.look()
            raise

    def _write(self, url: str, database: str, token: str) -> int:
        outcome: Outcome = "failed"
        try:
            connection = self._connection(url, database)
            connection.begin()
            local_id = self._insert(connection, database, token)
            if local_id is None:
                connection.rollback()
                return self._known(connection, database, token)
            outcome = self.lost
            connection.commit()
        except pymysql.err.MySQLError as error:
            if error.args[0] not in _LOST:
                outcome = "failed"  # 1290: it was rolled back
            raise Failed(outcome, error) from error
        return local_id

    def _insert(
        self, connection: pymysql.Connection[Any], database: str, token: str
    ) -> int | None:
        """Return the id of the pin; None if the token is there already."""
        cursor = connection.cursor()
        cursor.execute(
            f"INSERT INTO `{database}`.load_pins (token) VALUES (%s)", (token,)
        )
        local_id = cursor.lastrowid
        try:
            cursor.execute(
                f"INSERT INTO `{database}`.load_notes (token, pin_local)"
                " VALUES (%s, %s)",
                (token, local_id),
            )
        except pymysql.err.IntegrityError as error:
            if error.args[0] != ER.DUP_ENTRY:
                raise
            return None
        return local_id

    def _known(
        self, connection: pymysql.Connection[Any], database: str, token: str
    ) -> int:
        cursor = connection.cursor()
        cursor.execute(
            f"SELECT pin_local FROM `{database}`.load_notes WHERE token = %s", (token,)
        )
        ((local_id,),) = cursor.fetchall()
        connection.rollback()
        return int(local_id)

    def _connection(self, url: str, database: str) -> pymysql.Connection[Any]:
        if url not in self.open:
            self.open[url] = connect_to(
                url,
                database=database if self.selects else None,
                connect_timeout=_TIMEOUT,
                read_timeout=_TIMEOUT,
                write_timeout=_TIMEOUT,
            )
        return self.open[url]

    def _forget(self, url: str) -> None:
        connection = self.open.pop(url, None)
        # COM_QUIT fails on a connection that the server has closed.
        with contextlib.suppress(pymysql.err.Error):
            if connection is not None:
                connection.close()


@dataclass(frozen=True, kw_only=True)
class ClusterWriter:
    """Writes with ``Cluster.run(fn, key=token)``.

    :ivar opening: returns a cluster of the process' own; picklable, such as
        ``functools.partial(Cluster.from_file, path)``.  Its tables are those
        of :data:`tests.models.load_models.Base`.
    :ivar timeout: seconds for each call of ``run``.
    :ivar patience: seconds that a shard may be missing.  A move on a machine
        that is busy takes longer than an application should wait.
    """

    opening: Callable[[], Any]
    timeout: float = 30.0
    patience: float = 20.0

    @contextlib.contextmanager
    def opened(self) -> Iterator[Write]:
        # Not at the top: a raw writer does without SQLAlchemy.
        from sqlalchemy.exc import SQLAlchemyError

        from sqla_shard import exc
        from sqla_shard.cluster import retries
        from tests.models.load_models import write_pin

        # So that this module works where there are no keys yet.
        used = getattr(exc, "KeyUsedError", ())
        retries._MISSING_SHARD_SECONDS = self.patience

        with self.opening() as cluster:

            def write(token: str, shard: int) -> int:
                try:
                    return cluster.run(
                        write_pin, shard, token, key=token, timeout=self.timeout
                    )
                except used as error:
                    raise Failed("already", error) from error
                except (SQLAlchemyError, exc.ShardError) as error:
                    raise Failed(outcome_of(error), error) from error

            yield write


def outcome_of(error: BaseException | None) -> Outcome:
    """Tell whether a COMMIT of unknown outcome is among the causes."""
    from sqla_shard import exc

    while error is not None:
        if isinstance(error, (exc.CommitUnknownError, exc.PartialCommitError)):
            return "unknown"
        error = error.__cause__ or error.__context__
    return "failed"
