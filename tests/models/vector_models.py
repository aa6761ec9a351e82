"""Notes with vectors, and those that are nearest to one."""

from __future__ import annotations

import math
from typing import Any

from sqlalchemy import bindparam, select, update
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sqla_shard import Cluster, ObjectMixin, scatter
from sqla_shard.types import Vector

#: Near 0.1, which single precision does not have.
NEAR = (0.1, 2.0, -1.0)


class Base(DeclarativeBase):
    pass


class VectorNote(ObjectMixin, Base, type_id=1):
    __tablename__ = "vector_notes"
    at: Mapped[tuple[float, ...] | None] = mapped_column(Vector(3))


def fill(cluster: Cluster, shards: int) -> dict[int, tuple[float, ...]]:
    """Store vectors of unlike distances on each shard, and none."""
    cluster.create_all(Base.metadata)
    stored = {}
    for shard_id in range(shards):
        with cluster.begin() as session:
            session.add(VectorNote(shard_id=shard_id))
            for n in range(3):
                at = (float(shard_id**2), n / 4 + shard_id, 1.0)
                note = VectorNote(at=at, shard_id=shard_id)
                session.add(note)
                session.flush()
                stored[note.id] = at
    return stored


def euclidean(one: Any) -> float:
    return math.dist(one, NEAR)


def cosine(one: Any) -> float:
    product = sum(a * b for a, b in zip(one, NEAR, strict=True))
    return 1 - product / math.hypot(*one) / math.hypot(*NEAR)


def check_equal(cluster: Cluster, stored: dict[int, tuple[float, ...]]) -> None:
    """Find a vector by its numbers, over all shards; write none that is equal."""
    key, at = next(iter(stored.items()))
    ids = select(VectorNote.id).options(scatter())
    with cluster.begin() as session:
        assert session.scalars(ids.where(VectorNote.at == list(at))).all() == [key]
        bound = ids.where(VectorNote.at == bindparam("given"))
        assert session.scalars(bound, {"given": list(at)}).all() == [key]
        others = session.scalars(ids.where(VectorNote.at != at)).all()
        assert {*others, key} == {*stored}
        unlike = session.scalars(ids.where(VectorNote.at.is_distinct_from(at))).all()
        assert len(unlike) > len(others)
        note = session.get_one(VectorNote, key)
        note.at = list(at)
        assert session.is_modified(note) is False
        moved = update(VectorNote).where(VectorNote.id == key, VectorNote.at == at)
        session.execute(moved.values(at=NEAR))
        session.refresh(note)
        # As the column has it, in single precision.
        stored_near = note.at
        note.at = NEAR
        assert stored_near != NEAR
        assert session.is_modified(note) is False


def check_nearest(cluster: Cluster, stored: dict[int, tuple[float, ...]]) -> None:
    """Compare the nearest of all shards with those that Python finds."""
    with cluster.session() as session:
        notes = session.get_many(VectorNote, list(stored))
        assert {note.id: note.at for note in notes} == stored
        for sql, in_python in ((Vector.euclidean, euclidean), (Vector.cosine, cosine)):
            away = sql(VectorNote.at, NEAR)
            nearest = (
                select(VectorNote.id, away)
                .where(VectorNote.at.is_not(None))
                .order_by(away, VectorNote.id)
            )
            rows = session.execute(nearest.limit(5).options(scatter())).all()
            expected = sorted(stored, key=lambda one: in_python(stored[one]))
            assert [row[0] for row in rows] == expected[:5]
            for note_id, distance in rows:
                assert math.isclose(distance, in_python(stored[note_id]), rel_tol=1e-5)
            by = select(VectorNote).where(VectorNote.at.is_not(None))
            by = by.order_by(away, VectorNote.id)
            page = session.scatter_page(by, 4)
            page = session.scatter_page(by, 4, after=page.next)
            assert [note.id for note in page] == expected[4:8]
