"""Histories of objects that are read again, compared with plain SQLAlchemy.

Each random history runs twice, step by step: on an object class with fields
and columns, and on an ordinary class with columns alone.  It changes two
objects, reads them again in each way that a session has, and sets and
releases savepoints.  After each step the objects show the same values, and
the rows contain the same.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from sqlalchemy import delete, Engine, event, inspect, JSON, select, String
from sqlalchemy.ext.mutable import MutableList
from sqlalchemy.orm import composite, DeclarativeBase, Mapped, mapped_column, Session

from sqla_shard import blob_field, ObjectMixin
from sqla_shard.exc import BlobError
from tests.models.clusters import plain_engine
from tests.models.objects_harness import stored, Suite

_FIELDS = ("title", "note", "tags")
_COLUMNS = ("label", "place")
_NAMES = (*_FIELDS, *_COLUMNS)
_OBJECTS = 2
#: How many times as many histories in a run of hours.
_MANY = 60 if os.environ.get("SQLA_SHARD_SOAK") == "1" else 1


class RefreshBase(DeclarativeBase):
    pass


class PlainBase(DeclarativeBase):
    pass


class Sheet(ObjectMixin, RefreshBase, type_id=44):
    __tablename__ = "refreshed"

    title: Mapped[str] = blob_field(default="")
    note: Mapped[str | None] = blob_field(default=None, aliases=("remark",))
    tags: Mapped[list[str]] = blob_field(default_factory=list)
    label: Mapped[str | None] = mapped_column(String(9))
    place: Mapped[str | None] = mapped_column(String(9))


@dataclass
class Point:
    x: int | None
    y: int | None


class Spot(ObjectMixin, RefreshBase, type_id=45):
    __tablename__ = "spots"

    point: Mapped[Point] = composite(mapped_column("x"), mapped_column("y"))


class PlainSheet(PlainBase):
    __tablename__ = "refreshed"

    id: Mapped[int] = mapped_column(primary_key=True)
    # Reading a field before it is assigned is what a document needs.
    title: Mapped[str] = mapped_column(String(9), default="", active_history=True)
    note: Mapped[str | None] = mapped_column(String(9), active_history=True)
    tags: Mapped[list[str]] = mapped_column(
        MutableList.as_mutable(JSON), default=list, active_history=True
    )
    label: Mapped[str | None] = mapped_column(String(9))
    place: Mapped[str | None] = mapped_column(String(9))


class Side:
    """A session at the objects, or at their twins."""

    def __init__(self, opened: Callable[[], Any], cls: Any, keys: list[int]) -> None:
        self.opened = opened
        self.session: Any = opened()
        self.cls = cls
        self.keys = keys
        self.held = [self.session.get(cls, key) for key in keys]

    def change(self, which: int, name: str, value: str) -> None:
        if name == "append":
            self.held[which].tags.append(value)
        elif name == "tags":
            self.held[which].tags = [value]
        else:
            setattr(self.held[which], name, value)

    def refresh(self, which: int, names: Any, flushes: bool) -> None:
        self._again(self.session.refresh, which, names, flushes)

    def expire(self, which: int, names: Any, flushes: bool) -> None:
        if names and not set(names).isdisjoint(_FIELDS):
            # A document is read as a whole.
            names = {*names, *_FIELDS} if self.cls is PlainSheet else names
        self._again(self.session.expire, which, names, flushes)

    def _again(self, how: Any, which: int, names: Any, flushes: bool) -> None:
        before = self.session.autoflush
        self.session.autoflush = before and flushes
        try:
            how(self.held[which], names)
        finally:
            self.session.autoflush = before

    def expire_all(self) -> None:
        self.session.expire_all()

    def select(self, which: int) -> None:
        found = self.session.scalars(
            select(self.cls).where(self.cls.id == self.keys[which]),
            execution_options={"populate_existing": True},
        ).one()
        assert found is self.held[which]

    def get(self, which: int) -> None:
        found = self.session.get(self.cls, self.keys[which], populate_existing=True)
        assert found is self.held[which]

    def lock(self, which: int) -> None:
        self.session.get(self.cls, self.keys[which], with_for_update=True)

    def merge(self, which: int, names: list[str], value: str) -> None:
        values: dict[str, Any] = dict.fromkeys(names, value)
        if "tags" in values:
            values["tags"] = [value, value]
        new = self.cls(id=self.keys[which], **values)
        assert self.session.merge(new) is self.held[which]

    def begin_nested(self) -> None:
        self.session.begin_nested()

    def release(self) -> None:
        nested = self.session.get_nested_transaction()
        if nested is not None:
            nested.commit()

    def undo(self) -> None:
        nested = self.session.get_nested_transaction()
        if nested is not None:
            nested.rollback()

    def flush(self) -> None:
        self.session.flush()

    def commit(self) -> None:
        self.session.commit()

    def rollback(self) -> None:
        self.session.rollback()

    def elsewhere(self, which: int, name: str, value: str) -> None:
        """Change the row in another session, after a COMMIT in this one."""
        self.session.commit()
        with self.opened() as other:
            found = other.get(self.cls, self.keys[which])
            setattr(found, name, [value] if name == "tags" else value)
            other.commit()

    def rows(self) -> Any:
        """Return what the session has written, without flushing it."""
        cls = self.cls
        columns = cls.id, cls.title, cls.note, cls.label, cls.place
        with self.session.no_autoflush:
            found = self.session.execute(select(*columns).where(cls.id.in_(self.keys)))
            by_key = {row[0]: tuple(row[1:]) for row in found}
        return [by_key[key] for key in self.keys]

    def shown(self) -> Any:
        with self.session.no_autoflush:
            values = [[getattr(o, n) for n in _NAMES] for o in self.held]
        return [[[*v] if isinstance(v, list) else v for v in o] for o in values]


def _step(rng: random.Random) -> tuple[str, tuple[Any, ...]]:
    which = rng.randrange(_OBJECTS)
    value = str(rng.randrange(1000))
    names = rng.sample(_NAMES, rng.randint(1, 3))
    action = rng.choice(_ACTIONS)
    arguments: tuple[Any, ...] = ()
    if action == "change":
        arguments = which, rng.choice((*_NAMES, "append")), value
    elif action in ("refresh", "expire"):
        some = rng.choice((names, names, names, None))
        arguments = which, some, rng.random() < 0.7
    elif action in ("select", "get", "lock"):
        arguments = (which,)
    elif action == "merge":
        arguments = which, names, value
    elif action == "elsewhere":
        arguments = which, rng.choice(_NAMES), value
    return action, arguments


_ACTIONS = (
    *["change"] * 12,
    *["refresh"] * 6,
    *["expire"] * 3,
    *["select", "get", "get", "lock", "merge", "merge", "expire_all"],
    *["begin_nested", "begin_nested", "release", "undo", "undo"],
    *["flush", "commit", "rollback", "elsewhere"],
)


def _leave_transactions_alone(connection: Any, record: Any) -> None:
    connection.isolation_level = None


def _begin(connection: Any) -> None:
    connection.exec_driver_sql("BEGIN")


class RefreshSuite(Suite):
    metadata = RefreshBase.metadata
    #: The number of histories, and of the steps of each.
    histories = 12
    steps = 40

    @pytest.fixture(scope="class")
    @classmethod
    def engine(cls, plain_engine: Engine) -> Engine:
        if plain_engine.dialect.name == "sqlite":
            # The driver would not begin a transaction before a savepoint.
            event.listen(plain_engine, "connect", _leave_transactions_alone)
            event.listen(plain_engine, "begin", _begin)
        PlainBase.metadata.create_all(plain_engine)
        return plain_engine

    def test_histories(self, cluster, engine, rng):
        ended: Counter[str] = Counter()
        for _ in range(self.histories * _MANY):
            self._compare(cluster, engine, rng.randrange(1 << 48), ended)
        assert ended.keys() >= {*_ACTIONS}, ended

    def _compare(self, cluster, engine, seed, ended):
        rng = random.Random(seed)
        keys = [stored(cluster, Sheet, shard_id=1) for _ in range(_OBJECTS)]
        with Session(engine) as session:
            twins = [PlainSheet() for _ in range(_OBJECTS)]
            session.add_all(twins)
            session.commit()
            twin_keys = [twin.id for twin in twins]
        autoflush = rng.random() < 0.8
        ours = Side(lambda: cluster.session(autoflush=autoflush), Sheet, keys)
        plain = Side(
            lambda: Session(engine, autoflush=autoflush), PlainSheet, twin_keys
        )
        try:
            history = []
            for _ in range(self.steps):
                action, arguments = _step(rng)
                history.append((action, *arguments))
                where = f"seed {seed}: {history}"
                ended[action] += 1
                try:
                    getattr(ours, action)(*arguments)
                except BlobError:
                    # Of several changed fields one cannot be read alone.
                    assert action in ("refresh", "expire"), where
                    ended["refused"] += 1
                    continue
                getattr(plain, action)(*arguments)
                assert ours.rows() == plain.rows(), where
                if rng.random() < 0.8:
                    assert ours.shown() == plain.shown(), where
            for side in (ours, plain):
                side.session.commit()
            assert ours.shown() == plain.shown(), where
        finally:
            for side in (ours, plain):
                side.session.close()

    def test_a_flush_reads_no_columns_of_composites(self, cluster):
        """They may be columns that raise if they are read."""
        key = stored(cluster, Spot, point=Point(1, 2))
        with cluster.session() as session:
            spot = session.get(Spot, key)
            session.expire(spot, ["x"])
            spot.y = 3
            session.flush()
            assert "x" in inspect(spot).unloaded

    @pytest.mark.parametrize("many", [False, True])
    def test_get_of_a_row_that_is_gone(self, cluster, many):
        """The object leaves the session, which else would write it later."""
        key = stored(cluster, Sheet)
        with cluster.session() as session:
            sheet = session.get(Sheet, key)
            session.execute(delete(Sheet.__table__).where(Sheet.id == key))
            session.expire(sheet)
            if many:
                assert session.get_many(Sheet, [key]) == [None]
            else:
                assert session.get(Sheet, key) is None
            assert inspect(sheet).deleted
            sheet.label = "x"
            session.commit()


plain_engine = plain_engine()
