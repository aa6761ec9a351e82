"""Pools of connections, and probes of servers with a timeout."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from time import monotonic
from typing import Any

from sqlalchemy import Engine, text
from sqlalchemy.engine import URL
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import Pool, QueuePool

from sqla_shard.util.masking import host_and_port
from sqla_shard.util.weak_keys import WeakKeys

#: The result of a probe: None, or the error of the server
Answer = Exception | None

#: Seconds after the timeout in which drivers themselves enforce it
_GRACE = 0.5


def no_answer(timeout: float) -> Answer:
    """Return the error of a server that has not responded."""
    return TimeoutError(f"no response within {timeout:g} s")


def answer_of(engine: Engine, timeout: float) -> Answer:
    """Probe one server over a new connection, which is closed afterwards.

    All connections of a pool may be in use, and drivers accept timeouts only
    when they connect.

    :param engine: an engine for this probe only; connecting and reading take
        at most ``timeout`` seconds each.
    """
    end = monotonic() + timeout
    try:
        with engine.connect() as connection:
            connection.execute(text("SELECT 1"))
    except (SQLAlchemyError, OSError) as error:
        # OSError: SQLite cannot create the directory of its files.
        return error if monotonic() < end else no_answer(timeout)
    finally:
        engine.dispose()
    return None


def in_threads(jobs: Sequence[Callable[[], Answer]], timeout: float) -> list[Answer]:
    """Probe several servers at the same time.

    Each probe has a new thread: all threads of the cluster may be waiting
    for a hanging server.

    :param timeout: seconds; a thread that takes longer is not awaited.
    """
    threads = []
    futures: list[Future[Answer]] = []
    for job in jobs:
        future: Future[Answer] = Future()
        thread = threading.Thread(
            target=_settle,
            args=(future, job),
            name="sqla-shard-health",
            # A daemon thread: the process must not wait at its end for a
            # driver without timeouts.
            daemon=True,
        )
        futures.append(future)
        try:
            thread.start()
        except RuntimeError as error:  # no thread can be started
            future.set_exception(error)
        else:
            threads.append((thread, future))
    wait(futures, timeout + _GRACE)
    for thread, future in threads:
        if future.done():
            thread.join()
    return [
        future.result() if future.done() else no_answer(timeout) for future in futures
    ]


def _settle(future: Future[Answer], job: Callable[[], Answer]) -> None:
    try:
        future.set_result(job())
    except BaseException as error:  # result() raises it
        future.set_exception(error)


#: Key in the ``record_info`` of a connection: its slot
_SLOT = "sqla_shard.slot"
#: Key in the ``info`` of a connection: whether no statement was sent after the
#: end of its transaction
ENDED = "sqla_shard.ended"


class _Slot:
    """The place in a pool of one connection."""


class CountedPool(QueuePool):
    """A pool whose connections count for as long as they exist.

    SQLAlchemy's pool counts connections up and down: Ctrl-C between a count
    and what it counts, or before a connection has its proxy, takes one from the
    pool for all time.
    """

    _sqla_logger_namespace = "sqlalchemy.pool.impl.QueuePool"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._slots: WeakKeys[None] = WeakKeys()
        super().__init__(*args, **kwargs)

    @property
    def most(self) -> int | None:
        """The highest number of connections; None if there is no limit."""
        return None if self._max_overflow < 0 else self.size() + self._max_overflow

    @property
    def _overflow(self) -> int:
        return len(self._slots) - self._pool.maxsize

    @_overflow.setter
    def _overflow(self, count: int) -> None:
        """Ignore the count of SQLAlchemy."""

    def _inc_overflow(self) -> bool:
        return True

    def _dec_overflow(self) -> Any:
        return True

    def _create_connection(self) -> Any:
        slot = _Slot()
        try:
            # Without a lock, which Ctrl-C could leave held.
            self._slots.put(slot, None)
            if not -1 < self._max_overflow < self._overflow:
                record: Any = super()._create_connection()
                record.record_info[_SLOT] = slot
                return record
        finally:
            # An error that is kept has this frame.
            del slot
        return self._do_get()  # another thread was faster


@dataclass(frozen=True, kw_only=True)
class EngineStats:
    """The pool of one server at one moment.

    :ivar server: name of the server, as in :class:`.Health`; that of a
        standby ends with ``" (standby)"``.
    :ivar address: host and port, or the file; never a password.
    :ivar idle: open connections waiting in the pool.
    :ivar busy: connections in use.
    :ivar asynchronous: whether the pool is for asynchronous sessions, which
        have separate pools.
    :ivar retired: whether the server was removed from the topology, so that
        only connections that were in use remain.
    """

    server: str
    address: str
    idle: int
    busy: int
    asynchronous: bool = False
    retired: bool = False


def server_name(url: URL) -> str:
    """Return host and port, or the file; never a password."""
    if url.host is None:
        return str(url.database)
    return host_and_port(url.host, url.port or 3306)


def is_cold(pool: Pool) -> bool:
    """Return whether the next checkout would open a connection."""
    return isinstance(pool, QueuePool) and not pool.checkedin() and pool.overflow() < 0


def warm(engine: Engine, count: int) -> None:
    """Open connections and leave them in the pool."""
    held = []
    try:
        for _ in range(count):
            held.append(engine.connect())
    finally:
        for connection in held:
            # Send no ROLLBACK, since nothing was sent: it would need another
            # round trip, and block this thread if the server hangs.
            connection.info[ENDED] = True
            connection.close()
