"""Many threads that add pins: the process of :mod:`.writers`.

The standard input has a JSON object: ``location``, the path of a topology
file, or ``document``, a topology; ``cache``, ``writers`` and ``seconds``.
Each line of the output is one, too: first ``boards``, then twice a second
``at`` and, for each server, ``writes``, ``failed``, ``p50`` and ``p99``.

A write is :func:`examples.pinboard.boards.add_pin`, one transaction on one
virtual shard, including retries of :meth:`sqla_shard.Cluster.run`.  Its
duration includes the wait for a connection of the pool and for Python, which
runs one thread at a time.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from time import monotonic, perf_counter
from typing import Any

from sqlalchemy.exc import SQLAlchemyError

from examples.pinboard.boards import add_board, add_pin
from examples.pinboard.caching import keep
from examples.pinboard.inputs import BoardInput, PinInput
from examples.pinboard.models import UserEmail, UserHasBoards
from examples.pinboard.samples import add_user, email_of
from sqla_shard import Cluster, ShardSession, unpack

#: Users whose boards are written to, evenly on the virtual shards.
_USERS = 16
#: Seconds that a writer waits after a failed write: connections are refused
#: at once.
_WAIT = 0.2
_EVERY = 0.5
#: Connections to each server.
_POOL = {"pool_size": 40, "max_overflow": 0, "pool_timeout": 30}


class Figures:
    """Durations of writes, and the number of failed ones, by server."""

    def __init__(self, began: float) -> None:
        self._began = began
        self._lock = threading.Lock()
        self._seconds: dict[str, list[float]] = {}
        self._failed: dict[str, int] = {}

    def add(self, server: str, seconds: float, *, failed: bool) -> None:
        """Add a write."""
        with self._lock:
            times = self._seconds.setdefault(server, [])
            self._failed.setdefault(server, 0)
            if failed:
                self._failed[server] += 1
            else:
                times.append(seconds)

    def as_dict(self) -> dict[str, Any]:
        """Return the report of this moment."""
        with self._lock:
            copies = {name: list(t) for name, t in self._seconds.items()}
            failed = dict(self._failed)
        return {
            "at": monotonic() - self._began,
            "servers": {
                name: {
                    "writes": len(times),
                    "failed": failed[name],
                    "p50": percentile(times, 0.5),
                    "p99": percentile(times, 0.99),
                }
                for name, times in sorted(copies.items())
            },
        }


def percentile(times: list[float], share: float) -> float | None:
    """Return the duration that a share of writes did not exceed."""
    times.sort()
    return times[int(share * (len(times) - 1))] if times else None


def prepared(cluster: Cluster, writers: int) -> list[tuple[int, int]]:
    """Return a user and a board for each writer; those of earlier runs."""
    shards = cluster.topology.sole("objects").shards
    found: list[tuple[int, int]] = []
    for number in range(_USERS):
        name = f"Writer {number + 1}"
        with cluster.session() as session:
            user_id = UserEmail.resolve(session, email_of(name))
        if user_id is None:
            shard = number * shards // _USERS
            about = "One of the writers of the lab."
            user_id = add_user(cluster, name, about, shard)
        count = -(-(writers - number) // _USERS)
        ids = cluster.run(_boards_of, user_id, count)
        found += [(user_id, board_id) for board_id in ids]
    return found


def _boards_of(session: ShardSession, user_id: int, count: int) -> Sequence[int]:
    if count <= 0:
        return []
    page = UserHasBoards.page(session, user_id, count)
    ids = [row.board_id for row in page]
    entered = BoardInput(title="Written by the lab", details="")
    while len(ids) < count:
        ids.append(add_board(session, user_id, entered))
    return ids


def write(
    cluster: Cluster, figures: Figures, user_id: int, board_id: int, end: float
) -> None:
    """Add one pin or more to a board, until a monotonic time."""
    keyspace = cluster.topology.sole("objects").name
    shard_id = unpack(board_id).shard_id
    number = 0
    waiting = threading.Event()
    while number == 0 or monotonic() < end:
        number += 1
        link = f"https://example.com/{board_id}/{number}"
        entered = PinInput(link=link, title=f"Pin {number}", details="")
        began = perf_counter()
        failed = False
        try:
            cluster.run(add_pin, user_id, board_id, entered)
        except SQLAlchemyError:
            failed = True
        seconds = perf_counter() - began
        topology = cluster.topology
        server = topology.keyspace(keyspace).server_for(shard_id).name
        figures.add(server, seconds, failed=failed)
        if failed:
            waiting.wait(_WAIT)


def main() -> None:
    """Run the writers, and print their figures."""
    job = json.load(sys.stdin)
    if "location" in job:
        opened = Cluster.from_file(job["location"], engine_options=_POOL)
    else:
        opened = Cluster.from_topology(job["document"])
    with opened as cluster, ThreadPoolExecutor(job["writers"]) as threads:
        keep(cluster, job["cache"])
        targets = prepared(cluster, job["writers"])
        _print(boards=[board_id for _, board_id in targets])
        began = monotonic()
        figures = Figures(began)
        end = began + job["seconds"]
        running = [
            threads.submit(write, cluster, figures, *target, end) for target in targets
        ]
        waiting = threading.Event()
        while not all(one.done() for one in running):
            waiting.wait(_EVERY)
            _print(**figures.as_dict())
        for one in running:
            one.result()
        _print(**figures.as_dict())


def _print(**values: Any) -> None:
    print(json.dumps(values), flush=True)


if __name__ == "__main__":
    main()
