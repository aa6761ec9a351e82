"""The runner with the journal in ZooKeeper."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import replace

import pytest

pytest.importorskip("kazoo")

from sqla_shard.exc import FleetLockLostError
from sqla_shard.exc import TopologyConflictError
from sqla_shard.exc import TopologyUnavailableError
from sqla_shard.fleet import resume
from sqla_shard.fleet import status
from sqla_shard.fleet import undo
from sqla_shard.testing.local_server import wait_until
from sqla_shard.testing.topology_documents import topology_document
from sqla_shard.topology import Topology
from sqla_shard.topology.zookeeper import Publisher
from sqla_shard.topology.zookeeper.store import ZooKeeperStore
from tests.suites import fleet_journal

pytestmark = pytest.mark.live

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
        publisher.publish(
            Topology.from_mapping(json.loads(json.dumps(document)))
        )

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


class TestApplying(fleet_journal.Applying):
    pass


class TestKilling(fleet_journal.Killing):
    pass


class TestHolding(fleet_journal.Holding):
    pass


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
                lambda: old.publish(
                    replace(topology, epoch=2), expected_epoch=1
                ),
            ):
                with pytest.raises(FleetLockLostError):
                    refused()
        assert scene.journal.pending().record == later.record
    finally:
        later.release()
        old.release()


def test_a_stale_publication_is_refused_by_zookeeper_itself(
    scene, monkeypatch
):
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
