"""sqla-shard topology show, validate and diff."""

from __future__ import annotations

import json
import re

import pytest

from sqla_shard import Topology
from sqla_shard.ext.flask import FlaskCluster
from sqla_shard.topology import describe, diff
from tests.servers.command_line import invoke, on_a_terminal, write

SECRET = "hush"


def document(epoch=1, *, shards=16, password=SECRET, standby="two:3307"):
    def server(name, *ranges, **more):
        url = f"mysql://app:{password}@{name}"
        return {"name": name, "primary": url, "shards": ranges, **more}

    return {
        "epoch": epoch,
        "keyspaces": {
            "objects": {
                "kind": "objects",
                "shards": shards,
                "database": "db{shard:05d}",
                "servers": [
                    server(
                        "one",
                        [0, 6],
                        [8, 8],
                        standby=f"mysql://app:{password}@{standby}",
                    ),
                    server("three", [7, 7], [9, shards - 1], weight=0.5),
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


@pytest.fixture
def topology(tmp_path):
    return write(tmp_path, document())


def test_show_is_what_flask_shows(topology):
    flask = pytest.importorskip("flask")
    done = invoke("-t", topology, "topology", "show")
    assert done.exit_code == 0
    assert SECRET not in done.output
    known = Topology.from_mapping(document(), environ={"MYSQL_PASSWORD": ""})
    assert done.stdout == f"{describe(known)}\n"
    app = flask.Flask("shop")
    app.config["SQLA_SHARD_TOPOLOGY"] = known
    FlaskCluster(app)
    shown = app.test_cli_runner().invoke(args=["shard", "topology"])
    assert shown.output == done.stdout


def test_show_in_json_has_the_form_of_the_file(topology):
    done = invoke("-t", topology, "topology", "show", "--json")
    expected = document(password="***")
    ranges = expected["keyspaces"]["objects"]["servers"]
    ranges[0]["shards"] = [[0, 6], [8, 8]]
    ranges[1]["shards"] = [[7, 7], [9, 15]]
    assert json.loads(done.stdout) == expected


def test_show_on_a_terminal_is_a_table(topology):
    shown = on_a_terminal(120, "-t", topology, "topology", "show")
    assert SECRET not in shown
    assert [re.split(" {2,}", line) for line in shown.splitlines()] == [
        ["epoch 1"],
        ["objects: kind objects, 16 shards, databases db{shard:05d}"],
        ["server", "shards", "weight", "primary", "standby"],
        ["one", "0-6, 8", "1", "mysql://app:***@one", "mysql://app:***@two:3307"],
        ["three", "7, 9-15", "0.5", "mysql://app:***@three"],
        ["main: kind global, database shop"],
        ["server", "primary"],
        ["main", "mysql://app:${MYSQL_PASSWORD}@m"],
    ]


def test_show_on_a_narrow_terminal_is_lines(topology):
    shown = on_a_terminal(60, "-t", topology, "topology", "show")
    first, *_ = shown.split("main: kind")
    plain = invoke("-t", topology, "topology", "show").stdout
    assert first in plain


# -- validate


def test_validate(topology, monkeypatch):
    monkeypatch.delenv("MYSQL_PASSWORD", raising=False)
    done = invoke("topology", "validate", topology)
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.startswith(f"{topology}: no problems in <Topology ")
    assert invoke("-t", topology, "topology", "validate").stdout == done.stdout
    done = invoke("topology", "validate", topology, "--json")
    assert json.loads(done.stdout) == {"source": str(topology), "problems": []}


def test_validate_with_the_environment(topology, monkeypatch):
    monkeypatch.delenv("MYSQL_PASSWORD", raising=False)
    arguments = ("topology", "validate", topology, "--environment")
    done = invoke(*arguments)
    assert done.exit_code == 1
    assert "set the environment variable MYSQL_PASSWORD" in done.stdout
    assert invoke(*arguments, env={"MYSQL_PASSWORD": ""}).exit_code == 0


def test_every_problem_is_a_line(tmp_path):
    wrong = document(epoch=-1)
    wrong["keyspaces"]["objects"]["servers"][1]["weight"] = -1
    wrong["keyspaces"]["objects"]["servers"][0]["shards"] = [0, 5]
    wrong["keyspaces"]["main"]["servers"][0]["primary"] += f"?passwd={SECRET}"
    path = write(tmp_path, wrong)
    done = invoke("topology", "validate", path)
    assert (done.exit_code, done.stderr) == (1, "")
    assert SECRET not in done.stdout
    places = [line.split(": ")[1] for line in done.stdout.splitlines()]
    assert sorted(places) == [
        "epoch",
        "keyspaces.main.servers[0].primary",
        "keyspaces.objects.servers",
        "keyspaces.objects.servers",
        "keyspaces.objects.servers[1].weight",
    ]
    report = json.loads(invoke("topology", "validate", path, "--json").stdout)
    assert report["source"] == str(path)
    assert [one["place"] for one in report["problems"]] == places


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.toml", "epoch = \n", "correct the syntax"),
        ("a.json", "{", "correct the syntax"),
        ("a.yaml", "", "does not end in .toml or .json"),
        ("a.json", None, "cannot be read"),
    ],
)
def test_files_that_are_no_topology(tmp_path, name, text, message):
    if text is not None:
        (tmp_path / name).write_text(text)
    done = invoke("topology", "validate", tmp_path / name)
    assert done.exit_code == 1
    assert message in done.stdout
    assert done.stdout.count("\n") == 1


# -- diff


def test_diff(tmp_path, topology):
    later = write(tmp_path, document(2, shards=32, standby="four"), "b.json")
    done = invoke("topology", "diff", topology, later)
    blank = {"MYSQL_PASSWORD": ""}
    expected = diff(
        Topology.from_mapping(document(), environ=blank),
        Topology.from_mapping(document(2, shards=32, standby="four"), environ=blank),
    )
    assert done.stdout == f"{expected}\n"
    assert (done.exit_code, done.stderr) == (0, "")
    assert "16 -> 32 shards" in done.stdout
    assert SECRET not in done.stdout


def test_diff_in_json(tmp_path, topology):
    later = document(2, shards=32, standby="four")
    later["keyspaces"]["objects"]["servers"][1]["name"] = "third"
    path = write(tmp_path, later, "b.json")
    done = invoke("topology", "diff", topology, path, "--json")
    assert SECRET not in done.stdout
    found = json.loads(done.stdout)
    assert (found["old_epoch"], found["new_epoch"]) == (1, 2)
    assert found["opened"] == [{"keyspace": "objects", "old": 16, "new": 32}]
    assert found["moved"] == [
        {
            "keyspace": "objects",
            "shards": shards,
            "from_server": "three",
            "to_server": "third",
        }
        for shards in ([7, 7], [9, 15])
    ]
    assert found["urls"] == [
        {
            "keyspace": "objects",
            "server": "one",
            "role": "standby",
            "old": "mysql://app:***@two:3307",
            "new": "mysql://app:***@four",
        }
    ]
    (added,) = found["added_servers"]
    assert added["server"]["primary"] == "mysql://app:***@three"
    assert added["server"]["shards"] == [[7, 7], [9, 31]]


def test_diff_reports_another_password(tmp_path, topology):
    other = write(tmp_path, document(password="other"), "b.json")
    done = invoke("topology", "diff", topology, other, "--exit-code")
    assert done.exit_code == 1
    assert "with another password" in done.stdout
    assert "other@" not in done.stdout


def test_diff_warns_of_a_generation(tmp_path):
    def described(primary, number, name):
        found = document(2)
        server = found["keyspaces"]["objects"]["servers"][1]
        server.update(primary=primary, generation=number)
        return write(tmp_path, found, name)

    old = described(f"mysql://app:{SECRET}@three", 3, "old.json")
    for new, message in (
        (described(f"mysql://app:{SECRET}@four", 4, "good.json"), ""),
        (
            described(f"mysql://app:{SECRET}@four", 3, "same.json"),
            "warning: objects: generation of 'three' stays 3 while its",
        ),
        (
            described(f"mysql://app:{SECRET}@three", 4, "by-hand.json"),
            "warning: objects: generation of 'three' changes while its",
        ),
    ):
        done = invoke("topology", "diff", old, new)
        assert done.exit_code == 0
        assert done.stderr.startswith(message)
        assert done.stderr.count("\n") == bool(message)
        assert SECRET not in done.output
        found = invoke("topology", "diff", old, new, "--json")
        assert found.stderr == done.stderr
        assert json.loads(found.stdout)["old_epoch"] == 2


def test_a_generation_is_shown(tmp_path):
    described = document(2)
    described["keyspaces"]["objects"]["servers"][1]["generation"] = 12
    path = write(tmp_path, described)
    shown = on_a_terminal(160, "-t", path, "topology", "show")
    assert "generation" in shown
    assert re.search(r"\b12\b", shown)
    found = json.loads(invoke("-t", path, "topology", "show", "--json").stdout)
    servers = found["keyspaces"]["objects"]["servers"]
    assert [one.get("generation") for one in servers[:2]] == [None, 12]


def test_the_status_of_diff(tmp_path, topology):
    same = write(tmp_path, document(), "same.json")
    newer = write(tmp_path, document(2), "newer.json")
    for other, status in ((same, 0), (newer, 1)):
        assert invoke("topology", "diff", topology, other).exit_code == 0
        done = invoke("topology", "diff", topology, other, "--exit-code")
        assert done.exit_code == status
    assert "nothing else changed" in done.stdout
