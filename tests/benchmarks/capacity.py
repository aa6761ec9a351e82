"""The cost of thousands of virtual shards on one server: tables and files.

One MariaDB server has 4,096 databases with two object tables each.  Every
table is read once, with caches that have room for all of them, and with the
caches that a server has by default.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from time import perf_counter
from typing import Any

from sqla_shard import Cluster
from sqla_shard.testing import MariaDBFleet
from tests.benchmarks.pins import Base

_SHARDS = 4_096
_TABLES = ("pins", "boards")
_ROUNDS = 2
#: MariaDB 10.11 without a configuration file.
_DEFAULTS = {"table_open_cache": 2000, "table_definition_cache": 400}


def run() -> None:
    """Print the table."""
    with MariaDBFleet(1, 1, fast=True) as fleet:
        [server] = fleet.servers
        with Cluster.from_topology(fleet.topology_mapping()) as cluster:
            cluster.create_all(Base.metadata)
        data = Path(server.directory) / "data"
        with closing(server.connect(autocommit=True)) as connection:
            cursor = connection.cursor()
            idle = _memory(server.pid)
            before = _size(data)
            _create(cursor)
            tables = _SHARDS * len(_TABLES)
            print(f"\n{_SHARDS} databases, {tables} empty tables")
            each = (_size(data) - before) / tables
            _show("bytes on disk of each", f"{each:,.0f}")
            first = _read(cursor)
            large = min(_read(cursor) for _ in range(_ROUNDS))
            for name in (
                "Open_tables",
                "Open_table_definitions",
                "Innodb_num_open_files",
            ):
                cursor.execute(f"SHOW GLOBAL STATUS LIKE '{name}'")
                _show(name, cursor.fetchone()[1])
            _show("open files", len(os.listdir(f"/proc/{server.pid}/fd")))
            grown = (_memory(server.pid) - idle) / tables
            _show("memory of each open table", f"{grown:.1f} KiB")
            for name, value in _DEFAULTS.items():
                server.root_execute(f"SET GLOBAL {name} = {value}")
            small = min(_read(cursor) for _ in range(_ROUNDS))
            _show("read all, the first time", f"{first:.2f} s")
            _show("again, caches with room", f"{large:.2f} s")
            _show("again, default caches", f"{small / large:.1f}x")


def _create(cursor: Any) -> None:
    first, *others = _names()
    for name in others:
        database, _, table = name.partition(".")
        if table == _TABLES[0]:
            cursor.execute(f"CREATE DATABASE {database}")
        cursor.execute(f"CREATE TABLE {name} LIKE {first}")


def _names() -> Iterator[str]:
    for shard_id in range(_SHARDS):
        for table in _TABLES:
            yield f"db{shard_id:05d}.{table}"


def _read(cursor: Any) -> float:
    began = perf_counter()
    for name in _names():
        cursor.execute(f"SELECT data FROM {name} WHERE local_id = 1")
        cursor.fetchall()
    return perf_counter() - began


def _memory(pid: int) -> int:
    """Return the resident memory of a process in KiB."""
    status = Path(f"/proc/{pid}/status").read_text("utf-8")
    return int(status.partition("VmRSS:")[2].split()[0])


def _size(directory: Path) -> int:
    """Return the bytes that files take on the disk."""
    return sum(
        path.stat().st_blocks * 512
        for path in directory.glob("db*/*")
        if path.is_file()
    )


def _show(what: str, value: object) -> None:
    print(f"  {what:<34}{value:>14}")
