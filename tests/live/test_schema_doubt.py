"""Unknown outcomes after an interruption: the user is asked."""

from __future__ import annotations

from textwrap import dedent

import pytest

from sqla_shard import schema
from sqla_shard.exc import SchemaError
from sqla_shard.schema import Answer
from tests.models.schema import LEDGER, on_servers, runner_fixture, until

pytestmark = pytest.mark.live
runner = runner_fixture()
project = on_servers("schdoubt")

TABLES = """
    op.execute("CREATE TABLE log (n INT)")
    op.execute("CREATE TABLE slow (seconds INT)")
    op.execute(
        "CREATE PROCEDURE fill() INSERT INTO log "
        "SELECT COALESCE(MAX(SLEEP(seconds)), 0) FROM slow"
    )
"""
# Slow on shards whose table names a time.
CALL = 'op.execute("CALL fill()")'
MYISAM = (
    'op.execute("INSERT INTO log_myisam '
    'SELECT COALESCE(MAX(SLEEP(seconds)), 0) FROM slow")'
)
INSERT = MYISAM.replace("log_myisam", "log")
BLOCK = f"with op.get_context().autocommit_block():\n    {INSERT}"
# One such table, and rows of no other are sure to be rolled back.
MYISAM_TABLE = 'op.execute("CREATE TABLE log_myisam (n INT) ENGINE=MyISAM")'
KINDS = {"procedure": CALL, "myisam": MYISAM, "autocommit": BLOCK}
TABLE = {"myisam": "log_myisam"}
DEATH = 'op.execute("KILL CONNECTION_ID()")'


def arranged(project, statement, downgrade="pass"):
    more = MYISAM_TABLE if statement == MYISAM else ""
    project.add("0001", f"{dedent(TABLES)}\n{more}")
    project.alembic("upgrade", "head")
    return project.add(
        "0002",
        f'op.execute("CREATE TABLE before_it (n INT)")\n{statement}\n'
        'op.execute("CREATE TABLE after_it (n INT)")',
        downgrade,
    )


def interrupted(project):
    """Kill a run while shard 2 is in its slow statement."""
    project.query(2, "INSERT INTO {db}slow VALUES (0)")
    server, database = project.place(2)
    holder = project.servers[server].root_connect(ssl_disabled=True)
    with holder, holder.cursor() as cursor:
        # It waits for a row: one that sleeps is ended by the server, which
        # looks each five seconds whether its client is still there.
        cursor.execute("BEGIN")
        cursor.execute(f"SELECT * FROM {database}.slow FOR UPDATE")
        run = project.start("-x", "shards=2", "-x", "lock_wait=200", "upgrade", "head")
        connection = project.until_running(2, "%SLEEP%")
        run.kill()
        held = project.states(
            *("-x", "shards=2", "-x", "runner_wait=0", "upgrade", "head"), status=1
        )
        assert held == {2: "another runner is at work"}
        assert status(project)[2].condition == "a runner is at work"
        project.end(2, connection)
    project.query(2, "DELETE FROM {db}slow")


def status(project):
    report = schema.status(project.config())
    return {one.shard_id: one for one in report.shards}


def resolve(project, answer, shard_id=2):
    return schema.resolve(project.config(), shard_id, answer)


def count(project, table, shard_id=2):
    return project.query(shard_id, f"SELECT COUNT(*) FROM {{db}}{table}")[0][0]


def test_a_statement_in_the_ledger_does_not_run_yet(project):
    # Killed there it would have done nothing, and the next run would do it.
    project.add("0001", f"{dedent(TABLES)}\n{MYISAM_TABLE}")
    project.alembic("upgrade", "head")
    project.add("0002", MYISAM)
    project.query(2, "INSERT INTO {db}slow VALUES (600)")
    _, database = project.place(2)
    with project.locked(2, LEDGER):
        run = project.start("-x", "shards=2", "-x", "lock_wait=60", "upgrade", "head")
        # Not what it reads from the ledger before.
        until(
            lambda: project.query(
                2,
                "SELECT info FROM information_schema.processlist WHERE "
                f"db = '{database}' AND info LIKE '%{LEDGER}%SLEEP%'",
            ),
            "its entry",
        )
        assert project.running(2, "%SLEEP%") == []
    connection = project.until_running(2, "%SLEEP%")
    run.kill()
    project.end(2, connection)


@pytest.mark.parametrize("kind", KINDS)
def test_other_shards_finish_and_status_lists_it(project, kind):
    arranged(project, KINDS[kind])
    interrupted(project)
    states = project.states("-x", "continue_on_error=yes", "upgrade", "head", status=1)
    assert states.pop(2) == "in doubt"
    assert set(states.values()) == {"changed"}
    found = status(project)
    assert found[2].condition == "in doubt"
    assert "statement 2" in found[2].detail
    assert [found[i].condition for i in (0, 1, 3)] == ["current"] * 3
    # Asking again makes no difference.
    done = project.alembic("upgrade", "head", status=1)
    assert "sqla-shard schema resolve" in done.stdout
    assert project.heads(2) == ["0001"]


@pytest.mark.parametrize("kind", ["myisam"])
def test_statement_done_goes_on_after_it(project, kind):
    arranged(project, KINDS[kind])
    interrupted(project)
    found = resolve(project, Answer.STATEMENT_DONE)
    assert (found.shard_id, found.step) == (2, "upgrade of 0002")
    assert "SLEEP" in found.statement or "CALL" in found.statement
    assert status(project)[2].condition == "interrupted"
    project.alembic("upgrade", "head")
    assert count(project, TABLE.get(kind, "log")) == 0
    assert project.heads(2) == ["0002"]
    assert "after_it" in project.tables(2)
    assert not any(e["is_open"] for e in project.ledger(2))


@pytest.mark.parametrize("kind", ["autocommit"])
def test_statement_undone_repeats_it(project, kind):
    arranged(project, KINDS[kind])
    interrupted(project)
    resolve(project, Answer.STATEMENT_UNDONE)
    project.alembic("upgrade", "head")
    assert count(project, TABLE.get(kind, "log")) == 1
    assert project.heads(2) == ["0002"]
    assert "after_it" in project.tables(2)
    numbers = [e["number"] for e in project.ledger(2)]
    assert numbers[-3:] == [0, 1, 2]


def test_revision_done_is_written_down(project):
    arranged(project, CALL)
    interrupted(project)
    resolve(project, Answer.REVISION_DONE)
    assert project.heads(2) == ["0002"]
    assert status(project)[2].condition == "current"
    project.alembic("upgrade", "head")
    assert "after_it" not in project.tables(2)
    assert count(project, "log") == 0
    with pytest.raises(SchemaError, match="no revision is unfinished"):
        resolve(project, Answer.REVISION_DONE)


def test_revision_undone_begins_again(project):
    arranged(project, CALL)
    interrupted(project)
    project.query(2, "DROP TABLE {db}before_it")
    resolve(project, Answer.REVISION_UNDONE)
    assert project.heads(2) == ["0001"]
    assert status(project)[2].condition == "behind"
    project.alembic("upgrade", "head")
    assert project.heads(2) == ["0002"]
    assert {"before_it", "after_it"} <= set(project.tables(2))
    assert count(project, "log") == 1


def test_resolve_does_not_wait(project):
    arranged(project, CALL)
    project.query(2, "INSERT INTO {db}slow VALUES (600)")
    run = project.start("upgrade", "head")
    connection = project.until_running(2, "%SLEEP%")
    with pytest.raises(SchemaError, match="is locked by connection"):
        resolve(project, Answer.STATEMENT_DONE)
    run.kill()
    project.end(2, connection)


def test_the_first_revision_of_all(project):
    project.add("0001", DEATH, DEATH)
    project.alembic("-x", "shards=1", "upgrade", "head", status=1)
    assert status(project)[1].condition == "in doubt"
    resolve(project, Answer.REVISION_DONE, 1)
    assert project.heads(1) == ["0001"]
    project.alembic("-x", "shards=1", "downgrade", "base", status=1)
    assert status(project)[1].condition == "in doubt"
    resolve(project, Answer.REVISION_DONE, 1)
    assert project.heads(1) == []
    assert status(project)[1].condition == "behind"


def test_branches(project):
    project.add("0001")
    project.add("a", "pass", DEATH, after="0001")
    project.add("b", DEATH, DEATH, after="0001")
    project.add("m", DEATH, DEATH, after=("a", "b"))
    one = ("-x", "shards=1")
    project.alembic(*one, "upgrade", "a")
    project.alembic(*one, "upgrade", "b", status=1)
    resolve(project, Answer.REVISION_DONE, 1)
    assert project.heads(1) == ["a", "b"]
    project.alembic(*one, "upgrade", "m", status=1)
    resolve(project, Answer.REVISION_DONE, 1)
    assert project.heads(1) == ["m"]
    project.alembic(*one, "downgrade", "a", status=1)
    resolve(project, Answer.REVISION_DONE, 1)
    assert project.heads(1) == ["a", "b"]
    project.alembic(*one, "downgrade", "b@-1", status=1)
    assert status(project)[1].condition == "in doubt"
    resolve(project, Answer.REVISION_DONE, 1)
    assert project.heads(1) == ["a"]


def test_another_command_does_not_pass_over_it(project):
    project.add("0001", "pass", f"{CREATE}\n{DEATH}")
    project.alembic("upgrade", "head")
    project.alembic("-x", "shards=1", "downgrade", "base", status=1)
    # Its version is still the newest, its tables are something between.
    states = project.states("-x", "continue_on_error=yes", "upgrade", "head", status=1)
    assert states[1] == "in doubt"
    assert states[0] == "nothing to do"


CREATE = 'op.execute("CREATE TABLE before_it (n INT)")'
LATE = 'op.execute("ALTER TABLE log ADD late INT")'


def killed_in_alter(project, *, ends):
    """Kill a run while shard 2 waits to alter a table.

    :param ends: whether the server ends the statement, too, or runs it.
    """
    with project.locked(2, "log"):
        run = project.start("-x", "shards=2", "-x", "lock_wait=60", "upgrade", "head")
        connection = project.until_running(2, "ALTER TABLE log%")
        # Killed once the statement has ended, of which it does not hear: the
        # server looks each second whether the client of one that waits for a
        # table is still there.
        run.stop_group()
        assert project.running(2, "ALTER TABLE log%")
        if ends:
            project.end(2, connection)
    until(lambda: not project.running(2, "ALTER TABLE log%"), "its end")
    run.kill()


@pytest.mark.parametrize("ends", [True, False])
def test_rows_and_tables_in_one_revision(project, ends):
    arranged(project, f'op.execute("INSERT INTO slow VALUES (0)")\n{LATE}')
    killed_in_alter(project, ends=ends)
    assert ("late" in project.tables(2)["log"]) is not ends
    project.alembic("upgrade", "head")
    for shard_id in project.shards:
        assert count(project, "slow", shard_id) == 1
        assert "`late`" in project.tables(shard_id)["log"]
        assert project.heads(shard_id) == ["0002"]


def test_the_next_run_waits_for_a_statement_that_runs_on(project):
    # It waits for a row: one that waits for a table is ended by the server,
    # which looks each second whether its client is still there.
    arranged(project, 'op.execute("UPDATE slow SET seconds = 1")')
    project.query(2, "INSERT INTO {db}slow VALUES (0)")
    server, database = project.place(2)
    holder = project.servers[server].root_connect(ssl_disabled=True)
    with holder, holder.cursor() as cursor:
        cursor.execute("BEGIN")
        cursor.execute(f"SELECT * FROM {database}.slow FOR UPDATE")
        run = project.start("-x", "lock_wait=60", "upgrade", "head")
        project.until_running(2, "UPDATE slow%")
        run.kill()
        done = project.alembic(
            *("-x", "shards=2", "-x", "runner_wait=0.1", "upgrade", "head"), status=1
        )
        assert "db_schdoubt_00002 is locked by connection" in done.stdout
        assert "a statement that outlived" in done.stdout
        run = project.start("-x", "runner_wait=60", "upgrade", "head")
        project.until_running(2, "SELECT GET_LOCK%")
    done = run.wait()
    assert done.returncode == 0, done.shown
    assert project.query(2, "SELECT seconds FROM {db}slow") == [(1,)]
    for shard_id in project.shards:
        assert project.heads(shard_id) == ["0002"]
        numbers = [e["number"] for e in project.ledger(shard_id)]
        assert numbers[-3:] == [0, 1, 2]


@pytest.mark.parametrize(
    "reading",
    [
        'op.get_bind().execute(sa.text("SELECT COUNT(*) FROM log")).scalar()',
        'sa.inspect(op.get_bind()).has_table("log")',
        'op.execute("INSERT INTO slow VALUES (0) RETURNING seconds")',
    ],
)
def test_a_revision_that_has_read(project, reading, server_kind):
    if server_kind.is_mysql and "RETURNING" in reading:
        pytest.skip("MySQL has no RETURNING")
    arranged(project, f"{reading}\n{LATE}")
    killed_in_alter(project, ends=False)
    states = project.states("-x", "continue_on_error=yes", "upgrade", "head", status=1)
    assert states.pop(2) == "in doubt"
    assert set(states.values()) == {"changed"}
    assert status(project)[2].condition == "in doubt"
    resolve(project, Answer.REVISION_DONE)
    assert project.alembic("upgrade", "head")


def test_a_revision_that_has_changed_meanwhile(project):
    path = arranged(project, LATE)
    killed_in_alter(project, ends=False)
    project.rewrite(path, "before_it (n INT)", "before_it (n BIGINT)")
    done = project.alembic("-x", "continue_on_error=yes", "upgrade", "head", status=1)
    assert "was changed after it was interrupted" in done.stdout
    assert "before_it (n INT)" in done.stdout
    assert status(project)[2].condition == "in doubt"
    project.rewrite(path, "before_it (n BIGINT)", "before_it (n INT)")
    project.alembic("upgrade", "head")
    assert project.heads(2) == ["0002"]


def test_a_table_that_the_journal_has_not_seen_made(project):
    # Its definition is asked for before it is altered, not assumed.
    arranged(
        project,
        'op.execute("CREATE TABLE filled AS SELECT 1 AS n")\n'
        'op.execute("INSERT INTO log VALUES (1)")\n'
        'op.execute("ALTER TABLE filled ADD m INT")',
    )
    server, database = project.place(2)
    reader = project.servers[server].root_connect(ssl_disabled=True)
    with reader, reader.cursor() as cursor:
        with project.locked(2, "log"):
            run = project.start(
                "-x", "shards=2", "-x", "lock_wait=60", "upgrade", "head"
            )
            project.until_running(2, "INSERT INTO log%")
            cursor.execute("BEGIN")
            cursor.execute(f"SELECT * FROM {database}.filled")
        connection = project.until_running(2, "ALTER TABLE filled%")
        run.kill()
        project.end(2, connection)
    assert "`m`" not in project.tables(2)["filled"]
    project.alembic("upgrade", "head")
    for shard_id in project.shards:
        assert "`m`" in project.tables(shard_id)["filled"]
        assert count(project, "log", shard_id) == 1


def test_rows_of_tables_without_transactions_may_be_half_written(project):
    # The second of two rows is refused; the first one stays.
    project.add("0001", f"{MYISAM_TABLE}\nop.execute('CREATE TABLE log (n INT)')")
    project.add(
        "0002",
        'op.execute("ALTER TABLE log_myisam ADD UNIQUE (n)")\n'
        'op.execute("INSERT INTO log_myisam VALUES (1), (1)")',
    )
    project.alembic("-x", "shards=2", "upgrade", "head", status=1)
    assert count(project, "log_myisam") == 1
    done = project.alembic("-x", "shards=2", "upgrade", "head", status=1)
    assert "in doubt: 2" in done.stdout
    assert count(project, "log_myisam") == 1
