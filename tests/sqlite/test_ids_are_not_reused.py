"""An id names one object for ever, also after it is deleted."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy.orm import DeclarativeBase, Mapped

from sqla_shard import blob_field, Cluster, ObjectMixin
from sqla_shard.testing import sqlite_topology


class Base(DeclarativeBase):
    pass


class User(ObjectMixin, Base, type_id=3):
    __tablename__ = "users"

    name: Mapped[str] = blob_field()


def test_ids_are_not_reused(tmp_path: Path) -> None:
    with Cluster.from_topology(sqlite_topology(tmp_path, shards=2)) as cluster:
        cluster.create_all(Base.metadata)

        def create(name: str) -> int:
            with cluster.begin(shard_id=1) as session:
                user = User(name=name)
                session.add(user)
                session.flush()
                return user.id

        first = create("first")
        with cluster.begin() as session:
            session.delete(session.get_one(User, first))
        assert create("second") > first
