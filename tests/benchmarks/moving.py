"""Moving rows to shards: the backfill, a pass, and the cost of a write.

The rows are those of the trial's application.  The backfill is compared with
``mysqldump | mysql`` of the same rows into another database of the server, and
with ``INSERT .. SELECT``; its processor time and that of a pass are those of this
process alone, without the servers.
"""

from __future__ import annotations

import gc
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter, process_time

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
_SHARDS = int(os.environ.get("SQLA_SHARD_MOVED_SHARDS", "256"))
_USERS = 1000
_WRITES = 200


@contextmanager
def _filled(folder: Path) -> Iterator[tuple[Move, Path]]:
    with new_fleet(4, _SHARDS, fast=True) as fleet:
        fleet.create_databases()
        server = fleet.servers[0]
        for name in ("db_before", "db_dumped"):
            server.root_execute(f"CREATE DATABASE {name}")
        topology = folder / "topology.json"
        topology.write_text(json.dumps(fleet.topology_mapping()))
        url = server.url.replace("mysql://", "mysql+pymysql://", 1)
        move = open_move(f"{url}/db_before", str(topology))
        Base.metadata.create_all(move.engine)
        move.cluster.create_all(Sharded.metadata)
        _fill(move)
        yield move, server.socket
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


def _timed(
    name: str, rows: int, run: Callable[[], object], *, is_ours: bool = False
) -> float:
    """Print how many rows a second it takes; return the seconds.

    :param is_ours: whether most of the work is that of this process.
    """
    start, worked = perf_counter(), process_time()
    run()
    seconds, worked = perf_counter() - start, process_time() - worked
    own = f", {rows / worked:,.0f} a second of this process" if is_ours else ""
    print(f"{name}: {rows / seconds:,.0f} a second{own}")
    return seconds


def _copied_by_server(move: Move) -> None:
    with move.engine.begin() as connection:
        connection.execute(text("CREATE TABLE other LIKE posts"))
        connection.execute(text("INSERT INTO other SELECT * FROM posts"))


def _dumped(socket: Path) -> None:
    """Copy the table by the clients of the server."""
    dump, load = (
        [str(shutil.which(name)), f"--socket={socket}", "--user=root", *more]
        for name, *more in (
            ("mysqldump", "--single-transaction", "db_before", "posts"),
            ("mysql", "db_dumped"),
        )
    )
    with subprocess.Popen(dump, stdout=subprocess.PIPE) as dumping:
        subprocess.run(load, stdin=dumping.stdout, check=True)
    if dumping.returncode:
        raise subprocess.CalledProcessError(dumping.returncode, dump)


def _writes(move: Move) -> None:
    posts = Posts(move)
    for number in range(_WRITES):
        posts.change(1 + number)


def run() -> None:
    """Print rows and writes per second."""
    with (
        tempfile.TemporaryDirectory() as folder,
        _filled(Path(folder)) as (move, socket),
    ):
        switch = Switch(move)
        switch.prepare()
        before = _timed("writes before", _WRITES, lambda: _writes(move))
        server = _timed("INSERT .. SELECT", ROWS, lambda: _copied_by_server(move))
        dump = _timed("mysqldump | mysql", ROWS, lambda: _dumped(socket))
        switch.go("copying")
        # As the program does.
        gc.freeze()
        copied = _timed("backfill", ROWS, lambda: backfill(move, jobs=4), is_ours=True)
        print(f"  {copied / dump:.1f} times as long as mysqldump | mysql")
        print(f"  {copied / server:.1f} times as long as INSERT .. SELECT")
        found = _timed("verify", ROWS, lambda: verify(move), is_ours=True)
        print(f"  {found / dump:.1f} times as long as mysqldump | mysql")
        during = _timed("writes with copies", _WRITES, lambda: _writes(move))
        print(f"  {during / before:.1f} times as long")
