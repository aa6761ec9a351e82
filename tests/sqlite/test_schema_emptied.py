"""Files that have lost the tables of a revision."""

from __future__ import annotations

from tests.models.schema import on_sqlite, Project, runner_fixture
from tests.suites.schema_emptied import Emptied

runner = runner_fixture()
project = on_sqlite()


class TestEmptied(Emptied):
    def names(self, project: Project, shard_id: int) -> set[str]:
        rows = project.query(
            shard_id, "SELECT name FROM sqlite_master WHERE type = 'table'"
        )
        return {row[0] for row in rows if row[0] != "sqlite_sequence"}

    def drop(self, project: Project, shard_id: int) -> None:
        project.file(shard_id).unlink(missing_ok=True)

    def made_anew(self, project: Project, shard_id: int) -> None:
        self.drop(project, shard_id)
        project.file(shard_id).touch()

    def set_aside(self, project: Project, shard_id: int) -> None:
        for name in self.names(project, shard_id):
            project.query(shard_id, f"ALTER TABLE {name} RENAME TO {name}_old")
