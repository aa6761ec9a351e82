"""A few servers of its own for a test module, with a pin on each shard."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import Text
from sqlalchemy.orm import DeclarativeBase, mapped_column

from sqla_shard import Cluster, ObjectMixin
from sqla_shard.testing.server_fleet import ServerFleet

SERVERS = 3
SHARDS = 12
TIMEOUT = 60


class Base(DeclarativeBase):
    pass


class Pin(ObjectMixin, Base, type_id=1):
    __tablename__ = "pins"

    body = mapped_column(Text)


def opened(
    fleet: ServerFleet[Any],
    *,
    polling: bool = True,
    driver: str = "pymysql",
    deferred_rollback: bool = True,
    **options: Any,
) -> Cluster:
    """Return a cluster of the servers; ``options`` are the engines'."""
    return Cluster.from_topology(
        fleet.topology_mapping(),
        driver=driver,
        environ=fleet.environ,
        engine_options=options,
        polling=polling,
        deferred_rollback=deferred_rollback,
    )


def own_ids() -> Any:
    """Return a fixture: the ids of a pin on each shard, in order."""

    @pytest.fixture(scope="module")
    def ids(fleet: ServerFleet[Any]) -> list[int]:
        found = []
        with opened(fleet) as cluster:
            cluster.create_all(Base.metadata)
            for shard_id in range(SHARDS):
                with cluster.begin(shard_id=shard_id) as session:
                    pin = Pin(body="it")
                    session.add(pin)
                    session.flush()
                    found.append(pin.id)
        return found

    return ids


def busy(cluster: Cluster) -> int:
    return sum(stats.busy for stats in cluster.stats())


async def all_work(cluster: Cluster, ids: list[int]) -> None:
    """Assert that every pool is whole, several times over."""
    assert busy(cluster) == 0

    async def read() -> None:
        async with cluster.async_session() as session:
            assert None not in await session.get_many(Pin, ids)

    for _ in range(2):
        await asyncio.gather(*[read() for _ in range(4)])
    assert busy(cluster) == 0


@contextmanager
def locked(server: Any) -> Iterator[None]:
    """Lock the pins of a server against reads."""
    connection = server.root_connect()
    cursor = connection.cursor()
    cursor.execute("SHOW DATABASES")
    tables = ", ".join(
        f"`{name}`.pins WRITE"
        for (name,) in cursor.fetchall()
        if name.startswith("db0")
    )
    cursor.execute(f"LOCK TABLES {tables}")
    try:
        yield
    finally:
        connection.close()


def until_waiting(server: Any, state: str = "Waiting for table%") -> None:
    """Return when a session waits for such a lock."""
    done = threading.Event()
    for _ in range(TIMEOUT * 100):
        if server.root_execute(
            f"SELECT 1 FROM information_schema.processlist WHERE state LIKE '{state}'"
        ):
            return
        done.wait(0.01)
    pytest.fail(f"nothing waits on {server.name}")
