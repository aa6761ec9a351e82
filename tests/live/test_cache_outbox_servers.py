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


def test_a_runner_that_was_killed_between_the_tables(
    cluster: Cluster, fleet: ServerFleet[Any]
) -> None:
    """The next one creates the rest, as create_all() does."""
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
            connection.execute(text(f"DELETE FROM {ledger.VERSION_TABLE}"))
            connection.commit()
            ledger.upgrade_own_tables(connection, None)
        assert made(DATABASE) == made(place.schema)
        versions = server.root_execute(
            f"SELECT version_num FROM {DATABASE}.{ledger.VERSION_TABLE}"
        )
        assert [row[0] for row in versions] == [ledger.own_head()]
    finally:
        server.root_execute(f"DROP DATABASE {DATABASE}")
