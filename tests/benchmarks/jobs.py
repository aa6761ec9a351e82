"""Jobs: the cost of an enqueue in a transaction, and claims versus SQL."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from itertools import count
from typing import Any

from sqla_shard import Cluster, pack
from sqla_shard.jobs.claims import JobState
from sqla_shard.jobs.context import Ending, JobOutcome
from sqla_shard.jobs.survey import due_jobs, due_rows, DueGroup
from sqla_shard.jobs.transactions import exchange
from sqla_shard.testing.server_fleet import ServerFleet
from tests.benchmarks.servers import new_fleet
from tests.benchmarks.timing import compare, show
from tests.models.job_models import add, Base, Counter

_SHARDS = 4
_MANY = 4096
_BATCH = 50
_TURNS = 150
_BACKLOG = 1_000_000 if "SQLA_SHARD_SOAK" in os.environ else 100_000

_FILL = (
    "INSERT INTO {db}.sqla_shard_job (shard_id, task, queue, priority, state, "
    "due_at, created_at, attempts, max_attempts, arguments) SELECT 1, "
    "'tests.add', 'adding', 2, 0, CURRENT_TIMESTAMP(6), CURRENT_TIMESTAMP(6), "
    "0, 3, '{{}}' FROM {db}.seq_1_to_{rows}"
)


def run() -> None:
    """Print the tables."""
    with new_fleet(servers=1, shards=_SHARDS, fast=True) as fleet:
        with Cluster.from_topology(
            fleet.topology_mapping(main=True), environ=fleet.environ
        ) as cluster:
            cluster.create_all(Base.metadata)
            _enqueue(cluster)
            _claim(cluster, fleet)
        document = fleet.topology_mapping(shards=_MANY, database="db_many{shard:05d}")
        with Cluster.from_topology(document, environ=fleet.environ) as cluster:
            metadata = Base.metadata.__class__()
            Base.metadata.tables["counters"].to_metadata(metadata)
            cluster.create_all(metadata)
            _look(cluster)


def _look(cluster: Cluster) -> None:
    places = cluster.places.all_places(cluster.places.keyspace(None, "objects"))
    selects = [
        f"SELECT {place.shard_id}, MIN(state) FROM {place.schema}.sqla_shard_job"
        for place in places
    ]
    connection: Any = places[0].engine.raw_connection().driver_connection
    cursor = connection.cursor()

    def by_hand() -> None:
        for start in range(0, _MANY, 256):
            cursor.execute(" UNION ALL ".join(selects[start : start + 256]))
            assert len(cursor.fetchall()) == 256
            # A transaction of all would take five times as long on MariaDB.
            connection.rollback()

    ages = {state: timedelta(0) for state in JobState if state is not JobState.PENDING}
    show(
        f"one look for work, {_MANY:,} idle shards on 1 server",
        compare(
            {
                "bare SQL, PyMySQL": by_hand,
                "due_jobs()": lambda: due_jobs(cluster, ["adding"]),
                "for the cleanup": lambda: due_rows(cluster, ["adding"], ages),
            },
            turns=10,
            warm_up=2,
        ),
    )


def _enqueue(cluster: Cluster) -> None:
    near = pack(1, 1, 1)
    numbers = count()

    def write(enqueues: bool, unique: str | None = None) -> None:
        with cluster.begin(shard_id=1) as session:
            for _ in range(3):
                session.add(Counter())
                session.flush()
            if enqueues:
                add.enqueue(session, near, near=near, unique_key=unique)

    show(
        "a transaction of three new objects",
        compare(
            {
                "without a job": lambda: write(False),
                "with a job": lambda: write(True),
                "with a job with a new unique key": lambda: write(
                    True, f"k{next(numbers)}"
                ),
                "with a job whose key exists": lambda: write(True, "k"),
            },
            turns=_TURNS,
        ),
    )


def _claim(cluster: Cluster, fleet: ServerFleet[Any]) -> None:
    place = cluster.places.place(cluster.places.keyspace(None, "objects"), 1)
    server = fleet.servers[0]
    database = place.schema
    for backlog in (10_000, _BACKLOG):
        server.root_execute(f"TRUNCATE TABLE {database}.sqla_shard_job")
        server.root_execute(_FILL.format(db=database, rows=backlog))
        groups, _ = due_jobs(cluster, ["adding"])
        show(
            f"claim and acknowledge {_BATCH} jobs, backlog of {backlog:,}",
            compare(
                {
                    "bare SQL, PyMySQL": _bare(place, database),
                    "a worker's transaction": _worker(cluster, groups),
                },
                turns=60,
                warm_up=5,
            ),
        )


def _worker(cluster: Cluster, groups: list[DueGroup]) -> Callable[[], None]:
    done: list[JobOutcome] = []

    def turn() -> None:
        found = cluster.run(
            exchange,
            groups[0].address,
            tuple(done),
            groups,
            _BATCH,
            {"adding": _BATCH},
            60.0,
        )
        assert len(found.claimed) == _BATCH
        done[:] = [
            JobOutcome(job=job, ending=Ending.SUCCEEDED) for job in found.claimed
        ]

    return turn


def _bare(place: Any, database: str) -> Callable[[], None]:
    """Return the same with the statements that a script would send."""
    raw = place.engine.raw_connection()
    connection = raw.driver_connection
    cursor = connection.cursor()
    table = f"{database}.sqla_shard_job"
    cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
    done: list[int] = []

    def turn() -> None:
        token = os.urandom(16)
        if done:
            cursor.execute(
                f"UPDATE {table} SET state = 2, due_at = NOW(6) "
                "WHERE id IN %s AND state = 1",
                (tuple(done),),
            )
        cursor.execute(
            "SELECT id, task, arguments, attempts, max_attempts "
            f"FROM {table} FORCE INDEX (sqla_shard_job_due) "
            "WHERE state = 0 AND queue = 'adding' AND priority = 2 AND "
            "due_at <= NOW(6) ORDER BY due_at, id LIMIT %s "
            "FOR UPDATE SKIP LOCKED",
            (_BATCH,),
        )
        done[:] = [row[0] for row in cursor.fetchall()]
        cursor.execute(
            f"UPDATE {table} SET state = 1, token = %s, "
            "due_at = NOW(6) + INTERVAL 60 SECOND, attempts = attempts + 1 "
            "WHERE id IN %s AND state = 0",
            (token, tuple(done)),
        )
        connection.commit()
        assert len(done) == _BATCH

    return turn
