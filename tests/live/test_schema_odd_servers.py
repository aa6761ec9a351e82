"""Unusual revisions, and their effects on other shards."""

from __future__ import annotations

import json
import re
import signal

import pytest

from sqla_shard import schema
from sqla_shard.testing.topology_documents import topology_document
from tests.models.schema import on_servers, Project, runner_fixture, until

pytestmark = pytest.mark.live
runner = runner_fixture()
project = on_servers("schodd")

PINS = 'op.execute("CREATE TABLE pins (n INT)")'

OTHER = 'op.execute("CREATE TABLE boards (n INT)")'


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


@pytest.mark.parametrize(
    ("odd", "error"),
    [
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("__import__('os')._exit(0)", "ended with status 0"),
        ("op.get_bind().close()", "This Connection is closed"),
        ("op.get_bind().invalidate()", "Can't reconnect"),
        ("raise ValueError('\\udcff')", "ValueError: \\udcff"),
        ("raise ValueError('x' * 100_000)", "(100000 characters)"),
    ],
)
def test_every_shard_is_tried(project, odd, error):
    project.add("0001", PINS)
    project.alembic("upgrade", "head")
    project.add("0002", f"{OTHER}\n{odd}")
    options = ("-x", "jobs=1", "-x", "continue_on_error=true")
    report = project.report(*options, "upgrade", "head", status=1)
    for one in report["shards"]:
        assert one["state"] == "failed", one
        assert error in one["error"]
        assert len(one["error"]) < 11_000
    # The table is there; only the version is missing.
    project.add("0002", OTHER, after="0001")
    states = project.states("upgrade", "head")
    assert set(states.values()) == {"changed"}


def test_a_revision_reads_the_name_of_its_database(project):
    project.add(
        "0001",
        """
        name = op.get_bind().engine.url.database
        op.execute(f"ALTER DATABASE `{name}` DEFAULT CHARACTER SET latin1")
        """,
    )
    project.alembic("upgrade", "head")
    for shard_id in project.shards:
        _, database = project.place(shard_id)
        assert project.query(
            shard_id,
            "SELECT default_character_set_name FROM "
            f"information_schema.schemata WHERE schema_name = '{database}'",
        ) == [("latin1",)]


def test_two_runners_do_not_take_two_steps_for_one(project):
    project.add("0001", PINS)
    project.alembic("upgrade", "head")
    project.add("0002", 'op.execute("ALTER TABLE pins ADD ts INT")')
    project.add("0003", OTHER)
    options = ("-x", "lock_wait=60", "-x", "runner_wait=60")
    with project.locked(0, "pins"):
        first = project.start(*options, "upgrade", "+1")
        project.until_running(0, "ALTER%")
        second = project.start(*options, "upgrade", "+1")
        project.until_running(0, "SELECT GET_LOCK%")
    assert first.wait().returncode == 0
    done = second.wait()
    assert done.returncode == 1
    assert "it was at 0001 when this run began, and is at 0002" in done.stdout
    for shard_id in project.shards:
        assert project.heads(shard_id) == ["0002"]


@pytest.mark.parametrize("folds", [0, 1])
def test_names_of_databases_in_capital_letters(server_kind, tmp_path, runner, folds):
    option = f"--lower-case-table-names={folds}"
    with server_kind.server(options=[option], fast=True) as server:
        url = f"mysql://{server.user}:{server.password}@{server.host}"
        document = topology_document(
            {server.name: f"{url}:{server.port}"}, 2, database="DB_Odd{shard:05d}"
        )
        project = Project(tmp_path, document, [server], runner)
        project.add("0001", PINS)
        project.query(0, f"GRANT ALL ON *.* TO {server.user}@'127.0.0.1'")
        project.query(0, "CREATE DATABASE db_odd00000")
        project.query(0, "CREATE DATABASE db_odd00001")
        found = {one.condition for one in schema.status(project.config()).shards}
        if folds:
            assert found == {"behind"}
            schema.upgrade(project.config())
            assert schema.status(project.config()).ok
        else:
            # Those with small letters are others.
            assert found == {"no such database"}
        project.close()


def through(project, proxies, options=""):
    """Let the project come to its servers through proxies."""
    document = json.loads(json.dumps(project.document))
    servers = document["keyspaces"]["objects"]["servers"]
    for server, proxy in zip(servers, proxies, strict=False):
        url = re.sub("@.*", f"@{proxy.host}:{proxy.port}", server["primary"])
        server["primary"] = url + options
    project.write_topology(document)


def test_a_run_ends_whose_server_hangs(project, proxies):
    """No limit holds for a statement, but the server has to answer others."""
    project.add("0001", PINS)
    project.alembic("upgrade", "head")
    project.add("0002", 'op.execute("ALTER TABLE pins ADD ts INT")')
    limits = "?connect_timeout=2&read_timeout=2"
    through(project, proxies, limits)
    with project.locked(0, "pins"):
        run = project.start("-x", "lock_wait=60", "upgrade", "head")
        connection = project.until_running(0, "ALTER%")
        wait_until_older(project, connection, 3)
        proxies[0].hang()
        done = run.wait()
        project.end(0, connection)
    assert done.returncode == 1
    assert "The server stopped responding" in done.stdout, done.shown
    assert "the next run checks whether it took effect" in done.stdout
    proxies[0].restore()
    states = project.states("upgrade", "head")
    assert set(states.values()) == {"changed"}


def wait_until_older(project, connection, seconds):
    """Wait until a statement has run for longer than it might be read."""
    until(
        lambda: project.query(
            0,
            "SELECT 1 FROM information_schema.processlist "
            f"WHERE id = {connection} AND time > {seconds}",
        ),
        "a statement that takes long",
    )


def test_several_signals_end_a_run_whose_server_hangs(project, proxies):
    project.add("0001", PINS)
    project.alembic("upgrade", "head")
    project.add("0002", 'op.execute("ALTER TABLE pins ADD ts INT")')
    through(project, proxies)
    with project.locked(0, "pins"):
        run = project.start("-x", "lock_wait=60", "upgrade", "head")
        connection = project.until_running(0, "ALTER%")
        proxies[0].hang()
        for count in (1, 2):
            run.signal_parent(signal.SIGINT)
            # Those that come too fast would be one.
            until(
                lambda count=count: run.said().count("stopping:") == count, "an answer"
            )
        run.signal_parent(signal.SIGINT)
        done = run.wait()
        project.end(0, connection)
    assert done.returncode == 1
    assert "ended with status -9" in done.stdout
    assert "3 not attempted: 1-3" in done.stdout
    proxies[0].restore()
    project.write_topology(project.document)
    states = project.states("upgrade", "head")
    assert set(states.values()) == {"changed"}
