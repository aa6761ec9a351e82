"""A store in the memory of one process.

For tests, and for programs of one process: other processes do not see its
tombstones.  A forked process has its own copy.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from time import monotonic

from sqla_shard.cache.stores import (
    check_lease,
    check_seconds,
    check_size,
    check_tombstone,
    Found,
    LONGEST,
    State,
)
from sqla_shard.outbox.tables import check_keys

#: When there are too many items, one in this many values is evicted.
_PART = 10


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
            return Found(State.BLOCKED)
        if item is None:
            item = self._put(key, lease)
            return Found(State.LEASED, b"", item.number)
        if item.tokens:
            return Found(State.BLOCKED)
        if item.value is None:
            return Found(State.BUSY)
        return Found(State.VALUE, item.value)

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
