"""Maps have each shard once, at its place and with its level."""

from __future__ import annotations

import random
import re
import threading
from threading import Event
from time import monotonic

import pytest
from sqlalchemy.exc import OperationalError

from sqla_shard import Topology
from sqla_shard.monitor.cached_reading import CachedReading
from sqla_shard.monitor.dashboard.maps import by_value, bytes_text, Colours, map_of


def topology_of(shards: int, owners: list[int]) -> Topology:
    """Return a topology with the server of each shard."""
    return Topology.from_mapping(
        {
            "epoch": 1,
            "keyspaces": {
                "objects": {
                    "kind": "objects",
                    "shards": shards,
                    "database": "db{shard:05d}",
                    "servers": [
                        {
                            "name": f"server{number}",
                            "primary": f"mysql://app@host{number}",
                            "shards": [
                                [shard_id, shard_id]
                                for shard_id in range(shards)
                                if owners[shard_id] == number
                            ],
                        }
                        for number in sorted(set(owners))
                    ],
                }
            },
        }
    )


@pytest.mark.parametrize("shards", [1, 7, 16, 17, 300, 2100])
@pytest.mark.parametrize("servers", [1, 3])
def test_every_shard_is_drawn_once(rng, shards, servers):
    # Long ranges on some servers, and many short ones on others.
    owners = [
        (shard_id // max(1, shards // 2) + rng.randrange(2)) % servers
        for shard_id in range(shards)
    ]
    topology = topology_of(shards, owners)
    levels = [f"l{rng.randrange(4)}" for _ in range(shards)]
    colours = Colours(level_of=levels.__getitem__, legend=())
    keyspace = topology.keyspace("objects")
    drawn = map_of(topology, keyspace, colours)
    found: dict[int, str] = {}
    for server in drawn.servers:
        for block in server.blocks:
            ids = [shard_id for part in block.shards for shard_id in part]
            assert block.rows == -(-len(ids) // drawn.columns)
            for level, path in block.paths.items():
                runs = re.findall(r"M(\d+) (\d+)h(\d+)", path)
                assert "".join(f"M{x} {y}h{n}" for x, y, n in runs) == path
                for x, y, length in runs:
                    assert int(x) + int(length) <= drawn.columns
                    for at in range(int(x), int(x) + int(length)):
                        shard_id = ids[int(y) * drawn.columns + at]
                        assert shard_id not in found
                        found[shard_id] = level
                        owner = keyspace.server_for(shard_id).name
                        assert owner == server.name
    assert [found[shard_id] for shard_id in range(shards)] == levels


def test_levels_grow_with_the_value(rng: random.Random):
    values = {number: rng.random() * 1000 for number in range(500)}
    values[500] = 0.0
    levels = by_value(values, bytes_text).level_of
    ordered = sorted(values, key=values.__getitem__)
    assert [levels(one) for one in ordered] == sorted(map(levels, ordered))
    assert levels(500) == "l0"
    assert levels(ordered[-1]) == "l5"
    assert levels(501) == "unknown"


def test_sizes_as_text():
    assert [bytes_text(2**power) for power in (0, 9, 10, 20, 29, 30, 40, 50)] == [
        *("1 B", "512 B", "1 KiB", "1 MiB", "512 MiB", "1 GiB"),
        *("1.00 TiB", "1,024.00 TiB"),
    ]
    assert bytes_text(1023) == "0.999 KiB"


class TestCached:
    def test_one_thread_reads_and_pages_do_not_wait(self):
        go, calls = Event(), []

        def read() -> int:
            calls.append(1)
            assert go.wait(60)
            return len(calls)

        cached = CachedReading("test", read, fresh=600.0)
        for _ in range(5):
            found = cached.get(0.01)
            assert found.value is None
            assert found.is_late
        go.set()
        assert cached.get(60).value == 1
        assert cached.get(60).value == 1
        cached.expire()
        second = cached.get(60)
        assert (second.value, second.version) == (2, 2)
        assert len(calls) == 2

    def test_an_error_leaves_the_last_value(self):
        answers = [1, OperationalError("", {}, OSError("no route")), 1]

        def read() -> int:
            answer = answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer

        cached = CachedReading("test", read, fresh=600.0)
        assert cached.get(60).error is None
        cached.expire()
        failed = cached.get(60)
        assert failed.value == 1
        assert "no route" in str(failed.error)
        cached.expire()
        again = cached.get(60)
        # An equal value is no other version: pages are not drawn again.
        assert (again.error, again.version) == (None, 1)

    def test_an_error_of_the_program_makes_no_page_wait(self, monkeypatch):
        raised, ended = [], Event()

        def hook(args: threading.ExceptHookArgs) -> None:
            raised.append(args.exc_type)
            ended.set()

        def read() -> int:
            raise ZeroDivisionError

        monkeypatch.setattr(threading, "excepthook", hook)
        cached = CachedReading("test", read, fresh=600.0)
        assert "traceback" in str(cached.get(60).error)
        assert ended.wait(60)
        assert raised == [ZeroDivisionError]

    def test_a_later_reading_is_not_waited_for(self):
        go, calls = Event(), []

        def read() -> int:
            calls.append(1)
            assert len(calls) == 1 or go.wait(60)
            return len(calls)

        cached = CachedReading("test", read, fresh=0.0, share=1.0)
        first = cached.start()
        assert cached.last(monotonic() + 60, first).value == 1
        second = cached.start()
        assert not cached.last(0.0, first).is_late
        assert cached.last(0.0, second).is_late
        go.set()
        assert cached.last(monotonic() + 60, second).value == 2

    @pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
    def test_a_thread_that_does_not_read_is_replaced(self, monkeypatch):
        def fails(*of_the_call: object) -> None:
            raise RuntimeError("can't start new thread")

        cached = CachedReading("test", lambda: 1, fresh=600.0)
        with monkeypatch.context() as one:
            one.setattr(threading.Thread, "start", fails)
            with pytest.raises(RuntimeError, match="new thread"):
                cached.get(0.0)
        before = threading.gettrace()
        threading.settrace(fails)
        try:
            assert cached.get(0.0).value is None
            for thread in threading.enumerate():
                if thread.name == "sqla-shard test":
                    thread.join(60)
        finally:
            threading.settrace(before)
        assert cached.get(60).value == 1
