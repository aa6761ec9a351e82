"""Locations of objects and shards; no output contains passwords."""

from __future__ import annotations

import pytest

from sqla_shard import pack, Topology
from sqla_shard.exc import InvalidIdError, UnknownKeyspaceError, UnknownShardError
from sqla_shard.testing.topology_documents import topology_document
from sqla_shard.topology import describe, find_object, find_shard

URLS = {f"s{n}": f"mysql://app:hush@host{n}?ssl_ca=/ca" for n in (1, 2)}


@pytest.fixture
def topology():
    return Topology.from_mapping(topology_document(URLS, 8, main=True, lookup=2))


def test_objects_and_shards_are_found(topology, rng):
    for _ in range(50):
        shard = rng.randrange(8)
        object_id = pack(shard, rng.randrange(1024), rng.randrange(2**36))
        found = find_object(topology, object_id)
        keyspace = topology.keyspace("objects")
        assert found.keyspace is keyspace
        assert found.server is keyspace.server_for(shard)
        assert found.database == f"db{shard:05d}"
        assert found.object_id is not None
        assert int(found.object_id) == object_id
        alone = find_shard(topology, shard)
        assert (alone.server, alone.object_id) == (found.server, None)
        assert "id" not in alone.as_dict()


def test_keyspaces_by_name(topology):
    assert find_shard(topology, 1, "lookup").database == "lookup00001"
    assert find_shard(topology, 0, "main").database == "main"
    assert find_object(topology, pack(7, 1, 1), "objects").shard_id == 7


def test_passwords_are_left_out(topology):
    found = find_object(topology, pack(7, 1, 1))
    for shown in (
        str(found),
        repr(found),
        str(found.as_dict()),
        describe(topology),
        str(topology.redacted().to_mapping()),
    ):
        assert "hush" not in shown
        assert "mysql://app:***@host2?ssl_ca=/ca" in shown
    assert topology.redacted().redacted() == topology.redacted()
    assert "hush" in topology.keyspace("main").servers[0].primary


def test_missing_paths(topology):
    with pytest.raises(UnknownShardError, match="shard 8 is not open"):
        find_object(topology, pack(8, 1, 1))
    with pytest.raises(UnknownShardError):
        find_shard(topology, 2, "lookup")
    with pytest.raises(InvalidIdError):
        find_object(topology, -1)
    with pytest.raises(UnknownKeyspaceError, match="no keyspace 'none'"):
        find_shard(topology, 0, "none")
    for name in ("main", "lookup"):
        with pytest.raises(UnknownKeyspaceError) as caught:
            find_object(topology, pack(0, 1, 1), name)
        assert caught.value.known == ("objects",)


def test_a_keyspace_has_to_be_named_where_there_is_not_one():
    document = topology_document(URLS, 8)
    spaces = document["keyspaces"]
    spaces["more"] = {**spaces["objects"], "database": "more{shard:05d}"}
    with pytest.raises(UnknownKeyspaceError, match="has 2 keyspaces") as two:
        find_shard(Topology.from_mapping(document), 0)
    assert two.value.known == ("objects", "more")
    spaces = topology_document(URLS, 8, main=True)["keyspaces"]
    document["keyspaces"] = {"main": spaces["main"]}
    with pytest.raises(UnknownKeyspaceError, match="has no keyspace") as none:
        find_shard(Topology.from_mapping(document), 0)
    assert none.value.known == ("main",)
