"""The tables of the pinboard, on SQLite, and the commands for them."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path

import pytest
from alembic import command
from alembic.config import Config

from examples.pinboard.__main__ import main
from examples.pinboard.clusters import sqlite_cluster
from examples.pinboard.samples import add_user
from examples.pinboard.tables import bring_up_to_date
from sqla_shard import Cluster, FileSource
from sqla_shard.exc import MigrationFailedError
from sqla_shard.testing import sqlite_topology
from tests.servers.command_line import invoke
from tests.suites.pinboard_tables import create_tables, MakeCluster, Tables

ROOT = Path(__file__).parents[2]
PINBOARD = ROOT / "examples" / "pinboard"


@pytest.fixture
def make_cluster(tmp_path: Path) -> Iterator[MakeCluster]:
    numbers = count()
    with ExitStack() as stack:

        def make() -> Cluster:
            folder = tmp_path / f"cluster{next(numbers)}"
            document = sqlite_topology(folder, 2, 4, lookup=4)
            return stack.enter_context(Cluster.from_topology(document))

        yield make


TestTables = Tables


@pytest.mark.parametrize("revised", [True, False])
def test_a_database_that_is_lost_is_named_and_not_made(
    make_cluster: MakeCluster, *, revised: bool
) -> None:
    cluster = make_cluster()
    (bring_up_to_date if revised else create_tables)(cluster)
    add_user(cluster, "Ada", shard_id=0)
    keyspace = cluster.topology.keyspace("objects")
    folder = Path(keyspace.server_for(3).primary.removeprefix("sqlite:///"))
    for path in folder.glob("db00003.sqlite*"):
        path.unlink()
    with pytest.raises(MigrationFailedError, match=r"db00003 .* may be lost"):
        bring_up_to_date(cluster)
    assert not list(folder.glob("db00003*"))


def test_a_failure_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with sqlite_cluster(tmp_path / "pins") as cluster:
        create_tables(cluster)
        # As a later version of the program would have left it.
        with cluster.begin() as session:
            connection = session.connection(bind_arguments={"shard_id": 0})
            connection.exec_driver_sql(
                "CREATE TABLE alembic_version (version_num VARCHAR(32))"
            )
            connection.exec_driver_sql("INSERT INTO alembic_version VALUES ('9999')")
    assert main(["--data", str(tmp_path / "pins"), "--no-browser"]) == 1
    assert "9999" in capsys.readouterr().err


def test_the_commands_see_the_data_of_the_demo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with sqlite_cluster(tmp_path / "pinboard-data") as cluster:
        topology = cluster.topology
        bring_up_to_date(cluster)
    monkeypatch.chdir(tmp_path)
    ini = str(PINBOARD / "alembic.ini")
    output = io.StringIO()
    command.current(Config(ini, stdout=output), check_heads=True)
    assert output.getvalue() == "64 of objects: 0-63\n0004 (head)\n"
    result = invoke("schema", "-c", ini, "-n", "lookup", "status", "--exit-code")
    assert "16 at 0001 (head)" in result.output

    # The command uses the topology that alembic.ini names.
    text = (PINBOARD / "topology.toml").read_text("utf-8")
    path = tmp_path / "topology.toml"
    path.write_text(text.replace("sqlite:///", f"sqlite:///{tmp_path}/"))
    assert FileSource(path).load() == topology
