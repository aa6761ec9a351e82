"""A JSON service for asyncio: boards, and pins on any shard.

::

    python -m examples.starlette_app                      # run it once
    uvicorn --factory examples.starlette_app:create_app   # serve it

It takes ``starlette``, ``aiosqlite`` and, for one or the other, ``httpx`` or
``uvicorn``.  The first way asserts what it shows, in a temporary directory;
the second keeps its boards in ``data/``.

Each request has a session of its own.  A page of a board is read from the
board's shard, and the pins on it from all servers at the same time, without
a thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from tempfile import TemporaryDirectory
from typing import Any

import httpx
from sqlalchemy.orm import DeclarativeBase, Mapped
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from sqla_shard import (
    AsyncShardSession,
    blob_field,
    Cluster,
    MappingMixin,
    ObjectMixin,
    pack,
    unpack,
)
from sqla_shard.exc import InvalidBookmarkError, InvalidIdError, UnknownShardError
from sqla_shard.testing import sqlite_topology


class Base(DeclarativeBase):
    """Holds the tables of this example."""


class Board(ObjectMixin, Base, type_id=2):
    """A root: the cluster chooses its shard."""

    __tablename__ = "boards"

    title: Mapped[str] = blob_field()


class Pin(ObjectMixin, Base, type_id=1):
    """A root too: it may be on many boards, on any shards."""

    __tablename__ = "pins"

    link: Mapped[str] = blob_field()


class BoardHasPins(MappingMixin, Base, source=Board, target=Pin):
    """The list of a board, on the shard of the board."""

    pin_id: Mapped[int]


# -- functions that run in a transaction, retried when that is safe


async def new_board(session: AsyncShardSession, title: str) -> int:
    """Store a board and return its id."""
    board = Board(title=title)
    session.add(board)
    await session.flush()
    return board.id


async def new_pin(session: AsyncShardSession, link: str) -> int:
    """Store a pin and return its id."""
    pin = Pin(link=link)
    session.add(pin)
    await session.flush()
    return pin.id


async def put_on_board(session: AsyncShardSession, board_id: int, pin_id: int) -> None:
    """Put a pin on top of a board."""
    await session.run_sync(BoardHasPins.append, board_id, pin_id)


# -- the endpoints; ids are strings in JSON, where numbers end at 2**53


async def add_board(request: Request) -> JSONResponse:
    """Handle ``POST /boards``."""
    cluster: Cluster = request.app.state.cluster
    given = await request.json()
    board_id = await cluster.async_run(new_board, given["title"])
    return JSONResponse({"id": str(board_id)}, status_code=201)


async def add_pin(request: Request) -> JSONResponse:
    """Handle ``POST /boards/{board_id}/pins``."""
    cluster: Cluster = request.app.state.cluster
    board_id = request.path_params["board_id"]
    given = await request.json()
    async with cluster.async_session() as session:
        await existing(session, board_id)
    # Two shards, thus two transactions.  A crash between them leaves a pin
    # that is on no board, which does no harm.
    pin_id = await cluster.async_run(new_pin, given["link"])
    await cluster.async_run(put_on_board, board_id, pin_id)
    return JSONResponse({"id": str(pin_id)}, status_code=201)


async def show_board(request: Request) -> JSONResponse:
    """Handle ``GET /boards/{board_id}?after=``, newest pins first."""
    cluster: Cluster = request.app.state.cluster
    board_id = request.path_params["board_id"]
    async with cluster.async_session() as session:
        board = await existing(session, board_id)
        page = await session.run_sync(
            BoardHasPins.page,
            board_id,
            limit=20,
            after=request.query_params.get("after"),
        )
        pins = await session.get_many(Pin, [row.pin_id for row in page.items])
    return JSONResponse(
        {
            "title": board.title,
            "pins": [{"id": str(p.id), "link": p.link} for p in pins if p],
            "next": page.next,
        }
    )


async def existing(session: AsyncShardSession, board_id: int) -> Board:
    """Return a board, or answer 404."""
    board = await session.get(Board, board_id)
    if board is None:
        raise HTTPException(404)
    return board


async def not_found(request: Request, error: Exception) -> JSONResponse:
    """Answer invalid ids and bookmarks, and shards that are not open."""
    return JSONResponse({"error": str(error)}, status_code=404)


def create_app(cluster: Cluster | None = None) -> Starlette:
    """Return the application.

    :param cluster: by default two servers that are directories in ``data``.
    """
    if cluster is None:
        cluster = Cluster.from_topology(sqlite_topology("data", 2, 16))

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        await cluster.async_create_all(Base.metadata)
        yield
        await cluster.aclose()

    app = Starlette(
        routes=[
            Route("/boards", add_board, methods=["POST"]),
            Route("/boards/{board_id:int}", show_board),
            Route("/boards/{board_id:int}/pins", add_pin, methods=["POST"]),
        ],
        exception_handlers={
            InvalidIdError: not_found,
            InvalidBookmarkError: not_found,
            UnknownShardError: not_found,
        },
        lifespan=lifespan,
    )
    app.state.cluster = cluster
    return app


# -- a demonstration


async def show(cluster: Cluster) -> None:
    """Fill a board by many requests at once, and read its pages."""
    app = create_app(cluster)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(
            transport=httpx.ASGITransport(app=app), base_url="http://pins.example"
        ) as client,
    ):
        answer = await client.post("/boards", json={"title": "Boats"})
        board = f"/boards/{answer.json()['id']}"
        links = [f"https://example.com/{number}" for number in range(30)]
        added = await asyncio.gather(
            *[client.post(f"{board}/pins", json={"link": x}) for x in links]
        )
        assert {one.status_code for one in added} == {201}
        shards = {unpack(int(one.json()["id"])).shard_id for one in added}
        print(f"30 pins were saved at once, on {len(shards)} shards.")

        first = (await client.get(board)).json()
        after = {"after": first["next"]}
        second = (await client.get(board, params=after)).json()
        sizes = [len(page["pins"]) for page in (first, second)]
        print(f"{first['title']} has pages of {sizes} pins.")
        assert sizes == [20, 10]
        shown = [pin["link"] for p in (first, second) for pin in p["pins"]]
        assert sorted(shown) == sorted(links)
        assert second["next"] is None

        for number in (7, pack(5, 2, 999), pack(5, 1, 1), pack(99, 2, 1)):
            path = f"/boards/{number}"
            assert (await client.get(path)).status_code == 404
        print("What is no id of a board is not found.")
    stats: list[Any] = cluster.stats()
    assert not any(pool.busy or pool.idle for pool in stats)
    print("No connection was left open.")


def main() -> None:
    """Run the example on SQLite: two servers with 16 virtual shards."""
    with TemporaryDirectory() as directory:
        topology = sqlite_topology(directory, servers=2, shards=16)
        asyncio.run(show(Cluster.from_topology(topology)))


if __name__ == "__main__":
    main()
