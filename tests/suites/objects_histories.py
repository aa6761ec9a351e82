"""Histories of sessions at one row, compared with plain SQLAlchemy.

Each random history runs twice, step by step: on an object class, and on an
ordinary class with columns in one database of the same kind.  Both have a
``version_id_col`` and validators.  Whatever a step shows of the one, it shows
of the other: stale writes, versions, values, and what validators are called
with.
"""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
from hypothesis import given, HealthCheck, Phase, settings, strategies as st
from sqlalchemy import Engine, JSON, String
from sqlalchemy.ext.mutable import MutableList
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, Session, validates
from sqlalchemy.orm.exc import ObjectDeletedError, StaleDataError

from sqla_shard import blob_field, Cluster, ObjectMixin
from sqla_shard.models import blob_writes, field_declarations
from tests.models.clusters import plain_engine
from tests.models.objects_harness import remove_raw, stored, Suite

_SHOWN = ("title", "note", "tags", "label", "version")


class HistoryBase(DeclarativeBase):
    pass


class PlainBase(DeclarativeBase):
    pass


class Validated:
    """Notes what its validator is called with."""

    calls: ClassVar[list[Any]] = []

    @validates("title", "note", "tags", "label")
    def _check(self, key: str, value: Any) -> Any:
        self.calls.append((key, value))
        if value == "bad":
            raise ValueError(value)
        return value.strip() if isinstance(value, str) else value


class _Object(Validated, ObjectMixin, HistoryBase):
    __abstract__ = True

    title: Mapped[str] = blob_field(default="")
    note: Mapped[str | None] = blob_field(default=None)
    tags: Mapped[list[str]] = blob_field(default_factory=list)
    label: Mapped[str | None] = mapped_column(String(9), active_history=True)


class _Plain(Validated, PlainBase):
    __abstract__ = True

    id: Mapped[int] = mapped_column(primary_key=True)
    title: Mapped[str] = mapped_column(String(9), default="", active_history=True)
    note: Mapped[str | None] = mapped_column(String(9), active_history=True)
    tags: Mapped[list[str]] = mapped_column(
        MutableList.as_mutable(JSON), default=list, active_history=True
    )
    label: Mapped[str | None] = mapped_column(String(9), active_history=True)


def _next(version: str | None) -> str:
    return f"v{int((version or 'v0')[1:]) + 1}"


class Counted(_Object, type_id=41):
    __tablename__ = "counted_histories"

    version: Mapped[int] = mapped_column("row_version")
    __mapper_args__: ClassVar[dict[str, Any]] = {"version_id_col": version}


class PlainCounted(_Plain):
    __tablename__ = "counted"

    version: Mapped[int] = mapped_column("row_version")
    __mapper_args__: ClassVar[dict[str, Any]] = {"version_id_col": version}


class Named(_Object, type_id=42):
    __tablename__ = "named_histories"

    version: Mapped[str] = mapped_column(String(9))
    __mapper_args__: ClassVar[dict[str, Any]] = {
        "version_id_col": version,
        "version_id_generator": _next,
    }


class PlainNamed(_Plain):
    __tablename__ = "named"

    version: Mapped[str] = mapped_column(String(9))
    __mapper_args__: ClassVar[dict[str, Any]] = {
        "version_id_col": version,
        "version_id_generator": _next,
    }


class Manual(_Object, type_id=43):
    __tablename__ = "manual_histories"

    version: Mapped[int] = mapped_column(default=1, active_history=True)
    __mapper_args__: ClassVar[dict[str, Any]] = {
        "version_id_col": version,
        "version_id_generator": False,
    }


class PlainManual(_Plain):
    __tablename__ = "manual"

    version: Mapped[int] = mapped_column(default=1, active_history=True)
    __mapper_args__: ClassVar[dict[str, Any]] = {
        "version_id_col": version,
        "version_id_generator": False,
    }


TWINS: list[tuple[Any, Any]] = [
    (Counted, PlainCounted),
    (Named, PlainNamed),
    (Manual, PlainManual),
]

_CHANGES = ("title", "note", "tags", "label", "append", "both", "bad", "same", "none")
STEPS = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.sampled_from(
            [*_CHANGES, *["flush", "commit", "commit", "commit", "rollback"], "delete"]
        ),
        st.integers(0, 2),
    ),
    min_size=4,
    max_size=40,
)


class Side:
    """One of three sessions, at an object or at its plain twin."""

    def __init__(self, session: Session, cls: Any, key: int) -> None:
        self.session = session
        self.cls = cls
        self.key = key
        self.held: Any = None

    def change(self, action: str, number: int) -> Any:
        """Change the object.

        :returns: the observed state.
        """
        self.held = self.session.get(self.cls, self.key)
        if self.held is None:
            return "gone"
        if action == "delete":
            self.session.delete(self.held)
            return "deleted"
        Validated.calls.clear()
        try:
            _change(self.held, action, number)
        except ValueError:
            return "refused", list(Validated.calls)
        if self.cls in (Manual, PlainManual):
            self.held.version += 1
        return list(Validated.calls)

    @property
    def would_write(self) -> bool:
        """Whether a flush has something to send."""
        session = self.session
        return bool(session.deleted) or any(map(session.is_modified, session))

    def end(self, action: str) -> str:
        """Flush, commit or roll back."""
        try:
            getattr(self.session, action)()
        except StaleDataError:
            self.session.rollback()
            return "stale"
        return "done"

    def shown(self) -> Any:
        """Return the state of the object in its session."""
        if self.held is None or self.held not in self.session:
            return None
        try:
            values = [getattr(self.held, name) for name in _SHOWN]
        except ObjectDeletedError:
            return "gone"
        return [[*v] if isinstance(v, list) else v for v in values]


def _change(found: Any, action: str, number: int) -> None:
    if action == "append":
        found.tags.append(str(number))
    elif action == "tags":
        # Never what it was before append(): plain SQLAlchemy would write it
        # again, and blobs are compared.
        first = int(found.tags[0]) if found.tags else 0
        found.tags = [*found.tags] if number == 1 else [str(first + number + 1)]
    elif action == "both":
        found.title = found.label = str(number)
    elif action == "bad":
        found.title = "bad"
    elif action == "same":
        found.title = f" {found.title} "
    elif action == "none":
        found.note = None
    else:
        setattr(found, action, str(number))


def run_history(
    cluster: Cluster,
    engine: Engine,
    twins: tuple[Any, Any],
    steps: list[tuple[int, str, int]],
    expires: bool,
) -> list[str]:
    """Run a history on both sides, and compare them after each step.

    :returns: how its flushes, commits and rollbacks have ended.
    """
    ours, plain = twins
    key = stored(cluster, ours, shard_id=1)
    with Session(engine) as session:
        session.add(twin := plain())
        session.commit()
        twin_key = twin.id
    options = {"expire_on_commit": expires, "autoflush": False}
    pairs = [
        (
            Side(cluster.session(**options), ours, key),
            Side(Session(engine, **options), plain, twin_key),
        )
        for _ in range(3)
    ]
    try:
        return _compare(pairs, steps)
    finally:
        for pair in pairs:
            for side in pair:
                side.session.close()
        remove_raw(cluster, ours, key)


def _compare(
    pairs: list[tuple[Side, Side]], steps: list[tuple[int, str, int]]
) -> list[str]:
    holder: int | None = None
    ended = []
    for index, action, number in steps:
        mine, theirs = pairs[index]
        if action in (*_CHANGES, "delete"):
            assert mine.change(action, number) == theirs.change(action, number)
        else:
            if action != "rollback":
                if holder not in (None, index):
                    continue  # it would wait for the lock, for ever here
                if theirs.would_write:
                    holder = index
            done = theirs.end(action)
            assert mine.end(action) == done
            ended.append(done)
            if holder == index and (action != "flush" or done == "stale"):
                holder = None
        assert mine.shown() == theirs.shown()
    for pair in pairs:
        for side in pair:
            side.session.rollback()
    mine, theirs = pairs[0]
    for side in (mine, theirs):
        side.held = side.session.get(side.cls, side.key)
    assert mine.shown() == theirs.shown()
    return ended


class HistorySuite(Suite):
    metadata = HistoryBase.metadata

    @pytest.fixture(scope="class")
    @classmethod
    def engine(cls, plain_engine: Engine) -> Engine:
        PlainBase.metadata.create_all(plain_engine)
        return plain_engine

    @given(st.sampled_from(TWINS), STEPS, st.booleans())
    @settings(
        suppress_health_check=[
            HealthCheck.function_scoped_fixture,
            # The suite runs on several kinds of servers.
            HealthCheck.differing_executors,
            HealthCheck.too_slow,
        ]
    )
    def test_as_plain_sqlalchemy(self, cluster, engine, twins, steps, expires):
        run_history(cluster, engine, twins, steps, expires)

    @pytest.mark.parametrize("twins", TWINS, ids=lambda t: t[0].__name__)
    def test_a_stale_write_of_each_kind(self, cluster, engine, twins):
        """Whatever the two sessions change."""
        for mine in _CHANGES[:6]:
            for other in ("title", "label", "append"):
                steps = [
                    *[(0, "title", 1), (0, "commit", 0), (1, "title", 1)],
                    *[(1, "rollback", 0), (0, mine, 2), (1, other, 2)],
                    *[(1, "commit", 0), (0, "commit", 0), (0, mine, 0)],
                    (0, "commit", 0),
                ]
                ended = run_history(cluster, engine, twins, steps, False)
                assert ended == ["done", "done", "done", "stale", "done"]

    @pytest.mark.parametrize("fault", ["version", "validator"])
    def test_negative_control(self, cluster, engine, monkeypatch, fault):
        """A session without a check differs from plain SQLAlchemy."""
        if fault == "version":
            made = blob_writes._Statements

            def without(mapper: Any, *, versioned: bool) -> Any:
                return made(mapper, versioned=False)

            monkeypatch.setattr(blob_writes, "_Statements", without)
            for ours, _ in TWINS:
                monkeypatch.setitem(ours.__table__.info, blob_writes._INFO, {})
        else:

            def unchecked(impl: Any, state: Any, *args: Any) -> Any:
                return args[1]

            monkeypatch.setattr(
                field_declarations._FieldImpl, "fire_replace_event", unchecked
            )

        @given(st.sampled_from(TWINS), STEPS, st.booleans())
        @settings(
            max_examples=300,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=[HealthCheck.too_slow],
        )
        def histories(twins: Any, steps: Any, expires: bool) -> None:
            run_history(cluster, engine, twins, steps, expires)

        with pytest.raises(AssertionError):
            histories()


plain_engine = plain_engine()
