"""One object by id on real MariaDB servers; many are in ``scatter``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import create_engine
from sqlalchemy import select
from sqlalchemy.orm import Session

from sqla_shard import Cluster
from sqla_shard import unpack
from sqla_shard.testing import MariaDBFleet
from tests.benchmarks.pins import Base
from tests.benchmarks.pins import fill
from tests.benchmarks.pins import Pin
from tests.benchmarks.pins import PlainPin
from tests.benchmarks.timing import compare
from tests.benchmarks.timing import show


def run() -> None:
    """Print the tables."""
    with (
        MariaDBFleet(servers=4, shards=256, fast=True) as fleet,
        Cluster.from_topology(
            fleet.topology_mapping(), environ=fleet.environ
        ) as cluster,
    ):
        cluster.create_all(Base.metadata)
        _get(cluster, fleet, fill(cluster)[0])


def _get(cluster: Cluster, fleet: MariaDBFleet, object_id: int) -> None:
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
