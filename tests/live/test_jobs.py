"""Jobs on servers: locks, indexes, and processes that race or die.

The processes share the servers, which are the only thing that they agree by.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, ExitStack
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from sqla_shard import Cluster, ShardSession
from sqla_shard.engine.rendering import Place
from sqla_shard.exc import UnsafeBinaryLogError
from sqla_shard.jobs import claims, JobState, queues, Worker
from sqla_shard.jobs.stored_jobs import jobs_by_key, jobs_of, stored_job
from sqla_shard.jobs.survey import due_jobs
from sqla_shard.jobs.transactions import clean_up
from sqla_shard.outbox import scan
from sqla_shard.testing import StatementLog
from sqla_shard.testing.server_fleet import ServerFleet
from tests.models.job_models import (
    add,
    Base,
    Counter,
    counter,
    counters,
    empty,
    expire,
    pausing,
    rows,
    SHARDS,
    take,
)
from tests.servers.command_line import environment

pytestmark = pytest.mark.live

SECONDS = 60


@pytest.fixture(scope="module")
def document(fleet: ServerFleet[Any]) -> Iterator[Any]:
    found = fleet.topology_mapping(shards=SHARDS, database="db_jobs{shard:05d}")
    fleet.create_databases(found)
    yield found
    fleet.drop_databases(found)


@pytest.fixture(scope="module")
def cluster(document: Any, fleet: ServerFleet[Any]) -> Iterator[Cluster]:
    with Cluster.from_topology(document, environ=fleet.environ) as cluster:
        cluster.create_all(Base.metadata)
        yield cluster


@pytest.fixture
def near(cluster: Cluster) -> int:
    empty(cluster)
    return counter(cluster)


@pytest.fixture
def topology(document: Any, tmp_path: Path) -> Path:
    path = tmp_path / "topology.json"
    path.write_text(json.dumps(document))
    return path


@contextmanager
def started(fleet: ServerFleet[Any], program: str, *arguments: object) -> Iterator[Any]:
    """Start a process, and kill it at the end of the block."""
    with subprocess.Popen(
        [sys.executable, *program.split(), *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**environment(), **fleet.environ},
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


# -- Locks and indexes.


@pytest.mark.parametrize("isolation", ["REPEATABLE READ", "READ COMMITTED"])
def test_an_open_producer_does_not_block(
    cluster: Cluster, near: int, isolation: str
) -> None:
    add.enqueue_now(cluster, near, near=near)
    add.enqueue_now(cluster, near, near=near, unique_key="again")
    with cluster.session() as producer:
        producer.connection(
            {"shard_id": 1}, execution_options={"isolation_level": isolation}
        )
        producer.get(Counter, near)
        add.enqueue(producer, near, near=near)
        add.enqueue(producer, near, near=near, unique_key="open")
        add.enqueue(producer, near, near=near, unique_key="again")
        add.enqueue_many(producer, [{"counter_id": near}] * 20, near=near)
        done = threading.Event()
        found: list[Any] = []

        def others() -> None:
            add.enqueue_now(cluster, near, near=near)
            add.enqueue_now(cluster, near, near=near, unique_key="other")
            with cluster.begin() as session:
                jobs = take(session, near)
                found.extend(jobs)
            with cluster.begin() as session:
                # Only that of a job which is being enqueued again waits.
                claims.acknowledge(
                    session, [j for j in jobs if j.unique_key != b"again"]
                )
            done.set()

        thread = threading.Thread(target=others)
        thread.start()
        # The producer ends only after the others have: a worker that waits
        # for its locks would wait for ever.
        assert done.wait(SECONDS)
        thread.join()
        assert len(found) == 4
        producer.commit()
    assert len(rows(cluster)) == 26


def test_an_open_claim_does_not_block(cluster: Cluster, near: int) -> None:
    calls = [{"counter_id": near}] * 20
    with cluster.begin() as session:
        add.enqueue_many(session, calls, near=near)
    with cluster.begin() as holder:
        first = take(holder, near, limit=5)
        done = threading.Event()
        second: list[Any] = []

        def others() -> None:
            add.enqueue_now(cluster, near, near=near)
            with cluster.begin() as session:
                second.extend(take(session, near, limit=5))
            done.set()

        thread = threading.Thread(target=others)
        thread.start()
        assert done.wait(SECONDS)
        thread.join()
    numbers = {job.local_id for job in (*first, *second)}
    assert len(numbers) == 10


@pytest.mark.only_on("mariadb")  # which makes a table of 1,000 values in IN
def test_extended_claims_lock_no_other_jobs(cluster: Cluster, near: int) -> None:
    with cluster.begin() as session:
        add.enqueue_many(session, [{"counter_id": near}] * 1100, near=near)

    def others() -> int:
        with cluster.session() as session:
            return len(take(session, near, limit=200))

    with cluster.begin() as holder:
        jobs = take(holder, near, limit=1000)
        assert (len(jobs), others()) == (1000, 100)
    with cluster.begin() as holder:
        assert claims.extend(holder, jobs) == []
        assert others() == 100
    with cluster.begin() as holder:
        assert claims.confirm(holder, jobs) == jobs
        assert others() == 100


def fill(cluster: Cluster, rows: int) -> None:
    """Insert jobs of each priority, scheduled, done and due."""
    for priority, state, due in (
        *((p, 0, "INTERVAL 1 YEAR") for p in (1, 2, 3)),
        (2, 2, "INTERVAL -1 HOUR"),
        (2, 0, "INTERVAL -1 HOUR"),
    ):
        with cluster.begin() as session:
            session.execute(
                text(
                    "INSERT INTO __sqla_shard__.sqla_shard_job (shard_id, "
                    "task, queue, priority, state, due_at, created_at, "
                    "attempts, max_attempts, arguments) "
                    "SELECT 1, 'tests.add', 'adding', "
                    f"{priority}, {state}, CURRENT_TIMESTAMP(6) + {due}, "
                    f"CURRENT_TIMESTAMP(6), 0, 3, '{{}}' "
                    "FROM information_schema.columns a, "
                    f"information_schema.columns b LIMIT {rows}"
                ),
                bind_arguments={"shard_id": 1},
            )


def check_reads(log: StatementLog, engine: Any, most: int) -> int:
    """Check each statement about jobs; return the number of plan rows."""
    checked = 0
    for event in log.executions:
        if "sqla_shard_job" not in event.statement:
            continue
        for row in explain(engine, event):
            if "db_jobs00001" not in event.statement:
                continue
            checked += 1
            keys = ("sqla_shard_job_due", "PRIMARY")
            # An empty table of another shard is read without an index.
            is_empty = row["rows"] is None or int(row["rows"]) <= 1
            assert row["key"] in keys or is_empty, row
            assert "filesort" not in (row["Extra"] or ""), event.statement
        assert reads(engine, event) <= most, event.statement
    return checked


def test_reads_use_the_index(cluster: Cluster, near: int) -> None:
    fill(cluster, 2000)
    place = cluster.places.place(cluster.places.keyspace(None, "objects"), 1)
    with StatementLog(place.engine) as log:
        with cluster.begin() as session:
            jobs = take(session, near, limit=50)
            claims.acknowledge(session, jobs)
        groups, _ = due_jobs(cluster, ["adding"])
        clean_up(cluster, ["adding"])
    assert len(jobs) == 50
    assert [(g.shard_id, g.priority) for g in groups] == [(1, 2)]
    assert check_reads(log, place.engine, 300) >= 4
    # Of the shards without work no table is read.
    looks = [one for one in log.executions if "UNION ALL" in one.statement]
    assert len(looks) == 2
    assert not any(explain(place.engine, one) for one in looks)


def test_reads_of_an_operator_use_the_index(
    cluster: Cluster, near: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queues, "MOST_COUNTED", 50)
    queues._counts.cache_clear()
    fill(cluster, 2000)
    job = add.enqueue_now(cluster, near, near=near, unique_key="k")
    place = cluster.places.place(cluster.places.keyspace(None, "objects"), 1)
    with StatementLog(place.engine) as log:
        (found,) = queues.count_queues(cluster)
        assert str(jobs_by_key(cluster, "k").jobs[0].id) == str(job)
        assert stored_job(cluster, str(job)) is not None
        assert len(jobs_of(cluster, "adding", [JobState.DONE]).jobs) == 100
    queues._counts.cache_clear()
    assert (found.due, found.scheduled, found.done) == (50, 50, 50)
    # The groups of the queues take a few entries for each, not all of 10,000.
    assert check_reads(log, place.engine, 1000) >= 4


def reads(engine: Any, event: Any) -> int:
    """Return how many entries the server reads for a SELECT."""
    if not event.statement.startswith("SELECT"):
        return 0
    with engine.connect() as connection:

        def count() -> int:
            found = connection.exec_driver_sql(
                "SHOW SESSION STATUS LIKE 'Handler_read%%'"
            )
            return sum(int(value) for _, value in found)

        before = count()
        shown = count() - before  # what reading the status adds
        before = count()
        connection.exec_driver_sql(event.statement, event.parameters).all()
        return count() - before - shown


def explain(engine: Any, event: Any) -> list[Any]:
    statement = re.sub(r" FOR UPDATE SKIP LOCKED$", "", event.statement)
    if not statement.startswith(("SELECT", "UPDATE", "(")):
        return []
    with engine.connect() as connection:
        cursor = connection.exec_driver_sql(
            f"EXPLAIN FORMAT=TRADITIONAL {statement}", event.parameters
        )
        found = [dict(row) for row in cursor.mappings()]
    return [
        row
        for row in found
        if row["table"] not in (None, "<union1,2>")
        and not str(row["table"]).startswith("<")
    ]


def test_a_binary_log_of_statements_is_refused(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = cluster.places.place(cluster.places.keyspace(None, "objects"), 1)
    monkeypatch.setattr(type(place.backend), "logs_statements", lambda self, c: True)
    with pytest.raises(UnsafeBinaryLogError):
        Worker(cluster, queues=["adding"]).run(until_empty=True)


def test_a_transaction_reads_the_tables_of_few_shards(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MariaDB takes the square of their number to find the locks on them."""
    monkeypatch.setattr(scan, "MOST_BRANCHES", 1)
    sessions: set[ShardSession] = set()

    def read(session: ShardSession, places: Sequence[Place]) -> list[int]:
        sessions.add(session)
        return [place.shard_id for place in places]

    numbers, unreachable = scan.scan(cluster, read, kinds=("objects",))
    assert unreachable == []
    (space,) = cluster.topology.keyspaces.values()
    assert sorted(numbers) == list(range(space.shards))
    assert len(sessions) == space.shards > 3  # servers


# -- Processes.

_ENQUEUE = """
import sys
from sqla_shard import Cluster
from tests.models.job_models import add
path, near = sys.argv[1:]
with Cluster.from_file(path) as cluster:
    print("ready", flush=True)
    sys.stdin.readline()
    made = [
        add.enqueue_now(cluster, int(near), near=int(near), unique_key="one")
        for _ in range(5)
    ]
    print(sum(job.is_new for job in made), flush=True)
"""


def test_a_unique_key_of_racing_processes(
    cluster: Cluster, near: int, topology: Path, tmp_path: Path, fleet: ServerFleet[Any]
) -> None:
    program = tmp_path / "enqueue.py"
    program.write_text(_ENQUEUE)
    with ExitStack() as stack:
        racing = [
            stack.enter_context(started(fleet, str(program), topology, near))
            for _ in range(8)
        ]
        for one in racing:
            assert one.stdout.readline() == "ready\n"
        for one in racing:
            one.stdin.write("go\n")
            one.stdin.flush()
        new = [int(one.stdout.readline()) for one in racing]
    assert sum(new) == 1
    (row,) = rows(cluster)
    assert row.unique_key == b"one"


_WORKER = "-m tests.workers.job_worker"


def test_a_worker_that_slept_through_its_claim(
    cluster: Cluster, near: int, topology: Path, fleet: ServerFleet[Any]
) -> None:
    pausing.enqueue_now(cluster, near, near=near)
    with started(fleet, _WORKER, topology, 60, "pause") as sleeper:
        assert sleeper.stdout.readline() == "ready\n"
        assert sleeper.stdout.readline() == "inside\n"
        sleeper.send_signal(signal.SIGSTOP)
        (row,) = rows(cluster)
        assert row.state == JobState.RUNNING
        expire(cluster, _address(row))
        report = Worker(cluster, queues=["pausing"]).run(until_empty=True)
        assert (report.recovered, report.succeeded) == (1, 1)
        assert counters(cluster, [near]) == [1]
        before = rows(cluster)
        sleeper.send_signal(signal.SIGCONT)
        sleeper.stdin.write("go on\n")
        sleeper.stdin.flush()
        assert sleeper.stdout.readline() == "0 1\n"  # succeeded, lost
        assert sleeper.wait(SECONDS) == 0
    assert counters(cluster, [near]) == [1]
    assert rows(cluster) == before


def _address(row: Any) -> Any:
    return claims.ClaimedJob(
        keyspace="objects",
        shard_id=row.shard_id,
        local_id=row.id,
        token=b"",
        task=row.task,
        queue=row.queue,
        priority=row.priority,
        arguments={},
        checkpoint=None,
        attempt=1,
        max_attempts=1,
    )


def test_databases_without_tables_are_found_together(fleet: ServerFleet[Any]) -> None:
    """A fleet that is new has thousands; workers look for work each second."""
    found = fleet.topology_mapping(shards=32, database="db_bare{shard:05d}")
    fleet.create_databases(found)
    try:
        with Cluster.from_topology(found, environ=fleet.environ) as cluster:
            _, unread = queues.queue_counts(cluster)
            engines = {place.engine for _, place in cluster.places.servers()}
            with StatementLog(*engines) as log:
                _, unread = queues.queue_counts(cluster)
        addresses = [address for one in unread for address in one.addresses]
        assert sorted(addresses) == [("objects", shard) for shard in range(32)]
        assert len(unread) == len(engines)
        assert "sqla_shard_job' doesn't exist" in str(unread[0].error)
        # The tables that there are, and how names are compared.
        assert len(log.statements) <= 3 * len(engines)
    finally:
        fleet.drop_databases(found)
