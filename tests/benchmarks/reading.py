"""Reading by id on real MariaDB servers."""

from __future__ import annotations

import json
from collections.abc import Callable
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from sqlalchemy import BigInteger
from sqlalchemy import create_engine
from sqlalchemy import DateTime
from sqlalchemy import select
from sqlalchemy import Text
from sqlalchemy.ext.horizontal_shard import ShardedSession
from sqlalchemy.orm import DeclarativeBase
from sqlalchemy.orm import Mapped
from sqlalchemy.orm import mapped_column
from sqlalchemy.orm import Session
from sqlalchemy.types import TypeDecorator

from sqla_shard import blob_field
from sqla_shard import Cluster
from sqla_shard import ObjectMixin
from sqla_shard import pack
from sqla_shard import unpack
from sqla_shard.testing import MariaDBFleet
from tests.benchmarks.timing import compare
from tests.benchmarks.timing import show


class Base(DeclarativeBase):
    pass


class Pin(ObjectMixin, Base, type_id=1):
    __tablename__ = "pins"

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
    ts: Mapped[Any] = mapped_column(DateTime)


def run() -> None:
    """Print the tables."""
    with (
        MariaDBFleet(servers=4, shards=256, fast=True) as fleet,
        Cluster.from_topology(
            fleet.topology_mapping(), environ=fleet.environ
        ) as cluster,
    ):
        cluster.create_all(Base.metadata)
        ids = _fill(cluster)
        _get(cluster, fleet, ids)
        _get_many(cluster, fleet, ids)


def _fill(cluster: Cluster) -> list[int]:
    ids = []
    for shard_id in range(0, 256, 5):
        with cluster.begin(shard_id=shard_id) as session:
            pin = Pin(title=f"pin {shard_id}", link="https://example.com/a")
            session.add(pin)
            session.flush()
            ids.append(pin.id)
    return ids[:50]


def _get(cluster: Cluster, fleet: MariaDBFleet, ids: list[int]) -> None:
    object_id = ids[0]
    shard_id, _, local_id = unpack(object_id)
    server = fleet.servers[0]
    engine = create_engine(
        server.url.replace("mysql://", "mysql+pymysql://")
        + f"/db{shard_id:05d}"
    )
    plain, sharded = Session(engine), cluster.session()

    def forgetting(session: Session, read: Callable[[], Any]) -> Any:
        def call() -> None:
            session.expunge_all()
            assert read() is not None

        return call

    statement = select(Pin).where(Pin.id == object_id)
    plain_statement = select(PlainPin).where(PlainPin.id == local_id)
    show(
        "one object by id, session open, one MariaDB server",
        compare(
            {
                "plain Session.get, one database": forgetting(
                    plain, lambda: plain.get(PlainPin, local_id)
                ),
                "ShardSession.get": forgetting(
                    sharded, lambda: sharded.get(Pin, object_id)
                ),
                "plain select by id": forgetting(
                    plain, lambda: plain.scalars(plain_statement).one()
                ),
                "ShardSession select by id": forgetting(
                    sharded, lambda: sharded.scalars(statement).one()
                ),
            },
            turns=1500,
            warm_up=100,
        ),
    )
    plain.close()
    sharded.close()
    engine.dispose()


def _get_many(cluster: Cluster, fleet: MariaDBFleet, ids: list[int]) -> None:
    open_session = cluster.session()

    def in_open() -> None:
        open_session.expunge_all()
        assert None not in open_session.get_many(Pin, ids)

    def in_new() -> None:
        with cluster.session() as session:
            assert None not in session.get_many(Pin, ids)

    def one_by_one() -> None:
        open_session.expunge_all()
        assert None not in [open_session.get(Pin, i) for i in ids]

    with _raw(cluster, fleet, ids) as raw, _upstream(fleet, ids) as upstream:
        show(
            "50 objects on 50 virtual shards of 4 servers",
            compare(
                {
                    "raw PyMySQL, a UNION ALL for each server in threads": raw,
                    "get_many, session open": in_open,
                    "get_many, new session": in_new,
                    "50 times get": one_by_one,
                    "SQLAlchemy's ShardedSession, session open": upstream,
                },
                turns=100,
            ),
        )
    open_session.close()


@contextmanager
def _raw(
    cluster: Cluster, fleet: MariaDBFleet, ids: list[int]
) -> Iterator[Callable[[], None]]:
    """Read the rows by hand, as text, without making objects of them."""
    keyspace = cluster.topology.keyspace("objects")
    texts: dict[str, list[str]] = {}
    for object_id in ids:
        shard_id, type_id, local_id = unpack(object_id)
        texts.setdefault(keyspace.server_for(shard_id).name, []).append(
            f"SELECT local_id + {pack(shard_id, type_id, 0)}, data, ts "
            f"FROM db{shard_id:05d}.pins WHERE local_id = {local_id}"
        )
    work = [
        (server.connect(), " UNION ALL ".join(texts[server.name]))
        for server in fleet.servers
    ]

    def one(job: tuple[Any, str]) -> Any:
        cursor = job[0].cursor()
        cursor.execute(job[1])
        return cursor.fetchall()

    with ThreadPoolExecutor(len(work)) as executor:

        def read() -> None:
            assert sum(map(len, executor.map(one, work))) == len(ids)

        yield read
    for connection, _ in work:
        connection.close()


@contextmanager
def _upstream(
    fleet: MariaDBFleet, ids: list[int]
) -> Iterator[Callable[[], None]]:
    """Read them with what SQLAlchemy brings along."""
    shards = [unpack(object_id).shard_id for object_id in ids]
    per_server = 256 // len(fleet.servers)
    engines = {
        str(shard_id): create_engine(
            fleet.servers[shard_id // per_server].url.replace(
                "mysql://", "mysql+pymysql://"
            )
            + f"/db{shard_id:05d}"
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
