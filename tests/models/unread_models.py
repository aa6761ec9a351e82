"""One class of each kind, for commands that read them."""

from __future__ import annotations

from sqlalchemy import String
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sqla_shard import (
    blob_field,
    Cluster,
    LookupMixin,
    MappingMixin,
    ObjectMixin,
    ReferenceMixin,
    ShardSession,
)
from sqla_shard.models import normalization

SHARDS = 8
MODULUS = 4


class Base(DeclarativeBase):
    pass


class User(ObjectMixin, Base, type_id=1):
    __tablename__ = "users"
    email: Mapped[str] = blob_field()


class Note(ObjectMixin, Base, type_id=2, compression="zstd"):
    __tablename__ = "notes"
    content: Mapped[str] = blob_field()


class UserEmail(
    LookupMixin, Base, target=User, normalize=normalization.email, field="email"
):
    pass


class UserLikesUser(
    MappingMixin,
    Base,
    source=User,
    target=User,
    source_column="liking_id",
    target_column="liked_id",
):
    pass


class Country(ReferenceMixin, Base):
    code: Mapped[str] = mapped_column(String(2), primary_key=True)


def fill(cluster: Cluster) -> list[int]:
    """Insert on every shard a user with a key, which likes the next user."""

    def add(session: ShardSession, shard_id: int) -> int:
        user = User(email=f"{shard_id}@example.org")
        session.root_shard_id = shard_id
        session.add(user)
        session.flush()
        return int(user.id)

    ids = []
    for shard_id in range(SHARDS):
        ids.append(cluster.run(add, shard_id, key=f"user {shard_id}"))
        claim = cluster.run(UserEmail.claim, f"{shard_id}@example.org")
        cluster.run(claim.confirm, ids[-1])
    for one, other in zip(ids, [*ids[1:], ids[0]], strict=True):
        cluster.run(UserLikesUser.append, one, other)
    return ids
