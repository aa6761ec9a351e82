"""Marks and fences in a database of MariaDB."""

from __future__ import annotations

import pytest
from sqlalchemy import create_engine

from tests.suites import moving_rows
from tests.suites.moving_rows import posts  # noqa: F401  # a fixture

pytestmark = pytest.mark.live

NAME = "db_moving"


@pytest.fixture(scope="module")
def engine(mariadb_fleet):
    server = mariadb_fleet.servers[0]
    server.root_execute(f"DROP DATABASE IF EXISTS {NAME}")
    server.root_execute(f"CREATE DATABASE {NAME}")
    url = server.url.replace("mysql://", "mysql+pymysql://", 1)
    engine = create_engine(f"{url}/{NAME}")
    yield engine
    engine.dispose()
    server.root_execute(f"DROP DATABASE {NAME}")


class TestMarking(moving_rows.Marking):
    pass


class TestFencing(moving_rows.Fencing):
    pass
