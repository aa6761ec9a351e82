"""Vectors on SQLite, whose distances are computed in Python."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from sqlalchemy import func, inspect, select, text

from sqla_shard import Cluster, scatter
from sqla_shard.exc import BlobValueError, UnsupportedStatementError
from sqla_shard.testing import sqlite_topology
from sqla_shard.types import Vector
from tests.models.vector_models import (
    Base,
    check_equal,
    check_nearest,
    euclidean,
    fill,
    NEAR,
    VectorNote,
)


@pytest.fixture
def cluster(tmp_path):
    with Cluster.from_topology(sqlite_topology(tmp_path, 2, 4)) as cluster:
        yield cluster


def test_the_nearest_of_all_shards(cluster):
    stored = fill(cluster, 4)
    check_nearest(cluster, stored)
    check_equal(cluster, stored)


@pytest.mark.parametrize(
    "compare",
    [
        lambda at: at < NEAR,
        lambda at: at.in_([NEAR]),
        lambda at: at.between(NEAR, NEAR),
        lambda at: at.like("x"),
        lambda at: at + 1,
        lambda at: at[0],
        lambda at: at.desc(),
    ],
)
def test_other_operators_are_refused(compare):
    with pytest.raises(UnsupportedStatementError, match="no such operator"):
        compare(VectorNote.at)


def test_different_vectors_are_counted(cluster):
    (key, *_) = fill(cluster, 1)
    number = func.count(VectorNote.at.distinct())
    with cluster.session() as session:
        assert session.scalar(select(number).where(VectorNote.id == key)) == 1


def test_a_generator_is_not_read_before_it_is_stored(cluster):
    (key, *_) = fill(cluster, 1)
    with cluster.begin() as session:
        session.get_one(VectorNote, key).at = map(float, NEAR)
    with cluster.session() as session:
        assert session.get_one(VectorNote, key).at[1:] == NEAR[1:]


def test_a_stored_vector_of_another_length(cluster):
    (key, *_) = fill(cluster, 1)
    with cluster.begin() as session:
        short = text("UPDATE vector_notes SET at = zeroblob(8)")
        session.execute(short, bind_arguments={"shard_id": 0})
    with cluster.session() as session, pytest.raises(BlobValueError) as raised:
        session.get(VectorNote, key)
    assert "is stored: give Vector() the dimensions" in str(raised.value)
    assert raised.value.value == (0.0, 0.0)


def test_the_nearest_in_a_coroutine(cluster):
    pytest.importorskip("aiosqlite")
    stored = fill(cluster, 4)
    away = Vector.euclidean(VectorNote.at, NEAR)

    async def nearest():
        async with cluster.async_session() as session:
            notes = select(VectorNote).where(VectorNote.at.is_not(None))
            notes = notes.order_by(away).limit(1).options(scatter())
            found = (await session.scalars(notes)).one()
            return found.at

    assert asyncio.run(nearest()) == min(stored.values(), key=euclidean)


def test_no_vector(cluster):
    fill(cluster, 1)
    with cluster.session() as session:
        nothing = select(VectorNote).where(VectorNote.at.is_(None))
        assert [n.at for n in session.scalars(nothing.options(scatter()))] == [None]


def test_the_column_is_found_again(cluster):
    cluster.create_all(Base.metadata)
    with cluster.session() as session:
        connection = session.connection(bind_arguments={"shard_id": 0})
        (found,) = (
            column["type"]
            for column in inspect(connection).get_columns("vector_notes")
            if column["name"] == "at"
        )
    assert (type(found), found.dimensions) == (Vector, 3)


@pytest.mark.parametrize("dimensions", [0, -1, None, "3", 3.5])
def test_other_dimensions_are_refused(dimensions):
    with pytest.raises(ValueError, match="number of dimensions"):
        Vector(dimensions)


def test_a_vector_of_another_column(cluster):
    stored = fill(cluster, 4)
    with cluster.session() as session:
        away = Vector.cosine(VectorNote.at, VectorNote.at)
        found = select(away).where(VectorNote.id == min(stored))
        assert session.scalar(found) == pytest.approx(0)


def test_nothing_and_the_vector_zero_have_no_direction(cluster):
    fill(cluster, 1)
    with cluster.session() as session:
        away = select(Vector.cosine(VectorNote.at, (0, 0, 0)))
        assert set(session.scalars(away.options(scatter()))) == {None}


@pytest.mark.parametrize(
    "value",
    [
        *((1, 2), (1, 2, 3, 4), (1, 2, "3"), 7, (1, 2, float("nan")), (1, 2, 1e300)),
        *(b"abc", {1, 2, 3}, {1: 2, 2: 3, 3: 4}),
        # Its address would be another one in each process of pytest-xdist.
        pytest.param(map(float, ("nan", "0", "1")), id="map"),
    ],
    ids=str,
)
def test_other_values_are_refused(cluster, value: Any):
    cluster.create_all(Base.metadata)
    with cluster.session() as session, pytest.raises(BlobValueError) as raised:
        session.scalars(
            select(VectorNote)
            .order_by(Vector.euclidean(VectorNote.at, value))
            .options(scatter())
        )
    assert raised.value.value is value
