"""The events of the engines that shadow mode watches.

A listener of connection events costs each connection and statement of its
engine some time, even if it does nothing.  Those of the dialect's
``do_execute`` cost next to nothing; so these see every statement, and decide
for each transaction whether it is planned.  Only the connection of such a
transaction gets listeners of its own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import perf_counter, thread_time
from types import FrameType
from typing import Any
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, event

from sqla_shard.migrate.planner import Writes
from sqla_shard.util.calling_lines import position_of
from sqla_shard.util.listening import stop_listening

#: The line of a statement that no frame of Python has executed.
_NOWHERE = ("<unknown>", 0, "")


class PlannedTransaction:
    """A transaction that is planned.

    :ivar writes: what it has written.
    :ivar begun_at: the processor time of the thread that has sent its first
        statement.
    :ivar thread: that thread.
    :ivar pending: the execution that is planned next, after SQLAlchemy has
        read the primary keys that it has inserted; None if there is none.
    :ivar line: the line of the application that has executed it.
    :ivar started: when it was sent.
    :ivar seconds: the time that it took.
    """

    __slots__ = (
        "begun_at",
        "line",
        "pending",
        "seconds",
        "started",
        "thread",
        "writes",
    )

    def __init__(self, writes: Writes) -> None:
        self.writes = writes
        self.begun_at = thread_time()
        self.thread = threading.get_ident()
        self.pending: Any = None
        self.line = _NOWHERE
        self.started = 0.0
        self.seconds = 0.0

    @property
    def processor_time(self) -> float | None:
        """The seconds of its thread so far; None in another thread."""
        if self.thread != threading.get_ident():
            return None
        return thread_time() - self.begun_at


class _Known:
    """The state of a connection.

    :ivar identity: ``id()`` of SQLAlchemy's transaction, which may be that of
        a later one as well.
    :ivar transaction: the transaction; None if it is not planned.
    """

    __slots__ = ("identity", "transaction")

    def __init__(self, identity: int, transaction: PlannedTransaction | None) -> None:
        self.identity = identity
        self.transaction = transaction


class EngineWatch:
    """Listens to engines.

    :param begin: called for each transaction; returns None for one that is
        not planned.
    :param plan: called with a transaction and its pending execution.
    :param end: called with a transaction that has ended, and whether it was
        committed.
    :param calling_frame: returns the innermost frame of the application.
    :param failed: called with an error of one of these, which must not become
        the application's.
    """

    def __init__(
        self,
        *,
        begin: Callable[[], PlannedTransaction | None],
        plan: Callable[[PlannedTransaction], None],
        end: Callable[[PlannedTransaction, bool], None],
        calling_frame: Callable[[], FrameType | None],
        failed: Callable[[BaseException], None],
    ) -> None:
        self._begin = begin
        self._plan = plan
        self._end = end
        self._calling_frame = calling_frame
        self._failed = failed
        self._lock = threading.Lock()
        self._open = 0
        self._known: WeakKeyDictionary[Connection, _Known] = WeakKeyDictionary()
        self._listeners: tuple[tuple[str, Callable[..., None]], ...] = (
            ("do_execute", self._sent),
            ("do_executemany", self._sent),
            ("do_execute_no_params", self._sent_without_parameters),
            ("handle_error", self._raised),
        )

    def listen(self, engine: Any) -> None:
        """Listen to an engine."""
        for name, listener in self._listeners:
            event.listen(engine, name, listener)

    def remove(self, engine: Any) -> None:
        """Do not listen to an engine any more."""
        for name, listener in self._listeners:
            stop_listening(engine, name, listener)
        # Its open connections have listeners that find nothing.
        self._known.clear()
        self._count(-self._open)

    def forget(self) -> None:
        """Forget all transactions, in a child process."""
        # A thread of the parent may have held the lock.
        self._lock = threading.Lock()
        self._known.clear()
        self._open = 0

    @property
    def is_planning(self) -> bool:
        """Whether a transaction that is planned may be open."""
        return self._open > 0

    def _count(self, change: int) -> None:
        with self._lock:
            self._open += change

    def _sent(self, cursor: Any, statement: Any, parameters: Any, context: Any) -> None:
        connection = context.root_connection
        open_transaction = connection.get_transaction()
        if open_transaction is None:
            # A statement of the dialect, about a server that it meets: no
            # transaction would end.
            return
        known = self._known.get(connection)
        identity = id(open_transaction)
        if known is None or (known.transaction is None and known.identity != identity):
            known = self._decide(connection, identity)
        transaction = known.transaction
        if transaction is None:
            return
        # A bulk INSERT is sent in several parts.
        if transaction.pending is not context:
            self._plan_pending(transaction)
            transaction.pending = context
            transaction.line = self._line()
            transaction.seconds = 0.0
        transaction.started = perf_counter()

    def _line(self) -> tuple[str, int, str]:
        try:
            frame = self._calling_frame()
            return _NOWHERE if frame is None else position_of(frame)
        except Exception as error:  # it must not become the application's
            self._failed(error)
            return _NOWHERE

    def _sent_without_parameters(
        self, cursor: Any, statement: Any, context: Any
    ) -> None:
        self._sent(cursor, statement, (), context)

    def _decide(self, connection: Connection, identity: int) -> _Known:
        known = _Known(identity, self._begin())
        self._known[connection] = known
        if known.transaction is not None:
            self._count(1)
            event.listen(connection, "after_cursor_execute", self._received)
            event.listen(connection, "commit", self._committed)
            event.listen(connection, "rollback", self._rolled_back)
        return known

    def _received(self, connection: Connection, *arguments: Any) -> None:
        known = self._known.get(connection)
        if known is not None and known.transaction is not None:
            transaction = known.transaction
            transaction.seconds += perf_counter() - transaction.started

    def _raised(self, context: Any) -> None:
        """Drop the execution that has raised an error."""
        connection = context.connection
        # There is none if an engine cannot connect.
        known = None if connection is None else self._known.get(connection)
        transaction = None if known is None else known.transaction
        if transaction is not None and transaction.pending is context.execution_context:
            transaction.pending = None

    def _committed(self, connection: Connection) -> None:
        self._ended(connection, True)

    def _rolled_back(self, connection: Connection) -> None:
        self._ended(connection, False)

    def _ended(self, connection: Connection, is_committed: bool) -> None:
        known = self._known.pop(connection, None)
        if known is not None and known.transaction is not None:
            transaction = known.transaction
            if transaction.pending is not None and not transaction.seconds:
                # A bulk INSERT that began before the connection had a
                # listener.
                transaction.seconds = perf_counter() - transaction.started
            self._count(-1)
            self._plan_pending(transaction)
            try:
                self._end(transaction, is_committed)
            except Exception as error:  # it must not become the application's
                self._failed(error)

    def _plan_pending(self, transaction: PlannedTransaction) -> None:
        if transaction.pending is None:
            return
        try:
            self._plan(transaction)
        except Exception as error:  # it must not become the application's
            self._failed(error)
        transaction.pending = None
