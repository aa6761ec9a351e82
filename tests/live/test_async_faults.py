"""Cancelled tasks, hanging servers and lost connections in event loops."""

from __future__ import annotations

import asyncio
import contextlib
import re
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select
from sqlalchemy.exc import DBAPIError, OperationalError, ProgrammingError

from sqla_shard import AsyncShardSession, Cluster, scatter, scatter_errors, unpack
from sqla_shard.exc import CommitUnknownError, ScatterTimeoutError
from sqla_shard.testing.server_fleet import ServerFleet
from tests.servers.faults import (
    all_work,
    busy,
    locked,
    opened,
    own_ids,
    Pin,
    SERVERS,
    SHARDS,
    TIMEOUT,
    until_waiting,
)
from tests.servers.kinds import own_fleet
from tests.servers.processes import running, started_since

pytestmark = pytest.mark.live

ROOT = Path(__file__).parents[2]

fleet = own_fleet(SERVERS, SHARDS)
ids = own_ids()

_SQLALCHEMY = tuple(map(int, re.findall(r"\d+", version("sqlalchemy"))))


async def _get_many(session: AsyncShardSession, ids: list[int]) -> list[Any]:
    found: list[Any] = await session.get_many(Pin, ids)
    return found


async def _select(session: AsyncShardSession, ids: list[int]) -> list[Any]:
    found = await session.scalars(select(Pin).where(Pin.id.in_(ids)))
    return list(found)


async def _streamed(session: AsyncShardSession, ids: list[int]) -> list[Any]:
    found = await session.stream_scalars(select(Pin).where(Pin.id.in_(ids)))
    return [pin async for pin in found]


WAYS = [_get_many, _select, _streamed]


async def _seen_waiting(server: Any) -> None:
    """Return when a session waits for a lock there; start no thread."""
    for _ in range(TIMEOUT * 10):
        if server.root_execute(
            "SELECT 1 FROM information_schema.processlist "
            "WHERE state LIKE 'Waiting for table%'"
        ):
            return
        await asyncio.sleep(0.01)
    pytest.fail(f"nothing waits on {server.name}")


async def _waiting(server: Any) -> None:
    await asyncio.to_thread(until_waiting, server)


@pytest.mark.parametrize("way", WAYS)
def test_all_servers_at_once_without_a_thread(
    fleet: ServerFleet[Any], ids: list[int], way: Any
) -> None:
    """All of them wait for a lock before any of them has answered."""

    async def main(cluster: Cluster) -> None:
        await cluster.async_warm()
        threads = running()
        async with cluster.async_session() as session:
            with contextlib.ExitStack() as locks:
                for server in fleet.servers:
                    locks.enter_context(locked(server))
                reading = asyncio.ensure_future(way(session, ids))
                for server in fleet.servers:
                    await _seen_waiting(server)
                assert not reading.done()
                assert started_since(threads) == []
            assert len(await reading) == len(ids)
        assert started_since(threads) == []

    with opened(fleet) as cluster:
        asyncio.run(main(cluster))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("number", range(SERVERS))
def test_a_cancelled_task(
    fleet: ServerFleet[Any], ids: list[int], number: int, way: Any
) -> None:
    """It ends while one server still waits; the connections are closed."""

    async def read(cluster: Cluster) -> None:
        async with cluster.async_session() as session:
            await way(session, ids)
            pytest.fail("nothing was locked")

    async def main(cluster: Cluster) -> None:
        with locked(fleet.servers[number]):
            task = asyncio.ensure_future(read(cluster))
            await _waiting(fleet.servers[number])
            assert busy(cluster) == SERVERS
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asyncio.wait_for(task, TIMEOUT)
            assert busy(cluster) == 0
        await all_work(cluster, ids)

    options = {"pool_size": 4, "max_overflow": 0, "pool_timeout": TIMEOUT}
    with opened(fleet, **options) as cluster:
        asyncio.run(main(cluster))


def test_the_session_goes_on_after_a_rollback(
    fleet: ServerFleet[Any], ids: list[int]
) -> None:
    async def main(cluster: Cluster) -> None:
        async with cluster.async_session() as session:
            with locked(fleet.servers[1]):
                reading = asyncio.ensure_future(_get_many(session, ids))
                await _waiting(fleet.servers[1])
                reading.cancel()
                await asyncio.wait([reading])
                assert reading.cancelled()
            await session.rollback()
            assert None not in await session.get_many(Pin, ids)
        await all_work(cluster, ids)

    with opened(fleet) as cluster:
        asyncio.run(main(cluster))


@pytest.mark.skipif(
    _SQLALCHEMY < (2, 0, 58), reason="SQLAlchemy 2.0.45 loses a connection then"
)
def test_cancelled_twice(fleet: ServerFleet[Any], ids: list[int]) -> None:
    """Impatience does not leave a connection out of its pool."""

    async def main(cluster: Cluster) -> None:
        session = cluster.async_session()
        with locked(fleet.servers[2]):
            reading = asyncio.ensure_future(_get_many(session, ids))
            await _waiting(fleet.servers[2])
            reading.cancel()
            await asyncio.sleep(0)
            reading.cancel()
            await asyncio.wait([reading])
            assert reading.cancelled()
            closing = asyncio.ensure_future(session.__aexit__(None, None, None))
            await asyncio.sleep(0)
            closing.cancel()
            await asyncio.wait([closing])
        await all_work(cluster, ids)

    with opened(fleet) as cluster:
        asyncio.run(main(cluster))


def test_cancelled_during_rollback(fleet: ServerFleet[Any], ids: list[int]) -> None:
    """A server that hangs then is not waited for."""

    async def fail(cluster: Cluster) -> None:
        async with cluster.async_begin() as session:
            await session.get_many(Pin, ids)
            fleet.servers[1].pause()
            raise LookupError

    async def main(cluster: Cluster) -> None:
        task = asyncio.ensure_future(fail(cluster))
        try:
            done, _ = await asyncio.wait([task], timeout=0.5)
            assert not done
            task.cancel()
            await asyncio.wait([task], timeout=8)
            assert task.cancelled()
            assert busy(cluster) == 0
        finally:
            fleet.servers[1].resume()
        await all_work(cluster, ids)

    with opened(fleet) as cluster:
        asyncio.run(main(cluster))


@pytest.mark.parametrize("connected", [True, False])
@pytest.mark.parametrize("number", range(SERVERS))
def test_a_server_that_does_not_answer(
    fleet: ServerFleet[Any], ids: list[int], number: int, connected: bool
) -> None:
    """A time limit holds, whether the connection is there or to be made."""

    async def main(cluster: Cluster) -> None:
        await asyncio.wait_for(all_work(cluster, ids), TIMEOUT)
        if not connected:
            for engine in cluster.async_session().sync_session.places.engines:
                engine.pool._invalidate(None)

        async def read() -> None:
            # Far less than the drivers' own limits.
            async with asyncio.timeout(0.5), cluster.async_begin() as session:
                await session.get_many(Pin, ids)

        fleet.servers[number].pause()
        try:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(read(), 8)
            assert busy(cluster) == 0
        finally:
            fleet.servers[number].resume()
        await all_work(cluster, ids)

    with opened(fleet) as cluster:
        asyncio.run(main(cluster))


@pytest.mark.parametrize("connected", [True, False])
@pytest.mark.parametrize("number", range(SERVERS))
@pytest.mark.parametrize("on_error", ["raise", "partial"])
def test_the_time_of_a_scatter(
    fleet: ServerFleet[Any], ids: list[int], on_error: Any, number: int, connected: bool
) -> None:
    """The event loop cuts connections without a response in time."""
    # Time to connect to the others, too, when the machine is busy.
    limits = scatter(timeout=1 if connected else 2, on_error=on_error)
    statement = select(Pin.id).options(limits)

    async def read(cluster: Cluster) -> None:
        async with cluster.async_session() as session:
            if on_error == "raise":
                with pytest.raises(ScatterTimeoutError) as caught:
                    await session.scalars(statement)
                assert caught.value.servers == (f"server{number + 1}",)
                return
            result = await session.execute(statement)
            errors = scatter_errors(result)
            found = set(result.scalars())
            missing = {i for i in ids if unpack(i).shard_id in errors}
            assert len(missing) == SHARDS // SERVERS
            assert found == set(ids) - missing

    async def main(cluster: Cluster) -> None:
        if connected:
            await all_work(cluster, ids)
        threads = running()
        fleet.servers[number].pause()
        try:
            await asyncio.wait_for(read(cluster), 8)
        finally:
            fleet.servers[number].resume()
        assert started_since(threads) == []
        await all_work(cluster, ids)

    with opened(fleet) as cluster:
        asyncio.run(main(cluster))


def test_a_server_that_cannot_be_connected_to(
    fleet: ServerFleet[Any], ids: list[int]
) -> None:
    """Its kernel accepts connections, and no process responds."""

    async def main(cluster: Cluster) -> None:
        fleet.servers[0].pause()
        try:
            async with cluster.async_session() as session:
                reading = session.get(Pin, ids[0])
                with pytest.raises(OperationalError, match="within 3 second"):
                    await asyncio.wait_for(reading, 8)
        finally:
            fleet.servers[0].resume()
        await all_work(cluster, ids)

    with opened(fleet, connect_args={"connect_timeout": 3}) as cluster:
        asyncio.run(main(cluster))


@pytest.mark.parametrize("number", range(SERVERS))
def test_an_error_on_one_server(
    fleet: ServerFleet[Any], ids: list[int], number: int
) -> None:
    """It is raised when the others have ended; the session can go on."""
    shard_id = unpack(ids[number * SHARDS // SERVERS]).shard_id
    server = fleet.servers[number]

    async def main(cluster: Cluster) -> None:
        async with cluster.async_session() as session:
            with pytest.raises(ProgrammingError, match="pins") as caught:
                await session.get_many(Pin, ids)
            assert f"FROM db{shard_id:05d}.pins" in str(caught.value.statement)
            assert f"db{shard_id:05d}.pins" in str(caught.value.orig)
            await session.rollback()
            others = [i for i in ids if unpack(i).shard_id != shard_id]
            assert None not in await session.get_many(Pin, others)

    table = f"db{shard_id:05d}.pins"
    with opened(fleet) as cluster:
        server.root_execute(f"RENAME TABLE {table} TO {table}_gone")
        try:
            asyncio.run(main(cluster))
        finally:
            server.root_execute(f"RENAME TABLE {table}_gone TO {table}")
        asyncio.run(all_work(cluster, ids))


@pytest.mark.parametrize("number", range(SERVERS))
def test_a_lost_connection(
    fleet: ServerFleet[Any], ids: list[int], number: int
) -> None:
    server = fleet.servers[number]

    async def main(cluster: Cluster) -> None:
        async with cluster.async_session() as session:
            await session.get_many(Pin, ids)
            session.expunge_all()
            _kill_all(server)
            with pytest.raises(DBAPIError) as caught:
                await session.get_many(Pin, ids)
            assert caught.value.connection_invalidated
        assert busy(cluster) == 0

        tried = []

        async def again(session: AsyncShardSession) -> list[Any]:
            tried.append(1)
            if len(tried) == 1:
                await session.get_many(Pin, ids)
                session.expunge_all()
                _kill_all(server)
            found: list[Any] = await session.get_many(Pin, ids)
            return found

        assert None not in await cluster.async_run(again)
        assert len(tried) == 2
        await all_work(cluster, ids)

    with opened(fleet) as cluster:
        asyncio.run(main(cluster))


def _kill_all(server: Any) -> None:
    """End the connections of all users but root."""
    found = server.root_execute(
        "SELECT id FROM information_schema.processlist WHERE user = 'app'"
    )
    assert found
    for (number,) in found:
        # It may have ended by itself.
        with contextlib.suppress(Exception):
            server.root_execute(f"KILL {number}")


def test_cancelled_during_commit(fleet: ServerFleet[Any], ids: list[int]) -> None:
    """The task waits for COMMIT, and is cancelled then."""
    server = fleet.servers[0]

    async def write(cluster: Cluster) -> None:
        async with cluster.async_begin() as session:
            pin = await session.get(Pin, ids[0])
            assert pin is not None
            pin.body = "committed"
            await session.flush()
            written.set()
            await proceed.wait()

    async def main(cluster: Cluster) -> None:
        task = asyncio.ensure_future(write(cluster))
        await written.wait()
        root = server.root_connect()
        root.cursor().execute("FLUSH TABLES WITH READ LOCK")
        proceed.set()
        await asyncio.to_thread(until_waiting, server, "Waiting for %lock")
        task.cancel()
        done, _ = await asyncio.wait([task], timeout=0.2)
        assert not done
        root.close()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(task, TIMEOUT)
        async with cluster.async_session() as session:
            pin = await session.get(Pin, ids[0])
            assert pin is not None
            assert pin.body == "committed"
        await all_work(cluster, ids)

    written, proceed = asyncio.Event(), asyncio.Event()
    with opened(fleet) as cluster:
        asyncio.run(main(cluster))


def test_one_connection_to_each_server(fleet: ServerFleet[Any], ids: list[int]) -> None:
    """Tasks take them in one order, whatever shards they ask for."""
    options = {"pool_size": 1, "max_overflow": 0, "pool_timeout": TIMEOUT}

    async def read(cluster: Cluster, wanted: list[int]) -> None:
        for _ in range(20):
            async with cluster.async_session() as session:
                assert None not in await session.get_many(Pin, wanted)

    async def main(cluster: Cluster) -> None:
        orders = (ids, ids[::-1], ids[:6], ids[:5:-1], ids[::5])
        await asyncio.gather(*[read(cluster, w) for w in orders * 3])
        assert busy(cluster) == 0
        assert [s.idle for s in cluster.stats()] == [1] * SERVERS

    with opened(fleet, **options) as cluster:
        asyncio.run(main(cluster))


def test_commit_is_not_known_when_the_connection_is_lost(
    fleet: ServerFleet[Any], ids: list[int]
) -> None:
    tried = []

    async def write(session: AsyncShardSession) -> None:
        tried.append(1)
        pin = await session.get(Pin, ids[0])
        assert pin is not None
        pin.body = "lost"
        await session.flush()
        _kill_all(fleet.servers[0])

    async def main(cluster: Cluster) -> None:
        with pytest.raises(CommitUnknownError, match="server1"):
            await cluster.async_run(write)
        assert len(tried) == 1
        await all_work(cluster, ids)

    with opened(fleet) as cluster:
        asyncio.run(main(cluster))
