"""Classes with compressed blobs, and the same ones without."""

from __future__ import annotations

import random
from typing import Any

from sqlalchemy import text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sqla_shard import blob_field, Cluster, ObjectMixin, unpack
from sqla_shard.models import blob_writes
from sqla_shard.types.compression import DICTIONARIES
from tests.models.backends import Clusters, with_cache

#: The module, for the option --models.
MODELS = "tests.models.compressed_models"
SHARDS = 4


class Base(DeclarativeBase):
    pass


class Fields:
    """Fields of both classes."""

    link: Mapped[str] = blob_field()
    title: Mapped[str] = blob_field(default="")
    count: Mapped[int] = blob_field(default=0)
    other: Mapped[int] = blob_field(default=0)
    tags: Mapped[list[str]] = blob_field(default_factory=list)


class Packed(Fields, ObjectMixin, Base, type_id=1, compression="zstd"):
    __tablename__ = "packed"
    rank: Mapped[int] = mapped_column(default=0)


class Plain(Fields, ObjectMixin, Base, type_id=2):
    __tablename__ = "plain"
    rank: Mapped[int] = mapped_column(default=0)


class Small(
    ObjectMixin,
    Base,
    type_id=3,
    max_bytes=60_000,
    compression="zstd",
    dictionary="packed",
):
    __tablename__ = "small"
    link: Mapped[str] = blob_field()


def fill(
    cluster: Cluster, count: int, seed: int = 1, shards: int = SHARDS
) -> list[int]:
    """Insert packed objects on all shards, and return their ids."""
    chooser = random.Random(seed)
    ids = []
    for shard_id in range(shards):
        with cluster.begin(shard_id=shard_id) as session:
            new = [
                Packed(
                    link=f"https://example.com/{chooser.randrange(9)}/{i}",
                    title=f"The {i}th of many pins of a board",
                    tags=[f"tag{chooser.randrange(20)}"],
                )
                for i in range(count)
            ]
            session.add_all(new)
            session.flush()
            ids += [one.id for one in new]
    return ids


def forget() -> None:
    """Clear the dictionaries of this process, as in a new one."""
    DICTIONARIES._known.clear()
    DICTIONARIES._missing.clear()
    blob_writes._known.clear()


def raw(cluster: Cluster, cls: Any, object_id: int) -> Any:
    """Return the stored form of a blob, a str or bytes."""
    return _raw(
        cluster, f"SELECT data FROM {cls.__tablename__} WHERE local_id = :id", object_id
    ).scalar()


def set_raw(cluster: Cluster, cls: Any, object_id: int, value: Any) -> None:
    """Write a blob as another program would."""
    _raw(
        cluster,
        f"UPDATE {cls.__tablename__} SET data = :data WHERE local_id = :id",
        object_id,
        data=value,
    )


def _raw(cluster: Cluster, sql: str, object_id: int, **values: Any) -> Any:
    parts = unpack(object_id)
    with cluster.begin() as session:
        found = session.execute(
            text(sql),
            {"id": parts.local_id, **values},
            bind_arguments={"shard_id": parts.shard_id},
        )
        return found.freeze()() if found.returns_rows else None


#: Clusters with these tables, whose rows are cached in memory.
COMPRESSED = Clusters(Base.metadata, SHARDS, prepare=with_cache("test", Packed, Plain))
