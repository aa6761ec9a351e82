"""Reading through a store, and keeping it from lying.

Reading: what is there is used.  What is missing is leased; whoever has the
lease reads the database *after that* and puts the value there, unless
anything else was put there meanwhile.  Who gets none reads the database and
puts nothing there: at once where there is a tombstone, and after a short
time of waiting where somebody else has the lease.

Writing: before COMMIT a tombstone takes the place of each key, which ends all
leases and gives none; after COMMIT, or after ROLLBACK, it is removed.  A
process that dies in between leaves the tombstone, which ends by itself: by
then the COMMIT was decided.  So a value that is there was read after the last
COMMIT that its tombstone has announced.

What a value says of itself is for the :class:`Source`: one that it cannot
read, or that another version of a program has put there, is removed, and the
database asked.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from secrets import token_bytes
from time import monotonic
from time import perf_counter
from typing import Any
from typing import Protocol
from typing import TypeVar

from sqla_shard.cache.store import Found
from sqla_shard.cache.store import State
from sqla_shard.cache.store import Store
from sqla_shard.cache.store import TOKEN_BYTES
from sqla_shard.cache.tally import Tally

__all__ = ["Source", "Times", "Tombstones", "give_back", "read_through"]

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Times:
    """How long things last, in seconds.

    :ivar expire: a value.
    :ivar expire_nothing: that there is none.
    :ivar lease: a lease that is not used.
    :ivar tombstone: a tombstone; longer than any COMMIT takes.
    :ivar wait: waiting for who has a lease, at most.
    """

    expire: int = 3600
    expire_nothing: int = 30
    lease: int = 5
    tombstone: int = 60
    wait: float = 0.05


class Source(Protocol[T]):
    """Where values come from, and how they are written down."""

    def load(
        self, keys: Sequence[str], leased: Collection[str]
    ) -> Mapping[str, T]:
        """Read keys from the database, as it is now and no earlier.

        :param leased: those that are to be kept.
        :returns: something for each key.
        """
        ...

    def encode(self, key: str, loaded: T) -> tuple[bytes, int] | None:
        """Return the value, not empty, and its time; None not to keep it."""
        ...

    def decode(self, values: Mapping[str, bytes]) -> dict[str, T]:
        """Return what values say, but for those that cannot be read.

        That is asked at once after the values were found.
        """
        ...


def read_through(
    store: Store,
    keys: Sequence[str],
    source: Source[T],
    times: Times,
    *,
    leases: bool = True,
    still: Callable[[], bool] | None = None,
    tally: Tally | None = None,
    sleep: Callable[[float], Any] | None = None,
) -> dict[str, T]:
    """Return what keys have, from the store or from the database.

    :param leases: whether what is read may be kept; else nothing is leased.
    :param still: whether what the source reads next is as new as can be;
        asked before something is leased after it has read.  A transaction
        may go on seeing what it has seen.
    :param tally: counts what was found.
    :param sleep: waits for some seconds.
    :returns: something for each key.
    """
    tally = Tally("") if tally is None else tally
    lease = times.lease if leases else 0
    reading = _Reading(
        store=store,
        source=source,
        times=times,
        tally=tally,
        lease=lease,
        sleep=sleep or threading.Event().wait,
        still=still or _always,
    )
    begun = perf_counter()
    found = store.fetch(keys, lease)
    read = reading.decoded(found)
    looked = perf_counter()
    tally.looked(found, len(read), looked - begun, leases=leases)
    if len(read) == len(found):
        return read
    try:
        reading.missing(found, read)
    finally:
        rest = perf_counter() - looked
        tally.add(seconds=max(rest - reading.loading, 0.0))
    return read


def _always() -> bool:
    return True


@dataclass(kw_only=True)
class _Reading:
    """One call of :func:`read_through`.

    :ivar lease: seconds of leases; 0 for none.
    :ivar loading: seconds that the database took.
    """

    store: Store
    source: Any
    times: Times
    tally: Tally
    lease: int
    sleep: Callable[[float], Any]
    still: Callable[[], bool]
    loading: float = 0.0

    def missing(
        self, found: Mapping[str, Found], read: dict[str, Any]
    ) -> None:
        """Add what was not there, or could not be read."""
        busy = [key for key, one in found.items() if one.state is State.BUSY]
        absent = [
            key
            for key, one in found.items()
            if key not in read and one.state is not State.BUSY
        ]
        if absent:
            read.update(self.load(absent, found))
        if busy:
            read.update(self.wait(busy))

    def _load(
        self, keys: Sequence[str], leased: Collection[str]
    ) -> Mapping[str, Any]:
        begun = perf_counter()
        try:
            loaded: Mapping[str, Any] = self.source.load(keys, leased)
            return loaded
        finally:
            self.loading += perf_counter() - begun

    def decoded(self, found: Mapping[str, Found]) -> dict[str, Any]:
        """Return what was there and can be read; remove the rest."""
        values = {
            key: one.value
            for key, one in found.items()
            if one.state is State.VALUE
        }
        read = self._decoded(values)
        if len(read) < len(values):
            strange = values.keys() - read.keys()
            # It would be there until it expires.
            give_back(self.store, strange)
            self.tally.add(unreadable=len(strange))
        return read

    def _decoded(self, values: Mapping[str, bytes]) -> dict[str, Any]:
        try:
            read: dict[str, Any] = self.source.decode(values)
        except Exception:
            # No value breaks a read: that would last until it expires.
            read = {}
            for key, value in values.items():
                try:
                    read.update(self.source.decode({key: value}))
                except Exception as error:
                    self.tally.log(error)
        return read

    def load(
        self, keys: Sequence[str], found: Mapping[str, Found]
    ) -> Mapping[str, Any]:
        """Read keys from the database, and keep those that we may."""
        leases = {
            key: found[key].lease
            for key in keys
            if found[key].lease is not None
        }
        try:
            loaded = self._load(keys, leases)
            kept: dict[int, dict[str, tuple[Any, bytes]]] = {}
            unkept = []
            for key, lease in leases.items():
                encoded = self.source.encode(key, loaded[key])
                if encoded is None:
                    unkept.append(key)
                else:
                    value, expire = encoded
                    kept.setdefault(expire, {})[key] = lease, value
        except BaseException:
            # Others would wait for what does not come.
            give_back(self.store, leases)
            raise
        give_back(self.store, unkept)
        for expire, values in kept.items():
            self.tally.filled(values, self.store.fill(values, expire))
        return loaded

    def wait(self, keys: Sequence[str]) -> dict[str, Any]:
        """Wait for others to fill, and load what they do not in time."""
        end = monotonic() + self.times.wait
        read: dict[str, Any] = {}
        left = list(keys)
        step = 0.001
        while left and monotonic() < end:
            self.sleep(step)
            step = min(step * 2, 0.01)
            # What is read with a lease has to be newer than that.
            lease = self.lease if self.still() else 0
            found = self.store.fetch(left, lease)
            read.update(self.decoded(found))
            left = [key for key in left if found[key].state is State.BUSY]
            mine = [
                key
                for key, one in found.items()
                if key not in read and one.state is not State.BUSY
            ]
            if mine:
                read.update(self.load(mine, found))
        self.tally.waited(len(keys), len(left))
        if left:
            read.update(self._load(left, ()))
        return read


def give_back(store: Store, keys: Collection[str]) -> None:
    """Remove values that nobody can read, and leases that nobody uses."""
    if keys:
        # A token of nobody: tombstones stay.
        store.unblock(keys, token_bytes(TOKEN_BYTES))


class Tombstones:
    """The keys that one transaction writes, from before its COMMIT on."""

    def __init__(self, store: Store, times: Times) -> None:
        self._store = store
        self._times = times
        self._token = token_bytes(TOKEN_BYTES)
        self._keys: set[str] = set()
        self._edited: dict[str, tuple[Any, bytes]] = {}

    def put(
        self,
        keys: Collection[str],
        edits: Mapping[str, Callable[[bytes], bytes | None]] | None = None,
    ) -> set[str]:
        """Announce a COMMIT.

        :param edits: make what a key is to have after it of the value that
            it has; None where they cannot.
        :returns: the keys whose values may be served after it: write them
            down in the transaction.
        """
        self._keys.update(keys)
        expire = self._times.tombstone
        taken: Mapping[str, tuple[Any, bytes]] = {}
        if edits:
            taken = self._store.take(edits.keys(), self._token, expire)
            for key, (lease, value) in taken.items():
                new = edits[key](value)
                if new is not None:
                    self._edited[key] = lease, new
        left = [key for key in keys if key not in taken]
        return self._store.block(left, self._token, expire) if left else set()

    @property
    def edited(self) -> Collection[str]:
        """The keys whose values after COMMIT are known."""
        return self._edited.keys()

    def renew(self) -> None:
        """Put them again, where their time may be over before the COMMIT."""
        if self._keys:
            self._store.block(self._keys, self._token, self._times.tombstone)

    def replace(self) -> None:
        """Put what was edited there, after COMMIT, and remove the others."""
        edited, self._edited = self._edited, {}
        if edited:
            # But for those that somebody else has announced meanwhile.
            self._keys -= self._store.fill(edited, self._times.expire)
        self.remove()

    def remove(self) -> None:
        """Let values be put there again, after the end of the transaction.

        Not after a COMMIT of which nobody knows what became of it: it may
        be done yet.  The tombstones end by themselves.
        """
        keys, self._keys = self._keys, set()
        if keys:
            self._store.unblock(keys, self._token)
