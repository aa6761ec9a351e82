"""MySQL has no RETURNING: ids then come from the driver's lastrowid."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import insert
from sqlalchemy.orm import DeclarativeBase
from sqlalchemy.orm import Mapped

from sqla_shard import blob_field
from sqla_shard import Cluster
from sqla_shard import ObjectMixin
from sqla_shard import unpack

pytestmark = pytest.mark.live


class Base(DeclarativeBase):
    pass


class User(ObjectMixin, Base, type_id=3):
    __tablename__ = "users"

    name: Mapped[str] = blob_field()


@pytest.fixture
def cluster(fleet: Any) -> Iterator[Cluster]:
    document = fleet.topology_mapping(
        shards=16, database="db_noreturning{shard:05d}"
    )
    fleet.create_databases(document)
    with Cluster.from_topology(document, environ=fleet.environ) as cluster:
        cluster.create_all(Base.metadata)
        for engine in {p.engine for _, p in cluster.places.servers()}:
            # As SQLAlchemy sets it for a MySQL 8 server.
            engine.dialect.insert_returning = False
            engine.dialect.use_insertmanyvalues = False
        yield cluster
    fleet.drop_databases(document)


def test_flush_gets_whole_ids(cluster: Cluster) -> None:
    with cluster.begin(cross_shard="unordered") as session:
        users = [User(name=f"user {n}", shard_id=n % 16) for n in range(48)]
        session.add_all(users)
        session.flush()
        ids = [user.id for user in users]
        assert [unpack(i).shard_id for i in ids] == [n % 16 for n in range(48)]
        assert {unpack(i).type_id for i in ids} == {3}
        assert len(set(ids)) == 48
        assert users[0].ts is not None
    with cluster.session() as session:
        found = session.get_many(User, ids)
        assert [user.name for user in found if user] == [
            f"user {n}" for n in range(48)
        ]


def test_insert_statement_shows_the_whole_key(cluster: Cluster) -> None:
    with cluster.begin(shard_id=11) as session:
        result: Any = session.execute(
            insert(User.__table__).values(data={"name": "core"})  # type: ignore[arg-type]
        )
        (object_id,) = result.inserted_primary_key
        assert unpack(object_id) == (11, 3, unpack(object_id).local_id)
        found = session.get(User, object_id)
        assert found is not None
        assert found.name == "core"
