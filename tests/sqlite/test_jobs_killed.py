"""Jobs that end the process of their worker, and those beside them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from sqlalchemy import BigInteger, literal, update

from sqla_shard import Cluster
from sqla_shard.dialects.sql import ServerTime
from sqla_shard.jobs import JobState
from sqla_shard.outbox.tables import JOBS
from sqla_shard.testing import sqlite_topology
from tests.models.job_models import (
    add,
    Base,
    counter,
    counters,
    kills,
    on_shard,
    rows,
    SHARDS,
    take,
)
from tests.servers.command_line import environment

_MOST_RUNS = 6
_EXPIRE = (
    update(JOBS)
    .where(JOBS.c.state == JobState.RUNNING.value)
    .values(due_at=ServerTime(literal(-1_000_000, BigInteger())))
)


def test_they_fail_and_the_others_run(tmp_path: Path) -> None:
    """Also those that were claimed, time after time, and have not begun."""
    path = tmp_path / "topology.json"
    path.write_text(json.dumps(sqlite_topology(tmp_path / "data", 1, SHARDS)))
    with Cluster.from_file(path) as cluster:
        cluster.create_all(Base.metadata)
        near = counter(cluster)
        others = [{"counter_id": near}] * 15
        with cluster.begin() as session:
            # Then the worker claims ahead.
            add.enqueue_many(session, others, near=near)
            # The claim below counts for the first.
            for how, most in (("exit", 2), ("SIGKILL", 1)):
                kills.enqueue(session, how, near=near, max_attempts=most)
            add.enqueue_many(session, others, near=near, max_attempts=2)
            add.enqueue_many(session, others, near=near, max_attempts=1)
        with cluster.begin() as session:
            # By a worker that was killed: each job has its turn.
            take(session, near, limit=100)
        on_shard(cluster, 1, _EXPIRE)
        statuses = []
        while 0 not in statuses and len(statuses) < _MOST_RUNS:
            done = subprocess.run(
                [sys.executable, "-m", "tests.workers.job_worker", str(path), "60"],
                env=environment(),
                stdout=subprocess.PIPE,
                check=False,
                timeout=60,
            )
            statuses.append(done.returncode)
            on_shard(cluster, 1, _EXPIRE)
        found = rows(cluster)
        counted = counters(cluster, [near])
    assert sorted(statuses) == [-9, 0, 3]
    killers = [row for row in found if row.task == kills.name]
    assert {row.state for row in killers} == {JobState.FAILED}
    assert [row.attempts for row in killers] == [2, 1]
    assert {row.state for row in found if row.task == add.name} == {JobState.DONE}
    assert counted == [45]
