"""Reports of a run about lost connections, servers and statements."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, ExitStack
from typing import Any

import pytest

from sqla_shard import schema
from sqla_shard.exc import SchemaError
from tests.models.schema import LEDGER, on_servers, Project, runner_fixture, until

pytestmark = pytest.mark.live
runner = runner_fixture()
project = on_servers("schlost")

PINS = 'op.execute("CREATE TABLE pins (n INT)")'
BOARDS = 'op.execute("CREATE TABLE boards (n INT)")'
ALTER = 'op.execute("ALTER TABLE pins ADD ts INT")'


def conditions(project: Project) -> dict[int, tuple[str, str | None]]:
    report = schema.status(project.config())
    return {one.shard_id: (one.condition, one.detail) for one in report.shards}


def failing(project: Project) -> None:
    """Fail in revision 0002 on shard 0."""
    project.add("0001", PINS)
    project.alembic("upgrade", "head")
    project.add(
        "0002",
        f'{ALTER}\nop.execute("ALTER TABLE nothing ADD ts INT")',
        'op.execute("ALTER TABLE pins DROP ts")',
    )
    project.alembic("upgrade", "head", status=1)


# -- messages of a shard about a failed revision


def test_a_stamp_does_not_clear_what_has_failed(project: Project) -> None:
    failing(project)
    done = project.alembic(*("-x", "continue_on_error=yes", "stamp", "head"), status=1)
    assert "1 in doubt: 0" in done.stdout
    assert "3 changed: 1-3" in done.stdout
    assert "upgrade of 0002 was interrupted" in done.stdout
    assert "schema resolve" in done.stdout
    condition, detail = conditions(project)[0]
    assert condition == "failed"
    assert "nothing" in str(detail)
    project.alembic("stamp", "--purge", "head", status=1)
    schema.resolve(project.config(), 0, schema.Answer.REVISION_UNDONE)
    project.alembic("stamp", "head")
    assert conditions(project)[0] == ("current", None)


def test_a_downgrade_that_is_refused_leaves_the_reason(project: Project) -> None:
    failing(project)
    before = conditions(project)[0]
    assert before[0] == "failed"
    done = project.alembic(*("-x", "shards=0", "downgrade", "base"), status=1)
    assert "in doubt" in done.stdout
    # Why it had failed is in the report, too.
    assert "nothing" in done.stdout
    assert conditions(project)[0] == before


def test_a_doubt_leaves_the_reason(project: Project) -> None:
    project.add(
        "0001",
        """
        op.execute("CREATE TABLE pins (n INT UNIQUE) ENGINE=MyISAM")
        op.get_bind().exec_driver_sql(
            "INSERT INTO pins VALUES (%s)", [(1,), (1,)]
        )
        """,
    )
    for _ in range(3):
        project.alembic("-x", "shards=0", "upgrade", "head", status=1)
        assert conditions(project)[0][0] == "in doubt"
        *_, last = project.ledger(0)
        assert "Duplicate entry" in last["error"]
        assert last["error"].count("definitions of the tables do not") <= 1


def test_a_ledger_that_was_dropped_is_reported(project: Project) -> None:
    project.add("0001", PINS)
    project.alembic("upgrade", "head")
    project.query(1, f"DROP TABLE {{db}}{LEDGER}")
    condition, detail = conditions(project)[1]
    assert condition == "no ledger"
    assert "DROP TABLE sqla_shard_version" in str(detail)
    report = project.report("upgrade", "head", status=1)
    assert [one["state"] for one in report["shards"]] == [
        "nothing to do",
        "no ledger",
        *["nothing to do"] * 2,
    ]
    # The advised commands create another ledger.
    project.query(1, "DROP TABLE {db}sqla_shard_version")
    project.alembic("upgrade", "head")
    assert schema.status(project.config()).ok
    assert project.ledger(1) == []


def test_resolve_reports_a_server_that_does_not_respond(project: Project) -> None:
    project.add("0001", PINS)
    project.alembic("upgrade", "head")
    document = copy.deepcopy(project.document)
    server = document["keyspaces"]["objects"]["servers"][1]
    server["primary"] = "mysql+pymysql://nobody@127.0.0.1:1"
    project.write_topology(document)
    with pytest.raises(SchemaError, match=r"could not be read.*127\.0\.0\.1"):
        schema.resolve(project.config(), 3, schema.Answer.REVISION_DONE)
    project.write_topology(project.document)
    project.query(3, f"DROP DATABASE {project.place(3)[1]}")
    with pytest.raises(SchemaError, match="database not found"):
        schema.resolve(project.config(), 3, schema.Answer.REVISION_DONE)
    with pytest.raises(SchemaError, match="no revision is unfinished"):
        schema.resolve(project.config(), 0, schema.Answer.REVISION_DONE)


# -- connections


def root(project: Project, shard_id: int) -> Any:
    server, _ = project.place(shard_id)
    return project.servers[server].root_connect(ssl_disabled=True)


@contextmanager
def set_globally(
    project: Project, shard_ids: Sequence[int], name: str, value: int
) -> Iterator[None]:
    """Give a variable another value on the servers of some shards."""
    with ExitStack() as stack:
        for shard_id in shard_ids:
            connection = root(project, shard_id)
            stack.callback(connection.close)
            cursor = connection.cursor()
            cursor.execute(f"SELECT @@GLOBAL.{name}")
            [(before,)] = cursor.fetchall()
            cursor.execute(f"SET GLOBAL {name} = {value}")
            stack.callback(cursor.execute, f"SET GLOBAL {name} = {before}")
        yield


def test_idle_connections_are_opened_again(project: Project) -> None:
    project.add("0001", PINS)
    with set_globally(project, (0,), "wait_timeout", 3):
        report = project.report(
            *("-x", "shards=0,1", "-x", "jobs=1", "-x", "pause=4.5"),
            *("upgrade", "head"),
        )
    assert [one["state"] for one in report["shards"]] == ["changed"] * 2


def test_provision_compares_after_a_long_run(project: Project) -> None:
    project.add("0001", PINS)
    options = schema.RunOptions(wave=3, pause=4.5)
    with set_globally(project, (0, 2), "wait_timeout", 3):
        assert schema.provision(
            project.config(), initial=True, options=options
        ).may_be_published


def test_a_statement_that_is_killed(project: Project) -> None:
    project.add("0001", f'{PINS}\nop.execute("INSERT INTO pins VALUES (1)")')
    project.alembic("upgrade", "head")
    project.add("0002", 'op.execute("UPDATE pins SET n = SLEEP(300)")')
    run = project.start("-x", "shards=0", "upgrade", "head")
    connection = project.until_running(0, "UPDATE pins SET n = SLEEP%")
    project.query(0, f"KILL QUERY {connection}")
    done = run.wait()
    assert done.returncode == 1
    assert "1 failed: 0" in done.stdout, done.shown
    assert "KILL QUERY" in done.stdout
    assert "connection was lost" not in done.stdout
    condition, detail = conditions(project)[0]
    assert condition == "failed"
    assert "KILL QUERY" in str(detail)


def test_a_connection_that_is_lost_in_a_statement(project: Project) -> None:
    project.add("0001", f'{PINS}\nop.execute("KILL CONNECTION_ID()")')
    report = project.report("-x", "shards=0", "upgrade", "head", status=1)
    [found] = report["shards"]
    assert "The connection was lost" in found["error"]
    assert "checks whether it took effect" in found["error"]


def test_one_that_is_lost_between_two_statements(project: Project) -> None:
    ready, go = project.directory / "ready", project.directory / "go"
    project.add(
        "0001",
        f"""
        import pathlib, time
        {PINS}
        number = op.get_bind().scalar(sa.text("SELECT CONNECTION_ID()"))
        pathlib.Path({str(ready) + ".new"!r}).write_text(str(number))
        pathlib.Path({str(ready) + ".new"!r}).rename({str(ready)!r})
        while not pathlib.Path({str(go)!r}).exists():
            time.sleep(0.01)
        {BOARDS}
        """,
    )
    run = project.start("-x", "shards=0", "upgrade", "head")
    until(ready.exists, "the connection of the run")
    project.end(0, int(ready.read_text()))
    go.touch()
    done = run.wait()
    assert done.returncode == 1
    assert "The connection was lost between two statements" in done.stdout
    assert "took effect" not in done.stdout


def test_a_server_that_is_read_only(project: Project) -> None:
    project.add("0001", PINS)
    project.alembic("upgrade", "head")
    project.add("0002", BOARDS)
    with set_globally(project, (2,), "read_only", 1):
        report = project.report(
            "-x", "continue_on_error=yes", "upgrade", "head", status=1
        )
    states = [one["state"] for one in report["shards"]]
    assert states == [*["changed"] * 2, *["server is read-only"] * 2]
    assert "standby" in report["shards"][2]["error"]
    assert "could not be written" not in report["shards"][2]["error"]
    project.alembic("upgrade", "head")


@pytest.mark.only_on("mysql")
def test_a_database_that_is_read_only(project: Project) -> None:
    project.add("0001", PINS)
    project.alembic("upgrade", "head")
    project.add("0002", ALTER)
    server, database = project.place(2)
    assert project.place(3)[0] == server
    project.query(2, f"ALTER DATABASE {database} READ ONLY = 1")
    report = project.report("-x", "continue_on_error=yes", "upgrade", "head", status=1)
    project.query(2, f"ALTER DATABASE {database} READ ONLY = 0")
    shards = {one["shard_id"]: one for one in report["shards"]}
    assert shards[2]["state"] == "failed"
    assert f"ALTER DATABASE {database} READ ONLY = 0" in shards[2]["error"]
    assert [shards[n]["state"] for n in (0, 1, 3)] == ["changed"] * 3
    assert project.states("upgrade", "head")[2] == "changed"
