"""Revisions that do odd things, and what it means for other shards."""

from __future__ import annotations

import pytest

from tests.shared.schema import on_mariadb
from tests.shared.schema import runner_fixture

pytestmark = pytest.mark.live
runner = runner_fixture()
project = on_mariadb("schodd")

PINS = 'op.execute("CREATE TABLE pins (n INT)")'


@pytest.mark.parametrize(
    "change",
    [
        "SET SESSION sql_mode = ''",
        "SET @@sql_mode = (SELECT '')",
        "/*! SET sql_mode = '' */",
    ],
)
def test_a_setting_ends_with_its_shard(project, change):
    project.add(
        "0001",
        f"""
        asked = "SELECT @@sql_mode"
        mode = op.get_bind().exec_driver_sql(asked).scalar()
        op.execute(f"CREATE TABLE pins (n INT) COMMENT '{{mode}}'")
        op.execute({change!r})
        """,
    )
    project.alembic("-x", "jobs=1", "upgrade", "head")
    found = {project.tables(shard)["pins"] for shard in project.shards}
    assert len(found) == 1, found
