"""Revisions that create tables alone: their entries are inserted at once."""

from __future__ import annotations

from typing import Any

import pytest

from sqla_shard import schema
from sqla_shard.schema import Answer
from sqla_shard.schema.static_revisions import is_static
from tests.models.schema import LEDGER
from tests.models.schema import on_mariadb
from tests.models.schema import Project
from tests.models.schema import runner_fixture
from tests.models.schema import VERSIONS

pytestmark = pytest.mark.live
runner = runner_fixture()
project = on_mariadb("schnew", shards=8)

UPGRADE = """
    op.create_table(
        "boards",
        sa.Column("id", sa.BigInteger, primary_key=True),
        sa.Column("title", sa.String(50), comment="at most 100%s, 'quoted'"),
        mysql_comment="100%",
    )
    op.create_index("by_title", "boards", ["title"])
    op.create_table(
        "pins",
        sa.Column("id", sa.BigInteger, primary_key=True),
        sa.Column("board_id", sa.BigInteger, nullable=False),
        sa.Column("n", sa.Integer, server_default="7"),
        sa.ForeignKeyConstraint(["board_id"], ["boards.id"], name="pin_of"),
    )
    op.create_index("by_n", "pins", ["n", "id"], unique=True)
    op.add_column("pins", sa.Column("link", sa.String(20)))
    op.create_table("notes", sa.Column("n", sa.Integer))
"""
TABLES = ["boards", "pins", "notes"]
#: The tables by the statements that name them.
OF_STATEMENTS = ["boards", "boards", "pins", "pins", "pins", "notes"]
UP = ("-x", "jobs=1", "-x", "new=0-7", "upgrade", "head")
#: A shard that is not the first of its server.
SHARD = 6


def arranged(project: Project) -> None:
    path = project.add("0001", UPGRADE)
    assert is_static(str(path), "upgrade")


def check(project: Project) -> None:
    """Assert that all shards are as the first one, where alembic ran."""
    wanted = project.tables(0)
    assert sorted(wanted) == sorted(TABLES)
    for shard_id in project.shards:
        assert project.tables(shard_id) == wanted
        assert project.heads(shard_id) == ["0001"]
        ledger = project.ledger(shard_id)
        assert [e["number"] for e in ledger] == list(range(6))
        assert {e["state"] for e in ledger} == {"finished"}
        assert not any(e["is_open"] for e in ledger)


def upgraded(project: Project) -> None:
    project.alembic(*UP)
    check(project)


def end_after(project: Project, tables: list[str]) -> None:
    """Leave a shard as a runner does that is killed after some tables."""
    project.query(
        SHARD,
        f"UPDATE {{db}}{LEDGER} SET is_open = TRUE, state = 'planned', "
        "ended_at = NULL WHERE direction = 'upgrade'",
    )
    project.query(SHARD, f"DELETE FROM {{db}}{VERSIONS}")
    for table in reversed(TABLES):
        if table not in tables:
            project.query(SHARD, f"DROP TABLE {{db}}{table}")


def status(project: Project) -> Any:
    return schema.status(project.config()).shards[SHARD]


def test_tables_are_those_of_the_first_shard(project):
    arranged(project)
    upgraded(project)


@pytest.mark.parametrize("count", range(4))
def test_a_runner_that_was_killed(project, count):
    arranged(project)
    upgraded(project)
    end_after(project, TABLES[:count])
    done = [*OF_STATEMENTS, None].index([*TABLES, None][count])
    found = status(project)
    assert found.condition == "interrupted"
    assert f"in its statement {min(done + 1, 6)}:" in found.detail
    upgraded(project)
    assert status(project).condition == "current"


def test_connections_that_are_killed(project, rng):
    arranged(project)
    run = project.start("-x", "continue_on_error=yes", *UP)
    while not run.has_ended():
        shard_id = rng.choice(project.shards)
        for connection in project.running(shard_id, "CREATE TABLE `%"):
            project.end(shard_id, connection)
    upgraded(project)


def test_a_table_that_could_not_be_created(project):
    arranged(project)
    _, database = project.place(SHARD)
    project.query(SHARD, f"USE {database}")
    # Names of foreign keys are unique in a database.
    project.query(
        SHARD,
        "CREATE TABLE sqla_shard_test (n INT PRIMARY KEY, m INT, "
        "CONSTRAINT pin_of FOREIGN KEY (m) REFERENCES sqla_shard_test (n))",
    )
    report = project.report(*UP, status=1)
    found = report["shards"][SHARD]
    assert found["state"] == "failed"
    assert "errno: 121" in found["error"]
    assert [one[:19] for one in found["done"]] == [
        "CREATE TABLE boards",
        "CREATE INDEX by_tit",
    ]
    entries = project.ledger(SHARD)
    assert [e["state"] for e in entries] == ["finished", "finished", "failed"]
    assert status(project).condition == "failed"
    project.query(SHARD, "DROP TABLE sqla_shard_test")
    upgraded(project)


def test_a_table_that_another_program_has_created(project):
    arranged(project)
    upgraded(project)
    end_after(project, ["boards", "notes"])
    found = status(project)
    assert found.condition == "in doubt"
    assert "notes exists although pins" in found.detail
    report = project.report("upgrade", "head", status=1)
    assert report["shards"][SHARD]["state"] == "in doubt"
    assert list(project.tables(SHARD)) == ["boards", "notes"]
    # The operator creates the other, as all shards have it.
    definition = project.query(0, "SHOW CREATE TABLE {db}pins")[0][1]
    _, database = project.place(SHARD)
    project.query(SHARD, f"USE {database}")
    project.query(SHARD, definition)
    schema.resolve(project.config(), SHARD, Answer.STATEMENT_DONE)
    upgraded(project)


@pytest.mark.parametrize("answer", ["statement-done", "statement-undone"])
def test_an_answer_is_about_the_statement_that_is_named(project, answer):
    arranged(project)
    upgraded(project)
    end_after(project, ["boards"])
    found = schema.resolve(project.config(), SHARD, Answer(answer))
    assert found.statement.lstrip().startswith("CREATE TABLE pins")
    assert [e["number"] for e in project.ledger(SHARD)] == [0, 1, 2]
    if answer == "statement-undone":
        upgraded(project)
    else:
        # So it says; the next statement shows that it is not so.
        report = project.report("upgrade", "head", status=1)
        assert "pins' doesn't exist" in report["shards"][SHARD]["error"]


def test_a_database_with_another_character_set(project):
    arranged(project)
    _, database = project.place(SHARD)
    project.query(SHARD, f"ALTER DATABASE {database} CHARACTER SET latin1")
    project.alembic(*UP)
    for shard_id in project.shards:
        (charset,) = {
            text.partition("DEFAULT CHARSET=")[2].split()[0]
            for text in project.tables(shard_id).values()
        }
        assert charset == ("latin1" if shard_id == SHARD else "utf8mb4")


def test_a_table_that_the_first_shard_has_already(project):
    upgrade = """
    op.create_table("notes", sa.Column("n", sa.Integer), if_not_exists=True)
    """
    assert is_static(str(project.add("0001", upgrade)), "upgrade")
    project.query(0, "CREATE TABLE {db}notes (other INT)")
    project.alembic(*UP)
    for shard_id in project.shards:
        columns = project.query(shard_id, "SHOW COLUMNS FROM {db}notes")
        wanted = "n" if shard_id else "other"
        assert [column[0] for column in columns] == [wanted]
