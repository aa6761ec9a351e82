"""Unusual ways to use alembic, and options that are written wrongly."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from sqla_shard import Cluster, schema
from sqla_shard.exc import MigrationFailedError, SchemaError, SchemaOptionError
from sqla_shard.schema import RunOptions
from tests.models.schema import on_sqlite, runner_fixture

runner = runner_fixture()
project = on_sqlite(main=True)

PINS = 'op.execute("CREATE TABLE pins (n INT)")'
BOARDS = 'op.execute("CREATE TABLE boards (n INT)")'


def test_a_revision_that_another_one_depends_on_is_no_lag(project):
    project.add("a1", PINS, after=None, labels="a")
    path = project.add("b1", BOARDS, after=None, labels="b")
    project.rewrite(path, "depends_on = None", "depends_on = 'a1'")
    schema.upgrade(project.config(), "a@head")
    report = schema.status(project.config())
    assert {one.condition for one in report.shards} == {"behind"}
    schema.upgrade(project.config(), "heads")
    assert project.heads(0) == ["b1"]
    report = schema.status(project.config())
    assert report.ok, report
    assert "4 at b1 (head): 0-3" in str(report)


@pytest.mark.parametrize("name", ["my versions", "order", "a-b"])
def test_a_version_table_of_any_name(project, name):
    project.add("0001", PINS)
    project.replace_in_env("MetaData())", f"MetaData(), version_table={name!r})")
    schema.upgrade(project.config())
    report = schema.status(project.config())
    assert report.ok, report


def test_status_leaves_nothing_on_connections_of_the_application(project):
    project.add("0001", "raise RuntimeError")
    options = RunOptions(continue_on_error=True)
    with pytest.raises(MigrationFailedError):
        schema.upgrade(project.config(), options=options)
    path = project.directory / "topology.json"
    with Cluster.from_file(path) as cluster:
        report = schema.status(project.config(), cluster=cluster)
        assert {one.condition for one in report.shards} == {"failed"}
        keyspace = cluster.places.topology.keyspace("objects")
        for shard_id in project.shards:
            engine = cluster.places.place(keyspace, shard_id).engine
            with engine.connect() as connection:
                asked = connection.exec_driver_sql("PRAGMA foreign_keys")
                assert asked.scalar() == 1


@pytest.mark.parametrize("name", ["SHARDS", "Shards", " shards"])
def test_the_name_of_an_option_in_any_case(name):
    assert RunOptions.parse({name: "1-2"}).shards == (1, 2)


def test_a_report_that_cannot_be_written_fails_first(project):
    project.add("0001", PINS)
    options = RunOptions(report=str(project.directory / "no" / "report"))
    with pytest.raises(SchemaOptionError, match=r"report=.*cannot be written"):
        schema.upgrade(project.config(), options=options)
    assert not project.query(0, "SELECT * FROM sqlite_master")


def test_a_report_that_cannot_be_written_any_more(project):
    folder = project.directory / "reports"
    folder.mkdir()
    project.add(
        "0001", f"__import__('shutil').rmtree({str(folder)!r}, ignore_errors=True)"
    )
    path = folder / "report.json"
    done = project.alembic("-x", f"report={path}", "upgrade", "head", status=None)
    assert done.returncode != 0
    assert "4 changed: 0-3" in done.stdout
    assert "the report cannot be written" in done.shown
    assert "Traceback" not in done.shown


def test_output_of_a_revision_is_not_in_the_report(project):
    project.add("0001", "print('hello')")
    program = ("-m", "sqla_shard.cli", "schema", "-c", project.ini)
    done = subprocess.run(
        [sys.executable, *program, "upgrade", "--json"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout)["ok"]
    assert done.stderr.count("hello") == 4


@pytest.mark.parametrize(
    "command", [("upgrade", "head"), ("current",), ("stamp", "head")]
)
def test_a_revision_whose_predecessor_is_gone_is_named(project, command):
    project.add("0001", PINS)
    project.add("0002", BOARDS)
    (project.directory / "migrations" / "versions" / "0001.py").unlink()
    done = project.alembic(*command, status=255)
    assert "Traceback" not in done.stderr, done.shown
    assert "'0001'" in done.stdout
    assert "down_revision" in done.stdout


@pytest.mark.filterwarnings("ignore:Revision 0001 referenced:UserWarning")
@pytest.mark.parametrize("function", [schema.upgrade, schema.status])
def test_functions_name_it_too(project, function):
    project.add("0002", BOARDS, after="0001")
    with pytest.raises(SchemaError, match="'0001'"):
        function(project.config())


@pytest.mark.parametrize(
    "reading",
    [
        'op.get_bind().execute(sa.text("SELECT 1")).scalar()',
        "sa.inspect(op.get_bind()).get_table_names()",
        "current_shard()",
    ],
)
def test_sql_of_a_revision_that_reads_is_refused(project, reading):
    project.add(
        "0001", f"from sqla_shard.schema import current_shard\n{PINS}\n{reading}"
    )
    done = project.alembic("upgrade", "head", "--sql", status=255)
    assert "Traceback" not in done.stderr, done.shown
    assert "--sql" in done.stdout
    assert "upgrade of 0001" in done.stdout
