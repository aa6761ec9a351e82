"""The tables of lookups, on MariaDB."""

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
from tests.shared import lookup_tables
from tests.shared.lookup_models import lookups_on_mariadb
from tests.shared.lookup_models import Suite
from tests.shared.lookup_models import UserName

pytestmark = pytest.mark.live

cluster = lookups_on_mariadb("lktables")


@pytest.fixture
def database(mariadb_fleet: MariaDBFleet) -> Iterator[Any]:
    document = mariadb_fleet.topology_mapping()
    (server, *_) = document["keyspaces"]["objects"]["servers"]
    url = make_url(server["primary"]).set(drivername="mysql+pymysql")
    url = url.update_query_dict({"ssl_disabled": "true"})
    backend = backend_for("mysql", driver="mysql+pymysql")
    engine = create_engine(url, poolclass=NullPool)
    numbers = count()
    names = []

    def make() -> Any:
        name = f"db_lkgenerate{next(numbers)}"
        names.append(name)
        with engine.begin() as connection:
            connection.execute(text(f"DROP DATABASE IF EXISTS {name}"))
            backend.create_database(connection, name)
        return create_engine(url.set(database=name), poolclass=NullPool)

    yield make
    with engine.begin() as connection:
        for name in names:
            connection.execute(text(f"DROP DATABASE {name}"))


class TestGenerating(lookup_tables.Generating):
    pass


class TestDrifting(lookup_tables.Drifting):
    pass


class TestPlans(Suite):
    def test_keys_are_found_by_the_primary_key(self, cluster, mark):
        # As they are sent: in hexadecimal, in IN.
        with cluster.session() as session:
            shard_id = UserName.shard_of(session, mark)
            connection = session.connection(
                {"keyspace": "lookup", "shard_id": shard_id}
            )
            connection.exec_driver_sql(
                "INSERT INTO user_name (`key`, policy) VALUES (%s, 'exact/1')",
                [(f"k{i}".encode(),) for i in range(500)],
            )
            wanted = ", ".join(f"X'{f'k{i}'.encode().hex()}'" for i in (3, 4))
            (plan,) = connection.exec_driver_sql(
                "EXPLAIN SELECT user_id FROM user_name "
                f"WHERE `key` IN ({wanted})"
            ).mappings()
            assert plan["key"] == "PRIMARY"
            assert int(plan["rows"]) == 2
