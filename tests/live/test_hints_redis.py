"""Workers hear of the jobs of other processes through Redis."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sqla_shard import Cluster
from sqla_shard.exc import JobOptionError
from sqla_shard.jobs import schedule, share_hints, Worker
from sqla_shard.testing import RedisServer, sqlite_topology
from sqla_shard.testing.local_server import wait_until
from tests.models.job_models import add, Base, counter, counters, SHARDS

WAIT = 60


@pytest.fixture
def clusters(tmp_path: Path, redis_installed: Any) -> Iterator[tuple[Cluster, Cluster]]:
    """That of a program that enqueues, and that of a worker."""
    document = sqlite_topology(tmp_path, 1, SHARDS)
    with (
        Cluster.from_topology(document) as one,
        Cluster.from_topology(document) as other,
    ):
        one.create_all(Base.metadata)
        yield one, other


@contextmanager
def idle(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Worker]:
    """Start a worker that, without hints, looks after an hour."""
    monkeypatch.setattr(schedule, "_FIRST_PAUSE", 3600.0)
    monkeypatch.setattr(schedule, "_LONGEST_PAUSE", 7200.0)
    worker = Worker(cluster, queues=["adding"], lease=86400)
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        assert wait_until(lambda: worker._schedule.until_survey() > 60, seconds=WAIT)
        yield worker
    finally:
        worker.stop()
        thread.join(WAIT)
        assert not thread.is_alive()


def test_a_worker_of_another_process(
    clusters: tuple[Cluster, Cluster],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    enqueuing, working = clusters
    near = counter(enqueuing)
    with RedisServer() as server:
        url = f"redis://{server.host}:{server.port}/0"
        for cluster in clusters:
            share_hints(cluster, url)
        try:
            with idle(working, monkeypatch) as worker:
                listens(server)
                for count in (1, 2):
                    add.enqueue_now(enqueuing, near, near=near)
                    assert wait_until(
                        lambda n=count: is_at(enqueuing, near, n), seconds=WAIT
                    )
                # A hint that is lost does not hold the COMMIT.
                server.kill()
                add.enqueue_now(enqueuing, near, near=near)
                assert wait_until(
                    lambda: "hints about jobs are lost" in caplog.text, seconds=9
                )
                worker.wake()
                assert wait_until(lambda: is_at(enqueuing, near, 3), seconds=WAIT)
                server.start()
                listens(server)
                add.enqueue_now(enqueuing, near, near=near)
                assert wait_until(lambda: is_at(enqueuing, near, 4), seconds=WAIT)
        finally:
            for cluster in clusters:
                share_hints(cluster, None)
    names = {thread.name for thread in threading.enumerate()}
    assert not names & {"sqla-shard-hints", "sqla-shard-hearing"}


def listens(server: RedisServer) -> None:
    """Wait until a worker has subscribed."""
    import redis

    client = redis.Redis(server.host, server.port)
    try:
        assert wait_until(
            lambda: client.pubsub_numsub("sqla_shard:jobs")[0][1] == 1, seconds=WAIT
        )
    finally:
        client.close()


def is_at(cluster: Cluster, near: int, count: int) -> bool:
    return counters(cluster, [near]) == [count]


def test_a_bad_url(clusters: tuple[Cluster, Cluster]) -> None:
    with pytest.raises(JobOptionError, match="url"):
        share_hints(clusters[0], "http://cache1")
