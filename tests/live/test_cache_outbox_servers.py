"""Keys that could not be deleted from a cache, on servers."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import text

from sqla_shard import Cluster
from sqla_shard.schema import ledger
from sqla_shard.testing.server_fleet import ServerFleet
from tests.models.operation_models import operations_on_servers
from tests.suites import outbox

pytestmark = pytest.mark.live

DATABASE = "db_outbox_internal"

cluster = operations_on_servers("outbox")


TestOutbox = outbox.Outbox


def test_shards_of_earlier_releases_get_the_table(
    cluster: Cluster, fleet: ServerFleet[Any]
) -> None:
    """It is the one that create_all() makes."""
    server = fleet.servers[0]
    place = next(iter(dict(cluster.places.servers()).values()))

    def made(database: str) -> Any:
        ((_, found),) = server.root_execute(
            f"SHOW CREATE TABLE {database}.sqla_shard_outbox"
        )
        return found

    server.root_execute(f"DROP DATABASE IF EXISTS {DATABASE}")
    server.root_execute(f"CREATE DATABASE {DATABASE}")
    try:
        with cluster.places.engines.visit(place.engine) as connection:
            place.backend.ddl.enter(connection, DATABASE)
            ledger.upgrade_own_tables(connection, None)
            connection.execute(text("DROP TABLE sqla_shard_outbox"))
            connection.execute(
                text(f"UPDATE {ledger.VERSION_TABLE} SET version_num = '0004'")
            )
            connection.commit()
            # Twice: one that was killed in between begins again.
            for version in ("0004", "0005"):
                ledger.upgrade_own_tables(connection, version)
        assert made(DATABASE) == made(place.schema)
        versions = server.root_execute(
            f"SELECT version_num FROM {DATABASE}.{ledger.VERSION_TABLE}"
        )
        assert [row[0] for row in versions] == [ledger.own_head()]
    finally:
        server.root_execute(f"DROP DATABASE {DATABASE}")
