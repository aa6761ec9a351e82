"""The processes of a run, without a database."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import closing
from pathlib import Path

import pytest

from sqla_shard import Cluster
from sqla_shard.schema import run
from sqla_shard.schema.reports import Outcome
from sqla_shard.schema.reports import Progress
from sqla_shard.schema.reports import State
from sqla_shard.schema.selection import RunOptions
from sqla_shard.schema.selection import shards_of
from sqla_shard.schema.versions import Version
from sqla_shard.schema.waves import Workers
from sqla_shard.testing import sqlite_topology


class Interrupting:
    """Presses Ctrl-C as soon as its process has begun."""

    def __init__(self):
        os.kill(os.getppid(), signal.SIGINT)

    def __call__(self, version):
        shard = version.shard
        return Outcome(
            shard_id=shard.shard_id,
            server=shard.server,
            database=shard.database,
            state=State.CHANGED,
        )

    def stop(self, *details):
        pass

    def close(self):
        pass


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_that_interrupts_no_system_call(number):
    """The other thread receives it: the call that waits is not interrupted."""
    shown: list[bool] = []
    workers = Workers(
        versions=[], jobs=1, applier=Interrupting, on_stop=shown.append
    )

    def receive() -> None:
        # The main thread waits by then; if it does not, this tests less.
        threading.Event().wait(0.1)
        signal.pthread_kill(threading.get_ident(), number)

    receiver = threading.Thread(target=receive)
    with closing(workers), workers.stopped_by_signals():
        receiver.start()
        workers.pause(60)
        receiver.join()
    assert workers.is_interrupted
    # Otherwise the handler was called after the pause.
    assert shown == [False]


def test_a_signal_while_processes_are_begun(tmp_path: Path):
    with Cluster.from_topology(sqlite_topology(tmp_path, 2, 16)) as cluster:
        keyspace = cluster.places.topology.keyspace("objects")
        shards = shards_of(cluster.places, keyspace)
        report = run(
            [Version(shard=shard) for shard in shards],
            command="upgrade",
            target="head",
            steps=lambda heads: ["one"],
            applier=Interrupting,
            options=RunOptions(jobs=8),
            progress=Progress(),
            has_moved=lambda shard_ids: False,
        )
    assert report.interrupted
    assert report.of(State.SKIPPED)
    assert not report.ok
