"""Several ORM executions of one session at the same time.

For statements that one text per server cannot carry: UPDATE and DELETE on
several shards, and everything of
:class:`sqla_shard.ext.horizontal_shard.ShardedSession`::

    overlap([partial(execute_on, shard) for shard in shards],
            connections, lanes)

All ORM work is done in the session's thread; the ``do_execute`` event hands
the driver's part to the threads of :class:`~.lanes.Lanes`.  Some connections
must not leave their thread.  Their calls are made in the session's:

* SQLite in memory, and any pool with one connection for each thread or one
  for all;
* a SQLite connection with ``check_same_thread``: it is asked from another
  thread once;
* statements with ``stream_results``, whose rows are read later.

Under asyncio the lanes are awaited together instead.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence
from functools import partial
from typing import Any
from typing import TypeVar

from greenlet import getcurrent
from sqlalchemy import Connection
from sqlalchemy import Engine
from sqlalchemy import event
from sqlalchemy.engine.cursor import FullyBufferedCursorFetchStrategy
from sqlalchemy.engine.interfaces import Dialect
from sqlalchemy.pool import SingletonThreadPool
from sqlalchemy.pool import StaticPool

from sqla_shard.scattering.awaited_lanes import AwaitedLanes
from sqla_shard.scattering.awaiting import current_turn
from sqla_shard.scattering.awaiting import run_awaiting
from sqla_shard.scattering.hub import before_invalidate
from sqla_shard.scattering.hub import Hub
from sqla_shard.scattering.hub import Lane
from sqla_shard.scattering.lanes import Lanes
from sqla_shard.scattering.listeners import asked_after

__all__ = ["overlap", "watch_calls"]

T = TypeVar("T")

_LEAVES = "sqla_shard.leaves_thread"

_watched: weakref.WeakSet[Dialect] = weakref.WeakSet()
_watching = threading.Lock()


def overlap(
    jobs: Sequence[Callable[[], T]],
    connections: Iterable[Connection],
    lanes: Lanes | AwaitedLanes,
) -> list[T]:
    """Run executions of one session; return their results, in order.

    All of them have ended when it returns or raises.  The session must have
    been flushed, and none of them may flush.

    :param jobs: each executes one statement; objects that they load are
        loaded in this order.
    :param connections: the session's connections that they use, opened
        already: a session cannot open two at the same time.
    :param lanes: the threads, where no event loop waits.
    :raises BaseException: what the first of them has raised; after an error
        of one, nothing more is sent for the others.
    """
    distinct = {
        id(each.connection.dbapi_connection): each for each in connections
    }
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
    return Hub(lanes).run(jobs)


def watch_calls(engine: Engine) -> None:
    """Let statements of an engine take part; once is enough.

    It costs other statements of the engine the call of a function.
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
    return _called("do_execute", _do_execute, arguments)


def _do_executemany(
    cursor: Any, statement: str, parameters: Any, context: Any
) -> bool | None:
    arguments = cursor, statement, parameters, context
    return _called("do_executemany", _do_executemany, arguments)


def _called(
    name: str, ours: Any, arguments: tuple[Any, Any, Any, Any]
) -> bool | None:
    """Do what SQLAlchemy would do next, where it may be done."""
    context = arguments[3]
    lane = getcurrent()
    turn = current_turn()
    if not isinstance(lane, Lane) and (turn is None or turn.taken):
        if turn is not None:
            turn.end()
        return None
    if asked_after(name, ours, arguments):
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
    """Do what SQLite does, and fetch its rows in the same thread.

    It has none before they are fetched.  If that were done in the session's
    thread, meanwhile another thread might execute the same text on the same
    connection: since Python 3.12 both would use one prepared statement, and
    rows be lost.
    """
    work()
    # SQLAlchemy itself fetches what an INSERT returns, from the cursor.
    if context.cursor.description is not None and not context.isinsert:
        context.cursor_fetch_strategy = FullyBufferedCursorFetchStrategy(
            context.cursor
        )


def _leaves(connection: Connection) -> bool:
    """Tell whether other threads may call a connection of a driver."""
    try:
        info = connection.info
    except NotImplementedError:
        # The first connection of an engine, which SQLAlchemy asks what kind
        # of server it is.  A lock is held meanwhile.
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
    """Ask a SQLite connection, which does not tell check_same_thread."""
    found = []

    def ask() -> None:
        try:
            wire.cursor().close()
        except error:
            return
        found.append(True)

    thread = threading.Thread(target=ask, name="sqla-shard-ask")
    thread.start()
    thread.join()
    return bool(found)
