"""Applying pending operations, by one worker and by several.

Each class is a suite; a test module has a fixture ``cluster``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, ExitStack
from datetime import timedelta
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from sqlalchemy import insert

from sqla_shard import Cluster
from sqla_shard.dialects.sql import ServerTime
from sqla_shard.exc import ShardError
from sqla_shard.outbox import apply
from sqla_shard.outbox.tables import INTENTS
from sqla_shard.testing.local_server import wait_until
from tests.models.operation_models import (
    account,
    add,
    after_crash,
    count_applied,
    forget_all,
    intend,
    make_due,
    note,
    OPERATIONS,
    points,
    SHARDS,
)
from tests.servers.command_line import environment
from tests.suites.operations import FAR, NEAR, Suite

ROOT = Path(__file__).parents[2]
SECONDS = 60
ALWAYS = timedelta(days=1)
NEVER = timedelta(0)
#: Seconds for which a worker that is killed keeps what it has taken.
LEASE = 2.0

_WORKER = """
import sys
from tests.suites.repairing import work
work(*sys.argv[1:])
"""


def leave_many(
    cluster: Cluster, ids: list[int], count: int, mark: str
) -> Counter[tuple[int, str]]:
    """Leave intents from all shards to all others; return what to expect."""
    expected: Counter[tuple[int, str]] = Counter()
    for number in range(count):
        home = number % SHARDS
        target = ids[(home + 1 + number // SHARDS % (SHARDS - 1)) % SHARDS]
        with after_crash(), cluster.begin(cross_shard="logged") as session:
            intend(session, ids[home], target, f"{mark} {number}")
        expected[target, f"{mark} {number}"] += 1
    return expected


@contextmanager
def started(topology: Path, *more: object) -> Iterator[subprocess.Popen[str]]:
    """Start a process that repairs, once a line arrives on its input."""
    with subprocess.Popen(
        [sys.executable, "-c", _WORKER, str(topology), *map(str, more)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment(),
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def begin(workers: list[Any]) -> None:
    """Tell processes to begin, all at once, when the slowest is ready."""
    for worker in workers:
        assert worker.stdout.readline() == "ready\n"
    for worker in workers:
        worker.stdin.write("go\n")
        worker.stdin.flush()


def work(topology: str, stop: str = "", lease: str = "60") -> None:
    """Repair until nothing is due, as a process of its own.

    :param stop: ``"taken"`` waits for ever with what it has taken,
        ``"applied"`` with what it has applied and not deleted.
    """
    patch = pytest.MonkeyPatch()
    patch.setattr("sqla_shard.outbox.pending_operations._LEASE", float(lease))

    def halt(*given: Any) -> Any:
        # In one piece: several threads come here at the same time.
        os.write(1, b"halted\n")
        threading.Event().wait(SECONDS)
        os._exit(3)

    if stop == "taken":
        patch.setattr("sqla_shard.outbox.pending_operations.apply_all", halt)
    if stop == "applied":
        patch.setattr("sqla_shard.outbox.apply._write_outcomes", halt)
    with Cluster.from_file(topology, watch=False) as cluster:
        print("ready", flush=True)  # noqa: T201 - whoever started us reads it
        sys.stdin.readline()
        applied = 0
        while True:
            report = cluster.repair()
            applied += report.applied
            if not report.applied:
                break
    print(applied, flush=True)  # noqa: T201 - likewise


def _fails(session: Any, **arguments: Any) -> None:
    raise ValueError("not now")


class Repairing(Suite):
    """The cluster has a fixture ``topology``: a file that names it."""

    def test_pending_entries_are_counted(self, cluster, ids, mark, monkeypatch):
        assert cluster.count_pending() == []
        leave_many(cluster, ids, 30, mark)
        (found,) = cluster.count_pending()
        assert (found.operation, found.count) == (note.name, 30)
        assert (found.failed, found.oldest >= timedelta(0)) == (0, True)
        monkeypatch.setitem(apply._functions, note.name, _fails)
        assert len(cluster.repair(now=True).failed) == 30
        (found,) = cluster.count_pending()
        assert (found.count, found.failed) == (30, 30)
        monkeypatch.undo()
        assert cluster.repair(now=True).applied == 30
        assert cluster.count_pending() == []

    def test_entries_after_a_crash(self, cluster, ids, mark):
        with after_crash(), cluster.begin(cross_shard="logged") as session:
            intend(session, ids[NEAR], ids[FAR], mark)
        assert self.only(cluster, mark) == {}
        # The process that wrote it is given its time.
        assert cluster.repair().applied == 0
        make_due(cluster)
        assert cluster.repair().applied == 1
        assert self.only(cluster, mark) == {(ids[FAR], mark): 1}
        assert points(cluster, [ids[NEAR]]) == [1]
        assert cluster.pending() == []
        again = cluster.repair()
        assert (again.applied, again.ok) == (0, True)
        assert again.ok
        assert again.as_dict()["applied"] == 0

    def test_now(self, cluster, ids, mark):
        """``now=True`` applies recent operations, too."""
        with after_crash(), cluster.begin(cross_shard="logged") as session:
            intend(session, ids[NEAR], ids[FAR], mark)
        assert cluster.repair().applied == 0
        assert cluster.repair(now=True).applied == 1
        assert self.only(cluster, mark) == {(ids[FAR], mark): 1}
        assert cluster.repair(now=True).applied == 0

    def test_done_and_not_deleted(self, cluster, ids, mark, monkeypatch):
        """A crash after it was applied; again, that does nothing."""
        with monkeypatch.context() as patch:
            patch.setattr(
                "sqla_shard.outbox.apply._write_outcomes", lambda *given: None
            )
            with cluster.begin(cross_shard="logged") as session:
                intend(session, ids[NEAR], ids[FAR], mark)
        assert self.only(cluster, mark) == {(ids[FAR], mark): 1}
        assert len(cluster.pending()) == 1
        for _ in range(2):
            make_due(cluster)
            cluster.repair()
        assert self.only(cluster, mark) == {(ids[FAR], mark): 1}
        assert cluster.pending() == []

    def test_its_deletion_fails(self, cluster, ids, mark, monkeypatch, caplog):
        """That is no failure of a COMMIT that has succeeded."""

        def fail(*given: Any) -> None:
            raise ShardError("the server has gone away")

        with monkeypatch.context() as patch:
            patch.setattr("sqla_shard.outbox.apply._write_outcomes", fail)
            with cluster.begin(cross_shard="logged") as session:
                intend(session, ids[NEAR], ids[FAR], mark)
        assert "could not be read or deleted" in caplog.text
        assert session.pending == ()
        make_due(cluster)
        cluster.repair()
        assert self.only(cluster, mark) == {(ids[FAR], mark): 1}

    def test_tokens_are_forgotten(self, cluster, ids, mark):
        with cluster.begin(cross_shard="logged") as session:
            for number in range(3):
                intend(session, ids[NEAR], ids[FAR], f"{mark} {number}")
        assert count_applied(cluster) == 3
        assert cluster.repair().forgotten == 0
        assert cluster.repair(keep=ALWAYS).forgotten == 0
        assert cluster.repair(keep=NEVER).forgotten == 3
        assert count_applied(cluster) == 0

    def test_not_those_whose_intents_are_there(self, cluster, ids, mark, monkeypatch):
        with monkeypatch.context() as patch:
            patch.setattr(
                "sqla_shard.outbox.apply._write_outcomes", lambda *given: None
            )
            with cluster.begin(cross_shard="logged") as session:
                intend(session, ids[NEAR], ids[FAR], mark)
        assert cluster.repair(keep=NEVER).forgotten == 0
        make_due(cluster)
        # It is found applied, deleted, and only then removed from memory.
        assert cluster.repair(keep=NEVER).forgotten == 1
        assert self.only(cluster, mark) == {(ids[FAR], mark): 1}
        assert (cluster.pending(), count_applied(cluster)) == ([], 0)

    def test_an_intent_of_a_shard_that_is_not_open(self, cluster, ids):
        row = {
            "token": b"x" * 16,
            "operation": add.name,
            "arguments": f'{{"account_id": {ids[FAR]}, "n": 1}}',
            "home_shard": NEAR,
            "keyspace": "objects",
            "shard_id": SHARDS,
            "created_at": ServerTime(),
            "due_at": ServerTime(),
            "attempts": 0,
        }
        with cluster.begin() as session:
            place = session.place_for(keyspace="objects", shard_id=NEAR)
            session.execute(
                insert(INTENTS).values(row), bind_arguments={"place": place}
            )
        (failed,) = cluster.repair().failed
        assert "UnknownShardError" in failed
        forget_all(cluster)

    def test_by_four_threads(self, cluster, ids, mark):
        expected = leave_many(cluster, ids, 200, mark)
        make_due(cluster)
        reports: list[Any] = []
        together = threading.Barrier(4)

        def repair() -> None:
            together.wait(SECONDS)
            reports.append(cluster.repair())

        threads = [threading.Thread(target=repair) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(SECONDS)
        assert [f for r in reports for f in r.failed] == []
        assert sum(r.applied for r in reports) == 200
        assert self.only(cluster, mark) == expected
        assert cluster.pending() == []
        assert count_applied(cluster) == 200
        assert sum(points(cluster, ids)) == 200

    @pytest.mark.thorough
    def test_by_four_processes(self, cluster, ids, mark, topology):
        expected = leave_many(cluster, ids, 200, mark)
        make_due(cluster)
        counts = []
        with ExitStack() as stack:
            workers = [stack.enter_context(started(topology)) for _ in range(4)]
            begin(workers)
            for worker in workers:
                counts.append(int(worker.stdout.readline()))
                assert worker.wait(SECONDS) == 0
        assert sum(counts) == 200
        assert self.only(cluster, mark) == expected
        assert cluster.pending() == []

    @pytest.mark.thorough
    @pytest.mark.parametrize("stop", ["taken", "applied"])
    def test_a_worker_that_was_killed(self, cluster, ids, mark, topology, stop):
        expected = leave_many(cluster, ids, 20, mark)
        make_due(cluster)
        begun = monotonic()
        with started(topology, stop, LEASE) as worker:
            begin([worker])
            # Eight shards of intents; each is in the hands of a thread.
            for _ in range(SHARDS):
                assert worker.stdout.readline() == "halted\n"
        done = sum(self.only(cluster, mark).values())
        assert done == (0 if stop == "taken" else 20)
        assert len(cluster.pending()) == 20
        # It has kept them for as long as it said.
        applied = cluster.repair().applied
        if monotonic() - begun < LEASE:
            assert applied == 0

        def all_applied() -> bool:
            nonlocal applied
            applied += cluster.repair().applied
            return applied == 20

        assert wait_until(all_applied, seconds=SECONDS, every=0.1)
        assert self.only(cluster, mark) == expected
        assert cluster.pending() == []

    def test_one_connection_is_enough(self, cluster, ids, mark, topology):
        """No thread waits for a connection that it has itself."""
        options = {"pool_size": 1, "max_overflow": 0, "pool_timeout": 5}
        with Cluster.from_file(topology, watch=False, engine_options=options) as small:
            home = account(small, 0)
            with small.begin(cross_shard="logged") as session:
                # On its own server, and on another one.
                intend(session, home, ids[NEAR], f"{mark} 1")
                note.intend(session, ids[FAR], text=f"{mark} 2")
            assert session.pending == ()
            leave_many(small, ids, 40, mark)
            make_due(small)
            assert small.repair().failed == ()
        assert len(self.only(cluster, mark)) == 42
        assert cluster.pending() == []


cluster = OPERATIONS.on_backend()


@pytest.fixture
def topology(cluster: Cluster, tmp_path: Path) -> Path:
    path = tmp_path / "topology.json"
    document: Any = cluster.topology.to_mapping()
    path.write_text(json.dumps(document), "utf-8")
    return path
