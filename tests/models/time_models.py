"""Classes whose ids begin with the time, and processes that insert rows."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ForeignKey
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sqla_shard import (
    blob_field,
    Cluster,
    LookupMixin,
    MappingMixin,
    ObjectMixin,
    ShardedId,
    TimeLayout,
)
from sqla_shard.lookup import normalization

#: Instagram's.
EPOCH_MS = 1_314_220_021_721
TIMES = TimeLayout(epoch_ms=EPOCH_MS)


class Base(DeclarativeBase):
    pass


class Photos(Base):
    __abstract__ = True
    id_layout = TIMES


class User(ObjectMixin, Base, type_id=3, keyspace="objects"):
    __tablename__ = "users"
    name: Mapped[str] = blob_field(default="")
    photo_id: Mapped[int | None] = blob_field(ref="Photo", default=None)


class Photo(ObjectMixin, Photos, type_id=4, keyspace="photos"):
    __tablename__ = "photos"
    title: Mapped[str] = blob_field(default="")
    n: Mapped[int] = mapped_column(default=0)


class Crop(ObjectMixin, Photos, type_id=5, keyspace="photos", colocate_with="photo_id"):
    __tablename__ = "crops"
    photo_id: Mapped[int] = blob_field(ref=Photo)


class Scan(Photos):
    """A row for each photo that was scanned, with the photo's id."""

    __tablename__ = "scans"
    id: Mapped[int] = mapped_column(
        ShardedId(4, TIMES), ForeignKey(Photo.id), primary_key=True
    )
    n: Mapped[int]


class UserHasPhotos(
    MappingMixin, Base, source=User, target=Photo, inverse="PhotoOfUsers"
):
    pass


class PhotoOfUsers(MappingMixin, Base, source=Photo, target=User):
    pass


class PhotoSlug(LookupMixin, Base, target=Photo, normalize=normalization.casefold):
    pass


def insert_photos(
    document: dict[str, Any], shard_id: int, now_ms: int, times: int
) -> list[int]:
    """Insert photos in a process whose clock goes back again and again.

    :param now_ms: where its clock is, and to which it returns.
    :param times: the number of transactions, of four photos each.
    """
    ids: list[int] = []
    with Cluster.from_topology(document) as cluster:
        for number in range(times):
            now = now_ms + number % 3
            cluster.id_clock = lambda now=now: now * 1_000_000
            with cluster.begin(shard_id=shard_id) as session:
                new = [Photo() for _ in range(4)]
                session.add_all(new)
                session.flush()
                ids += [one.id for one in new]
    return ids
