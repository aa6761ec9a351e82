"""Runs of several revisions, which all processes replay as one plan."""

from __future__ import annotations

import re
import signal
import threading

import pytest

from sqla_shard.schema.replay import is_static
from tests.models.schema import on_servers, Project, runner_fixture, until
from tests.workers.schema_runner import Finished

pytestmark = pytest.mark.live
runner = runner_fixture()
project = on_servers("schsev", shards=8)

INDEXED = "".join(f'sa.Column("{name}", sa.Integer, index=True), ' for name in "cab")
REVISIONS = {
    "0001": f"""
    op.create_table(
        "boards",
        sa.Column("id", sa.BigInteger, primary_key=True),
        {INDEXED}
        sa.Column("title", sa.String(50), comment="at most 100%s"),
    )
    op.create_table(
        "pins",
        sa.Column("id", sa.BigInteger, primary_key=True),
        sa.Column("board_id", sa.BigInteger, nullable=False),
        sa.ForeignKeyConstraint(["board_id"], ["boards.id"], name="pin_of"),
    )
    """,
    # Without statements.
    "0002": "pass",
    "0003": """
    op.add_column("pins", sa.Column("link", sa.String(20)))
    op.create_index("by_link", "pins", ["link"])
    """,
    "0004": """
    op.create_table("notes", sa.Column("n", sa.Integer, index=True))
    op.drop_table("notes")
    """,
    # The name of a table that the same plan has created and dropped.
    "0005": 'op.create_table("notes", sa.Column("m", sa.Integer))',
}
DOWN = {
    "0001": "op.drop_table('pins')\nop.drop_table('boards')",
    "0003": "op.drop_index('by_link', 'pins')\nop.drop_column('pins', 'link')",
    "0005": "op.drop_table('notes')",
}
UP = ("-x", "jobs=2", "-x", "new=0-7", "upgrade")
#: A shard that is not the first of its server.
SHARD = 6


def runs(done: Finished) -> int:
    """Return how often alembic has run one of the revisions.

    Those of the tables of the package have a title.
    """
    return len(re.findall(r"Running .* -> \d{4}$", done.stderr, re.M))


def arranged(project: Project) -> None:
    for number, text in REVISIONS.items():
        path = str(project.add(number, text, DOWN.get(number, "pass")))
        assert is_static(path, "upgrade")
        assert is_static(path, "downgrade")
    project.replace_in_env(
        "run_env(", "import logging\nlogging.basicConfig(level=logging.INFO)\nrun_env("
    )


def check(project: Project) -> None:
    """Check that all shards have the schema of the first one."""
    wanted = project.tables(0)
    assert sorted(wanted) == ["boards", "notes", "pins"]
    sent = statements(project, 0)
    assert [(e[0], e[1]) for e in sent] == [
        *(("0001", n) for n in range(5)),
        *(("0003", n) for n in range(2)),
        *(("0004", n) for n in range(3)),
        ("0005", 0),
    ]
    for shard_id in project.shards:
        assert project.tables(shard_id) == wanted, shard_id
        assert project.heads(shard_id) == ["0005"]
        assert statements(project, shard_id) == sent


def statements(project: Project, shard_id: int) -> list[tuple[str, int, str]]:
    ledger = project.ledger(shard_id)
    assert {(e["state"], e["is_open"]) for e in ledger} == {("finished", 0)}
    return [(e["revision"], e["number"], e["statement"]) for e in ledger]


def test_alembic_runs_on_the_first_shard_alone(project):
    arranged(project)
    done = project.alembic(*UP, "head")
    assert runs(done) == len(REVISIONS)
    check(project)


def test_back_to_the_beginning_and_up_again(project):
    arranged(project)
    project.alembic(*UP, "head")
    done = project.alembic("-x", "jobs=2", "downgrade", "0002")
    assert runs(done) == 3
    for shard_id in project.shards:
        assert sorted(project.tables(shard_id)) == ["boards", "pins"]
        assert project.heads(shard_id) == ["0002"]
    # 0003 changes what 0001 has created before this run.
    done = project.alembic("-x", "jobs=2", "upgrade", "head")
    assert runs(done) == 3
    wanted = project.tables(0)
    for shard_id in project.shards:
        assert project.tables(shard_id) == wanted
        assert project.heads(shard_id) == ["0005"]


def test_a_revision_without_statements_comes_first(project):
    arranged(project)
    project.alembic(*UP, "0001")
    done = project.alembic("-x", "jobs=2", "upgrade", "0003")
    assert runs(done) == 2
    for shard_id in project.shards:
        assert project.tables(shard_id) == project.tables(0)
        assert project.heads(shard_id) == ["0003"]


def test_a_shard_at_one_of_the_revisions_takes_only_the_others(project):
    arranged(project)
    project.alembic(*UP[:2], "-x", f"shards={SHARD}", *UP[2:], "0003")
    project.alembic(*UP, "head")
    check(project)


def test_the_statement_of_a_later_revision_is_refused(project):
    arranged(project)
    project.alembic("-x", f"shards={SHARD}", *UP, "0001")
    name = "notes"
    project.query(SHARD, f"CREATE TABLE {{db}}{name} (other INT)")
    arguments = ("-x", "continue_on_error=yes", *UP, "head")
    # 0001 is applied everywhere, so that the shard has the plan of others.
    project.alembic(*UP, "0001")
    report = project.report(*arguments, status=1)
    found = report["shards"][SHARD]
    assert found["state"] == "failed"
    assert "'notes' already exists" in found["error"]
    assert found["step"] == "upgrade of 0004"
    assert found["steps"] == ["upgrade of 0002", "upgrade of 0003"]
    assert project.heads(SHARD) == ["0003"]
    still = [e for e in project.ledger(SHARD) if e["is_open"]]
    assert [(e["revision"], e["state"]) for e in still] == [("0004", "failed")]
    project.query(SHARD, f"DROP TABLE {{db}}{name}")
    project.alembic(*arguments)
    check(project)


def test_a_stop_between_two_revisions(project):
    arranged(project)
    project.alembic(*UP, "0001")
    with project.locked(SHARD, "pins"):
        run = project.start(*("-x", "lock_wait=60", "-x", "jobs=1", "upgrade", "head"))
        project.until_running(SHARD, "ALTER TABLE pins ADD%")
        run.signal_group(signal.SIGINT)
    done = run.wait()
    assert done.returncode == 1
    found = {shard_id: project.heads(shard_id) for shard_id in project.shards}
    assert found[SHARD] == ["0002"]
    project.alembic("upgrade", "head")
    check(project)


def test_connections_and_runners_that_are_killed(project, rng):
    arranged(project)
    project.provision()
    for kills_the_runner in (True, False, True, False):
        run = project.start("-x", "continue_on_error=yes", *UP, "head")
        until(lambda run=run: run.has_ended() or some_entries(project, rng), "an entry")
        threading.Event().wait(rng.uniform(0, 0.1))
        if kills_the_runner:
            run.kill()
            continue
        while not run.has_ended():
            shard_id = rng.choice(project.shards)
            for like in ("CREATE %", "ALTER %", "DROP %"):
                for connection in project.running(shard_id, like):
                    project.end(shard_id, connection)
    project.alembic(*UP, "head")
    check(project)


def some_entries(project: Project, rng) -> bool:
    return bool(project.ledger(rng.choice(project.shards)))


def test_another_server_runs_alembic(project):
    arranged(project)
    mode = project.query(SHARD, "SELECT @@GLOBAL.sql_mode")[0][0]
    project.query(SHARD, f"SET GLOBAL sql_mode = '{mode},HIGH_NOT_PRECEDENCE'")
    try:
        done = project.alembic(*UP, "head")
    finally:
        project.query(SHARD, f"SET GLOBAL sql_mode = '{mode}'")
    # On the first shard, and on the first of each process of that server.
    assert runs(done) in [len(REVISIONS) * n for n in (2, 3)]
    check(project)


@pytest.mark.parametrize("value", ["first", "second"])
def test_a_killed_run_goes_on_with_the_values_of_the_first_shard(project, value):
    """Also where statements are skipped, which were sent before the kill."""
    values, flag = project.directory / "value", project.directory / "flag"
    values.write_text("first")
    flag.touch()
    project.provision()
    project.add(
        "0001",
        f"""
    import os, pathlib, signal
    notes = op.create_table("notes", sa.Column("id", sa.String(20)))
    op.execute(notes.insert().values(id="same"))
    is_second = op.get_bind().engine.url.database.endswith("1")
    if is_second and os.path.exists({str(flag)!r}):
        os.kill(os.getpid(), signal.SIGKILL)
    value = pathlib.Path({str(values)!r}).read_text()
    op.execute(notes.insert().values(id=value))
    """,
    )
    upgrade = "-x", "continue_on_error=true", "upgrade", "head"
    states = project.states("-x", "shards=0-1", *upgrade, status=1)
    assert states == {0: "changed", 1: "failed"}
    assert len(project.tables(1)) == 1
    flag.unlink()
    values.write_text(value)
    status, wanted = (0, ["first"]) if value == "first" else (1, [])
    found = project.report(*upgrade, status=status)["shards"]
    for shard in found[1:]:
        rows = project.query(
            shard["shard_id"], "SELECT id FROM {db}notes WHERE id <> 'same'"
        )
        assert [row[0] for row in rows] == wanted
        assert wanted or "Write the values of shard 0" in shard["error"]
