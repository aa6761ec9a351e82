"""The stage of a move in ZooKeeper."""

from __future__ import annotations

import json
from contextlib import closing, ExitStack
from math import inf
from threading import Barrier, Thread

import pytest
from sqlalchemy import create_engine

pytest.importorskip("kazoo")

from sqla_shard import Cluster
from sqla_shard.exc import StageConflictError, StageUnavailableError
from sqla_shard.migrate import Move, move as move_module
from sqla_shard.migrate.stages import Progress, stage_store, ZooKeeperStageStore
from sqla_shard.testing.topology_documents import sqlite_topology
from sqla_shard.topology.zookeeper.store import Create, ZooKeeperStore
from tests.models.moving_app import Base, CLASSES, DECLARATION
from tests.servers.following import in_child, until

pytestmark = pytest.mark.live

MARKING = Progress(number=1, stage="marking", round=1)
COPYING = Progress(number=2, stage="copying", former="marking", round=1)
LEGACY = Progress(number=2, stage="legacy", former="marking", round=1)


@pytest.fixture
def location(zookeeper_server, request):
    return f"zookeeper://{zookeeper_server.hosts}/{request.node.name}"


@pytest.fixture
def new_store(location):
    """Return a function that opens a store, with a session of its own."""
    with ExitStack() as stack:
        yield lambda: stack.enter_context(closing(stage_store(location)))


def test_changes_by_several_processes(new_store):
    assert new_store().read() == Progress()
    new_store().write(MARKING)
    # As after an answer that was lost.
    new_store().write(MARKING)
    barrier, refused = Barrier(4), []

    def change(new):
        store = new_store()
        barrier.wait(60)
        try:
            store.write(new)
        except StageConflictError as error:
            refused.append((new, error.found))

    threads = [
        Thread(target=change, args=(new,)) for new in (COPYING, LEGACY, COPYING, LEGACY)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    (lost,) = {COPYING.stage, LEGACY.stage} - {new_store().read().stage}
    assert [(new.stage, found) for new, found in refused] == [(lost, 2)] * 2


def test_a_damaged_change_is_an_error(location, new_store):
    new_store().write(MARKING)
    store = ZooKeeperStore(location.removeprefix("zookeeper://"))
    try:
        store.prepare("/moving", like="/topology")
        store.commit(Create("/moving/0000000002", b"{}"))
    finally:
        store.close()
    with pytest.raises(StageUnavailableError, match="change 2 is damaged"):
        new_store().read()
    with pytest.raises(StageUnavailableError, match="change 2 is damaged"):
        new_store().write(COPYING)


def test_an_error_of_zookeeper_is_typed():
    store = ZooKeeperStageStore("zookeeper://127.0.0.1:1/none", timeout=0.5)
    with closing(store), pytest.raises(StageUnavailableError):
        store.read()


@pytest.fixture
def move(location, tmp_path, monkeypatch):
    """Return a move that reads the stage only when it is notified."""
    monkeypatch.setattr(move_module, "_REREAD", inf)
    topology = tmp_path / "topology.json"
    topology.write_text(json.dumps(sqlite_topology(tmp_path, 1, 1)))
    with Cluster.from_file(topology) as cluster:
        engine = create_engine("sqlite://")
        found = Move(
            DECLARATION, Base.metadata, engine, cluster, CLASSES, stage=location
        )
        yield found
        found.close()
        engine.dispose()


def changed(move, new):
    """Change the stage in another process, and wait until it is known."""
    store = stage_store(move.store.name.removesuffix("/moving"))
    store.write(new)
    store.close()
    return until(lambda: move.progress() == new)


def test_a_change_is_known_without_polling(move, monkeypatch):
    # The node does not exist yet.
    assert move.progress() == Progress()
    assert changed(move, MARKING)
    assert changed(move, COPYING)
    reads = []
    read = move.store.read
    monkeypatch.setattr(move.store, "read", lambda: reads.append(1) or read())
    # Its own read may have followed the notification.
    move.progress()
    reads.clear()
    assert {move.progress().number for _ in range(100)} == {2}
    assert not reads


def test_a_change_is_known_after_the_session_has_expired(move, zookeeper_server):
    assert changed(move, MARKING)
    client = move.store._store._connection.client()
    assert zookeeper_server.expire(client.client_id)
    assert changed(move, COPYING)


def test_a_change_is_known_in_a_child_process(move, tmp_path):
    assert changed(move, MARKING)

    def work():
        assert move.progress() == MARKING
        assert changed(move, COPYING)
        move.store.close()

    in_child(work, tmp_path)
    assert until(lambda: move.progress() == COPYING)
