"""The option ``portable`` of alembic.ini, on real servers."""

from __future__ import annotations

from pathlib import Path

import pytest

from sqla_shard.schema.replay import is_static
from tests.models.schema import on_servers, Project, runner_fixture

pytestmark = pytest.mark.live
runner = runner_fixture()
project = on_servers("schport", lookup=2, lookup_database="lookup_schport{shard:05d}")

ENV = """\
from alembic import context
from examples.pinboard.models import Base
from sqla_shard.schema import run_env

run_env(context, Base.metadata)
"""


def generated(project: Project, line: str) -> str:
    folder = project.directory / "migrations"
    (folder / "env.py").write_text(ENV)
    mako = Path("sqla_shard/schema/revisions/templates/sharded/script.py.mako")
    (folder / "script.py.mako").write_text(mako.read_text())
    ini = Path(project.ini)
    text = ini.read_text()
    ini.write_text(text.replace("= objects\n", f"= objects\n{line}\n", 1))
    project.alembic("revision", "--autogenerate", "-m", "change")
    (path,) = (folder / "versions").glob("*.py")
    for direction in ("upgrade", "downgrade"):
        assert is_static(str(path), direction)
    return path.read_text()


@pytest.mark.parametrize(
    ("line", "is_plain"),
    [("", True), ("portable = false", True), ("portable = true", False)],
)
def test_option(project: Project, line: str, is_plain: bool) -> None:
    revision = generated(project, line)
    assert is_plain == ("sqlite" not in revision)
    assert is_plain == ("class" not in revision)
    assert set(project.states("upgrade", "head").values()) == {"changed"}
    project.alembic("check")
    first, *others = [project.tables(shard) for shard in project.shards]
    assert "ON UPDATE CURRENT_TIMESTAMP(6)" in first["users"].replace(
        "current_timestamp", "CURRENT_TIMESTAMP"
    )
    for tables in others:
        assert tables == first
    project.alembic("downgrade", "base")
    assert [project.tables(shard) for shard in project.shards] == [{}] * 4
