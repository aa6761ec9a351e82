"""Relationships to one object whose row has the reference."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event, ForeignKey, inspect
from sqlalchemy.exc import PendingRollbackError, SAWarning
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship

from sqla_shard import blob_field, Cluster, ObjectMixin, ShardedId
from sqla_shard.exc import ColocationError, CrossShardWriteError
from sqla_shard.testing import sqlite_topology, StatementLog
from sqla_shard.types import JSONBlob


class Base(DeclarativeBase):
    pass


class User(ObjectMixin, Base, type_id=1):
    __tablename__ = "users"
    name: Mapped[str] = blob_field(default="")
    profile: Mapped[Profile | None] = relationship(back_populates="user")
    shown: Mapped[Profile | None] = relationship(viewonly=True)


class Profile(ObjectMixin, Base, type_id=2):
    __tablename__ = "profiles"
    user_id: Mapped[int | None] = mapped_column(
        ShardedId(1), ForeignKey("users.local_id")
    )
    user: Mapped[User | None] = relationship(back_populates="profile")


class Setting(Base):
    """Of no shard: a global table."""

    __tablename__ = "settings"
    id: Mapped[int] = mapped_column(primary_key=True)
    data: Mapped[dict[str, Any]] = mapped_column(JSONBlob())


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster.from_topology(sqlite_topology(tmp_path, 2, 4, main=True)) as cluster:
        cluster.create_all(Base.metadata)
        yield cluster


@pytest.fixture
def user_id(cluster: Cluster) -> int:
    with cluster.begin(shard_id=1) as session:
        user = User()
        session.add(user)
        session.flush()
        return user.id


@pytest.mark.parametrize("names", [[""], ["changed", ""]], ids=["same", "back"])
def test_a_field_with_the_value_that_it_had_is_no_write(cluster, user_id, names):
    """As forms set all fields, so another shard may be written."""
    with cluster.begin(shard_id=3) as session:
        user = session.get_one(User, user_id)
        for name in names:
            user.name = name
        session.add(User())
        session.flush()
        user.name = "other"
        with pytest.raises(CrossShardWriteError):
            session.flush()
        session.rollback()


def test_a_blob_that_was_taken_back_is_written_by_other_classes(cluster, user_id):
    """SQLAlchemy writes it, so the flush may write no shard as well."""
    with cluster.begin() as session:
        session.add(Setting(id=1, data={}))
    with cluster.begin() as session:
        setting = session.get_one(Setting, 1)
        user = session.get_one(User, user_id)
        setting.data["odd"] = 1
        del setting.data["odd"]
        user.name = "other"
        with StatementLog() as log, pytest.raises(CrossShardWriteError):
            session.flush()
        assert log.statements == []
        session.rollback()


def test_a_child_that_is_not_stored_is_no_write(cluster, user_id):
    """The row of the user stays as it is, so another shard may be written."""
    with cluster.begin(shard_id=3) as session:
        user = session.get_one(User, user_id)
        child = Profile(user=user)
        session.add(User())
        with pytest.warns(SAWarning, match="not in session"):
            session.flush()
    assert inspect(child).transient
    with cluster.session() as session:
        assert session.get_one(User, user_id).profile is None


@pytest.mark.parametrize("also", ["a field", "a child"])
def test_what_is_stored_is_a_write(cluster, user_id, also):
    with cluster.session(shard_id=3) as session:
        user = session.get_one(User, user_id)
        if also == "a field":
            Profile(user=user)
            user.name = "changed"
        else:
            session.add(Profile(user=user))
        session.add(User())
        with pytest.raises((ColocationError, CrossShardWriteError)):
            session.flush()


_CHANGES: dict[str, Callable[[Any, User], Any]] = {
    "name": lambda session, user: setattr(user, "name", "changed"),
    "same name": lambda session, user: setattr(user, "name", ""),
    "child that is not stored": lambda session, user: Profile(user=user),
    "child": lambda session, user: session.add(Profile(user=user, shard_id=1)),
    "no child": lambda session, user: setattr(user, "profile", None),
    "read": lambda session, user: user.profile,
}


@pytest.mark.filterwarnings("ignore:Object of type:sqlalchemy.exc.SAWarning")
def test_changes_are_refused_if_they_write_a_row(cluster, user_id, rng):
    """Random ones, beside a write of another shard."""
    with cluster.begin(shard_id=1) as session:
        parent = User(profile=Profile())
        session.add(parent)
        session.flush()
        ids = [user_id, parent.id]
    for _ in range(30):
        changes = rng.choices(list(_CHANGES), k=rng.randint(1, 3))
        changed_id = rng.choice(ids)
        with cluster.session() as session, StatementLog() as log:
            user = session.get_one(User, changed_id)
            for change in changes:
                _CHANGES[change](session, user)
            session.flush()
            writes = any(one.split()[0] != "SELECT" for one in log.statements)
        with cluster.session(shard_id=3) as session:
            user = session.get_one(User, changed_id)
            for change in changes:
                _CHANGES[change](session, user)
            session.add(User())
            try:
                session.flush()
            except (ColocationError, CrossShardWriteError):
                assert writes, changes
            else:
                assert not writes, changes


def test_what_is_replaced_is_loaded_once(cluster, user_id):
    """As by plain SQLAlchemy, and not by each check of a flush."""
    with cluster.session() as session:
        user = session.get_one(User, user_id)
        session.add(Profile(user=user))
        with StatementLog() as log:
            session.flush()
        verbs = [one.split()[0] for one in log.statements]
        assert verbs == ["SELECT", "INSERT"]
        session.rollback()


def test_an_error_of_what_is_loaded_rolls_back(cluster, user_id):
    """As by plain SQLAlchemy: the changes before it are not committed."""
    with cluster.session() as session:
        user = session.get_one(User, user_id)
        user.name = "changed"
        session.flush()
        session.add(Profile(user=user))

        def fail(state: Any) -> None:
            raise RuntimeError("a deadlock, or Ctrl-C")

        event.listen(session, "do_orm_execute", fail)
        with pytest.raises(RuntimeError, match="deadlock"):
            session.flush()
        event.remove(session, "do_orm_execute", fail)
        with pytest.raises(PendingRollbackError):
            session.commit()
        session.rollback()
        assert session.get_one(User, user_id).name == ""


def test_it_is_set_replaced_and_removed(cluster, user_id):
    with cluster.begin() as session:
        user = session.get_one(User, user_id)
        user.profile = Profile()
        session.flush()
        first_id = user.profile.id
    with cluster.begin() as session:
        user = session.get_one(User, user_id)
        assert user.profile is not None
        assert user.profile.id == first_id
        user.profile = Profile()
        session.flush()
        second_id = user.profile.id
    with cluster.begin() as session:
        user = session.get_one(User, user_id)
        assert user.profile is not None
        assert user.profile.id == second_id
        assert session.get_one(Profile, first_id).user is None
        user.profile = None
    with cluster.session() as session:
        assert session.get_one(User, user_id).profile is None
        assert session.get_one(Profile, second_id).user_id is None
