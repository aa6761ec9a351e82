"""Counters and elements on four servers, which are killed meanwhile.

After Vitess's stress test of distributed transactions: each transaction
increments one counter of a set on each of four shards, which are on four
servers, and adds an element of its own there.
"""

from __future__ import annotations

import os
import random
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

from sqlalchemy import String, update
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sqla_shard import Cluster, ObjectMixin, operation, ShardSession, unpack
from sqla_shard.testing.server_fleet import ServerFleet
from tests.servers.following import until

SOAK = os.environ.get("SQLA_SHARD_SOAK") == "1"
SERVERS = 4
SHARDS = 8
SETS = 3
#: One shard of each server.
ACROSS = range(0, SHARDS, SHARDS // SERVERS)


class Base(DeclarativeBase):
    pass


class Sum(ObjectMixin, Base, type_id=1):
    __tablename__ = "sums"
    n: Mapped[int] = mapped_column(default=0)


class Element(ObjectMixin, Base, type_id=2):
    __tablename__ = "elements"
    token: Mapped[str] = mapped_column(String(40))
    of: Mapped[int]


@operation("tests.sums.add")
def add(session: ShardSession, sum_id: int, of: int, token: str) -> None:
    """Increment a counter, and add an element on the same shard."""
    more = update(Sum).where(Sum.id == sum_id).values(n=Sum.n + 1)
    session.execute(more)
    shard_id = unpack(sum_id).shard_id
    session.add(Element(token=token, of=of, shard_id=shard_id))
    session.flush()


def new_sums(cluster: Cluster) -> dict[tuple[int, int], int]:
    """Return the ids of new counters, by set and shard."""
    made = {}
    for of in range(SETS):
        for shard_id in ACROSS:
            with cluster.begin(shard_id=shard_id) as session:
                found = Sum()
                session.add(found)
                session.flush()
                made[of, shard_id] = found.id
    return made


def _await_more(written: Callable[[], int]) -> None:
    enough = written() + 3
    assert until(lambda: written() >= enough, 120)


def kill_and_start(
    fleet: ServerFleet[Any],
    rng: random.Random,
    kills: int,
    written: Callable[[], int],
    meanwhile: Callable[[], None] = lambda: None,
) -> None:
    """Kill one or two servers at a time, in the midst of writing.

    :param written: returns the number of writes that have succeeded.  Some do
        before each kill, on a slow machine, too.
    :param meanwhile: is called while they are down.
    """
    pause = threading.Event()
    while kills > 0:
        _await_more(written)
        pause.wait(rng.uniform(0.2, 0.6))
        servers = rng.sample(list(fleet.servers), rng.choice([1, 1, 2]))
        for server in servers:
            server.kill()
            kills -= 1
        meanwhile()
        pause.wait(rng.uniform(0, 0.1))
        for server in servers:
            server.start()


def found_on(
    fleet: ServerFleet[Any], shard_id: int
) -> tuple[list[int], Counter[str], Counter[int]]:
    """Return the rows of a shard on a server.

    :returns: its counters, the tokens of its elements, and their sets.
    """
    server = fleet.servers[shard_id // (SHARDS // SERVERS)]
    name = f"db{shard_id:05d}"
    sums = server.root_execute(f"SELECT n FROM {name}.sums ORDER BY local_id")
    elements = server.root_execute(f"SELECT token, `of` FROM {name}.elements")
    return (
        [n for (n,) in sums],
        Counter(token for token, _ in elements),
        Counter(of for _, of in elements),
    )
