"""The stage of a move in ZooKeeper."""

from __future__ import annotations

from threading import Barrier
from threading import Thread

import pytest

pytest.importorskip("kazoo")

from sqla_shard.exc import StageConflictError
from sqla_shard.exc import StageUnavailableError
from sqla_shard.migrate.stage_stores import stage_store
from sqla_shard.migrate.stage_stores import ZooKeeperStageStore
from sqla_shard.migrate.stages import Progress
from sqla_shard.topology.zookeeper.store import Create
from sqla_shard.topology.zookeeper.store import ZooKeeperStore

pytestmark = pytest.mark.live

MARKING = Progress(number=1, stage="marking", round=1)
COPYING = Progress(number=2, stage="copying", former="marking", round=1)
LEGACY = Progress(number=2, stage="legacy", former="marking", round=1)


@pytest.fixture
def location(zookeeper_server, request):
    return f"zookeeper://{zookeeper_server.hosts}/{request.node.name}"


def test_changes_by_several_processes(location):
    assert stage_store(location).read() == Progress()
    stage_store(location).write(MARKING)
    # As after an answer that was lost.
    stage_store(location).write(MARKING)
    barrier, refused = Barrier(4), []

    def change(new):
        store = stage_store(location)
        barrier.wait(60)
        try:
            store.write(new)
        except StageConflictError as error:
            refused.append((new, error.found))

    threads = [
        Thread(target=change, args=(new,))
        for new in (COPYING, LEGACY, COPYING, LEGACY)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    (lost,) = {COPYING.stage, LEGACY.stage} - {
        stage_store(location).read().stage
    }
    assert [(new.stage, found) for new, found in refused] == [(lost, 2)] * 2


def test_a_damaged_change_is_an_error(location):
    stage_store(location).write(MARKING)
    store = ZooKeeperStore(location.removeprefix("zookeeper://"))
    try:
        store.prepare("/moving", like="/topology")
        store.commit(Create("/moving/0000000002", b"{}"))
    finally:
        store.close()
    with pytest.raises(StageUnavailableError, match="change 2 is damaged"):
        stage_store(location).read()
    with pytest.raises(StageUnavailableError, match="change 2 is damaged"):
        stage_store(location).write(COPYING)


def test_an_error_of_zookeeper_is_typed():
    store = ZooKeeperStageStore("zookeeper://127.0.0.1:1/none", timeout=0.5)
    with pytest.raises(StageUnavailableError):
        store.read()
