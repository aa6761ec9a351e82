"""The microblog of the examples, on servers: one database, and many."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from flask import Flask

from examples.microblog import sharded, single
from sqla_shard.testing.server_fleet import ServerFleet
from tests.suites.microblog import CONFIG, Microblog, promote, settle

pytestmark = pytest.mark.live

NAME = "db_microblog"


class TestOnOneDatabase(Microblog):
    @pytest.fixture
    def app(self, fleet: ServerFleet[Any]) -> Iterator[Flask]:
        server = fleet.servers[0]
        server.root_execute(f"DROP DATABASE IF EXISTS {NAME}")
        server.root_execute(f"CREATE DATABASE {NAME}")
        url = server.url.replace("mysql://", "mysql+pymysql://", 1)
        app = single.create_app(**CONFIG, SQLALCHEMY_DATABASE_URI=f"{url}/{NAME}")
        with app.app_context():
            single.db.create_all()
        yield app
        with app.app_context():
            single.db.engine.dispose()
        server.root_execute(f"DROP DATABASE {NAME}")

    def promote(self, app: Flask, name: str) -> None:
        promote(app, single, name)


class TestOnShards(Microblog):
    @pytest.fixture
    def app(self, fleet: ServerFleet[Any]) -> Iterator[Flask]:
        document = fleet.topology_mapping(
            shards=4,
            database="db_microblog_{shard:05d}",
            lookup=8,
            lookup_database="lookup_microblog_{shard:05d}",
        )
        fleet.drop_databases(document)
        app = sharded.create_app(**CONFIG, SQLA_SHARD_TOPOLOGY=document)
        with app.app_context():
            sharded.db.cluster.create_all(sharded.models.Base.metadata)
        yield app
        with app.app_context():
            sharded.db.cluster.close()
        fleet.drop_databases(document)

    def promote(self, app: Flask, name: str) -> None:
        promote(app, sharded, name)

    def settle(self, app: Flask) -> None:
        settle(app, sharded)
