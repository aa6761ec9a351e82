"""A store in the memory of one process.

For tests, and for programs that are one process: nobody else hears of its
tombstones.  A forked process has a store of its own from then on.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
from itertools import count
from time import monotonic

from sqla_shard import exc
from sqla_shard.cache.store import check_keys
from sqla_shard.cache.store import check_lease
from sqla_shard.cache.store import check_seconds
from sqla_shard.cache.store import check_token
from sqla_shard.cache.store import Found
from sqla_shard.cache.store import LONGEST
from sqla_shard.cache.store import State

__all__ = ["Item", "MemoryStore"]

#: What part of the values makes way when there are too many.
_PART = 10


@dataclass(slots=True)
class Item:
    """A value, a lease, or a tombstone with the end of each token.

    :ivar number: no other item of the store has it.
    """

    number: int
    end: float
    value: bytes | None = None
    tokens: dict[bytes, float] = field(default_factory=dict)


class MemoryStore:
    """A store in memory; see :class:`~.store.Store`.

    Safe to use from several threads.

    :param most: how many items there may be; the oldest values make way.
    :param largest: bytes of the largest value.
    :param clock: seconds that pass, for tests that cannot wait.
    :raises sqla_shard.exc.CacheOptionError: if an argument makes no sense.
    """

    def __init__(
        self,
        *,
        most: int = 100_000,
        largest: int = 1_000_000,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        if most < 1:
            raise exc.CacheOptionError(
                "is no room for items", option="most", value=most
            )
        #: It forgets none before its time.
        self.longest = LONGEST
        self._most = most
        self._largest = largest
        self._clock = clock
        self._items: dict[str, Item] = {}
        self._numbers = count(1)
        self._lock = threading.Lock()

    def close(self) -> None:
        """Forget everything."""
        self.flush()

    def flush(self) -> None:
        """Forget all values and leases; tombstones stay."""
        with self._lock:
            values = [
                key for key, one in self._items.items() if not one.tokens
            ]
            for key in values:
                self._drop(key)

    def fetch(self, keys: Sequence[str], lease: int) -> dict[str, Found]:
        """Return what is under each key; see :class:`~.store.Store`."""
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

    def fill(
        self, values: Mapping[str, tuple[int, bytes]], expire: int
    ) -> set[str]:
        """Put values in the place of leases; see :class:`~.store.Store`."""
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

    def block(
        self, keys: Collection[str], token: bytes, expire: int
    ) -> set[str]:
        """Put tombstones there; see :class:`~.store.Store`."""
        check_seconds("expire", expire)
        check_token(token)
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
        """Put tombstones there, return values; see :class:`~.store.Store`."""
        check_seconds("expire", expire)
        check_token(token)
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
        """Remove what is not of others; see :class:`~.store.Store`."""
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

    # -- for those that keep the values elsewhere -------------------------

    def _item(self, key: str) -> Item | None:
        """Return what is under a key, and has not ended."""
        item = self._items.get(key)
        if item is not None and item.end <= self._clock():
            self._drop(key)
            return None
        return item

    def _keep(self, key: str, item: Item, value: bytes) -> None:
        """Make an item, which is new, a value."""
        item.value = value

    def _drop(self, key: str) -> None:
        """Forget an item, if there is one."""
        self._items.pop(key, None)

    # -- inside -----------------------------------------------------------

    def _put(self, key: str, expire: float) -> Item:
        # A new one has its place at the end.
        self._drop(key)
        if len(self._items) >= self._most:
            self._make_room()
        item = Item(next(self._numbers), self._clock() + expire)
        self._items[key] = item
        return item

    def _make_room(self) -> None:
        now = self._clock()
        ended = [key for key, one in self._items.items() if one.end <= now]
        for key in ended:
            self._drop(key)
        if len(self._items) < self._most:
            return
        # Never a tombstone: what would be put in its place may be old.
        old = [key for key, item in self._items.items() if not item.tokens]
        for key in old[: self._most // _PART + 1]:
            self._drop(key)
