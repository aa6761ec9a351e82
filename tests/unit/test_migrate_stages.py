"""The order of stages, and their store next to a topology file."""

from __future__ import annotations

from dataclasses import replace
from threading import Barrier, Thread

import pytest

from sqla_shard.exc import StageConflictError, StageRefusedError, StageUnavailableError
from sqla_shard.migrate.stages import (
    advanced,
    FileStageStore,
    Progress,
    stage_store,
    STAGES,
)

SWITCHED = ("marking", "copying", "reading", "closing", "switched")


def after(*names):
    """Return the progress after stages whose conditions are met."""
    progress = Progress()
    for name in names:
        progress = advanced(
            progress, name, fences=[progress.number], met=progress.rules.needs
        )
    return progress


def test_the_truth_changes_only_where_neither_side_accepts_writes():
    for stage in STAGES.values():
        for name in (stage.forward, stage.back):
            if name is None:
                continue
            sides = {stage.truth, STAGES[name].truth}
            assert sides != {"legacy", "shards"}


def test_marks_begin_a_stage_before_copies_do():
    for stage in STAGES.values():
        assert stage.marks or stage.copies is None
        for name in (stage.forward, stage.back):
            if name is not None and STAGES[name].copies:
                assert stage.marks, f"{stage.name} -> {name}"


def test_each_stage_before_the_last_has_a_way_back_to_the_database():
    for stage in STAGES.values():
        if stage.name == "detached":
            continue
        seen = set()
        while stage.truth != "legacy":
            assert stage.name not in seen
            seen.add(stage.name)
            forward = stage.name == "returning"
            stage = STAGES[stage.forward if forward else stage.back]


def test_the_numbers_and_rounds_of_a_move():
    assert after(*SWITCHED) == Progress(
        number=5, stage="switched", former="closing", round=1
    )
    assert after("marking", "legacy", "marking").round == 2
    assert after("marking", "copying", "marking").round == 1


def test_shares_of_reads_end_with_the_stages_that_have_them():
    reading = replace(after(*SWITCHED[:3]), shares={"posts": 10})
    closing = advanced(reading, "closing", fences=[3], met={"equal"})
    assert closing.shares == {"posts": 10}
    assert advanced(reading, "copying", fences=[3]).shares == {}


@pytest.mark.parametrize(
    ("names", "wanted", "fences", "met", "reason"),
    [
        ((), "copying", [0], (), "the ways are to marking"),
        (("marking",), "reading", [1], (), "copying and legacy"),
        ((*SWITCHED, "detached"), "switched", [6], (), "no other stage"),
        (SWITCHED[:2], "reading", [2], {"equal"}, "were copied"),
        (SWITCHED[:4], "switched", [4], {"claimed"}, "wait to be"),
        (SWITCHED[:1], "copying", [1, 0, 1], (), "not every database"),
        (SWITCHED[:1], "copying", [], (), "not every database"),
    ],
)
def test_refused_changes(names, wanted, fences, met, reason):
    with pytest.raises(StageRefusedError, match=reason) as caught:
        advanced(after(*names), wanted, fences=fences, met=met)
    assert caught.value.wanted == wanted


def test_going_back_needs_no_condition():
    assert advanced(after(*SWITCHED[:4]), "reading", fences=[4])


def test_a_move_that_was_never_started(tmp_path):
    assert stage_store(tmp_path / "topology.toml").read() == Progress()
    assert not list(tmp_path.iterdir())


def test_changes_are_stored_with_their_history(tmp_path):
    store = FileStageStore(tmp_path / "topology.toml")
    for count in range(1, 4):
        store.write(after(*SWITCHED[:count]))
        assert store.read() == after(*SWITCHED[:count])
    store.write(after(*SWITCHED[:3]))
    names = sorted(path.name for path in (tmp_path / store.name).iterdir())
    assert names == [f"{number:010d}.json" for number in (1, 2, 3)]


def test_of_two_processes_one_changes_the_stage(tmp_path):
    stores = [FileStageStore(tmp_path / "topology.toml") for _ in range(8)]
    stores[0].write(after("marking"))
    barrier, refused = Barrier(len(stores)), []

    def change(index):
        name = ("copying", "legacy")[index % 2]
        barrier.wait(60)
        try:
            stores[index].write(after("marking", name))
        except StageConflictError as error:
            refused.append((index % 2, error.found))

    threads = [Thread(target=change, args=(i,)) for i in range(len(stores))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    lost = {"copying": 1, "legacy": 0}[stores[0].read().stage]
    assert refused == [(lost, 2)] * 4


def test_a_change_of_an_old_stage_is_refused(tmp_path):
    store = FileStageStore(tmp_path / "topology.toml")
    store.write(after("marking"))
    store.write(after("marking", "copying"))
    with pytest.raises(StageConflictError, match=r"change 2 .* instead of 1"):
        store.write(after("marking", "legacy"))
    with pytest.raises(StageConflictError):
        store.write(replace(after("marking"), number=9))


@pytest.mark.parametrize(
    "data", [b"", b"[]", b'{"stage": "moving"}', b'{"number": 4}', b'{"x": 1}']
)
def test_a_damaged_change_is_an_error(tmp_path, data):
    # Never the stage before: its writes would go to the wrong side.
    store = FileStageStore(tmp_path / "topology.toml")
    store.write(after("marking"))
    path = tmp_path / "topology.toml.moving" / "0000000001.json"
    path.write_bytes(data)
    with pytest.raises(StageUnavailableError, match="change 1 is damaged"):
        store.read()
