"""Alembic's commands on every virtual shard, on real servers."""

from __future__ import annotations

import json
import os
import pty
import select
import subprocess
import sys
from pathlib import Path

import pytest

from sqla_shard import schema
from sqla_shard.exc import MigrationFailedError, SchemaOptionError
from sqla_shard.schema import RunOptions, State
from tests.models.schema import on_servers, runner_fixture
from tests.servers.command_line import without_progress

pytestmark = pytest.mark.live
runner = runner_fixture()
project = on_servers("schcmd", main="main_schcmd")

PINS = """
    op.create_table(
        "pins",
        sa.Column("id", sa.BigInteger, primary_key=True),
        sa.Column("body", sa.Text),
    )
"""
TS = 'op.add_column("pins", sa.Column("ts", sa.Integer))'


@pytest.fixture
def two(project):
    project.add("0001", PINS, 'op.drop_table("pins")')
    project.add("0002", TS, 'op.drop_column("pins", "ts")')
    return project


def test_upgrade_and_downgrade_change_every_shard(two):
    assert two.states("upgrade", "0001") == dict.fromkeys(two.shards, "changed")
    assert two.states("upgrade", "+1") == dict.fromkeys(two.shards, "changed")
    for shard_id in two.shards:
        assert two.heads(shard_id) == ["0002"]
        assert "`ts`" in two.tables(shard_id)["pins"]
    done = two.alembic("upgrade", "head")
    assert "upgrade to head: 4 virtual shards of objects in" in done.stdout
    assert "4 nothing to do: 0-3" in done.stdout
    two.alembic("downgrade", "-1")
    for shard_id in two.shards:
        assert two.heads(shard_id) == ["0001"]
        assert "`ts`" not in two.tables(shard_id)["pins"]
    two.alembic("downgrade", "base")
    for shard_id in two.shards:
        assert two.heads(shard_id) == []
        assert two.tables(shard_id) == {}
        steps = [(e["direction"], e["revision"]) for e in two.ledger(shard_id)]
        assert steps == [
            ("upgrade", "0001"),
            ("upgrade", "0002"),
            ("downgrade", "0002"),
            ("downgrade", "0001"),
        ]


def test_a_relative_target_of_shards_that_differ_is_refused(two):
    two.alembic("upgrade", "0001")
    two.alembic("-x", "shards=2-3", "upgrade", "head")
    for arguments in (["upgrade", "+1"], ["downgrade", "-1"]):
        done = two.alembic(*arguments, status=255)
        assert "means another revision on each of these" in done.stdout
        assert "0001 on shards 0-1; 0002 on shards 2-3" in done.stdout
    two.alembic("-x", "shards=0,1", "upgrade", "+1")
    two.alembic("downgrade", "-1")
    assert {tuple(two.heads(i)) for i in two.shards} == {("0001",)}


def test_stamp_current_and_the_other_commands(two):
    done = two.alembic("stamp", "0001")
    assert "stamp to 0001: 4 virtual shards" in done.stdout
    assert two.tables(3) == {}
    two.alembic("-x", "shards=1", "stamp", "head")
    done = two.alembic("current")
    assert done.stdout.split("\n")[:4] == [
        "3 of objects: 0, 2-3",
        "0001",
        "1 of objects: 1",
        "0002 (head)",
    ]
    done = two.alembic("current", "-v")
    assert "Parent: 0001" in done.stdout
    assert two.servers["server1"].password not in done.stdout + done.stderr
    two.alembic("current", "--check-heads", status=255)
    two.alembic("-x", "shards=1", "current", "--check-heads")
    two.alembic("stamp", "--purge", "0002")
    two.alembic("current", "--check-heads")
    assert "0002 (head)" in two.alembic("heads").stdout
    assert "0001 -> 0002 (head)" in two.alembic("history").stdout
    done = two.alembic("history", "-i", status=255)
    assert "is not supported on virtual shards" in done.stdout
    two.alembic("ensure_version")


def test_upgrade_sql_is_printed_once(two):
    done = two.alembic("upgrade", "head", "--sql")
    sql = done.stdout
    assert "for each of 4 databases: db_schcmd_00000 to db_schcmd" in sql
    assert sql.count("CREATE TABLE pins") == 1
    assert sql.count("ALTER TABLE pins ADD COLUMN ts INTEGER;") == 1
    assert two.tables(0) == {}
    done = two.alembic("downgrade", "0002:base", "--sql")
    assert done.stdout.count("DROP TABLE pins;") == 1


def test_unknown_targets_and_options_that_are_nearly_ours(two):
    done = two.alembic("upgrade", "nosuch", status=255)
    assert "nosuch" in done.stdout
    for option, meant in (
        ("shard=1", "shards"),
        ("server=server1", "servers"),
        ("continue-on-errors=1", "continue_on_error"),
        ("lockwait=1", "lock_wait"),
    ):
        done = two.alembic("-x", option, "upgrade", "head", status=255)
        assert f"did you mean {meant}?" in done.stdout
    for option in (
        "shards=9",
        "shards=2-1",
        "shards=",
        "shards",
        "servers=server9",
        "jobs=0",
        "jobs=x",
        "wave=0",
        "pause=-1",
        "lock_wait=long",
        "runner_wait=nan",
        "continue_on_error=maybe",
        "reference=-1",
    ):
        done = two.alembic("-x", option, "upgrade", "head", status=255)
        assert "Traceback" not in done.stderr, done.shown
        assert option.partition("=")[0].split("_")[0].rstrip("s") in (done.stdout)
    assert two.tables(0) == {}
    # One of another application.
    two.alembic("-x", "tenant=5", "upgrade", "head")


def test_shards_and_servers(two):
    states = two.states("-x", "shards=0-1,3", "upgrade", "head")
    assert states == dict.fromkeys((0, 1, 3), "changed")
    new = ("-x", "new=2")
    assert two.states("-x", "servers=server2", *new, "upgrade", "head") == {
        2: "changed",
        3: "nothing to do",
    }
    done = two.alembic(
        *("-x", "servers=server1", "-x", "shards=3", "upgrade", "head"), status=255
    )
    assert "none of the selected virtual shards" in done.stdout


def test_waves(two):
    # The first shard alone, then two, then the last one.
    order = []

    class Noting(schema.reports.CommandProgress):
        def advance(self, outcome):
            order.append(outcome.shard_id)

    options = RunOptions(wave=2, pause=0.01, jobs=1)
    report = schema.upgrade(two.config(), options=options, progress=Noting())
    assert report.ok
    assert order[0] == 0
    assert set(order[1:3]) == {1, 2}
    assert order[3] == 3


def test_the_first_shard_alone_meets_an_error(two):
    for shard_id in two.shards:
        two.query(shard_id, "CREATE TABLE {db}pins (id INT)")
    report = two.report("upgrade", "head", status=1)
    assert [one["state"] for one in report["shards"]] == [
        "failed",
        *["not attempted"] * 3,
    ]
    assert report["counts"]["not attempted"] == 3


def test_the_report_as_json(two):
    report = two.report("upgrade", "head")
    assert report["command"] == "upgrade"
    assert report["target"] == "head"
    assert report["keyspace"] == "objects"
    assert report["ok"] is True
    assert report["interrupted"] is False
    assert report["counts"]["changed"] == 4
    one = report["shards"][3]
    assert one["shard_id"] == 3
    assert one["server"], one["database"] == two.place(3)
    assert one["steps"] == ["upgrade of 0001", "upgrade of 0002"]
    assert one["statements"] == 2
    assert one["error"] is None


def test_the_functions(two):
    config = two.config()
    assert not schema.status(config).ok
    report = schema.upgrade(config, "0001")
    assert report.ok
    assert len(report.of(State.CHANGED)) == 4
    found = schema.status(config)
    assert [one.condition for one in found.shards] == ["behind"] * 4
    assert found.histogram() == {("0001",): [0, 1, 2, 3]}
    assert "4 at 0001: 0-3" in str(found)
    assert json.dumps(found.as_dict())
    two.query(2, "ALTER TABLE {db}pins ADD ts INT")
    with pytest.raises(MigrationFailedError, match="Duplicate") as raised:
        schema.upgrade(config, options=RunOptions(continue_on_error=True))
    assert raised.value.shards == (2,)
    assert raised.value.report["counts"]["changed"] == 3
    assert schema.status(config).shards[2].condition == "failed"
    two.query(2, "ALTER TABLE {db}pins DROP ts")
    assert schema.upgrade(config).ok
    assert schema.status(config).ok
    assert schema.downgrade(config, "base").ok
    with pytest.raises(SchemaOptionError):
        schema.upgrade(config, options=RunOptions(shards=(0,), jobs=0))


def test_a_keyspace_with_revisions_of_its_own(two):
    two.add("m1", 'op.execute("CREATE TABLE users (n INT)")', tree="migrations_main")
    server = two.servers["server1"]
    server.root_execute("DROP DATABASE IF EXISTS main_schcmd")
    server.root_execute("CREATE DATABASE main_schcmd")
    done = two.alembic("--name", "main", "upgrade", "head")
    assert "1 virtual shard of main in" in done.stdout
    rows = server.root_execute("SHOW TABLES IN main_schcmd")
    assert {"users", "alembic_version"} <= {row[0] for row in rows}
    assert "users" not in two.tables(0)
    two.alembic("upgrade", "head")
    assert set(two.tables(0)) == {"pins"}


ROOT = Path(__file__).parents[2]
ENVIRON = {**os.environ, "PYTHONPATH": str(ROOT)}


def on_terminal(project, *arguments):
    """Run alembic's command line on a terminal; return its output."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "alembic", "-c", project.ini, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
        env={**ENVIRON, "TERM": "xterm", "COLUMNS": "100"},
        start_new_session=True,
    )
    os.close(theirs)
    shown = b""
    while select.select([ours], [], [], 60)[0]:
        try:
            part = os.read(ours, 65536)
        except OSError:
            break  # Linux reports the end of a terminal in this way.
        if not part:
            break
        shown += part
    os.close(ours)
    assert process.wait(60) == 0, shown
    return shown


@pytest.mark.thorough
def test_the_command_line_itself_on_a_pipe_and_on_a_terminal(two):
    command = [sys.executable, "-W", "error", "-m", "alembic", "-c", two.ini]
    done = subprocess.run(
        [*command, "upgrade", "0001"],
        capture_output=True,
        text=True,
        env=ENVIRON,
        check=True,
    )
    assert done.stdout.startswith("upgrade to 0001: 4 virtual shards of obj")
    assert "  4 changed: 0-3" in done.stdout
    assert without_progress(done.stderr) == (
        "upgrade to 0001: 4 of 4 virtual shards to do\n"
    )
    shown = on_terminal(two, "upgrade", "head")
    assert b"4/4" in shown
    assert b"4 changed: 0-3" in shown
    assert b"virtual shards to do" not in shown


def test_a_failing_command_ends_without_a_traceback(two):
    two.query(0, "CREATE TABLE {db}pins (id INT)")
    done = two.alembic("upgrade", "head", status=1)
    first, second = without_progress(done.stderr).splitlines()
    assert first == "upgrade to head: 4 of 4 virtual shards to do"
    assert second.startswith("db_schcmd_00000 on server1: failed: (1050, ")
    assert "upgrade of 0001" in done.stdout


def test_a_revision_knows_its_shard(project):
    project.add(
        "0001",
        """
        from sqla_shard.schema import current_shard
        shard = current_shard()
        op.execute("CREATE TABLE told (n INT, name TEXT)")
        op.execute(
            f"INSERT INTO told VALUES ({shard.shard_id}, '{shard.database}')"
        )
        """,
    )
    project.alembic("upgrade", "head")
    for shard_id in project.shards:
        _, database = project.place(shard_id)
        rows = project.query(shard_id, "SELECT * FROM {db}told")
        assert rows == [(shard_id, database)]
    done = project.alembic("upgrade", "head", "--sql", status=255)
    assert "cannot be printed" in done.stdout


def test_no_thread_runs_when_processes_are_forked(two):
    # From Python 3.12 on that is warned of; locks may be held for ever.
    path = two.directory / "migrations" / "env.py"
    note = two.directory / "threads"
    path.write_text(
        "import os, threading\n"
        "def note():\n"
        f"    with open({str(note)!r}, 'a') as file:\n"
        "        for thread in threading.enumerate():\n"
        "            print(thread.name, file=file)\n"
        "os.register_at_fork(before=note)\n" + path.read_text()
    )
    two.alembic("upgrade", "0001")
    on_terminal(two, "upgrade", "head")
    found = note.read_text().splitlines()
    assert len(found) == 8
    assert set(found) == {"MainThread"}
