"""Processes that leave operations for other shards, and that repair."""

from __future__ import annotations

import logging
import os
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from sqlalchemy.exc import SQLAlchemyError

from sqla_shard import Cluster
from sqla_shard.exc import CommitUnknownError
from sqla_shard.outbox import apply, operations, pending
from tests.servers.sums import ACROSS, add, SETS
from tests.workers.forks import is_orphan

#: Much longer than anything here takes, so that some are forgotten in time.
KEEP = timedelta(seconds=60)


def hurry() -> None:
    """Short waits, so that all conflict within a few seconds."""
    operations._LEASE = 0.5
    pending._LEASE = 1.0
    apply._LONGEST_PAUSE = 1


@contextmanager
def opened(topology: Any) -> Iterator[Cluster]:
    hurry()
    # There would be a line for each operation for a server that is down.
    logging.getLogger("sqla_shard").addHandler(logging.NullHandler())
    with Cluster.from_topology(
        topology, engine_options={"connect_args": {"read_timeout": 20}}
    ) as cluster:
        yield cluster


def write(*, server: int, topology: Any, sums: list[Any], seed: str, log: str) -> None:
    """Write sets, and log what became of each.

    :param sums: set, shard and id of each counter.
    """
    rng = random.Random(seed)
    ids = {(of, shard_id): sum_id for of, shard_id, sum_id in sums}
    pause = threading.Event()
    number = 0
    # One line is written at once, and is there when this process is killed.
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    with opened(topology) as cluster:
        while not is_orphan(server):
            number += 1
            of = rng.randrange(SETS)
            token = f"{os.getpid()}-{seed}-{number}"
            os.write(file, f"begun {of} {token}\n".encode())
            home, *others = rng.sample(list(ACROSS), len(ACROSS))
            outcome = "done"
            try:
                with cluster.begin(cross_shard="logged") as session:
                    add(session, ids[of, home], of, token)
                    for shard_id in others:
                        add.intend(session, ids[of, shard_id], of, token)
            except CommitUnknownError:
                outcome = "unknown"
            except SQLAlchemyError:
                outcome = "failed"
                # A server that is down refuses at once.
                pause.wait(0.02)
            os.write(file, f"{outcome} {of} {token}\n".encode())


def repair(*, server: int, topology: Any) -> None:
    """Repair all the time."""
    pause = threading.Event()
    with opened(topology) as cluster:
        while not is_orphan(server):
            cluster.repair(keep=KEEP)
            pause.wait(0.05)
