"""Workers that are killed or stopped, and servers that go away, under load.

Whatever happens, each job reaches a final state, and what it has written in
the transaction that acknowledges it is there once.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, ExitStack
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.exc import SQLAlchemyError

from sqla_shard import Cluster
from sqla_shard.fleet import apply
from sqla_shard.fleet.split import Split
from sqla_shard.jobs import JobState, set_limit
from sqla_shard.testing.database_server import system_user
from sqla_shard.testing.local_server import wait_until
from sqla_shard.testing.server_fleet import ServerFleet
from tests.models.job_models import (
    acking,
    add,
    awaiting,
    Base,
    counter,
    counters,
    outside,
    pausing,
    rows,
)
from tests.servers.command_line import COMMAND, environment
from tests.servers.fleet_pairs import FleetPairs
from tests.servers.kinds import Kind

pytestmark = [pytest.mark.live, pytest.mark.thorough]

SECONDS = 120
SHARDS = 4
EACH = 15
ROUNDS = 20 if "SQLA_SHARD_SOAK" in os.environ else 1
#: Tasks whose effects are exactly once, and one that runs at least once.
EXACT = (add, acking, awaiting)
LEASE = 3


@pytest.fixture(scope="module")
def servers(server_kind: Kind) -> Iterator[ServerFleet[Any]]:
    # Not those of other tests: these are killed.
    options = ["--innodb-lock-wait-timeout=20"]
    with server_kind.fleet(servers=2, shards=SHARDS, options=options) as fleet:
        yield fleet


@pytest.fixture
def document(servers: ServerFleet[Any]) -> Iterator[Any]:
    found = servers.topology_mapping(shards=SHARDS, database="db_rounds{shard:05d}")
    servers.create_databases(found)
    yield found
    servers.drop_databases(found)


@pytest.fixture
def cluster(document: Any, servers: ServerFleet[Any]) -> Iterator[Cluster]:
    with Cluster.from_topology(document, environ=servers.environ) as cluster:
        cluster.create_all(Base.metadata)
        yield cluster


class Load:
    """Jobs of several tasks on all shards, and their counters."""

    def __init__(self, cluster: Cluster, shards: int = SHARDS) -> None:
        self.cluster = cluster
        self.shards = shards
        self.ids = {
            task.name: [counter(cluster, n) for n in range(shards)]
            for task in (*EXACT, outside)
        }
        self.each = 0

    def enqueue(self) -> None:
        self.each += EACH
        for task in (*EXACT, outside):
            for one in self.ids[task.name]:
                self.cluster.run(
                    task.enqueue_many,
                    [{"counter_id": one}] * EACH,
                    near=one,
                    max_attempts=1000,
                )

    def rows(self) -> list[Any]:
        return [r for n in range(self.shards) for r in rows(self.cluster, n)]

    def pending(self) -> int:
        return sum(row.state == JobState.PENDING for row in self.rows())

    def is_done(self) -> bool:
        """Whether all jobs are done; False if a server does not respond."""
        try:
            return {row.state for row in self.rows()} == {JobState.DONE}
        except SQLAlchemyError:
            return False

    def check(self) -> None:
        """Each job is acknowledged, and has its effects."""
        found = self.rows()
        assert len(found) == self.each * self.shards * 4
        assert {row.state for row in found} == {JobState.DONE}
        assert min(row.attempts for row in found) >= 1
        assert all(row.token is not None for row in found)
        for task in EXACT:
            now = counters(self.cluster, self.ids[task.name])
            assert now == [self.each] * self.shards, task
        at_least = counters(self.cluster, self.ids[outside.name])
        assert min(at_least) >= self.each


@contextmanager
def worker(
    topology: Path, environ: dict[str, str], *options: object
) -> Iterator[subprocess.Popen[str]]:
    """Start ``sqla-shard worker``, and kill it at the end of the block."""
    with subprocess.Popen(
        [
            *COMMAND,
            *("-t", str(topology), "worker"),
            *("--models", "tests.models.job_models"),
            *("--queues", "adding,pausing", "--lease", str(LEASE)),
            *map(str, options),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**environment(), **environ},
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def written(document: Any, folder: Path) -> Path:
    path = folder / "topology.json"
    path.write_text(json.dumps(document))
    return path


@pytest.mark.parametrize("turn", range(ROUNDS))
def test_workers_that_are_killed_or_stopped(
    cluster: Cluster,
    document: Any,
    servers: ServerFleet[Any],
    tmp_path: Path,
    rng: random.Random,
    turn: int,
) -> None:
    path = written(document, tmp_path)
    load = Load(cluster)
    load.enqueue()

    def until_some_are_taken(process: subprocess.Popen[str]) -> None:
        some = max(1, load.pending() - rng.randrange(1, 60))
        wait_until(
            lambda: load.pending() < some or process.poll() is not None, seconds=SECONDS
        )

    with ExitStack() as stack:
        start = [stack.enter_context(worker(path, servers.environ)) for _ in range(2)]
        killed, stopped = start
        until_some_are_taken(killed)
        killed.send_signal(signal.SIGKILL)
        load.enqueue()
        until_some_are_taken(stopped)
        stopped.send_signal(signal.SIGSTOP)
        last = stack.enter_context(worker(path, servers.environ))
        until_some_are_taken(last)
        last.send_signal(signal.SIGKILL)
        final = stack.enter_context(worker(path, servers.environ))
        # Claims of the stopped worker are recovered, except for locked rows.
        until_some_are_taken(final)
        stopped.send_signal(signal.SIGCONT)
        wait_until(load.is_done, seconds=SECONDS)
        for one in (stopped, final):
            one.send_signal(signal.SIGTERM)
        for one in (stopped, final):
            assert one.wait(SECONDS) == 0
    load.check()


def test_a_server_that_is_killed_and_restarted(
    cluster: Cluster, document: Any, servers: ServerFleet[Any], tmp_path: Path
) -> None:
    path = written(document, tmp_path)
    load = Load(cluster)
    load.enqueue()
    set_limit(cluster, "adding", 60)
    with worker(path, servers.environ) as process:
        before = load.pending()
        wait_until(lambda: load.pending() < before, seconds=SECONDS)
        servers.servers[1].kill()
        servers.servers[1].start()
        set_limit(cluster, "adding", None)
        wait_until(load.is_done, seconds=SECONDS)
        process.send_signal(signal.SIGTERM)
        assert process.wait(SECONDS) == 0
    load.check()


def test_shards_that_are_moved(server_kind: Kind, tmp_path: Path) -> None:
    options = ["--innodb-lock-wait-timeout=20"]
    with (
        FleetPairs(
            tmp_path,
            pairs=1,
            spare=1,
            shards=SHARDS,
            options=options,
            pair=server_kind.pair,
        ) as pairs,
        Cluster.from_file(pairs.path) as cluster,
    ):
        cluster.create_all(Base.metadata)
        pairs["server1"].wait_caught_up()
        load = Load(cluster)
        load.enqueue()
        set_limit(cluster, "adding", 20)
        with worker(pairs.path, {}) as first, worker(pairs.path, {}) as second:
            before = load.pending()
            wait_until(lambda: load.pending() < before, seconds=SECONDS)
            fleet = pairs.fleet()
            target = pairs["server2"]
            plan = Split.planned(
                fleet,
                server="server1",
                shards=["2-3"],
                target="server2",
                primary=f"{target.primary.host}:{target.primary.port}",
                standby=f"{target.standby.host}:{target.standby.port}",
                allowed_users=[system_user()],
                patience=30.0,
            )
            assert plan.problems == ()
            assert load.pending() > 0
            result = apply(fleet, plan)
            assert (result.state, result.problems) == ("finished", ())
            load.enqueue()
            set_limit(cluster, "adding", None)
            wait_until(load.is_done, seconds=SECONDS)
            for one in (first, second):
                one.send_signal(signal.SIGTERM)
            for one in (first, second):
                assert one.wait(SECONDS) == 0
        load.check()
        space = cluster.topology.keyspace("objects")
        assert space.server_for(3).name == "server2"


# -- The command.


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGHUP])
def test_signals(
    cluster: Cluster,
    document: Any,
    servers: ServerFleet[Any],
    tmp_path: Path,
    how: signal.Signals,
) -> None:
    path, ready = written(document, tmp_path), tmp_path / "ready"
    near = counter(cluster)
    options = ("--stop-timeout", 0.5, "--ready-file", ready, "--json")
    with subprocess.Popen(
        [
            *(sys.executable, "-m", "tests.workers.job_worker"),
            *(str(path), "60", "command", *map(str, options)),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**environment(), **servers.environ},
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        wait_until(ready.exists, seconds=SECONDS)
        pausing.enqueue_now(cluster, near, near=near)
        assert process.stdout.readline() == "inside\n"
        process.send_signal(how)
        # The task does not end, but the process does.
        assert process.wait(SECONDS) == 0
        out, err = process.stdout.read(), process.stderr.read()
    assert json.loads(out)["released"] == 1
    assert not ready.exists()
    assert "[- - -] ready" in err
    (row,) = rows(cluster)
    assert (row.state, row.attempts) == (JobState.PENDING, 0)
