"""Jobs from end to end, against queues on Redis.

The same no-op task and the same number of processes, each with one thread.
Jobs are enqueued one by one, each in a transaction of its own, before the
workers start; then the time from the first job to the last one is measured.
Redis has no durability here; the databases commit each enqueue and each batch.

The other libraries come from an environment of their own::

    python -m venv queues
    queues/bin/pip install "celery[redis]" rq "dramatiq[redis]" huey
    SQLA_SHARD_QUEUES=queues/bin/python python -m tests.benchmarks queues
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter, process_time
from typing import Any

from sqla_shard import Cluster
from sqla_shard.jobs import share_hints, Worker
from sqla_shard.testing import RedisServer
from sqla_shard.testing.server_fleet import ServerFleet
from tests.benchmarks.job_tasks import late, noop, STARTS
from tests.benchmarks.servers import new_fleet, title
from tests.models.job_models import Base

_JOBS = 4000
_PROCESSES = 2
_LATE = 60
_SECONDS = 120.0
_HERE = Path(__file__).parent
#: The list with the jobs, and the arguments of a worker.
_QUEUES: dict[str, tuple[str, list[str]]] = {
    "celery": (
        "celery",
        [
            *("-m", "celery", "-A", "queue_program:app", "worker", "-P"),
            *("solo", "--without-gossip", "--without-mingle", "-l", "ERROR"),
        ],
    ),
    "rq": (
        "rq:queue:default",
        ["-m", "rq.cli", "worker", "--quiet", "-w", "rq.SimpleWorker"],
    ),
    "dramatiq": (
        "dramatiq:default",
        [*("-m", "dramatiq", "queue_program", "--processes", "1"), *("--threads", "1")],
    ),
    "huey": (
        "huey.redis.bench",
        ["-m", "huey.bin.huey_consumer", "queue_program.app", "-w", "1"],
    ),
}


def run() -> None:
    """Print the tables."""
    print(f"{_JOBS:,} no-op jobs, {_PROCESSES} worker processes")
    print(f"{'':28}{'us to enqueue':>15}{'jobs a second':>15}")
    for servers in (1, 2, 4):
        _ours(servers)
    python = os.environ.get("SQLA_SHARD_QUEUES")
    if python is None:
        print("Celery, RQ, dramatiq, Huey: not measured.", __doc__)
    else:
        for name in _QUEUES:
            _theirs(str(Path(python).absolute()), name)
    latency()
    _idle()


def _show(name: str, enqueue: float, drain: float) -> None:
    each = enqueue / _JOBS * 1e6
    print(f"{name:28}{each:>15,.0f}{_JOBS / drain:>15,.0f}")


def _drained(left: Callable[[], int]) -> float:
    """Return the seconds from the first job to the last one.

    :param left: returns the number of jobs.
    :raises TimeoutError: if they take too long.
    """
    end = perf_counter() + _SECONDS
    first: float | None = None
    while (now := perf_counter()) < end:
        count = left()
        if first is None and count < _JOBS:
            first = now
        if first is not None and count == 0:
            return now - first
        time.sleep(0.01)
    raise TimeoutError(f"{left()} jobs are left after {_SECONDS} s")


@contextmanager
def _workers(command: Sequence[str], environ: dict[str, str]) -> Iterator[None]:
    with ExitStack() as stack:
        for _ in range(_PROCESSES):
            process = stack.enter_context(
                subprocess.Popen(
                    command,
                    env={**os.environ, **environ},
                    cwd=_HERE,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
            )
            stack.callback(process.kill)
        yield


def _theirs(python: str, name: str) -> None:
    key, arguments = _QUEUES[name]
    with RedisServer() as server:
        environ = {
            "QUEUE_NAME": name,
            "QUEUE_URL": f"redis://127.0.0.1:{server.port}/0",
            "RQ_REDIS_URL": f"redis://127.0.0.1:{server.port}/0",
        }
        enqueued = subprocess.run(
            [python, "-c", f"import queue_program as q; q.fill({_JOBS})"],
            env={**os.environ, **environ},
            cwd=_HERE,
            capture_output=True,
            text=True,
            check=True,
        )
        with _workers([python, *arguments], environ):
            drain = _drained(lambda: _length(server, key))
    _show(f"{name}, Redis", float(enqueued.stdout), drain)


def _length(server: RedisServer, key: str) -> int:
    from redis import Redis

    with Redis(port=server.port) as client:
        found: Any = client.llen(key)
        return int(found)


def _ours(servers: int) -> None:
    with ExitStack() as stack:
        fleet = stack.enter_context(
            new_fleet(servers=servers, shards=4 * servers, fast=True)
        )
        directory = stack.enter_context(TemporaryDirectory())
        path = Path(directory) / "topology.json"
        path.write_text(json.dumps(fleet.topology_mapping()))
        cluster = stack.enter_context(Cluster.from_file(path, environ=fleet.environ))
        cluster.create_all(Base.metadata)
        begin = perf_counter()
        for _ in range(_JOBS):
            noop.enqueue_now(cluster)
        enqueue = perf_counter() - begin
        program = "from tests.benchmarks.job_tasks import main; main()"
        command = [sys.executable, "-c", program]
        root = str(_HERE.parents[1])
        environ = {**fleet.environ, "PYTHONPATH": root}
        with _workers([*command, str(path)], environ):
            drain = _drained(lambda: _unfinished(fleet))
    plural = "s" if servers > 1 else ""
    _show(f"sqla_shard, {servers} {title()}{plural}", enqueue, drain)


def _unfinished(fleet: ServerFleet[Any]) -> int:
    """Return the number of jobs that have not succeeded."""
    count = 0
    for number, server in enumerate(fleet.servers):
        for shard in range(4 * number, 4 * number + 4):
            rows = server.root_execute(
                f"SELECT COUNT(*) FROM db{shard:05d}.sqla_shard_job WHERE state < 2"
            )
            count += int(rows[0][0])
    return count


def latency() -> None:
    """Print the times from COMMIT to the start of a task, of an idle worker."""
    with new_fleet(servers=1, shards=4, fast=True) as fleet, RedisServer() as redis:
        document = fleet.topology_mapping()
        url = f"redis://{redis.host}:{redis.port}/0"
        with (
            Cluster.from_topology(document, environ=fleet.environ) as working,
            Cluster.from_topology(document, environ=fleet.environ) as enqueuing,
        ):
            working.create_all(Base.metadata)
            _waits("without a hint", working, enqueuing)
            _waits("hint in its process", working, working)
            for cluster in (working, enqueuing):
                share_hints(cluster, url)
            _waits("hint through Redis", working, enqueuing)
            for cluster in (working, enqueuing):
                share_hints(cluster, None)


def _waits(what: str, working: Cluster, enqueuing: Cluster) -> None:
    """Print how long jobs wait.

    :param working: the cluster of the worker.
    :param enqueuing: that of the program that enqueues.
    """
    worker = Worker(working, ["bench"], concurrency=1)
    thread = threading.Thread(target=worker.run)
    thread.start()
    waits = []
    for number in range(_LATE):
        # At all times between two looks.
        time.sleep(0.3 + 0.7 * number / _LATE)
        late.enqueue_now(enqueuing)
        committed = perf_counter()
        waits.append(STARTS.get(timeout=_SECONDS) - committed)
    worker.stop()
    thread.join()
    cuts = statistics.quantiles(waits, n=100)
    print(
        f"from COMMIT to start, {title()}, {what}: p50 {cuts[49] * 1e3:,.1f} ms, "
        f"p99 {cuts[98] * 1e3:,.1f} ms of {_LATE}"
    )


def _idle(shards: int = 4096, seconds: float = 20.0) -> None:
    """Print what an idle worker costs with many shards."""
    with new_fleet(servers=1, shards=4, fast=True) as fleet:
        document = fleet.topology_mapping(shards=shards, database="db_many{shard:05d}")
        with Cluster.from_topology(document, environ=fleet.environ) as cluster:
            metadata = Base.metadata.__class__()
            Base.metadata.tables["counters"].to_metadata(metadata)
            cluster.create_all(metadata)
            worker = Worker(cluster, ["bench"], concurrency=1)
            thread = threading.Thread(target=worker.run)
            thread.start()
            time.sleep(5)
            before, cpu = _questions(fleet), process_time()
            time.sleep(seconds)
            sent, cpu = _questions(fleet) - before - 1, process_time() - cpu
            worker.stop()
            thread.join()
    print(
        f"an idle worker, {shards:,} shards: {sent / seconds:.1f} statements "
        f"and commands a second, {cpu / seconds:.1%} of a processor"
    )


def _questions(fleet: ServerFleet[Any]) -> int:
    rows = fleet.servers[0].root_execute("SHOW GLOBAL STATUS LIKE 'Questions'")
    return int(rows[0][1])
