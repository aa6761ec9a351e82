"""Reset of a connection with a transaction that returns to the pool."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Connection

from sqla_shard import Cluster
from tests.models.clusters import PINS

ROW = "INSERT INTO {}.boards (name) VALUES ('left over')"


def _after_commit(connection: Connection, row: str) -> None:
    connection.exec_driver_sql("SELECT 1")
    connection.commit()
    connection.connection.cursor().execute(row)


def _after_rollback(connection: Connection, row: str) -> None:
    connection.exec_driver_sql("SELECT 1")
    connection.rollback()
    connection.connection.cursor().execute(row)


def _at_once(connection: Connection, row: str) -> None:
    connection.connection.cursor().execute(row)


def _in_a_savepoint(connection: Connection, row: str) -> None:
    connection.begin_nested()
    connection.exec_driver_sql(row)


def _after_an_error(connection: Connection, row: str) -> None:
    connection.exec_driver_sql(row)
    error = connection.dialect.loaded_dbapi.Error
    with pytest.raises(error):
        connection.connection.cursor().execute("no such statement")


class Resetting:
    """A transaction left on a connection is not committed by the next user."""

    @pytest.mark.parametrize(
        "leave",
        [_after_commit, _after_rollback, _at_once, _in_a_savepoint, _after_an_error],
    )
    def test_it_is_rolled_back(
        self, cluster: Cluster, leave: Callable[[Connection, str], None]
    ) -> None:
        place = cluster.places.place(cluster.topology.sole("objects"), 3)

        def wire(connection: Connection) -> Any:
            return connection.connection.dbapi_connection

        with place.engine.connect() as connection:
            used = wire(connection)
            leave(connection, ROW.format(place.schema))
        with place.engine.connect() as connection:
            assert wire(connection) is used
            counted = f"SELECT count(*) FROM {place.schema}.boards"
            assert connection.exec_driver_sql(counted).scalar() == 0
            connection.commit()


cluster = PINS.on_backend()
