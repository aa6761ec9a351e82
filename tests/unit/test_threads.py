"""Objects that all threads of a process share, without the GIL as well.

Under the GIL no other thread runs inside of ``set(found.values())`` or
``count += 1``; a Python without it gives no such promise.  The tests let the
other thread in at the worst time, if they can.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType
from typing import Any

import pytest

from sqla_shard import Cluster
from sqla_shard.cache import stores
from sqla_shard.cache.stores import Breaker
from sqla_shard.cluster.cluster import all_caches
from sqla_shard.exc import DictionaryNotFoundError
from sqla_shard.migrate.shadow import ShadowCounts
from sqla_shard.types.compression import Dictionaries
from sqla_shard.util.logs import careful_log
from sqla_shard.util.weak_keys import WeakKeys
from tests.servers.following import TIMEOUT, topology

THREADS = 8


def together(work: Callable[[int], Any]) -> list[Any]:
    """Call a function in several threads, which begin at the same time."""
    barrier = threading.Barrier(THREADS, timeout=TIMEOUT)

    def begin(number: int) -> Any:
        barrier.wait()
        return work(number)

    with ThreadPoolExecutor(THREADS) as executor:
        return list(executor.map(begin, range(THREADS)))


def between_lines(call: Callable[[], Any], meanwhile: Callable[[], None]) -> Any:
    """Call a function, and another one before each line that it runs.

    A thread can be interrupted there by another one.
    """

    def trace(frame: Any, event: str, argument: Any) -> Any:
        sys.settrace(None)
        meanwhile()
        sys.settrace(trace)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        return call()
    finally:
        sys.settrace(before)


def new_cluster() -> Cluster:
    return Cluster.from_topology(topology(1))


class Meeting:
    """Is in use; when it is hashed, another connection is checked out."""

    def __init__(self, busy: WeakKeys[Any]) -> None:
        self._busy = busy
        self._others: list[ModuleType] = []

    def __hash__(self) -> int:
        self._others.append(ModuleType("record"))
        self._busy.put(self._others[-1], object())
        return 1


def test_a_connection_is_returned_while_others_are_checked_out() -> None:
    with new_cluster() as cluster:
        engines = cluster._engines
        place = cluster.places.place(cluster.topology.keyspace("objects"), 7)
        engines.retired.add(place.engine, ["server2"], 0)
        record, other = ModuleType("record"), ModuleType("record")
        engines.in_use.put(record, Meeting(engines.in_use))
        engines.checked_in(other)
        assert not engines.retired.engines
        engines.in_use.discard(weakref.ref(record))


def test_caches_are_listed_while_clusters_are_opened() -> None:
    opened: list[Cluster] = []

    def open_one() -> None:
        if len(opened) < 50:
            opened.append(new_cluster())
            opened[-1].configure_cache({}, classes={}, prefix="test")

    open_one()
    try:
        found = between_lines(all_caches, open_one)
        assert opened[0].cache in found
        assert len(opened) > 1
        assert {one.cache for one in opened} <= set(all_caches())
    finally:
        for cluster in opened:
            cluster.close()


class Source:
    """Has no dictionary."""

    def load_dictionary(self, dictionary_id: int) -> tuple[None, list[str]]:
        return None, []


def test_dictionaries_are_searched_while_clusters_are_opened() -> None:
    dictionaries = Dictionaries()
    opened: list[Source] = []

    def open_one() -> None:
        opened.append(Source())
        dictionaries.add_source(opened[-1])

    def search() -> None:
        with pytest.raises(DictionaryNotFoundError):
            dictionaries.find(7)

    open_one()
    between_lines(search, open_one)
    assert len(opened) > 1


def test_one_caller_at_a_time_tries_a_node_that_has_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = careful_log("test_threads")
    breaker = Breaker(log, "memcached", "127.0.0.1:1", 30.0)
    together(lambda number: breaker.record_failure(OSError("refused")))
    assert breaker.failures == THREADS
    assert not breaker.may_try()
    # All threads find that the time is over before one of them goes on, if
    # they are let.
    breaker._skipped_until = 1.0
    meeting = threading.Barrier(THREADS)

    class Now(float):
        def __lt__(self, other: float) -> bool:
            found = super().__lt__(other)
            with contextlib.suppress(threading.BrokenBarrierError):
                meeting.wait(1.0)
            return found

    monkeypatch.setattr(stores, "monotonic", lambda: Now(2.0))
    assert sum(together(lambda number: breaker.may_try())) == 1


def test_shadow_mode_counts_every_transaction() -> None:
    recorder = ShadowCounts(10)
    each = 5_000

    def work(number: int) -> None:
        for _ in range(each):
            recorder.begun()
            recorder.planned(1.0)
            recorder.transaction("read", 2.0)

    together(work)
    count = THREADS * each
    assert (recorder.seen, recorder.ended) == (count, count)
    assert (recorder.planning, recorder.busy) == (count, 2 * count)
