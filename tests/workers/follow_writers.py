"""Processes that change a follow graph, and that repair it."""

from __future__ import annotations

import os
import random
import threading
from typing import Any

from sqla_shard.exc import BlockedError
from sqla_shard.outbox import apply
from tests.models.graph_models import follows, run
from tests.workers.forks import is_orphan
from tests.workers.logged_writers import opened

_USERS = {"follow_user": 6, "unfollow_user": 3, "block": 1, "unblock": 2}
_BOARDS = {"follow_board": 6, "unfollow_board": 5}


def write(
    *,
    server: int,
    topology: Any,
    pairs: list[tuple[int, int]],
    boards: dict[str, list[int]],
    seed: str,
    log: str,
) -> None:
    """Change edges of pairs, and log each change before and after it.

    :param pairs: users, and those whom they follow; of no other process.
    :param boards: boards of each user.
    """
    rng = random.Random(seed)
    # One line is written at once, and is there when this process is killed.
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    with opened(topology) as cluster:
        while not is_orphan(server):
            user, other = rng.choice(pairs)
            names = rng.choice([_USERS, _BOARDS])
            (name,) = rng.choices(list(names), list(names.values()))
            target = other
            if names is _BOARDS:
                target = rng.choice(boards[str(other)])
            elif name in ("block", "unblock"):
                user, target = other, user
            # Half of the changes leave their operations to others.
            apply._APPLY_SECONDS = rng.choice([-1.0, 30.0])
            os.write(file, f"begun {name} {user} {target}\n".encode())
            outcome = "done"
            try:
                run(cluster, getattr(follows, name), user, target)
            except BlockedError:
                outcome = "refused"
            os.write(file, f"{outcome} {name} {user} {target}\n".encode())


def repair(*, server: int, topology: Any) -> None:
    """Apply the operations that others have left, all the time."""
    pause = threading.Event()
    with opened(topology) as cluster:
        while not is_orphan(server):
            cluster.repair(now=True)
            pause.wait(0.05)
