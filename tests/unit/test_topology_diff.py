"""Differences between two topologies."""

from __future__ import annotations

import copy
import pickle
import time
from typing import Any

import pytest

from sqla_shard.topology import (
    CountChange,
    DatabaseChange,
    diff,
    GenerationChange,
    KindChange,
    MovedRange,
    ShardRange,
    Topology,
    TopologyDiff,
    UrlChange,
    WeightChange,
)


def server(name: str, *shards: list[int], **keys: object) -> dict[str, Any]:
    return {
        "name": name,
        "primary": f"mysql://app:hunter2@{name}",
        "shards": list(shards),
        **keys,
    }


@pytest.fixture
def document() -> dict[str, Any]:
    return {
        "epoch": 7,
        "keyspaces": {
            "objects": {
                "kind": "objects",
                "shards": 1024,
                "database": "db{shard:05d}",
                "servers": [server("a", [0, 511]), server("b", [512, 1023])],
            },
            "main": {
                "kind": "global",
                "database": "main",
                "servers": [{"name": "main", "primary": "mysql://app:hunter2@main"}],
            },
        },
    }


class Change:
    """A document, changed by the test, and the difference it makes."""

    def __init__(self, document: dict[str, Any]) -> None:
        self.old = Topology.from_mapping(document)
        self.document = copy.deepcopy(document)
        self.document["epoch"] += 1
        self.objects = self.document["keyspaces"]["objects"]
        self.servers = self.objects["servers"]

    def diff(self) -> TopologyDiff:
        found = diff(self.old, Topology.from_mapping(self.document))
        assert "hunter2" not in f"{found} {found!r}"
        assert (found.old_epoch, found.new_epoch) == (7, 8)
        return found

    def lines(self) -> list[str]:
        first, *lines = str(self.diff()).split("\n")
        assert first == "epoch 7 -> 8"
        return lines


@pytest.fixture
def change(document: dict[str, Any]) -> Change:
    return Change(document)


def test_nothing(document: dict[str, Any]) -> None:
    one, two = (Topology.from_mapping(document) for _ in range(2))
    found = diff(one, two)
    assert found == TopologyDiff(old_epoch=7, new_epoch=7)
    assert found.is_empty
    assert str(found) == "epoch 7 -> 7\nnothing else changed"


def test_only_the_epoch(change: Change) -> None:
    assert change.diff().is_empty
    assert change.lines() == ["nothing else changed"]


def test_another_order_and_spelling_is_no_difference(change: Change) -> None:
    change.servers.reverse()
    change.servers[1]["shards"] = [[256, 511], [0, 255]]
    change.servers[1]["weight"] = 1
    assert change.diff().is_empty


def test_keyspaces(change: Change) -> None:
    change.document["keyspaces"]["more"] = {
        "kind": "mod",
        "shards": 4,
        "database": "more{shard}",
        "servers": [server("m", [0, 3])],
    }
    del change.document["keyspaces"]["main"]
    found = change.diff()
    assert found.added_keyspaces == ("more",)
    assert found.removed_keyspaces == ("main",)
    assert (found.added_servers, found.removed_servers) == ((), ())
    assert not found.is_empty
    assert change.lines() == ["more: keyspace added", "main: keyspace removed"]


def test_shards_opened(change: Change) -> None:
    change.objects["shards"] = 2048
    change.servers[1]["shards"] = [512, 1535]
    change.servers.append(server("c", [1536, 2047]))
    found = change.diff()
    (opened,) = found.opened
    assert opened == CountChange(keyspace="objects", old=1024, new=2048)
    assert opened.shards == ShardRange(1024, 2047)
    assert found.moved == ()
    assert [one.server.name for one in found.added_servers] == ["c"]
    assert change.lines() == [
        "objects: 1024 -> 2048 shards (shards 1024-2047 opened)",
        "objects: server 'c' added (mysql://app:***@c, shards 1536-2047)",
    ]


def test_shards_closed(change: Change) -> None:
    change.objects["shards"] = 1023
    change.servers[1]["shards"] = [512, 1022]
    found = change.diff()
    assert found.closed == (CountChange(keyspace="objects", old=1024, new=1023),)
    assert found.closed[0].shards == ShardRange(1023, 1023)
    assert (found.opened, found.moved) == ((), ())
    assert change.lines() == ["objects: 1024 -> 1023 shards (shard 1023 closed)"]


def test_a_split(change: Change) -> None:
    change.servers[0]["shards"] = [0, 255]
    change.servers.append(server("c", [256, 511]))
    found = change.diff()
    assert found.moved == (
        MovedRange(
            keyspace="objects",
            shards=ShardRange(256, 511),
            from_server="a",
            to_server="c",
        ),
    )
    assert change.lines()[0] == ("objects: shards 256-511 moved from 'a' to 'c'")


def test_moves_are_as_long_as_they_can_be(change: Change) -> None:
    change.servers[0]["shards"] = [[10, 19], [512, 1023]]
    change.servers[1]["shards"] = [[0, 9], [20, 511]]
    assert [
        (move.shards.first, move.shards.last, move.from_server)
        for move in change.diff().moved
    ] == [(0, 9, "a"), (20, 511, "a"), (512, 1023, "b")]


def test_moved_while_others_are_closed_or_opened(change: Change) -> None:
    change.objects["shards"] = 700
    change.servers[0]["shards"] = [0, 699]
    del change.servers[1]
    found = change.diff()
    assert [move.shards for move in found.moved] == [ShardRange(512, 699)]
    assert [one.server.name for one in found.removed_servers] == ["b"]
    assert "objects: server 'b' removed" in str(found)


def test_a_failover(change: Change) -> None:
    change.servers[0]["standby"] = change.servers[0]["primary"]
    change.servers[0]["primary"] = "mysql://app:hunter2@z"
    found = change.diff()
    assert found.moved == ()
    assert found.urls == (
        UrlChange(
            keyspace="objects",
            server="a",
            role="primary",
            old="mysql://app:hunter2@a",
            new="mysql://app:hunter2@z",
        ),
        UrlChange(
            keyspace="objects",
            server="a",
            role="standby",
            old=None,
            new="mysql://app:hunter2@a",
        ),
    )
    assert change.lines() == [
        "objects: primary of 'a' mysql://app:***@a -> mysql://app:***@z",
        "objects: standby of 'a' none -> mysql://app:***@a",
    ]


def test_another_password(change: Change) -> None:
    change.servers[0]["primary"] = "mysql://app:hunter22@a"
    assert change.lines() == [
        "objects: primary of 'a' mysql://app:***@a with another password"
    ]


def test_weight(change: Change) -> None:
    change.servers[0]["weight"] = 0
    assert change.diff().weights == (
        WeightChange(keyspace="objects", server="a", old=1.0, new=0.0),
    )
    assert change.lines() == ["objects: weight of 'a' 1 -> 0"]


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [(None, 0, "none -> 0"), (3, 4, "3 -> 4"), (3, None, "3 -> none")],
)
def test_generation(
    document: dict[str, Any], old: int | None, new: int | None, line: str
) -> None:
    def with_number(number: int | None) -> dict[str, Any]:
        return {} if number is None else {"generation": number}

    servers = document["keyspaces"]["objects"]["servers"]
    servers[1].update(with_number(old))
    change = Change(document)
    change.servers[1].pop("generation", None)
    change.servers[1].update(with_number(new))
    found = change.diff()
    assert found.generations == (
        GenerationChange(keyspace="objects", server="b", old=old, new=new),
    )
    assert not found.is_empty
    assert change.lines() == [f"objects: generation of 'b' {line}"]
    assert found.as_dict()["generations"] == [
        {"keyspace": "objects", "server": "b", "old": old, "new": new}
    ]
    assert pickle.loads(pickle.dumps(found)) == found  # our own


def test_database(change: Change) -> None:
    change.objects["database"] = "d{shard}"
    assert change.diff().databases == (
        DatabaseChange(keyspace="objects", old="db{shard:05d}", new="d{shard}"),
    )
    assert change.lines() == ["objects: database 'db{shard:05d}' -> 'd{shard}'"]


def test_kind(change: Change) -> None:
    change.objects["kind"] = "mod"
    change.document["keyspaces"]["main"] = {
        "kind": "mod",
        "shards": 2,
        "database": "main{shard}",
        "servers": [server("main", [1, 1]), server("n", [0, 0])],
    }
    found = change.diff()
    assert found.kinds == (
        KindChange(keyspace="objects", old="objects", new="mod"),
        KindChange(keyspace="main", old="global", new="mod"),
    )
    assert [move.shards for move in found.moved] == [ShardRange(0, 0)]
    assert change.lines()[0] == "objects: kind 'objects' -> 'mod'"


def test_opening_shards_leaves_every_id_where_it_is(change: Change) -> None:
    change.objects["shards"] = 2048
    change.servers[1]["shards"] = [[512, 1023], [1500, 1600]]
    change.servers.append(server("c", [1024, 1499], [1601, 2047]))
    new = Topology.from_mapping(change.document)
    found = diff(change.old, new)
    assert found.opened
    assert (found.moved, found.databases, found.urls) == ((), (), ())
    before, after = (one.keyspace("objects") for one in (change.old, new))
    for shard_id in before.shard_ids:
        assert before.server_for(shard_id).primary == after.server_for(shard_id).primary
        assert before.database_for(shard_id) == after.database_for(shard_id)


def test_pickle(change: Change) -> None:
    change.servers[0]["shards"] = [0, 255]
    change.servers.append(server("c", [256, 511]))
    found = change.diff()
    assert pickle.loads(pickle.dumps(found)) == found  # our own


def test_the_largest_topology_in_milliseconds() -> None:
    def build(step: int) -> Topology:
        """Each server has the start of its block and the end of the next."""
        servers = []
        for number in range(128):
            first, after = 512 * number, 512 * ((number + 1) % 128)
            servers.append(
                server(
                    f"s{number}", [first, first + step - 1], [after + step, after + 511]
                )
            )
        keyspace = {
            "kind": "objects",
            "shards": 65_536,
            "database": "db{shard:05d}",
            "servers": servers,
        }
        return Topology.from_mapping({"epoch": 1, "keyspaces": {"objects": keyspace}})

    old, new = build(100), build(300)
    start = time.process_time()
    found = diff(old, new)
    assert time.process_time() - start < 0.1
    assert len(found.moved) == 128
    assert sum(len(move.shards) for move in found.moved) == 200 * 128
