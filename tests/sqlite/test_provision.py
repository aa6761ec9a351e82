"""Databases of virtual shards that a topology opens: SQLite files."""

from __future__ import annotations

import copy
import io
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from sqla_shard import Cluster, schema, Topology
from sqla_shard.exc import MigrationFailedError, ProvisionError, SchemaOptionError
from sqla_shard.outbox.tables import METADATA
from sqla_shard.schema import ledger, RunOptions, State
from sqla_shard.schema.reports import LineProgress
from sqla_shard.testing import sqlite_topology
from tests.models.provisioning import Project, refused
from tests.models.sqlite_files import with_files

ONE = RunOptions(jobs=1)


@pytest.fixture
def base(tmp_path: Path) -> dict[str, Any]:
    """Two shards on server1."""
    return sqlite_topology(tmp_path / "data", 1, 2)


@pytest.fixture
def project(tmp_path: Path, base: dict[str, Any]) -> Project:
    return Project(tmp_path, base)


@pytest.fixture
def grown(tmp_path: Path, base: dict[str, Any]) -> dict[str, Any]:
    """Two more, on server2."""
    found = copy.deepcopy(base)
    found["epoch"] = 2
    objects = found["keyspaces"]["objects"]
    objects["shards"] = 4
    url = f"sqlite:///{tmp_path / 'data' / 'server2'}"
    objects["servers"].append({"name": "server2", "primary": url, "shards": [2, 3]})
    return found


def path_of(tmp_path: Path, server: str, shard_id: int) -> Path:
    return tmp_path / "data" / server / f"db{shard_id:05d}.sqlite"


def execute(path: Path, *statements: str) -> list[Any]:
    path.parent.mkdir(parents=True, exist_ok=True)
    connection = sqlite3.connect(path)
    try:
        rows: list[Any] = []
        for statement in statements:
            rows = connection.execute(statement).fetchall()
        connection.commit()
        return rows
    finally:
        connection.close()


def test_the_first_topology_and_a_larger_one(
    project: Project, grown: dict[str, Any], tmp_path: Path
) -> None:
    first = project.provision(options=ONE)
    assert first.ok
    assert first.may_be_published
    assert len(first.of(State.CHANGED)) == 2
    assert str(first).endswith("the topology of epoch 1 may be published")
    report = project.provision(grown, options=ONE)
    assert [one.shard_id for one in report.outcomes] == [2, 3]
    assert {one.state for one in report.outcomes} == {State.CHANGED}
    assert report.as_dict()["may_be_published"] is True
    assert report.as_dict()["epoch"] == 2
    assert project.status(grown).ok
    rows = execute(path_of(tmp_path, "server2", 3), "SELECT id FROM kinds")
    assert rows == [(1,), (2,)]


def test_complete_databases_are_not_changed(
    project: Project, grown: dict[str, Any]
) -> None:
    project.provision(options=ONE)
    project.provision(grown, options=ONE)
    for _ in range(2):
        report = project.provision(grown, options=ONE)
        assert report.may_be_published
        assert len(report.of(State.CURRENT)) == 2


def test_a_revision_since_then_is_applied(
    project: Project, grown: dict[str, Any], tmp_path: Path
) -> None:
    project.provision(options=ONE)
    project.provision(grown, options=ONE)
    project.second()
    with pytest.raises(ProvisionError) as raised:
        project.provision(grown, options=ONE)
    [(place, message)] = refused(raised.value)
    assert place == "shard 0 (db00000 on server1)"
    assert "it is at 0001, not at 0002; run alembic upgrade head" in message
    schema.upgrade(project.config(), options=ONE)
    for state in (State.CHANGED, State.CURRENT):
        # Its rows of the second revision do not count as foreign.
        report = project.provision(grown, options=ONE)
        assert {one.state for one in report.outcomes} == {state}
    rows = execute(path_of(tmp_path, "server2", 3), "SELECT id FROM kinds")
    assert rows == [(1,), (2,), (3,)]


def test_rows_of_the_application_forbid_it(
    project: Project, grown: dict[str, Any], tmp_path: Path
) -> None:
    project.provision(options=ONE)
    project.provision(grown, options=ONE)
    execute(
        path_of(tmp_path, "server2", 3),
        "INSERT INTO pins (data) VALUES ('mine')",
        "INSERT INTO kinds (id) VALUES (7)",
    )
    with pytest.raises(ProvisionError) as raised:
        project.provision(grown, options=ONE)
    [(place, message)] = refused(raised.value)
    assert place == "db00003 on server2"
    assert "was provisioned for epoch 2" in message
    assert "in kinds, pins; it may be in use" in message


def test_rows_of_the_application_forbid_initial(
    project: Project, tmp_path: Path
) -> None:
    project.provision(options=ONE)
    execute(path_of(tmp_path, "server1", 0), "INSERT INTO pins (data) VALUES ('mine')")
    with pytest.raises(ProvisionError, match="in pins; it may be in use"):
        project.provision(options=ONE)


def test_a_file_of_another_program(
    project: Project, grown: dict[str, Any], tmp_path: Path
) -> None:
    project.provision(options=ONE)
    strange = path_of(tmp_path, "server2", 2)
    execute(strange, "CREATE TABLE pins (id INTEGER)")
    with pytest.raises(ProvisionError) as raised:
        project.provision(grown, options=ONE)
    [(place, message)] = refused(raised.value)
    assert place == "db00002 on server2"
    assert "tables that provision has not created: pins" in message
    assert not path_of(tmp_path, "server2", 3).exists()
    # One without tables holds nothing.
    execute(strange, "DROP TABLE pins")
    assert project.provision(grown, options=ONE).may_be_published


def test_a_file_in_another_directory(
    project: Project, grown: dict[str, Any], base: dict[str, Any], tmp_path: Path
) -> None:
    project.provision(options=ONE)
    # A server of another keyspace, and one that is a standby.
    for document in (base, grown):
        objects = document["keyspaces"]["objects"]
        objects["servers"][0]["standby"] = f"sqlite:///{tmp_path}/data/copy"
        document["keyspaces"]["others"] = {
            **objects,
            "shards": 1,
            "database": "other{shard}",
            "servers": [
                {
                    "name": "other",
                    "primary": f"sqlite:///{tmp_path}/data/other",
                    "shards": [0, 0],
                }
            ],
        }
    project.publish(base)
    execute(path_of(tmp_path, "other", 2))
    execute(path_of(tmp_path, "server1", 3))
    execute(path_of(tmp_path, "copy", 3))
    # A copy of server1 legitimately has it.
    execute(path_of(tmp_path, "copy", 0))
    with pytest.raises(ProvisionError) as raised:
        project.provision(grown, options=ONE)
    found = dict(refused(raised.value))
    # The standby has what its primary has, so only that is reported.
    assert set(found) == {"db00002 on other", "db00003 on server1"}
    assert "the objects of shard 2" in found["db00002 on other"]
    assert not path_of(tmp_path, "server2", 2).parent.exists()
    path_of(tmp_path, "other", 2).unlink()
    path_of(tmp_path, "server1", 3).unlink()
    with pytest.raises(ProvisionError) as raised:
        project.provision(grown, options=ONE)
    [(place, _)] = refused(raised.value)
    assert place == "db00003 on server1 (standby)"
    path_of(tmp_path, "copy", 3).unlink()
    assert project.provision(grown, options=ONE).may_be_published


def test_a_standby_has_what_its_primary_has(
    project: Project, grown: dict[str, Any], tmp_path: Path
) -> None:
    project.provision(options=ONE)
    servers = grown["keyspaces"]["objects"]["servers"]
    servers[1]["standby"] = f"sqlite:///{tmp_path}/data/copy"
    assert project.provision(grown, options=ONE).may_be_published
    execute(path_of(tmp_path, "copy", 2))
    assert project.provision(grown, options=ONE).may_be_published


def test_another_keyspace_may_have_the_name_elsewhere(
    project: Project, grown: dict[str, Any], base: dict[str, Any], tmp_path: Path
) -> None:
    project.provision(options=ONE)
    other = {
        "kind": "objects",
        "shards": 4,
        "database": "db{shard:05d}",
        "servers": [
            {
                "name": "other",
                "primary": f"sqlite:///{tmp_path}/data/other",
                "shards": [0, 3],
            }
        ],
    }
    for document in (base, grown):
        document["keyspaces"]["others"] = other
    project.publish(base)
    execute(path_of(tmp_path, "other", 2))
    report = project.provision(grown, options=ONE)
    assert report.may_be_published
    assert report.others == ()


def changed(document: dict[str, Any], **values: Any) -> dict[str, Any]:
    found = copy.deepcopy(document)
    found["keyspaces"]["objects"].update(values)
    return found


def test_refusals_that_ask_no_server(
    project: Project, grown: dict[str, Any], tmp_path: Path
) -> None:
    servers = grown["keyspaces"]["objects"]["servers"]
    moved = copy.deepcopy(servers)
    moved[0]["shards"], moved[1]["shards"] = [0, 0], [1, 3]
    elsewhere = copy.deepcopy(servers)
    elsewhere[0]["primary"] = f"sqlite:///{tmp_path}/elsewhere"
    closed = [{**servers[0], "shards": [0, 0]}]
    gone = copy.deepcopy(grown)
    gone["keyspaces"]["others"] = gone["keyspaces"].pop("objects")
    cases = [
        ({**grown, "epoch": 1}, "epoch: 1 must be higher than 1"),
        (changed(grown, servers=moved), "shards 1 would be on 'server2' ("),
        (changed(grown, servers=elsewhere), "shards 0-1 would be on 'server1'"),
        (changed(grown, shards=1, servers=closed), "2 -> 1 drops shard 1 with all"),
        (changed(grown, kind="mod"), "'objects' -> 'mod' would route"),
        (changed(grown, database="x{shard}"), "keep 'db{shard:05d}'"),
        (gone, "keyspaces.objects: is missing, and with it all of its shards"),
    ]
    for document, expected in cases:
        with pytest.raises(ProvisionError) as raised:
            project.provision(document, options=ONE)
        messages = [": ".join(one) for one in refused(raised.value)]
        assert any(expected in one for one in messages), messages
        assert raised.value.keyspace == "objects"
    assert not (tmp_path / "data" / "server2").exists()
    assert not list((tmp_path / "data" / "server1").iterdir())


def test_a_server_may_have_another_name(
    project: Project, grown: dict[str, Any]
) -> None:
    project.provision(options=ONE)
    grown["keyspaces"]["objects"]["servers"][0]["name"] = "renamed"
    assert project.provision(grown, options=ONE).may_be_published


def test_without_a_current_topology(project: Project, grown: dict[str, Any]) -> None:
    with pytest.raises(ProvisionError) as raised:
        project.provision(grown, options=ONE)
    [(place, message)] = refused(raised.value)
    assert place == "shard 0 (db00000 on server1)"
    assert "it is missing" in message
    assert "initial=True" in message


def test_before_the_first_revision(project: Project, grown: dict[str, Any]) -> None:
    # The models can be compared with a database only when there is one.
    hidden = {path: path.read_text() for path in project.versions.iterdir()}
    for path in hidden:
        path.unlink()
    report = project.provision(options=ONE)
    assert report.may_be_published
    assert len(report.of(State.CHANGED)) == 2
    assert project.provision(options=ONE).may_be_published
    for path, text in hidden.items():
        path.write_text(text)
    schema.upgrade(project.config(), options=ONE)
    assert project.provision(grown, options=ONE).may_be_published
    assert project.status(grown).ok


def test_options_without_meaning(project: Project, grown: dict[str, Any]) -> None:
    for options in (RunOptions(shards=(3,)), RunOptions(servers=("a",))):
        with pytest.raises(SchemaOptionError, match="leave the option out"):
            project.provision(grown, options=options)
    with pytest.raises(SchemaOptionError, match="initial=True"):
        schema.provision(project.config())
    with pytest.raises(SchemaOptionError, match="this is another"):
        project.provision(grown, initial=True)


def test_nothing_to_open(
    project: Project, base: dict[str, Any], tmp_path: Path
) -> None:
    project.provision(options=ONE)
    report = project.provision({**base, "epoch": 2}, options=ONE)
    assert report.outcomes == ()
    assert report.may_be_published


def test_progress_and_report_agree_without_revisions(
    project: Project, tmp_path: Path
) -> None:
    (project.versions / "0001_first.py").unlink()
    # An administrator has created it.
    execute(path_of(tmp_path, "server1", 0), "VACUUM")
    for todo, state in ((2, State.CHANGED), (0, State.CURRENT)):
        said = io.StringIO()
        report = project.provision(options=ONE, progress=LineProgress(said))
        assert said.getvalue().startswith(f"provision to head: {todo} of 2 virtual")
        assert {one.state for one in report.outcomes} == {state}


def test_a_revision_that_fails(
    project: Project, grown: dict[str, Any], tmp_path: Path
) -> None:
    project.provision(options=ONE)
    project.flag("fail2")
    file = tmp_path / "report.json"
    with pytest.raises(MigrationFailedError) as raised:
        project.provision(grown, options=RunOptions(jobs=1, report=str(file)))
    assert raised.value.shards == (2, 3)
    assert "epoch 2 must not be published" in str(raised.value)
    report = json.loads(file.read_text())
    assert report == json.loads(json.dumps(raised.value.report))
    assert report["may_be_published"] is False
    states = {one["shard_id"]: one["state"] for one in report["shards"]}
    assert states == {2: "failed", 3: "not attempted"}
    project.flag("fail2", is_set=False)
    assert project.provision(grown, options=ONE).may_be_published


def test_one_that_is_not_like_the_others(
    project: Project, grown: dict[str, Any]
) -> None:
    project.provision(options=ONE)
    project.flag("differ3")
    for _ in range(2):
        with pytest.raises(MigrationFailedError) as raised:
            project.provision(grown, options=ONE)
        assert raised.value.shards == (3,)
        message = str(raised.value)
        assert "differ from those of shard 0 (db00000 on server1)" in message
        assert "table kinds" in message
        assert "+  odd INTEGER" in message
        assert "must not be published" in message


def test_the_reference_can_be_chosen(
    project: Project, grown: dict[str, Any], tmp_path: Path
) -> None:
    project.provision(options=ONE)
    execute(path_of(tmp_path, "server1", 0), "CREATE TABLE odd (id INTEGER)")
    with pytest.raises(MigrationFailedError, match="table odd: missing"):
        project.provision(grown, options=ONE)
    report = project.provision(grown, options=RunOptions(jobs=1, reference=1))
    assert report.may_be_published


def test_a_global_keyspace(tmp_path: Path, base: dict[str, Any]) -> None:
    with_main = sqlite_topology(tmp_path / "data", 1, 2, main=True)
    project = Project(tmp_path, base, keyspace="main")
    with Cluster.from_topology(with_main) as cluster:
        report = schema.provision(
            project.config(), initial=True, options=ONE, cluster=cluster
        )
    assert [one.database for one in report.outcomes] == ["main"]
    assert report.others == ("objects",)
    assert "if these keyspaces are provisioned too: objects" in str(report)
    # Once it is there, there is nothing more to open in it.
    project.publish(with_main)
    assert project.provision({**with_main, "epoch": 2}).outcomes == ()


def test_others_that_open_shards(
    project: Project, grown: dict[str, Any], tmp_path: Path
) -> None:
    project.provision(options=ONE)
    main = sqlite_topology(tmp_path / "data", 1, 2, main=True)
    grown["keyspaces"]["main"] = main["keyspaces"]["main"]
    assert project.provision(grown, options=ONE).others == ("main",)


def test_the_current_topology_of_a_cluster(
    project: Project, base: dict[str, Any], grown: dict[str, Any]
) -> None:
    project.provision(options=ONE)
    project.topology.unlink()
    with Cluster.from_topology(base) as cluster:
        report = schema.provision(
            project.config(), Topology.from_mapping(grown), options=ONE, cluster=cluster
        )
        assert report.may_be_published
        assert cluster.health().servers == {"server1": None}


def test_another_runner_has_made_the_tables_of_this_package(
    base: dict[str, Any],
) -> None:
    # Once met by two runs at the same time: a shard where the other was
    # first must not be the example of what the next one needs.
    with Cluster.from_topology(with_files(base)) as cluster:
        objects = cluster.topology.keyspace("objects")
        places = [cluster.places.place(objects, i) for i in range(2)]
        names = []
        for place in (places[0], places[0], places[1]):
            with place.engine.connect() as connection:
                ledger.upgrade_own_tables(connection, None)
                names.append(place.backend.ddl.names(connection))
    tables = {*METADATA.tables, ledger.VERSION_TABLE}
    assert names == [tables] * 3


def test_a_database_that_appears_meanwhile(
    project: Project, grown: dict[str, Any], tmp_path: Path
) -> None:
    project.provision(options=ONE)
    path = path_of(tmp_path, "server2", 3)
    revision = project.versions / "0001_first.py"
    began = "shard_id = current_shard().shard_id\n"
    text = revision.read_text()
    assert began in text
    revision.write_text(
        text.replace(
            began,
            began + "    if shard_id == 2:\n"
            "        import sqlite3\n"
            f"        found = sqlite3.connect({str(path)!r})\n"
            "        found.execute('CREATE TABLE users (n INT)')\n"
            "        found.close()\n",
        )
    )
    with pytest.raises(MigrationFailedError) as raised:
        project.provision(grown, options=ONE)
    assert raised.value.shards == (3,)
    assert "with tables that provision has not created: users" in str(raised.value)
    names = execute(path, "SELECT name FROM sqlite_master")
    assert names == [("users",)]
