"""The runner and the journal: processes that are killed, stopped, and race.

A suite for a place of the topology has the fixture ``scene``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Barrier, Thread
from typing import Any

import pytest

from sqla_shard.exc import (
    FleetLockedError,
    FleetLockLostError,
    FleetSetupError,
    NoOperationError,
    OperationFailedError,
    OperationRefusedError,
    StaleTopologyError,
    TopologyConflictError,
    TopologyRefusedError,
    UndoRefusedError,
)
from sqla_shard.fleet import apply, Fleet, resume, runner, status, undo
from sqla_shard.fleet.journal import FleetJournal, Record
from sqla_shard.fleet.operation import StepEvent
from sqla_shard.testing.local_server import wait_until
from sqla_shard.topology import to_json, Topology
from sqla_shard.topology.follow import is_zookeeper
from sqla_shard.topology.history import current_author
from sqla_shard.topology.zookeeper import Publisher
from tests.servers.command_line import invoke
from tests.servers.published import publish_to
from tests.servers.toy_operation import STEPS, Toy, toy_fleet
from tests.workers.forks import Forks

_FINISHED = {"copy", "tidy"}
_BEFORE = [
    (step, state) for step in ("copy", "fence") for state in ("begin", "middle", "done")
] + [("publish", "begin")]
_AFTER = [
    ("publish", "middle"),
    ("publish", "done"),
    *(
        (step, state)
        for step in ("open", "tidy")
        for state in ("begin", "middle", "done")
    ),
]


@dataclass(frozen=True)
class Scene:
    """A topology at epoch 1, and a folder for the toy.

    :ivar location: of the topology.
    :ivar folder: of the toy.
    :ivar forks: starts processes.
    :ivar options: of the fleet.
    :ivar expire: ends the lock of a process that was killed.
    """

    location: str
    folder: Path
    forks: Forks
    options: dict[str, Any] = field(default_factory=dict)
    expire: Callable[[], object] = bool

    @property
    def fleet(self) -> Fleet:
        return toy_fleet(self.location, **self.options)

    @property
    def journal(self) -> FleetJournal:
        return self.fleet.journal

    @property
    def state(self) -> set[str]:
        """The names of the files that stand for servers."""
        return {path.name for path in (self.folder / "state").iterdir()}

    @property
    def log(self) -> list[tuple[int, str, str]]:
        """Process, step and state of all that was done."""
        path = self.folder / "log"
        lines = path.read_text().splitlines() if path.exists() else []
        return [tuple(json.loads(line)) for line in lines]  # type: ignore[misc]

    def start(self, action: str, *at: str, **arguments: Any) -> int:
        """Start a process that applies, resumes or undoes the toy."""
        return self.forks.start(
            "run_toy",
            location=self.location,
            folder=str(self.folder),
            action=action,
            at=at,
            result=str(self.folder / "result.json"),
            arguments=arguments,
            options=self.options,
        )

    def killed(self, step: str, state: str) -> int:
        """Apply in a process until it kills itself there."""
        process = self.start("apply", "kill", step, state)
        self.await_end(process)
        assert not (self.folder / "result.json").exists()
        return process

    def await_end(self, process: int) -> None:
        """Wait until a process that kills itself is gone."""
        wait_until(lambda: not _exists(process), seconds=60)
        self.expire()

    def record(self, name: str) -> Record:
        plan = Toy.plan(self.fleet, self.folder, title=name)
        return Record(id=name, plan=plan.as_dict(), token=1, holder=name, started=1.0)


@contextmanager
def forks() -> Iterator[Forks]:
    """Yield what starts the processes."""
    with Forks("tests.servers.toy_operation") as found:
        yield found


def _exists(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


class Applying:
    """Operations of one process."""

    def test_all_steps_are_done_once_in_order(self, scene):
        events = []
        plan = Toy.plan(scene.fleet, scene.folder)
        done = apply(scene.fleet, plan, progress=events.append)
        assert (done.state, done.epoch) == ("finished", 2)
        assert [step for _, step, state in scene.log if state == "done"] == [*STEPS]
        assert scene.state == _FINISHED
        assert done.pause is not None
        assert 0 < done.pause <= done.steps["open"]
        assert done.notes["publish"] == {"epoch": 2}
        assert [(e.step, e.state) for e in events] == [
            (step, state) for step in STEPS for state in ("begin", "done")
        ]
        (record,) = scene.journal.history()
        assert (record.state, record.done) == ("finished", STEPS)
        assert record.notes == done.notes
        assert record.pause == done.pause
        assert status(scene.fleet).pending is None
        shown = invoke("-t", scene.location, "topology", "history", "--json")
        latest = json.loads(shown.stdout)[0]
        assert latest["epoch"] == 2
        assert latest["author"] == current_author()
        assert latest["message"] == f"{plan.title} ({record.id})"
        assert latest["bytes"] > 100

    def test_problems_are_refused_together_and_nothing_stays(self, scene):
        plan = Toy.plan(scene.fleet, scene.folder, problems=["this", "that"])
        with pytest.raises(OperationRefusedError) as caught:
            apply(scene.fleet, replace(plan, epoch=7))
        said = str(caught.value)
        assert "made for epoch 7, but epoch 1 is published" in said
        assert "this" in said
        assert "that" in said
        assert scene.log == []
        assert scene.journal.pending() is None
        (record,) = scene.journal.history()
        assert (record.state, record.step) == ("undone", None)

    def test_an_unknown_kind_does_not_stay_pending(self, scene):
        plan = Toy.plan(scene.fleet, scene.folder)
        with pytest.raises(FleetSetupError, match="'other' is not"):
            apply(scene.fleet, replace(plan, kind="other"))
        assert scene.journal.pending() is None

    @pytest.mark.parametrize("step", ["copy", "fence"])
    def test_an_error_before_publish_is_undone(self, scene, step):
        plan = Toy.plan(scene.fleet, scene.folder, fails=step)
        with pytest.raises(OperationFailedError) as caught:
            apply(scene.fleet, plan)
        assert caught.value.undone
        assert caught.value.step == step
        assert scene.state == set()
        assert scene.fleet.topology().epoch == 1
        (record,) = scene.journal.history()
        assert (record.state, record.problem) == ("undone", "toy: no (error 1)")

    @pytest.mark.parametrize("step", ["publish", "open", "tidy"])
    def test_an_error_after_publish_stays_and_is_resumed(
        self, scene, step, monkeypatch
    ):
        plan = Toy.plan(scene.fleet, scene.folder, fails=step)
        with pytest.raises(OperationFailedError) as caught:
            apply(scene.fleet, plan)
        assert not caught.value.undone
        found = status(scene.fleet)
        assert found.is_interrupted
        assert found.is_published
        assert found.commands == ("sqla-shard fleet resume",)
        assert "toy: no (error 1)" in str(found)
        with pytest.raises(UndoRefusedError, match="epoch 2"):
            undo(scene.fleet)
        monkeypatch.setattr(Toy, "run", _never_fails(Toy.run))
        assert resume(scene.fleet).state == "finished"
        assert scene.state == _FINISHED

    def test_ctrl_c_is_undone(self, scene):
        plan = Toy.plan(scene.fleet, scene.folder, interrupts="fence")
        with pytest.raises(KeyboardInterrupt):
            apply(scene.fleet, plan)
        assert scene.state == set()
        (record,) = scene.journal.history()
        assert (record.state, record.problem) == ("undone", "KeyboardInterrupt")

    def test_ctrl_c_after_publish_stays(self, scene):
        plan = Toy.plan(scene.fleet, scene.folder, interrupts="open")
        with pytest.raises(KeyboardInterrupt):
            apply(scene.fleet, plan)
        assert status(scene.fleet).is_interrupted

    def test_a_failed_undo_can_only_be_undone(self, scene):
        (scene.folder / "undo_fails").touch()
        plan = Toy.plan(scene.fleet, scene.folder, fails="fence")
        with pytest.raises(OperationFailedError) as caught:
            apply(scene.fleet, plan)
        assert not caught.value.undone
        assert "no (error 1); and the undo failed: toy: no undo" in str(caught.value)
        found = status(scene.fleet)
        assert found.commands == ("sqla-shard fleet undo",)
        with pytest.raises(OperationFailedError, match="no undo"):
            resume(scene.fleet)
        (scene.folder / "undo_fails").unlink()
        assert resume(scene.fleet).state == "undone"
        assert scene.state == set()

    def test_a_progress_that_fails_stops_nothing(self, scene):
        def fail(event: object) -> None:
            raise BrokenPipeError

        plan = Toy.plan(scene.fleet, scene.folder)
        assert apply(scene.fleet, plan, progress=fail).state == "finished"


def _never_fails(do):
    def run(self, name):
        plan = self.plan
        self.plan = replace(plan, arguments={**plan.arguments, "fails": None})
        return do(self, name)

    return run


class Killing:
    """Processes that end in the middle."""

    @pytest.mark.parametrize(("step", "state"), [*_BEFORE, *_AFTER])
    def test_resume(self, scene, step, state):
        scene.killed(step, state)
        found = status(scene.fleet)
        assert found.is_published == ((step, state) in _AFTER)
        done = resume(scene.fleet)
        assert (done.state, done.epoch) == ("finished", 2)
        assert scene.state == _FINISHED
        assert scene.journal.pending() is None
        # The writes had been stopped for longer than was measured.
        if (step, state) not in _BEFORE[:3]:
            assert done.pause is None
        (record,) = scene.journal.history()
        assert record.token == 2
        assert record.pause == done.pause

    @pytest.mark.parametrize(("step", "state"), _BEFORE)
    def test_undo(self, scene, step, state):
        scene.killed(step, state)
        done = undo(scene.fleet)
        assert (done.state, done.epoch) == ("undone", 1)
        assert scene.state == set()
        assert scene.journal.pending() is None

    @pytest.mark.parametrize(("step", "state"), _AFTER)
    def test_undo_is_refused_after_publish(self, scene, step, state):
        scene.killed(step, state)
        with pytest.raises(UndoRefusedError, match="fleet resume"):
            undo(scene.fleet)
        assert status(scene.fleet).commands == ("sqla-shard fleet resume",)
        assert resume(scene.fleet).state == "finished"
        assert scene.state == _FINISHED

    def test_an_undo_before_the_first_step_touches_nothing(self, scene):
        # Its process has died while it checked.
        scene.journal.begin(scene.record("first")).release()
        assert undo(scene.fleet).state == "undone"
        assert scene.log == []
        assert scene.journal.pending() is None

    def test_an_undo_that_was_killed_is_not_resumed_forward(self, scene):
        scene.killed("fence", "done")
        scene.await_end(scene.start("undo", "kill", "undo", "middle"))
        found = status(scene.fleet)
        assert found.commands == ("sqla-shard fleet undo",)
        assert resume(scene.fleet).state == "undone"
        assert scene.state == set()

    def test_an_undo_looks_again_after_it_was_recorded(self, scene, monkeypatch):
        scene.killed("publish", "begin")
        look = runner._OperationRun.refuse_undo

        def publish_late(run):
            look(run)
            publish_of_toy(scene)

        monkeypatch.setattr(runner._OperationRun, "refuse_undo", publish_late)
        with pytest.raises(UndoRefusedError, match="fleet resume"):
            undo(scene.fleet)
        assert scene.state == {"copy", "fence"}
        assert status(scene.fleet).commands == ("sqla-shard fleet resume",)
        assert resume(scene.fleet).state == "finished"
        assert scene.state == _FINISHED

    def test_an_undo_of_what_is_published_is_resumed(self, scene):
        scene.killed("publish", "begin")
        scene.await_end(scene.start("undo", "kill", "undo", "undo"))
        publish_of_toy(scene)
        assert status(scene.fleet).commands == ("sqla-shard fleet resume",)
        with pytest.raises(UndoRefusedError, match="fleet resume"):
            undo(scene.fleet)
        assert resume(scene.fleet).state == "finished"
        assert scene.state == _FINISHED

    def test_a_resume_after_another_publication_is_undone(self, scene):
        scene.killed("copy", "done")
        publish_next(scene.location)
        with pytest.raises(OperationFailedError) as caught:
            resume(scene.fleet)
        assert caught.value.undone
        assert "but epoch 2 is published" in str(caught.value)
        assert scene.state == set()

    def test_a_publication_before_publish_is_undone(self, scene):
        plan = Toy.plan(scene.fleet, scene.folder)

        def publish(event: StepEvent) -> None:
            if (event.step, event.state) == ("publish", "begin"):
                publish_next(scene.location)

        with pytest.raises(OperationFailedError) as caught:
            apply(scene.fleet, plan, progress=publish)
        assert caught.value.undone
        assert isinstance(caught.value.__cause__, TopologyConflictError)
        assert scene.state == set()

    def test_another_operation_is_refused_and_names_the_first(self, scene):
        scene.killed("copy", "done")
        with pytest.raises(FleetLockedError) as caught:
            apply(scene.fleet, Toy.plan(scene.fleet, scene.folder))
        assert not caught.value.running
        assert "toy was started by" in str(caught.value)
        assert "fleet resume" in str(caught.value)
        undo(scene.fleet)


class Holding:
    """The lock, and processes that lose it."""

    def test_a_running_operation_is_not_taken_over(self, scene):
        hold = scene.journal.begin(scene.record("first"))
        try:
            for refused in (
                lambda: scene.journal.begin(scene.record("second")),
                scene.journal.take_over,
            ):
                with pytest.raises(FleetLockedError) as caught:
                    refused()
                assert caught.value.running
                assert "first is running (first)" in str(caught.value)
            found = status(scene.fleet)
            assert found.pending is not None
            assert found.pending.running
            assert "first holds the lock; wait" in str(found)
        finally:
            hold.release()
        assert status(scene.fleet).is_interrupted

    def test_nothing_is_taken_over_if_nothing_is_pending(self, scene):
        with pytest.raises(NoOperationError):
            resume(scene.fleet)
        with pytest.raises(NoOperationError):
            undo(scene.fleet)

    def test_of_many_that_begin_at_once_one_wins(self, scene):
        barrier = Barrier(8)
        ends: list[Any] = []

        def begin(number: int) -> None:
            record = scene.record(f"number{number}")
            barrier.wait()
            try:
                ends.append(scene.journal.begin(record))
            except FleetLockedError as error:
                ends.append(error)

        threads = [Thread(target=begin, args=(n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        (hold,) = [one for one in ends if not isinstance(one, Exception)]
        assert len(ends) == 8
        found = scene.journal.pending()
        assert found.record == hold.record
        hold.release()

    def test_of_many_that_take_over_at_once_one_wins(self, scene):
        scene.journal.begin(scene.record("first")).release()
        barrier = Barrier(6)
        ends: list[Any] = []

        def take_over() -> None:
            barrier.wait()
            try:
                ends.append(scene.journal.take_over())
            except FleetLockedError as error:
                ends.append(error)

        threads = [Thread(target=take_over) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        (hold,) = [one for one in ends if not isinstance(one, Exception)]
        assert len(ends) == 6
        assert hold.record.token == 2
        hold.release()

    def test_a_released_lock_writes_nothing(self, scene):
        hold = scene.journal.begin(scene.record("first"))
        hold.release()
        new = scene.journal.take_over()
        try:
            changed = replace(hold.record, step="copy")
            topology = scene.fleet.topology()
            for refused in (
                hold.check,
                lambda: hold.write(changed),
                lambda: hold.publish(replace(topology, epoch=2), expected_epoch=1),
            ):
                with pytest.raises(FleetLockLostError):
                    refused()
            new.check()
            assert scene.journal.pending().record == new.record
            assert scene.fleet.topology().epoch == 1
        finally:
            hold.release()
            new.release()

    def test_publish_wants_the_epoch_and_can_be_repeated(self, scene):
        hold = scene.journal.begin(scene.record("first"))
        try:
            new = replace(scene.fleet.topology(), epoch=2)
            with pytest.raises(TopologyConflictError):
                hold.publish(new, expected_epoch=7)
            for _ in range(2):
                assert hold.publish(new, expected_epoch=1).epoch == 2
            with pytest.raises(TopologyConflictError):
                hold.publish(replace(new, epoch=3), expected_epoch=1)
            assert hold.topology().epoch == 2
            hold.check()
        finally:
            hold.release()

    def test_publish_refuses_what_no_topology_may_do(self, scene):
        hold = scene.journal.begin(scene.record("first"))
        try:
            old = scene.fleet.topology()
            (name,) = old.keyspaces
            other = replace(
                old.keyspaces[name], database="other{shard:05d}", kind="mod"
            )
            with pytest.raises(TopologyRefusedError) as caught:
                hold.publish(
                    replace(old, epoch=2, keyspaces={name: other}), expected_epoch=1
                )
            places = {problem.place for problem in caught.value.problems}
            assert places == {f"keyspaces.{name}.kind", f"keyspaces.{name}.database"}
            (server,) = old.keyspaces[name].servers
            other = replace(old.keyspaces[name], servers=(replace(server, weight=0.5),))
            for epoch, refusal in (
                (1, StaleTopologyError),
                (10**15, TopologyRefusedError),
            ):
                with pytest.raises(refusal):
                    hold.publish(
                        replace(old, epoch=epoch, keyspaces={name: other}),
                        expected_epoch=1,
                    )
            assert scene.fleet.topology() == old
        finally:
            hold.release()

    def test_history_is_the_latest_first_and_limited(self, scene):
        for number in range(3):
            hold = scene.journal.begin(scene.record(f"id{number}"))
            hold.write(replace(hold.record, state="finished"))
            hold.release()
        ids = [record.id for record in scene.journal.history(2)]
        assert ids == ["id2", "id1"]


def publish_next(location: str) -> None:
    """Publish the same topology with the next epoch."""
    old = toy_fleet(location).topology()
    _publish(location, replace(old, epoch=old.epoch + 1))


def publish_of_toy(scene: Scene) -> None:
    """Publish the topology of the toy, as a process that lost the lock."""
    plan = Toy.plan(scene.fleet, scene.folder)
    _publish(scene.location, Toy(scene.fleet, plan).changed(scene.fleet.topology()))


def _publish(location: str, new: Topology) -> None:
    if is_zookeeper(location):
        with Publisher(location) as publisher:
            publisher.publish(new, force=True)
    else:
        publish_to(Path(location), json.loads(to_json(new)))
