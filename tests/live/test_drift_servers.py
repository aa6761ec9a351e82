"""Tables that were altered by hand: each kind of difference."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.pool import NullPool

from sqla_shard import Cluster
from sqla_shard.dialects.mysql.catalogue import MySQLCatalogue
from sqla_shard.schema import verify
from sqla_shard.schema.drift import Copies
from tests.servers.drift import (
    ALTERED,
    altered,
    build,
    cluster,
    document,
    drop,
    name_of,
    only,
    run,
    servers,
    SHARDS,
    touched,
)
from tests.servers.kinds import Kind

# The fixtures that tests of drift share.
__all__ = ["altered", "cluster", "servers"]

pytestmark = pytest.mark.live


# -- nothing to find


def test_all_well(cluster: Cluster) -> None:
    report = verify(cluster)
    assert report.ok
    found = only(report)
    assert (found.reference, found.server, found.role) == (0, "server1", "primary")
    assert (found.shards, found.databases, found.servers) == (4, 8, 4)
    # The view too.
    assert found.tables == 5
    assert re.fullmatch(
        r"no drift; \d+\.\d s\n"
        r"keyspace objects: 4 shards, 8 databases on 4 servers, 5 tables",
        str(report),
    )


@pytest.mark.usefixtures("altered")
@pytest.mark.parametrize(
    "statements",
    [
        ["ALTER TABLE pins AUTO_INCREMENT = 1000"],
        ["INSERT INTO alembic_version VALUES ('abc')"],
        ["INSERT INTO users (id, data) VALUES (1, '{}')", "ANALYZE TABLE users"],
        [
            "ALTER TABLE users DROP KEY by_name",
            "ALTER TABLE users ADD KEY by_name (name(10), age)",
        ],
    ],
    ids=["counter", "revision", "rows", "order of keys"],
)
def test_permitted_differences_are_not_reported(
    cluster: Cluster, servers: dict[str, Any], statements: list[str]
) -> None:
    run(servers["server2"], ALTERED, *statements)
    assert verify(cluster).ok


# -- each kind of difference

ALTERATIONS = {
    "extra column": ("users", "ADD note TEXT", "+  `note` text"),
    "lost column": ("users", "DROP doubled", "-  `doubled` int"),
    "order of columns": ("users", "MODIFY age INT COMMENT 'in years' FIRST", ""),
    "type": ("pins", "MODIFY other_id INT NOT NULL", "+  `other_id` int"),
    "nullability": ("pins", "MODIFY other_id BIGINT", "DEFAULT NULL"),
    "default": ("users", "ALTER name SET DEFAULT 'y'", "+  `name`"),
    "no default": ("users", "ALTER name DROP DEFAULT", "+  `name`"),
    "ON UPDATE": (
        "users",
        "MODIFY ts TIMESTAMP(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3)",
        "ON UPDATE current_timestamp(3)",
    ),
    "collation": (
        "users",
        "MODIFY name VARCHAR(50) COLLATE utf8mb4_bin DEFAULT 'x'",
        "-  `name` varchar(50)",
    ),
    "comment of a column": ("users", "MODIFY age INT COMMENT 'years'", "years"),
    "generated": (
        "users",
        "MODIFY doubled INT GENERATED ALWAYS AS (age * 3) STORED",
        "`age` * 3",
    ),
    "lost index": ("pins", "DROP KEY by_other", "-  KEY `by_other`"),
    "name of an index": ("pins", "RENAME KEY by_other TO others", "+  KEY `others`"),
    "columns of an index": (
        "users",
        "DROP KEY by_age, ADD UNIQUE KEY by_age (name, age)",
        "+  UNIQUE KEY `by_age` (`name`,`age`)",
    ),
    "prefix": (
        "users",
        "DROP KEY by_name, ADD KEY by_name (name(11), age)",
        "(`name`(11),`age`)",
    ),
    "uniqueness": (
        "users",
        "DROP KEY by_age, ADD KEY by_age (age, name)",
        "+  KEY `by_age`",
    ),
    "primary key": (
        "notes",
        "DROP PRIMARY KEY, ADD PRIMARY KEY (id, body)",
        "+  PRIMARY KEY (`id`,`body`)",
    ),
    "CHECK": ("users", "DROP CONSTRAINT grown", "-  CONSTRAINT `grown`"),
    "another CHECK": (
        "users",
        "DROP CONSTRAINT grown, ADD CONSTRAINT grown CHECK (age > 20)",
        "`age` > 20",
    ),
    "JSON": ("users", "MODIFY data LONGTEXT NOT NULL", "json"),
    "foreign key": ("pins", "DROP FOREIGN KEY owner", "-  CONSTRAINT `owner`"),
    "comment": ("notes", "COMMENT 'of all'", "COMMENT='of all'"),
    "engine": ("notes", "ENGINE=MyISAM", "ENGINE=MyISAM"),
    "collation of a table": (
        "notes",
        "COLLATE utf8mb4_general_ci",
        "COLLATE=utf8mb4_general_ci",
    ),
}


def check(
    cluster: Cluster, table: str | None, diff: str, *, exists: bool = True
) -> None:
    report = verify(cluster, standby=False)
    assert not report.ok
    found = only(report)
    (drift,) = found.drifted
    assert drift.table == table
    assert not drift.suspect
    assert drift.reference.count == SHARDS - 1
    (variant,) = drift.others
    assert variant.copies == (
        Copies(server="server2", role="primary", shards=(ALTERED,)),
    )
    assert (variant.count, variant.exists) == (1, exists)
    changed = [x for x in variant.diff.split("\n") if x.startswith(("+", "-"))]
    # Without what the two kinds of servers write differently.
    assert diff.lower() in "\n".join(changed).lower()
    if variant.diff:
        assert changed[:2] == [
            "--- shard 0 on server1",
            f"+++ shard {ALTERED} on server2",
        ]
    assert found.missing == found.orphaned == found.unreachable == ()


@pytest.mark.usefixtures("altered")
@pytest.mark.parametrize("kind", ALTERATIONS)
def test_an_altered_table_is_found_and_nothing_else(
    cluster: Cluster, servers: dict[str, Any], kind: str
) -> None:
    table, alteration, diff = ALTERATIONS[kind]
    run(servers["server2"], ALTERED, f"ALTER TABLE {table} {alteration}")
    check(cluster, table, diff)


@pytest.mark.usefixtures("altered")
@pytest.mark.parametrize(
    ("definition", "diff"),
    [
        ("(user_id) REFERENCES users (id)", "ON DELETE CASCADE"),
        ("(user_id) REFERENCES users (id) ON DELETE SET NULL", "SET NULL"),
        ("(user_id) REFERENCES users (id) ON UPDATE CASCADE", "ON UPDATE"),
        (
            "(other_id) REFERENCES users (id) ON DELETE CASCADE",
            "FOREIGN KEY (`other_id`)",
        ),
        ("(user_id) REFERENCES notes (id) ON DELETE CASCADE", "REFERENCES `notes`"),
    ],
)
def test_a_foreign_key_under_the_same_name(
    cluster: Cluster, servers: dict[str, Any], definition: str, diff: str
) -> None:
    run(
        servers["server2"],
        ALTERED,
        "ALTER TABLE pins DROP FOREIGN KEY owner",
        "ALTER TABLE pins MODIFY user_id BIGINT" if "NULL" in definition else "DO 1",
        f"ALTER TABLE pins ADD CONSTRAINT owner FOREIGN KEY {definition}",
    )
    check(cluster, "pins", diff)


@pytest.mark.usefixtures("altered")
def test_a_view(cluster: Cluster, servers: dict[str, Any]) -> None:
    view = "VIEW adults AS SELECT id, name FROM users WHERE age > 20"
    run(servers["server2"], ALTERED, f"CREATE OR REPLACE {view}")
    check(cluster, "adults", "> 20")


@pytest.mark.usefixtures("altered")
def test_a_trigger(cluster: Cluster, servers: dict[str, Any], fleet: Any) -> None:
    if not fleet.local:
        pytest.skip("with a binary log it takes root to make one")
    touched.append(servers["server2"])
    servers["server2"].root_execute(
        f"CREATE TRIGGER {name_of(ALTERED)}.tidy BEFORE INSERT "
        f"ON {name_of(ALTERED)}.notes FOR EACH ROW "
        "SET NEW.body = TRIM(NEW.body)"
    )
    check(cluster, "notes", "+TRIGGER `tidy` BEFORE INSERT")


@pytest.mark.usefixtures("altered")
def test_the_collation_of_the_database(
    cluster: Cluster, servers: dict[str, Any]
) -> None:
    run(servers["server2"], ALTERED, "ALTER DATABASE COLLATE utf8mb4_general_ci")
    check(cluster, None, "COLLATE utf8mb4_general_ci")
    assert "defaults of the database: 3 databases as the reference" in str(
        verify(cluster, standby=False)
    )


@pytest.mark.usefixtures("altered")
def test_a_lost_table(cluster: Cluster, servers: dict[str, Any]) -> None:
    run(servers["server2"], ALTERED, "DROP TABLE notes")
    check(cluster, "notes", "", exists=False)


@pytest.mark.usefixtures("altered")
def test_an_extra_table_whose_name_differs_in_case(
    cluster: Cluster, servers: dict[str, Any]
) -> None:
    run(servers["server2"], ALTERED, "CREATE TABLE Notes (id INT)")
    check(cluster, "Notes", "")
    assert "table Notes: 3 databases missing, as in the reference" in str(
        verify(cluster, standby=False)
    )


# -- shapes, and that it only reads


@pytest.mark.usefixtures("altered")
def test_as_json(cluster: Cluster, servers: dict[str, Any]) -> None:
    run(
        servers["server2"],
        ALTERED,
        "ALTER TABLE notes ADD extra INT",
        "DROP TABLE alembic_version",
    )
    mapping = verify(cluster, standby=False).as_dict()
    assert json.loads(json.dumps(mapping)) == mapping
    assert mapping["ok"] is False
    (found,) = mapping["keyspaces"]
    assert found["keyspace"] == "objects"
    assert found["reference"] == 0
    lost, changed = found["drifted"]
    copies = {"server": "server2", "role": "primary", "shards": [ALTERED]}
    assert lost["table"] == "alembic_version"
    assert lost["others"] == [
        {"exists": False, "count": 1, "copies": [copies], "diff": ""}
    ]
    assert changed["table"] == "notes"
    assert changed["others"][0]["copies"] == [copies]
    assert "+  `extra` int" in changed["others"][0]["diff"]


# With the driver's message when it connects.
READING = r"SELECT|SHOW|ROLLBACK|SET (SESSION|NAMES|AUTOCOMMIT)"


@pytest.mark.usefixtures("altered")
def test_it_only_reads(cluster: Cluster, servers: dict[str, Any], fleet: Any) -> None:
    if not fleet.local:
        pytest.skip("the log is root's to read")
    run(servers["server2"], ALTERED, "ALTER TABLE notes ADD extra INT")
    with servers["server2"].query_log() as log:
        assert not verify(cluster).ok
    assert len(log.statements) > 10
    for statement in log.statements:
        assert re.match(READING, statement)


@pytest.mark.only_on("mariadb")
def test_reading_all_databases_opens_few_tables(
    cluster: Cluster, servers: dict[str, Any], fleet: Any
) -> None:
    """A table that is opened for its catalogue costs ten times as much."""
    if not fleet.local:
        pytest.skip("the log is root's to read")
    with servers["server1"].query_log() as log:
        assert verify(cluster, standby=False).ok
    opening = set()
    catalogue = [one for one in log.statements if "BIT_XOR" in one]
    assert len(catalogue) > 8
    with cluster.places.all_places(cluster.topology.keyspace("objects"))[
        0
    ].engine.connect() as connection:
        for statement in catalogue:
            rows = connection.execute(
                text("EXPLAIN " + statement.replace(":", "\\:"))
            ).mappings()
            (source,) = re.findall(r"information_schema\.(\w+)", statement)
            if any("Open_full_table" in row["Extra"] for row in rows):
                opening.add(source)
    # There is no other way to CHECKs and to foreign keys.
    assert opening == {
        "check_constraints",
        "key_column_usage",
        "referential_constraints",
    }


def test_more_variants_than_are_read_one_by_one(fleet: Any) -> None:
    """Every database differs from every other, in one table of two."""
    count = 20
    document = fleet.topology_mapping(shards=count, database="db_variants{shard:02d}")
    fleet.create_databases(document)
    with Cluster.from_topology(document) as cluster:
        try:
            keyspace = cluster.topology.keyspace("objects")
            for place in cluster.places.all_places(keyspace):
                with place.engine.begin() as connection:
                    for name, comment in (("same", 0), ("own", place.shard_id)):
                        connection.exec_driver_sql(
                            f"CREATE TABLE {place.schema}.{name} (id INT) "
                            f"COMMENT 'of {comment}'"
                        )
            (drift,) = only(verify(cluster)).drifted
        finally:
            fleet.drop_databases(document)
    assert drift.table == "own"
    assert not drift.suspect
    assert [variant.count for variant in drift.others] == [1] * (count - 1)
    # So many differences are enough.
    assert sum(bool(variant.diff) for variant in drift.others) == 16


@pytest.mark.only_on("mariadb")  # MySQL is not asked which have foreign keys
def test_databases_whose_names_differ_in_case(fleet: Any) -> None:
    server = fleet.servers[0]
    names = ("db_Case", "db_case")
    try:
        for n, name in enumerate(names):
            server.root_execute(f"CREATE DATABASE {name}")
            server.root_execute(
                f"CREATE TABLE {name}.pins (id INT PRIMARY KEY, other INT, "
                f"CONSTRAINT of_{n} FOREIGN KEY (other) REFERENCES pins (id))"
            )
        url, connect = "mysql+pymysql://", server.root_connect
        engine = create_engine(url, creator=connect, poolclass=NullPool)
        with engine.connect() as connection:
            read = MySQLCatalogue().digests
            before = [read(connection, [name]) for name in names]
            for n, name in enumerate(names):
                server.root_execute(f"ALTER TABLE {name}.pins DROP FOREIGN KEY of_{n}")
            after = [read(connection, [name]) for name in names]
    finally:
        for name in names:
            server.root_execute(f"DROP DATABASE IF EXISTS {name}")
    assert before[0] != after[0]
    assert before[1] != after[1]


def test_a_server_that_does_not_care_for_the_case_of_names(server_kind: Kind) -> None:
    option = "--lower-case-table-names=1"
    with server_kind.server("server1", fast=True, options=[option]) as server:
        for shard in (0, 1):
            build(server, shard)
        broken = document({"server1": server, "server2": server}, standby=False)
        (keyspace,) = broken["keyspaces"].values()
        keyspace["database"] = keyspace["database"].replace("drift", "DRIFT")
        keyspace["shards"] = 2
        keyspace["servers"] = keyspace["servers"][:1]
        with Cluster.from_topology(broken) as cluster:
            assert verify(cluster).ok
            run(server, 1, "ALTER TABLE notes ADD extra INT")
            drop(server, 0)
            found = only(verify(cluster))
            assert (found.reference, found.databases) == (1, 1)
            assert [copies.shards for copies in found.missing] == [(0,)]
            assert found.orphaned == ()
