"""The writes of a transaction: their shards, and the order of COMMITs.

A session has one connection and one database transaction per server.  The
servers commit one after another, so only what was written on *one* virtual
shard is atomic.  :class:`TransactionLog` records every write before it is
sent, refuses a second shard, and reports after a failed COMMIT what has been
committed where.  After Ctrl-C between two COMMITs, it logs the same report.

With ``cross_shard="ordered"`` the servers commit in the order of
:meth:`WrittenShards.in_order`:

1. servers with a shard of a keyspace of kind ``mod``, which hold lookups;
2. servers with a global keyspace;
3. servers with objects;
4. servers with only mappings;
5. within each of these groups, in the order of flushes and statements;
6. within a flush or statement, the lowest shard first.

A server with several kinds of shards commits with the first of its groups.  So
if a later COMMIT fails, there may be a lookup without its object, or objects
without their mapping rows, but no row that refers to a missing one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from sqlalchemy import Connection, Engine
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.exc import DontWrapMixin, SQLAlchemyError

from sqla_shard.dialects import Failure
from sqla_shard.dialects.polling import PolledConnection
from sqla_shard.engine import AwaitedLanes, Lanes, Places
from sqla_shard.engine.lanes import lanes_for
from sqla_shard.engine.rendering import Place
from sqla_shard.exc import (
    CommitUnknownError,
    CrossShardWriteError,
    PartialCommitError,
    ServerFencedError,
    ServerUnreachableError,
    ShardError,
    WrittenShard,
)
from sqla_shard.planning import spec_of

#: Maximum number of edits of a cached value: each edit reads and writes the
#: whole value before COMMIT; a value with more edits is deleted instead.
MOST_EDITS = 16

#: Function that returns the new value of a key for the previous value, or None
#: if it cannot.
Edit = Callable[[bytes], "bytes | None"]


@dataclass(frozen=True, slots=True)
class PendingInvalidation:
    """A key of the cache that a transaction invalidates.

    :ivar place: the shard of the row; None if unknown.
    :ivar edits: changes of the value, in order; None to delete the value.
    :ivar is_made: whether the value is the result of a cached function, which
        may depend on rows of any shards.
    """

    place: Place | None
    edits: tuple[Edit, ...] | None
    is_made: bool = False

    def edited_value(self, value: bytes) -> bytes | None:
        """Return the value after all edits; None if one of them fails."""
        new: bytes | None = value
        for edit in self.edits or ():
            if new is not None:
                new = edit(new)
        return new


_RANKS = {"mod": 0, "global": 1, "objects": 2}
_LATE = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class _Write:
    """The writes on one shard.

    :ivar turn: number of the first flush or statement that wrote the shard.
    :ivar late: whether only mapping rows were written.
    """

    place: Place
    turn: int
    late: bool


class WrittenShards(dict[tuple[str, int], _Write]):
    """The shards that one transaction has written, by address."""

    _turn = 0
    _is_together = False

    def add(self, place: Place, table: Any = None) -> None:
        """Record a write.

        :param table: the written table; None if unknown.
        """
        address = place.address
        known = self.get(address)
        if known is not None and not known.late:
            return
        late = table is not None and spec_of(table).commits_late
        if known is not None:
            if not late:
                self[address] = replace(known, late=False)
            return
        if not self._is_together:
            self._turn += 1
        self[address] = _Write(place=place, turn=self._turn, late=late)

    @contextmanager
    def together(self) -> Iterator[None]:
        """Record the writes in the block as one flush or statement."""
        self._turn += 1
        self._is_together = True
        try:
            yield
        finally:
            self._is_together = False

    @property
    def engines(self) -> list[Engine]:
        """The engines of written servers, in the order of first writes."""
        engines: dict[Engine, None] = {}
        for write in self.values():
            engines[write.place.engine] = None
        return list(engines)

    def place_on(self, engine: Engine) -> Place | None:
        """Return a written shard of a server, if any."""
        for write in self.values():
            if write.place.engine is engine:
                return write.place
        return None

    def in_order(self, kind_of: Callable[[str], str]) -> list[Engine]:
        """Return the engines of written servers, in the order of COMMITs.

        :param kind_of: function that returns the kind of a keyspace.
        """
        keys: dict[Engine, tuple[int, int, tuple[str, int]]] = {}
        for write in self.values():
            place = write.place
            rank = _LATE if write.late else _RANKS[kind_of(place.keyspace)]
            key = rank, write.turn, place.address
            before = keys.get(place.engine, key)
            keys[place.engine] = min(before, key)
        return sorted(keys, key=keys.__getitem__)

    def shards(self, engines: Collection[Engine]) -> tuple[WrittenShard, ...]:
        """Return the written shards of the given servers."""
        shards = [
            WrittenShard(
                keyspace=place.keyspace, shard_id=place.shard_id, server=place.server
            )
            for place in self._places_on(engines)
        ]
        return tuple(sorted(shards, key=lambda s: (s.keyspace, s.shard_id)))

    def servers(self, engines: Collection[Engine]) -> tuple[str, ...]:
        """Return the names of the given servers, if they were written."""
        places = self._places_on(engines)
        return tuple(dict.fromkeys(place.server for place in places))

    def _places_on(self, engines: Collection[Engine]) -> list[Place]:
        return [
            write.place
            for engine in engines
            for write in self.values()
            if write.place.engine is engine
        ]


#: Rule for writes on several shards: not allowed (None); committed one server
#: after another, in any order or in that of :meth:`WrittenShards.in_order`; or
#: one shard by the transaction, and others by operations of the outbox.
CrossShard = Literal["logged", "ordered", "unordered"] | None
_WAYS = (None, "logged", "ordered", "unordered")


#: Function that is called with the connection right before each COMMIT; it may
#: write on the connection.
LastWrite = Callable[[Connection, "TransactionLog"], None]


#: Function that is called after COMMIT, with the session, which then has no
#: transaction, the items of :meth:`TransactionLog.after_commit`, and whether a
#: statement has failed: the server may have rolled back earlier statements.
#: It must not raise an :class:`Exception`: the transaction is committed.
AfterCommit = Callable[[Any, "tuple[Any, ...]", bool], None]


def check_cross_shard(cross_shard: CrossShard) -> CrossShard:
    """Return a valid ``cross_shard`` option.

    :raises ValueError: if the option is not valid.
    """
    if cross_shard not in _WAYS:
        raise ValueError(
            'cross_shard must be None, "logged", "ordered" or "unordered", '
            f"not {cross_shard!r}"
        )
    return cross_shard


class ReadingLost(SQLAlchemyError, DontWrapMixin):  # noqa: N818 - no error
    """Raised by a lost COMMIT on a server that was only read.

    The session catches it.

    :ivar server: name of the server.
    """

    def __init__(self, server: str) -> None:
        super().__init__(f"connection lost after reading: {server}")
        self.server = server


class TransactionLog:
    """The writes of one transaction.

    :param places: shard locations of the transaction.
    :param cross_shard: rule for writes on several shards.
    :param last: function that is called with each connection right before
        COMMIT.
    :ivar first: the first written shard, with a description.
    """

    def __init__(
        self, places: Places, *, cross_shard: CrossShard, last: LastWrite | None = None
    ) -> None:
        self.cross_shard = cross_shard
        self._places = places
        self._last = last
        self.first: tuple[Place, str] | None = None
        self._written = WrittenShards()
        self._committed: list[Engine] = []
        self._committing: Engine | None = None
        self._savepoints: list[tuple[Any, Any]] = []
        self._after_commit: tuple[tuple[AfterCommit, Any], ...] = ()
        #: Pending invalidations by region and key of the cache.
        self.invalidations: dict[tuple[str, str], PendingInvalidation] = {}
        #: Whether the transaction has writes, and they are committed.
        self.is_committed = False
        #: The cancellation of the task after COMMIT, if any.
        self.cancelled: BaseException | None = None
        #: Whether a statement of the transaction has failed on a server.
        self.has_failed: bool = False
        #: Whether a statement has failed with a deadlock, which rolls back
        #: the transaction, or a lock wait timeout, which may.
        self.has_lost: bool = False

    @property
    def is_of_one_shard(self) -> bool:
        """Whether a second shard is refused."""
        return self.cross_shard in (None, "logged")

    def wrote(self, place: Place, what: str, table: Any = None) -> None:
        """Record a write before it is sent.

        :param place: the written shard.
        :param what: the object or table, for messages.
        :param table: the written table; None if unknown.
        :raises CrossShardWriteError: if the write is on a second shard.
        """
        if self.first is None:
            self.first = place, what
        elif self.is_of_one_shard:
            there, that = self.first
            if there is not place and there.address != place.address:
                raise CrossShardWriteError(
                    first=(there.shard_id, _described(there, that)),
                    second=(place.shard_id, _described(place, what)),
                )
        self._written.add(place, table)

    def first_place(self, keyspace: str) -> Place | None:
        """Return the first written shard, if it is in a keyspace."""
        if self.first is None or self.first[0].keyspace != keyspace:
            return None
        return self.first[0]

    @contextmanager
    def all_or_none(self) -> Iterator[None]:
        """Record the writes in the block, or none of them if it fails.

        Refused writes are not sent: if they were recorded, a later write on
        another shard would be refused.
        """
        before = self._snapshot()
        try:
            with self._written.together():
                yield
        except ShardError:
            self._restore(before)
            raise

    def places_that_commit(self, place: Place | None) -> list[Place]:
        """Return the shards for a row that must exist if a shard commits.

        :param place: the shard; None for any written shard.
        :returns: the shard, if it was written; otherwise one shard of each
            written server, since any server may be the only one that
            commits.
        """
        written = self._written
        if place is not None and place.address in written:
            return [place]
        places = [written.place_on(engine) for engine in written.engines]
        return [one for one in places if one is not None]

    def savepoint(self, transaction: Any) -> None:
        """Record the state at a savepoint.

        :param transaction: SQLAlchemy's transaction of the savepoint.
        """
        self._savepoints.append((transaction, self._snapshot()))

    def rolled_back(self, transaction: Any) -> None:
        """Forget the writes since a savepoint, if it is a savepoint."""
        for index, (savepoint, snapshot) in enumerate(self._savepoints):
            if savepoint is transaction:
                self._restore(snapshot)
                del self._savepoints[index:]
                break
        # Invalidate all keys, which is always correct: it is unknown which
        # edits were rolled back.
        for entry, pending in self.invalidations.items():
            self.invalidations[entry] = replace(pending, edits=None)

    def invalidate(
        self,
        entry: tuple[str, str],
        place: Place | None,
        edit: Edit | None = None,
        *,
        is_made: bool = False,
    ) -> None:
        """Invalidate a key of the cache when the transaction commits.

        :param entry: region and key.
        :param place: shard of the row, if known.
        :param edit: change of the value, if known.
        :param is_made: see :class:`PendingInvalidation`.
        """
        before = self.invalidations.get(entry)
        edits = () if before is None else before.edits
        if edit is None or edits is None or len(edits) == MOST_EDITS:
            self.invalidations[entry] = PendingInvalidation(place, None, is_made)
        else:
            self.invalidations[entry] = PendingInvalidation(
                place, (*edits, edit), is_made
            )

    def _snapshot(self) -> tuple[Any, ...]:
        return self.first, dict(self._written), self._after_commit

    def _restore(self, snapshot: tuple[Any, ...]) -> None:
        self.first, written, self._after_commit = snapshot
        # An interrupt between both leaves shards that were not written.
        self._written.update(written)
        for address in self._written.keys() - written.keys():
            del self._written[address]

    def after_commit(self, what: AfterCommit, item: Any) -> None:
        """Call a function after COMMIT, unless this call is rolled back.

        :param what: function that is called once, with all its items.
        :param item: an item for the function.
        """
        self._after_commit = (*self._after_commit, (what, item))

    def run_after_commit(self, session: Any) -> None:
        """Call the functions of :meth:`after_commit`.

        :raises CancelledError: if the task was cancelled after COMMIT.
        """
        functions, self._after_commit = self._after_commit, ()
        items: dict[AfterCommit, list[Any]] = {}
        for what, item in functions if self.is_committed else ():
            items.setdefault(what, []).append(item)
        for what, values in items.items():
            what(session, tuple(values), self.has_failed)
        if self.cancelled is not None:
            # If it were raised earlier, COMMIT would seem to have failed.
            raise self.cancelled

    def in_order(self) -> list[Engine]:
        """Return the engines of written servers, in the order of COMMITs."""
        if self.cross_shard != "ordered":
            return self._written.engines
        return self._written.in_order(self._kind_of)

    def _kind_of(self, keyspace: str) -> str:
        return self._places.keyspace(keyspace, "").kind

    def committing(self, connection: Connection) -> None:
        """Record that COMMIT is about to be sent to a server."""
        engine = connection.engine
        if self._last is not None:
            self._last(connection, self)
        if self._committing is not None:
            self._committed.append(self._committing)
        self._committing = engine

    def statement_failed(self, error: BaseException) -> None:
        """Record an error of a statement."""
        self.has_failed = True
        backends = self._places.engines.backends()
        failures = {backend.classify(error) for backend in backends}
        if not failures.isdisjoint(_LOSSES):
            self.has_lost = True

    def commit_error(self, context: ExceptionContext) -> Exception | None:
        """Return the error that reports the outcome of a failed COMMIT."""
        engine, self._committing = self._committing, None
        if engine is None or engine is not context.engine:
            return None
        failure = self._failure(context, engine)
        written = self._written.engines
        done = [e for e in self._committed if e in written]
        is_written = engine in written
        if done and not is_written and failure is Failure.LOST:
            # Servers that were only read commit last
            return ReadingLost(self._name(engine))
        unknown = is_written and failure is Failure.LOST
        rest = [e for e in written if e is not engine and e not in done]
        if done or (unknown and rest):
            return self._partial(done, engine, rest, unknown=unknown)
        if failure is Failure.FENCED:
            error: Any = context.sqlalchemy_exception
            return ServerFencedError(server=self._name(engine), error=error)
        if unknown:
            return CommitUnknownError(
                server=self._name(engine), shards_unknown=self._written.shards([engine])
            )
        return None

    def interrupted_error(self) -> PartialCommitError | None:
        """Return the error for COMMITs that an exception interrupted.

        :returns: None if no server has committed.
        """
        engine, self._committing = self._committing, None
        written = self._written.engines
        done = [e for e in self._committed if e in written]
        if engine is None or not done:
            return None
        rest = [e for e in written if e is not engine and e not in done]
        return self._partial(done, engine, rest, unknown=engine in written)

    def _partial(
        self, done: list[Engine], engine: Engine, rest: list[Engine], *, unknown: bool
    ) -> PartialCommitError:
        shards = self._written.shards([engine])
        return PartialCommitError(
            committed=self._written.servers(done),
            failed=self._name(engine),
            rolled_back=self._written.servers(rest),
            unknown=unknown,
            shards_committed=self._written.shards(done),
            shards_failed=() if unknown else shards,
            shards_unknown=shards if unknown else (),
            shards_rolled_back=self._written.shards(rest),
        )

    def _name(self, engine: Engine) -> str:
        names = self._written.servers([engine])
        return ", ".join(names) or self._places.engines.name_of(engine)

    def _failure(self, context: ExceptionContext, engine: Engine) -> Failure:
        """Classify the error of a COMMIT."""
        if context.is_disconnect:
            return Failure.LOST
        place = self._written.place_on(engine)
        # The backend of a server that was only read is unknown.
        kinds = self._places.engines.backends() if place is None else {place.backend}
        original: Any = context.original_exception
        failures = {backend.classify(original) for backend in kinds}
        if not failures.isdisjoint(_UNKNOWN):
            return Failure.LOST
        return Failure.OTHER if place is None else failures.pop()


_LOSSES = (Failure.CONFLICT, Failure.BUSY)
#: The outcome of COMMIT is also unknown after a timeout.
_UNKNOWN = (Failure.LOST, Failure.TIMEOUT)


def _described(place: Place, what: str) -> str:
    return f"{what} on shard {place.shard_id} of {place.keyspace!r}"


def connection_lost(server: str) -> ServerUnreachableError:
    """Return the error of a transaction that has lost a connection."""
    reason = "its connection was lost; roll back and repeat the transaction"
    return ServerUnreachableError(server=server, error=ConnectionError(reason))


def refuse_lost(connections: Iterable[Connection], session: Any) -> None:
    """Refuse COMMIT if the transaction has lost a connection.

    SQLAlchemy would detect it at the COMMIT on that server, after it has
    committed on other servers.

    :param connections: connections of the transaction.
    :param session: the session, which has the names of the servers.
    :raises ServerUnreachableError: before any COMMIT is sent.
    """
    for connection in connections:
        if connection.invalidated and not connection.closed:
            raise connection_lost(session.places.engines.name_of(connection.engine))


def record_commit(session: Any) -> None:
    """Handle ``after_commit``, before other listeners, which may raise."""
    # The event also occurs for savepoints.
    wrote = session._log is not None and session._log.first is not None
    if wrote and not session.in_nested_transaction():
        session.has_committed = session._log.is_committed = True


def give_up(connections: Iterable[Connection]) -> None:
    """Close connections whose transactions cannot be rolled back."""
    for connection in connections:
        if not connection.closed:
            connection.invalidate()
            connection.close()


def leave_to_parent(connections: Iterable[Connection]) -> None:
    """Invalidate connections of the parent in a child process.

    Otherwise ROLLBACK would be sent over the parent's sockets, or fail on a
    closed one.
    """
    for connection in connections:
        if not connection.closed and not connection.invalidated:
            connection.invalidate()


def roll_back_together(
    connections: Iterable[Connection], lanes: Lanes | AwaitedLanes
) -> None:
    """Roll back on several servers at the same time.

    ``Session.close()`` alone would take a round trip per server; after this
    it has nothing to roll back.

    :raises SQLAlchemyError: the error of the first server that fails.
    """
    # Remove duplicates: a connection with a savepoint is listed twice, and
    # only one thread may use it.
    open_ = [c for c in dict.fromkeys(connections) if _is_open(c)]
    if len(open_) < 2:
        return
    lanes_for(lanes, open_).run(
        [partial(_roll_back, c) for c in open_], None, [c.engine for c in open_]
    )


def _is_open(connection: Connection) -> bool:
    """Return whether ROLLBACK on a connection waits for a server."""
    if connection.closed or connection.invalidated:
        return False
    transaction = connection.get_transaction()
    # SQLite files need no round trips.
    remote = connection.engine.url.host is not None
    if not remote or transaction is None or not transaction.is_active:
        return False
    wire: Any = connection.connection.dbapi_connection
    return not (isinstance(wire, PolledConnection) and wire.ends_at_once)


def _roll_back(connection: Connection) -> None:
    transaction = connection.get_transaction()
    if transaction is not None:
        transaction.rollback()
