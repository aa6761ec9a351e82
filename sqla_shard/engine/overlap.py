"""Several executions of one session at the same time, in its thread.

Each execution is a greenlet, a :class:`Lane`.  When SQLAlchemy passes a
statement to the driver, the lane passes that call on and lets the other lanes
continue: all ORM work stays in the thread of the session, and the waits
overlap.  The call is made in a thread, or, if the sockets of all drivers can
be polled, in a greenlet of the same thread that continues when its socket is
ready.

Three rules, each with the failure that it prevents:

* one call at a time for each connection of a driver.  An eager load of one
  lane may need the connection that another lane waits on;
* lanes continue after their first statement in the order in which they were
  passed, whichever server responds first.  Otherwise the order in which
  objects are loaded would change;
* every lane has ended when :meth:`Hub.run` returns or raises.  A connection
  must not be rolled back while a call is using it.

:func:`overlap` is for statements that cannot be sent as one statement per
server: UPDATE and DELETE on several shards, and all statements of
:class:`sqla_shard.ext.horizontal_shard.ShardedSession`::

    overlap([partial(execute_on, shard) for shard in shards],
            connections, lanes)

The ``do_execute`` event passes the calls of drivers to a :class:`Hub`.  If the
sockets of all connections can be polled, each statement is sent before the
first response is awaited; otherwise the calls are made in the threads of
:class:`~.lanes.Lanes`, but for calls on these connections:

* SQLite in memory, and any pool with one connection for each thread, or one
  for all threads;
* a SQLite connection with ``check_same_thread``, which is detected by a test
  from another thread;
* statements with ``stream_results``, whose rows are read later.

Under asyncio the lanes are awaited together instead.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, wait
from contextvars import ContextVar
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from greenlet import getcurrent, greenlet
from sqlalchemy import Connection, Engine, event
from sqlalchemy.engine.cursor import FullyBufferedCursorFetchStrategy
from sqlalchemy.engine.interfaces import Dialect
from sqlalchemy.pool import SingletonThreadPool, StaticPool
from sqlalchemy.util import await_only, greenlet_spawn

from sqla_shard.dialects import interrupt
from sqla_shard.dialects.polling import PolledCall, Poller
from sqla_shard.engine.execution import call_next_listeners
from sqla_shard.engine.lanes import (
    AwaitedLanes,
    invalidate,
    Lanes,
    lanes_for,
    LaneTask,
    POLLED,
)
from sqla_shard.util.processes import THREAD

_CALL = "sqla_shard.call"

#: Seconds until a call is interrupted again: SQLite ignores an interrupt that
#: arrives just before the statement begins.
_AGAIN = 0.05

_T = TypeVar("_T")

_LEAVES = "sqla_shard.leaves_thread"

_watched: weakref.WeakSet[Dialect] = weakref.WeakSet()
_watching = threading.Lock()

# Under asyncio each execution is a task with its own greenlet, as in
# SQLAlchemy's extension.  SQLAlchemy's connections for asyncio serialize
# their calls.
_TURN: ContextVar[Turn | None] = ContextVar("sqla_shard_turn", default=None)


def _nothing() -> None:
    return None


def before_invalidate(wire: Any, record: Any, error: Any) -> None:
    """Handle ``invalidate``: interrupt the call of another lane first.

    SQLAlchemy closes a connection immediately when Ctrl-C or a lost
    connection ends one lane; a driver call in another thread could then
    crash the process.
    """
    ref: Callable[[], Future[None] | None] = record.info.get(_CALL, _nothing)
    call = ref()
    raised: BaseException | None = None
    while call is not None and not call.done():
        try:
            interrupt(wire)
            wait([call], _AGAIN)
        except BaseException as interrupted:
            raised = interrupted
    if raised is not None:
        raise raised


class Stopped(Exception):  # noqa: N818  # no error
    """Raised in a lane after another lane has failed; never raised outside."""


class _Call:
    """A call of a driver that a lane waits for.

    :ivar polled: the greenlet that makes it; None if a thread does.
    """

    def __init__(
        self, lane: Lane, connection: Connection, work: Callable[[], None]
    ) -> None:
        self.lane = lane
        self.connection = connection
        self.wire: Any = connection.connection.dbapi_connection
        self.info: Any = connection.info
        self.work = work
        self.queued = False
        self.task: LaneTask[None] | None = None
        self.polled: PolledCall | None = None
        self.cancelled = False

    def is_over(self) -> bool:
        return self.cancelled or (self.task is not None and self.task.future.done())


class _LaneGroup:
    """Lanes that were started together.

    :ivar parent: the lane that waits for them, if a statement of a lane
        needs several shards.
    :ivar left: number of lanes that have not ended.
    :ivar turn: number of lanes that have continued after their first
        statement.
    """

    def __init__(self, parent: Lane | None) -> None:
        self.parent = parent
        self.lanes: list[Lane] = []
        self.left = 0
        self.turn = 0
        self.stopped = False

    def is_stopped(self) -> bool:
        if self.stopped or self.parent is None:
            return self.stopped
        return self.parent.group.is_stopped()

    def outcome(self) -> list[Any]:
        """Return the results in order, or raise the first error."""
        errors = [e for lane in self.lanes if (e := lane.failure) is not None]
        for error in errors:
            if not isinstance(error, Stopped):
                raise error
        if errors:
            raise errors[0]
        return [lane.result for lane in self.lanes]


class Lane(greenlet):
    """One execution of a group, in its own greenlet."""

    def __init__(self, hub: Hub, group: _LaneGroup, job: Callable[[], Any]) -> None:
        super().__init__(self._go, hub.greenlet)
        # Copy the context: in a new greenlet all context variables are empty.
        self.gr_context = contextvars.copy_context()
        self.hub = hub
        self.group = group
        self._job = job
        self.result: Any = None
        self.failure: BaseException | None = None
        self.started = False
        self.ended = False
        #: Whether its first call has returned, and whether it has continued.
        self.answered = False
        self.passed = False
        # One of these is set while the lane waits.
        self.call: _Call | None = None
        self.turn = False
        self.inner: _LaneGroup | None = None

    def is_ready(self) -> bool:
        """Return whether the lane waits only for its turn, or to be ended."""
        # An interrupt at the first or after the last line of the greenlet
        # leaves a lane that is dead, and has not ended for its group.
        if not self.started or self.turn or self.dead:
            return True
        if self.call is not None:
            return self.call.is_over()
        return self.inner is not None and not self.inner.left

    def _go(self) -> None:
        try:
            self.result = self._job()
        except BaseException as error:
            # The hub raises the error after all lanes have ended.
            self.failure = error


class Hub:
    """Runs the lanes of one statement; created in the session's greenlet.

    Lanes call :meth:`call` and :meth:`run_inside`; the session's thread runs
    the other methods.

    :param lanes: threads for calls of drivers.
    :param poller: makes the calls in this thread; None for threads.
    """

    def __init__(self, lanes: Lanes, poller: Poller | None = None) -> None:
        self.greenlet: greenlet = getcurrent()
        THREAD.has_greenlets = True
        self._lanes = lanes
        self._poller = poller
        self._groups: list[_LaneGroup] = []
        self._ready: deque[Lane] = deque()
        self._answers: SimpleQueue[_Call] = SimpleQueue()
        # Keys are driver connections: several Connections may share one.
        self._queues: dict[int, deque[_Call]] = {}
        self._raised: BaseException | None = None
        self._to_abort = False
        self._cut: list[Connection] = []

    def run(self, jobs: Sequence[Callable[[], Any]]) -> list[Any]:
        """Run executions at the same time; return their results, in order.

        :raises BaseException: the error of the first execution that fails.
        """
        group = self._group(jobs, None)
        while group.left:
            try:
                if self._to_abort:
                    self._abort(group)
                self._step()
            except BaseException as error:
                # Ctrl-C: calls still use the connections, and must end before
                # the connections are rolled back.
                self._raised = error
                self._to_abort = True
        invalidate(self._cut)
        if self._raised is not None:
            raise self._raised
        return group.outcome()

    def _group(
        self, jobs: Sequence[Callable[[], Any]], parent: Lane | None
    ) -> _LaneGroup:
        group = _LaneGroup(parent)
        group.lanes = [Lane(self, group, job) for job in jobs]
        group.left = len(group.lanes)
        self._groups.append(group)
        self._ready.extend(group.lanes)
        return group

    def _step(self) -> None:
        if self._ready:
            self._resume(self._ready.popleft())
            return
        if self._poller is not None and self._answers.empty():
            self._poller.step()
            return
        try:
            timeout = _AGAIN if self._cut else None
            self._take_result(self._answers.get(timeout=timeout))
        except Empty:
            for queue in self._queues.values():
                if not queue[0].is_over():
                    self._cut_off(queue[0])

    def _resume(self, lane: Lane) -> None:
        if not lane.started and lane.group.is_stopped():
            lane.failure = Stopped()
        else:
            lane.started = True
            lane.switch()
            if not lane.dead:
                if lane.call is not None and not lane.call.queued:
                    self._enqueue(lane.call)
                return
        lane.ended = True
        group = lane.group
        group.left -= 1
        error = lane.failure
        if error is not None and not isinstance(error, Stopped):
            if isinstance(error, Exception):
                self._stop(group)
            else:
                self._raised = self._raised or error
                self._to_abort = True
        self._pass_turns(group)
        if not group.left:
            self._groups.remove(group)
            if group.parent is not None:
                self._ready.append(group.parent)

    def _take_result(self, call: _Call) -> None:
        queue = self._queues.get(id(call.wire))
        if queue is not None and queue[0] is call:
            queue.popleft()
            self._begin_next(id(call.wire), queue)
        self._deliver(call)

    def _begin_next(self, key: int, queue: deque[_Call]) -> None:
        while queue and queue[0].lane.group.is_stopped():
            call = queue.popleft()
            call.cancelled = True
            self._deliver(call)
        if queue:
            self._begin(queue[0])
        else:
            del self._queues[key]

    def _enqueue(self, call: _Call) -> None:
        # Start no thread in the lane: an interrupt after the start would end
        # the lane, and SQLAlchemy would close the connection.
        call.queued = True
        queue = self._queues.get(id(call.wire))
        if queue is not None:
            queue.append(call)
        else:
            self._queues[id(call.wire)] = deque([call])
            self._begin(call)

    def _begin(self, call: _Call) -> None:
        task = LaneTask(call.work)
        task.future.add_done_callback(lambda future: self._answers.put(call))
        call.task = task
        if self._poller is not None:
            call.polled = PolledCall(task)
            self._poller.resume(call.polled)
            return
        # Weak reference: the connection outlives the session, to which the
        # future refers.
        call.info[_CALL] = weakref.ref(task.future)
        self._lanes.begin(task)

    def _deliver(self, call: _Call) -> None:
        lane = call.lane
        if lane.call is not call:
            # The call was already delivered after an interrupt.
            return
        lane.answered = True
        if lane.passed:
            self._ready.append(lane)
        else:
            self._pass_turns(lane.group)

    def _pass_turns(self, group: _LaneGroup) -> None:
        lanes = group.lanes
        while group.turn < len(lanes):
            lane = lanes[group.turn]
            if not (lane.answered or lane.ended):
                return
            group.turn += 1
            if not lane.ended and not lane.passed:
                lane.passed = True
                self._ready.append(lane)

    def _stop(self, group: _LaneGroup) -> None:
        """Send no further calls of a group; running calls are awaited."""
        group.stopped = True
        for queue in self._queues.values():
            task = queue[0].task
            if task is not None and queue[0].lane.group.is_stopped():
                task.cancel()

    def _abort(self, root: _LaneGroup) -> None:
        """End the calls that wait for servers, after an interrupt.

        The interrupt may have arrived between any two lines of this class,
        so the state is computed again.
        """
        self._to_abort = False
        root.stopped = True
        self._queues.clear()
        for lane in self._waiting():
            call = lane.call
            if call is None or call.is_over():
                continue
            if call.task is None:
                call.cancelled = True
            elif not call.task.cancel() and not call.is_over():
                self._queues[id(call.wire)] = deque([call])
                self._cut_off(call)
        self._ready.clear()
        for group in reversed(self._groups[:]):
            waiting = [lane for lane in group.lanes if not lane.ended]
            for lane in waiting:
                if lane.is_ready():
                    lane.passed = True
                    self._ready.append(lane)
            group.left = len(waiting)
            if not waiting:
                self._groups.remove(group)

    def _waiting(self) -> list[Lane]:
        return [
            lane for group in self._groups for lane in group.lanes if not lane.ended
        ]

    def _cut_off(self, call: _Call) -> None:
        connection = call.connection
        if not connection.invalidated and not connection.closed:
            if connection not in self._cut:
                self._cut.append(connection)
            if call.polled is None:
                interrupt(call.wire)
        if self._poller is not None and call.polled is not None:
            # The driver closes the connection.
            self._poller.end([call.polled])
            # Another interrupt may have ended it just before it had a result.
            call.cancelled = call.task is None or not call.task.future.done()

    def call(
        self,
        lane: Lane,
        connection: Connection,
        work: Callable[[], None],
        *,
        leaves: bool,
    ) -> None:
        """Call the driver of a lane while other lanes continue.

        :param leaves: whether the call may be made outside of the lane;
            otherwise the lane makes it, unless the connection is in use.
        :raises Stopped: after another lane has failed.
        """
        if lane.group.is_stopped():
            raise Stopped
        wire = connection.connection.dbapi_connection
        if not leaves and id(wire) not in self._queues:
            work()
            lane.answered = True
            if not lane.passed:
                lane.turn = True
                self._pass_turns(lane.group)
                self.greenlet.switch()
                lane.turn = False
            return
        call = lane.call = _Call(lane, connection, work)
        self.greenlet.switch()
        lane.call = None
        if call.cancelled or call.task is None or call.task.future.cancelled():
            raise Stopped
        call.task.future.result()

    def run_inside(self, lane: Lane, jobs: Sequence[Callable[[], Any]]) -> list[Any]:
        """Run the executions that a lane needs; see :meth:`run`."""
        group = lane.inner = self._group(jobs, lane)
        self.greenlet.switch()
        lane.inner = None
        return group.outcome()


class Turn:
    """The position of a lane in the order of a statement's lanes.

    :param before: turn of the previous lane, which continues first.
    """

    def __init__(self, group: _Group, before: Turn | None) -> None:
        self.group = group
        self._before = before
        self._passed = asyncio.Event()
        #: Whether the first statement of the lane has returned.
        self.taken: bool = False

    def check(self) -> None:
        """Check that no other lane has failed.

        :raises Stopped: if another lane has failed.
        """
        if self.group.stopped:
            raise Stopped

    def take(self) -> None:
        """Continue after all lanes before this one."""
        self.taken = True
        if self._before is not None:
            await_only(self._before._passed.wait())

    def end(self) -> None:
        """Let the next lane continue.

        It is called before the second statement of the lane, or when the
        lane ends, since loading the rows of the first statement may await
        the driver.
        """
        self._passed.set()


class _Group:
    stopped = False


def current_turn() -> Turn | None:
    """Return the turn of the calling lane."""
    return _TURN.get()


def run_awaiting(jobs: Sequence[Callable[[], Any]]) -> list[Any]:
    """Run executions at the same time; return their results, in order.

    All executions have ended when it returns or raises.

    :raises BaseException: the error of the first execution that fails.
    """
    outer = current_turn()
    if outer is not None:
        outer.end()
    outcomes = await_only(_together(jobs))
    errors = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    for error in errors:
        if not isinstance(error, Stopped):
            raise error
    if errors:
        raise errors[0]
    return outcomes


async def _together(jobs: Sequence[Callable[[], Any]]) -> list[Any]:
    group = _Group()
    lanes = []
    turn: Turn | None = None
    for job in jobs:
        turn = Turn(group, turn)
        lanes.append(_lane(job, turn))
    return await asyncio.gather(*lanes, return_exceptions=True)


async def _lane(job: Callable[[], Any], turn: Turn) -> Any:
    # Each task has its own context: other lanes do not see this value.
    _TURN.set(turn)
    try:
        return await greenlet_spawn(job)
    except BaseException:
        turn.group.stopped = True
        raise
    finally:
        turn.end()


def overlap(
    jobs: Sequence[Callable[[], _T]],
    connections: Iterable[Connection],
    lanes: Lanes | AwaitedLanes,
) -> list[_T]:
    """Run executions of one session; return their results, in order.

    All executions have ended when it returns or raises.  The session must
    have been flushed, and no execution may flush.

    :param jobs: functions that execute one statement each; their objects are
        loaded in this order.
    :param connections: connections of the session that the jobs use; a
        session cannot open two at the same time.
    :param lanes: the threads, for drivers whose sockets cannot be polled; not
        used in an event loop.
    :raises BaseException: the error of the first execution that fails; after
        an error, no further statement is sent.
    """
    distinct = {id(each.connection.dbapi_connection): each for each in connections}
    if len(jobs) < 2 or len(distinct) < 2:
        return [job() for job in jobs]
    for connection in distinct.values():
        watch_calls(connection.engine)
    if isinstance(lanes, AwaitedLanes) or any(
        each.dialect.is_async for each in distinct.values()
    ):
        return run_awaiting(jobs)
    current = getcurrent()
    if isinstance(current, Lane):
        return current.hub.run_inside(current, jobs)
    if not any(_leaves(each) for each in distinct.values()):
        return [job() for job in jobs]
    polls = lanes_for(lanes, distinct.values()) is POLLED
    return Hub(lanes, Poller() if polls else None).run(jobs)


def watch_calls(engine: Engine) -> None:
    """Add the listeners that :func:`overlap` needs, once for each engine.

    They add one function call to each other statement of the engine.
    """
    dialect = engine.dialect
    if dialect in _watched:
        return
    with _watching:
        if dialect not in _watched:
            event.listen(engine, "do_execute", _do_execute)
            event.listen(engine, "do_executemany", _do_executemany)
            event.listen(engine, "invalidate", before_invalidate)
            _watched.add(dialect)


def _do_execute(
    cursor: Any, statement: str, parameters: Any, context: Any
) -> bool | None:
    arguments = cursor, statement, parameters, context
    return _call_driver("do_execute", _do_execute, arguments)


def _do_executemany(
    cursor: Any, statement: str, parameters: Any, context: Any
) -> bool | None:
    arguments = cursor, statement, parameters, context
    return _call_driver("do_executemany", _do_executemany, arguments)


def _call_driver(
    name: str, ours: Any, arguments: tuple[Any, Any, Any, Any]
) -> bool | None:
    """Execute a statement of a lane, in a thread where possible."""
    context = arguments[3]
    lane = getcurrent() if THREAD.has_greenlets else None
    turn = current_turn()
    if not isinstance(lane, Lane) and (turn is None or turn.taken):
        if turn is not None:
            turn.end()
        return None
    if call_next_listeners(name, ours, arguments):
        return True
    work = partial(getattr(context.dialect, name), *arguments)
    if isinstance(lane, Lane):
        connection = context.root_connection
        streams = context.execution_options.get("stream_results", False)
        leaves = not streams and _leaves(connection)
        if leaves and context.dialect.name == "sqlite":
            work = partial(_with_rows, work, context)
        lane.hub.call(lane, connection, work, leaves=leaves)
    elif turn is not None:
        turn.check()
        work()
        turn.take()
    return True


def _with_rows(work: Callable[[], object], context: Any) -> None:
    """Execute a statement of SQLite, and fetch its rows in the same thread.

    SQLite computes rows when they are fetched.  While the thread of the
    session fetched them, another thread could execute the same SQL on the
    same connection: since Python 3.12 both use one prepared statement, and
    rows would be lost.
    """
    work()
    # SQLAlchemy fetches the rows of INSERT .. RETURNING itself.
    if context.cursor.description is not None and not context.isinsert:
        context.cursor_fetch_strategy = FullyBufferedCursorFetchStrategy(context.cursor)


def _leaves(connection: Connection) -> bool:
    """Return whether another thread may use a connection."""
    try:
        info = connection.info
    except NotImplementedError:
        # The first connection of an engine, on which SQLAlchemy initializes
        # the dialect while it holds a lock.
        return False
    known: bool | None = info.get(_LEAVES)
    if known is None:
        known = info[_LEAVES] = _may_leave(connection)
    return known


def _may_leave(connection: Connection) -> bool:
    dialect = connection.dialect
    pool = connection.engine.pool
    if dialect.is_async or isinstance(pool, (SingletonThreadPool, StaticPool)):
        return False
    dbapi: Any = dialect.dbapi
    if getattr(dbapi, "threadsafety", 0) < 1:
        return False
    if dialect.name != "sqlite":
        return True
    wire: Any = connection.connection.dbapi_connection
    return _answers_elsewhere(wire, dbapi.Error)


def _answers_elsewhere(wire: Any, error: type[Exception]) -> bool:
    """Test a SQLite connection: check_same_thread cannot be read."""
    answers = []

    def test() -> None:
        try:
            wire.cursor().close()
        except error:
            return
        answers.append(True)

    thread = threading.Thread(target=test, name="sqla-shard-ask")
    thread.start()
    thread.join()
    return bool(answers)
