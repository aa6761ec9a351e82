"""Models and fixtures of the tests of the Flask extension.

A test module takes the fixtures::

    app, cluster, db, board_id = flask_fixtures()
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from flask import Flask
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sqla_shard import blob_field, Cluster, ObjectMixin, ShardSession
from sqla_shard.ext.flask import FlaskCluster
from sqla_shard.testing import sqlite_topology

BOARD = 2


class Base(DeclarativeBase):
    pass


class Board(ObjectMixin, Base, type_id=BOARD):
    __tablename__ = "boards"
    title: Mapped[str] = blob_field()


class Setting(Base):
    __tablename__ = "settings"
    id: Mapped[int] = mapped_column(primary_key=True)


def add_board(session: ShardSession, shard_id: int) -> int:
    board = Board(title="Boats", shard_id=shard_id)
    session.add(board)
    session.flush()
    return board.id


def title_of(cluster: Cluster, board_id: int) -> Any:
    with cluster.session() as session:
        board = session.get(Board, board_id)
        return board and board.title


def busy(cluster: Cluster) -> int:
    """Return how many connections are in use."""
    return sum(stats.busy for stats in cluster.stats())


def flask_fixtures() -> tuple[Any, Any, Any, Any]:
    """Return ``app``, ``cluster``, ``db`` and ``board_id``."""

    @pytest.fixture
    def cluster(tmp_path: Path) -> Iterator[Cluster]:
        topology = sqlite_topology(tmp_path, servers=2, shards=4, main=True)
        with Cluster.from_topology(topology) as cluster:
            cluster.create_all(Base.metadata)
            yield cluster

    @pytest.fixture
    def app() -> Iterator[Flask]:
        """Return an application that is not set up; close what it opens."""
        app = Flask("shop")
        app.testing = True
        yield app
        extension = app.extensions.get("sqla_shard")
        if extension is not None:
            with app.app_context():
                extension.cluster.close()

    @pytest.fixture
    def db(app: Flask, cluster: Cluster) -> FlaskCluster:
        return FlaskCluster(app, cluster, metadata=Base.metadata)

    @pytest.fixture
    def board_id(cluster: Cluster) -> int:
        return cluster.run(add_board, 3)

    return app, cluster, db, board_id
