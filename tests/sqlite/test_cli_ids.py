"""sqla-shard id, where and explain."""

from __future__ import annotations

import json
import re

import pytest

from examples.quickstart.models import Base
from sqla_shard import Cluster, pack, unpack
from sqla_shard.ids import MAX_ID
from sqla_shard.testing import sqlite_topology
from sqla_shard.testing.topology_documents import topology_document
from tests.servers.command_line import invoke, run, write

MODELS = "examples.quickstart.models"
BOARD = pack(5, 2, 1)


@pytest.fixture
def topology(tmp_path):
    return write(tmp_path, sqlite_topology(tmp_path, 2, 8, main=True))


@pytest.fixture
def servers(tmp_path):
    urls = {f"s{n}": f"mysql://app:hush@host{n}" for n in (1, 2)}
    return write(tmp_path, topology_document(urls, 8), "servers.json")


# -- id


def test_ids_are_decoded_and_composed(rng):
    for _ in range(200):
        number = rng.randrange(MAX_ID + 1)
        parts = unpack(number)
        done = invoke("id", "--json", rng.choice([str, hex])(number))
        assert json.loads(done.stdout) == [
            {
                "id": str(number),
                "hex": hex(number),
                "shard": parts.shard_id,
                "type": parts.type_id,
                "local": str(parts.local_id),
            }
        ]
        shard, type_, local = parts
        arguments = ("--shard", shard, "--type", type_, "--local", hex(local))
        assert invoke("id", *arguments).stdout == f"{number}\n"


def test_several_ids_come_in_order():
    done = invoke("id", "0X7", pack(3429, 1, 7075733))
    assert done.stdout.splitlines() == [
        "7 (0x7): shard 0, type 0, local id 7",
        (
            "241294492511762325 (0x3594010006bf795): shard 3429, type 1, "
            "local id 7075733"
        ),
    ]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["x7"], 2, "'x7' is not an integer"),
        (["0x"], 2, "is not an integer"),
        (["7_0"], 2, "is not an integer"),
        (["٧"], 2, "is not an integer"),
        ([MAX_ID + 1], 1, "its two highest bits are reserved"),
        ([7, 1 << 70], 1, "it has 71 bits"),
        ([], 2, "specify either ids"),
        ([7, "--shard", 1], 2, "specify either ids"),
        (["--shard", 1, "--type", 1], 2, "all of --shard, --type and"),
        (
            ["--shard", 65536, "--type", 1, "--local", 1],
            1,
            "shard_id must be from 0 to 65535",
        ),
    ],
)
def test_invalid_ids(arguments, code, message):
    done = invoke("id", *arguments)
    assert (done.exit_code, done.stdout) == (code, "")
    assert message in " ".join(done.stderr.split())


# -- where


def test_where(servers):
    done = invoke("-t", servers, "where", BOARD, hex(pack(0, 1, 1)))
    assert done.stdout.splitlines() == [
        (f"{BOARD}: shard 5 of objects: database db00005 on s2, mysql://app:***@host2"),
        (
            f"{pack(0, 1, 1)}: shard 0 of objects: database db00000 on s1, "
            "mysql://app:***@host1"
        ),
    ]


def test_where_in_json(servers):
    done = invoke("-t", servers, "where", BOARD, "--json")
    assert json.loads(done.stdout) == [
        {
            "id": str(BOARD),
            "keyspace": "objects",
            "shard": 5,
            "server": "s2",
            "database": "db00005",
            "primary": "mysql://app:***@host2",
            "standby": None,
        }
    ]


def test_where_needs_no_secret(tmp_path, monkeypatch):
    monkeypatch.delenv("MYSQL_PASSWORD", raising=False)
    url = "mysql://app:${MYSQL_PASSWORD}@host"
    path = write(tmp_path, topology_document({"one": url}, 8))
    done = invoke("-t", path, "where", BOARD)
    assert (done.exit_code, done.stderr) == (0, "")
    assert url in done.stdout
    explained = invoke("-t", path, "explain", BOARD)
    assert "shard 5 on one in db00005" in explained.stdout


def test_where_in_one_of_several_keyspaces(tmp_path):
    document = topology_document({"one": "mysql://app@host"}, 8)
    spaces = document["keyspaces"]
    spaces["more"] = {**spaces["objects"], "database": "more{shard:05d}"}
    path = write(tmp_path, document)
    done = invoke("-t", path, "where", BOARD)
    assert done.exit_code == 1
    assert "'objects', 'more'" in done.stderr
    done = invoke("-t", path, "where", "--keyspace", "more", BOARD)
    assert "database more00005 on one" in done.stdout


# -- explain


def test_explain_is_what_the_cluster_says(topology):
    done = invoke("-t", topology, "explain", hex(BOARD))
    with Cluster.from_file(topology) as cluster:
        assert done.stdout == f"{cluster.explain(BOARD)}\n"
    assert "shard 5 on server2 in" in done.stdout


def explained(topology, expression, *options):
    return invoke("-t", topology, "explain", "--models", MODELS, expression, *options)


def test_explain_a_statement(topology):
    done = explained(topology, f"select(Pin).where(Pin.board_id == {BOARD})")
    assert done.exit_code == 0
    assert "1 shard(s) on 1 server(s)" in done.stdout
    assert "pins.data" in done.stdout


def test_explain_in_json(topology):
    ids = [BOARD, pack(0, 2, 1)]
    done = explained(topology, f"select(Pin).where(Pin.board_id.in_({ids}))", "--json")
    found = json.loads(done.stdout)
    assert found["id"] is None
    assert found["keyspace"] == "objects"
    assert found["refusal"] is None
    assert [one["shard"] for one in found["shards"]] == [0, 5]
    assert [one["server"] for one in found["sent"]] == ["server1", "server2"]
    assert found["round_trips"] == 1
    statement = found["sent"][1]["statements"][0]
    assert "FROM" in statement["sql"]
    # As text, for it may be an id.
    assert str(pack(5, 1, 0)) in statement["parameters"]
    by_id = json.loads(invoke("-t", topology, "explain", "--json", 7).stdout)
    assert by_id["id"] == "7"


def test_a_refusal_is_explained_with_scatter(topology):
    done = explained(topology, "select(func.count(Pin.id))")
    assert done.exit_code == 0
    assert done.stdout.startswith("refused: the shards of 'pins' cannot")
    assert "with .options(scatter()):" in done.stdout
    found = json.loads(
        explained(topology, "select(func.count(Pin.id))", "--json").stdout
    )
    assert found["refusal"].startswith("the shards of 'pins' cannot")
    assert len(found["with_scatter"]["shards"]) == 8
    scattered = "select(func.count(Pin.id)).options(scatter())"
    assert "8 shard(s) on 2" in explained(topology, scattered).stdout


@pytest.mark.parametrize(
    ("expression", "code", "message"),
    [
        ("select(Boat)", 2, "NameError: name 'Boat' is not defined"),
        ("select(", 2, "SyntaxError"),
        ("Pin.nothing", 2, "AttributeError"),
        ("7boats", 2, "'7boats' is not an integer"),
        ("'7'", 1, "it is a str"),
    ],
)
def test_ids_that_cannot_be_explained(topology, expression, code, message):
    done = explained(topology, expression)
    assert (done.exit_code, done.stdout) == (code, "")
    assert message in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


def test_models_that_are_not_there(topology):
    done = invoke("-t", topology, "explain", "--models", "no.such", "1 + 1")
    assert done.exit_code == 2
    assert "module 'no.such' cannot be imported" in done.stderr
    done = invoke("-t", topology, "explain", "--models", ".", "1 + 1")
    assert done.exit_code == 2


def test_models_of_the_current_directory(tmp_path, topology):
    (tmp_path / "shop.py").write_text(
        "from examples.quickstart.models import Pin as Boat\n"
    )
    expression = f"select(Boat).where(Boat.board_id == {BOARD})"
    arguments = ("-t", topology, "explain", "--models", "shop", expression)
    done = run(tmp_path, *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    assert "shard 5 on server2" in done.stdout


# -- explain --full and --analyze

COUNT = "select(func.count(Pin.id)).options(scatter())"


def test_shards_are_ranges_without_all(topology):
    shown = explained(topology, COUNT).stdout
    assert "  4 shards 0-3 on server1\n  4 shards 4-7 on server2\n" in shown
    full = explained(topology, COUNT, "--full").stdout
    assert full.count("\n  shard ") == 8
    assert full.count("SELECT count") == 8
    assert "to server2:" in full


def test_analyze_executes_the_statement(topology):
    with Cluster.from_file(topology) as cluster:
        cluster.create_all(Base.metadata)
    done = explained(topology, COUNT, "--analyze")
    assert done.exit_code == 0, done.output
    assert "\nexecuted: 1 rows in " in done.stdout
    # SQLite has a file, and a statement, for each shard.
    lines = re.findall(
        r"(?m)^  (server\d): [0-9.]+ ms, 1 rows, shards (\d)$", done.stdout
    )
    expected = [(f"server{1 + n // 4}", str(n)) for n in range(8)]
    assert lines == expected
    found = explained(topology, COUNT, "--analyze", "--json").stdout
    (report,) = json.loads(found)["analyzed"]
    assert [
        (one["server"], str(shard))
        for one in report["servers"]
        for shard in one["shards"]
    ] == expected
    assert "analyzed" not in json.loads(explained(topology, COUNT, "--json").stdout)


@pytest.mark.parametrize(
    "expression",
    [
        str(BOARD),
        f"delete(Pin).where(Pin.board_id == {BOARD})",
        f"select(Pin).where(Pin.board_id == {BOARD}).with_for_update()",
        "text('SELECT 1')",
    ],
)
def test_analyze_reads_only(topology, expression):
    done = explained(topology, expression, "--analyze")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "--analyze executes" in done.stderr


def test_refused_statements_are_not_executed(topology):
    done = explained(topology, "select(Pin)", "--analyze")
    assert done.exit_code == 1
    assert done.stdout.startswith("refused: ")
    assert "executed" not in done.stdout
