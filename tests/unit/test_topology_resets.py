"""Epochs: how far they can go, and how their numbering begins again."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from sqla_shard import Cluster, FileSource, Topology
from sqla_shard.exc import StaleTopologyError, TopologyError, TopologyRefusedError
from sqla_shard.topology import describe, read_document, to_json
from sqla_shard.topology.follow import check_newer, Snapshot
from sqla_shard.topology.parse import MAX_EPOCH, MAX_STEP
from tests.servers.following import until


def topology(epoch: int, resets: int = 0, *, primary: str = "mysql://h") -> Topology:
    return Topology.from_mapping(
        {
            "epoch": epoch,
            "resets": resets,
            "keyspaces": {
                "main": {
                    "kind": "global",
                    "database": "main",
                    "servers": [{"name": "a", "primary": primary}],
                }
            },
        }
    )


def check(old: Topology, new: Topology) -> None:
    check_newer(old, new, source="test")


def test_an_epoch_goes_so_far_and_no_further() -> None:
    check(topology(41), topology(41 + MAX_STEP))
    for epoch in (42 + MAX_STEP, MAX_EPOCH):
        with pytest.raises(TopologyRefusedError) as caught:
            check(topology(41), topology(epoch))
        (problem,) = caught.value.problems
        assert problem.place == "epoch"
        assert f"41 -> {epoch} is too large a step" in problem.message
        assert "topology reset" in problem.message


def test_above_the_highest_there_is_the_reset() -> None:
    with pytest.raises(TopologyError, match="topology reset"):
        topology(MAX_EPOCH + 1)
    check(topology(MAX_EPOCH), topology(42, 1))
    check(topology(42, 1), topology(43, 1))
    check(topology(43, 1), topology(1, 2))


def test_before_a_reset_is_older() -> None:
    with pytest.raises(StaleTopologyError) as caught:
        check(topology(42, 3), topology(MAX_EPOCH, 2))
    assert "from before the epochs were reset" in str(caught.value)
    assert "resets = 3 and an epoch above 42" in str(caught.value)


@pytest.mark.parametrize(
    ("epoch", "resets", "place"),
    [(MAX_EPOCH, 1, "epoch"), (42, 1001, "resets"), (42, MAX_EPOCH, "resets")],
)
def test_a_reset_leaves_numbers_for_others(epoch: int, resets: int, place: str) -> None:
    with pytest.raises(TopologyRefusedError) as caught:
        check(topology(41), topology(epoch, resets))
    assert [one.place for one in caught.value.problems] == [place]


@pytest.mark.parametrize("resets", [-1, 2**63, True, 1.0, "1", None])
def test_resets_are_numbers(resets: Any) -> None:
    values = {**topology(1).to_mapping(), "resets": resets}
    with pytest.raises(TopologyError, match="resets"):
        Topology.from_mapping(values)


def test_resets_are_part_of_a_topology() -> None:
    first, second = topology(7), topology(7, 1)
    assert first != second
    assert hash(second) == hash(topology(7, 1))
    assert pickle.loads(pickle.dumps(second)) == second
    assert read_document(to_json(second), "json", source="x") == second
    assert b"resets" not in to_json(first)
    assert second.redacted() == second
    assert describe(second).startswith("epoch 7, resets 1\n")


def test_a_snapshot_of_the_highest_epoch(tmp_path: Path) -> None:
    snapshot = Snapshot(tmp_path / "x.json", placeholders=())
    snapshot.save(topology(MAX_EPOCH))
    snapshot.save(topology(42, 1))
    assert snapshot.load() == topology(42, 1)
    snapshot.save(topology(MAX_EPOCH))
    assert snapshot.load() == topology(42, 1)


def test_running_applications_go_on_after_a_reset(tmp_path: Path) -> None:
    """A file that is followed, with a snapshot of the highest epoch."""
    path, next_path = tmp_path / "x.json", tmp_path / "next"
    state = tmp_path / "state.json"

    def write(new: Topology) -> None:
        next_path.write_bytes(to_json(new))
        next_path.rename(path)

    write(topology(MAX_EPOCH, primary="sqlite:///x"))
    with Cluster.from_file(path, snapshot=state) as cluster:
        with cluster.session():
            # The first use begins to follow.
            assert cluster.places.topology.epoch == MAX_EPOCH
        write(topology(42, primary="sqlite:///x"))
        assert until(lambda: cluster.health().state == "stale")
        assert cluster.topology.epoch == MAX_EPOCH
        write(topology(42, 1, primary="sqlite:///x"))
        assert until(lambda: cluster.topology.version == (1, 42))
        write(topology(43, 1, primary="sqlite:///y"))
        assert until(lambda: cluster.topology.version == (1, 43))
    path.write_bytes(to_json(topology(MAX_EPOCH, primary="sqlite:///x")))
    with Cluster.from_file(path, snapshot=state) as cluster:
        assert cluster.topology.version == (1, 43)
    assert FileSource(state).load().version == (1, 43)


def test_a_keyspace_keeps_its_kind_of_servers() -> None:
    old = topology(1, primary="mysql://h")
    new = topology(2, primary="sqlite:///data")
    for one, two in ((old, new), (new, topology(3))):
        with pytest.raises(TopologyRefusedError) as caught:
            check(one, two)
        (problem,) = caught.value.problems
        assert problem.place == "keyspaces.main.servers"
        assert "but the data is on" in problem.message
    check(old, topology(2, primary="mariadb+asyncmy://i"))
