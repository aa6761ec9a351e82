"""Asynchronous sessions, as an application uses them.

That everything else is as in synchronous sessions is shown by running their
suites in event loops.
"""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import func, select, text
from sqlalchemy.exc import IntegrityError, MissingGreenlet, StatementError
from sqlalchemy.orm import selectinload

from sqla_shard import AsyncShardSession, Cluster, ShardSession
from sqla_shard.exc import (
    ClusterClosedError,
    CrossShardWriteError,
    NoEventLoopError,
    RetriesExhaustedError,
    StaleDataError,
)
from sqla_shard.testing import sqlite_topology, StatementLog
from tests.models.backends import On
from tests.models.clusters import at, PINS, ShardLog
from tests.models.layouts import pack, unpack
from tests.models.models import Board, Comment, PIN, Pin, Setting
from tests.models.sqlite_files import with_files

_SHARDS = (0, 1, 17, 30)


cluster = PINS.on_backend()


@pytest.fixture
def fresh(request: pytest.FixtureRequest, backend: On) -> Iterator[Cluster]:
    """A cluster for a test that closes it, without tables."""
    if backend.live:
        fleet = request.getfixturevalue(f"{backend.kind}_fleet")
        document, environ = fleet.topology_mapping(), fleet.environ
    else:
        path = request.getfixturevalue("tmp_path")
        document, environ = with_files(sqlite_topology(path, 2, 4)), None
    with Cluster.from_topology(document, environ=environ) as cluster:
        yield cluster


@pytest.fixture
def data(cluster: Cluster) -> Any:
    """Add a pin on each of some shards, its board elsewhere."""

    async def store() -> Any:
        async with cluster.async_begin(cross_shard="unordered") as session:
            boards = [at(i, Board(name=f"b{i}")) for i in _SHARDS]
            session.add_all(boards)
            await session.flush()
            pins = [
                at(i, Pin(title=f"p{i}", board_id=board.id))
                for i, board in zip(_SHARDS[::-1], boards, strict=True)
            ]
            session.add_all(pins)
            await session.flush()
            for pin in pins:
                session.add(Comment(pin_id=pin.id, body="x"))
        return SimpleNamespace(
            ids=[pin.id for pin in pins], boards=[board.id for board in boards]
        )

    return asyncio.run(store())


def _busy(cluster: Cluster) -> int:
    return sum(stats.busy for stats in cluster.stats())


def _end(threads: set[threading.Thread]) -> None:
    """Assert that threads are about to end, as aiosqlite's are."""
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


class Sessions:
    def test_reading(self, cluster: Cluster, data: Any) -> None:
        async def main() -> None:
            async with cluster.async_session() as session:
                assert type(session) is AsyncShardSession
                assert type(session.sync_session) is ShardSession
                pin = await session.get(Pin, data.ids[0])
                assert pin is not None
                assert pin.id == data.ids[0]
                again = await session.get(Pin, data.ids[0], populate_existing=True)
                assert again is pin
                assert await session.get_one(Pin, data.ids[0]) is pin
                missing = pack(3, PIN, 99)
                wanted = [*data.ids, missing, data.ids[0]]
                found = await session.get_many(Pin, wanted)
                assert [p and p.id for p in found] == [*data.ids, None, data.ids[0]]
                statement = select(Pin).where(Pin.id.in_(data.ids))
                scalars = await session.scalars(statement)
                assert set(scalars) == {p for p in found if p}
                title = select(Pin.title).where(Pin.id == data.ids[1])
                assert await session.scalar(title) == "p17"
                assert not await session.get(Setting, "none")

        asyncio.run(main())

    def test_eager_loads_over_shards(self, cluster: Cluster, data: Any) -> None:
        async def main() -> None:
            async with cluster.async_session() as session:
                pins = await session.get_many(
                    Pin, data.ids, options=[selectinload(Pin.board)]
                )
                boards = [pin and pin.board and pin.board.id for pin in pins]
                assert boards == data.boards
                statement = (
                    select(Pin)
                    .where(Pin.id.in_(data.ids))
                    .options(selectinload(Pin.comments))
                    .execution_options(populate_existing=True)
                )
                found = (await session.scalars(statement)).all()
                assert [len(pin.comments) for pin in found] == [1] * 4

        asyncio.run(main())

    def test_pages_of_all_shards(self, cluster: Cluster, data: Any) -> None:
        async def main() -> None:
            newest = select(Pin).where(Pin.id.in_(data.ids)).order_by(Pin.title.desc())
            shown: list[int] = []
            after = None
            async with cluster.async_session() as session:
                while True:
                    page = await session.scatter_page(newest, 3, after)
                    shown += [pin.id for pin in page.items]
                    after = page.next
                    if after is None:
                        break
            titles = {i: f"p{unpack(i).shard_id}" for i in data.ids}
            assert shown == sorted(data.ids, key=titles.get, reverse=True)

        asyncio.run(main())

    def test_streams(self, cluster: Cluster, data: Any) -> None:
        async def main() -> None:
            for wanted in (data.ids, data.ids[:1]):
                statement = select(Pin.id).where(Pin.id.in_(wanted))
                async with cluster.async_session() as session:
                    result = await session.stream_scalars(statement)
                    assert {i async for i in result} == set(wanted)
            assert _busy(cluster) == 0

        asyncio.run(main())

    # The coroutine that SQLAlchemy was about to await.
    @pytest.mark.filterwarnings("ignore:coroutine .*:RuntimeWarning")
    def test_lazy_loads_are_missing_greenlets(
        self, cluster: Cluster, data: Any
    ) -> None:
        async def main() -> None:
            async with cluster.async_session() as session:
                pin = await session.get_one(Pin, data.ids[0])
                for name in ("comments", "board"):
                    # Before or after there is a cursor.
                    with pytest.raises(
                        (MissingGreenlet, StatementError), match="await"
                    ):
                        getattr(pin, name)
                # While the warnings are ignored.
                gc.collect()
                await session.refresh(pin, ["comments"])
                assert len(pin.comments) == 1
            assert _busy(cluster) == 0

        asyncio.run(main())

    def test_objects_stay_readable_after_commit(
        self, cluster: Cluster, data: Any
    ) -> None:
        async def main() -> None:
            async with cluster.async_begin() as session:
                pin = await session.get_one(Pin, data.ids[0])
                pin.title = "changed"
            assert pin.title == "changed"
            async with cluster.async_begin(expire_on_commit=True) as session:
                pin = await session.get_one(Pin, data.ids[0])
                assert pin.title == "changed"
                await session.commit()
                assert "title" not in pin.__dict__

        asyncio.run(main())

    def test_an_exception_rolls_back(self, cluster: Cluster, data: Any) -> None:
        async def fail() -> None:
            async with cluster.async_begin() as session:
                pin = await session.get_one(Pin, data.ids[0])
                pin.title = "never"
                await session.flush()
                raise LookupError

        async def main() -> None:
            with pytest.raises(LookupError):
                await fail()
            async with cluster.async_session() as session:
                pin = await session.get_one(Pin, data.ids[0])
                assert pin.title != "never"
                pin.title = "not committed"
                await session.flush()
            async with cluster.async_session() as session:
                pin = await session.get_one(Pin, data.ids[0])
                assert pin.title not in ("never", "not committed")
            assert _busy(cluster) == 0

        asyncio.run(main())

    def test_savepoints(self, cluster: Cluster, data: Any) -> None:
        async def insert_twice(session: AsyncShardSession) -> None:
            async with session.begin_nested():
                insert = text("INSERT INTO settings VALUES ('name', 'x')")
                on_shard = {"keyspace": "main"}
                await session.execute(insert, bind_arguments=on_shard)
                await session.execute(insert, bind_arguments=on_shard)

        async def main() -> None:
            async with cluster.async_begin(cross_shard="unordered") as session:
                pin = await session.get_one(Pin, data.ids[0])
                with pytest.raises(IntegrityError):
                    await insert_twice(session)
                pin.title = "kept"
            async with cluster.async_session() as session:
                pin = await session.get_one(Pin, data.ids[0])
                assert pin.title == "kept"
                assert await session.get(Setting, "name") is None

        asyncio.run(main())

    def test_a_second_shard_is_refused(self, cluster: Cluster, data: Any) -> None:
        async def change(session: AsyncShardSession) -> None:
            for pin in await session.get_many(Pin, data.ids[:2]):
                assert pin
                pin.title = "both"
            await session.flush()

        async def main() -> None:
            with pytest.raises(CrossShardWriteError):
                async with cluster.async_begin() as session:
                    await change(session)
            async with cluster.async_begin(cross_shard="unordered") as session:
                await change(session)
            async with cluster.async_session() as session:
                pins = await session.get_many(Pin, data.ids[:2])
                assert [pin and pin.title for pin in pins] == ["both"] * 2

        asyncio.run(main())

    def test_connections_of_a_shard(self, cluster: Cluster, data: Any) -> None:
        async def main() -> None:
            shard_id, _, local_id = unpack(data.ids[0])
            async with cluster.async_session() as session:
                connection = await session.connection(
                    bind_arguments={"shard_id": shard_id}
                )
                found = await connection.execute(
                    text("SELECT title FROM pins WHERE local_id = :id"),
                    {"id": local_id},
                )
                assert found.scalar_one().startswith("p")
                counted = await session.execute(
                    select(func.count(Pin.id)), bind_arguments={"shard_id": shard_id}
                )
                assert counted.scalar_one() >= 1

        asyncio.run(main())

    def test_one_statement_on_one_shard(self, cluster: Cluster, data: Any) -> None:
        async def main() -> None:
            async with cluster.async_session() as session:
                for object_id in data.ids:
                    with ShardLog() as log:
                        pin = await session.get(Pin, object_id)
                        assert await session.get(Pin, object_id) is pin
                    assert log.take() == {unpack(object_id).shard_id: 1}

        asyncio.run(main())

    def test_tasks_with_a_session_each(self, cluster: Cluster, data: Any) -> None:
        async def read(number: int) -> None:
            for _ in range(5):
                async with cluster.async_session() as session:
                    wanted = data.ids[number % 4 :] + data.ids[: number % 4]
                    found = await session.get_many(Pin, wanted)
                    assert [pin and pin.id for pin in found] == wanted

        async def write(number: int) -> None:
            async with cluster.async_begin(shard_id=number) as session:
                session.add(Pin(title=f"of task {number}"))

        async def main() -> None:
            await asyncio.gather(
                *[read(n) for n in range(12)], *[write(n) for n in range(8)]
            )
            assert _busy(cluster) == 0

        asyncio.run(main())

    def test_run_repeats(self, cluster: Cluster, data: Any) -> None:
        attempts: list[AsyncShardSession] = []

        async def stale(session: AsyncShardSession, title: str) -> str:
            attempts.append(session)
            pin = await session.get_one(Pin, data.ids[0])
            pin.title = title
            await session.flush()
            if len(attempts) < 3:
                raise StaleDataError(
                    class_name="Pin", object_id=pin.id, fields=["title"]
                )
            return pin.title

        async def main() -> None:
            assert await cluster.async_run(stale, title="third") == "third"
            assert len(set(attempts)) == 3
            attempts.clear()
            with pytest.raises(RetriesExhaustedError) as caught:
                await cluster.async_run(stale, "never", attempts=2)
            assert caught.value.attempts == 2
            async with cluster.async_session() as session:
                pin = await session.get_one(Pin, data.ids[0])
                assert pin.title == "third"

        asyncio.run(main())

    def test_run_repeats_nothing_else(self, cluster: Cluster, data: Any) -> None:
        attempts = []

        async def wrong(session: AsyncShardSession) -> None:
            attempts.append(1)
            raise LookupError

        with pytest.raises(LookupError):
            asyncio.run(cluster.async_run(wrong))
        assert len(attempts) == 1

    def test_health_warm_and_stats(self, cluster: Cluster, data: Any) -> None:
        async def main() -> None:
            health = (await cluster.async_health()).servers
            assert set(health.values()) == {None}
            assert set(health) == {
                server.name
                for keyspace in cluster.topology.keyspaces.values()
                for server in keyspace.servers
            }
            await cluster.async_warm(2)
            stats = [s for s in cluster.stats() if s.asynchronous]
            assert {(s.idle, s.busy) for s in stats} == {(2, 0)}
            async with cluster.async_session() as session:
                await session.get(Pin, data.ids[0])
                assert _busy(cluster) == 1

        asyncio.run(main())

    def test_tables_are_created(self, cluster: Cluster, data: Any) -> None:
        async def main() -> None:
            async with cluster.async_begin() as session:
                drop = text("DROP TABLE tags")
                on_shard = {"shard_id": 9}
                await session.execute(drop, bind_arguments=on_shard)
            with StatementLog() as log:
                await cluster.async_create_all(Board.metadata)
            created = [s for s in log.statements if s.lstrip().startswith("CREATE T")]
            assert len(created) == 1

        asyncio.run(main())

    def test_outside_an_event_loop(self, cluster: Cluster, data: Any) -> None:
        session = cluster.async_session()
        with pytest.raises(NoEventLoopError, match="coroutine"):
            session.sync_session.get(Pin, data.ids[0])

        async def later() -> None:
            # Where it was made makes no difference.
            assert await session.get(Pin, data.ids[0])
            await session.close()

        asyncio.run(later())


class Loops:
    def test_one_after_another(self, cluster: Cluster, data: Any) -> None:
        threads = set(threading.enumerate())

        async def main() -> None:
            async with cluster.async_session() as session:
                found = await session.get_many(Pin, data.ids)
            assert None not in found
            assert any(stats.idle for stats in cluster.stats())

        for _ in range(3):
            asyncio.run(main())
            # They were closed with their loop, in their loop.
            stats = [s for s in cluster.stats() if s.asynchronous]
            assert not any(s.idle or s.busy for s in stats)
            _end(set(threading.enumerate()) - threads)

    def test_a_session_that_outlives_its_task(
        self, cluster: Cluster, data: Any
    ) -> None:
        """A generator that is closed by the loop still has connections."""
        ended = []

        async def titles() -> Any:
            async with cluster.async_session() as session:
                for object_id in data.ids:
                    pin = await session.get_one(Pin, object_id)
                    yield pin.title
                ended.append("all read")
            ended.append("closed")

        async def main() -> None:
            generator = titles()
            kept.append(generator)
            await generator.__anext__()

        kept: list[Any] = []
        asyncio.run(main())
        assert ended == []
        assert _busy(cluster) == 0

    def test_closing_does_not_wait_for_what_is_never_returned(
        self, fresh: Cluster
    ) -> None:
        async def main() -> None:
            on_shard = {"shard_id": 1}
            async with fresh.async_session() as session:
                connection = await session.connection(bind_arguments=on_shard)
                engines = session.sync_session.places.engines
                records = [threading.Event()]
                engines.in_use.put(records[0], connection.sync_engine)
            closing = asyncio.create_task(fresh.aclose(timeout=50))
            while not (engines.closed or closing.done()):
                await asyncio.sleep(0)
            records.clear()
            assert await asyncio.wait_for(closing, 25)

        asyncio.run(main())

    def test_closed_clusters(self, fresh: Cluster) -> None:
        async def main() -> None:
            session = fresh.async_session()
            on_shard = {"shard_id": 1}
            await session.execute(text("SELECT 1"), bind_arguments=on_shard)
            assert await fresh.aclose(timeout=0.01) is False
            await session.execute(text("SELECT 1"), bind_arguments=on_shard)
            await session.close()
            assert await fresh.aclose() is True
            with pytest.raises(ClusterClosedError):
                await session.execute(text("SELECT 1"), bind_arguments=on_shard)
            with pytest.raises(ClusterClosedError):
                fresh.session().execute(text("SELECT 1"), bind_arguments=on_shard)

        async def again() -> None:
            async with fresh.async_session() as session:
                with pytest.raises(ClusterClosedError):
                    await session.connection(bind_arguments={"shard_id": 1})

        asyncio.run(main())
        asyncio.run(again())

    def test_closed_without_waiting(self, fresh: Cluster) -> None:
        """close() is for synchronous code; connections are closed later."""

        async def main() -> None:
            on_shard = {"shard_id": 1}
            async with fresh.async_session() as session:
                await session.execute(text("SELECT 1"), bind_arguments=on_shard)
                fresh.close()
                await session.execute(text("SELECT 1"), bind_arguments=on_shard)
            (stats,) = fresh.stats()
            assert (stats.idle, stats.busy) == (1, 0)
            async with fresh.async_session() as session:
                with pytest.raises(ClusterClosedError):
                    await session.connection(bind_arguments={"shard_id": 1})

        threads = set(threading.enumerate())
        asyncio.run(main())
        _end(set(threading.enumerate()) - threads)
