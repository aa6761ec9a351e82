"""Are 4,096 databases alike?  ``python -m tests.benchmarks.drift 2``.

The argument is the number of servers.  Not a part of ``make bench``: to make
the databases takes a minute or two.
"""

from __future__ import annotations

import os
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from time import process_time
from typing import Any

from sqla_shard import Cluster
from sqla_shard.schema import verify
from sqla_shard.testing import MariaDBFleet

SHARDS = 4096
TURNS = 5
TABLES = {
    "users": "id BIGINT PRIMARY KEY, data JSON NOT NULL, ts TIMESTAMP(6) "
    "NOT NULL DEFAULT CURRENT_TIMESTAMP(6) ON UPDATE CURRENT_TIMESTAMP(6)",
    "boards": "id BIGINT PRIMARY KEY, user_id BIGINT NOT NULL, "
    "data JSON NOT NULL, KEY (user_id)",
    "pins": "id BIGINT PRIMARY KEY, board_id BIGINT NOT NULL, "
    "data LONGTEXT NOT NULL, ts TIMESTAMP(6) NOT NULL, KEY (board_id, ts)",
    "board_has_pins": "board_id BIGINT, pin_id BIGINT, sequence DECIMAL(38), "
    "PRIMARY KEY (board_id, pin_id), UNIQUE KEY (board_id, sequence)",
    "comments": "id BIGINT AUTO_INCREMENT PRIMARY KEY, "
    "pin_id BIGINT NOT NULL, body VARCHAR(200) DEFAULT 'x', "
    "FOREIGN KEY (pin_id) REFERENCES pins (id) ON DELETE CASCADE",
    "alembic_version": "version_num VARCHAR(32) PRIMARY KEY",
}


def run(servers: int) -> None:
    """Print what ``verify()`` takes, with two sizes of a server's cache."""
    with MariaDBFleet(servers, SHARDS, fast=True) as fleet:
        document = fleet.topology_mapping()
        fleet.create_databases(document)
        with Cluster.from_topology(document) as cluster:
            _fill(fleet, cluster)
            for size in (16384, 400):
                for server in fleet.servers:
                    server.root_execute(
                        f"SET GLOBAL table_definition_cache = {size}"
                    )
                    server.root_execute("FLUSH TABLES")
                _measure(cluster, [server.pid for server in fleet.servers])
                print(f"   with table_definition_cache = {size}")


def _fill(fleet: MariaDBFleet, cluster: Cluster) -> None:
    keyspace = cluster.topology.keyspace("objects")

    def on(server: Any) -> None:
        with server.connect(autocommit=True) as connection:
            cursor = connection.cursor()
            for shard in keyspace.shard_ids:
                if keyspace.server_for(shard).name == server.name:
                    cursor.execute(f"USE {keyspace.database_for(shard)}")
                    for table, columns in TABLES.items():
                        cursor.execute(f"CREATE TABLE {table} ({columns})")

    jobs = [lambda one=server: on(one) for server in fleet.servers]
    cluster.places.engines.at_once(jobs, "fill")


def _measure(cluster: Cluster, pids: Sequence[int]) -> None:
    assert verify(cluster).ok
    wall, here, there = [], [], []
    for _ in range(TURNS):
        began = [_seconds_of(pid) for pid in pids]
        start, used = perf_counter(), process_time()
        assert verify(cluster).ok
        wall.append(perf_counter() - start)
        here.append(process_time() - used)
        there += [
            _seconds_of(pid) - before
            for pid, before in zip(pids, began, strict=True)
        ]
    shown = " ".join(f"{seconds:.2f}" for seconds in sorted(wall))
    print(
        f"{len(pids)} servers: {shown} s, load {os.getloadavg()[0]:.1f}; "
        f"processor: {statistics.median(there):.2f} s for each server, "
        f"{statistics.median(here):.2f} s here"
    )


def _seconds_of(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    ticks = int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    run(int(sys.argv[1]) if len(sys.argv) > 1 else 2)
