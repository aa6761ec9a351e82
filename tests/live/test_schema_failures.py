"""Revisions that fail, locks, lost servers and databases, signals."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from sqla_shard import schema
from tests.models.schema import on_servers, Project, runner_fixture, until
from tests.servers.kinds import Kind
from tests.workers.schema_runner import Runner

pytestmark = pytest.mark.live
runner = runner_fixture()
project = on_servers("schfail")

PINS = """
    op.execute("CREATE TABLE pins (n INT)")
    op.execute("INSERT INTO pins VALUES (1)")
"""
ALTER = 'op.execute("ALTER TABLE pins ADD ts INT")'
OTHER = 'op.execute("CREATE TABLE boards (n INT)")'
UPDATE = 'op.execute("UPDATE pins SET n = n + 1")'


def conditions(project):
    report = schema.status(project.config())
    return {one.shard_id: one.condition for one in report.shards}


def once(project, shard_ids=None):
    """Assert that every statement is in the ledgers once, and ended."""
    for shard_id in project.shards if shard_ids is None else shard_ids:
        ledger = project.ledger(shard_id)
        found = Counter((e["direction"], e["revision"], e["number"]) for e in ledger)
        assert set(found.values()) <= {1}, (shard_id, found)
        assert not any(e["is_open"] for e in ledger)
        assert {e["state"] for e in ledger} <= {"finished"}


# -- revisions that fail


def test_a_failed_statement_with_possible_effects_is_in_doubt(project):
    # What a procedure had done before its error is not known.
    create = "CREATE PROCEDURE inner_missing() CALL no_such_procedure()"
    call = "CALL inner_missing()"
    project.add("0001", f'op.execute("{create}")\nop.execute("{call}")')
    report = project.report("upgrade", "head", status=1)
    first, *others = report["shards"]
    assert first["state"] == "in doubt"
    assert "definitions of the tables do not" in first["error"]
    assert first["done"] is None
    assert {one["state"] for one in others} == {"not attempted"}
    assert conditions(project)[0] == "in doubt"


@pytest.mark.parametrize(
    ("broken", "error"),
    [
        ('op.execute("ALTER TABLE nothing ADD ts INT")', "nothing"),
        ('op.execute("ALTER TABLE pins ADD n INT")', "Duplicate column"),
        ('op.execute("ALTER TABLE pins AD ts INT")', "syntax"),
        ('op.execute("INSERT INTO pins VALUES (1, 2)")', "Column count"),
        ('op.execute("CREATE TRIGGER no_good")', "syntax"),
        ('op.execute("CREATE SEQUENCE s INCREMENT BY no")', "syntax"),
        ('op.execute("CALL no_such_procedure()")', "does not exist"),
        ('op.execute("CREATE TABLE pins SELECT 1")', "already exists"),
        ('raise ValueError("not on a Sunday")', "not on a Sunday"),
    ],
)
def test_a_failing_revision_goes_on_once_it_is_mended(project, broken, error):
    path = project.add("0001", f"{PINS}\n    {UPDATE}\n    {ALTER}")
    project.rewrite(path, ALTER, f"{broken}\n    {ALTER}")
    report = project.report("upgrade", "head", status=1)
    first, *others = report["shards"]
    assert first["state"] == "failed"
    assert error in first["error"]
    assert first["step"] == "upgrade of 0001"
    assert {one["state"] for one in others} == {"not attempted"}
    # A change of tables commits what is before it, and so do we before
    # what we do not know.
    rolled_back = "AD ts" in broken or "INSERT" in broken or "raise" in broken
    assert list(first["done"]) == [
        "CREATE TABLE pins (n INT)",
        *(
            []
            if rolled_back
            else ["INSERT INTO pins VALUES (1)", "UPDATE pins SET n = n + 1"]
        ),
    ]
    assert conditions(project) == {
        **dict.fromkeys(project.shards, "behind"),
        0: "failed",
    }
    again = project.alembic("upgrade", "head", status=1)
    assert error in again.stdout
    project.rewrite(path, f"{broken}\n    ", "")
    project.alembic("upgrade", "head")
    for shard_id in project.shards:
        assert project.query(shard_id, "SELECT n FROM {db}pins") == [(2,)]
        assert "`ts`" in project.tables(shard_id)["pins"]
    once(project)
    assert set(conditions(project).values()) == {"current"}


def test_a_statement_that_failed_is_not_skipped_after_another_failure(project):
    flag = project.directory / "flag"
    flagged = f'import pathlib\nassert not pathlib.Path("{flag}").exists()'
    project.add("0001", PINS)
    project.alembic("-x", "shards=0", "upgrade", "head")
    project.add("0002", f"{OTHER}\n{flagged}\n{ALTER}\n{UPDATE}")
    one = ("-x", "shards=0", "-x", "lock_wait=1", "upgrade", "head")
    with project.locked(0, "pins"):
        project.alembic(*one, status=1)
    flag.touch()
    for _ in range(2):
        project.alembic(*one, status=1)
        assert "`ts`" not in project.tables(0)["pins"]
    flag.unlink()
    project.alembic(*one)
    assert "`ts`" in project.tables(0)["pins"]
    assert project.query(0, "SELECT n FROM {db}pins") == [(2,)]
    once(project, [0])


def test_the_first_statement_fails(project):
    path = project.add("0001", 'op.execute("CREATE TABLE pins (n INTT)")')
    done = project.alembic("upgrade", "head", status=1)
    assert "no statement of the upgrade of 0001 has taken effect" in done.stdout
    assert "1 failed: 0" in done.stdout
    assert "3 not attempted: 1-3" in done.stdout
    project.rewrite(path, "INTT", "INT")
    project.alembic("upgrade", "head")
    once(project)


def test_continue_on_error_tries_every_shard(project):
    project.add("0001", PINS)
    for shard_id in (1, 2):
        project.query(shard_id, "CREATE TABLE {db}pins (other INT)")
    states = project.states("-x", "continue_on_error=yes", "upgrade", "head", status=1)
    assert states == {0: "changed", 1: "failed", 2: "failed", 3: "changed"}


def test_a_revision_may_not_go_to_another_database(project):
    _, other = project.place(1)
    project.add("0001", f'op.execute("USE {other}")\n{dedent(PINS)}')
    done = project.alembic("-x", "shards=0", "upgrade", "head", status=1)
    assert "must not change to another database" in done.stdout
    assert project.tables(0) == project.tables(1) == {}


def test_several_rows_outside_of_transactions_may_be_half_written(project):
    project.add("0001", PINS)
    project.alembic("-x", "shards=2", "upgrade", "head")
    project.add(
        "0002",
        'op.execute("ALTER TABLE pins ADD UNIQUE (n)")\n'
        "with op.get_context().autocommit_block():\n"
        "    op.get_bind().execute(\n"
        '        sa.text("UPDATE pins SET n = :new WHERE n = :old"),\n'
        '        [{"new": 5, "old": 1}, {"new": "x", "old": 5}],\n'
        "    )\n",
    )
    one = ("-x", "shards=2", "upgrade", "head")
    project.alembic(*one, status=1)
    assert project.query(2, "SELECT n FROM {db}pins") == [(5,)]
    assert conditions(project)[2] == "in doubt"
    assert project.states(*one, status=1) == {2: "in doubt"}


def test_savepoints(project):
    project.add("0001", PINS)
    project.add(
        "0002",
        """
        try:
            with op.get_bind().begin_nested():
                op.execute("INSERT INTO pins VALUES (2)")
                op.execute("INSERT INTO nothing VALUES (2)")
        except sa.exc.ProgrammingError:
            op.execute("INSERT INTO pins VALUES (3)")
        """,
    )
    project.alembic("upgrade", "head")
    for shard_id in project.shards:
        rows = project.query(shard_id, "SELECT n FROM {db}pins ORDER BY n")
        assert rows == [(1,), (3,)]


def test_a_shard_at_an_unknown_revision_is_named(project):
    project.provision()
    project.add("0001", PINS)
    project.alembic("-x", "shards=3", "upgrade", "head")
    project.query(3, "UPDATE {db}alembic_version SET version_num = 'lost'")
    report = project.report("upgrade", "head", status=1)
    assert report["shards"][3]["state"] == "failed"
    assert "it is at lost" in report["shards"][3]["error"]
    assert report["shards"][0]["state"] == "not attempted"
    states = project.states("-x", "continue_on_error=yes", "upgrade", "head", status=1)
    assert list(states.values()) == ["changed"] * 3 + ["failed"]
    project.alembic("-x", "shards=3", "stamp", "--purge", "0001")
    assert project.heads(3) == ["0001"]


# -- locks and other runners


@pytest.mark.parametrize("how", ["table", "transaction"])
def test_a_table_in_use_is_reported(project, how):
    project.add("0001", PINS)
    project.alembic("upgrade", "head")
    project.add("0002", ALTER)
    server, database = project.place(1)
    connection = project.servers[server].root_connect(ssl_disabled=True)
    with connection, connection.cursor() as cursor:
        if how == "table":
            cursor.execute(f"LOCK TABLES {database}.pins READ")
        else:
            cursor.execute("BEGIN")
            cursor.execute(f"SELECT * FROM {database}.pins")
        report = project.report(
            *("-x", "lock_wait=1", "-x", "continue_on_error=yes"),
            *("upgrade", "head"),
            status=1,
        )
    states = [one["state"] for one in report["shards"]]
    assert states == ["changed", "failed", "changed", "changed"]
    assert "Lock wait timeout" in report["shards"][1]["error"]
    assert report["shards"][1]["database"] == database
    assert report["shards"][1]["seconds"] < 10
    project.alembic("upgrade", "head")
    once(project, [0, 2, 3])
    assert "`ts`" in project.tables(1)["pins"]


def test_two_runners_at_once(project):
    project.add("0001", PINS)
    project.add("0002", f"{UPDATE}\n{ALTER}")
    runs = [project.start("upgrade", "head") for _ in range(2)]
    for run in runs:
        done = run.wait()
        assert done.returncode == 0, done.shown
    once(project)
    for shard_id in project.shards:
        assert project.query(shard_id, "SELECT n FROM {db}pins") == [(2,)]
        assert len(project.ledger(shard_id)) == 4


def test_two_runners_and_one_that_does_not_wait(project):
    project.add("0001", PINS)
    project.alembic("upgrade", "head")
    project.add("0002", ALTER)
    with project.locked(0, "pins"):
        run = project.start("-x", "lock_wait=60", "upgrade", "head")
        project.until_running(0, "ALTER TABLE pins%")
        states = project.states(
            *("-x", "runner_wait=0", "-x", "continue_on_error=yes"),
            *("upgrade", "head"),
            status=1,
        )
    assert states == {
        **dict.fromkeys(project.shards, "changed"),
        0: "another runner is at work",
    }
    assert run.wait().returncode == 0
    once(project)


# -- signals


def test_a_signal_is_not_lost_in_a_revision_that_catches_errors(project):
    caught = f"try:\n    {UPDATE}\nexcept Exception:\n    pass"
    project.add("0001", PINS)
    project.alembic("upgrade", "head")
    project.add("0002", f"{ALTER}\n{caught}")
    with project.locked(0, "pins"):
        run = project.start("-x", "lock_wait=60", "upgrade", "head")
        project.until_running(0, "ALTER TABLE pins%")
        run.signal_group(signal.SIGTERM)
        until(lambda: "stopping:" in run.said(), "an answer")
    done = run.wait()
    assert "1 interrupted, the next run goes on: 0" in done.stdout
    assert project.heads(0) == ["0001"]
    project.alembic("upgrade", "head")
    assert project.query(0, "SELECT n FROM {db}pins") == [(2,)]
    once(project)


@pytest.mark.parametrize(
    ("number", "to_all"), [(signal.SIGINT, True), (signal.SIGTERM, False)]
)
def test_a_signal_lets_statements_end(project, number, to_all):
    project.add("0001", PINS)
    project.alembic("upgrade", "head")
    project.add("0002", f"{ALTER}\n{UPDATE}")
    with project.locked(0, "pins"):
        run = project.start("-x", "lock_wait=60", "upgrade", "head")
        project.until_running(0, "ALTER TABLE pins%")
        if to_all:
            run.signal_group(number)
        else:
            run.signal_parent(number)
        # The worker's statement would end, and the next begin, before the
        # parent has handed the signal on.
        until(lambda: "stopping:" in run.said(), "an answer")
    done = run.wait()
    assert done.returncode == 1, done.shown
    assert "Traceback" not in done.stderr
    assert "(interrupted)" in done.stdout
    assert "1 interrupted, the next run goes on: 0" in done.stdout
    assert "3 not attempted: 1-3" in done.stdout
    assert conditions(project)[0] == "interrupted"
    assert "`ts`" in project.tables(0)["pins"]
    assert project.query(0, "SELECT n FROM {db}pins") == [(1,)]
    project.alembic("upgrade", "head")
    assert project.query(0, "SELECT n FROM {db}pins") == [(2,)]
    once(project)


# -- databases and servers that are not there


def test_a_database_that_is_missing(project):
    project.add("0001", PINS)
    server, database = project.place(2)
    project.query(2, f"DROP DATABASE {database}")
    report = project.report("upgrade", "head", status=1)
    states = [one["state"] for one in report["shards"]]
    assert states[2] == "no such database"
    assert states[0] == states[1] == states[3] == "not attempted"
    assert database in report["shards"][2]["error"]
    assert "sqla-shard schema provision" in report["shards"][2]["error"]
    assert project.tables(0) == {}
    states = project.states("-x", "continue_on_error=yes", "upgrade", "head", status=1)
    assert [states[i] for i in (0, 1, 3)] == ["changed"] * 3
    assert project.query(2, f"SHOW DATABASES LIKE '{database}'") == []
    assert conditions(project)[2] == "no such database"
    done = project.alembic("current", status=255)
    assert f"shard 2 ({database} on {server})" in done.stderr + done.stdout


@pytest.fixture
def own(server_kind: Kind, runner: Runner, tmp_path: Path) -> Iterator[Any]:
    """Servers that may be killed."""
    with server_kind.fleet(servers=2, shards=4, fast=True) as fleet:
        fleet.create_databases()
        document = fleet.topology_mapping()
        project = Project(tmp_path, document, fleet.servers, runner)
        yield project, fleet
        project.close()


def test_a_server_that_dies_and_comes_back(own):
    project, fleet = own
    project.add("0001", PINS)
    project.alembic("upgrade", "head")
    project.add("0002", f"{UPDATE}\n{ALTER}\n{UPDATE}")
    with project.locked(2, "pins"):
        run = project.start(
            *("-x", "lock_wait=60", "-x", "continue_on_error=yes"),
            *("-x", "jobs=1", "upgrade", "head"),
        )
        project.until_running(2, "%pins%")
        fleet.servers[1].kill()
    done = run.wait()
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "The connection was lost" in done.stdout
    assert "2 changed: 0-1" in done.stdout
    assert "1 failed: 2" in done.stdout
    assert " unreachable (" in done.stdout
    assert ": 1 shard 3: " in done.stdout
    assert project.alembic("upgrade", "head", status=1)
    assert conditions(project) == {
        **dict.fromkeys((0, 1), "current"),
        **dict.fromkeys((2, 3), "server not reached"),
    }
    fleet.servers[1].start()
    project.close()
    project.alembic("upgrade", "head")
    once(project)
    for shard_id in project.shards:
        assert project.query(shard_id, "SELECT n FROM {db}pins") == [(3,)]
        assert "`ts`" in project.tables(shard_id)["pins"]
