"""A Flask application whose topology is in a real ZooKeeper."""

from __future__ import annotations

import time

import pytest

pytest.importorskip("kazoo")

from sqla_shard import Topology
from sqla_shard.ext.flask import FlaskCluster
from sqla_shard.testing import sqlite_topology, ZooKeeperServer
from sqla_shard.topology.zookeeper.publisher import Publisher
from tests.models.flask_app import flask_fixtures
from tests.models.sqlite_files import with_files

pytestmark = pytest.mark.live

app, _cluster, _db, _board_id = flask_fixtures()

PATH = "/health/shards"


@pytest.mark.thorough
def test_it_serves_while_zookeeper_is_down(app, tmp_path, zookeeper_installed):
    app.config["SQLA_SHARD_HEALTH"] = PATH
    app.config["SQLA_SHARD_OPTIONS"] = {"snapshot": tmp_path / "last.json"}
    files = with_files(sqlite_topology(tmp_path, servers=2, shards=4))
    with ZooKeeperServer() as server:
        location = f"zookeeper://{server.hosts}/prod"
        app.config["SQLA_SHARD_TOPOLOGY"] = location
        with Publisher(location) as publisher:
            publisher.publish(Topology.from_mapping(files))
        db = FlaskCluster(app)
        client = app.test_client()
        found = client.get(PATH)
        assert found.status_code == 200
        assert found.get_json()["state"] == "current"
        with Publisher(location) as publisher:
            publisher.publish(Topology.from_mapping({**files, "epoch": 2}))
        with app.app_context():
            assert db.cluster._active.follower.wait(1, 30)
        assert client.get(PATH).get_json()["epoch"] == 2
        server.kill()
        deadline = time.monotonic() + 30
        while client.get(PATH).get_json()["state"] == "current":
            assert time.monotonic() < deadline
        found = client.get(PATH)
    assert found.status_code == 200
    document = found.get_json()
    assert (document["state"], document["epoch"]) == ("stale", 2)
    assert document["source"] == location
    assert document["servers"] == {"server1": None, "server2": None}
    assert (tmp_path / "last.json").exists()
