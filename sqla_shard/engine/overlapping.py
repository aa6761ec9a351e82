"""Several ORM executions of one session at the same time.

For statements that cannot be sent as one statement per server: UPDATE and
DELETE on several shards, and all statements of
:class:`sqla_shard.ext.horizontal_shard.ShardedSession`::

    overlap([partial(execute_on, shard) for shard in shards],
            connections, lanes)

All ORM work is done in the thread of the session.  The ``do_execute`` event
passes the calls of drivers to a :class:`~.hub.Hub`.  If the sockets of all
connections can be polled, each statement is sent before the first response is
awaited, in the same thread; otherwise the calls are made in the threads of
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
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from functools import partial
from typing import Any, TypeVar

from greenlet import getcurrent
from sqlalchemy import Connection, Engine, event
from sqlalchemy.engine.cursor import FullyBufferedCursorFetchStrategy
from sqlalchemy.engine.interfaces import Dialect
from sqlalchemy.pool import SingletonThreadPool, StaticPool
from sqlalchemy.util import await_only, greenlet_spawn

from sqla_shard.dialects.polling import Poller
from sqla_shard.engine.execution import call_next_listeners
from sqla_shard.engine.hub import before_invalidate, Hub, Lane, Stopped
from sqla_shard.engine.lanes import AwaitedLanes, Lanes
from sqla_shard.engine.polled_lanes import lanes_for, POLLED
from sqla_shard.util.processes import THREAD

_T = TypeVar("_T")

_LEAVES = "sqla_shard.leaves_thread"

_watched: weakref.WeakSet[Dialect] = weakref.WeakSet()
_watching = threading.Lock()

# Under asyncio each execution is a task with its own greenlet, as in
# SQLAlchemy's extension.  SQLAlchemy's connections for asyncio serialize
# their calls.
_TURN: ContextVar[Turn | None] = ContextVar("sqla_shard_turn", default=None)


class Turn:
    """The position of a lane in the order of a statement's lanes.

    :param before: turn of the previous lane, which continues first.
    """

    def __init__(self, group: _Group, before: Turn | None) -> None:
        self.group = group
        self._before = before
        self._passed = asyncio.Event()
        #: Whether the first statement of the lane has returned.
        self.taken = False

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
    errors = [one for one in outcomes if isinstance(one, BaseException)]
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
    found = []

    def test() -> None:
        try:
            wire.cursor().close()
        except error:
            return
        found.append(True)

    thread = threading.Thread(target=test, name="sqla-shard-ask")
    thread.start()
    thread.join()
    return bool(found)
