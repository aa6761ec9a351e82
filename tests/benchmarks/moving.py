"""Moving rows to shards: the backfill, a pass, and the cost of a write.

The rows are those of the trial's application.  The backfill is compared with
``INSERT .. SELECT`` of the same rows into a table on the same server.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter

from sqlalchemy import insert, text

from sqla_shard.migrate import Move
from sqla_shard.migrate.passes import backfill, verify
from sqla_shard.migrate.stage_changes import Switch
from tests.benchmarks.servers import new_fleet
from tests.models.moving_app import (
    Base,
    open_move,
    Post,
    Posts,
    Sharded,
    User,
    WRITTEN_AT,
)

ROWS = int(os.environ.get("SQLA_SHARD_MOVED_ROWS", "50000"))
_SHARDS = 256
_USERS = 1000
_WRITES = 200


@contextmanager
def _filled(folder: Path) -> Iterator[Move]:
    with new_fleet(4, _SHARDS, fast=True) as fleet:
        fleet.create_databases()
        server = fleet.servers[0]
        server.root_execute("CREATE DATABASE db_before")
        topology = folder / "topology.json"
        topology.write_text(json.dumps(fleet.topology_mapping()))
        url = server.url.replace("mysql://", "mysql+pymysql://", 1)
        move = open_move(f"{url}/db_before", str(topology))
        Base.metadata.create_all(move.engine)
        move.cluster.create_all(Sharded.metadata)
        _fill(move)
        yield move
        move.close()
        move.cluster.close()
        move.engine.dispose()


def _fill(move: Move) -> None:
    with move.engine.begin() as connection:
        connection.execute(
            insert(User.__table__), [{"name": f"user {n}"} for n in range(_USERS)]
        )
        for start in range(0, ROWS, 10_000):
            connection.execute(
                insert(Post.__table__),
                [
                    {
                        "user_id": 1 + n % _USERS,
                        "title": f"the title of post {n}",
                        "changes": 0,
                        "written_at": WRITTEN_AT,
                    }
                    for n in range(start, min(start + 10_000, ROWS))
                ],
            )


def _timed(name: str, rows: int, seconds: float) -> float:
    print(f"{name}: {rows / seconds:,.0f} a second")
    return seconds


def _copied_by_server(move: Move) -> float:
    start = perf_counter()
    with move.engine.begin() as connection:
        connection.execute(text("CREATE TABLE other LIKE posts"))
        connection.execute(text("INSERT INTO other SELECT * FROM posts"))
    return perf_counter() - start


def _writes(move: Move) -> float:
    posts = Posts(move)
    start = perf_counter()
    for number in range(_WRITES):
        posts.change(1 + number)
    return perf_counter() - start


def run() -> None:
    """Print rows and writes per second."""
    with tempfile.TemporaryDirectory() as folder, _filled(Path(folder)) as move:
        switch = Switch(move)
        switch.prepare()
        before = _timed("writes before", _WRITES, _writes(move))
        by_server = _timed("INSERT .. SELECT", ROWS, _copied_by_server(move))
        switch.go("copying")
        start = perf_counter()
        backfill(move, jobs=4)
        copied = _timed("backfill", ROWS, perf_counter() - start)
        print(f"  {by_server / copied:.3f} of INSERT .. SELECT")
        start = perf_counter()
        verify(move)
        _timed("verify", ROWS, perf_counter() - start)
        during = _timed("writes with copies", _WRITES, _writes(move))
        print(f"  {during / before:.1f} times as long")
