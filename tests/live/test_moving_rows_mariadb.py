"""Marks and fences in a database of MariaDB."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
from sqlalchemy import create_engine

from tests.suites import moving_rows
from tests.suites.moving_rows import posts  # noqa: F401  # a fixture

pytestmark = pytest.mark.live


@contextmanager
def database(mariadb_fleet, name):
    server = mariadb_fleet.servers[0]
    server.root_execute(f"DROP DATABASE IF EXISTS {name}")
    server.root_execute(f"CREATE DATABASE {name}")
    url = server.url.replace("mysql://", "mysql+pymysql://", 1)
    engine = create_engine(f"{url}/{name}")
    yield engine
    engine.dispose()
    server.root_execute(f"DROP DATABASE {name}")


@pytest.fixture(scope="module")
def engine(mariadb_fleet):
    with database(mariadb_fleet, "db_moving") as found:
        yield found


class TestMarking(moving_rows.Marking):
    pass


class TestFencing(moving_rows.Fencing):
    pass


class TestMoving(moving_rows.Moving):
    @pytest.fixture
    def sides(self, engine, mariadb_fleet):
        with database(mariadb_fleet, "db_moved") as shards:
            yield {"legacy": engine, "shards": shards}
