"""Asking a store from an event loop.

A store waits for its nodes, some milliseconds at most, and with it would
every task of the loop: a thread waits instead.  It is one of ours: those of
the loop may all be busy for long with what the application does there, or even
wait for a task that reads from the cache.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from functools import partial
from typing import Any
from typing import TypeVar

from sqlalchemy.util import await_only
from sqlalchemy.util import greenlet_spawn

from sqla_shard.cache.store import Found
from sqla_shard.cache.store import Store
from sqla_shard.session.contract import Scope

__all__ = ["awaited", "sleep_of", "store_of", "to_its_end"]

T = TypeVar("T")

_MOST_THREADS = 32


class _Awaited:
    """A store, each call of which is awaited."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.longest = store.longest

    def fetch(self, keys: Sequence[str], lease: int) -> dict[str, Found]:
        found: dict[str, Found] = _await(self._store.fetch, keys, lease)
        return found

    def fill(
        self, values: Mapping[str, tuple[Any, bytes]], expire: int
    ) -> set[str]:
        done: set[str] = _await(self._store.fill, values, expire)
        return done

    def block(
        self, keys: Collection[str], token: bytes, expire: int
    ) -> set[str]:
        lost: set[str] = _await(self._store.block, keys, token, expire)
        return lost

    def take(
        self, keys: Collection[str], token: bytes, expire: int
    ) -> dict[str, tuple[Any, bytes]]:
        taken: dict[str, tuple[Any, bytes]] = _await(
            self._store.take, keys, token, expire
        )
        return taken

    def unblock(self, keys: Collection[str], token: bytes) -> set[str]:
        lost: set[str] = _await(self._store.unblock, keys, token)
        return lost


def _await(function: Callable[..., Any], *arguments: Any) -> Any:
    loop = asyncio.get_running_loop()
    return await_only(
        loop.run_in_executor(_threads(), partial(function, *arguments))
    )


def _threads() -> ThreadPoolExecutor:
    return _threads_of(os.getpid())


@lru_cache(maxsize=1)
def _threads_of(process: int) -> ThreadPoolExecutor:
    # A forked process has none of the threads of its parent.
    return ThreadPoolExecutor(_MOST_THREADS, "sqla_shard-cache")


def awaited(scope: Scope, function: Callable[[], T]) -> T:
    """Return what a function does that waits, in a session."""
    if scope.places.engines.asynchronous:
        result: T = _await(function)
        return result
    return function()


def to_its_end(
    scope: Scope, work: Callable[[], object]
) -> asyncio.CancelledError | None:
    """Do something that waits, even in a task that is cancelled meanwhile.

    :param work: uses what the session uses, which does nothing else.
    :returns: the cancellation, which the caller raises later; None for none.
    """
    if scope.places.engines.asynchronous:
        cancelled: asyncio.CancelledError | None = await_only(
            _to_its_end(work)
        )
        return cancelled
    work()
    return None


async def _to_its_end(
    work: Callable[[], object],
) -> asyncio.CancelledError | None:
    cancelled = None
    task = asyncio.ensure_future(greenlet_spawn(work))
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    # It is cancelled with all others when its event loop ends.
    if not task.cancelled():
        task.result()
    return cancelled


def store_of(store: Store, scope: Scope) -> Store:
    """Return a store that a session may wait for."""
    return _Awaited(store) if scope.places.engines.asynchronous else store


def sleep_of(scope: Scope) -> Callable[[float], Any]:
    """Return what waits for some time, in a session."""
    if scope.places.engines.asynchronous:
        return _sleep
    return threading.Event().wait


def _sleep(seconds: float) -> None:
    await_only(asyncio.sleep(seconds))
