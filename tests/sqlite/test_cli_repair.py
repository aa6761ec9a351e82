"""sqla-shard repair, on SQLite."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert, text
from sqlalchemy.exc import OperationalError

from sqla_shard import Cluster
from sqla_shard.dialects.sql import ServerTime
from sqla_shard.dialects.sqlite import SQLiteCatalogue
from sqla_shard.exc import ServerUnreachableError
from sqla_shard.outbox import apply
from sqla_shard.outbox.tables import INTENTS
from tests.models.operation_models import (
    account,
    after_crash,
    Base,
    entries,
    intend,
    make_due,
    SHARDS,
)
from tests.servers.command_line import COMMAND, environment, invoke, ROOT, run, write
from tests.servers.operation_commands import for_commands

SECONDS = 60
MODELS = ("--models", "tests.models.operation_models")


topology, cluster, ids = for_commands()


def leave(cluster: Cluster, ids: list[int], text: str = "it") -> str:
    """Leave an operation as by a crash; return its token."""
    before = {one.token for one in cluster.pending()}
    with after_crash(), cluster.begin(cross_shard="logged") as session:
        intend(session, ids[1], ids[6], text)
    # Looked for before it is due: from then on a program that repairs may
    # have done it.
    (token,) = {one.token for one in cluster.pending()} - before
    make_due(cluster)
    return token


def repair(topology: Path, *arguments: object) -> Any:
    return invoke("-t", topology, "repair", *arguments)


def test_once(cluster, topology, ids):
    leave(cluster, ids)
    found = repair(topology, *MODELS, "--once")
    assert found.exit_code == 0, found.output
    (line,) = found.stdout.splitlines()
    assert line.endswith(
        "1 applied, 0 failed, 0 not defined here, 0 old tokens deleted"
    )
    assert entries(cluster) == {(ids[6], "it"): 1}
    found = repair(topology, *MODELS, "--once")
    assert (found.exit_code, found.output) == (0, "")


def test_once_in_json(cluster, topology, ids):
    for number in range(3):
        leave(cluster, ids, str(number))
    found = repair(topology, *MODELS, "--once", "--json")
    (line,) = found.stdout.splitlines()
    document = json.loads(line)
    assert (document["applied"], document["failed"]) == (3, [])
    assert set(document) == {
        "time",
        "applied",
        "failed",
        "unknown",
        "forgotten",
        "unreachable",
    }


def test_tokens_are_stored_for_the_given_time(cluster, topology, ids):
    leave(cluster, ids)
    assert repair(topology, *MODELS, "--once").exit_code == 0
    assert repair(topology, *MODELS, "--once", "--keep", 1).stdout == ""
    found = repair(topology, *MODELS, "--once", "--keep", 0)
    assert "1 old tokens deleted" in found.stdout


def test_now(cluster, topology, ids):
    with after_crash(), cluster.begin(cross_shard="logged") as session:
        intend(session, ids[1], ids[6], "it")
    assert repair(topology, *MODELS, "--once").stdout == ""
    found = repair(topology, *MODELS, "--once", "--now")
    assert "1 applied" in found.stdout


@pytest.mark.thorough
def test_undefined_operations_are_reported(cluster, topology, ids, tmp_path):
    token = leave(cluster, ids)
    # A process of its own, which has loaded nothing else.
    for option in ("--once", "--dry-run"):
        done = run(tmp_path, "-t", topology, "repair", option)
        assert done.returncode == 1
        assert token in done.stdout
        assert "tests.note, not defined here" in done.stdout
    done = run(tmp_path, "-t", topology, "repair", "--dry-run", "--json", stdin="")
    (one,) = json.loads(done.stdout)["pending"]
    assert (one["token"], one["is_known"]) == (token, False)
    assert one["arguments"] == {"account_id": ids[6], "text": "it"}
    assert entries(cluster) == {}


@pytest.mark.parametrize("asked", ["having", "databases"])
def test_a_server_is_lost_after_a_table_was_missing(
    cluster, topology, ids, monkeypatch, asked
):
    token = leave(cluster, ids)
    with cluster.begin() as session:
        drop = text(f"DROP TABLE {INTENTS.name}")
        session.execute(drop, bind_arguments={"shard_id": 6})

    def lost(*arguments: Any) -> None:
        error = OperationalError("SELECT 1", {}, Exception(2013, "lost"))
        raise ServerUnreachableError(server="server2", error=error)

    # As on a server: on SQLite each file is read.
    monkeypatch.setattr(SQLiteCatalogue, "having", lambda *arguments: ())
    monkeypatch.setattr(SQLiteCatalogue, asked, lost)
    found = repair(topology, "--dry-run", "--json")
    document = json.loads(found.stdout)
    assert [one["token"] for one in document["pending"]] == [token]
    (one,) = document["unreachable"]
    assert (one["server"], one["reason"], one["responds"]) == ("server2", "lost", False)
    assert one["shards"] == {"objects": "6"}


def test_a_failure_is_reported(cluster, topology, ids, monkeypatch):
    leave(cluster, ids)
    monkeypatch.setitem(apply._functions, "tests.note", fails)
    found = repair(topology, *MODELS, "--once")
    assert found.exit_code == 1
    first, second = found.stdout.splitlines()
    assert "0 applied, 1 failed" in first
    assert "ZeroDivisionError: not today" in second
    found = repair(topology, *MODELS, "--dry-run")
    assert found.exit_code == 1
    assert "1 attempts: ZeroDivisionError: not today (" in found.stdout


def fails(session: Any, **given: Any) -> None:
    raise ZeroDivisionError("not\ntoday")


def test_dry_run_writes_nothing(cluster, topology, ids):
    token = leave(cluster, ids)
    found = repair(topology, *MODELS, "--dry-run")
    assert found.exit_code == 0
    first, second = found.stdout.splitlines()
    assert first.startswith(f"{token} tests.note, from shard 1 of objects")
    assert first.endswith(" s old)")
    assert second == "1 pending"
    (one,) = cluster.pending()
    assert one.attempts == 0
    assert entries(cluster) == {}


def test_discard(cluster, topology, ids):
    token = leave(cluster, ids)
    found = repair(topology, "--discard", token, "--discard", "00" * 16)
    assert found.exit_code == 1
    assert found.stdout.startswith(f"discarded {token} tests.note")
    last = found.stdout.splitlines()[-1]
    # With them the operation can be done by hand.
    assert last.startswith('  arguments: {"')
    assert str(ids[6]) in last
    assert f"{'00' * 16} not found" in found.stderr
    assert cluster.pending() == []
    token = leave(cluster, ids)
    found = repair(topology, "--discard", token.upper(), "--json")
    assert found.exit_code == 0
    assert [d["token"] for d in json.loads(found.stdout)["discarded"]] == [token]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--discard", "none"], "32 hexadecimal digits"),
        (["--once", "--dry-run"], "exclude each other"),
        (["--once", "--discard", "00"], "exclude each other"),
        (["--interval", "0"], "--interval"),
        (["--now"], "--now requires --once"),
        (["--keep", "-1"], "--keep"),
        (["--models", "no.such.module"], "cannot be imported"),
    ],
)
def test_usage_errors(topology, cluster, arguments, said):
    found = repair(topology, *arguments)
    assert found.exit_code == 2
    assert said in found.stderr


@contextlib.contextmanager
def started(topology: Path) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [*(*COMMAND, "-t", str(topology), "repair", *MODELS), *("--interval", "0.1")],
        cwd=ROOT,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_until_it_is_ended(cluster, topology, ids, number):
    with started(topology) as process:
        for count in range(1, 3):
            leave(cluster, ids, str(count))
            line = process.stdout.readline()
            assert "1 applied, 0 failed" in line
            assert len(entries(cluster)) == count
        process.send_signal(number)
        assert process.wait(SECONDS) == 0
        assert (process.stdout.read(), process.stderr.read()) == ("", "")


def test_it_follows_the_topology(cluster, topology, ids, tmp_path):
    """Shards that are opened while it runs are repaired, too."""
    with started(topology) as process:
        leave(cluster, ids, "before")
        assert "1 applied" in process.stdout.readline()
        document = json.loads(topology.read_text("utf-8"))
        document["epoch"] = 2
        space = document["keyspaces"]["objects"]
        space["shards"] = 2 * SHARDS
        (tmp_path / "server3").mkdir()
        third = {
            "name": "server3",
            "primary": f"sqlite:///{tmp_path}/server3",
            "shards": [SHARDS, 2 * SHARDS - 1],
        }
        space["servers"].append(third)
        write(tmp_path, document, "newer.json").replace(topology)
        with Cluster.from_file(topology, watch=False) as larger:
            larger.create_all(Base.metadata)
            new = account(larger, SHARDS + 1)
            leave(larger, [0, new, 0, 0, 0, 0, ids[6]], "after")
            # A round before the tables of the new shards exist has a line, too.
            assert any("1 applied" in line for line in process.stdout)
            assert entries(larger)[ids[6], "after"] == 1


def test_all_are_counted(cluster, topology, ids):
    """Of each shard 200 are listed."""
    leave(cluster, ids)
    leave_rows(cluster, home=1, count=250, operation="tests.other")
    leave_rows(cluster, home=6, count=3, operation="tests.other", error="no")
    expected = {"tests.note": (1, 0), "tests.other": (253, 3)}
    assert expected == {
        one.operation: (one.count, one.failed) for one in cluster.count_pending()
    }
    found = repair(topology, "--count")
    *lines, last = found.stdout.splitlines()
    assert (found.exit_code, last) == (1, "254 pending")
    assert lines[1].startswith("tests.other: 253, 3 failed, the oldest for ")
    document = json.loads(repair(topology, "--count", "--json").stdout)
    assert (document["total"], document["unreachable"]) == (254, [])
    assert document["operations"][1]["failed"] == 3
    found = repair(topology, "--dry-run")
    assert found.stdout.splitlines()[-1] == ("254 pending, 203 of them listed")
    found = json.loads(repair(topology, "--dry-run", "--json").stdout)
    assert (len(found["pending"]), found["total"]) == (203, 254)


def test_nothing_to_count(cluster, topology):
    assert cluster.count_pending() == []
    found = repair(topology, "--count")
    assert (found.exit_code, found.stdout) == (0, "0 pending\n")
    found = repair(topology, "--count", "--once")
    assert found.exit_code == 2


def leave_rows(
    cluster: Cluster, home: int, count: int, operation: str, error: str | None = None
) -> None:
    rows = [
        {
            "token": f"{home:08}{number:08}".encode(),
            "operation": operation,
            "arguments": "{}",
            "home_shard": home,
            "keyspace": "objects",
            "shard_id": 0,
            "attempts": 0,
            "error": error,
        }
        for number in range(count)
    ]
    statement = insert(INTENTS).values(created_at=ServerTime(), due_at=ServerTime())
    with cluster.begin() as session:
        places = session.places
        place = places.place(places.keyspace("objects", ""), home)
        session.execute(statement, rows, bind_arguments={"place": place})
