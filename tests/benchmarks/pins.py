"""Fifty pins, and the ways to read them that are not ours."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from sqlalchemy import (
    BigInteger,
    create_engine,
    DateTime,
    FetchedValue,
    Index,
    make_url,
    select,
    Text,
)
from sqlalchemy.ext.horizontal_shard import ShardedSession
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.types import TypeDecorator

from sqla_shard import blob_field, Cluster, ObjectMixin, pack, unpack

#: The modules of drivers.
PYMYSQL = "pymysql"
MYSQLCLIENT = "MySQLdb"


class Base(DeclarativeBase):
    pass


class Pin(ObjectMixin, Base, type_id=1):
    __tablename__ = "pins"
    __table_args__ = (Index("ix_pins_ts", "ts"),)

    title: Mapped[str] = blob_field()
    link: Mapped[str] = blob_field()


class JSONText(TypeDecorator[Any]):
    """JSON in a text column, as an application would do it by hand."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Any) -> Any:
        return json.dumps(value)

    def process_result_value(self, value: Any, dialect: Any) -> Any:
        return json.loads(value)


class Plain(DeclarativeBase):
    pass


class PlainPin(Plain):
    __tablename__ = "pins"

    id: Mapped[int] = mapped_column("local_id", BigInteger, primary_key=True)
    data: Mapped[Any] = mapped_column(JSONText)
    ts: Mapped[Any] = mapped_column(DateTime, server_default=FetchedValue())


def fill(cluster: Cluster) -> list[int]:
    """Make a pin on each of fifty shards; return the ids."""
    ids = []
    for shard_id in range(0, 250, 5):
        with cluster.begin(shard_id=shard_id) as session:
            pin = Pin(title=f"pin {shard_id}", link="https://example.com/a")
            session.add(pin)
            session.flush()
            ids.append(pin.id)
    return ids


def branch(shard_id: int, rest: str) -> str:
    """Return a SELECT of pins of a shard, with whole ids."""
    return (
        f"SELECT local_id + {pack(shard_id, 1, 0)} AS id, data, ts "
        f"FROM db{shard_id:05d}.pins {rest}"
    )


@contextmanager
def unions(
    cluster: Cluster, branches: dict[int, str], around: str = "", driver: str = PYMYSQL
) -> Iterator[Callable[[], list[Any]]]:
    """Read with a UNION ALL for each server, by hand and in threads.

    :param branches: a SELECT for each shard.
    :param around: SQL after the last SELECT of a server.
    :param driver: the module to connect with.
    """
    keyspace = cluster.topology.keyspace("objects")
    texts: dict[str, list[str]] = {}
    for shard_id, text in branches.items():
        url = keyspace.server_for(shard_id).primary
        texts.setdefault(url, []).append(text)
    work = [
        (connect(url, driver), " UNION ALL ".join(parts) + around)
        for url, parts in texts.items()
    ]

    def one(job: tuple[Any, str]) -> Any:
        cursor = job[0].cursor()
        cursor.execute(job[1])
        return cursor.fetchall()

    with ThreadPoolExecutor(len(work)) as executor:
        yield lambda: [row for rows in executor.map(one, work) for row in rows]
    for connection, _ in work:
        connection.close()


def connect(url: str, driver: str) -> Any:
    """Connect with the driver alone."""
    parts = make_url(url)
    return import_module(driver).connect(
        host=parts.host,
        port=parts.port or 3306,
        user=parts.username,
        password=parts.password or "",
        charset="utf8mb4",
    )


@contextmanager
def raw(
    cluster: Cluster, ids: list[int], driver: str = PYMYSQL
) -> Iterator[Callable[[], None]]:
    """Read the pins as text, without making objects of them."""
    branches = {}
    for object_id in ids:
        shard_id, _, local_id = unpack(object_id)
        branches[shard_id] = branch(shard_id, f"WHERE local_id = {local_id}")
    with unions(cluster, branches, driver=driver) as rows:

        def read() -> None:
            assert len(rows()) == len(ids)

        yield read


@contextmanager
def upstream(
    cluster: Cluster, ids: list[int], driver: str = PYMYSQL
) -> Iterator[Callable[[], None]]:
    """Read them with what SQLAlchemy brings along."""
    keyspace = cluster.topology.keyspace("objects")
    shards = [unpack(object_id).shard_id for object_id in ids]
    engines = {
        str(shard_id): create_engine(
            make_url(keyspace.server_for(shard_id).primary).set(
                drivername=f"mysql+{driver.lower()}", database=f"db{shard_id:05d}"
            )
        )
        for shard_id in shards
    }
    session = ShardedSession(
        shards=engines,
        shard_chooser=lambda *args, **kw: str(shards[0]),
        identity_chooser=lambda *args, **kw: list(engines),
        execute_chooser=lambda context: list(engines),
    )
    (local_id,) = {unpack(object_id).local_id for object_id in ids}
    statement = select(PlainPin).where(PlainPin.id == local_id)

    def read() -> None:
        session.expunge_all()
        assert len(session.scalars(statement).all()) == len(ids)

    yield read
    session.close()
    for engine in engines.values():
        engine.dispose()
