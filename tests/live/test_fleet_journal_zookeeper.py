"""The runner with the journal in ZooKeeper."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import replace
from threading import Timer

import pytest

pytest.importorskip("kazoo")

from sqla_shard.exc import (
    FleetLockedError,
    FleetLockLostError,
    OperationFailedError,
    TopologyConflictError,
    TopologyUnavailableError,
    UndoRefusedError,
)
from sqla_shard.fleet import apply, resume, runner, status, undo
from sqla_shard.testing import ZooKeeperEnsemble
from sqla_shard.testing.local_server import wait_until
from sqla_shard.testing.topology_documents import topology_document
from sqla_shard.topology import to_json, Topology
from sqla_shard.topology.zookeeper import Publisher
from sqla_shard.topology.zookeeper.publications import TOPOLOGY
from sqla_shard.topology.zookeeper.store import ZooKeeperStore
from tests.servers.command_line import invoke, write
from tests.servers.toy_operation import STEPS, Toy
from tests.suites import fleet_journal

pytestmark = pytest.mark.live

#: Whether to take minutes.
SOAK = os.environ.get("SQLA_SHARD_SOAK") == "1"

#: Seconds after which the lock of a process that was killed ends.
SESSION = 2.0


@pytest.fixture(scope="module")
def forks(zookeeper_installed):
    with fleet_journal.forks() as found:
        yield found


def scene_at(hosts, folder, forks):
    """Publish a topology, and return the scene."""
    location = f"zookeeper://{hosts}/{folder.name}"
    document = topology_document({"server1": "mysql+pymysql://127.0.0.1:1"}, 8)
    with Publisher(location) as publisher:
        publisher.publish(Topology.from_mapping(json.loads(json.dumps(document))))

    def expire() -> None:
        # As ZooKeeper does it SESSION seconds later.
        store = ZooKeeperStore(f"{hosts}/{folder.name}")
        try:
            store.remove(["/fleet/lock"])
        finally:
            store.close()

    return fleet_journal.Scene(
        location=location,
        folder=folder,
        forks=forks,
        options={"session_timeout": SESSION},
        expire=expire,
    )


@pytest.fixture
def scene(zookeeper_server, tmp_path, forks):
    return scene_at(zookeeper_server.hosts, tmp_path, forks)


TestApplying = fleet_journal.Applying
TestKilling = fleet_journal.Killing
TestHolding = fleet_journal.Holding


@pytest.mark.thorough
@pytest.mark.parametrize("action", ["resume", "undo"])
@pytest.mark.parametrize("step", ["copy", "fence"])
def test_a_process_that_slept_does_no_more_step(scene, step, action):
    process = scene.start("apply", "stop", step, "done")
    wait_until(lambda: (process, step, "done") in _log(scene), seconds=60)
    function = {"resume": resume, "undo": undo}[action]
    done = function(scene.fleet)
    before = _log(scene)
    os.kill(process, signal.SIGCONT)
    result = scene.folder / "result.json"
    wait_until(result.exists, seconds=60)
    found = json.loads(result.read_text())
    assert found["error"] == "FleetLockLostError", found
    after = [line for line in _log(scene) if line not in before]
    # A critical step is not recorded: ZooKeeper refuses the publication.
    allowed = [(process, "publish", "begin")] if step == "fence" else []
    assert after in ([], allowed)
    assert scene.fleet.topology().epoch == done.epoch
    assert scene.state == ({"copy", "tidy"} if action == "resume" else set())


@pytest.mark.thorough
def test_the_lock_of_a_killed_process_ends_by_itself(scene):
    scene = replace(scene, expire=bool)
    scene.killed("open", "begin")
    assert resume(scene.fleet).state == "finished"


def _log(scene):
    return [tuple(line) for line in scene.log]


def test_an_old_process_cannot_write_a_later_operation(scene):
    """The version of the node must not begin again."""
    old = scene.journal.begin(scene.record("first"))
    for number in range(3):
        old.write(replace(old.record, step=f"step{number}"))
    topology = old.topology()
    # Another process finishes it, while this one sleeps.
    old._store.close()
    new = scene.journal.take_over()
    new.write(replace(new.record, state="finished"))
    new.release()
    later = scene.journal.begin(scene.record("second"))
    try:
        for number in range(6):
            later.write(replace(later.record, step=f"step{number}"))
            for refused in (
                lambda: old.write(replace(old.record, step="late")),
                lambda: old.publish(replace(topology, epoch=2), expected_epoch=1),
            ):
                with pytest.raises(FleetLockLostError):
                    refused()
        assert scene.journal.pending().record == later.record
    finally:
        later.release()
        old.release()


def test_a_stale_publication_is_refused_by_zookeeper_itself(scene, monkeypatch):
    hold = scene.journal.begin(scene.record("first"))
    topology = hold.topology()
    hold._store.close()
    new = scene.journal.take_over()
    try:
        # It is taken over between the check and the transaction.
        monkeypatch.setattr(hold, "check", lambda: None)
        with pytest.raises(TopologyConflictError):
            hold.publish(replace(topology, epoch=2), expected_epoch=1)
        assert scene.fleet.topology().epoch == 1
    finally:
        new.release()
        monkeypatch.undo()
        hold.release()


def test_a_session_that_expired_takes_its_lock_again(zookeeper_server, scene):
    hold = scene.journal.begin(scene.record("first"))
    try:
        client = hold._store._connection.client()
        zookeeper_server.expire(client.client_id)
        wait_until(lambda: status(scene.fleet).is_interrupted, seconds=60)
        hold.write(replace(hold.record, step="copy"))
        found = status(scene.fleet).pending
        assert found is not None
        assert found.running
        assert found.record.step == "copy"
        zookeeper_server.expire(hold._store._connection.client().client_id)
        wait_until(lambda: status(scene.fleet).is_interrupted, seconds=60)
        hold.check()
        assert not status(scene.fleet).is_interrupted
        zookeeper_server.expire(hold._store._connection.client().client_id)
        wait_until(lambda: status(scene.fleet).is_interrupted, seconds=60)
        hold.write(replace(hold.record, state="finished"))
    finally:
        hold.release()
    assert status(scene.fleet).pending is None


@pytest.mark.parametrize("damage", [b"{", b"[]", b"7", b'{"id": "x"}'])
def test_a_damaged_journal_is_named(scene, damage):
    scene.journal.begin(scene.record("first")).release()
    store = scene.journal._open()
    try:
        client = store._connection.client()
        client.set(f"/{scene.folder.name}/fleet/operation", damage)
    finally:
        store.close()
    for refused in (
        lambda: status(scene.fleet),
        lambda: resume(scene.fleet),
        lambda: scene.journal.begin(scene.record("second")),
    ):
        with pytest.raises(TopologyUnavailableError, match="is damaged"):
            refused()


class _Losing:
    """Loses the answer of one transaction, or the transaction itself."""

    def __init__(self, monkeypatch, *, after):
        self.after = after
        self.commit = ZooKeeperStore.commit
        self.left = 0
        monkeypatch.setattr(ZooKeeperStore, "commit", lambda *args: self.lose(*args))

    def lose(self, store, *changes):
        if self.left == 0:
            return self.commit(store, *changes)
        self.left -= 1
        if self.after:
            self.commit(store, *changes)
        raise store.unavailable("the connection was lost")


@pytest.mark.parametrize("after", [True, False])
def test_lost_answers_are_found_out(scene, monkeypatch, after):
    losing = _Losing(monkeypatch, after=after)
    record = scene.record("first")
    losing.left = 1
    if not after:
        with pytest.raises(TopologyUnavailableError, match="was not started"):
            scene.journal.begin(record)
    hold = scene.journal.begin(record)
    for step in ("copy", "fence"):
        losing.left = 1
        hold.write(replace(hold.record, step=step))
        assert scene.journal.pending().record.step == step
    hold.release()
    losing.left = 1
    if not after:
        with pytest.raises(TopologyUnavailableError, match="not taken over"):
            scene.journal.take_over()
    hold = scene.journal.take_over()
    assert hold.record.token == 2
    losing.left = 1
    new = replace(hold.topology(), epoch=2)
    if not after:
        with pytest.raises(TopologyUnavailableError, match="nothing was pub"):
            hold.publish(new, expected_epoch=1)
    assert hold.publish(new, expected_epoch=1).epoch == 2
    losing.left = 1
    hold.write(replace(hold.record, state="finished"))
    assert [one.state for one in scene.journal.history()] == ["finished"]
    hold.release()
    assert scene.journal.pending() is None


@pytest.fixture
def publish(scene):
    """Returns a function that runs a command of ``sqla-shard topology``."""
    document = json.loads(to_json(scene.fleet.topology()))
    path = write(scene.folder, {**document, "epoch": 5}, "next.json")
    arguments = {"push": (path,), "rollback": ("--to", 1), "reset": (path,)}

    def run(command, *more):
        options = (*arguments[command], *more)
        return invoke("-t", scene.location, "topology", command, *options, "--yes")

    return run


@pytest.mark.parametrize("command", ["push", "rollback", "reset"])
def test_nothing_is_published_while_an_operation_is_pending(scene, publish, command):
    scene.killed("copy", "done")
    for more in ((), ("--dry-run",)):
        done = publish(command, *more)
        assert done.exit_code == 1
        assert "toy was started by" in done.stderr
        assert "sqla-shard fleet resume, or" in done.stderr
    assert scene.fleet.topology().epoch == 1
    assert publish(command, "--force").exit_code == 0
    assert scene.fleet.topology().epoch > 1
    assert undo(scene.fleet).state == "undone"
    assert publish(command, "--dry-run").exit_code == 0


def test_an_operation_that_begins_during_a_publication_is_named(
    scene, publish, monkeypatch
):
    first = scene.journal.begin(scene.record("first"))
    first.write(replace(first.record, state="finished"))
    first.release()
    find = Publisher._none_pending
    holds = []

    def begin_after(publisher):
        found = find(publisher)
        if not holds:
            holds.append(scene.journal.begin(scene.record("second")))
        return found

    topology = scene.fleet.topology()
    monkeypatch.setattr(Publisher, "_none_pending", begin_after)
    try:
        with (
            Publisher(scene.location) as publisher,
            pytest.raises(FleetLockedError, match="second is running"),
        ):
            publisher.publish(replace(topology, epoch=2))
        assert scene.fleet.topology() == topology
    finally:
        for hold in holds:
            hold.release()


def test_a_server_of_zookeeper_that_is_behind_is_not_believed(scene, monkeypatch):
    """It answers with the former topology until the session calls sync."""
    former = scene.journal._open()
    old = former.read(TOPOLOGY)
    former.close()
    scene.killed("publish", "middle")
    read, sync = ZooKeeperStore.read, ZooKeeperStore.sync
    synced = set()

    def read_behind(store, node):
        return read(store, node) if id(store) in synced else old

    monkeypatch.setattr(
        ZooKeeperStore,
        "read",
        lambda store, node: (read_behind if node == TOPOLOGY else read)(store, node),
    )
    monkeypatch.setattr(
        ZooKeeperStore, "sync", lambda store: (sync(store), synced.add(id(store)))
    )
    with pytest.raises(UndoRefusedError):
        undo(scene.fleet)
    assert resume(scene.fleet).epoch == 2


@pytest.mark.thorough
def test_an_operation_is_undone_after_zookeeper_was_away(
    zookeeper_proxy, tmp_path, forks
):
    """It waits for the journal, since writes are stopped."""
    proxy = zookeeper_proxy
    scene = scene_at(f"{proxy.host}:{proxy.port}", tmp_path, forks)
    plan = Toy.plan(scene.fleet, scene.folder)
    timer = Timer(7.0, proxy.restore)

    def cut(event):
        if (event.step, event.state) == ("fence", "done"):
            proxy.hang()
            timer.start()

    with pytest.raises(OperationFailedError) as caught:
        apply(scene.fleet, plan, progress=cut)
    timer.join()
    assert caught.value.undone
    assert "no answer in 5 seconds" in str(caught.value)
    assert scene.state == set()
    (record,) = scene.journal.history()
    assert record.state == "undone"


@pytest.mark.thorough
def test_an_operation_stays_if_zookeeper_stays_away(
    zookeeper_proxy, tmp_path, forks, monkeypatch
):
    monkeypatch.setattr(runner, "_PATIENCE_SECONDS", 0.1)
    proxy = zookeeper_proxy
    scene = scene_at(f"{proxy.host}:{proxy.port}", tmp_path, forks)
    plan = Toy.plan(scene.fleet, scene.folder)

    def cut(event):
        if (event.step, event.state) == ("copy", "done"):
            proxy.hang()

    with pytest.raises(OperationFailedError) as caught:
        apply(scene.fleet, plan, progress=cut)
    assert not caught.value.undone
    assert "and then: " in str(caught.value)
    proxy.restore()
    assert undo(scene.fleet).state == "undone"
    assert scene.state == set()


@pytest.mark.thorough
def test_the_leader_is_killed_between_steps(
    zookeeper_installed, tmp_path_factory, forks
):
    with ZooKeeperEnsemble(servers=3) as ensemble:
        for step in STEPS if SOAK else ("publish",):
            folder = tmp_path_factory.mktemp(step)
            scene = scene_at(ensemble.hosts, folder, forks)
            plan = Toy.plan(scene.fleet, folder)

            def kill(event, step=step):
                if (event.step, event.state) == (step, "begin"):
                    ensemble.leader().kill()

            try:
                done = apply(scene.fleet, plan, progress=kill)
            except OperationFailedError as error:
                # While writes are stopped, it does not wait for an election.
                failed = error
                assert step in ("fence", "publish")
                assert scene.state == set()
            else:
                failed = None
                assert (done.state, done.epoch) == ("finished", 2)
                assert scene.state == {"copy", "tidy"}
                assert [
                    name for _, name, state in scene.log if state == "done"
                ] == list(STEPS)
            assert failed is None or failed.undone
            assert scene.journal.pending() is None
            ensemble.start()
            # And a process that is killed with it.
            folder = tmp_path_factory.mktemp(step)
            scene = scene_at(ensemble.hosts, folder, forks)
            process = scene.start("apply", "kill", step, "middle")
            ensemble.leader().kill()
            wait_until(lambda process=process: not _runs(process), seconds=60)
            ensemble.start()
            if status(scene.fleet).pending is not None:
                assert resume(scene.fleet).state == "finished"
                assert scene.state == {"copy", "tidy"}


def _runs(process):
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True
