"""Commands and URLs that get an id alone, with keyspaces of two layouts."""

from __future__ import annotations

import json

import pytest
from flask import Flask, url_for

from sqla_shard import Cluster, exc, pack
from sqla_shard.ext.flask import FlaskCluster
from sqla_shard.ids import IdLayout, TimeLayout
from sqla_shard.testing import sqlite_topology
from tests.servers.command_line import invoke, write

PHOTOS = IdLayout(shard_bits=10, type_bits=6, local_bits=44)
UPLOADS = TimeLayout(epoch_ms=1_600_000_000_000)
UPLOAD = UPLOADS.pack_time(1_700_000_000_000, 3, 9)
PHOTO = PHOTOS.pack(3, 7, 1)
BOARD = pack(5, 2, 1)


@pytest.fixture
def document(tmp_path):
    document = sqlite_topology(tmp_path, 2, 8, main=True)
    spaces = document["keyspaces"]
    spaces["photos"] = {
        **spaces["objects"],
        "database": "photos{shard:05d}",
        "id_layout": PHOTOS.to_mapping(),
    }
    spaces["uploads"] = {
        **spaces["objects"],
        "database": "uploads{shard:05d}",
        "id_layout": UPLOADS.to_mapping(),
    }
    return document


@pytest.fixture
def topology(tmp_path, document):
    return write(tmp_path, document)


def test_ids_without_a_topology_have_the_default_layout():
    assert "shard 5, type 2, local id 1" in invoke("id", BOARD).stdout


def test_ids_of_each_keyspace(topology):
    for name, number, parts in (
        ("objects", BOARD, "shard 5, type 2, local id 1"),
        ("photos", PHOTO, "shard 3, type 7, local id 1"),
        ("uploads", UPLOAD, "shard 3, 2023-11-14T22:13:20.000Z, sequence number 9"),
    ):
        done = invoke("-t", topology, "id", "--keyspace", name, number)
        assert done.stdout == f"{number} ({number:#x}): {parts}\n"
        done = invoke("-t", topology, "explain", "--keyspace", name, number)
        assert parts in done.stdout
        assert f"keyspace {name}: 1 shard(s)" in done.stdout
        done = invoke("-t", topology, "where", "--keyspace", name, number)
        assert f"of {name}: database" in done.stdout
    arguments = ("--shard", 3, "--type", 7, "--local", 1)
    done = invoke("-t", topology, "id", "--keyspace", "photos", *arguments)
    assert done.stdout == f"{PHOTO}\n"


@pytest.mark.parametrize("command", ["id", "where", "explain"])
def test_a_keyspace_must_be_named(topology, command):
    done = invoke("-t", topology, command, PHOTO)
    assert (done.exit_code, done.stdout) == (1, "")
    assert "'objects', 'photos'" in done.stderr
    done = invoke("-t", topology, command, "--keyspace", "main", PHOTO)
    assert done.exit_code == 1
    assert "of kind 'global'" in done.stderr
    done = invoke("-t", topology, command, "--keyspace", "no", PHOTO)
    assert done.exit_code == 1
    assert "no keyspace 'no'" in done.stderr


def test_parts_that_an_id_of_the_layout_cannot_have(topology):
    arguments = ("--shard", 1024, "--type", 7, "--local", 1)
    done = invoke("-t", topology, "id", "--keyspace", "photos", *arguments)
    assert done.exit_code == 1
    assert "shard_id must be from 0 to 1023" in done.stderr


def test_the_only_layout_needs_no_name(tmp_path, document):
    document["keyspaces"]["objects"]["id_layout"] = PHOTOS.to_mapping()
    del document["keyspaces"]["uploads"]
    path = write(tmp_path, document)
    done = invoke("-t", path, "id", "--json", PHOTO)
    (found,) = json.loads(done.stdout)
    assert (found["shard"], found["type"], found["local"]) == (3, 7, "1")
    shown = invoke("-t", path, "topology", "show").stdout
    assert "ids of 10 shard, 6 type and 44 local bits" in shown


def test_ids_in_urls(document):
    with Cluster.from_topology(document) as cluster:
        app = Flask("layouts")
        FlaskCluster(app, cluster)

        @app.get('/photos/<object_id(7, "photos"):photo_id>')
        def photo(photo_id):
            return str(photo_id)

        @app.get('/boards/<object_id(keyspace="objects"):board_id>')
        def board(board_id):
            return str(board_id)

        @app.get('/uploads/<object_id(9, "uploads"):upload_id>')
        def upload(upload_id):
            return str(upload_id)

        with pytest.raises(exc.UnknownKeyspaceError, match="'photos'"):
            app.add_url_rule("/<object_id:any_id>", "any", board)
        client = app.test_client()
        assert client.get(f"/photos/{PHOTO}").text == str(PHOTO)
        assert client.get(f"/boards/{BOARD}").text == str(BOARD)
        assert client.get(f"/uploads/{UPLOAD}").text == str(UPLOAD)
        assert client.get(f"/uploads/{2**63}").status_code == 404
        assert client.get(f"/photos/{BOARD}").status_code == 404
        assert client.get(f"/photos/{PHOTOS.max_id + 1}").status_code == 404
        with app.test_request_context():
            with pytest.raises(exc.WrongTypeError):
                url_for("photo", photo_id=PHOTOS.pack(3, 8, 1))
            assert url_for("photo", photo_id=PHOTO) == f"/photos/{PHOTO}"


def test_ids_that_begin_with_the_time(topology):
    options = ("-t", topology, "id", "--keyspace", "uploads")
    (found,) = json.loads(invoke(*options, "--json", UPLOAD).stdout)
    assert (found["shard"], found["type"]) == (3, None)
    parts = ("--shard", 3, "--type", 0, "--local", found["local"])
    assert invoke(*options, *parts).stdout == f"{UPLOAD}\n"
