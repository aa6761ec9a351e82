"""Classes with lookups, and clusters that have their tables."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest
from sqlalchemy import func, select, update
from sqlalchemy.orm import DeclarativeBase, Mapped

from sqla_shard import (
    blob_field,
    Cluster,
    LookupMixin,
    ObjectMixin,
    scatter,
    ShardSession,
)
from sqla_shard.models import normalization
from tests.models.backends import Clusters
from tests.models.layouts import LAYOUT, pack

USER = 3
SHARDS = 8
MODULUS = 16


class Base(DeclarativeBase):
    id_layout = LAYOUT


class UserTag(
    LookupMixin, Base, target="User", normalize=normalization.casefold, unique=False
):
    """Given by name, before the class is there."""


class User(ObjectMixin, Base, type_id=USER):
    __tablename__ = "users"
    name: Mapped[str] = blob_field()


class UserEmail(LookupMixin, Base, target=User, normalize=normalization.email):
    pass


class UserName(LookupMixin, Base, target=User, normalize=normalization.exact):
    pass


class UserLogin(
    LookupMixin,
    Base,
    target=User,
    normalize=normalization.casefold,
    previous=normalization.exact,
):
    """Was exact before."""


_numbers = itertools.count(1)


class UserContact(
    LookupMixin,
    Base,
    target=User,
    normalize=normalization.email,
    previous=[normalization.exact],
):
    """Took anything for an address before."""


def ids(count: int = 1) -> list[int]:
    """Return ids of users that were never inserted, on several shards."""
    return [
        pack(number % SHARDS, USER, number)
        for number in itertools.islice(_numbers, count)
    ]


def new_user(session: ShardSession, name: str = "x") -> int:
    """Insert a user on some shard; return the id."""
    user = User(name=name)
    session.add(user)
    session.flush()
    return user.id


def rows_of(cluster: Cluster, cls: Any) -> dict[str, Any]:
    """Return all rows of unique keys, by key, from all shards."""
    table = cls.__table__
    with cluster.session() as session:
        rows = session.execute(select(table).options(scatter())).all()
    found = {row.key: row for row in rows}
    assert len(found) == len(rows)
    return found


def count_of(cluster: Cluster, cls: Any) -> int:
    """Return how many rows there are on all shards."""
    counted = select(func.count()).select_from(cls.__table__)
    with cluster.session() as session:
        return int(session.scalar(counted.options(scatter())))


def end_at(cluster: Cluster, cls: Any, key: str, moment: datetime) -> None:
    """Let a claim end at another time than it was given."""
    table = cls.__table__
    with cluster.begin() as session:
        done: Any = session.execute(
            update(table).where(table.c.key == key).values(expires_at=moment),
            bind_arguments={"shard_id": cls.shard_of(session, key)},
        )
        assert done.rowcount == 1


class Suite:
    """The test module has a fixture ``cluster``."""

    @pytest.fixture
    def session(self, cluster: Cluster) -> Iterator[ShardSession]:
        with cluster.session() as session:
            yield session

    @pytest.fixture
    def mark(self, rng: Any) -> str:
        """Return a text that no other test has in its keys."""
        return f"{next(_numbers)}-{rng.randrange(10**9)}"


#: Clusters with these tables.
LOOKUPS = Clusters(Base.metadata, SHARDS, lookup=MODULUS)
lookups_on_sqlite = LOOKUPS.on_sqlite
lookups_on_servers = LOOKUPS.on_servers
