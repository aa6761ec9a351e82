"""Revisions that create tables, on servers that share a plan."""

from __future__ import annotations

import pytest

from sqla_shard.schema.replay import is_static
from tests.models.schema import on_servers, Project, runner_fixture

pytestmark = pytest.mark.live
runner = runner_fixture()
project = on_servers("schnew", shards=8)

INDEXED = "".join(
    f'sa.Column("{name}", sa.Integer, index=True), ' for name in "abcdefgh"
)
UPGRADE = f"""
    op.create_table(
        "boards",
        sa.Column("id", sa.BigInteger, primary_key=True),
        sa.Column("title", sa.String(50), comment="at most 100%s, 'quoted'"),
        {INDEXED}
        mysql_comment="100%",
    )
    op.create_table(
        "pins",
        sa.Column("id", sa.BigInteger, primary_key=True),
        sa.Column("board_id", sa.BigInteger, nullable=False),
        sa.ForeignKeyConstraint(["board_id"], ["boards.id"], name="pin_of"),
    )
"""
#: Its index makes the one that the server has made for the foreign key vanish.
LATER = """
    op.create_index("by_board", "pins", ["board_id"])
    op.add_column("pins", sa.Column("link", sa.String(20)))
"""
UP = ("-x", "jobs=2", "-x", "new=0-7", "upgrade")
#: A shard that is not the first of its server.
SHARD = 6


def arranged(project: Project, upgrade: str = UPGRADE) -> None:
    for number, text in (("0001", upgrade), ("0002", LATER)):
        assert is_static(str(project.add(number, text)), "upgrade")


def test_all_servers_have_the_indexes_in_one_order(project):
    arranged(project)
    for revision in ("0001", "0002"):
        project.alembic(*UP, revision)
        wanted = project.tables(0)
        assert sorted(wanted) == ["boards", "pins"]
        for shard_id in project.shards:
            assert project.tables(shard_id) == wanted, shard_id
            assert project.heads(shard_id) == [revision]


def test_connections_that_are_killed(project, rng):
    arranged(project)
    run = project.start("-x", "continue_on_error=yes", *UP, "0001")
    while not run.has_ended():
        shard_id = rng.choice(project.shards)
        for connection in project.running(shard_id, "CREATE %"):
            project.end(shard_id, connection)
    project.alembic(*UP, "head")
    wanted = project.tables(0)
    for shard_id in project.shards:
        assert project.tables(shard_id) == wanted
        assert project.heads(shard_id) == ["0002"]
        assert not any(e["is_open"] for e in project.ledger(shard_id))


def test_a_database_with_another_character_set(project):
    arranged(project)
    _, database = project.place(SHARD)
    project.query(SHARD, f"ALTER DATABASE {database} CHARACTER SET latin1")
    project.alembic(*UP, "head")
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
    project.alembic(*UP, "head")
    for shard_id in project.shards:
        columns = project.query(shard_id, "SHOW COLUMNS FROM {db}notes")
        wanted = "n" if shard_id else "other"
        assert [column[0] for column in columns] == [wanted]
