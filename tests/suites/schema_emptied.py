"""Databases that have lost the tables of a revision."""

from __future__ import annotations

import copy
import json
import re
from typing import Any

import pytest

from sqla_shard import schema
from sqla_shard.exc import MigrationFailedError, UnknownShardError
from sqla_shard.schema import RunOptions
from tests.models.schema import Project, until

PINS = """
op.execute(
    "CREATE TABLE pins (id INTEGER PRIMARY KEY)"
)
"""


def conditions(project: Project) -> dict[int, str]:
    report = schema.status(project.config())
    return {one.shard_id: one.condition for one in report.shards}


def upgraded(project: Project, revision: str = "head", **more: Any) -> Any:
    return schema.upgrade(project.config(), revision, options=RunOptions(**more))


def refused(project: Project, **more: Any) -> Any:
    with pytest.raises(MigrationFailedError) as caught:
        upgraded(project, **more)
    return caught.value


def states(error: MigrationFailedError) -> dict[int, str]:
    return {one["shard_id"]: one["state"] for one in error.report["shards"]}


def filled(project: Project) -> None:
    project.add("0001", PINS)
    upgraded(project)


class Emptied:
    """The tests; a subclass says how a database is emptied."""

    def names(self, project: Project, shard_id: int) -> set[str]:
        """Return the names of all tables of a shard."""
        raise NotImplementedError

    def drop(self, project: Project, shard_id: int) -> None:
        """Drop the database of a shard, if it exists."""
        raise NotImplementedError

    def made_anew(self, project: Project, shard_id: int) -> None:
        """Drop the database of a shard, and create it."""
        raise NotImplementedError

    def set_aside(self, project: Project, shard_id: int) -> None:
        """Give all tables of a shard other names."""
        raise NotImplementedError

    def test_an_old_topology_without_any_revision_is_refused(
        self, project: Project
    ) -> None:
        """All shards have moved; where they were, databases are empty."""
        filled(project)
        newest, old = project.document, copy.deepcopy(project.document)
        first, second = old["keyspaces"]["objects"]["servers"]
        first["shards"], second["shards"] = second["shards"], first["shards"]
        project.document = old
        project.write_topology(old)
        try:
            for shard_id in project.shards:
                self.made_anew(project, shard_id)
            error = refused(project)
            assert set(states(error).values()) == {"no revision, where others have one"}
            assert re.search(
                "servers have databases with one that this topology places "
                r"elsewhere: shard 0 \(\w+ on server1\), shard 1 .*--new",
                str(error),
            )
            assert set(conditions(project).values()) == {
                "no revision, where others have one"
            }
            assert not any(self.names(project, i) for i in project.shards)
        finally:
            for shard_id in project.shards:
                self.drop(project, shard_id)
            project.document = newest
        project.write_topology(newest)
        assert upgraded(project).ok

    def test_a_database_that_was_made_anew_is_refused(self, project: Project) -> None:
        filled(project)
        self.made_anew(project, 2)
        project.add("0002", 'op.execute("CREATE TABLE boards (n INT)")')
        error = refused(project)
        assert states(error) == {
            2: "no revision, where others have one",
            **dict.fromkeys((0, 1, 3), "not attempted"),
        }
        assert re.search("no revision, and others have one: 0001.*--new", str(error))
        assert conditions(project) == {
            2: "no revision, where others have one",
            **dict.fromkeys((0, 1, 3), "behind"),
        }
        # Nor if no other shard is among those that it is for.
        assert states(refused(project, shards=(2,))) == {
            2: "no revision, where others have one"
        }
        report = schema.status(project.config(), options=RunOptions(shards=(2,)))
        assert not report.ok
        assert "schema provision" in str(report.shards[0].detail)
        error = refused(project, continue_on_error=True)
        assert states(error)[3] == "changed"
        assert "pins" not in self.names(project, 2)

    def test_one_whose_tables_were_set_aside_is_refused(self, project: Project) -> None:
        filled(project)
        self.set_aside(project, 1)
        before = self.names(project, 1)
        error = refused(project)
        assert states(error)[1] == "no revision, where others have one"
        assert self.names(project, 1) == before

    def test_one_that_was_named_is_filled(self, project: Project) -> None:
        filled(project)
        self.made_anew(project, 2)
        self.made_anew(project, 3)
        assert states(refused(project, new=(3,)))[2] != "changed"
        report = upgraded(project, new=(2, 3))
        assert [one.shard_id for one in report.of(schema.State.CHANGED)] == [2, 3]
        # Those that have a revision by now do no harm, when it is repeated.
        upgraded(project, new=(2, 3))
        assert set(conditions(project).values()) == {"current"}
        with pytest.raises(UnknownShardError):
            upgraded(project, new=(4,))

    def test_all_databases_are_new_where_none_has_a_revision(
        self, project: Project
    ) -> None:
        project.add("0001", PINS, 'op.execute("DROP TABLE pins")')
        upgraded(project)
        schema.downgrade(project.config(), "base")
        upgraded(project)

    def test_provisioned_databases_are_new(self, project: Project) -> None:
        schema.provision(project.config(), initial=True)
        project.add("0001", PINS, 'op.execute("DROP TABLE pins")')
        upgraded(project, shards=(0,))
        assert conditions(project) == {
            0: "current",
            **dict.fromkeys((1, 2, 3), "behind"),
        }
        upgraded(project, shards=(1, 2))
        # One that was brought back to no revision may get one again.
        schema.downgrade(project.config(), "base", options=RunOptions(shards=(1,)))
        upgraded(project)
        assert set(conditions(project).values()) == {"current"}
        self.made_anew(project, 0)
        assert states(refused(project))[0] == "no revision, where others have one"

    def test_only_tables_that_are_there_can_be_stamped(self, project: Project) -> None:
        filled(project)
        self.made_anew(project, 2)
        done = project.alembic("stamp", "head", status=1)
        assert "2: " not in done.stdout
        assert "1 no revision, where others have one: 2" in done.stdout
        assert conditions(project)[2] == "no revision, where others have one"
        project.query(2, "CREATE TABLE {db}pins (id INTEGER PRIMARY KEY)")
        project.alembic("stamp", "head")
        self.made_anew(project, 3)
        project.alembic("-x", "new=3", "stamp", "head")
        assert set(conditions(project).values()) == {"current"}

    def test_one_that_loses_its_tables_during_the_run_is_refused(
        self, project: Project
    ) -> None:
        filled(project)
        flag = project.directory / "flag"
        project.add(
            "0002",
            f"""
    import pathlib, time
    from sqla_shard.schema import current_shard
    if current_shard().shard_id == 0:
        pathlib.Path({str(flag)!r}).touch()
        while pathlib.Path({str(flag)!r}).exists():
            time.sleep(0.01)
    op.execute("CREATE TABLE boards (n INT)")
    """,
        )
        path = project.directory / "report.json"
        goes_on = ("-x", "continue_on_error=true")
        run = project.start(*goes_on, "-x", f"report={path}", "upgrade", "head")
        until(flag.exists, "the first shard")
        self.made_anew(project, 2)
        for name in ("alembic_version", "pins"):
            project.query(3, f"DROP TABLE {{db}}{name}")
        flag.unlink()
        assert run.wait().returncode == 1
        report = json.loads(path.read_text())
        states = [one["state"] for one in report["shards"]]
        assert states == ["changed", "changed", "failed", "failed"]
        assert "has no revision now" in report["shards"][3]["error"]
        for shard_id in (2, 3):
            assert not {"pins", "boards"} & self.names(project, shard_id)
