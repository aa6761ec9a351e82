"""The route of Flask for the health of the cluster."""

from __future__ import annotations

import json
import os
import time

import pytest

from sqla_shard import Cluster
from sqla_shard.exc import ExtensionSetupError, TopologyError
from sqla_shard.ext.flask import FlaskCluster
from sqla_shard.testing import sqlite_topology
from tests.models.flask_app import flask_fixtures
from tests.models.sqlite_files import with_files
from tests.servers.command_line import write

app, cluster, db, board_id = flask_fixtures()

PATH = "/health/shards"


@pytest.fixture
def healthy(app, cluster):
    app.config["SQLA_SHARD_HEALTH"] = PATH
    FlaskCluster(app, cluster)
    return app.test_client()


def test_no_endpoint_by_default(app, cluster):
    FlaskCluster(app, cluster)
    assert [str(rule) for rule in app.url_map.iter_rules()] == [
        "/static/<path:filename>"
    ]


def test_all_is_well(healthy):
    response = healthy.get(PATH)
    assert response.status_code == 200
    assert response.headers["Cache-Control"] == "no-store"
    found = response.get_json()
    assert found.pop("age") >= 0
    assert found.pop("process_id") == os.getpid()
    assert found == {
        "source": "the application",
        "state": "fixed",
        "epoch": 1,
        "last_error": None,
        "from_snapshot": False,
        "servers": {"server1": None, "server2": None},
        "down": [],
    }
    assert healthy.post(PATH).status_code == 405


def broken(directory, *servers):
    """Return a topology; some servers do not answer."""
    document = with_files(sqlite_topology(directory, servers=2, shards=2))
    for name, shard in servers:
        # A directory is no database.
        path = directory / name / f"db{shard:05d}.sqlite"
        path.unlink()
        path.mkdir()
    return document


@pytest.mark.parametrize(
    ("down", "status"),
    [([("server2", 1)], 200), ([("server1", 0), ("server2", 1)], 503)],
    ids=["one is down", "all are down"],
)
def test_servers_that_are_down(app, tmp_path, down, status):
    app.config["SQLA_SHARD_HEALTH"] = PATH
    app.config["SQLA_SHARD_TOPOLOGY"] = broken(tmp_path, *down)
    FlaskCluster(app)
    response = app.test_client().get(PATH)
    assert response.status_code == status
    found = response.get_json()["servers"]
    assert {name for name, wrong in found.items() if wrong} == {
        name for name, _ in down
    }


def test_a_closed_cluster(healthy, cluster):
    cluster.close()
    response = healthy.get(PATH)
    assert response.status_code == 503
    assert set(response.get_json()["servers"]) == {"server1", "server2"}


def test_a_topology_that_is_stale(app, tmp_path):
    document = with_files(sqlite_topology(tmp_path, servers=2, shards=2))
    path = write(tmp_path, document)
    app.config["SQLA_SHARD_HEALTH"] = PATH
    app.config["SQLA_SHARD_TOPOLOGY"] = str(path)
    FlaskCluster(app)
    cluster = app.extensions["sqla_shard"]._clusters[app]
    good = path.read_text()
    older = write(tmp_path, {**json.loads(good), "epoch": 0}, "x.json")
    changed = cluster.source_report()
    assert (changed.state, changed.epoch) == ("current", 1)
    older.replace(path)
    client = app.test_client()
    deadline = time.monotonic() + 30
    while client.get(PATH).get_json()["state"] == "current":
        # The file is looked at each second.
        assert time.monotonic() < deadline
    response = client.get(PATH)
    assert response.status_code == 200
    found = response.get_json()
    assert (found["state"], found["epoch"]) == ("stale", 1)
    assert "which is older" in found["last_error"]
    shown = app.test_cli_runner().invoke(args=["shard", "health"])
    assert shown.exit_code == 0
    assert f"topology: stale, epoch 1 of {path}, confirmed" in shown.output
    assert "which is older" in shown.output


@pytest.mark.parametrize("path", ["health", "", 3])
def test_invalid_paths(app, cluster, path):
    app.config["SQLA_SHARD_HEALTH"] = path
    with pytest.raises(ExtensionSetupError, match=repr(path)):
        FlaskCluster(app, cluster)


def test_a_zookeeper_that_cannot_be_meant(app):
    app.config["SQLA_SHARD_TOPOLOGY"] = "zookeeper://me:hush@zk/prod"
    with pytest.raises(TopologyError) as caught:
        FlaskCluster(app)
    assert "hush" not in str(caught.value)


def test_from_location_is_from_file(tmp_path):
    path = write(tmp_path, sqlite_topology(tmp_path, servers=2, shards=2))
    for one in (path, str(path)):
        with Cluster.from_location(one, watch=False) as cluster:
            assert cluster.source_report().state == "fixed"
        with Cluster.from_location(one) as cluster:
            assert cluster.source_report().source == str(path)
    with pytest.raises(TypeError, match="timeout"):
        Cluster.from_location(path, timeout=3)
