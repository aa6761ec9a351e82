"""Empty databases for autogenerate: SQLite files, or those of a fleet."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.engine import make_url
from sqlalchemy.pool import NullPool

from sqla_shard.dialects import backend_for
from sqla_shard.testing.server_fleet import ServerFleet


def databases_on_sqlite() -> Any:
    """Return a fixture: a function that returns an engine of a new one."""

    @pytest.fixture
    def database(tmp_path: Path) -> Any:
        numbers = count()

        def make() -> Any:
            path = tmp_path / f"db{next(numbers)}.sqlite"
            return create_engine(f"sqlite:///{path}", poolclass=NullPool)

        return make

    return database


def databases_on_servers(start: str) -> Any:
    """Return a fixture: a function that returns an engine of a new one.

    :param start: of the names of the databases.
    """

    @pytest.fixture
    def database(fleet: ServerFleet[Any]) -> Iterator[Any]:
        document = fleet.topology_mapping()
        (server, *_) = document["keyspaces"]["objects"]["servers"]
        url = make_url(server["primary"]).set(drivername="mysql+pymysql")
        # Without TLS, which would read all certificates for each connection.
        url = url.update_query_dict({"ssl_disabled": "true"})
        backend = backend_for("mysql", driver="mysql+pymysql")
        engine = create_engine(url, poolclass=NullPool)
        names = []
        numbers = count()

        def make() -> Any:
            name = f"{start}{next(numbers)}"
            names.append(name)
            with engine.begin() as connection:
                connection.execute(text(f"DROP DATABASE IF EXISTS {name}"))
                backend.create_database(connection, name)
            return create_engine(url.set(database=name), poolclass=NullPool)

        yield make
        with engine.begin() as connection:
            for name in names:
                connection.execute(text(f"DROP DATABASE {name}"))

    return database
