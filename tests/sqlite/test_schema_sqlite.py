"""Alembic's commands on SQLite files: a revision takes effect or does not."""

from __future__ import annotations

import signal
import sqlite3
from contextlib import closing
from textwrap import dedent

import pytest

from sqla_shard import exc, schema
from sqla_shard.outbox import tables
from sqla_shard.schema import Answer
from sqla_shard.schema.ledger import VERSION_TABLE
from tests.models.schema import on_sqlite, runner_fixture

runner = runner_fixture()
project = on_sqlite(main=True)

PINS = """
    op.create_table(
        "boards", sa.Column("id", sa.Integer, primary_key=True),
    )
    op.create_table(
        "pins",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column(
            "board_id",
            sa.Integer,
            sa.ForeignKey("boards.id", ondelete="CASCADE"),
        ),
    )
    op.execute("INSERT INTO boards VALUES (1)")
    op.execute("INSERT INTO pins VALUES (10, 1)")
"""


def names(project, shard_id):
    rows = project.query(
        shard_id, "SELECT name FROM sqlite_master WHERE type = 'table'"
    )
    return {row[0] for row in rows} - {
        "alembic_version",
        *tables.METADATA.tables,
        VERSION_TABLE,
    }


def test_the_commands(project):
    project.add("0001", PINS, "op.drop_table('pins')\nop.drop_table('boards')")
    project.add("0002", 'op.add_column("pins", sa.Column("ts", sa.Integer))')
    assert project.states("upgrade", "head") == dict.fromkeys(project.shards, "changed")
    assert project.states("upgrade", "head") == dict.fromkeys(
        project.shards, "nothing to do"
    )
    for shard_id in project.shards:
        assert names(project, shard_id) == {"boards", "pins"}
        ledger = project.ledger(shard_id)
        assert [e["number"] for e in ledger] == [0, 1, 2, 3, 0]
        assert not any(e["is_open"] for e in ledger)
    done = project.alembic("current", "--check-heads")
    assert "4 of objects: 0-3\n0002 (head)" in done.stdout
    project.alembic("downgrade", "base")
    assert names(project, 3) == set()
    project.alembic("stamp", "0002")
    assert project.heads(2) == ["0002"]
    done = project.alembic("upgrade", "head", "--sql")
    assert done.stdout.count("CREATE TABLE pins") == 1
    report = schema.status(project.config())
    assert report.ok


@pytest.mark.parametrize(
    "broken", ['raise ValueError("no")', 'op.execute("INSERT INTO nothing VALUES (1)")']
)
def test_an_error_in_the_middle_leaves_nothing(project, broken):
    project.provision()
    project.add("0001", PINS)
    path = project.add(
        "0002",
        f'op.execute("UPDATE pins SET id = id + 1")\n'
        f'op.execute("CREATE TABLE more (n INT)")\n{broken}\n'
        'op.execute("INSERT INTO more VALUES (1)")',
    )
    report = project.report("upgrade", "head", status=1)
    assert report["shards"][0]["state"] == "failed"
    assert report["shards"][0]["done"] == []
    assert project.heads(0) == ["0001"]
    assert names(project, 0) == {"boards", "pins"}
    assert project.query(0, "SELECT id FROM pins") == [(10,)]
    assert schema.status(project.config()).shards[0].condition == "failed"
    project.alembic("upgrade", "head", status=1)
    # All of it may be mended: it begins again.
    project.rewrite(path, broken, "pass")
    project.rewrite(path, "more (n INT)", "more (n BIGINT)")
    project.alembic("upgrade", "head")
    for shard_id in project.shards:
        assert project.query(shard_id, "SELECT id FROM pins") == [(11,)]
        assert project.query(shard_id, "SELECT n FROM more") == [(1,)]
    assert schema.status(project.config()).ok


def test_objects_that_a_revision_changes_are_the_same_for_each_shard(project):
    """A list of the revision's module, and what it leaves elsewhere."""
    project.add("0001", PINS)
    path = project.add(
        "0002",
        'op.execute(f"INSERT INTO boards VALUES ({NUMBERS.pop()})")\n'
        'sa.seen = getattr(sa, "seen", 20) + 1\n'
        'op.execute(f"INSERT INTO boards VALUES ({sa.seen})")',
        'op.execute(f"DELETE FROM boards WHERE id >= {NUMBERS.pop()}")',
    )
    project.rewrite(path, "def upgrade", "NUMBERS = [20]\n\ndef upgrade")
    project.add("0003", "op.add_column('boards', sa.Column('n', sa.Integer()))")
    for command, ids in (
        (("upgrade", "head"), [1, 20, 21]),
        (("downgrade", "0001"), [1]),
    ):
        project.alembic(*command)
        for shard_id in project.shards:
            rows = project.query(shard_id, "SELECT id FROM boards")
            assert [row[0] for row in rows] == ids


def test_a_kill_in_the_middle_leaves_nothing(project):
    project.add("0001", PINS)
    project.alembic("upgrade", "head")
    flag = project.directory / "flag"
    flag.touch()
    project.add(
        "0002",
        'op.execute("UPDATE pins SET id = id + 1")\n'
        'op.execute("CREATE TABLE more (n INT)")\n'
        "import os, signal\n"
        f'if os.path.exists("{flag}"):\n'
        "    os.kill(os.getpid(), signal.SIGKILL)\n",
    )
    done = project.alembic("upgrade", "head", status=1)
    assert f"ended with status -{int(signal.SIGKILL)}" in done.stdout
    assert names(project, 0) == {"boards", "pins"}
    assert project.query(0, "SELECT id FROM pins") == [(10,)]
    flag.unlink()
    project.alembic("upgrade", "head")
    for shard_id in project.shards:
        assert project.query(shard_id, "SELECT id FROM pins") == [(11,)]
        assert names(project, shard_id) == {"boards", "pins", "more"}


def test_batch_mode_keeps_rows_that_refer_to_the_table(project):
    project.add("0001", PINS)
    project.add(
        "0002",
        'with op.batch_alter_table("boards", recreate="always") as batch:\n'
        '    batch.add_column(sa.Column("name", sa.String(20)))\n'
        "    batch.create_unique_constraint('one', ['name'])",
    )
    project.alembic("upgrade", "head")
    for shard_id in project.shards:
        assert project.query(shard_id, "SELECT * FROM pins") == [(10, 1)]
        assert project.query(shard_id, "SELECT * FROM boards") == [(1, None)]
        assert names(project, shard_id) == {"boards", "pins"}
        with closing(sqlite3.connect(project.file(shard_id))) as connection:
            broken = connection.execute("PRAGMA foreign_key_check")
            assert broken.fetchall() == []


def test_two_runners_at_once(project):
    project.provision()
    project.add("0001", PINS)
    project.add("0002", 'op.execute("UPDATE pins SET id = id + 1")')
    runs = [project.start("upgrade", "head") for _ in range(3)]
    for run in runs:
        done = run.wait()
        assert done.returncode == 0, done.shown
    for shard_id in project.shards:
        assert project.query(shard_id, "SELECT id FROM pins") == [(11,)]
        assert len(project.ledger(shard_id)) == 5


def test_a_file_that_is_missing_is_not_made(project):
    project.add("0001", PINS)
    project.file(2).unlink()
    states = project.states("upgrade", "head", status=1)
    assert states == {
        **dict.fromkeys(project.shards, "not attempted"),
        2: "no such database",
    }
    states = project.states("-x", "continue_on_error=yes", "upgrade", "head", status=1)
    assert states == {**dict.fromkeys(project.shards, "changed"), 2: "no such database"}
    assert not project.file(2).exists()


def test_resolve_has_nothing_to_answer_for(project):
    project.add("0001", PINS)
    project.alembic("upgrade", "head")
    with pytest.raises(exc.SchemaError, match="no revision is unfin"):
        schema.resolve(project.config(), 2, Answer.REVISION_DONE)


def test_a_lock_of_another_program_is_reported(project):
    project.add("0001", PINS)
    project.alembic("upgrade", "head")
    project.add("0002", 'op.execute("DROP TABLE pins")')
    with closing(sqlite3.connect(project.file(1))) as other:
        other.execute("BEGIN IMMEDIATE")
        states = project.states(
            *("-x", "lock_wait=0.2", "-x", "continue_on_error=yes"),
            *("upgrade", "head"),
            status=1,
        )
    assert states == {**dict.fromkeys(project.shards, "changed"), 1: "failed"}
    project.alembic("upgrade", "head")
    assert names(project, 1) == {"boards"}


def test_tables_of_this_package_come_to_shards_that_are_up_to_date(project):
    project.add("0001", PINS, "op.drop_table('pins')\nop.drop_table('boards')")
    project.states("upgrade", "head")
    project.query(1, "DROP TABLE sqla_shard_token")
    project.query(1, "DELETE FROM sqla_shard_version")
    assert project.states("upgrade", "head") == dict.fromkeys(
        project.shards, "nothing to do"
    )
    for shard_id in project.shards:
        tokens = project.query(shard_id, "SELECT * FROM sqla_shard_token")
        assert tokens == []


def test_rows_that_a_listener_inserts_are_on_every_shard(project):
    """The statements of such a revision are not repeated on other shards.

    Its text does not show them: it is the same for all shards, and only
    statements that change tables are repeated.
    """
    project.replace_in_env(
        "from sqla_shard.schema",
        dedent(
            """\
            import sqlalchemy as sa

            @sa.event.listens_for(sa.Table, "after_create")
            def insert(table, connection, **options):
                if table.name == "boards":
                    connection.execute(table.insert().values(id=7))

            from sqla_shard.schema"""
        ),
    )
    table = 'op.create_table("boards", sa.Column("id", sa.Integer))'
    project.add("0001", table)
    project.states("-x", "jobs=1", "upgrade", "head")
    for shard_id in project.shards:
        assert project.query(shard_id, "SELECT id FROM boards") == [(7,)]


_NOTES = """\
notes = op.create_table(
    "notes", sa.Column("id", sa.String(36)), sa.Column("at", sa.DateTime),
    sa.Column("data", sa.LargeBinary))
"""


def notes(project):
    return [
        project.query(shard_id, "SELECT id, at, data FROM notes ORDER BY at")
        for shard_id in project.shards
    ]


BODIES = {
    "text": "op.execute(f'INSERT INTO notes (id) VALUES ({os.getpid()})')",
    "parameter": "op.execute(notes.insert().values(at=datetime.datetime.now()))",
    "one of several": "op.bulk_insert(notes, "
    "[{'id': 'x'}, {'id': str(uuid.uuid4())}], multiinsert=False)",
    "more": "if path.exists():\n    op.execute('DELETE FROM notes')\npath.touch()",
    "fewer": "if not path.exists():\n    op.execute('DELETE FROM notes')\npath.touch()",
    "after equal rows": "n = op.get_bind().scalar(sa.text('SELECT 1'))\n"
    "op.execute(notes.insert().values(id=f'{n} {uuid.uuid4()}'))",
    "after equal errors": """
try:
    with op.get_bind().begin_nested():
        op.get_bind().exec_driver_sql("SELECT * FROM absent")
except sa.exc.OperationalError:
    op.execute(notes.insert().values(id=str(uuid.uuid4())))""",
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_another_statement_than_on_the_first_shard_is_refused(project, body):
    path = str(project.directory / "ran")
    imports = f"import datetime, os, pathlib, uuid\npath = pathlib.Path({path!r})\n"
    project.add("0001", f"{imports}{_NOTES}{body}", "op.drop_table('notes')")
    upgrade = "-x", "continue_on_error=true", "upgrade", "head"
    for state, than in (
        ("changed", "the first one of the run"),
        ("nothing to do", "shard 0 in an earlier run"),
        ("nothing to do", "shard 0 in an earlier run"),
    ):
        first, *others = project.report(*upgrade, status=1)["shards"]
        assert first["state"] == state
        for shard in others:
            assert shard["state"] == "failed"
            assert f"another statement to this shard than to {than}" in shard["error"]
            assert "-x compare=false" in shard["error"]
    # As another project's, it is accepted.
    project.states("-x", "compare=false", "upgrade", "head")


def test_a_revision_that_asks_for_its_shard_differs(project):
    body = _NOTES + dedent(
        """\
        from sqla_shard.schema import current_shard
        op.execute(notes.insert().values(data=b"same"))
        number = str(current_shard().shard_id)
        op.execute(notes.insert().values(id=number))
        op.execute(f"INSERT INTO notes (id) VALUES ('{number}')")
        """
    )
    project.add("0001", body, "op.drop_table('notes')")
    project.states("upgrade", "head")
    for shard_id, rows in zip(project.shards, notes(project), strict=True):
        assert [row[0] for row in rows] == [None, *[str(shard_id)] * 2]


STATEMENTS = {
    "the rows of a stream": "number = op.get_bind().execution_options("
    "stream_results=True).scalar(sa.text('SELECT id FROM boards'))",
    "another query": "number = 5 + int(op.get_bind().engine.url.database[-8])\n"
    "op.get_bind().execute(sa.text(f'SELECT {number}'))",
    "rows": "number = op.get_bind().scalar(sa.text('SELECT id FROM boards'))",
    "the name of its database": "number = int(op.get_bind().scalar("
    "sa.text('SELECT file FROM pragma_database_list'))[-8])",
    "rowcount": "number = op.get_bind().execute("
    "sa.text('DELETE FROM boards')).rowcount",
    "lastrowid": "number = op.get_bind().execute("
    "sa.text('INSERT INTO boards VALUES (NULL)')).lastrowid",
    "error": """
number = 5
try:
    with op.get_bind().begin_nested():
        op.execute("INSERT INTO boards VALUES (6)")
except sa.exc.IntegrityError:
    number = 6""",
}


@pytest.mark.parametrize("statement", STATEMENTS.values(), ids=STATEMENTS)
def test_a_revision_may_differ_where_shards_do(project, statement):
    project.add("0001", PINS)
    project.states("upgrade", "head")
    for shard_id in project.shards:
        project.query(shard_id, f"UPDATE boards SET id = {shard_id + 5}")
        if "DELETE" in statement:
            for more in range(shard_id):
                project.query(shard_id, f"INSERT INTO boards VALUES ({more + 50})")
    project.add(
        "0002", f"{_NOTES}{statement}\nop.execute(notes.insert().values(id=number))"
    )
    project.states("upgrade", "head")
    numbers = [int(rows[-1][0]) for rows in notes(project)]
    assert len(numbers) == len(project.shards)
    if "IntegrityError" in statement:
        assert numbers == [5, 6, 5, 5]
    else:
        assert numbers == [numbers[0] + shard_id for shard_id in project.shards]


@pytest.mark.parametrize("body", ["", _NOTES], ids=["nothing", "a table"])
def test_statements_that_the_first_shard_did_not_get_are_refused_later(project, body):
    path = project.directory / "ran"
    more = "if path.exists():\n    op.execute('CREATE TABLE t (n)')"
    project.provision()
    project.add(
        "0001", f"import pathlib\npath = pathlib.Path({str(path)!r})\n{body}{more}"
    )
    project.states("-x", "shards=0", "upgrade", "head")
    path.touch()
    # The selected shards do not include the one that has finished it.
    upgrade = "-x", "shards=1-3", "upgrade", "head"
    for _ in range(2):
        error = project.report(*upgrade, status=1)["shards"][0]["error"]
        assert "than to shard 0 in an earlier run: CREATE TABLE t" in error
    path.unlink()
    project.states(*upgrade)


@pytest.mark.parametrize("value", ["first", "second"])
def test_a_killed_run_goes_on_with_the_values_of_the_first_shard(project, value):
    """A value of the module is another one in the next run, if it is not constant."""
    values, flag = project.directory / "value", project.directory / "flag"
    values.write_text("first")
    flag.touch()
    project.provision()
    path = project.add(
        "0001",
        f"import os, pathlib, signal\n{_NOTES}"
        "op.execute(notes.insert().values(id=VALUE))\n"
        "from sqla_shard.schema import current_shard\n"
        f"if current_shard().shard_id == 1 and os.path.exists({str(flag)!r}):\n"
        "    os.kill(os.getpid(), signal.SIGKILL)",
    )
    module = f"import pathlib\nVALUE = pathlib.Path({str(values)!r}).read_text()\n\n"
    project.rewrite(path, "def upgrade", f"{module}def upgrade")
    upgrade = "-x", "jobs=1", "-x", "shards=0-1", "upgrade", "head"
    states = project.states(*upgrade, status=1)
    assert states == {0: "changed", 1: "failed"}
    flag.unlink()
    values.write_text(value)
    if value == "first":
        project.states("upgrade", "head")
        assert notes(project) == [[("first", None, None)]] * 4
        return
    report = project.report("-x", "continue_on_error=true", "upgrade", "head", status=1)
    assert [one["state"] for one in report["shards"]] == [
        "nothing to do",
        *["failed"] * 3,
    ]
    assert "Write the values of shard 0" in report["shards"][3]["error"]
    assert {name for n in (1, 2, 3) for name in names(project, n)} == set()
