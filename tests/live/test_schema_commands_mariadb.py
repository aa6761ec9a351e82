"""Alembic's commands on every virtual shard, on real servers."""

from __future__ import annotations

import pytest

from tests.shared.schema import on_mariadb
from tests.shared.schema import runner_fixture

pytestmark = pytest.mark.live
runner = runner_fixture()
project = on_mariadb("schcmd", main="main_schcmd")

PINS = """
    op.create_table(
        "pins",
        sa.Column("id", sa.BigInteger, primary_key=True),
        sa.Column("body", sa.Text),
    )
"""
TS = 'op.add_column("pins", sa.Column("ts", sa.Integer))'


def two(project):
    project.add("0001", PINS, 'op.drop_table("pins")')
    project.add("0002", TS, 'op.drop_column("pins", "ts")')


def test_upgrade_and_downgrade_change_every_shard(project):
    two(project)
    assert project.states("upgrade", "head") == dict.fromkeys(
        project.shards, "changed"
    )
    for shard_id in project.shards:
        assert project.heads(shard_id) == ["0002"]
        assert "`ts`" in project.tables(shard_id)["pins"]
        assert not any(e["is_open"] for e in project.ledger(shard_id))
    done = project.alembic("upgrade", "head")
    assert "4 nothing to do: 0-3" in done.stdout
    project.alembic("downgrade", "-1")
    for shard_id in project.shards:
        assert project.heads(shard_id) == ["0001"]
        assert "`ts`" not in project.tables(shard_id)["pins"]
    project.alembic("downgrade", "base")
    for shard_id in project.shards:
        assert project.heads(shard_id) == []
        assert project.tables(shard_id) == {}


def test_stamp_and_current(project):
    two(project)
    project.alembic("stamp", "0001")
    assert project.heads(3) == ["0001"]
    assert project.tables(3) == {}
    project.alembic("-x", "shards=1", "stamp", "head")
    done = project.alembic("current")
    print(done.shown)
    done = project.alembic("current", "-v")
    print(done.shown)
    done = project.alembic("current", "--check-heads", status=None)
    print(done.shown)
    print(project.alembic("stamp", "--purge", "0001").shown)
    print(project.alembic("ensure_version").shown)
    print(project.alembic("heads").shown)
    print(project.alembic("history", "-i", status=None).shown)
    print(project.alembic("upgrade", "head", "--sql").shown)
    print(project.alembic("upgrade", "nosuch", status=None).shown)
    print(project.alembic("check", status=None).shown)
    print(
        project.alembic(
            "revision", "--autogenerate", "-m", "foo", status=None
        ).shown
    )
    assert 0
