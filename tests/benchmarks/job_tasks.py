"""Tasks that are measured, and a worker for them."""

from __future__ import annotations

import queue
import sys
from time import perf_counter

from sqla_shard import Cluster
from sqla_shard.jobs import task, Worker

#: When each job of ``late`` has started.
STARTS: queue.SimpleQueue[float] = queue.SimpleQueue()


@task("bench.noop", queue="bench", in_transaction=False)
def noop() -> None:
    """Do nothing."""


@task("bench.late", queue="bench", in_transaction=False)
def late() -> None:
    STARTS.put(perf_counter())


def main() -> None:
    """Run jobs; the argument of the process is the topology."""
    with Cluster.from_file(sys.argv[1]) as cluster:
        Worker(cluster, ["bench"], concurrency=1).run()
