"""The COMMITs of a transaction, and the writes that invalidate cached rows.

SQLAlchemy commits the servers of a session in the arbitrary order of a set.
When COMMIT begins, :class:`Commits` replaces the transaction of each server
with a :class:`_Part`: the first one that SQLAlchemy commits sends all COMMITs
in order, and the others do nothing.  The session has been flushed before.

Servers that were only read commit last: their locks must be held until the
writes that depend on them are committed.  A connection that is lost on one of
them is not an error of the transaction.  Writes with a cursor of the driver,
which SQLAlchemy does not see, count as reads.

Every write of cached rows is recorded before COMMIT: the rows of a flush after
the flush; the rows of an INSERT, and the rows that match an UPDATE or DELETE,
before the statement is sent.  The matching rows are found by a locking read
with the same WHERE, so that no other transaction can change them, or make other
rows match, in between.  Textual SQL, and changes that the server itself makes,
are not detected.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from secrets import choice
from time import perf_counter
from typing import Any, TYPE_CHECKING

from sqlalchemy import Connection, Engine, select, Table, Transaction
from sqlalchemy.exc import DBAPIError
from sqlalchemy.sql import visitors
from sqlalchemy.sql.dml import Insert

from sqla_shard.engine.rendering import Place
from sqla_shard.exc import CachedWriteError, PartialCommitError, ServerFencedError
from sqla_shard.planning import columns_set, has_objects, routing_column, spec_of
from sqla_shard.session.flush import place_of
from sqla_shard.session.get import INCLUDE_INACTIVE, refuse_cached_autocommit
from sqla_shard.session.insert import ids_of
from sqla_shard.session.transaction import PendingInvalidation, ReadingLost, refuse_lost
from sqla_shard.util import sqlalchemy_private as private
from sqla_shard.util.logs import careful_log

if TYPE_CHECKING:
    from sqla_shard import ShardSession
    from sqla_shard.cache import Announcement, Cache


_LATEST = ("AUTOCOMMIT", "READ COMMITTED")

_log = careful_log(__name__)


OUTCOMES = ("committed", "read", "failed", "unknown", "partial")
"""The outcomes of a :class:`CommitReport`."""


def announce(session: ShardSession) -> Announcement | None:
    """Announce a COMMIT to the cache.

    :returns: None if the transaction invalidates nothing.
    """
    caching = session.cluster.cache
    if caching is None or not session.log.invalidations:
        return None
    return caching.announce(session)


def ensure_begun(session: Any) -> None:
    """Handle ``before_commit``: begin on a server if keys are invalidated.

    A transaction that only invalidates keys, because of writes that the
    session has not detected, has begun on no server: there would be no
    COMMIT to announce, and no outbox for the keys.
    """
    log = session._log
    if log is None or log.first is not None or not log.invalidations:
        return
    # The end of a savepoint is not a COMMIT.
    if session.cluster.cache is None or session.in_nested_transaction():
        return
    session.flush()
    if not log.places_that_commit(None) and _connected_place(session) is None:
        known = [
            invalidation.place
            for invalidation in log.invalidations.values()
            if invalidation.place
        ]
        # Choose at random: the next attempt may use a server that is up.
        place = known[0] if known else choice(_place_per_server(session))
        session.root_connection(place)


def outbox_places(session: ShardSession, stale: PendingInvalidation) -> list[Place]:
    """Return the shards whose outbox records a pending invalidation.

    A row belongs to the transaction of its shard.  The result of a function
    over rows of several servers is invalid as soon as one server has
    committed, and the others may never commit.

    :param stale: the pending invalidation.
    :returns: shards on different servers.
    :raises LookupError: if the transaction has begun on no server.
    """
    # Prefer written servers: a failed COMMIT on a server that was only read
    # is not reported.
    for place in (None if stale.is_made else stale.place, None):
        # Recorded writes may not have been sent yet.
        written = session.log.places_that_commit(place)
        connected = [one for one in written if session.is_connected(one)]
        if connected:
            return connected
    place = _connected_place(session)
    if place is None:
        raise LookupError("the transaction has begun on no server")
    return [place]


def _connected_place(session: ShardSession) -> Place | None:
    """Return a shard of a server that the transaction has begun on."""
    for invalidation in session.log.invalidations.values():
        if invalidation.place is not None and session.is_connected(invalidation.place):
            return invalidation.place
    for place in _place_per_server(session):
        if session.is_connected(place):
            return place
    return None


def _place_per_server(session: ShardSession) -> list[Place]:
    return [place for _, place in session.places.servers()]


def reads_latest(connection: Connection) -> bool:
    """Return whether a statement sees all earlier COMMITs."""
    options = connection.get_execution_options()
    level = options.get("isolation_level") or connection.default_isolation_level
    return level in _LATEST


def check_write(
    session: ShardSession, place: Place, table: Any, *, by_session: bool
) -> None:
    """Refuse a write on a connection, or in autocommit mode.

    :param by_session: whether the session sends the statement.
    :raises CachedWriteError: if rows of the table are cached.
    """
    caching = session.cluster.cache
    if by_session:
        refuse_cached_autocommit(session, place, table)
    elif caching is not None and caching.is_cached(table):
        raise CachedWriteError(
            "which rows a statement on a connection writes cannot be "
            "determined; use session.execute()",
            table=table.name,
        )


def invalidate_list(
    session: ShardSession, place: Place, table: Any, source_id: int
) -> None:
    """Invalidate a list that is about to be changed.

    :raises CachedWriteError: in autocommit mode.
    """
    caching = session.cluster.cache
    if caching is not None and caching.is_cached(table):
        refuse_cached_autocommit(session, place, table)
        caching.record_write(session, table, source_id)


def invalidate_flushed(session: ShardSession, context: Any) -> None:
    """Handle ``after_flush``."""
    caching = session.cluster.cache
    if caching is None:
        return
    for state, (_, listed_only) in context.states.items():
        table = state.mapper.local_table
        if listed_only or not caching.is_cached(table):
            continue
        if state.key is not None:
            row_id = state.key[1][spec_of(table).id_index]
            caching.record_write(session, table, row_id)
        column = routing_column(table)
        attribute = state.mapper.get_property_by_column(column).key
        row_id = state.dict.get(attribute)
        if has_objects(table):
            if state.key is None:
                place = place_of(session, state.mapper, state.obj())
                caching.record_insert(session, table, place, [row_id])
        elif row_id is not None:
            # A mapping row that is new, or has moved to another list.
            caching.record_write(session, table, row_id)


def invalidate_rows(
    session: ShardSession, statement: Any, rows: Mapping[Place, Any]
) -> None:
    """Invalidate the rows of an INSERT, or of an UPDATE by ids.

    :param rows: parameters of the statement, by shard location.
    :raises CachedWriteError: if the rows cannot be determined.
    """
    caching = session.cluster.cache
    table = statement.table
    if caching is None or not caching.is_cached(table):
        return
    for place in rows:
        refuse_cached_autocommit(session, place, table)
    is_insert = isinstance(statement, Insert)
    if is_insert and has_objects(table):
        if private.post_values_clause(statement) is not None:
            raise CachedWriteError(
                "which rows an INSERT .. ON DUPLICATE KEY UPDATE writes "
                "cannot be determined; use INSERT and UPDATE",
                table=table.name,
            )
        for place, parameters in rows.items():
            ids = ids_of(statement, parameters)
            caching.record_insert(session, table, place, ids)
        return
    if not is_insert:
        _check_columns(caching, statement)
    for parameters in rows.values():
        for row_id in ids_of(statement, parameters):
            if row_id is None:
                raise CachedWriteError(
                    "which lists an INSERT .. FROM SELECT writes cannot be "
                    "determined; use session.execute(insert(Class), rows)",
                    table=table.name,
                )
            caching.record_write(session, table, row_id)


def invalidate_matching(
    session: ShardSession, statement: Any, parameters: Any, places: Sequence[Place]
) -> int:
    """Invalidate the rows that match an UPDATE or DELETE, and lock them.

    Call it only if :func:`check_matching` returns True.

    :param parameters: one parameter set.
    :param places: shards of the statement.
    :returns: number of matching rows.
    :raises CachedWriteError: in autocommit mode.
    """
    caching = session.cluster.cache
    assert caching is not None  # noqa: S101  # see check_matching()
    table = statement.table
    for place in places:
        refuse_cached_autocommit(session, place, table)
    keys = session.scalars(
        select(routing_column(table))
        .where(*private.where_criteria(statement))
        .with_for_update(),
        parameters,
        bind_arguments={"places": list(places)},
        execution_options={INCLUDE_INACTIVE: True},
    ).all()
    for row_id in dict.fromkeys(keys):
        caching.record_write(session, table, row_id)
    return len(keys)


def check_matching(session: ShardSession, statement: Any) -> bool:
    """Return whether an UPDATE or DELETE may write cached rows.

    :raises CachedWriteError: if the rows cannot be determined.
    """
    caching = session.cluster.cache
    if caching is None:
        return False
    table = statement.table
    _check_columns(caching, statement)
    if not isinstance(table, Table):
        _refuse_joined(caching, table)
    if not caching.is_cached(table):
        return False
    if any(option.endswith("_limit") for option in statement.kwargs):
        raise CachedWriteError(
            "which rows an UPDATE or DELETE with LIMIT writes cannot be "
            "determined; name their ids",
            table=table.name,
        )
    return True


def _refuse_joined(caching: Cache, tables: Any) -> None:
    """Refuse an UPDATE of several tables.

    :raises CachedWriteError: if rows of one of the tables are cached.
    """
    for table in visitors.iterate(tables):
        if isinstance(table, Table) and caching.is_cached(table):
            raise CachedWriteError(
                "which rows an UPDATE of a join writes cannot be determined; "
                "use an UPDATE for each table",
                table=table.name,
            )


def _check_columns(caching: Cache, statement: Any) -> None:
    """Refuse a change of rows that do not match WHERE.

    :raises CachedWriteError: if the statement sets columns of another
        cached table, or moves rows to another list.
    """
    table = statement.table
    for column in columns_set(statement):
        other = getattr(column, "table", table)
        # Not the same object: the ORM's has annotations.
        if other.fullname != table.fullname and caching.is_cached(other):
            raise CachedWriteError(
                f"which of them an UPDATE of {table.name!r} that sets their "
                "columns writes cannot be determined; use an UPDATE for each "
                "table",
                table=other.name,
            )
        if caching.is_cached(table) and column in _names(table):
            raise CachedWriteError(
                "which rows an UPDATE moves to another list cannot be "
                "determined; remove them and append them there",
                table=table.name,
            )


def _names(table: Any) -> Iterable[Any]:
    column = routing_column(table)
    return column, column.name, column.key


def check_count(statement: Any, result: Any, found: int) -> None:
    """Refuse to continue if more rows were written than were locked.

    With READ COMMITTED, further rows may match after the rows were locked.

    :param found: number of locked rows.
    :raises CachedWriteError: if more rows were written.
    """
    if result.rowcount > found:
        raise CachedWriteError(
            f"{result.rowcount - found} more rows were written than had "
            "matched WHERE when they were locked; roll back and repeat "
            "the transaction, or use REPEATABLE READ",
            table=statement.table.name,
        )


@dataclass(frozen=True, kw_only=True)
class CommitReport:
    """The end of a transaction, for listeners of ``commit_ended``.

    :ivar outcome: ``"committed"``; ``"read"``: committed, but nothing was
        written; ``"failed"``: nothing was committed; ``"unknown"``: COMMIT
        was sent, and its response lost; ``"partial"``: some servers have
        committed, or may have.
    :ivar servers: number of servers.
    :ivar seconds: duration of all COMMITs.
    :ivar error: the error, if any.
    """

    outcome: str
    servers: int
    seconds: float
    error: BaseException | None = None


class Commits:
    """The COMMITs of one transaction of a session."""

    def __init__(self, session: ShardSession) -> None:
        self._session = session
        self._parts: dict[Engine, _Part] = {}
        self._is_done = False

    def take(self) -> None:
        """Register the transactions of servers, to commit them in order."""
        known = private.connections_of(self._session.get_transaction())
        for connection, inner, *rest in dict.fromkeys(known.values()):
            if not isinstance(inner, _Part):
                engine = connection.engine
                # That of a call which was interrupted before it was known.
                part = self._parts.get(engine) or _Part(self, connection, inner)
                self._parts[engine] = part
                known[connection] = known[engine] = (connection, part, *rest)

    def forget(self) -> None:
        """Drop the parts, whose reference cycle keeps the session alive."""
        self._parts.clear()

    def commit(self) -> None:
        """Commit on every server; do nothing the second time.

        :raises ServerUnreachableError: before any COMMIT, if a connection
            was lost.
        :raises CommitUnknownError: if the outcome on the only written
            server is unknown.
        :raises PartialCommitError: if some servers have committed, or may
            have.
        """
        if self._is_done:
            return
        refuse_lost(self._session._connections, self._session)
        announced = announce(self._session)
        written = self._session.log.in_order()
        start = perf_counter()
        try:
            self._commit_or_report(written)
        except BaseException as error:
            self._report(_outcome(error), start, error)
            if announced is not None and _is_undone(error):
                announced.after_rollback()
            elif announced is not None:
                announced.commit_unknown()
            raise
        self._is_done = True
        if announced is not None:
            announced.after_commit()
        self._report("committed" if written else "read", start)

    def _report(
        self, outcome: str, start: float, error: BaseException | None = None
    ) -> None:
        cluster = self._session.cluster
        if cluster.listens("commit_ended"):
            report = CommitReport(
                outcome=outcome,
                servers=len(self._parts),
                seconds=perf_counter() - start,
                error=error,
            )
            cluster.notify("commit_ended", report)

    def _commit_or_report(self, written: Sequence[Engine]) -> None:
        try:
            self._commit_all(written)
        except PartialCommitError:
            raise
        except Exception as error:
            # For example, an application's listener failed between COMMITs.
            partial = self._session.log.interrupted_error()
            if partial is None:
                raise
            raise partial from error
        except BaseException:
            # Raise Ctrl-C unchanged.
            partial = self._session.log.interrupted_error()
            if partial is not None:
                _log.error(
                    "COMMIT was interrupted: %s", partial, extra={"action": "commit"}
                )
            raise

    def _commit_all(self, written: Sequence[Engine]) -> None:
        read = dict(self._parts)
        for engine in written:
            # None if no statement was sent after the write was recorded
            part = read.pop(engine, None)
            if part is not None:
                part.inner.commit()
        for part in read.values():
            part.end()


class _Part:
    """The transaction of one server, with the interface of SQLAlchemy's.

    :ivar connection: the connection of the session.
    :ivar inner: SQLAlchemy's transaction.
    """

    def __init__(
        self, commits: Commits, connection: Connection, inner: Transaction
    ) -> None:
        self._commits = commits
        self.connection = connection
        self.inner = inner

    def end(self) -> None:
        """Commit on a server that was only read."""
        try:
            self.inner.commit()
        except ReadingLost as lost:
            _log.warning(
                "the connection to %s was lost at COMMIT; the transaction "
                "has only read there, and its writes on other servers are "
                "committed",
                lost.server,
                extra={"action": "commit", "server": lost.server},
            )
            if not self.connection.invalidated:
                self.connection.invalidate()

    # Methods that SQLAlchemy's session calls

    @property
    def is_active(self) -> bool:
        return self.inner.is_active

    def prepare(self) -> None:
        self.inner.prepare()  # type: ignore[attr-defined]  # of twophase=True

    def commit(self) -> None:
        self._commits.commit()

    def rollback(self) -> None:
        self.inner.rollback()

    def close(self) -> None:
        self.inner.close()


def _outcome(error: BaseException) -> str:
    """Return the outcome of a transaction whose COMMIT has failed."""
    if isinstance(error, PartialCommitError):
        return "partial"
    return "failed" if _is_undone(error) else "unknown"


def _is_undone(error: BaseException) -> bool:
    """Return whether definitely nothing was committed."""
    if isinstance(error, DBAPIError):
        return not error.connection_invalidated
    return isinstance(error, ServerFencedError)
