"""One object by id on real servers; many are in ``scatter``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import create_engine, select
from sqlalchemy.orm import Session

from sqla_shard import Cluster, ShardSession, unpack
from tests.benchmarks import profiling
from tests.benchmarks.pins import Base, fill, Pin, PlainPin
from tests.benchmarks.servers import new_fleet, title
from tests.benchmarks.timing import compare, show


def run() -> None:
    """Print the tables."""
    with _ways() as ways:
        show(
            f"one object by id, session open, one {title()} server",
            compare(ways, turns=1500, warm_up=100),
        )


def profile() -> None:
    """Print where the time of one object by id goes."""
    with _ways() as ways:
        for title, way in ways.items():
            profiling.show(title, way)


@contextmanager
def _ways() -> Iterator[dict[str, Callable[[], object]]]:
    """Yield the ways to read an object of one of 256 virtual shards."""
    with (
        new_fleet(servers=4, shards=256, fast=True) as fleet,
        Cluster.from_topology(
            fleet.topology_mapping(), environ=fleet.environ
        ) as cluster,
    ):
        cluster.create_all(Base.metadata)
        object_id = fill(cluster)[0]
        engine = create_engine(url_of(fleet.servers[0], object_id))
        with Session(engine) as plain, cluster.session() as sharded:
            yield _get(plain, sharded, object_id)
        engine.dispose()


def url_of(server: Any, object_id: int) -> str:
    """Return the URL of the database of an object, on its server."""
    url = server.url.replace("mysql://", "mysql+pymysql://")
    return f"{url}/db{unpack(object_id).shard_id:05d}"


def _get(
    plain: Session, sharded: ShardSession, object_id: int
) -> dict[str, Callable[[], object]]:
    local_id = unpack(object_id).local_id

    def forgetting(session: Session, read: Callable[[], Any]) -> Any:
        def call() -> None:
            session.expunge_all()
            assert read() is not None

        return call

    statement = select(Pin).where(Pin.id == object_id)
    plain_statement = select(PlainPin).where(PlainPin.id == local_id)
    return {
        "plain Session.get, one database": forgetting(
            plain, lambda: plain.get(PlainPin, local_id)
        ),
        "ShardSession.get": forgetting(sharded, lambda: sharded.get(Pin, object_id)),
        "plain select by id": forgetting(
            plain, lambda: plain.scalars(plain_statement).one()
        ),
        "ShardSession select by id": forgetting(
            sharded, lambda: sharded.scalars(statement).one()
        ),
    }
