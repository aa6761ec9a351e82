"""The runner with the journal next to a file."""

from __future__ import annotations

import json
import os
import signal

import pytest

pytest.importorskip("kazoo")

from sqla_shard.exc import (
    FleetLockedError,
    FleetLockLostError,
    FleetSetupError,
    OperationFailedError,
    TopologyUnavailableError,
)
from sqla_shard.fleet import apply, FleetPlan, resume, status
from sqla_shard.fleet.operation import Step
from sqla_shard.fleet.runner import kinds
from sqla_shard.testing.local_server import wait_until
from sqla_shard.testing.topology_documents import topology_document
from tests.servers.command_line import write
from tests.servers.toy_operation import Toy, toy_fleet
from tests.suites import fleet_journal


@pytest.fixture(scope="module")
def forks():
    with fleet_journal.forks() as found:
        yield found


@pytest.fixture
def scene(tmp_path, forks):
    document = topology_document({"server1": "mysql+pymysql://127.0.0.1:1"}, 8)
    path = write(tmp_path, document)
    return fleet_journal.Scene(location=str(path), folder=tmp_path, forks=forks)


TestApplying = fleet_journal.Applying
TestKilling = fleet_journal.Killing
TestHolding = fleet_journal.Holding


def test_a_stopped_process_has_its_lock_and_goes_on(scene):
    process = scene.start("apply", "stop", "fence", "done")
    fenced = [process, "fence", "done"]
    wait_until(lambda: tuple(fenced) in scene.log, seconds=60)
    with pytest.raises(FleetLockedError) as caught:
        resume(scene.fleet)
    assert caught.value.running
    os.kill(process, signal.SIGCONT)
    result = scene.folder / "result.json"
    wait_until(result.exists, seconds=60)
    assert json.loads(result.read_text())["state"] == "finished"


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b"7", b'{"id": "x"}'])
def test_a_damaged_journal_is_named(scene, damage):
    scene.journal.begin(scene.record("first")).release()
    path = scene.folder / "topology.json.fleet" / "operation.json"
    path.write_bytes(damage)
    for refused in (
        lambda: status(scene.fleet),
        lambda: resume(scene.fleet),
        lambda: scene.journal.begin(scene.record("second")),
    ):
        with pytest.raises(TopologyUnavailableError) as caught:
            refused()
        assert str(path) in str(caught.value)
        assert "remove it" in str(caught.value)


def test_a_removed_lock_file_is_noticed(scene):
    hold = scene.journal.begin(scene.record("first"))
    (scene.folder / "topology.json.fleet" / "lock").unlink()
    with pytest.raises(FleetLockLostError, match="its file was removed"):
        hold.check()
    hold.release()


def test_looking_makes_no_files(scene):
    before = sorted(scene.folder.iterdir())
    assert status(scene.fleet).pending is None
    assert scene.journal.history() == []
    assert sorted(scene.folder.iterdir()) == before


def test_a_folder_that_cannot_be_used_is_named(tmp_path):
    document = topology_document({"server1": "mysql+pymysql://127.0.0.1:1"}, 8)
    path = write(tmp_path, document)
    (tmp_path / "topology.json.fleet").touch()
    with pytest.raises(TopologyUnavailableError, match="cannot be used"):
        status(toy_fleet(str(path)))


def test_a_plan_is_read_back(scene):
    plan = Toy.plan(scene.fleet, scene.folder, problems=["x"])
    document = json.loads(json.dumps(plan.as_dict()))
    assert FleetPlan.from_dict(document) == plan


@pytest.mark.parametrize(
    "document", [None, [], "x", {}, {"plan": 2}, {"plan": 1, "kind": "toy"}]
)
def test_another_document_is_not_a_plan(document):
    with pytest.raises(FleetSetupError, match="--plan-only --json"):
        FleetPlan.from_dict(document)


@pytest.mark.parametrize("kind", sorted({*kinds()} - {"orphans", "toy"}))
def test_each_step_has_a_method(kind):
    for step in kinds()[kind].STEPS:
        assert hasattr(kinds()[kind], f"_do_{step.name.replace('-', '_')}")


class Hooked(Toy):
    """A toy that waits for a hook of the operator before writes are stopped."""

    STEPS = (Toy.STEPS[0], Step("hook", "wait for the hook"), *Toy.STEPS[1:])


def test_a_hook_is_a_step_that_can_stop_the_operation(scene, monkeypatch):
    monkeypatch.setitem(kinds(), "toy", Hooked)
    with pytest.raises(OperationFailedError) as caught:
        apply(scene.fleet, Toy.plan(scene.fleet, scene.folder, fails="hook"))
    assert caught.value.undone
    assert "fence" not in {step for _, step, _ in scene.log}
    apply(scene.fleet, Toy.plan(scene.fleet, scene.folder))
    done = [step for _, step, state in scene.log if state == "done"]
    assert done[-6:] == ["copy", "hook", "fence", "publish", "open", "tidy"]
