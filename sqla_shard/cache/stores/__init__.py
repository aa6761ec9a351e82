"""Stores of a cache: the interface that the protocol uses, and checks.

An item is a *value*, a *lease* or a *tombstone*.  The first reader of a
missing item gets a lease: the permission to fill a value, which ends when the
item is changed.  A tombstone replaces the item and blocks leases.  It has the
tokens of all transactions that have put it, and ends when the last of them has
removed its token: each writer is protected until the end of its COMMIT.

A store does not raise an error if a node does not respond: it returns the
keys for which an operation failed.

``memcached``       nodes of memcached, by pymemcache
``memcached_node``  one node, and its connections
``redis``           a Redis server
``dogpile``         the backend ``sqla_shard.memcached`` of dogpile.cache
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache, partial
from itertools import count
from time import monotonic
from typing import Any, NamedTuple, Protocol, TypeVar

from sqlalchemy.util import await_only, greenlet_spawn

from sqla_shard import exc
from sqla_shard.outbox.tables import check_keys, TOKEN_BYTES
from sqla_shard.session import ShardSession
from sqla_shard.util.processes import in_children

__all__ = [
    "LONGEST",
    "Breaker",
    "Found",
    "KeyState",
    "Store",
    "awaited",
    "check_lease",
    "check_seconds",
    "check_size",
    "check_tombstone",
    "check_wait",
    "sleep_of",
    "split",
    "store_of",
    "to_its_end",
]

LONGEST = 60 * 60 * 24 * 30
"""Maximum seconds of a lifetime: memcached reads larger numbers as dates."""

#: When there are too many items, one in this many values is evicted.
_PART = 10


class KeyState(Enum):
    """The state of a key in a store."""

    VALUE = "a value"
    LEASED = "missing; the caller has the lease"
    BUSY = "missing; another caller has the lease"
    BLOCKED = "missing; a tombstone, or a node that was just started"
    LOST = "unknown: its node does not respond"


class Found(NamedTuple):
    """The result of a fetch for one key.

    :ivar state: the state of the key.
    :ivar value: the value; empty if there is none.
    :ivar lease: the argument of :meth:`Store.fill`; None unless the caller has
        the lease.
    """

    state: KeyState
    value: bytes = b""
    lease: Any = None


class Store(Protocol):
    """A store of items, on any number of nodes.

    Keys are up to 250 ASCII characters without spaces and control characters;
    all methods raise :exc:`~sqla_shard.exc.CacheKeyError` for invalid keys.

    :ivar longest: maximum lifetime of a tombstone in seconds.
    """

    longest: int

    def fetch(self, keys: Sequence[str], lease: int) -> dict[str, Found]:
        """Return the state of each key, with leases for missing ones.

        :param lease: seconds after which an unused lease ends; 0 for no
            leases: missing keys are BLOCKED.
        """
        ...

    def fill(self, values: Mapping[str, tuple[Any, bytes]], expire: int) -> set[str]:
        """Replace leases by values.

        :param values: the lease and the value, by key.
        :param expire: seconds after which the values expire.
        :returns: the keys whose leases were still valid, and whose values
            are not too large.
        """
        ...

    def block(self, keys: Collection[str], token: bytes, expire: int) -> set[str]:
        """Replace items by tombstones.

        :param token: the token of the transaction.
        :param expire: seconds after which the tombstones expire.
        :returns: the keys for which this failed.
        """
        ...

    def take(
        self, keys: Collection[str], token: bytes, expire: int
    ) -> dict[str, tuple[Any, bytes]]:
        """Replace values by tombstones, and return them.

        :returns: for each key whose value was replaced, a lease for
            :meth:`fill`, which is valid until the tombstone is changed, and
            the value.  A store that does not support such leases does nothing
            and returns an empty dictionary.
        """
        ...

    def unblock(self, keys: Collection[str], token: bytes) -> set[str]:
        """Remove items, except tombstones with other tokens.

        :returns: the keys for which this failed.
        """
        ...


T = TypeVar("T")


def check_seconds(option: str, seconds: int, most: int = LONGEST) -> int:
    """Return a time in seconds.

    :raises sqla_shard.exc.OptionError: if it is not an integer, or too
        long.
    """
    # An item with 0 seconds would never expire.
    if type(seconds) is not int or not 1 <= seconds <= most:
        raise exc.OptionError(
            f"must be an integer, 1 to {most:,} seconds", option=option, value=seconds
        )
    return seconds


def check_wait(option: str, seconds: float) -> None:
    """Check seconds to wait, which may have a fraction.

    :raises sqla_shard.exc.OptionError: if it is not valid.
    """
    if type(seconds) not in (int, float) or not 0 < seconds < LONGEST:
        raise exc.OptionError(
            f"must be seconds, above 0 and below {LONGEST:,}",
            option=option,
            value=seconds,
        )


def check_size(option: str, size: int) -> None:
    """Check the number of items or bytes.

    :raises sqla_shard.exc.OptionError: if it is not an integer, 1 or
        more.
    """
    if type(size) is not int or size < 1:
        raise exc.OptionError(
            "must be an integer, 1 or more", option=option, value=size
        )


def check_lease(seconds: int) -> None:
    """Check the seconds of a lease, which may be 0.

    :raises sqla_shard.exc.OptionError: if it is negative, or too long.
    """
    if type(seconds) is not int or seconds != 0:
        check_seconds("lease", seconds)


def check_tombstone(token: bytes, expire: int, longest: int) -> None:
    """Check the token and the seconds of a tombstone.

    :raises sqla_shard.exc.OptionError: if one is not valid.
    """
    check_seconds("expire", expire, longest)
    if type(token) is not bytes or len(token) != TOKEN_BYTES:
        raise exc.OptionError(
            f"must be {TOKEN_BYTES} bytes", option="token", value=token
        )


def split(
    items: Iterable[T], size_of: Callable[[T], int], most: int, largest: int
) -> Iterator[list[T]]:
    """Split items into batches, for one request each.

    :param size_of: returns the size of an item in bytes.
    :param most: maximum number of items of a batch.
    :param largest: maximum size in bytes of a batch of several items.
    """
    batch: list[T] = []
    total = 0
    for item in items:
        size = size_of(item)
        if batch and (len(batch) == most or total + size > largest):
            yield batch
            batch, total = [], 0
        batch.append(item)
        total += size
    if batch:
        yield batch


class Breaker:
    """Skips a node for a number of seconds after a failure.

    After that time one caller at a time tries the node again.

    :param log: the logger for failures.
    :param kind: the kind of the node, for messages.
    :param name: the name of the node.
    :param retry: seconds after which a failed node is tried again.
    :ivar failures: the number of failures: no response, or a malformed one.
    """

    def __init__(
        self,
        log: logging.LoggerAdapter[logging.Logger],
        kind: str,
        name: str,
        retry: float,
    ) -> None:
        self.failures: int = 0
        self._log = log
        self._kind = kind
        self._name = name
        self._retry = retry
        self._skipped_until = 0.0
        self.after_fork()
        in_children(self)

    def after_fork(self) -> None:
        """Replace the lock, which a thread of the parent may hold."""
        self._lock = threading.Lock()

    def may_try(self) -> bool:
        """Return whether to use the node now."""
        if not self._skipped_until:
            return True
        with self._lock:
            now = monotonic()
            if now < self._skipped_until:
                return False
            # Other callers skip the node until the outcome of this attempt.
            self._skipped_until = now + self._retry
            return True

    def record_success(self) -> None:
        """Record that the node has responded: use it."""
        self._skipped_until = 0.0

    def record_failure(self, error: Exception) -> None:
        """Record an error of the node: skip it."""
        with self._lock:
            self.failures += 1
            self._skipped_until = monotonic() + self._retry
        self._log.warning(
            "%s at %s does not respond, and is skipped for %g s: %s",
            self._kind,
            self._name,
            self._retry,
            str(error) or type(error).__name__,
            extra={"action": "cache", "server": self._name},
        )


_MOST_THREADS = 32


class _Awaited:
    """A store for an event loop: each call is awaited."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.longest = store.longest

    def fetch(self, keys: Sequence[str], lease: int) -> dict[str, Found]:
        return _await(self._store.fetch, keys, lease)

    def fill(self, values: Mapping[str, tuple[Any, bytes]], expire: int) -> set[str]:
        return _await(self._store.fill, values, expire)

    def block(self, keys: Collection[str], token: bytes, expire: int) -> set[str]:
        return _await(self._store.block, keys, token, expire)

    def take(
        self, keys: Collection[str], token: bytes, expire: int
    ) -> dict[str, tuple[Any, bytes]]:
        return _await(self._store.take, keys, token, expire)

    def unblock(self, keys: Collection[str], token: bytes) -> set[str]:
        return _await(self._store.unblock, keys, token)


def _await(function: Callable[..., T], *arguments: Any) -> T:
    work = partial(function, *arguments)
    loop = asyncio.get_running_loop()
    result: T = await_only(loop.run_in_executor(_threads(os.getpid()), work))
    return result


@lru_cache(maxsize=1)
def _threads(process: int) -> ThreadPoolExecutor:
    # A forked process has none of the threads of its parent.
    return ThreadPoolExecutor(_MOST_THREADS, "sqla_shard-cache")


def awaited(session: ShardSession, function: Callable[[], T]) -> T:
    """Call a function; with an asyncio session, in a thread."""
    if session.places.engines.asynchronous:
        return _await(function)
    return function()


def to_its_end(
    session: ShardSession, work: Callable[[], object]
) -> asyncio.CancelledError | None:
    """Call a function to its end, even if the task is cancelled meanwhile.

    :param work: the function; it may use the session, which nothing else uses.
    :returns: the cancellation, for the caller to raise later; None if the
        task was not cancelled.
    """
    if session.places.engines.asynchronous:
        cancelled: asyncio.CancelledError | None = await_only(_to_its_end(work))
        return cancelled
    work()
    return None


async def _to_its_end(work: Callable[[], object]) -> asyncio.CancelledError | None:
    cancelled = None
    task = asyncio.ensure_future(greenlet_spawn(work))
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    # The event loop cancels all tasks when it ends.
    if not task.cancelled():
        task.result()
    return cancelled


def store_of(store: Store, session: ShardSession) -> Store:
    """Return the store; with an asyncio session its calls are awaited."""
    return _Awaited(store) if session.places.engines.asynchronous else store


def sleep_of(session: ShardSession) -> Callable[[float], Any]:
    """Return a function that waits for a number of seconds, in a session."""
    if session.places.engines.asynchronous:
        return _sleep
    return threading.Event().wait


def _sleep(seconds: float) -> None:
    await_only(asyncio.sleep(seconds))


@dataclass(slots=True)
class MemoryItem:
    """A value, a lease, or a tombstone with the end of each token.

    :ivar number: unique number of the item in the store.
    """

    number: int
    end: float
    value: bytes | None = None
    tokens: dict[bytes, float] = field(default_factory=dict)


class MemoryStore:
    """A store in memory; see :class:`.Store`.

    Safe to use from several threads.

    :param most: maximum number of items; the oldest values are evicted.
    :param largest: maximum size of a value in bytes.
    :param clock: returns the time in seconds; for tests.
    :raises sqla_shard.exc.OptionError: if an argument is not valid.
    """

    def __init__(
        self,
        *,
        most: int = 100_000,
        largest: int = 1_000_000,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        check_size("most", most)
        #: Tombstones are never evicted.
        self.longest = LONGEST
        self._most = most
        self._largest = largest
        self._clock = clock
        self._items: dict[str, MemoryItem] = {}
        self._numbers = count(1)
        self._lock = threading.Lock()

    def close(self) -> None:
        """Remove all values and leases."""
        self.flush()

    def flush(self) -> None:
        """Remove all values and leases, but no tombstones."""
        with self._lock:
            values = [key for key, one in self._items.items() if not one.tokens]
            for key in values:
                self._drop(key)

    def fetch(self, keys: Sequence[str], lease: int) -> dict[str, Found]:
        """Return the state of each key; see :class:`.Store`."""
        check_lease(lease)
        with self._lock:
            return {key: self._fetch(key, lease) for key in check_keys(keys)}

    def _fetch(self, key: str, lease: int) -> Found:
        item = self._item(key)
        if item is None and not lease:
            return Found(KeyState.BLOCKED)
        if item is None:
            item = self._put(key, lease)
            return Found(KeyState.LEASED, b"", item.number)
        if item.tokens:
            return Found(KeyState.BLOCKED)
        if item.value is None:
            return Found(KeyState.BUSY)
        return Found(KeyState.VALUE, item.value)

    def fill(self, values: Mapping[str, tuple[int, bytes]], expire: int) -> set[str]:
        """Replace leases by values; see :class:`.Store`."""
        check_seconds("expire", expire)
        done: set[str] = set()
        with self._lock:
            for key in check_keys(values):
                lease, value = values[key]
                item = self._item(key)
                if item is None or item.number != lease:
                    continue
                if len(value) > self._largest:
                    self._drop(key)
                    continue
                self._keep(key, self._put(key, expire), value)
                done.add(key)
        return done

    def block(self, keys: Collection[str], token: bytes, expire: int) -> set[str]:
        """Replace items by tombstones; see :class:`.Store`."""
        check_tombstone(token, expire, self.longest)
        with self._lock:
            for key in check_keys(keys):
                item = self._item(key)
                tokens = {} if item is None else item.tokens
                now = self._clock()
                tokens = {one: end for one, end in tokens.items() if end > now}
                tokens[token] = now + expire
                item = self._put(key, expire)
                item.tokens = tokens
                item.end = max(tokens.values())
        return set()

    def take(
        self, keys: Collection[str], token: bytes, expire: int
    ) -> dict[str, tuple[int, bytes]]:
        """Replace values by tombstones; see :class:`.Store`."""
        check_tombstone(token, expire, self.longest)
        taken = {}
        with self._lock:
            for key in check_keys(keys):
                item = self._item(key)
                if item is not None and item.value is not None:
                    new = self._put(key, expire)
                    new.tokens = {token: new.end}
                    taken[key] = new.number, item.value
        return taken

    def unblock(self, keys: Collection[str], token: bytes) -> set[str]:
        """Remove items, but not other tombstones; see :class:`.Store`."""
        with self._lock:
            for key in check_keys(keys):
                item = self._item(key)
                if item is None:
                    continue
                item.tokens.pop(token, None)
                if item.tokens:
                    item.end = max(item.tokens.values())
                else:
                    self._drop(key)
        return set()

    # -- for subclasses with values elsewhere

    def _item(self, key: str) -> MemoryItem | None:
        """Return the item of a key, unless it has expired."""
        item = self._items.get(key)
        if item is not None and item.end <= self._clock():
            self._drop(key)
            return None
        return item

    def _keep(self, key: str, item: MemoryItem, value: bytes) -> None:
        """Store the value of a new item."""
        item.value = value

    def _drop(self, key: str) -> None:
        """Remove an item, if it exists."""
        self._items.pop(key, None)

    # -- inside -----------------------------------------------------------

    def _put(self, key: str, expire: float) -> MemoryItem:
        # Insert it again: items are in the order of their age.
        self._drop(key)
        if len(self._items) >= self._most:
            self._make_room()
        item = MemoryItem(next(self._numbers), self._clock() + expire)
        self._items[key] = item
        return item

    def _make_room(self) -> None:
        now = self._clock()
        ended = [key for key, one in self._items.items() if one.end <= now]
        for key in ended:
            self._drop(key)
        if len(self._items) < self._most:
            return
        # Never evict a tombstone: a value that replaces it may be stale.
        old = [key for key, item in self._items.items() if not item.tokens]
        for key in old[: self._most // _PART + 1]:
            self._drop(key)
