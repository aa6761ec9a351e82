"""Columns with the names of functions, and keys with names of their own."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, UTC
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event, ForeignKey, func, select, String, update
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    mapped_column,
    synonym,
    with_loader_criteria,
)

from sqla_shard import blob_field, Cluster, exc, ObjectMixin, ObjectRef, ShardedId
from sqla_shard.testing import sqlite_topology

NOON = datetime(2024, 5, 6, 12, tzinfo=UTC)


class Base(DeclarativeBase):
    pass


class Owner(ObjectRef):
    """Of an application that takes texts, too."""

    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Any) -> Any:
        return super().process_bind_param(value and int(value), dialect)


class Category(ObjectMixin, Base, type_id=1):
    """A nested set, with words of the calendar."""

    __tablename__ = "categories"
    left: Mapped[int]
    right: Mapped[int]
    date: Mapped[str | None] = mapped_column(String(40))
    owner_id: Mapped[int | None] = mapped_column(Owner(1))
    at: Mapped[datetime] = blob_field(default=NOON)
    pk = synonym("id")


class Profile(Base):
    __tablename__ = "profiles"
    user_id: Mapped[int] = mapped_column(
        ShardedId(1), ForeignKey("categories.local_id"), primary_key=True
    )


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster.from_topology(sqlite_topology(tmp_path, 2, 4)) as cluster:
        cluster.create_all(Base.metadata)
        yield cluster


@pytest.fixture
def ident(cluster: Cluster) -> int:
    with cluster.begin(shard_id=1) as session:
        session.add(one := Category(left=1, right=6))
        session.flush()
        session.add(Profile(user_id=one.id))
        return one.id


def test_names_of_functions(cluster: Cluster, ident: int) -> None:
    at = {"shard_id": 1}
    with cluster.begin() as session:
        inner = select(Category.right - Category.left).where(
            Category.left <= 1, Category.right.between(5, 7)
        )
        assert session.scalars(inner, bind_arguments=at).all() == [5]
        change = update(Category).values(date=func.coalesce(Category.date, "none"))
        session.execute(change, bind_arguments=at)
        assert session.get_one(Category, ident).date == "none"
        change = update(Category).values(date=Category.at)
        session.execute(change, bind_arguments=at)
        shown = func.coalesce(Category.date, "none")
        found = session.scalar(select(shown), bind_arguments=at)
        assert found.startswith("2024-05-06")


def test_names_of_keys(cluster: Cluster, ident: int) -> None:
    with cluster.session() as session:
        one = session.get(Category, ident)
        for name in "id", "pk":
            assert session.get(Category, {name: ident}) is one
        assert session.get(Profile, {"user_id": ident}).user_id == ident
        for cls, name in (Category, "left"), (Category, "local_id"), (Profile, "id"):
            with pytest.raises(exc.InvalidIdError):
                session.get(cls, {name: ident})
        one.owner_id = str(ident)
        session.commit()
        assert one.owner_id == ident


@pytest.mark.parametrize("is_option", [False, True])
@pytest.mark.parametrize("is_many", [False, True])
def test_a_row_that_criteria_hide_is_not_gone(
    cluster: Cluster, ident: int, is_many: bool, is_option: bool
) -> None:
    criteria = with_loader_criteria(Category, Category.left > 5)
    with cluster.session() as session:
        session.expire(one := session.get_one(Category, ident))
        options = [criteria] if is_option else []
        if not is_option:

            @event.listens_for(session, "do_orm_execute")
            def add(state: Any) -> None:
                if not (state.is_column_load or state.is_relationship_load):
                    state.statement = state.statement.options(criteria)

        if is_many:
            session.get_many(Category, [ident], options=options)
        else:
            session.get(Category, ident, options=options)
        one.right = 9
        session.commit()
    with cluster.session() as session:
        assert session.get_one(Category, ident).right == 9
