"""The values: ranges, servers, keyspaces, topologies."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import threading
import time
from typing import Any

import pytest

from sqla_shard.exc import TopologyError, UnknownKeyspaceError, UnknownShardError
from sqla_shard.topology import Keyspace, Server, ShardRange, Topology


def server(name: str, *ranges: tuple[int, int], **keys: Any) -> Server:
    return Server(
        name=name,
        primary=f"mysql://app:hunter2@{name}",
        shards=tuple(ShardRange(*pair) for pair in ranges),
        **keys,
    )


def keyspace(*servers: Server, **keys: Any) -> Keyspace:
    values: dict[str, Any] = {
        "name": "objects",
        "kind": "objects",
        "shards": 16,
        "database": "db{shard:05d}",
        "servers": servers,
    }
    return Keyspace(**{**values, **keys})


def topology(*keyspaces: Keyspace, epoch: int = 7) -> Topology:
    return Topology(epoch=epoch, keyspaces={one.name: one for one in keyspaces})


A = server("a", (0, 3), (8, 15))
B = server("b", (4, 7), weight=2.5)
MAIN = keyspace(
    server("main", (0, 0)), name="main", kind="global", shards=1, database="main"
)


class TestShardRange:
    def test_is_inclusive(self) -> None:
        shards = ShardRange(3, 5)
        assert list(shards) == [3, 4, 5]
        assert len(shards) == 3
        assert [number in shards for number in (2, 3, 5, 6)] == [
            False,
            True,
            True,
            False,
        ]
        assert "3" not in shards

    def test_one_shard(self) -> None:
        assert list(ShardRange(0, 0)) == [0]

    def test_str(self) -> None:
        assert str(ShardRange(3, 5)) == "shards 3-5"
        assert str(ShardRange(3, 3)) == "shard 3"

    def test_sorts_by_its_first_shard(self) -> None:
        ranges = [ShardRange(5, 6), ShardRange(0, 9), ShardRange(0, 2)]
        assert sorted(ranges) == [ranges[2], ranges[1], ranges[0]]

    @pytest.mark.parametrize(("first", "last"), [(-1, 3), (4, 3), (-5, -3)])
    def test_impossible(self, first: int, last: int) -> None:
        with pytest.raises(TopologyError) as caught:
            ShardRange(first, last)
        (problem,) = caught.value.problems
        assert problem.place == "shards"
        assert f"[{first}, {last}] is not a valid range" in problem.message

    def test_is_frozen_and_hashable(self) -> None:
        assert len({ShardRange(0, 1), ShardRange(0, 1)}) == 1
        with pytest.raises(dataclasses.FrozenInstanceError):
            ShardRange(0, 1).first = 1  # type: ignore[misc]


class TestServer:
    def test_ranges_have_one_spelling(self) -> None:
        spelled = server("a", (8, 11), (12, 15), (0, 3))
        assert spelled == A
        assert spelled.shards == (ShardRange(0, 3), ShardRange(8, 15))
        assert hash(spelled) == hash(A)

    def test_overlapping_ranges_are_left_to_be_reported(self) -> None:
        assert server("a", (0, 5), (3, 8)).shards == (
            ShardRange(0, 5),
            ShardRange(3, 8),
        )

    def test_repr_has_no_password_at_any_level(self) -> None:
        whole = topology(keyspace(A, B), MAIN)
        for value in (A, whole.keyspace("objects"), whole):
            assert "hunter2" not in f"{value!r} {value}"
        assert "mysql://app:***@a" in repr(whole.keyspace("objects"))


class TestKeyspace:
    def test_server_for(self) -> None:
        objects = keyspace(A, B)
        names = [objects.server_for(shard).name for shard in range(16)]
        assert "".join(names) == "aaaabbbbaaaaaaaa"

    def test_servers_are_the_ones_of_the_keyspace(self) -> None:
        objects = keyspace(A, B)
        assert objects.server_for(5) is B

    @pytest.mark.parametrize("shard_id", [-1, 16, 65_536, -(2**70), 2**70])
    def test_a_shard_that_is_not_open(self, shard_id: int) -> None:
        objects = keyspace(A, B)
        for method in (objects.server_for, objects.database_for):
            with pytest.raises(UnknownShardError) as caught:
                method(shard_id)
            assert caught.value.shard_id == shard_id
            assert caught.value.keyspace == "objects"
            assert caught.value.opened == 16

    def test_database_for(self) -> None:
        assert keyspace(A, B).database_for(9) == "db00009"
        assert MAIN.database_for(0) == "main"

    def test_a_global_keyspace_has_shard_0(self) -> None:
        assert MAIN.server_for(0).name == "main"
        assert list(MAIN.shard_ids) == [0]
        with pytest.raises(UnknownShardError):
            MAIN.server_for(1)
        with pytest.raises(UnknownShardError):
            MAIN.database_for(1)

    def test_shard_ids(self) -> None:
        assert keyspace(A, B).shard_ids == range(16)

    def test_placements(self) -> None:
        assert keyspace(A, B).placements() == [
            (ShardRange(0, 3), A),
            (ShardRange(4, 7), B),
            (ShardRange(8, 15), A),
        ]

    @pytest.mark.parametrize(
        "ranges", [[(0, 3)], [(0, 7), (7, 15)], [(1, 16)], [(0, 16)], []]
    )
    def test_one_made_by_hand_does_not_guess(
        self, ranges: list[tuple[int, int]]
    ) -> None:
        broken = keyspace(server("a", *ranges))
        with pytest.raises(TopologyError, match="exactly once"):
            broken.server_for(1)

    def test_the_table_is_no_part_of_the_value(self) -> None:
        used, fresh = keyspace(A, B), keyspace(A, B)
        used.server_for(0)
        assert used == fresh
        assert hash(used) == hash(fresh)
        assert repr(used) == repr(fresh)
        assert pickle.dumps(used) == pickle.dumps(fresh)

    def test_replace_makes_a_table_of_its_own(self) -> None:
        old = keyspace(A, B)
        old.server_for(0)
        new = dataclasses.replace(old, servers=(server("c", (0, 15)),))
        assert new.server_for(0).name == "c"

    @pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
    def test_pickle(self, protocol: int) -> None:
        objects = keyspace(A, B)
        restored = pickle.loads(  # our own bytes
            pickle.dumps(objects, protocol)
        )
        assert restored == objects
        assert restored.server_for(5).name == "b"
        assert copy.deepcopy(objects) == objects

    def test_many_threads_may_ask_first(self) -> None:
        objects = keyspace(A, B)
        start = threading.Barrier(8)
        names: list[str] = []

        def ask() -> None:
            start.wait()
            names.append(objects.server_for(5).name)

        threads = [threading.Thread(target=ask) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert names == ["b"] * 8


class TestTopology:
    def test_keyspaces_cannot_be_changed(self) -> None:
        given = {"objects": keyspace(A, B)}
        whole = Topology(epoch=1, keyspaces=given)
        given.clear()
        assert list(whole.keyspaces) == ["objects"]
        with pytest.raises(TypeError):
            whole.keyspaces["x"] = MAIN  # type: ignore[index]
        with pytest.raises(dataclasses.FrozenInstanceError):
            whole.epoch = 2  # type: ignore[misc]

    def test_compares_by_value(self) -> None:
        one, two = (topology(keyspace(A, B), MAIN), topology(keyspace(A, B), MAIN))
        assert one == two
        assert hash(one) == hash(two)
        assert one != topology(keyspace(A, B), MAIN, epoch=8)
        assert one != topology(keyspace(A, B))
        assert topology(MAIN, keyspace(A, B)) == one
        assert hash(topology(MAIN, keyspace(A, B))) == hash(one)

    @pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
    def test_pickle(self, protocol: int) -> None:
        whole = topology(keyspace(A, B), MAIN)
        restored = pickle.loads(  # our own bytes
            pickle.dumps(whole, protocol)
        )
        assert restored == whole
        assert list(restored.keyspaces) == ["objects", "main"]
        assert copy.copy(whole) == copy.deepcopy(whole) == whole

    def test_repr_is_short(self) -> None:
        assert repr(topology(keyspace(A, B), MAIN)) == (
            "<Topology epoch 7 (objects: kind objects, shards 16, servers 2; "
            "main: kind global, shards 1, servers 1)>"
        )

    def test_keyspace(self) -> None:
        whole = topology(keyspace(A, B), MAIN)
        assert whole.keyspace("main") is MAIN
        with pytest.raises(UnknownKeyspaceError) as caught:
            whole.keyspace("mian")
        assert caught.value.keyspace == "mian"
        assert caught.value.known == ("objects", "main")
        assert "no keyspace 'mian'" in str(caught.value)
        assert "'objects', 'main'" in str(caught.value)

    def test_sole(self) -> None:
        whole = topology(keyspace(A, B), MAIN)
        assert whole.sole("objects").name == "objects"
        assert whole.sole("global") is MAIN

    def test_sole_of_none(self) -> None:
        with pytest.raises(UnknownKeyspaceError) as caught:
            topology(keyspace(A, B), MAIN).sole("mod")
        assert caught.value.keyspace is None
        assert caught.value.known == ("objects", "main")
        assert "no keyspace of kind 'mod'" in str(caught.value)
        assert 'the class keyword keyspace="..."' in str(caught.value)

    def test_sole_of_several(self) -> None:
        more = keyspace(A, B, name="more", database="more{shard}")
        with pytest.raises(UnknownKeyspaceError) as caught:
            topology(keyspace(A, B), more, MAIN).sole("objects")
        assert caught.value.keyspace is None
        assert caught.value.known == ("objects", "more")
        assert "2 keyspaces of kind 'objects'" in str(caught.value)
        assert 'the class keyword keyspace="objects"' in str(caught.value)

    def test_to_mapping(self) -> None:
        a = server("a", (0, 3), (8, 15), standby="mysql://x")
        assert topology(keyspace(a, B), MAIN).to_mapping() == {
            "epoch": 7,
            "keyspaces": {
                "objects": {
                    "kind": "objects",
                    "shards": 16,
                    "database": "db{shard:05d}",
                    "servers": [
                        {
                            "name": "a",
                            "primary": "mysql://app:hunter2@a",
                            "standby": "mysql://x",
                            "shards": [[0, 3], [8, 15]],
                        },
                        {
                            "name": "b",
                            "primary": "mysql://app:hunter2@b",
                            "shards": [4, 7],
                            "weight": 2.5,
                        },
                    ],
                },
                "main": {
                    "kind": "global",
                    "database": "main",
                    "servers": [
                        {"name": "main", "primary": "mysql://app:hunter2@main"}
                    ],
                },
            },
        }


class TestMadeByHand:
    """A topology in hand is a topology that was checked."""

    def refuse(self, place: str, words: str, *keyspaces: Keyspace) -> None:
        with pytest.raises(TopologyError) as caught:
            topology(*keyspaces)
        (problem,) = caught.value.problems
        assert caught.value.source == "Topology"
        assert problem.place == place
        assert words in problem.message

    def test_the_rules_of_documents_hold(self) -> None:
        self.refuse(
            "keyspaces.objects.servers",
            "shards 4-7 of the 16 open are on no server",
            keyspace(A),
        )

    def test_and_for_what_replace_makes(self) -> None:
        with pytest.raises(TopologyError, match="is negative"):
            dataclasses.replace(topology(keyspace(A, B)), epoch=-1)

    def test_any_placeholder_will_do(self) -> None:
        one = dataclasses.replace(MAIN.servers[0], primary="mysql://${X}@h")
        topology(dataclasses.replace(MAIN, servers=(one,)))

    def test_but_not_any_placeholder_anywhere(self) -> None:
        one = dataclasses.replace(MAIN.servers[0], primary="mysql://${X}")
        self.refuse(
            "keyspaces.main.servers[0].primary",
            "only in the user and the password",
            dataclasses.replace(MAIN, servers=(one,)),
        )

    def test_name_and_key_differ(self) -> None:
        with pytest.raises(TopologyError, match="'main'; use one name for both"):
            Topology(epoch=1, keyspaces={"other": MAIN})

    @pytest.mark.parametrize(
        "broken",
        [
            dataclasses.replace(MAIN, shards=2),
            dataclasses.replace(MAIN, servers=(server("main", (0, 1)),)),
            dataclasses.replace(MAIN, servers=(server("main"),)),
        ],
    )
    def test_global_has_one_shard(self, broken: Keyspace) -> None:
        self.refuse("keyspaces.main.shards", "the one shard 0", broken)


class TestSize:
    """65,536 shards on 128 servers cost as 128 servers do.

    The limits are far above what is measured, and far below what one
    object for each shard would take.
    """

    @pytest.fixture
    def document(self) -> dict[str, Any]:
        def one(kind: str, name: str) -> dict[str, Any]:
            return {
                "kind": kind,
                "shards": 65_536,
                "database": f"{name}{{shard:05d}}",
                "servers": [
                    {
                        "name": f"server{number:03d}",
                        "primary": f"mysql://app@a{number}:3306",
                        "standby": f"mysql://app@b{number}:3306",
                        "shards": [512 * number, 512 * number + 511],
                    }
                    for number in range(128)
                ],
            }

        return {
            "epoch": 1,
            "keyspaces": {
                "objects": one("objects", "db"),
                "lookups": one("mod", "lookup"),
            },
        }

    def test_loads_quickly(self, document: dict[str, Any]) -> None:
        start = time.process_time()
        whole = Topology.from_mapping(document)
        assert time.process_time() - start < 0.5
        assert len(pickle.dumps(whole)) < 64_000
        objects = whole.keyspace("objects")
        for shard_id in (0, 511, 512, 40_000, 65_535):
            name = f"server{shard_id // 512:03d}"
            assert objects.server_for(shard_id).name == name

    def test_finds_servers_quickly(self, document: dict[str, Any]) -> None:
        objects = Topology.from_mapping(document).keyspace("objects")
        objects.server_for(0)
        start = time.process_time()
        for shard_id in range(65_536):
            objects.server_for(shard_id)
        assert (time.process_time() - start) / 65_536 < 5e-6
