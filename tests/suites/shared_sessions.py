"""A session that is shared: by threads, and by tasks of an event loop."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from time import monotonic, sleep
from typing import Any

import pytest
from sqlalchemy import inspect, select
from sqlalchemy.exc import IllegalStateChangeError, SQLAlchemyError

from sqla_shard import Cluster, ShardSession
from sqla_shard.exc import ConcurrentUseError
from tests.models.clusters import at, PINS
from tests.models.models import Pin

PATIENCE = 60
THREADS = 4
READS = 360


def fill(cluster: Cluster, shards: range) -> list[int]:
    """Insert a pin on each of some shards; return their ids."""
    ids = []
    for shard in shards:
        with cluster.begin() as session:
            pin = at(shard, Pin(title=f"pin of {shard}"))
            session.add(pin)
            session.flush()
            ids.append(pin.id)
    return ids


class Held:
    """A locked row, so that a SELECT ... FOR UPDATE waits."""

    def __init__(self, cluster: Cluster, object_id: int) -> None:
        self._session = cluster.session()
        self._session.get(Pin, object_id, with_for_update=True)

    def release(self) -> None:
        self._session.close()


class SharedByThreads:
    """The test module has fixtures ``cluster`` and ``ids``."""

    @pytest.fixture
    def busy(self, cluster: Cluster, ids: list[int]) -> Iterator[ShardSession]:
        """Yield a session in which another thread is in a statement."""
        held = Held(cluster, ids[0])
        session = cluster.session()
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(session.get, Pin, ids[0], with_for_update=True)
            try:
                _until_waiting(session)
                yield session
            finally:
                held.release()
                assert waiting.result(PATIENCE).id == ids[0]
        session.close()

    @pytest.mark.parametrize(
        "use",
        [
            lambda session, ids: session.get(Pin, ids[1]),
            lambda session, ids: session.get_many(Pin, ids[1:]),
            lambda session, ids: session.scalars(select(Pin).where(Pin.id == ids[1])),
            lambda session, ids: session.flush(),
            lambda session, ids: session.commit(),
            lambda session, ids: session.rollback(),
            lambda session, ids: session.close(),
        ],
        ids=[*("get", "get_many", "select", "flush"), *("commit", "rollback", "close")],
    )
    def test_a_second_thread_is_refused(self, busy, ids, use):
        with pytest.raises(ConcurrentUseError, match="open one for each"):
            use(busy, ids)

    def test_handlers_of_sqlalchemy_catch_it(self, busy, ids):
        with pytest.raises(IllegalStateChangeError):
            busy.get(Pin, ids[1])

    def test_the_first_is_not_disturbed(self, cluster, busy, ids):
        """The fixture looks at what it gets."""
        with pytest.raises(ConcurrentUseError):
            busy.get(Pin, ids[1])

    def test_one_after_the_other_is_allowed(self, cluster, ids):
        session = cluster.session()
        with ThreadPoolExecutor(1) as pool:
            for object_id in ids:
                found = pool.submit(session.get, Pin, object_id)
                assert found.result(PATIENCE).id == object_id
                assert session.get(Pin, ids[0]).id == ids[0]
        session.close()

    def test_never_the_object_of_another_id(self, cluster, ids, rng):
        """Of threads that do not know better."""
        wrong: list[tuple[int, int]] = []
        refused: list[BaseException] = []
        session = cluster.session()
        barrier = threading.Barrier(THREADS)
        seeds = [rng.random() for _ in range(THREADS)]

        def read(seed: float) -> None:
            choice = random.Random(seed)
            barrier.wait(PATIENCE)
            for _ in range(READS):
                object_id = choice.choice(ids)
                try:
                    found = session.get(
                        Pin, object_id, populate_existing=choice.random() < 0.5
                    )
                    session.expire(found)
                except SQLAlchemyError as error:
                    refused.append(error)
                    continue
                if inspect(found).identity != (object_id,):
                    wrong.append((object_id, inspect(found).identity[0]))

        with ThreadPoolExecutor(THREADS) as pool:
            for one in [pool.submit(read, seed) for seed in seeds]:
                one.result(PATIENCE)
        session.close()
        assert wrong == []
        assert any(isinstance(one, ConcurrentUseError) for one in refused)
        # A session of one thread reads all rows.
        with cluster.session() as session:
            assert [one.id for one in session.get_many(Pin, ids)] == ids


class SharedByTasks:
    """The test module has fixtures ``cluster`` and ``ids``."""

    def test_never_the_object_of_another_id(self, cluster, ids):
        """Each await lets the other tasks go on."""

        async def main() -> list[Any]:
            async with cluster.async_session() as session:
                return await asyncio.gather(
                    *(session.get(Pin, one) for one in ids),
                    *(session.get_many(Pin, ids) for _ in range(3)),
                    return_exceptions=True,
                )

        first, *others = asyncio.run(main())
        assert inspect(first).identity == (ids[0],)
        assert {type(one) for one in others} == {ConcurrentUseError}

    def test_one_after_the_other_is_allowed(self, cluster, ids):
        async def main() -> None:
            async with cluster.async_session() as session:
                for one in ids:
                    found = await asyncio.create_task(session.get(Pin, one))
                    assert found.id == one

        asyncio.run(main())


def _until_waiting(session: Any) -> None:
    """Wait until another thread is inside a statement of a session."""
    deadline = monotonic() + PATIENCE
    while not session._usage._users:
        assert monotonic() < deadline, "no thread has begun a statement"
        sleep(0.01)


cluster = PINS.on_backend()


@pytest.fixture(scope="module")
def ids(cluster):
    return fill(cluster, range(8))
