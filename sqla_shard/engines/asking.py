"""Asking servers for a sign of life, within a time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from collections.abc import Sequence
from concurrent.futures import Future
from concurrent.futures import wait
from time import monotonic

from sqlalchemy import Engine
from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError

__all__ = ["Answer", "answer_of", "in_threads", "no_answer"]

#: None, or what is wrong with a server.
Answer = Exception | None

#: Seconds for drivers to end by themselves, once the time is over.
_GRACE = 0.5


def no_answer(timeout: float) -> Answer:
    """Return what is wrong with a server that has said nothing."""
    return TimeoutError(f"no answer within {timeout:g} s")


def answer_of(engine: Engine, timeout: float) -> Answer:
    """Ask one server, over a connection that is closed afterwards.

    One of a pool would have to be waited for where all are in use, and a
    driver can be told only when it connects how long to wait.

    :param engine: for this question alone; connecting and reading take
        ``timeout`` seconds each at most.
    """
    end = monotonic() + timeout
    try:
        with engine.connect() as connection:
            connection.execute(text("SELECT 1"))
    except (SQLAlchemyError, OSError) as error:
        # OSError where SQLite cannot make the directory of its files.
        return error if monotonic() < end else no_answer(timeout)
    finally:
        engine.dispose()
    return None


def in_threads(
    jobs: Sequence[Callable[[], Answer]], timeout: float
) -> list[Answer]:
    """Ask several servers at the same time.

    A thread for each, none of them of the cluster's: these may all be
    waiting for a server that hangs.

    :param timeout: seconds; a thread that takes longer is not waited for.
    """
    threads = []
    futures: list[Future[Answer]] = []
    for job in jobs:
        future: Future[Answer] = Future()
        thread = threading.Thread(
            target=_settle,
            args=(future, job),
            name="sqla-shard-health",
            # The end of the process does not wait for a driver without
            # limits.
            daemon=True,
        )
        futures.append(future)
        try:
            thread.start()
        except RuntimeError as error:  # the system has no more of them
            future.set_exception(error)
        else:
            threads.append((thread, future))
    wait(futures, timeout + _GRACE)
    for thread, future in threads:
        if future.done():
            thread.join()
    return [
        future.result() if future.done() else no_answer(timeout)
        for future in futures
    ]


def _settle(future: Future[Answer], job: Callable[[], Answer]) -> None:
    try:
        future.set_result(job())
    except BaseException as error:  # raised where the result is read
        future.set_exception(error)
