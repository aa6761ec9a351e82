"""The cost of shadow mode to an application on one database.

The same work on engines with and without it, in turns.  On SQLite a statement
costs the least, so that the share of shadow mode is the highest.  The times
are those of the processor in this process: shadow mode waits for nothing.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import process_time
from typing import Any

from sqlalchemy import create_engine, Engine, insert, select
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import selectinload, Session

from examples.microblog.single import models
from sqla_shard.migrate import Declaration, Lookup, MappingTable, Owned, Owner, Shadow
from tests.benchmarks.servers import new_server, title
from tests.benchmarks.timing import compare, show
from tests.models.shadow_apps import accounts, BANK, bank, close_month, SHOP, Shop, shop

MICROBLOG = Declaration(
    Owner("users.id"),
    Lookup("users.username"),
    Owned("posts", colocate_with="user_id"),
    Owned("messages", colocate_with="recipient_id"),
    MappingTable("followers", source="follower_id", target="followed_id", inverse=True),
)

#: The ways, with the options of shadow mode; None for none.
WAYS: dict[str, dict[str, Any] | None] = {
    "without shadow mode": None,
    "watched, budget=0.02 (the default)": {},
    "watched, sample=0.01": {"sample": 0.01},
    "watched, sample=0: the listeners alone": {"sample": 0},
    "every transaction planned (budget=None)": {"budget": None},
}

Work = Callable[[], object]


@contextmanager
def watched(
    declaration: Declaration, metadata: Any, make: Callable[[], tuple[Any, Work]]
) -> Iterator[dict[str, Work]]:
    """Return the same work for each way, on an engine of its own."""
    works: dict[str, Work] = {}
    shadows = []
    for name, options in WAYS.items():
        engine, works[name] = make()
        if options is not None:
            shadow = Shadow(declaration, metadata, **options)
            shadow.watch(engine)
            shadows.append(shadow)
    yield works
    for shadow in shadows:
        failures = shadow.report().failures
        assert not failures, failures
        shadow.close()


def web(url: str) -> tuple[Engine, Work]:
    """Return a page of the microblog, and a post."""
    engine = create_engine(url)

    def work() -> None:
        with Session(engine) as session:
            user = session.get_one(models.User, 1)
            session.scalars(
                select(models.Post)
                .where(models.Post.user_id == user.id)
                .order_by(models.Post.id.desc())
                .limit(5)
                .options(selectinload(models.Post.author))
            ).all()
            session.add(models.Post(user_id=user.id, body="hello"))
            session.commit()

    return engine, work


def prepare_web(url: str) -> None:
    engine = create_engine(url)
    models.Base.metadata.drop_all(engine)
    models.Base.metadata.create_all(engine)
    with engine.begin() as connection:
        connection.execute(
            insert(models.User),
            [
                {
                    "id": 1,
                    "username": "ada",
                    "email": "ada@example.com",
                    "password_hash": "-",
                }
            ],
        )
    engine.dispose()


def api(loop: asyncio.AbstractEventLoop, url: str, customer: Any) -> tuple[Any, Work]:
    """Return some calls of the API."""
    engine = create_async_engine(url)
    client = Shop(engine)

    async def calls() -> None:
        order_id = await client.order(customer, "tea", "tea")
        await client.shown((order_id, 0), (order_id, 1))
        await client.find("ada@example.com")
        await client.cancel(customer, order_id)

    return engine, lambda: loop.run_until_complete(calls())


def batch(url: str) -> tuple[Engine, Work]:
    """Return one run of the batch job, which is rolled back."""
    engine = create_engine(url)

    def work() -> None:
        with engine.connect() as connection:
            close_month(connection, "2026-11")
            connection.rollback()

    return engine, work


def run() -> None:
    """Compare each application, on SQLite and a server."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        directory = Path(name)
        web_url = f"sqlite:///{directory}/web"
        prepare_web(web_url)
        with watched(MICROBLOG, models.Base.metadata, lambda: web(web_url)) as ways:
            show(
                "a page and a post of the microblog, ORM, SQLite",
                compare(ways, turns=400, clock=process_time),
            )
        _run_api(directory)
        batch_url = f"sqlite:///{directory}/batch"
        engine = create_engine(batch_url)
        bank.create_all(engine)
        with engine.begin() as connection:
            connection.execute(
                insert(accounts), [{"id": n, "balance": n} for n in range(1, 501)]
            )
        engine.dispose()
        with watched(BANK, bank, lambda: batch(batch_url)) as ways:
            show(
                "a batch job on 500 accounts, Core, SQLite",
                compare(ways, turns=60, warm_up=3, clock=process_time),
            )
    with new_server() as server:
        server.root_execute("CREATE DATABASE db_blog")
        url = f"{server.url.replace('mysql:', 'mysql+pymysql:', 1)}/db_blog"
        prepare_web(url)
        with watched(MICROBLOG, models.Base.metadata, lambda: web(url)) as ways:
            show(
                f"a page and a post of the microblog, ORM, {title()}",
                compare(ways, turns=300, clock=process_time),
            )


def _run_api(directory: Path) -> None:
    loop = asyncio.new_event_loop()
    url = f"sqlite+aiosqlite:///{directory}/shop"
    engine = create_async_engine(url)
    client = Shop(engine)
    loop.run_until_complete(client.prepare())
    customer = loop.run_until_complete(client.join("ada@example.com"))
    loop.run_until_complete(engine.dispose())
    with watched(SHOP, shop, lambda: api(loop, url, customer)) as ways:
        show(
            "four calls of an asynchronous API, Core, SQLite",
            compare(ways, turns=150, clock=process_time),
        )
    loop.close()
