"""Runs that are killed: the next one goes on where they were."""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter

import pymysql
import pytest

from sqla_shard.schema.replay import is_static
from tests.models.schema import on_servers, runner_fixture, until

pytestmark = pytest.mark.live
runner = runner_fixture()
project = on_servers("schkill", shards=16)

SOAK = os.environ.get("SQLA_SHARD_SOAK") == "1"
SEEDS = 20 if SOAK else 3
KILLS = 5 if SOAK else 3

# As a person would write them to a server, for comparison.
FIRST = [
    (
        "CREATE TABLE pins (id BIGINT NOT NULL AUTO_INCREMENT, "
        "body VARCHAR(50), n INTEGER NOT NULL, PRIMARY KEY (id))"
    ),
    "INSERT INTO pins (body, n) VALUES ('100% a', 0)",
    "INSERT INTO pins (body, n) VALUES ('b', 0)",
    "CREATE INDEX by_body ON pins (body)",
    "UPDATE pins SET n = n + 1",
    "ALTER TABLE pins ADD COLUMN ts INTEGER",
    "UPDATE pins SET n = n * 3, ts = 7",
    "CREATE TABLE boards (id BIGINT NOT NULL, PRIMARY KEY (id))",
    "INSERT INTO boards (id) VALUES (5)",
    "ALTER TABLE boards RENAME TO cards",
    "ALTER TABLE pins DROP COLUMN ts",
    "DROP INDEX by_body ON pins",
    "INSERT INTO pins (body, n) SELECT body, n + 10 FROM pins",
    "CREATE UNIQUE INDEX by_n ON pins (n, id)",
]
SECOND = [
    "UPDATE pins SET n = n + 1",
    "ALTER TABLE cards ADD COLUMN name TEXT",
    "DELETE FROM pins WHERE n > 13",
]
UPGRADE = """
    op.create_table(
        "pins",
        sa.Column("id", sa.BigInteger, primary_key=True),
        sa.Column("body", sa.String(50)),
        sa.Column("n", sa.Integer, nullable=False),
    )
    pins = sa.table("pins", sa.column("body"), sa.column("n"))
    op.bulk_insert(pins, [{"body": "100% a", "n": 0}], multiinsert=False)
    op.execute(pins.insert().values(body="b", n=0))
    op.create_index("by_body", "pins", ["body"])
    op.execute(pins.update().values(n=pins.c.n + 1))
    op.add_column("pins", sa.Column("ts", sa.Integer))
    op.execute("UPDATE pins SET n = n * 3, ts = 7")
    op.create_table(
        "boards",
        sa.Column("id", sa.BigInteger, primary_key=True, autoincrement=False),
    )
    op.execute("INSERT INTO boards (id) VALUES (5)")
    op.rename_table("boards", "cards")
    op.drop_column("pins", "ts")
    op.drop_index("by_body", "pins")
    op.execute("INSERT INTO pins (body, n) SELECT body, n + 10 FROM pins")
    op.create_index("by_n", "pins", ["n", "id"], unique=True)
"""
UPGRADE_MORE = """
    op.execute("UPDATE pins SET n = n + 1")
    op.add_column("cards", sa.Column("name", sa.Text))
    op.execute("DELETE FROM pins WHERE n > 13")
"""
ROWS = "SELECT body, n FROM {db}pins ORDER BY id"


def arranged(project):
    project.provision()
    project.add("0001", UPGRADE)
    project.add("0002", UPGRADE_MORE)
    return len(FIRST)


def expected(project):
    """Run the statements on the first shard's server, in a database apart."""
    _, database = project.place(0)
    name = f"{database}_expected"
    project.query(0, f"DROP DATABASE IF EXISTS {name}")
    project.query(
        0, f"CREATE DATABASE {name} CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"
    )
    project.query(0, f"USE {name}")
    try:
        for statement in [*FIRST, *SECOND]:
            project.query(0, statement)
        tables = {
            table: project.query(0, f"SHOW CREATE TABLE {table}")[0][1]
            for table in ("pins", "cards")
        }
        rows = project.query(0, ROWS.format(db=""))
    finally:
        project.query(0, f"DROP DATABASE {name}")
    return project.without_counters(tables), rows


def check(project):
    """Assert that every statement took effect once, as in the ledger."""
    tables, rows = expected(project)
    wanted = Counter(
        [("0001", number) for number in range(len(FIRST))]
        + [("0002", number) for number in range(len(SECOND))]
    )
    for shard_id in project.shards:
        assert project.heads(shard_id) == ["0002"]
        assert project.tables(shard_id) == tables
        assert project.query(shard_id, ROWS) == rows
        ledger = project.ledger(shard_id)
        found = Counter((e["revision"], e["number"]) for e in ledger)
        assert found == wanted, shard_id
        assert {e["state"] for e in ledger} == {"finished"}
        assert not any(e["is_open"] for e in ledger)


def entries(project, shard_id):
    try:
        return len(project.ledger(shard_id))
    except pymysql.err.ProgrammingError:
        return 0  # There is no ledger yet.


def until_at(project, run, rng):
    """Wait until a run is at some statement of some shard, or has ended.

    :returns: whether it runs.
    """
    # Of those at the end of a server a run is done before it is looked at.
    shard_id = rng.choice([i for i in project.shards if i % 8 < 5])
    least = entries(project, shard_id) + rng.randint(1, 6)
    until(
        lambda: run.has_ended() or entries(project, shard_id) >= least,
        "so many entries",
    )
    threading.Event().wait(rng.uniform(0, 0.02))
    return not run.has_ended()


@pytest.mark.parametrize("seed", range(SEEDS))
def test_kill_of_all_processes(project, rng, seed):
    arranged(project)
    kills = 0
    for _ in range(KILLS):
        run = project.start("-x", "jobs=2", "upgrade", "head")
        kills += until_at(project, run, rng)
        run.kill()
    assert kills
    project.alembic("upgrade", "head")
    check(project)


def test_kill_of_the_parent_alone(project, rng):
    arranged(project)
    for _ in range(2):
        run = project.start("-x", "jobs=2", "upgrade", "head")
        until_at(project, run, rng)
        # Or it may end between a look at it and the signal.
        run.stop_parent()
        running = not run.has_ended()
        workers = run.workers()
        run.signal_parent(signal.SIGKILL)
        done = run.wait()
        assert done.returncode == (-signal.SIGKILL if running else 0)
        # Each ends with the shard that it is at.
        until(lambda left=workers: not any(map(alive, left)), "no worker")
    project.alembic("upgrade", "head")
    check(project)


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_kill_of_one_worker(project, rng):
    arranged(project)
    run = project.start(
        "-x", "jobs=2", "-x", "continue_on_error=yes", "upgrade", "head"
    )
    assert until_at(project, run, rng)
    victim = rng.choice(run.workers())
    os.kill(victim, signal.SIGKILL)
    done = run.wait()
    if done.returncode:
        assert "ended with status -9" in done.stdout
        assert "Traceback" not in done.stderr
        assert done.stdout.count("ended with status") == 1
    project.alembic("upgrade", "head")
    check(project)


def test_kill_of_a_worker_that_waits_for_its_first_shard(project):
    project.add("0001", 'op.execute("CREATE TABLE pins (n INT)")')
    project.alembic("upgrade", "head")
    project.add("0002", 'op.execute("ALTER TABLE pins ADD ts INT")')
    with project.locked(0, "pins"):
        run = project.start(
            *("-x", "jobs=1", "-x", "continue_on_error=yes"),
            *("-x", "lock_wait=60", "upgrade", "head"),
        )
        project.until_running(0, "ALTER TABLE pins%")
        # One for each server; the first shard is tried alone.
        _, idle = run.workers()
        os.kill(idle, signal.SIGKILL)
        until(lambda: not alive(idle), "its end")
    done = run.wait()
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    # Another process takes its place.
    assert "15 changed: 0-7, 9-15" in done.stdout
    assert "1 failed: 8" in done.stdout
    assert "ended with status -9" in done.stdout
    project.alembic("upgrade", "head")
    for shard_id in project.shards:
        assert "`ts`" in project.tables(shard_id)["pins"]
        assert len(project.ledger(shard_id)) == 2


CHANGES = """
    op.create_table("pins", sa.Column("n", sa.Integer))
    op.add_column("pins", sa.Column("a", sa.Integer))
    op.create_index("by_a", "pins", ["a"])
    op.add_column("pins", sa.Column("b", sa.Integer))
    op.drop_index("by_a", table_name="pins")
    op.drop_column("pins", "a")
    op.add_column("pins", sa.Column("a", sa.BigInteger))
    op.rename_table("pins", "cards")
"""


@pytest.mark.parametrize("replay", ["yes", "no"] if SOAK else ["yes"])
def test_kill_in_changes_of_tables_alone(project, rng, replay):
    # Such a revision is run once; to other shards its statements are sent.
    project.provision()
    path = project.add("0001", CHANGES)
    assert is_static(str(path), "upgrade")
    arguments = ("-x", "jobs=2", "-x", f"replay={replay}", "upgrade", "head")
    for _ in range(KILLS):
        run = project.start(*arguments)
        until_at(project, run, rng)
        run.kill()
    project.alembic(*arguments)
    for shard_id in project.shards:
        assert list(project.tables(shard_id)) == ["cards"]
        columns = project.query(shard_id, "SHOW COLUMNS FROM {db}cards")
        assert [column[0] for column in columns] == ["n", "b", "a"]
        ledger = project.ledger(shard_id)
        assert [e["number"] for e in ledger] == list(range(8))
        assert not any(e["is_open"] for e in ledger)
        assert {e["state"] for e in ledger} == {"finished"}
