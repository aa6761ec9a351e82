"""Merged answers: MariaDB shards against one database of MariaDB."""

from __future__ import annotations

import pytest
from sqlalchemy import create_engine
from sqlalchemy import make_url

from tests.shared.clusters import on_mariadb
from tests.shared.merged import compared_rows
from tests.shared.merged import MergedDifferential
from tests.shared.merged_computed import MergedComputed
from tests.shared.merged_corners import MergedCorners
from tests.shared.merged_numbers import compared_numbers
from tests.shared.merged_numbers import MergedNumbers
from tests.shared.merged_pages import MergedPages
from tests.shared.web_forms import WebForms

pytestmark = pytest.mark.live

cluster = on_mariadb("merged")
compared = compared_rows()
numbers = compared_numbers()


@pytest.fixture(scope="module")
def plain_engine(mariadb_fleet):
    server = mariadb_fleet.servers[0]
    name = "main_plain_merged"
    with server.connect(autocommit=True) as connection:
        cursor = connection.cursor()
        cursor.execute(f"DROP DATABASE IF EXISTS {name}")
        cursor.execute(f"CREATE DATABASE {name} COLLATE utf8mb4_bin")
    url = make_url(server.url).set(drivername="mysql+pymysql", database=name)
    engine = create_engine(url)
    yield engine
    engine.dispose()
    with server.connect(autocommit=True) as connection:
        connection.cursor().execute(f"DROP DATABASE {name}")


class TestMergedDifferential(MergedDifferential):
    statements = 350


class TestMergedPages(MergedPages):
    pass


class TestMergedComputed(MergedComputed):
    pass


class TestMergedCorners(MergedCorners):
    pass


class TestWebForms(WebForms):
    pass


class TestMergedNumbers(MergedNumbers):
    pass
