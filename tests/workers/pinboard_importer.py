"""A worker of the pinboard that stops in the middle of an import.

``python -m tests.workers.pinboard_importer WHEN``, with a topology on the
standard input.  It says ``stopped``, and waits to be killed, when a hundred
pins are stored: ``between`` two transactions, or ``inside`` the next one,
whose pins are written.
"""

from __future__ import annotations

import json
import sys
import threading
from typing import Any

from sqlalchemy import event

from examples.pinboard.import_jobs import QUEUE
from examples.pinboard.models import Pin
from examples.pinboard.workers import QUEUES
from sqla_shard import Cluster
from sqla_shard.jobs import Worker

_PINS = 100


def stop() -> None:
    sys.stdout.write("stopped\n")
    sys.stdout.flush()
    threading.Event().wait()


def main(when: str) -> None:
    written = 0

    def count(mapper: Any, connection: Any, target: Pin) -> None:
        nonlocal written
        written += 1
        if when == "inside" and written > _PINS:
            stop()

    event.listen(Pin, "after_insert", count)
    with Cluster.from_topology(json.load(sys.stdin)) as cluster:
        run = cluster.run

        def stepping(*args: Any, **options: Any) -> Any:
            found = run(*args, **options)
            if when == "between" and written == _PINS:
                stop()
            return found

        cluster.run = stepping  # type: ignore[method-assign]  # to stop it
        assert QUEUE in QUEUES
        Worker(cluster, [QUEUE]).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
