"""Sizes of a fleet, their growth, and even splits."""

from __future__ import annotations

import json
import random
import re
from dataclasses import replace

import pytest

from sqla_shard.engine.unreachable import Cause, UnreachableServer
from sqla_shard.exc import FleetSetupError
from sqla_shard.fleet.capacity import CapacityReport, ShardSize, suggest

MIB = 2**20
LOST = UnreachableServer(
    server="server2", cause=Cause("silence"), addresses=(("objects", 1),)
)


def shard(number, server="server1", size=MIB, **more):
    return ShardSize(
        keyspace="objects",
        shard=number,
        server=server,
        bytes=size,
        rows=10,
        fill=0.0,
        **more,
    )


def report(*shards, **changes):
    return replace(
        CapacityReport(epoch=1, taken=1e9, shards=shards, unreachable=()), **changes
    )


def parts(lines):
    """Return server and ranges of each command."""
    return [
        (
            line.split()[3],
            [
                (int(first), int(last))
                for first, last in re.findall(r"objects:(\d+)-(\d+)", line)
            ],
        )
        for line in lines
    ]


def test_equal_shards_are_divided_by_their_number():
    (line,) = suggest(report(*map(shard, range(8))), "objects", servers=2)
    assert line == (
        "sqla-shard fleet split server1 --shards objects:4-7 --to NEW2 "
        "--primary HOST:PORT --standby HOST:PORT  # 4.0 MiB"
    )


def test_empty_shards_are_divided_by_their_number():
    shards = [shard(number, size=0) for number in range(9)]
    lines = suggest(report(*shards), "objects", servers=3)
    assert parts(lines) == [("server1", [(3, 5)]), ("server1", [(6, 8)])]


def test_a_large_shard_is_alone():
    shards = [shard(n, size=100 * MIB if n == 0 else MIB) for n in range(8)]
    lines = suggest(report(*shards), "objects", servers=2)
    assert parts(lines) == [("server1", [(1, 7)])]


def test_new_servers_go_to_the_heaviest():
    shards = [
        shard(n, "server1" if n < 4 else "server2", size=size * MIB)
        for n, size in enumerate([1, 1, 1, 1, 9, 9, 9, 9])
    ]
    lines = suggest(report(*shards), "objects", servers=4)
    assert [server for server, _ in parts(lines)] == ["server2", "server2"]


def test_no_new_server_is_no_command():
    assert suggest(report(shard(0)), "objects", servers=1) == []


@pytest.mark.parametrize("servers", [0, 1, 5])
def test_impossible_numbers(servers):
    shards = [shard(n, f"server{n % 2}") for n in range(4)]
    with pytest.raises(FleetSetupError, match="among 2 to 4 servers, not"):
        suggest(report(*shards), "objects", servers=servers)


def test_servers_that_were_not_read():
    found = report(shard(0), shard(1), unreachable=(LOST,))
    with pytest.raises(FleetSetupError, match="server2 could not be read"):
        suggest(found, "objects", servers=2)


def test_random_splits(request):
    seed = request.config.getoption("hypothesis_seed")
    chance = random.Random(f"{seed}")
    for _ in range(100):
        count = chance.randint(2, 60)
        sources = chance.randint(1, count // 2)
        shards = [
            shard(n, f"server{n * sources // count}", chance.randint(0, 99))
            for n in range(count)
        ]
        servers = chance.randint(sources, count)
        lines = suggest(report(*shards), "objects", servers=servers)
        assert len(lines) == servers - sources, seed
        moved = [
            (server, number)
            for server, ranges in parts(lines)
            for first, last in ranges
            for number in range(first, last + 1)
        ]
        assert len(set(moved)) == len(moved), seed
        for server, number in moved:
            assert shards[number].server == server, seed
        # Every server of now has a shard afterwards.
        staying = {
            one.server for one in shards if (one.server, one.shard) not in set(moved)
        }
        assert staying == {one.server for one in shards}, seed


def test_growth_since_an_earlier_report():
    earlier = report(shard(0), shard(1))
    document = json.loads(json.dumps(earlier.as_dict()))
    day = 86_400
    later = report(
        shard(0, size=3 * MIB), shard(1, size=MIB // 2), taken=1e9 + 2 * day
    ).since(document)
    assert [one.growth for one in later.shards] == [MIB, -MIB / 4]
    assert "server server1: 2 shards, 3.5 MiB, 20 rows, +0.8 MiB a day" in (str(later))
    new = report(shard(0), shard(2), taken=1e9 + day).since(document)
    assert new.shards[1].growth is None
    # Of a server with a shard whose growth is unknown, it is unknown.
    assert new.servers()[0].growth is None


@pytest.mark.parametrize(
    "document", [None, [], {}, {"capacity": 2}, {"capacity": 1, "taken": 1}]
)
def test_documents_that_are_no_report(document):
    with pytest.raises(FleetSetupError, match="make one with"):
        report(shard(0)).since(document)


def test_a_report_of_the_future():
    with pytest.raises(FleetSetupError, match="not before this one"):
        report(shard(0)).since(report(shard(0), taken=2e9).as_dict())


def test_the_lists_are_sorted_and_short():
    shards = [
        shard(n, size=n, read=float(n), written=1.0, statements=5.0 - n)
        for n in range(5)
    ]
    found = report(*shards, top=2)
    assert [one.shard for one in found.largest()] == [4, 3]
    assert [one.shard for one in found.hottest()] == [4, 3]
    assert [one.shard for one in found.busiest()] == [0, 1]
    assert "busy: objects 0 on server1: 5.0 statements/s" in str(found)
    assert "hot: objects 4 on server1: 4 rows/s read, 1 rows/s" in str(found)
    assert report(*map(shard, range(3))).hottest() == []
    assert report(*map(shard, range(3))).busiest() == []
