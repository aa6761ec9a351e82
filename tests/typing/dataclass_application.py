"""An application whose classes are dataclasses."""

from __future__ import annotations

from sqlalchemy import String
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, MappedAsDataclass

from sqla_shard import blob_field, MappingMixin, ObjectMixin


class Base(MappedAsDataclass, DeclarativeBase):
    pass


class User(ObjectMixin, Base, type_id=3, kw_only=True):
    __tablename__ = "users"

    city: Mapped[str | None] = blob_field(default=None, repr=False)
    name: Mapped[str] = blob_field()
    email: Mapped[str] = mapped_column(String(100))


class Follows(
    MappingMixin,
    Base,
    source=User,
    target=User,
    source_column="follower_id",
    target_column="followee_id",
):
    follower_id: Mapped[int]
    followee_id: Mapped[int]
    since: Mapped[str] = mapped_column(String(10), default="")


def sign_up(name: str) -> User:
    user = User(name=name, email="a@b.c")
    user.shard_id = 7
    return user


def follow(user: User, other: User) -> Follows:
    return Follows(follower_id=user.id, followee_id=other.id)


def mistakes() -> None:
    User(nam="ada", email="a@b.c")  # type: ignore[call-arg]  # is checked
    User(name="ada")  # type: ignore[call-arg]  # the email is missing
    Follows(follower_id=1)  # type: ignore[call-arg]  # the other is missing
