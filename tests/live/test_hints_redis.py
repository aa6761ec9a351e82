"""Workers hear of the jobs of other processes through Redis, or ZooKeeper."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from sqla_shard import Cluster
from sqla_shard.exc import JobOptionError
from sqla_shard.jobs import share_hints, survey, Worker
from sqla_shard.jobs.claims import JobState
from sqla_shard.jobs.hints import hints_of
from sqla_shard.jobs.survey import DueGroup
from sqla_shard.testing import RedisServer, sqlite_topology, ZooKeeperServer
from sqla_shard.testing.local_server import wait_until
from tests.models.job_models import add, Base, counter, counters, SHARDS
from tests.servers.command_line import environment

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
    monkeypatch.setattr(survey, "_FIRST_PAUSE", 3600.0)
    monkeypatch.setattr(survey, "_LONGEST_PAUSE", 7200.0)
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


@pytest.mark.parametrize("kind", [RedisServer, ZooKeeperServer])
def test_a_worker_of_another_process(
    clusters: tuple[Cluster, Cluster],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    kind: type[RedisServer | ZooKeeperServer],
    zookeeper_installed: None,
) -> None:
    enqueuing, working = clusters
    near = counter(enqueuing)
    with kind() as server:
        scheme = "redis" if kind is RedisServer else "zookeeper"
        url = f"{scheme}://{server.host}:{server.port}/0"
        for cluster in clusters:
            share_hints(cluster, url)
        try:
            with idle(working, monkeypatch) as worker:
                hears(clusters)
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
                hears(clusters)
                add.enqueue_now(enqueuing, near, near=near)
                assert wait_until(lambda: is_at(enqueuing, near, 4), seconds=WAIT)
        finally:
            for cluster in clusters:
                share_hints(cluster, None)
    assert threads_of_hints() == set()


def test_two_first_messages(zookeeper_server: ZooKeeperServer) -> None:
    from sqla_shard.topology.zookeeper.message_node import MessageNode

    hosts = f"{zookeeper_server.hosts}/first"
    one, two = (
        MessageNode(hosts, "/hints/x", timeout=9.0, options={}) for _ in range(2)
    )
    create = one._sending.client().create_async

    def late(*arguments: Any, **options: Any) -> Any:
        two.send("theirs")
        return create(*arguments, **options)

    with closing(one), closing(two):
        one._sending.client().create_async = late
        one.send("ours")
        assert two._look(threading.Event())[0] == b"ours"


def hears(clusters: tuple[Cluster, Cluster]) -> None:
    """Wait until the hints of the first one arrive at the second one."""
    enqueuing, working = map(hints_of, clusters)
    heard = threading.Event()
    group = DueGroup(
        keyspace="objects", shard_id=0, state=JobState.PENDING, queue="x", priority=1
    )

    def is_heard() -> bool:
        enqueuing.publish([group])
        return heard.wait(0.1)

    with working.listening(lambda groups: heard.set()):
        assert wait_until(is_heard, seconds=WAIT)


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


@pytest.mark.parametrize(
    "url",
    [
        "http://app:secret@cache1",
        "redis://app:sec/ret@cache1:6379/0",
        "redis://cache1:6379/0?password=secret&unknown=secret",
        "zookeeper://app:secret@zk1:2181/prod",
    ],
)
def test_a_bad_url_is_refused_without_its_password(
    clusters: tuple[Cluster, Cluster], url: str
) -> None:
    with pytest.raises(JobOptionError, match="url=") as caught:
        share_hints(clusters[0], url)
    text = "".join(traceback.format_exception(caught.value))
    assert not re.search("secret|sec/ret|'sec'", text)


def test_a_server_that_cannot_be_named(
    clusters: tuple[Cluster, Cluster], caplog: pytest.LogCaptureFixture
) -> None:
    """The client raises UnicodeError; threads and COMMIT go on."""
    cluster = clusters[0]
    near = counter(cluster)
    with hints_of(cluster).listening(lambda groups: None):
        # After the workers have begun to listen.
        share_hints(cluster, f"redis://{'x' * 70}.example/0")
        for _ in range(3):
            add.enqueue_now(cluster, near, near=near)
        assert wait_until(lambda: caplog.text.count("hints about") == 2, seconds=WAIT)
        assert threads_of_hints() == {"sqla-shard-hints", "sqla-shard-receiving"}
        cluster.close()
    assert threads_of_hints() == set()
    assert caplog.text.count("hints about") == 2


def test_no_thread_can_be_started(
    clusters: tuple[Cluster, Cluster],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    share_hints(clusters[0], "redis://127.0.0.1:1/0")
    hints = hints_of(clusters[0])
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        hints.publish([])
        assert "can't start new thread" in caplog.text
    hints.publish([])
    assert threads_of_hints() == {"sqla-shard-hints"}


_SHORT = """
import sys
from sqla_shard.jobs import share_hints
from sqla_shard import Cluster
from tests.models.job_models import add, counter
path, url = sys.argv[1:]
cluster = Cluster.from_file(path)
near = counter(cluster)
share_hints(cluster, url)
add.enqueue_now(cluster, near, near=near)
"""


def test_a_short_program(tmp_path: Path, redis_installed: Any) -> None:
    """It ends without closing its cluster, and its hint arrives."""
    import redis

    path = tmp_path / "topology.json"
    path.write_text(json.dumps(sqlite_topology(tmp_path / "data", 1, SHARDS)))
    with Cluster.from_file(path) as cluster:
        cluster.create_all(Base.metadata)
    with RedisServer() as server:
        client = redis.Redis(server.host, server.port)
        with client.pubsub(ignore_subscribe_messages=True) as pubsub:
            pubsub.subscribe("sqla_shard:jobs")
            listens(server)
            url = f"redis://{server.host}:{server.port}/0"
            subprocess.run(
                [sys.executable, "-c", _SHORT, str(path), url],
                env=environment(),
                check=True,
                timeout=WAIT,
            )
            heard: list[Any] = []

            def hears() -> bool:
                heard.append(pubsub.get_message(timeout=0.1))
                return heard[-1] is not None

            assert wait_until(hears, seconds=5)
        client.close()


def threads_of_hints() -> set[str]:
    names = {thread.name for thread in threading.enumerate()}
    return names & {"sqla-shard-hints", "sqla-shard-receiving"}
