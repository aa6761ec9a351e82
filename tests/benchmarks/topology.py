"""65,536 virtual shards on 128 servers: read, checked, replaced, looked up.

Each server has one range of them, or the servers share 2,000.  Nothing is
connected to.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import cycle
from typing import Any

from sqlalchemy import create_engine

from sqla_shard import Cluster, Topology
from sqla_shard.topology import diff, find_shard, read_document, refusals
from tests.benchmarks.timing import compare, show
from tests.models.sizes import document, measured, Memory, topology

_SHARDS = 65_536
_SERVERS = 128
_TURNS = 30
_WARM_UP = 2
_RANGES = (_SERVERS, 2000)
_ENVIRON = {"MYSQL_USER": "app", "MYSQL_PASSWORD": "secret"}

Ways = dict[str, Callable[[], object]]


def run() -> None:
    """Print the tables."""
    ways = [_reading(ranges) for ranges in _RANGES]
    for title in ways[0]:
        show(title, _timed(title, ways))
    _swapping()
    _looking_up()
    _memory()


def _timed(title: str, ways: list[Ways]) -> Any:
    return compare(
        {
            f"{ranges:,} ranges": own[title]
            for ranges, own in zip(_RANGES, ways, strict=True)
        },
        turns=_TURNS,
        warm_up=_WARM_UP,
    )


def _reading(ranges: int) -> Ways:
    values = document(ranges=ranges)
    as_json = json.dumps(values).encode()
    as_toml = _toml(values)
    old = topology(values)
    new = topology(document(ranges=ranges, epoch=2, turn=1))
    assert len(diff(old, new).moved) == ranges
    assert read_document(
        as_toml, "toml", source="toml", environ=_ENVIRON
    ) == read_document(as_json, "json", source="json", environ=_ENVIRON)
    return {
        "JSON to a Topology": lambda: read_document(
            as_json, "json", source="json", environ=_ENVIRON
        ),
        "TOML to a Topology": lambda: read_document(
            as_toml, "toml", source="toml", environ=_ENVIRON
        ),
        "Topology.from_mapping, of that": lambda: topology(values),
        "Topology, of its parts": lambda: Topology(epoch=1, keyspaces=old.keyspaces),
        "diff, every shard moved": lambda: diff(old, new),
        "refusals, every shard moved": lambda: refusals(old, new),
    }


def _toml(values: dict[str, Any]) -> bytes:
    keyspace = dict(values["keyspaces"]["objects"])
    servers = keyspace.pop("servers")
    lines = [f"epoch = {values['epoch']}", "[keyspaces.objects]"]
    lines += [f"{key} = {json.dumps(keyspace[key])}" for key in keyspace]
    for server in servers:
        lines.append("[[keyspaces.objects.servers]]")
        lines += [f"{key} = {json.dumps(server[key])}" for key in server]
    return "\n".join(lines).encode()


def _opened(ranges: int, *, engines: bool = False) -> Cluster:
    cluster = Cluster.from_topology(document(ranges=ranges), environ=_ENVIRON)
    if engines:
        assert len(dict(cluster.places.servers())) == _SERVERS
        assert len(cluster.stats()) == _SERVERS
    return cluster


def _swapping() -> None:
    ways: Ways = {}
    for ranges in _RANGES:
        for engines in (False, True):
            kind = f"{_SERVERS} engines" if engines else "no engines"
            ways[f"{ranges:,} ranges, {kind}"] = _swap(
                _opened(ranges, engines=engines), ranges
            )
    show(
        "Cluster.update_topology, every shard moved",
        compare(ways, turns=_TURNS, warm_up=_WARM_UP),
    )


def _swap(cluster: Cluster, ranges: int) -> Callable[[], object]:
    # Made before, one for each time that it is called.
    made = iter(
        [
            topology(document(ranges=ranges, epoch=epoch, turn=epoch % 2))
            for epoch in range(3, 3 + _TURNS + _WARM_UP)
        ]
    )
    return lambda: cluster.update_topology(next(made))


def _looking_up() -> None:
    for ranges in _RANGES:
        with _opened(ranges, engines=True) as cluster:
            show(
                f"one shard, {ranges:,} ranges",
                compare(_ways_to_look(cluster), turns=200, calls=200),
            )


def _ways_to_look(cluster: Cluster) -> Ways:
    own, places = cluster.topology, cluster.places
    keyspace = own.keyspace("objects")
    # Each has been forgotten when it is asked for again.
    numbers = cycle(range(0, _SHARDS, 3))
    return {
        "places.place(), seen before": lambda: places.place(keyspace, 3429),
        "places.place(), not kept": lambda: places.place(keyspace, next(numbers)),
        "keyspace.server_for()": lambda: keyspace.server_for(3429),
        "find_shard()": lambda: find_shard(own, 3429),
    }


def _memory() -> None:
    print("\nmemory of one process")
    url = "mysql+pymysql://app@127.0.0.1"
    for ranges in _RANGES:
        _opened(ranges, engines=True).close()  # what is made once
        as_json = json.dumps(document(ranges=ranges)).encode()
        with measured():
            parsed = Memory()
            own = read_document(as_json, "json", source="json", environ=_ENVIRON)
            keyspace = own.keyspace("objects")
            keyspace.server_for(0)
            _print(f"the topology, {ranges:,} ranges", parsed.kept)
            opened = Memory()
            cluster = Cluster.from_topology(own, environ=_ENVIRON)
            places = cluster.places
            assert len(dict(places.servers())) == _SERVERS
            _print(f"a cluster of it, {_SERVERS} engines", opened.kept)
            for used in (1000, _SHARDS):
                looked_up = Memory()
                for shard_id in range(used):
                    places.place(keyspace, shard_id)
                _print(f"after {used:,} shards, at most", looked_up.most)
            cluster.close()
    with measured():
        opened = Memory()
        kept = [create_engine(url) for _ in range(_SERVERS)]
        _print(f"{len(kept)} engines of SQLAlchemy", opened.kept)


def _print(what: str, size: int) -> None:
    print(f"  {what:<62}{size / 1e6:>11.2f} MB")
