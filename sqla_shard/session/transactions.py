"""What one transaction of a session has done, on which servers.

A session has one connection and one database transaction per server.  The
servers commit one after another, so only what was written on *one* virtual
shard is atomic.  :class:`TransactionLog` is told of every write before it is
sent, refuses a second shard, and says after a failed COMMIT what is where.
Ctrl-C during one of several COMMITs stays Ctrl-C; what it has left is logged.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any
from typing import Literal

from sqlalchemy import Connection
from sqlalchemy import Engine
from sqlalchemy import event
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.exc import DontWrapMixin
from sqlalchemy.exc import SQLAlchemyError

from sqla_shard.dialects import Failure
from sqla_shard.engines import Places
from sqla_shard.engines.connections import info_after
from sqla_shard.exc import CommitUnknownError
from sqla_shard.exc import CrossShardWriteError
from sqla_shard.exc import PartialCommitError
from sqla_shard.exc import ServerFencedError
from sqla_shard.exc import ServerUnreachableError
from sqla_shard.exc import ShardError
from sqla_shard.rendering import Place
from sqla_shard.scattering import AwaitedLanes
from sqla_shard.scattering import Lanes
from sqla_shard.session.noted import Edit
from sqla_shard.session.noted import MOST_EDITS
from sqla_shard.session.noted import Stale
from sqla_shard.session.written import Written

__all__ = [
    "Afterwards",
    "CrossShard",
    "LastWrite",
    "ReadingLost",
    "TransactionLog",
    "checked",
    "give_up",
    "leave_to_parent",
    "lost",
    "note_commit",
    "refuse_lost",
    "roll_back_together",
    "watch",
]

_LOG = "sqla_shard.transaction"


#: How a transaction may write several shards: not at all; with one COMMIT
#: after another, in no particular order or in that of :mod:`.written`; or
#: one itself, and the others by operations that it leaves to be done.
CrossShard = Literal["logged", "ordered", "unordered"] | None
_WAYS = (None, "logged", "ordered", "unordered")


#: Writes something as the last thing of a transaction, on one of its
#: connections; it is called for each.
LastWrite = Callable[[Connection, "TransactionLog"], None]


#: Does something with what a transaction has left for after its COMMIT.  It
#: is given the session, which has no transaction then, the items, and whether
#: a statement has failed, by which the server may have undone what was before.
#: It raises nothing but what is no :class:`Exception`: what was committed must
#: not look as if it had failed.
Afterwards = Callable[[Any, "tuple[Any, ...]", bool], None]


def checked(cross_shard: CrossShard) -> CrossShard:
    """Return what a caller has said, if it makes sense.

    :raises ValueError: when it does not.
    """
    if cross_shard not in _WAYS:
        raise ValueError(
            'cross_shard must be None, "logged", "ordered" or "unordered", '
            f"not {cross_shard!r}"
        )
    return cross_shard


class ReadingLost(SQLAlchemyError, DontWrapMixin):  # noqa: N818 - no error
    """Raised by a COMMIT that is lost where nothing was written.

    Never leaves the session.

    :ivar server: that was read.
    """

    def __init__(self, server: str) -> None:
        super().__init__(f"lost after reading: {server}")
        self.server = server


class TransactionLog:
    """The writes of one transaction.

    :param places: where the shards are for this transaction.
    :param cross_shard: whether a second shard may be written.
    :param last: called with each connection right before COMMIT is sent.
    """

    def __init__(
        self,
        places: Places,
        *,
        cross_shard: CrossShard,
        last: LastWrite | None = None,
    ) -> None:
        self.cross_shard = cross_shard
        self._places = places
        self._last = last
        self.first: tuple[Place, str] | None = None
        self._written = Written()
        self._committed: list[Engine] = []
        self._committing: Engine | None = None
        self._savepoints: list[tuple[Any, Any]] = []
        self._left: tuple[tuple[Afterwards, Any], ...] = ()
        #: What the transaction makes old in the cache, by region and key.
        self.stale: dict[tuple[str, str], Stale] = {}
        #: Whether it has written something, and that is committed.
        self.is_committed = False
        #: The cancellation of its task after COMMIT, if there was one.
        self.cancelled: BaseException | None = None
        #: Whether a statement of it has failed on a server.
        self.has_failed = False
        #: Whether one of them has lost against another transaction, by which
        #: a server rolls back all; after a timeout only some do.
        self.has_lost = False

    @property
    def is_of_one_shard(self) -> bool:
        """Whether a second shard is refused."""
        return self.cross_shard in (None, "logged")

    def wrote(self, place: Place, what: str, table: Any = None) -> None:
        """Take note of a write before it is sent.

        :param what: the object or table, for messages.
        :param table: where to, if that is known.
        :raises CrossShardWriteError: when it would be a second shard.
        """
        if self.first is None:
            self.first = place, what
        elif self.is_of_one_shard:
            there, that = self.first
            if there.address != place.address:
                raise CrossShardWriteError(
                    first=(there.shard_id, _described(there, that)),
                    second=(place.shard_id, _described(place, what)),
                )
        self._written.add(place, table)

    @contextmanager
    def all_or_none(self) -> Iterator[None]:
        """Take note of the writes in the block, or of none if it fails.

        What was refused has not been sent, and must not keep later writes
        from another shard.
        """
        before = self._snapshot()
        try:
            with self._written.together():
                yield
        except ShardError:
            self._restore(before)
            raise

    def homes_of(self, place: Place | None) -> list[Place]:
        """Return where to write what is to be there if a shard commits.

        :param place: the shard; None for any of them.
        :returns: the shard, where it was written; else one of each server
            that was, for its COMMIT may be the only one that takes effect.
        """
        written = self._written
        if place is not None and written.has(place):
            return [place]
        found = [written.place_on(engine) for engine in written.engines]
        return [one for one in found if one is not None]

    def savepoint(self, transaction: Any) -> None:
        """Take note of a savepoint.

        :param transaction: what tells it from others.
        """
        self._savepoints.append((transaction, self._snapshot()))

    def rolled_back(self, transaction: Any) -> None:
        """Forget what was written since a savepoint, if it was one."""
        for index, (savepoint, snapshot) in enumerate(self._savepoints):
            if savepoint is transaction:
                self._restore(snapshot)
                del self._savepoints[index:]
                break
        # All are announced, which does no harm; but which of the edits were
        # undone is not known.
        for entry, noted in self.stale.items():
            self.stale[entry] = replace(noted, edits=None)

    def note(
        self,
        entry: tuple[str, str],
        place: Place | None,
        edit: Edit | None = None,
        *,
        is_made: bool = False,
    ) -> None:
        """Take note of a key of the cache that the transaction makes old.

        :param entry: its region, and the key.
        :param place: the shard that it belongs to, if any.
        :param edit: what it does to the value, if that is known.
        :param is_made: see :class:`~.noted.Stale`.
        """
        before = self.stale.get(entry)
        edits = () if before is None else before.edits
        if edit is None or edits is None or len(edits) == MOST_EDITS:
            self.stale[entry] = Stale(place, None, is_made)
        else:
            self.stale[entry] = Stale(place, (*edits, edit), is_made)

    def _snapshot(self) -> tuple[Any, ...]:
        return self.first, self._written.snapshot(), self._left

    def _restore(self, snapshot: tuple[Any, ...]) -> None:
        self.first, written, self._left = snapshot
        self._written.restore(written)

    def leave(self, what: Afterwards, item: Any) -> None:
        """Have something done after COMMIT, unless it is rolled back.

        :param what: called once, with all items that it was left.
        """
        self._left = (*self._left, (what, item))

    def finish(self, session: Any) -> None:
        """Do what was left, when the transaction has ended.

        :raises CancelledError: when the task was cancelled after COMMIT.
        """
        left, self._left = self._left, ()
        items: dict[Afterwards, list[Any]] = {}
        for what, item in left if self.is_committed else ():
            items.setdefault(what, []).append(item)
        for what, its in items.items():
            what(session, tuple(its), self.has_failed)
        if self.cancelled is not None:
            # Not earlier: it would look as if COMMIT had failed.
            raise self.cancelled

    def begun(self, connection: Connection) -> None:
        """Follow the transaction of one of the session's connections."""
        connection.info[_LOG] = self

    def in_order(self) -> list[Engine]:
        """Return the engines of what was written, in order of COMMIT."""
        if self.cross_shard != "ordered":
            return self._written.engines
        return self._written.in_order(self._kind_of)

    def _kind_of(self, keyspace: str) -> str:
        return self._places.keyspace(keyspace, "").kind

    def committing(self, connection: Connection) -> None:
        """Take note that COMMIT is about to be sent to a server."""
        engine = connection.engine
        if self._last is not None:
            self._last(connection, self)
        if self._committing is not None:
            self._committed.append(self._committing)
        self._committing = engine

    def statement_failed(self, error: BaseException) -> None:
        """Take note of an error of a statement."""
        self.has_failed = True
        backends = self._places.engines.backends()
        failures = {backend.classify(error) for backend in backends}
        if not failures.isdisjoint(_LOSSES):
            self.has_lost = True

    def failed(self, context: ExceptionContext) -> Exception | None:
        """Return the error that tells what a failed COMMIT has left."""
        engine, self._committing = self._committing, None
        if engine is None or engine is not context.engine:
            return None
        failure = self._failure(context, engine)
        written = self._written.engines
        done = [e for e in self._committed if e in written]
        is_written = engine in written
        if done and not is_written and failure is Failure.LOST:
            # They come after all that was written.
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
                server=self._name(engine),
                shards_unknown=self._written.shards([engine]),
            )
        return None

    def cut_short(self) -> PartialCommitError | None:
        """Return what COMMITs have left that ended with no word of a server.

        :returns: None where nothing has committed.
        """
        engine, self._committing = self._committing, None
        written = self._written.engines
        done = [e for e in self._committed if e in written]
        if engine is None or not done:
            return None
        rest = [e for e in written if e is not engine and e not in done]
        return self._partial(done, engine, rest, unknown=engine in written)

    def _partial(
        self,
        done: list[Engine],
        engine: Engine,
        rest: list[Engine],
        *,
        unknown: bool,
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
        """Return what a failed COMMIT says about the transaction."""
        if context.is_disconnect:
            return Failure.LOST
        place = self._written.place_on(engine)
        # Where nothing was written, nothing tells the kind of server.
        kinds = (
            self._places.engines.backends()
            if place is None
            else {place.backend}
        )
        original: Any = context.original_exception
        failures = {backend.classify(original) for backend in kinds}
        if not failures.isdisjoint(_UNKNOWN):
            return Failure.LOST
        return Failure.OTHER if place is None else failures.pop()


_LOSSES = (Failure.CONFLICT, Failure.BUSY)
#: At COMMIT whoever has stopped to wait does not know what came of it.
_UNKNOWN = (Failure.LOST, Failure.TIMEOUT)


def _described(place: Place, what: str) -> str:
    return f"{what} on shard {place.shard_id} of {place.keyspace!r}"


def watch(engine: Engine) -> None:
    """Let the logs of an engine's transactions know of COMMIT."""
    # Before others: what it sends must not come after what ends it.
    event.listen(engine, "commit", _committing, insert=True)
    event.listen(engine, "handle_error", _failed)
    event.listen(engine, "checkin", _forget)


def _committing(connection: Connection) -> None:
    log: TransactionLog | None = connection.info.get(_LOG)
    if log is not None:
        log.committing(connection)


def _failed(context: ExceptionContext) -> Exception | None:
    # What has lost its connection has no more to tell.
    info = info_after(context)
    log: TransactionLog | None = None if info is None else info.get(_LOG)
    if log is None:
        return None
    if context.statement is not None:
        log.statement_failed(context.original_exception)
        return None
    if not isinstance(context.original_exception, Exception):
        # Ctrl-C, or a task that was cancelled, which must go on being that.
        return None
    return log.failed(context)


def _forget(dbapi_connection: Any, record: Any) -> None:
    # The next user of the connection is another transaction.
    record.info.pop(_LOG, None)


def lost(server: str) -> ServerUnreachableError:
    """Return the error of a transaction whose part on a server is gone."""
    reason = "its connection was lost; roll back, and repeat the transaction"
    return ServerUnreachableError(server=server, error=ConnectionError(reason))


def refuse_lost(connections: Iterable[Connection], session: Any) -> None:
    """Refuse COMMIT where the transaction is gone on one of its servers.

    SQLAlchemy finds that out when it comes to that server, and has committed
    on others by then.

    :param connections: on which the transaction has begun.
    :param session: it is asked for the name of the server, if need be.
    :raises ServerUnreachableError: before any server was told.
    """
    for connection in connections:
        if connection.invalidated and not connection.closed:
            raise lost(session.places.engines.name_of(connection.engine))


def note_commit(session: Any) -> None:
    """Handle ``after_commit``, before what else listens may raise."""
    # It is sent for a savepoint as well.
    wrote = session._log is not None and session._log.first is not None
    if wrote and not session.in_nested_transaction():
        session.has_committed = session._log.is_committed = True


def give_up(connections: Iterable[Connection]) -> None:
    """Close connections whose transactions cannot be ended."""
    for connection in connections:
        if not connection.closed:
            connection.invalidate()
            connection.close()


def leave_to_parent(connections: Iterable[Connection]) -> None:
    """Let go, in a child process, of what its parent goes on using.

    A transaction that is rolled back would send that to the server, or fail
    where the socket was given up.
    """
    for connection in connections:
        if not connection.closed and not connection.invalidated:
            connection.invalidate()


def roll_back_together(
    connections: Iterable[Connection], lanes: Lanes | AwaitedLanes
) -> None:
    """Roll back on several servers at the same time.

    The session that does it next finds nothing left to do; one after
    another, they would take as many round trips as there are servers.

    :raises SQLAlchemyError: what the first of them has raised.
    """
    # A savepoint begins on a connection that has begun before: no two
    # lanes may use one and the same.
    open_ = [c for c in dict.fromkeys(connections) if _is_open(c)]
    if len(open_) < 2:
        return
    engines = [c.engine for c in open_]
    lanes.run([partial(_roll_back, c) for c in open_], None, engines)


def _is_open(connection: Connection) -> bool:
    if connection.closed or connection.invalidated:
        return False
    transaction = connection.get_transaction()
    # Nothing waits for a file.
    remote = connection.engine.url.host is not None
    return remote and transaction is not None and transaction.is_active


def _roll_back(connection: Connection) -> None:
    transaction = connection.get_transaction()
    if transaction is not None:
        transaction.rollback()
