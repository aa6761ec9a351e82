"""Random statements: MariaDB shards against one database of MariaDB."""

from __future__ import annotations

import pytest
from pymysql.err import OperationalError
from sqlalchemy import create_engine
from sqlalchemy import make_url

from tests.shared.clusters import on_mariadb
from tests.shared.differential import comparison
from tests.shared.differential import Differential

pytestmark = pytest.mark.live

# Some of the statements have a cartesian product, and mean it.
_OPTIONS = {"enable_from_linting": False}
cluster = on_mariadb("differential", engine_options=_OPTIONS)
compared = comparison()


@pytest.fixture(scope="module")
def plain_engine(mariadb_fleet):
    server = mariadb_fleet.servers[0]
    name = "main_plain"
    with server.connect(autocommit=True) as connection:
        cursor = connection.cursor()
        cursor.execute(f"DROP DATABASE IF EXISTS {name}")
        cursor.execute(f"CREATE DATABASE {name} COLLATE utf8mb4_bin")
    url = make_url(server.url).set(drivername="mysql+pymysql", database=name)
    # Of some statements MariaDB's optimizer never makes an end, and KILL does
    # not help: they are left alone.
    engine = create_engine(url, connect_args={"read_timeout": 10}, **_OPTIONS)
    yield engine
    engine.dispose()
    try:
        _drop(server, name)
    except OperationalError:
        # Such a statement still holds its tables.
        server.kill()
        server.restart()
        _drop(server, name)


def _drop(server, name):
    with server.connect(autocommit=True) as connection:
        cursor = connection.cursor()
        cursor.execute("SET lock_wait_timeout = 5")
        cursor.execute(f"DROP DATABASE {name}")


class TestDifferential(Differential):
    selects = 300
    changes = 60
