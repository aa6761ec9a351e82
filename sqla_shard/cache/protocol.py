"""The cache protocol: reading through a store, and invalidation.

Reading: a missing key is leased; the reader with the lease reads the database
*after that* and fills the value, unless the key was changed meanwhile.  A
reader without a lease reads the database and fills nothing: immediately if
there is a tombstone, after a short wait if another reader has the lease.

Writing: before COMMIT the item of each key is replaced by a tombstone, which
ends its lease and blocks new ones; after COMMIT or ROLLBACK it is removed.
The tombstone of a process that dies in between expires, when the COMMIT has
either succeeded or failed.  So a cached value was read after the last COMMIT
that was preceded by a tombstone.

A :class:`Source` encodes and decodes values.  If it cannot decode a value,
such as that of another version of a program, the value is removed and the
database is read.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields
from secrets import token_bytes
from time import monotonic, perf_counter
from typing import Any, Protocol, TypeVar

from sqla_shard.cache.stores import Found, KeyState, Store
from sqla_shard.exc.base import summary
from sqla_shard.outbox.tables import TOKEN_BYTES
from sqla_shard.util.logs import careful_log

# -- Statistics: each class has its own counters; those of tombstones belong to
# the region, as the tombstones of a transaction are put together.


_log = careful_log(__name__)


@dataclass(frozen=True, kw_only=True)
class Counts:
    """Statistics of keys, since the process was started.

    Each key that is read is a hit or a miss.

    :ivar hits: keys that were read from the cache.
    :ivar misses: keys that were read from the database, for any reason.
    :ivar fills: values that were stored after a read.
    :ivar lease_losses: values that were not stored, because the row was
        written or the node flushed while the database was read, or because
        the value was too large.
    :ivar blocked: misses because of a tombstone, or because the node was
        started recently.
    :ivar unfillable: misses in transactions that had read on the server
        before; their values may be old and were not stored.
    :ivar errors: misses whose node did not respond.
    :ivar unreadable: values that were removed: they had other columns, another
        generation of the server, recorded an absence that had ended, or were
        damaged.  Hits whose rows could not be loaded are included.
    :ivar waits: misses for which another reader had the lease.
    :ivar gave_up: waits that ended before the value was filled.
    :ivar bytes_read: bytes of values that were read.
    :ivar bytes_written: bytes of values that were stored.
    :ivar seconds: time spent in the cache and waiting for it, without the
        time of the database.
    """

    hits: int = 0
    misses: int = 0
    fills: int = 0
    lease_losses: int = 0
    blocked: int = 0
    unfillable: int = 0
    errors: int = 0
    unreadable: int = 0
    waits: int = 0
    gave_up: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    seconds: float = 0.0

    @property
    def hit_ratio(self) -> float | None:
        """The ratio of hits to keys; None if no key was read."""
        total = self.hits + self.misses
        return self.hits / total if total else None


@dataclass(frozen=True, kw_only=True)
class ClassStats(Counts):
    """Statistics of the keys of a class; see :class:`Counts`.

    :ivar name: name of the class.
    :ivar is_enabled: whether reads use the cache, in this process.
    """

    name: str
    is_enabled: bool


@dataclass(frozen=True, kw_only=True)
class RegionStats(Counts):
    """Statistics of the keys of a region; see :class:`Counts`.

    :ivar name: name of the region.
    :ivar invalidations: tombstones that were put.
    :ivar outbox: tombstones that could not be put; if the transaction has
        committed, their keys are in the outbox.
    :ivar classes: the statistics of its classes; the region includes them.
    """

    name: str
    invalidations: int = 0
    outbox: int = 0
    classes: tuple[ClassStats, ...] = ()


_ALL = [one.name for one in fields(Counts)]
_OF_REGIONS = ["invalidations", "outbox"]


class CacheCounters:
    """Counters; safe to use from several threads.

    :param name: name of the class or the region.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._lock = threading.Lock()
        self._has_failed = False
        self._counts: dict[str, Any] = dict.fromkeys([*_ALL, *_OF_REGIONS], 0)

    def add(self, **counts: float) -> None:
        """Add to counters, by the names of :class:`RegionStats`."""
        self._add(counts)
        block = _block.get()
        if block is not None:
            block._add(counts)

    def _add(self, counts: Mapping[str, float]) -> None:
        with self._lock:
            for name, count in counts.items():
                self._counts[name] += count

    def count_fetch(
        self, found: Mapping[str, Found], hits: int, seconds: float, *, leases: bool
    ) -> None:
        """Count the results of the first fetch.

        :param hits: the number of values that could be decoded.
        :param leases: whether missing keys were leased.
        """
        counts = {
            "hits": hits,
            "bytes_read": sum([len(one.value) for one in found.values()]),
            "seconds": seconds,
        }
        if hits != len(found):
            counts["misses"] = len(found) - hits
            states = [one.state for one in found.values()]
            # Without leases a store does not return the reason.
            why = "blocked" if leases else "unfillable"
            counts[why] = states.count(KeyState.BLOCKED)
            counts["errors"] = states.count(KeyState.LOST)
        self.add(**counts)

    def count_fill(
        self, values: Mapping[str, tuple[Any, bytes]], done: Collection[str]
    ) -> None:
        """Count stored values and lost leases."""
        self.add(
            fills=len(done),
            lease_losses=len(values) - len(done),
            bytes_written=sum(len(values[key][1]) for key in done),
        )

    def log(self, error: Exception) -> None:
        """Log the error of a cached value, if it is the first one."""
        with self._lock:
            is_first, self._has_failed = not self._has_failed, True
        if is_first:
            _log.warning(
                "a cached value of %s cannot be loaded, and is removed; "
                "further ones are not logged: %s",
                self.name,
                summary(error),
                extra={"action": "cache", "class": self.name},
            )

    def count_wait(self, keys: int, left: int) -> None:
        """Count keys for which another reader had the lease.

        :param left: the number of keys that were not filled in time.
        """
        # count_fetch() has counted them as misses.
        self.add(waits=keys, gave_up=left)

    def counts(self) -> dict[str, Any]:
        """Return the current counts, by name."""
        with self._lock:
            return dict(self._counts)


#: The counters of the innermost :func:`counting`.
_block: ContextVar[CacheCounters | None] = ContextVar("counting", default=None)


@contextmanager
def counting() -> Iterator[Callable[[], Counts]]:
    """Count what a block reads, in its thread or asyncio task only.

    ::

        with counting() as counts:
            session.get(Pin, pin_id)
        print(counts().hits)

    All regions of all clusters are included.  Of blocks inside one another,
    the inner one counts.

    :returns: a function that returns the counts so far.
    """
    tally = CacheCounters("")
    # A token would be lost by an interrupt right after set().
    before = _block.get()

    def counts() -> Counts:
        numbers = tally.counts()
        return Counts(**{name: numbers[name] for name in _ALL})

    try:
        _block.set(tally)
        yield counts
    finally:
        _block.set(before)


def stats_of(
    region: CacheCounters, classes: Iterable[tuple[CacheCounters, bool]]
) -> RegionStats:
    """Return the statistics of a region, with those of its classes.

    :param region: the counters of the region.
    :param classes: the counters of its classes, and whether each class is
        enabled.
    """
    sums = region.counts()
    of_classes = []
    for tally, is_enabled in classes:
        counts = tally.counts()
        for name, count in counts.items():
            sums[name] += count
        totals = {name: counts[name] for name in _ALL}
        of_classes.append(ClassStats(name=tally.name, is_enabled=is_enabled, **totals))
    return RegionStats(name=region.name, classes=tuple(of_classes), **sums)


T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Times:
    """Lifetimes and timeouts of a region, in seconds.

    :ivar expire: lifetime of a value.
    :ivar expire_nothing: lifetime of a value for an id that was not found.
    :ivar lease: lifetime of an unused lease.
    :ivar tombstone: lifetime of a tombstone; longer than any COMMIT takes.
    :ivar wait: maximum time to wait for the value of another reader that has
        the lease.
    """

    expire: int = 3600
    expire_nothing: int = 30
    lease: int = 5
    tombstone: int = 60
    wait: float = 0.05


class Source(Protocol[T]):
    """Loads, encodes and decodes values."""

    def load(self, keys: Sequence[str], leased: Collection[str]) -> Mapping[str, T]:
        """Read keys from the database.

        :param leased: the keys with leases, whose values are stored; they
            must be read in a snapshot that is newer than the lease.
        :returns: a value for each key.
        """
        ...

    def encode(self, key: str, loaded: T) -> tuple[bytes, int] | None:
        """Return the non-empty value to store, and its lifetime in seconds.

        :returns: None to store nothing.
        """
        ...

    def decode(self, values: Mapping[str, bytes]) -> dict[str, T]:
        """Return decoded values, without those that cannot be decoded.

        Called immediately after the values were fetched.
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
    tally: CacheCounters | None = None,
    sleep: Callable[[float], Any] | None = None,
) -> dict[str, T]:
    """Return the values of keys, from the store or from the database.

    :param leases: whether values that are read may be stored.
    :param still: returns whether the source still reads the latest commits;
        called before a lease is taken after the source has read: its
        transaction may have a snapshot by then.
    :param tally: the counters.
    :param sleep: waits for the given number of seconds.
    :returns: a value for each key.
    """
    tally = CacheCounters("") if tally is None else tally
    lease = times.lease if leases else 0
    reading = _CacheReading(
        store=store,
        source=source,
        times=times,
        tally=tally,
        lease=lease,
        sleep=sleep or threading.Event().wait,
        still=still or (lambda: True),
    )
    started = perf_counter()
    found = store.fetch(keys, lease)
    read = reading.decode(found)
    fetched = perf_counter()
    tally.count_fetch(found, len(read), fetched - started, leases=leases)
    if len(read) == len(found):
        return read
    try:
        reading.read_missing(found, read)
    finally:
        rest = perf_counter() - fetched
        tally.add(seconds=max(rest - reading.loading, 0.0))
    return read


@dataclass(kw_only=True)
class _CacheReading:
    """One call of :func:`read_through`.

    :ivar lease: seconds after which a lease expires; 0: take no leases.
    :ivar loading: seconds spent in the database.
    """

    store: Store
    source: Any
    times: Times
    tally: CacheCounters
    lease: int
    sleep: Callable[[float], Any]
    still: Callable[[], bool]
    loading: float = 0.0

    def read_missing(self, found: Mapping[str, Found], read: dict[str, Any]) -> None:
        """Add the values of keys that were missing or could not be decoded."""
        busy = [key for key, one in found.items() if one.state is KeyState.BUSY]
        absent = [
            key
            for key, one in found.items()
            if key not in read and one.state is not KeyState.BUSY
        ]
        if absent:
            read.update(self.load(absent, found))
        if busy:
            read.update(self.wait(busy))

    def _load(self, keys: Sequence[str], leased: Collection[str]) -> Mapping[str, Any]:
        started = perf_counter()
        try:
            loaded: Mapping[str, Any] = self.source.load(keys, leased)
            return loaded
        finally:
            self.loading += perf_counter() - started

    def decode(self, found: Mapping[str, Found]) -> dict[str, Any]:
        """Return the decoded values; remove those that cannot be decoded."""
        values = {
            key: one.value for key, one in found.items() if one.state is KeyState.VALUE
        }
        read = self._decode(values)
        if len(read) < len(values):
            unreadable = values.keys() - read.keys()
            # Remove them now; otherwise they remain until they expire.
            discard(self.store, unreadable)
            self.tally.add(unreadable=len(unreadable))
        return read

    def _decode(self, values: Mapping[str, bytes]) -> dict[str, Any]:
        try:
            read: dict[str, Any] = self.source.decode(values)
        except Exception:
            # A value must not break reads until it expires.
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
        """Read keys from the database, and fill the keys with a lease."""
        leases = {key: found[key].lease for key in keys if found[key].lease is not None}
        try:
            loaded = self._load(keys, leases)
            values: dict[int, dict[str, tuple[Any, bytes]]] = {}
            unused = []
            for key, lease in leases.items():
                encoded = self.source.encode(key, loaded[key])
                if encoded is None:
                    unused.append(key)
                else:
                    value, expire = encoded
                    values.setdefault(expire, {})[key] = lease, value
        except BaseException:
            # Release the leases; otherwise other readers would wait for values
            # that are never filled.
            discard(self.store, leases)
            raise
        discard(self.store, unused)
        for expire, batch in values.items():
            self.tally.count_fill(batch, self.store.fill(batch, expire))
        return loaded

    def wait(self, keys: Sequence[str]) -> dict[str, Any]:
        """Wait until other readers fill keys; load those not filled in time.

        :returns: a value for each key.
        """
        end = monotonic() + self.times.wait
        read: dict[str, Any] = {}
        waiting = list(keys)
        step = 0.001
        while waiting and monotonic() < end:
            self.sleep(step)
            step = min(step * 2, 0.01)
            # A value must be read after its lease was taken.
            lease = self.lease if self.still() else 0
            found = self.store.fetch(waiting, lease)
            read.update(self.decode(found))
            waiting = [key for key in waiting if found[key].state is KeyState.BUSY]
            mine = [
                key
                for key, one in found.items()
                if key not in read and one.state is not KeyState.BUSY
            ]
            if mine:
                read.update(self.load(mine, found))
        self.tally.count_wait(len(keys), len(waiting))
        if waiting:
            read.update(self._load(waiting, ()))
        return read


def discard(store: Store, keys: Collection[str]) -> None:
    """Remove values that cannot be decoded, and unused leases."""
    if keys:
        # Use a new token, so that tombstones of other transactions stay.
        store.unblock(keys, token_bytes(TOKEN_BYTES))


class Tombstones:
    """The tombstones of one transaction."""

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
        """Put tombstones before a COMMIT.

        :param edits: functions that return the value of a key after the
            COMMIT, computed from the cached one; None if it is unknown.
        :returns: the keys for which this failed; their values may be stale
            after the COMMIT: write them to the outbox in the transaction.
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
        untaken = [key for key in keys if key not in taken]
        return self._store.block(untaken, self._token, expire) if untaken else set()

    @property
    def edited_keys(self) -> Collection[str]:
        """The keys whose values after the COMMIT are known."""
        return self._edited.keys()

    def renew(self) -> None:
        """Put the tombstones again, with their full lifetime."""
        if self._keys:
            self._store.block(self._keys, self._token, self._times.tombstone)

    def replace(self) -> None:
        """Fill edited values after the COMMIT; remove the other tombstones."""
        edited, self._edited = self._edited, {}
        if edited:
            # fill() skips keys on which another transaction has put a
            # tombstone meanwhile.
            self._keys -= self._store.fill(edited, self._times.expire)
        self.remove()

    def remove(self) -> None:
        """Remove the tombstones, after the end of the transaction.

        Do not call it after a COMMIT whose outcome is unknown, which may still
        succeed; its tombstones expire.
        """
        keys, self._keys = self._keys, set()
        if keys:
            self._store.unblock(keys, self._token)
