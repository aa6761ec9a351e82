"""Vectors on MariaDB 11.8, which has distances, and on MySQL, which has none."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import create_engine, MetaData, select, Table

from sqla_shard import Cluster, scatter
from sqla_shard.exc import UnsupportedStatementError
from sqla_shard.testing.server_fleet import ServerFleet
from sqla_shard.types import Vector
from tests.models.vector_models import (
    check_equal,
    check_nearest,
    fill,
    NEAR,
    VectorNote,
)

pytestmark = pytest.mark.live
SHARDS = 4


@pytest.fixture(params=["pymysql", "mysqldb"])
def driver(request: pytest.FixtureRequest) -> str:
    if request.param == "mysqldb":
        request.getfixturevalue("mysqlclient_installed")
    return request.param


def opened(fleet: ServerFleet[Any], driver: str) -> Cluster:
    document = fleet.topology_mapping(shards=SHARDS, database="db_near{shard:05d}")
    fleet.drop_databases(document)
    fleet.create_databases(document)
    return Cluster.from_topology(document, driver=driver, environ=fleet.environ)


def dimensions(fleet: ServerFleet[Any]) -> int:
    """Return those of the column, as SQLAlchemy reads it from a server."""
    url = fleet.servers[0].url.replace("mysql://", "mysql+pymysql://", 1)
    engine = create_engine(f"{url}/db_near00000")
    try:
        table = Table("vector_notes", MetaData(), autoload_with=engine)
    finally:
        engine.dispose()
    return table.c.at.type.dimensions


def test_the_nearest_of_all_shards(mariadb11_fleet, driver):
    with opened(mariadb11_fleet, driver) as cluster:
        stored = fill(cluster, SHARDS)
        check_nearest(cluster, stored)
        check_equal(cluster, stored)
        assert dimensions(mariadb11_fleet) == 3


def test_mysql_keeps_vectors_and_has_no_distance(mysql_fleet, driver):
    with opened(mysql_fleet, driver) as cluster:
        stored = fill(cluster, SHARDS)
        assert dimensions(mysql_fleet) == 3
        with cluster.session() as session:
            notes = session.get_many(VectorNote, list(stored))
            assert {note.id: note.at for note in notes} == stored
            nearest = select(VectorNote).order_by(Vector.cosine(VectorNote.at, NEAR))
            with pytest.raises(UnsupportedStatementError, match="MariaDB 11"):
                session.scalars(nearest.limit(1).options(scatter()))
        check_equal(cluster, stored)
