"""A worker of jobs as a process: ``job_worker topology lease [pause]``.

With ``pause`` the first run of a job prints a line, and waits for one; with
``command`` also, in ``sqla-shard worker`` with further options.
"""

from __future__ import annotations

import sys
from typing import Any

from sqla_shard import Cluster
from sqla_shard.cli.program import program
from sqla_shard.jobs import Worker
from tests.models import job_models


def _pause() -> None:
    print("inside", flush=True)  # noqa: T201 - the parent process reads it
    sys.stdin.readline()


def main(topology: str, lease: str, pause: str = "", *options: str) -> None:
    """Run jobs until there are none; print a summary."""
    if pause:
        job_models.pause = _pause
    if pause == "command":
        program(
            [
                *("-t", topology, "worker", "--queues", "pausing"),
                *("--lease", lease, *options),
            ]
        )
    with Cluster.from_file(topology) as cluster:
        print("ready", flush=True)  # noqa: T201
        options: Any = {"lease": float(lease), "concurrency": 2}
        worker = Worker(cluster, queues=["adding", "pausing"], **options)
        report = worker.run(until_empty=True)
    print(report.succeeded, report.lost, flush=True)  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:])
