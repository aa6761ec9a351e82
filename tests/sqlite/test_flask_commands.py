"""The commands ``flask shard ...``."""

from __future__ import annotations

import pytest
from flask import current_app
from sqlalchemy import select

from sqla_shard import pack
from sqla_shard.ext.flask import FlaskCluster
from sqla_shard.ids import MAX_ID
from sqla_shard.jobs import task
from sqla_shard.testing import sqlite_topology
from tests.models.flask_app import add_board, Base, Board, flask_fixtures, Setting
from tests.models.sqlite_files import with_files

app, cluster, db, board_id = flask_fixtures()


def invoke(app, *arguments):
    return app.test_cli_runner().invoke(args=["shard", *arguments])


def test_explain(app, db, board_id):
    done = invoke(app, "explain", str(board_id))
    assert done.exit_code == 0
    assert f"id {board_id}: shard 3, type 2, local id" in done.output
    assert "shard 3 on server2 in" in done.output
    assert "db00003.sqlite" in done.output


@pytest.mark.parametrize(
    ("text", "code", "message"),
    [
        (str(MAX_ID + 1), 1, "is not an object id"),
        (str(pack(9, 2, 1)), 1, "shard 9 is not open"),
        ("boats", 2, "not a valid integer"),
    ],
)
def test_explain_of_what_is_no_id(app, db, text, code, message):
    done = invoke(app, "explain", text)
    assert done.exit_code == code
    assert message in done.output
    assert "Traceback" not in done.output


def test_topology(app):
    def server(name, *shards, **more):
        url = f"mysql://app:hush@{name}"
        return {"name": name, "primary": url, "shards": shards, **more}

    app.config["SQLA_SHARD_TOPOLOGY"] = {
        "epoch": 7,
        "keyspaces": {
            "objects": {
                "kind": "objects",
                "shards": 16,
                "database": "db{shard:05d}",
                "servers": [
                    server("one", [0, 6], [8, 8], standby="mysql://app:hush@two:3307"),
                    server("three", [7, 7], [9, 15], weight=0.0),
                ],
            },
            "main": {
                "kind": "global",
                "database": "shop",
                "servers": [
                    {"name": "main", "primary": "mysql://app:${MYSQL_PASSWORD}@m"}
                ],
            },
        },
    }
    app.config["SQLA_SHARD_OPTIONS"] = {"environ": {"MYSQL_PASSWORD": "hush"}}
    FlaskCluster(app)
    done = invoke(app, "topology")
    assert done.exit_code == 0
    assert done.output.splitlines() == [
        "epoch 7",
        "objects: kind objects, 16 shards, databases db{shard:05d}",
        (
            "  one: mysql://app:***@one, standby mysql://app:***@two:3307, "
            "shards 0-6, shard 8"
        ),
        "  three: mysql://app:***@three, shard 7, shards 9-15, weight 0",
        "main: kind global, database shop",
        "  main: mysql://app:${MYSQL_PASSWORD}@m",
    ]


def test_health(app, db):
    done = invoke(app, "health")
    assert done.exit_code == 0
    assert done.output == ("topology: fixed, epoch 1\nserver1: up\nserver2: up\n")


def test_health_of_a_server_that_is_down(app, tmp_path):
    document = with_files(sqlite_topology(tmp_path, servers=2, shards=2))
    (tmp_path / "server2" / "db00001.sqlite").unlink()
    app.config["SQLA_SHARD_TOPOLOGY"] = document
    FlaskCluster(app)
    done = invoke(app, "health")
    assert done.exit_code == 1
    assert "server1: up\nserver2: DOWN: " in done.output
    assert done.output.endswith("Error: 1 of 2 servers did not respond\n")


def test_create_all(app, tmp_path):
    app.config["SQLA_SHARD_TOPOLOGY"] = sqlite_topology(
        tmp_path, servers=2, shards=2, main=True
    )
    db = FlaskCluster(app, metadata=Base.metadata)
    only_main = invoke(app, "create-all", "--keyspace", "main")
    assert only_main.exit_code == 0
    assert not (tmp_path / "server2" / "db00001.sqlite").exists()
    done = invoke(app, "create-all")
    assert done.exit_code == 0
    assert "objects (2 shards), main (1 shards)" in done.output
    with app.app_context():
        board_id = db.run(add_board, 1)
        assert db.session.get(Board, board_id).title == "Boats"
        assert db.session.scalars(select(Setting)).all() == []
    again = invoke(app, "create-all", "--keyspace", "none")
    assert again.exit_code == 1
    assert "Error: there is no keyspace 'none'" in again.output


def test_create_all_without_tables(app, cluster):
    FlaskCluster(app, cluster)
    done = invoke(app, "create-all")
    assert done.exit_code == 1
    assert "metadata=Base.metadata" in done.output


def test_the_commands_are_listed(app, db):
    done = invoke(app, "--help")
    assert done.exit_code == 0
    for name in ("create-all", "explain", "health", "topology"):
        assert f"  {name} " in done.output


@task("flask.rename", queue="flask", max_attempts=1)
def rename(session, board_id, fails=False):
    session.get(Board, board_id).title = current_app.name
    if fails:
        raise RuntimeError("for a test")


def test_worker(app, cluster, db, board_id):
    rename.enqueue_now(cluster, board_id, near=board_id)
    done = invoke(app, "worker", "--queues", "flask,other", "--once")
    assert done.exit_code == 0, done.output
    assert done.output.startswith("1 succeeded, 0 failed")
    with cluster.session() as session:
        assert session.get(Board, board_id).title == app.name
    rename.enqueue_now(cluster, board_id, fails=True, near=board_id)
    done = invoke(app, "worker", "--queues", "flask", "--until-empty", "--deliver")
    assert done.exit_code == 1
    assert "not all jobs have succeeded" in done.output
    done = invoke(app, "worker", "--queues", "a b")
    assert done.exit_code == 1
    assert "the name of a queue" in done.output
    assert "Traceback" not in done.output
    done = invoke(app, "worker", "--hints", "zookeeper://me:word@zk1", "--once")
    assert done.exit_code == 1
    assert "must be the URL of a Redis server" in done.output
    assert "word" not in done.output
