"""The layout of ids that begin with the time."""

from __future__ import annotations

import pickle
import random
from typing import Any

import pytest

from sqla_shard import exc
from sqla_shard.ids import IdLayout, TimeLayout
from sqla_shard.testing import sqlite_topology
from sqla_shard.topology import Topology

#: Instagram's example: shard 1341, sequence number 1, 1387263000 seconds
#: since its epoch.
INSTAGRAM = TimeLayout(epoch_ms=1_314_220_021_721)


def test_the_positions_of_the_parts() -> None:
    time_ms = INSTAGRAM.epoch_ms + 1_387_263_000
    found = INSTAGRAM.pack_time(time_ms, 1341, 1)
    assert found == 1_387_263_000 << 23 | 1341 << 10 | 1
    assert INSTAGRAM.shard_of(found) == 1341


@pytest.mark.parametrize("bits", [(13, 10), (1, 4), (8, 16), (16, 8)])
def test_round_trips(bits: tuple[int, int], rng: random.Random) -> None:
    shard_bits, sequence_bits = bits
    layout = TimeLayout(epoch_ms=1, shard_bits=shard_bits, sequence_bits=sequence_bits)
    ids = [0, layout.max_id, *(rng.randrange(layout.max_id) for _ in range(200))]
    for one in ids:
        parts = layout.unpack(one)
        assert int(parts) == layout.pack(*parts) == one
        assert parts.type_id == 0
        assert parts.shard_id == layout.shard_of(one)
        again = pickle.loads(pickle.dumps(parts))
        assert int(again) == one
        assert again.describe() == parts.describe()
    # The local ids of a shard sort as its ids do.
    here = [layout.pack(1, 0, layout.unpack(one).local_id) for one in ids]
    assert sorted(here) == [
        layout.pack(1, 0, local)
        for local in sorted(layout.unpack(one).local_id for one in ids)
    ]
    assert pickle.loads(pickle.dumps(layout)) == layout


@pytest.mark.parametrize(
    "wrong",
    [
        {"epoch_ms": -1},
        {"epoch_ms": 1.5},
        {"epoch_ms": 2**50},
        {"epoch_ms": 1, "shard_bits": 0},
        {"epoch_ms": 1, "shard_bits": 17},
        {"epoch_ms": 1, "sequence_bits": 3},
        {"epoch_ms": 1, "shard_bits": 16, "sequence_bits": 9},
    ],
)
def test_numbers_that_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(exc.IdLayoutError):
        TimeLayout(**wrong)


def test_parts_that_are_refused() -> None:
    for pack in (
        lambda: INSTAGRAM.pack(1, 1, 1),
        lambda: INSTAGRAM.pack(8192, 0, 1),
        lambda: INSTAGRAM.pack_time(INSTAGRAM.epoch_ms - 1, 1, 1),
        lambda: INSTAGRAM.pack_time(INSTAGRAM.epoch_ms + 2**40, 1, 1),
        lambda: INSTAGRAM.pack_time(INSTAGRAM.epoch_ms, 1, 1024),
        lambda: INSTAGRAM.unpack(-1),
        lambda: INSTAGRAM.unpack(2**63),
    ):
        with pytest.raises(exc.InvalidIdError):
            pack()


def test_layouts_are_equal_by_their_numbers() -> None:
    assert TimeLayout(epoch_ms=INSTAGRAM.epoch_ms + 1) != INSTAGRAM
    assert TimeLayout(epoch_ms=INSTAGRAM.epoch_ms) == INSTAGRAM
    assert IdLayout() != INSTAGRAM


def test_a_topology_has_the_layout(tmp_path: Any) -> None:
    document = sqlite_topology(tmp_path, 1, 4)
    space = document["keyspaces"]["objects"]
    space["id_layout"] = INSTAGRAM.to_mapping()
    topology = Topology.from_mapping(document)
    assert topology.id_layout() == INSTAGRAM
    again = Topology.from_mapping(topology.to_mapping())
    assert again.id_layout() == INSTAGRAM
    for wrong, message in (
        ({"epoch_ms": 5}, "shard_bits"),
        ({**INSTAGRAM.to_mapping(), "type_bits": 10}, "type_bits"),
        ({**INSTAGRAM.to_mapping(), "sequence_bits": 40}, "sequence_bits"),
    ):
        space["id_layout"] = wrong
        with pytest.raises(exc.TopologyError, match=message):
            Topology.from_mapping(document)
