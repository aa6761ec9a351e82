"""Waiting for several servers at once in an event loop, without threads.

One task for each server of a statement.  SQLAlchemy's asynchronous drivers
are called from greenlets, and each task has one of its own, so that the code
that runs in it is the same as in a thread.

A cancelled task ends its lanes: SQLAlchemy closes the connection of each that
was waiting, since the rest of an answer may still be on its way there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from collections.abc import Coroutine
from collections.abc import Hashable
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any
from typing import TypeVar

# What AsyncSession itself is made of.
from sqlalchemy.util import await_only
from sqlalchemy.util import greenlet_spawn

__all__ = ["AwaitedLanes"]

T = TypeVar("T")


class AwaitedLanes:
    """What :class:`~sqla_shard.scattering.lanes.Lanes` is to threads."""

    def run(
        self,
        jobs: Sequence[Callable[[], T]],
        abort: Callable[[int], None] | None = None,
        servers: Sequence[Hashable] = (),
    ) -> list[T]:
        """Run jobs at the same time; return their results, in order.

        All of them have ended when it returns or raises, cancelled or not.

        :param abort: not called: a cancelled job ends by itself.
        :param servers: not needed: a lane that waits takes nothing from
            the others.
        :raises BaseException: what the first of them has raised.
        """
        found: list[T | BaseException] = await_only(_all_of(jobs))
        results: list[T] = []
        for result in found:
            if isinstance(result, BaseException):
                raise result
            results.append(result)
        return results

    def attempt(
        self,
        jobs: Sequence[Callable[[], T]],
        timeout: float | None,
        servers: Sequence[Hashable] = (),
    ) -> list[Future[T]]:
        """Begin jobs at the same time, and wait for them no longer than this.

        What has not ended by then is cancelled.

        :param timeout: seconds.
        :param servers: not needed, as in :meth:`run`.
        :returns: their futures, in order, done or not.
        """
        futures: list[Future[T]] = [Future() for _ in jobs]
        await_only(_attempts(jobs, futures, timeout))
        return futures

    def call_later(
        self, seconds: float, call: Callable[[], None]
    ) -> Callable[[], None]:
        """Call a function after some time, unless that is taken back.

        :param call: it must not raise, nor wait.
        :returns: takes it back.
        """
        return asyncio.get_running_loop().call_later(seconds, call).cancel

    def after_fork(self) -> None:
        """Do nothing: there are no threads to forget."""

    def drain(self, seconds: float) -> bool:
        """Do nothing: what has begun has ended when :meth:`run` returns."""
        return True

    def close(self, *, wait: bool = True) -> None:
        """Do nothing: there are no threads to end."""


async def _all_of(jobs: Sequence[Callable[[], T]]) -> list[T | BaseException]:
    lanes: list[Coroutine[Any, Any, T]] = [greenlet_spawn(j) for j in jobs]
    # Cancelled itself, it cancels them all, and is over when they are.
    return await asyncio.gather(*lanes, return_exceptions=True)


async def _attempts(
    jobs: Sequence[Callable[[], T]],
    futures: Sequence[Future[T]],
    timeout: float | None,
) -> None:
    tasks = [asyncio.ensure_future(greenlet_spawn(job)) for job in jobs]
    try:
        await asyncio.wait(tasks, timeout=timeout)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task, future in zip(tasks, futures, strict=True):
        if task.cancelled():
            continue
        error = task.exception()
        if error is None:
            future.set_result(task.result())
        else:
            future.set_exception(error)
