"""Two pairs of servers whose databases were altered by hand."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from sqla_shard import Cluster
from sqla_shard.schema.drift import KeyspaceDrift

SHARDS = 4
ALTERED = 3  # on server2, with shard 2
PREFIX = "db_drift"
TABLES = [
    """CREATE TABLE users (
        id BIGINT NOT NULL PRIMARY KEY,
        ts TIMESTAMP(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3)
            ON UPDATE CURRENT_TIMESTAMP(3),
        data JSON NOT NULL,
        name VARCHAR(50) COLLATE utf8mb4_general_ci DEFAULT 'x',
        age INT COMMENT 'in years',
        doubled INT GENERATED ALWAYS AS (age * 2) STORED,
        CONSTRAINT grown CHECK (age > 17),
        KEY by_name (name(10), age),
        UNIQUE KEY by_age (age, name)
    )""",
    """CREATE TABLE pins (
        id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
        user_id BIGINT NOT NULL,
        other_id BIGINT NOT NULL,
        KEY by_user (user_id),
        KEY by_other (other_id),
        CONSTRAINT owner FOREIGN KEY (user_id) REFERENCES users (id)
            ON DELETE CASCADE
    )""",
    """CREATE TABLE notes (
        id BIGINT NOT NULL PRIMARY KEY, body VARCHAR(40), CHECK (body <> '')
    ) COMMENT 'of users'""",
    "CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL)",
    "CREATE VIEW adults AS SELECT id, name FROM users WHERE age > 17",
]


def name_of(shard: int) -> str:
    return f"{PREFIX}{shard:03d}"


def build(server: Any, shard: int) -> None:
    with server.connect(autocommit=True) as connection:
        cursor = connection.cursor()
        name = name_of(shard)
        cursor.execute(f"DROP DATABASE IF EXISTS {name}")
        cursor.execute(
            f"CREATE DATABASE {name} CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"
        )
        cursor.execute(f"USE {name}")
        for statement in TABLES:
            cursor.execute(statement)


def drop(server: Any, shard: int) -> None:
    with server.connect(autocommit=True) as connection:
        connection.cursor().execute(f"DROP DATABASE IF EXISTS {name_of(shard)}")


#: The servers whose shard ALTERED was changed.
touched: list[Any] = []


def run(server: Any, shard: int, *statements: str) -> None:
    if shard == ALTERED and server not in touched:
        touched.append(server)
    with server.connect(database=name_of(shard), autocommit=True) as connection:
        for statement in statements:
            connection.cursor().execute(statement)


@pytest.fixture(scope="module")
def servers(fleet: Any) -> Iterator[dict[str, Any]]:
    """Two pairs; the standbys hold what replication would have brought."""
    if len(fleet.servers) < 4:
        pytest.skip("two pairs are four servers")
    names = ("server1", "server2", "standby1", "standby2")
    servers = dict(zip(names, fleet.servers, strict=False))
    for number in (1, 2):
        for shard in range((number - 1) * 2, number * 2):
            build(servers[f"server{number}"], shard)
            build(servers[f"standby{number}"], shard)
    yield servers
    for server in servers.values():
        for shard in range(SHARDS):
            drop(server, shard)


def document(servers: dict[str, Any], *, standby: bool) -> dict[str, Any]:
    found = []
    for number in (1, 2):
        found.append(
            {
                "name": f"server{number}",
                "primary": servers[f"server{number}"].url,
                "shards": [(number - 1) * 2, number * 2 - 1],
            }
        )
        if standby:
            found[-1]["standby"] = servers[f"standby{number}"].url
    keyspace = {
        "kind": "objects",
        "shards": SHARDS,
        "database": PREFIX + "{shard:03d}",
        "servers": found,
    }
    return {"epoch": 1, "keyspaces": {"objects": keyspace}}


@pytest.fixture(scope="module")
def cluster(servers: dict[str, Any]) -> Iterator[Cluster]:
    with Cluster.from_topology(document(servers, standby=True)) as cluster:
        yield cluster


@pytest.fixture
def altered(servers: dict[str, Any]) -> Iterator[None]:
    """Make the shard anew after the test, where it was altered."""
    touched.clear()
    yield
    for server in touched:
        build(server, ALTERED)


def only(report: Any) -> KeyspaceDrift:
    (found,) = report.keyspaces
    assert isinstance(found, KeyspaceDrift)
    return found
