"""Primary keys where a server demands them, or makes those that are missing.

The tests set variables of the whole server, so that it is one of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Column, create_engine, Integer, make_url, MetaData, Table, text
from sqlalchemy.pool import NullPool

from sqla_shard import Cluster, schema
from sqla_shard.migrate.passes import PASSES
from sqla_shard.migrate.stages import DatabaseFence
from sqla_shard.testing.database_server import DatabaseServer
from sqla_shard.testing.topology_documents import databases, topology_document
from tests.models import follow_models, job_models, lookup_models
from tests.models.revisions import Revisions, topology_of
from tests.models.schema import Project, runner_fixture
from tests.servers.kinds import Kind

pytestmark = pytest.mark.live
runner = runner_fixture()

#: A table without a primary key, as a revision may create it.
PINS = 'op.execute("CREATE TABLE pins (n INT NOT NULL)")'
NO_KEY = 3750


@pytest.fixture(scope="module")
def server(server_kind: Kind) -> Iterator[DatabaseServer]:
    with server_kind.server(fast=True) as server:
        yield server


@pytest.fixture
def document(server: DatabaseServer) -> Iterator[dict[str, Any]]:
    """A topology of databases that do not exist yet."""
    document = topology_document(
        {server.name: server.url},
        2,
        database="db_keys{shard:05d}",
        lookup=lookup_models.MODULUS,
    )
    yield document
    for _, name in databases(document):
        server.root_execute(f"DROP DATABASE IF EXISTS `{name}`")


@contextmanager
def switched_on(server: DatabaseServer, variable: str) -> Iterator[None]:
    server.root_execute(f"SET GLOBAL {variable} = 1")
    try:
        yield
    finally:
        server.root_execute(f"SET GLOBAL {variable} = 0")


def without_key(server: DatabaseServer) -> Sequence[tuple[Any, ...]]:
    """Return the tables that have no primary key."""
    return server.root_execute(
        "SELECT t.table_schema, t.table_name FROM information_schema.tables t"
        " LEFT JOIN information_schema.table_constraints c"
        " ON c.table_schema = t.table_schema AND c.table_name = t.table_name"
        " AND c.constraint_type = 'PRIMARY KEY'"
        " WHERE t.table_schema REGEXP '^(db|lookup)' AND"
        " t.table_type = 'BASE TABLE' AND c.constraint_name IS NULL"
    )


def create_everything(server: DatabaseServer, document: Any) -> None:
    """Create tables of each kind that the package has."""
    for _, name in databases(document):
        server.root_execute(f"CREATE DATABASE IF NOT EXISTS `{name}`")
    with Cluster.from_topology(document) as cluster:
        for models in (follow_models, job_models, lookup_models):
            cluster.create_all(models.Base.metadata)
        with cluster.begin() as session:
            on_shard = {"keyspace": "objects", "shard_id": 0}
            connection = session.connection(bind_arguments=on_shard)
            PASSES.create(connection)
            DatabaseFence().create(connection)


def test_tables_of_the_package_have_primary_keys(
    server: DatabaseServer, document: Any
) -> None:
    create_everything(server, document)
    assert without_key(server) == []


@pytest.mark.only_on("mysql")  # MariaDB has no such variable
def test_a_server_that_demands_primary_keys(
    server: DatabaseServer, document: Any, runner: Any, tmp_path: Path
) -> None:
    with switched_on(server, "sql_require_primary_key"):
        create_everything(server, document)
        project = Project(tmp_path, document, [server], runner)
        project.add("0001", "op.execute('CREATE TABLE a (n INT KEY)')")
        project.alembic("upgrade", "head")
        assert schema.status(project.config()).ok
        # One that has none is refused, and the next run takes the revision
        # that was mended.
        project.add("0002", PINS)
        done = project.alembic("upgrade", "head", status=1)
        assert str(NO_KEY) in done.stdout, done.shown
        project.add("0002", PINS.replace("NOT NULL", "PRIMARY KEY"), after="0001")
        project.alembic("upgrade", "head")
        assert schema.status(project.config()).ok
        project.close()


@pytest.mark.only_on("mysql")  # MariaDB makes no keys
def test_a_server_that_makes_primary_keys(
    server: DatabaseServer, document: Any, runner: Any, tmp_path: Path
) -> None:
    for _, name in databases(document):
        server.root_execute(f"CREATE DATABASE `{name}`")
    project = Project(tmp_path, document, [server], runner)
    project.add("0001", PINS)
    with switched_on(server, "sql_generate_invisible_primary_key"):
        project.alembic("upgrade", "head")
        assert "`my_row_id`" in project.tables(1)["pins"]
        project.add("0002", 'op.execute("ALTER TABLE pins ADD ts INT")')
        project.alembic("upgrade", "head")
    assert schema.status(project.config()).ok
    with Cluster.from_topology(document) as cluster:
        assert schema.verify(cluster, keyspace="objects").ok
    project.close()


@pytest.mark.only_on("mysql")  # MariaDB makes no keys
def test_models_are_compared_without_keys_that_a_server_makes(
    server: DatabaseServer, tmp_path: Path
) -> None:
    server.root_execute("CREATE DATABASE db_made")
    url = make_url(server.url).set(drivername="mysql+pymysql", database="db_made")
    engine = create_engine(url, poolclass=NullPool)
    topology = topology_of(objects="objects", main="global")
    metadata = MetaData()
    number = Column("n", Integer, server_default=text("(1+2)"))
    pins = Table("pins", metadata, number, info={"keyspace": "main"})
    with switched_on(server, "sql_generate_invisible_primary_key"):
        revisions = Revisions(tmp_path / "revisions", engine, topology)
        revisions.generate(metadata, "main")
        revisions.upgrade()
        assert without_key(server) == []
        revisions.check(metadata, "main")
        # A difference is found nevertheless.
        pins.append_column(Column("ts", Integer))
        revision = revisions.generate(metadata, "main")
    assert "add_column('pins'" in revision
    assert "my_row_id" not in revision
    revisions.upgrade()
    with switched_on(server, "sql_require_primary_key"):
        revisions.check(metadata, "main")
