"""Asynchronous sessions, in the tables of ``scatter``.

Each call is one ``run_until_complete()`` of an existing event loop; the
figures include its cost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sqla_shard import Cluster
from tests.benchmarks import newest
from tests.benchmarks.pins import Pin

Ways = dict[str, Callable[[], object]]
Read = Callable[[Any], Awaitable[Any]]


def by_id(cluster: Cluster, ids: list[int]) -> Any:
    """Read objects by id."""

    async def read(session: Any) -> Any:
        return await session.get_many(Pin, ids)

    return _ways(cluster, "get_many", read)


def newest_of_all(cluster: Cluster) -> Any:
    """Read the newest objects."""

    async def read(session: Any) -> Any:
        return (await session.scalars(newest.STATEMENT)).all()

    return _ways(cluster, "select() with scatter()", read)


@contextmanager
def _ways(cluster: Cluster, title: str, read: Read) -> Iterator[Ways]:
    if not hasattr(cluster, "async_session"):
        print(f"\nwithout {title}, async: this version has no such sessions")
        yield {}
        return
    # Closing it closes it for synchronous sessions, too.
    own = Cluster.from_topology(cluster.topology)
    session = own.async_session()

    async def in_open() -> None:
        session.expunge_all()
        found = await read(session)
        assert found
        assert None not in found

    async def in_new() -> None:
        async with own.async_session() as new:
            found = await read(new)
            assert found
            assert None not in found

    async def close() -> None:
        await session.close()
        await own.aclose()

    loop = asyncio.new_event_loop()
    try:
        yield {
            f"{title}, async, session open": lambda: loop.run_until_complete(in_open()),
            f"{title}, async, new session": lambda: loop.run_until_complete(in_new()),
        }
    finally:
        loop.run_until_complete(close())
        loop.close()
