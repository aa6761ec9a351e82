"""The newest ten of all pins, whatever their shard."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, ExitStack
from datetime import datetime, timedelta, UTC
from typing import Any

from sqlalchemy import select

from sqla_shard import Cluster, scatter, ShardSession
from tests.benchmarks.pins import branch, connect, Pin, PYMYSQL, unions

_COUNT = 10
_ROWS = 40
_START = datetime(2026, 1, 1, tzinfo=UTC)

STATEMENT = (
    select(Pin)
    .where(Pin.ts >= _START)
    .order_by(Pin.ts.desc())
    .limit(_COUNT)
    .options(scatter())
)


def fill_shards(cluster: Cluster, shards: int) -> None:
    """Give every shard rows like that of shard 0, no two of one time."""
    server_for = cluster.topology.keyspace("objects").server_for
    with ExitStack() as stack:
        cursors = {}
        for shard_id in range(shards):
            url = server_for(shard_id).primary
            if url not in cursors:
                connection = stack.enter_context(connect(url, PYMYSQL))
                connection.autocommit(True)
                cursors[url] = connection.cursor()
        first = cursors[server_for(0).primary]
        first.execute(branch(0, "LIMIT 1"))
        ((_, data, _),) = first.fetchall()
        for shard_id in range(shards):
            cursors[server_for(shard_id).primary].executemany(
                f"INSERT INTO db{shard_id:05d}.pins (data, ts) VALUES (%s, %s)",
                [
                    (data, _START + timedelta(seconds=row * shards + shard_id))
                    for row in range(_ROWS)
                ],
            )


def ours(session: ShardSession) -> list[Any]:
    """Read them as objects, newest first."""
    found = session.scalars(STATEMENT).all()
    assert len(found) == _COUNT
    return list(found)


@contextmanager
def merged_here(
    cluster: Cluster, shards: Iterable[int]
) -> Iterator[Callable[[], list[int]]]:
    """Read ten of each shard by hand, and choose."""
    with unions(cluster, _branches(shards)) as rows:
        yield lambda: _best(rows())


@contextmanager
def merged_there(
    cluster: Cluster, shards: Iterable[int]
) -> Iterator[Callable[[], list[int]]]:
    """Read ten of each server by hand, which has chosen, and choose."""
    around = f" ORDER BY ts DESC LIMIT {_COUNT}"
    with unions(cluster, _branches(shards), around) as rows:
        yield lambda: _best(rows())


def _branches(shards: Iterable[int]) -> dict[int, str]:
    rest = f"WHERE ts >= '{_START:%F}' ORDER BY ts DESC LIMIT {_COUNT}"
    return {shard_id: f"({branch(shard_id, rest)})" for shard_id in shards}


def _best(rows: list[Any]) -> list[int]:
    best = heapq.nlargest(_COUNT, rows, key=lambda row: row[2])
    return [row[0] for row in best]
