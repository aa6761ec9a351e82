"""Comparing a primary with its standby, against CHECKSUM TABLE on both."""

from __future__ import annotations

import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from sqla_shard.fleet.compare import CompareOptions, verify_data
from sqla_shard.testing import MariaDBServer
from tests.benchmarks.timing import compare, show
from tests.servers.fleet_pairs import FleetPairs

_TABLES = 4
_ROWS = 100_000
_TURNS = 5


def run() -> None:
    """Print the table."""
    with (
        tempfile.TemporaryDirectory() as folder,
        FleetPairs(Path(folder), shards=_TABLES) as pairs,
    ):
        pair = pairs["server1"]
        for number in range(_TABLES):
            _fill(pair.primary, f"db{number:05}")
        pair.wait_caught_up(600)
        fleet = pairs.fleet()

        def verify(threads: int) -> None:
            # INSERT ... SELECT reserves values of AUTO_INCREMENT.
            options = CompareOptions(threads=threads, counters=False)
            report = verify_data(fleet, "server1", options=options)
            assert report.ok, str(report)
            assert report.rows == _TABLES * _ROWS

        rows = compare(
            {
                "CHECKSUM TABLE on both servers at once": lambda: _checksum(
                    pair.servers
                ),
                "fleet verify, 1 thread": lambda: verify(1),
                "fleet verify, 2 threads": lambda: verify(2),
            },
            turns=_TURNS,
            warm_up=1,
        )
    total = _TABLES * _ROWS
    show(f"{total:,} rows of 340 bytes on a primary and its standby", rows)
    for row in rows:
        speed = total / row.microseconds * 1e6
        print(f"  {row.name:<62}{speed:>11,.0f} rows/s")


def _fill(server: MariaDBServer, database: str) -> None:
    with server.root_connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {database}")
        cursor.execute(f"USE {database}")
        cursor.execute(
            "CREATE TABLE pins (local_id BIGINT AUTO_INCREMENT PRIMARY KEY,"
            " data MEDIUMTEXT, ts TIMESTAMP(6) DEFAULT CURRENT_TIMESTAMP(6))"
        )
        cursor.execute(
            f"INSERT INTO pins (data) SELECT REPEAT(MD5(seq), 10) FROM seq_1_to_{_ROWS}"
        )


def _checksum(servers: tuple[MariaDBServer, ...]) -> None:
    tables = ", ".join(f"db{number:05}.pins" for number in range(_TABLES))
    with ThreadPoolExecutor(len(servers)) as pool:
        sums = pool.map(
            lambda server: server.root_execute(f"CHECKSUM TABLE {tables}"), servers
        )
        first, second = sums
    assert first == second
