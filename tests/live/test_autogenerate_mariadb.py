"""Revisions are generated, run and compared on MariaDB."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
from sqlalchemy import create_engine
from sqlalchemy import text
from sqlalchemy.engine import make_url
from sqlalchemy.pool import NullPool

from sqla_shard.dialects import backend_for
from sqla_shard.testing import MariaDBFleet
from tests.shared.autogenerating import CHANGES
from tests.shared.autogenerating import Finding
from tests.shared.autogenerating import Generating
from tests.shared.autogenerating import SERVER_CHANGES

pytestmark = pytest.mark.live


@pytest.fixture
def database(mariadb_fleet: MariaDBFleet) -> Iterator[Any]:
    document = mariadb_fleet.topology_mapping()
    (server, *_) = document["keyspaces"]["objects"]["servers"]
    url = make_url(server["primary"]).set(drivername="mysql+pymysql")
    # Without TLS, which would read all certificates for each connection.
    url = url.update_query_dict({"ssl_disabled": "true"})
    backend = backend_for("mysql", driver="mysql+pymysql")
    engine = create_engine(url, poolclass=NullPool)
    names = []
    numbers = count()

    def make() -> Any:
        name = f"db_autogenerate{next(numbers)}"
        names.append(name)
        with engine.begin() as connection:
            connection.execute(text(f"DROP DATABASE IF EXISTS {name}"))
            backend.create_database(connection, name)
        return create_engine(url.set(database=name), poolclass=NullPool)

    yield make
    with engine.begin() as connection:
        for name in names:
            connection.execute(text(f"DROP DATABASE {name}"))


class TestGenerating(Generating):
    pass


class TestFinding(Finding):
    changes = CHANGES + SERVER_CHANGES
