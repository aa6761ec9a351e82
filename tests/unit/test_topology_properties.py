"""Properties of all topologies, checked on random ones."""

from __future__ import annotations

import copy
import json
import pickle
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import assume, given, strategies as st

from sqla_shard.exc import TopologyError
from sqla_shard.topology import diff, Keyspace, Topology

_LOGINS = st.sampled_from(
    ["", "app@", "app:pa$$word@", "${MYSQL_USER}:${MYSQL_PASSWORD}@"]
)
_SCHEMES = st.sampled_from(["mysql", "mysql+pymysql", "mariadb"])
ENVIRON = {"MYSQL_USER": "app", "MYSQL_PASSWORD": "hunter2"}


@st.composite
def shares(draw: st.DrawFn, count: int) -> list[list[list[int]]]:
    """Ranges that share out ``count`` shards, for each server at least one."""
    cuts = (
        draw(st.sets(st.integers(1, count - 1), max_size=12)) if (count > 1) else set()
    )
    borders = [0, *sorted(cuts), count]
    ranges = [[first, after - 1] for first, after in pairwise(borders)]
    number = draw(st.integers(1, len(ranges)))
    ranges = draw(st.permutations(ranges))
    held = [[item] for item in ranges[:number]]
    for item in ranges[number:]:
        held[draw(st.integers(0, number - 1))].append(item)
    return held


@st.composite
def keyspaces(draw: st.DrawFn, name: str, kind: str) -> dict[str, Any]:
    count = 1 if kind == "global" else draw(st.integers(1, 40) | st.integers(1, 65_536))
    servers = []
    for number, ranges in enumerate(draw(shares(count))):
        # Hosts are the keyspace's own, lest database names collide.
        host = f"{draw(_SCHEMES)}://{draw(_LOGINS)}{name}-{number}"
        server: dict[str, Any] = {
            "name": f"s{number}",
            "primary": f"{host}:{draw(st.integers(1, 65_535))}",
        }
        if draw(st.booleans()):
            server["standby"] = f"{host}-b"
        if draw(st.booleans()):
            server["generation"] = draw(st.integers(0, 2**63 - 1))
        if kind != "global":
            single = len(ranges) == 1 and draw(st.booleans())
            server["shards"] = ranges[0] if single else ranges
            server["weight"] = draw(st.integers(1, 9) | st.floats(0.001, 1e6))
        servers.append(server)
    document = {"kind": kind, "servers": servers}
    if kind == "global":
        return {**document, "database": "main"}
    template = draw(st.sampled_from(["db{shard:05d}", "{shard}_x", "d{shard:d}"]))
    return {**document, "shards": count, "database": template}


@st.composite
def documents(draw: st.DrawFn) -> dict[str, Any]:
    names = draw(
        st.lists(
            st.from_regex(r"[A-Za-z][A-Za-z0-9]{0,7}", fullmatch=True),
            min_size=1,
            max_size=3,
            unique_by=str.lower,
        )
    )
    kinds = st.sampled_from(["objects", "mod", "global"])
    return {
        "epoch": draw(st.integers(0, 2**40)),
        "keyspaces": {name: draw(keyspaces(name, draw(kinds))) for name in names},
    }


def load(document: dict[str, Any]) -> Topology:
    return Topology.from_mapping(document, environ=ENVIRON)


def check(document: Any) -> None:
    """Any document is a topology that comes back, or has problems."""
    try:
        topology = load(document)
    except TopologyError as error:
        problems = error.problems
        if not problems:
            pytest.fail("refused without a reason")
        return
    assert load(topology.to_mapping()) == topology


def scan(keyspace: Keyspace, shard_id: int) -> str:
    """The server of a shard, found in the simplest way."""
    (name,) = [
        server.name
        for server in keyspace.servers
        for item in server.shards
        if shard_id in item
    ]
    return name


def sample(keyspace: Keyspace) -> set[int]:
    """Every border of a range with its neighbours; all of a few shards."""
    if keyspace.shards <= 40:
        return set(keyspace.shard_ids)
    borders = {
        border + step
        for server in keyspace.servers
        for item in server.shards
        for border in (item.first, item.last)
        for step in (-1, 0, 1)
    }
    return borders & set(keyspace.shard_ids)


@given(documents())
def test_valid_documents_load_and_come_back(document: dict[str, Any]) -> None:
    topology = load(document)
    mapping = topology.to_mapping()
    assert load(mapping) == topology
    assert load(json.loads(json.dumps(mapping))) == topology
    assert load(mapping).to_mapping() == mapping
    restored = pickle.loads(pickle.dumps(topology))  # our own
    assert restored == topology
    assert hash(restored) == hash(topology)
    assert diff(topology, restored).is_empty
    assert "hunter2" not in repr(topology) + str(mapping)
    assert "pa$$word" not in repr(dict(topology.keyspaces))


@given(documents())
def test_each_shard_is_on_one_server(document: dict[str, Any]) -> None:
    for keyspace in load(document).keyspaces.values():
        held = [shard for one in keyspace.servers for r in one.shards for shard in r]
        assert len(held) == keyspace.shards
        assert set(held) == set(keyspace.shard_ids)
        databases = set()
        for shard_id in sample(keyspace):
            assert keyspace.server_for(shard_id).name == scan(keyspace, shard_id)
            databases.add(keyspace.database_for(shard_id))
        assert len(databases) == len(sample(keyspace))


def ranges_of(server: dict[str, Any]) -> list[list[int]]:
    shards = server["shards"]
    return shards if isinstance(shards[0], list) else [shards]


@given(data=st.data(), kind=st.sampled_from(["objects", "mod"]))
def test_any_other_border_is_refused(data: st.DataObject, kind: str) -> None:
    keyspace = data.draw(keyspaces("x", kind))
    document = {"epoch": 1, "keyspaces": {"x": keyspace}}
    load(document)
    changed = copy.deepcopy(document)
    servers = changed["keyspaces"]["x"]["servers"]  # type: ignore[index]
    ranges = [item for server in servers for item in ranges_of(server)]
    item = data.draw(st.sampled_from(ranges))
    end = data.draw(st.integers(0, 1))
    value = data.draw(
        st.integers(item[end] - 3, item[end] + 3) | st.integers(-5, 65_540)
    )
    assume(value != item[end])
    item[end] = value
    with pytest.raises(TopologyError) as caught:
        load(changed)
    for problem in caught.value.problems:
        assert problem.place.startswith("keyspaces.x.servers")
        assert "shard" in problem.message or "[" in problem.message


@given(data=st.data())
def test_a_range_lost_or_held_twice_is_refused(data: st.DataObject) -> None:
    keyspace = data.draw(keyspaces("x", "objects"))
    document = {"epoch": 1, "keyspaces": {"x": keyspace}}
    servers = keyspace["servers"]
    for server in servers:
        server["shards"] = list(ranges_of(server))
    victim = data.draw(st.sampled_from(servers))
    item = data.draw(st.sampled_from(victim["shards"]))
    if data.draw(st.booleans()):
        data.draw(st.sampled_from(servers))["shards"].append(item)
        words = {"are on", "is on", "twice on"}
    else:
        victim["shards"].remove(item)
        words = {"on no server", "is empty"}
    with pytest.raises(TopologyError) as caught:
        load(document)
    message = caught.value.problems[0].message
    assert any(word in message for word in words)


@given(data=st.data())
def test_moves_are_those_of_a_shard_by_shard_comparison(data: st.DataObject) -> None:
    old, new = (
        load({"epoch": 1, "keyspaces": {"x": data.draw(keyspaces("x", kind))}})
        for kind in ("objects", "objects")
    )
    found = diff(old, new)
    before, after = old.keyspace("x"), new.keyspace("x")
    both = range(min(before.shards, after.shards))
    expected = {
        (shard_id, was, now)
        for shard_id in both
        if (was := before.server_for(shard_id).name)
        != (now := after.server_for(shard_id).name)
    }
    moved = [
        (shard_id, move.from_server, move.to_server)
        for move in found.moved
        for shard_id in move.shards
    ]
    assert len(moved) == len(expected)
    assert set(moved) == expected
    for one, two in pairwise(found.moved):
        # Neither in the wrong order, nor in two pieces without need.
        assert one.shards.last < two.shards.first
        assert one.shards.last + 1 < two.shards.first or (
            (one.from_server, one.to_server) != (two.from_server, two.to_server)
        )
    counts = [*found.opened, *found.closed]
    assert bool(counts) == (before.shards != after.shards)
    assert diff(old, old).is_empty
    assert not diff(old, old).moved


_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["mysql://h", "sqlite:///x", "objects", "global"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.text(max_size=4)
            | st.sampled_from(
                [
                    "epoch",
                    "keyspaces",
                    "kind",
                    "shards",
                    "database",
                    "servers",
                    "name",
                    "primary",
                    "standby",
                    "weight",
                    "range",
                    "master",
                    "slave",
                ]
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=20,
)


@given(_JSON)
def test_any_document_loads_or_has_problems(document: Any) -> None:
    check(document)


@given(documents(), st.data())
def test_any_value_replaced_by_any_other(
    document: dict[str, Any], data: st.DataObject
) -> None:
    value: Any = document
    while True:
        keys = list(value) if isinstance(value, dict) else range(len(value))
        key = data.draw(st.sampled_from(keys))
        inner = value[key]
        deeper = isinstance(inner, dict | list) and len(inner) > 0
        if not deeper or data.draw(st.booleans()):
            break
        value = inner
    value[key] = data.draw(_JSON)
    check(document)
