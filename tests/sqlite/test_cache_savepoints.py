"""Sessions that read from the cache and have savepoints."""

from __future__ import annotations

import pytest

from sqla_shard import Cluster
from sqla_shard.testing import sqlite_topology
from tests.models.mapping_models import Base, Board


@pytest.fixture
def cluster(tmp_path):
    with Cluster.from_topology(sqlite_topology(tmp_path, 1, 4)) as cluster:
        cluster.create_all(Base.metadata)
        cluster.configure_cache(
            {"memory": {"backend": "dogpile.cache.memory"}},
            classes={Board: "memory"},
            prefix="test",
        )
        yield cluster


@pytest.fixture
def board_id(cluster):
    """A board that the cache has."""
    with cluster.begin(shard_id=1) as session:
        board = Board(title="Boats")
        session.add(board)
        session.flush()
        board_id = board.id
    with cluster.session() as session:
        session.get(Board, board_id)
    return board_id


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_objects_are_read_within_a_savepoint(cluster, board_id, end):
    hits = cluster.cache.stats()[0].hits
    with cluster.begin() as session:
        savepoint = session.begin_nested()
        board = session.get(Board, board_id)
        assert board.title == "Boats"
        getattr(savepoint, end)()
        assert session.get(Board, board_id).title == "Boats"
    assert cluster.cache.stats()[0].hits > hits


def test_writes_before_a_savepoint_that_is_rolled_back_stay(cluster, board_id):
    with cluster.begin() as session:
        board = session.get(Board, board_id)
        savepoint = session.begin_nested()
        board.title = "Ships"
        session.flush()
        savepoint.rollback()
        assert board.title == "Boats"
        board.title = "Yachts"
    with cluster.session() as session:
        assert session.get(Board, board_id).title == "Yachts"
