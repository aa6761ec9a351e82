"""Large topologies: memory of a process, and growth of the work.

Work is counted in calls of functions, which no other process on the machine
has an influence on.
"""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Callable, Iterator
from itertools import product
from types import FrameType
from typing import Any

import pytest
from sqlalchemy.dialects import mysql

from sqla_shard import Cluster, Topology
from sqla_shard.engine import registry
from sqla_shard.topology import diff, read_document, refusals
from tests.models.sizes import document, measured, Memory, topology

ENVIRON = {"MYSQL_USER": "app", "MYSQL_PASSWORD": "secret"}


def calls(action: Callable[[], object]) -> int:
    """Return how many functions were called, those written in C as well."""
    found = 0

    def profile(frame: FrameType, event: str, arg: Any) -> None:
        nonlocal found
        found += event in ("call", "c_call")

    before = sys.getprofile()
    # Or what hypothesis has called by each collection is counted, too.
    gc.disable()
    sys.setprofile(profile)
    try:
        action()
    finally:
        sys.setprofile(before)
        gc.enable()
    return found


@pytest.fixture
def opened() -> Iterator[Callable[[Topology], Cluster]]:
    clusters = []

    def open_one(own: Topology) -> Cluster:
        clusters.append(Cluster.from_topology(own, environ=ENVIRON))
        return clusters[-1]

    yield open_one
    for cluster in clusters:
        cluster.close()


def test_the_map_of_a_process_takes_less_than_5_mb(
    opened: Callable[[Topology], Cluster],
) -> None:
    data = json.dumps(document(ranges=2000)).encode()
    # Created once, such as dialects and caches of patterns.
    small = opened(topology(document(shards=8, servers=1, ranges=1)))
    for server, _ in small.places.servers():
        assert server.startswith("sharddb")
    with measured():
        reading = Memory()
        own = read_document(data, "json", source="test", environ=ENVIRON)
        keyspace = own.keyspace("objects")
        cluster = opened(own)
        keyspace.server_for(0)
        kept = reading.kept
    # The engines are not part of the map, and are made by this.
    assert len(dict(cluster.places.servers())) == 128
    find = cluster.places.place
    with measured():
        looking_up = Memory()
        for shard_id in keyspace.shard_ids:
            find(keyspace, shard_id)
        assert kept + looking_up.most < 5_000_000


def test_a_place_costs_the_same_in_a_large_topology(
    opened: Callable[[Topology], Cluster],
) -> None:
    counts = []
    for sizes in (
        {"shards": 512, "servers": 4, "ranges": 4},
        {"ranges": 128},
        {"ranges": 2000},
    ):
        own = topology(document(**sizes))
        found = opened(own).places
        keyspace = own.keyspace("objects")
        found.place(keyspace, 0)
        counts.append(calls(lambda: found.place(keyspace, 1)))  # noqa: B023 # called at once
    assert counts[0] == counts[1] == counts[2]
    # make_url() and the like are for the first shard of a server.
    assert counts[0] < 30


def grown(work: Callable[[int], Callable[[], object]]) -> float:
    """Return how often the calls of 250 ranges are in those of 2,000."""
    small, large = work(250), work(2000)
    return calls(large) / calls(small)


def test_reading_grows_with_the_ranges() -> None:
    def parse(ranges: int) -> Callable[[], object]:
        return lambda: topology(document(ranges=ranges))

    def build(ranges: int) -> Callable[[], object]:
        own = topology(document(ranges=ranges))
        return lambda: Topology(epoch=2, keyspaces=own.keyspaces)

    assert grown(parse) < 9
    assert grown(build) < 9


def test_a_document_is_checked_once() -> None:
    values = document(ranges=2000)
    own = topology(values)
    again = calls(lambda: Topology(epoch=1, keyspaces=own.keyspaces))
    assert calls(lambda: topology(values)) < 1.2 * again


def test_comparing_grows_with_the_ranges() -> None:
    def compared(
        how: Callable[[Topology, Topology], object], ranges: int
    ) -> Callable[[], object]:
        old = topology(document(ranges=ranges))
        new = topology(document(ranges=ranges, epoch=2, turn=1))
        assert len(diff(old, new).moved) == ranges
        return lambda: how(old, new)

    assert grown(lambda ranges: compared(diff, ranges)) < 9
    assert grown(lambda ranges: compared(refusals, ranges)) < 9


@pytest.mark.parametrize("servers", [16, 128])
def test_a_swap_grows_with_the_ranges(
    servers: int, opened: Callable[[Topology], Cluster]
) -> None:
    def swap(ranges: int) -> Callable[[], object]:
        sizes = {"servers": servers, "ranges": ranges}
        cluster = opened(topology(document(**sizes)))
        assert len(dict(cluster.places.servers())) == servers
        new = topology(document(**sizes, epoch=2, turn=1))
        return lambda: cluster.update_topology(new)

    assert grown(swap) < 9


def test_keyspaces_that_share_servers_are_not_compared_shard_by_shard() -> None:
    def both(shards: int) -> dict[str, Any]:
        values = document(shards=shards, servers=8, ranges=64)
        other = document(shards=shards, servers=8, ranges=64, turn=1)
        # The same names on the same servers, and never the same shard.
        keyspaces = values["keyspaces"]
        keyspaces["more"] = other["keyspaces"]["objects"]
        # One prefix begins the other, as far as letters go.
        third = document(shards=shards, servers=8, ranges=64)
        keyspaces["users"] = third["keyspaces"]["objects"]
        keyspaces["users"]["database"] = "db_users{shard:05d}"
        return values

    few, many = both(640), both(64_000)
    # Not equal: caches of other tests may have been filled, or emptied.
    assert calls(lambda: topology(many)) < 1.1 * calls(lambda: topology(few))


def test_names_are_quoted_as_sqlalchemy_does() -> None:
    preparer = mysql.dialect().identifier_preparer
    names = sorted(preparer.reserved_words)
    for length in (1, 2, 3):
        names += map("".join, product("aZ0_", repeat=length))
    for name in [*names, *map(str.upper, names)]:
        assert registry._quoted(name, preparer) == preparer.quote(name)
