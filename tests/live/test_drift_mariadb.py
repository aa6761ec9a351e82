"""Tables that somebody has altered by hand, on some shard or its standby."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import text

from sqla_shard import Cluster
from sqla_shard import exc
from sqla_shard.schema import verify
from sqla_shard.schema.drift_report import Copies
from sqla_shard.schema.drift_report import KeyspaceDrift
from sqla_shard.schema.drift_report import Orphan
from sqla_shard.testing import MariaDBServer

pytestmark = pytest.mark.live

SHARDS = 4
ALTERED = 3  # on server2, with shard 2
PREFIX = "db_drift"
TABLES = [
    """CREATE TABLE users (
        id BIGINT NOT NULL PRIMARY KEY,
        ts TIMESTAMP(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3)
            ON UPDATE CURRENT_TIMESTAMP(3),
        data JSON NOT NULL,
        name VARCHAR(50) COLLATE utf8mb4_general_ci DEFAULT 'x',
        age INT COMMENT 'in years',
        doubled INT GENERATED ALWAYS AS (age * 2) STORED,
        CONSTRAINT grown CHECK (age > 17),
        KEY by_name (name(10), age),
        UNIQUE KEY by_age (age, name)
    )""",
    """CREATE TABLE pins (
        id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
        user_id BIGINT NOT NULL,
        other_id BIGINT NOT NULL,
        KEY by_user (user_id),
        KEY by_other (other_id),
        CONSTRAINT owner FOREIGN KEY (user_id) REFERENCES users (id)
            ON DELETE CASCADE
    )""",
    """CREATE TABLE notes (
        id BIGINT NOT NULL PRIMARY KEY, body VARCHAR(40), CHECK (body <> '')
    ) COMMENT 'of users'""",
    "CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL)",
    "CREATE VIEW adults AS SELECT id, name FROM users WHERE age > 17",
]


def name_of(shard: int) -> str:
    return f"{PREFIX}{shard:03d}"


def build(server: Any, shard: int) -> None:
    with server.connect(autocommit=True) as connection:
        cursor = connection.cursor()
        name = name_of(shard)
        cursor.execute(f"DROP DATABASE IF EXISTS {name}")
        cursor.execute(
            f"CREATE DATABASE {name} CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"
        )
        cursor.execute(f"USE {name}")
        for statement in TABLES:
            cursor.execute(statement)


def drop(server: Any, shard: int) -> None:
    with server.connect(autocommit=True) as connection:
        connection.cursor().execute(
            f"DROP DATABASE IF EXISTS {name_of(shard)}"
        )


#: Whose shard ALTERED has been altered.
touched: list[Any] = []


def run(server: Any, shard: int, *statements: str) -> None:
    if shard == ALTERED and server not in touched:
        touched.append(server)
    with server.connect(
        database=name_of(shard), autocommit=True
    ) as connection:
        for statement in statements:
            connection.cursor().execute(statement)


@pytest.fixture(scope="module")
def servers(mariadb_fleet: Any) -> Iterator[dict[str, Any]]:
    """Two pairs; the standbys hold what replication would have brought."""
    if len(mariadb_fleet.servers) < 4:
        pytest.skip("two pairs are four servers")
    names = ("server1", "server2", "standby1", "standby2")
    servers = dict(zip(names, mariadb_fleet.servers, strict=False))
    for number in (1, 2):
        for shard in range((number - 1) * 2, number * 2):
            build(servers[f"server{number}"], shard)
            build(servers[f"standby{number}"], shard)
    yield servers
    for server in servers.values():
        for shard in range(SHARDS):
            drop(server, shard)


def document(servers: dict[str, Any], *, standby: bool) -> dict[str, Any]:
    found = []
    for number in (1, 2):
        found.append(
            {
                "name": f"server{number}",
                "primary": servers[f"server{number}"].url,
                "shards": [(number - 1) * 2, number * 2 - 1],
            }
        )
        if standby:
            found[-1]["standby"] = servers[f"standby{number}"].url
    keyspace = {
        "kind": "objects",
        "shards": SHARDS,
        "database": PREFIX + "{shard:03d}",
        "servers": found,
    }
    return {"epoch": 1, "keyspaces": {"objects": keyspace}}


@pytest.fixture(scope="module")
def cluster(servers: dict[str, Any]) -> Iterator[Cluster]:
    with Cluster.from_topology(document(servers, standby=True)) as cluster:
        yield cluster


@pytest.fixture
def altered(servers: dict[str, Any]) -> Iterator[None]:
    """Make the shard anew after the test, where it was altered."""
    touched.clear()
    yield
    for server in touched:
        build(server, ALTERED)


def only(report: Any) -> KeyspaceDrift:
    (found,) = report.keyspaces
    assert isinstance(found, KeyspaceDrift)
    return found


# -- nothing to find


def test_all_well(cluster: Cluster) -> None:
    report = verify(cluster)
    assert report.ok
    found = only(report)
    assert (found.reference, found.server, found.role) == (
        0,
        "server1",
        "primary",
    )
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
        [
            "INSERT INTO users (id, data) VALUES (1, '{}')",
            "ANALYZE TABLE users",
        ],
        [
            "ALTER TABLE users DROP KEY by_name",
            "ALTER TABLE users ADD KEY by_name (name(10), age)",
        ],
    ],
    ids=["counter", "revision", "rows", "order of keys"],
)
def test_what_differs_by_right_is_not_reported(
    cluster: Cluster, servers: dict[str, Any], statements: list[str]
) -> None:
    run(servers["server2"], ALTERED, *statements)
    assert verify(cluster).ok


# -- each kind of difference

ALTERATIONS = {
    "extra column": ("users", "ADD note TEXT", "+  `note` text"),
    "lost column": ("users", "DROP doubled", "-  `doubled` int"),
    "order of columns": (
        "users",
        "MODIFY age INT COMMENT 'in years' FIRST",
        "",
    ),
    "type": ("pins", "MODIFY other_id INT NOT NULL", "+  `other_id` int("),
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
        "-  `name` varchar(50) CHARACTER SET utf8mb4",
    ),
    "comment of a column": (
        "users",
        "MODIFY age INT COMMENT 'years'",
        "years",
    ),
    "generated": (
        "users",
        "MODIFY doubled INT GENERATED ALWAYS AS (age * 3) STORED",
        "`age` * 3",
    ),
    "lost index": ("pins", "DROP KEY by_other", "-  KEY `by_other`"),
    "name of an index": (
        "pins",
        "RENAME KEY by_other TO others",
        "+  KEY `others`",
    ),
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
    "CHECK of JSON": ("users", "MODIFY data LONGTEXT NOT NULL", "json_valid"),
    "foreign key": ("pins", "DROP FOREIGN KEY owner", "-  CONSTRAINT `owner`"),
    "comment": ("notes", "COMMENT 'of all'", "COMMENT='of all'"),
    "engine": ("notes", "ENGINE=Aria", "ENGINE=Aria"),
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
    assert diff in "\n".join(changed)
    if variant.diff:
        assert changed[:2] == [
            "--- shard 0 on server1",
            f"+++ shard {ALTERED} on server2",
        ]
    assert found.missing == found.orphaned == found.unread == ()


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
        (
            "(user_id) REFERENCES notes (id) ON DELETE CASCADE",
            "REFERENCES `notes`",
        ),
    ],
)
def test_a_foreign_key_under_the_same_name(
    cluster: Cluster, servers: dict[str, Any], definition: str, diff: str
) -> None:
    run(
        servers["server2"],
        ALTERED,
        "ALTER TABLE pins DROP FOREIGN KEY owner",
        "ALTER TABLE pins MODIFY user_id BIGINT"
        if "NULL" in definition
        else "DO 1",
        f"ALTER TABLE pins ADD CONSTRAINT owner FOREIGN KEY {definition}",
    )
    check(cluster, "pins", diff)


@pytest.mark.usefixtures("altered")
def test_a_view(cluster: Cluster, servers: dict[str, Any]) -> None:
    view = "VIEW adults AS SELECT id, name FROM users WHERE age > 20"
    run(servers["server2"], ALTERED, f"CREATE OR REPLACE {view}")
    check(cluster, "adults", "> 20")


@pytest.mark.usefixtures("altered")
def test_a_trigger(
    cluster: Cluster, servers: dict[str, Any], mariadb_fleet: Any
) -> None:
    if not mariadb_fleet.local:
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
    run(
        servers["server2"],
        ALTERED,
        "ALTER DATABASE COLLATE utf8mb4_general_ci",
    )
    check(cluster, None, "COLLATE utf8mb4_general_ci")
    assert "defaults of the database: 3 databases as the reference" in str(
        verify(cluster, standby=False)
    )


@pytest.mark.usefixtures("altered")
def test_a_lost_table(cluster: Cluster, servers: dict[str, Any]) -> None:
    run(servers["server2"], ALTERED, "DROP TABLE notes")
    check(cluster, "notes", "", exists=False)


@pytest.mark.usefixtures("altered")
def test_an_extra_table_beside_one_of_another_case(
    cluster: Cluster, servers: dict[str, Any]
) -> None:
    run(servers["server2"], ALTERED, "CREATE TABLE Notes (id INT)")
    check(cluster, "Notes", "")
    assert "table Notes: 3 databases missing, as in the reference" in str(
        verify(cluster, standby=False)
    )


# -- several databases


@pytest.mark.usefixtures("altered")
def test_drift_of_a_standby(cluster: Cluster, servers: dict[str, Any]) -> None:
    run(servers["standby2"], ALTERED, "ALTER TABLE notes ADD extra INT")
    (drift,) = only(verify(cluster)).drifted
    assert drift.reference.count == 2 * SHARDS - 1
    (variant,) = drift.others
    assert variant.copies == (
        Copies(server="server2", role="standby", shards=(ALTERED,)),
    )
    assert "+++ shard 3 on server2 (standby)" in variant.diff
    assert verify(cluster, standby=False).ok


@pytest.mark.usefixtures("altered")
def test_variants_are_grouped(
    cluster: Cluster, servers: dict[str, Any]
) -> None:
    for name in ("server2", "standby2"):
        run(servers[name], ALTERED, "ALTER TABLE notes ADD extra INT")
    (drift,) = only(verify(cluster)).drifted
    (variant,) = drift.others
    assert variant.count == 2
    run(servers["standby2"], ALTERED, "ALTER TABLE notes MODIFY extra BIGINT")
    (drift,) = only(verify(cluster)).drifted
    assert [one.count for one in drift.others] == [1, 1]


@pytest.mark.usefixtures("altered")
def test_the_reference_may_be_the_one_that_is_wrong(
    cluster: Cluster, servers: dict[str, Any]
) -> None:
    run(servers["server2"], ALTERED, "ALTER TABLE notes ADD extra INT")
    report = verify(cluster, reference=ALTERED)
    (drift,) = only(report).drifted
    assert drift.suspect
    assert drift.reference.count == 1
    assert drift.others[0].copies == (
        Copies(server="server1", role="primary", shards=(0, 1)),
        Copies(server="server1", role="standby", shards=(0, 1)),
        Copies(server="server2", role="primary", shards=(2,)),
        Copies(server="server2", role="standby", shards=(2, 3)),
    )
    assert "is the reference wrong?" in str(report)
    assert "    server2 (standby): shards 2-3" in str(report).split("\n")


@pytest.mark.usefixtures("altered")
def test_shards_and_servers_restrict(
    cluster: Cluster, servers: dict[str, Any]
) -> None:
    run(servers["server2"], ALTERED, "ALTER TABLE notes ADD extra INT")
    assert verify(cluster, shards=[0, 1, 2]).ok
    assert only(verify(cluster, shards=[0, 1, 2])).databases == 6
    assert verify(cluster, servers=["server1"]).ok
    assert not verify(cluster, servers=["server2"]).ok
    # The reference is read where it is.
    found = only(verify(cluster, shards=[ALTERED], reference=0))
    assert (found.reference, found.server) == (0, "server1")
    assert [drift.table for drift in found.drifted] == ["notes"]


# -- databases and servers that are not there


@pytest.mark.usefixtures("altered")
def test_missing_and_orphaned_databases(
    cluster: Cluster, servers: dict[str, Any]
) -> None:
    run(servers["server2"], ALTERED, f"DROP DATABASE {name_of(ALTERED)}")
    build(servers["server1"], ALTERED)
    build(servers["standby2"], 900)
    try:
        report = verify(cluster)
    finally:
        drop(servers["server1"], ALTERED)
        drop(servers["standby2"], 900)
    found = only(report)
    assert not report.ok
    assert found.drifted == ()
    assert found.missing == (
        Copies(server="server2", role="primary", shards=(ALTERED,)),
    )
    assert found.orphaned == (
        Orphan(
            database="db_drift003",
            server="server1",
            role="primary",
            shard=ALTERED,
            home="server2",
        ),
        Orphan(
            database="db_drift900",
            server="server2",
            role="standby",
            shard=900,
            home=None,
        ),
    )
    lines = str(report).split("\n")
    assert "  server2: shard 3" in lines
    assert "  db_drift003 on server1: shard 3 is on server2" in lines
    assert "  db_drift900 on server2 (standby): the shard is not open" in lines


@pytest.mark.usefixtures("altered")
def test_a_reference_that_is_missing(
    cluster: Cluster, servers: dict[str, Any]
) -> None:
    run(servers["server2"], ALTERED, f"DROP DATABASE {name_of(ALTERED)}")
    with pytest.raises(exc.DriftReferenceError) as caught:
        verify(cluster, reference=ALTERED)
    assert caught.value.shard_id == ALTERED
    assert "its database is not there" in str(caught.value)


@contextlib.contextmanager
def without(servers: dict[str, Any], name: str) -> Iterator[Cluster]:
    """Return a cluster in which nothing listens in place of a server."""
    broken = document(servers, standby=False)
    for server in broken["keyspaces"]["objects"]["servers"]:
        if server["name"] == name:
            server["primary"] = "mysql://app:hunter2@127.0.0.1:1"
    with Cluster.from_topology(broken) as cluster:
        yield cluster


def test_a_server_that_is_down(servers: dict[str, Any]) -> None:
    with without(servers, "server1") as cluster:
        report = verify(cluster)
        found = only(report)
        assert not report.ok
        assert (found.reference, found.databases) == (2, 2)
        (unread,) = found.unread
        assert (unread.server, unread.role) == ("server1", "primary")
        assert "not read: server1: server server1 cannot be" in str(report)
        assert found.drifted == found.missing == ()
        assert str(report).startswith("no drift in what was read; ")
        assert "hunter2" not in str(report) + repr(report)
        with pytest.raises(exc.DriftReferenceError, match="cannot be reached"):
            verify(cluster, reference=0)
        assert only(verify(cluster, servers=["server1"])).reference is None


def test_a_standby_that_is_down(servers: dict[str, Any]) -> None:
    broken = document(servers, standby=True)
    first = broken["keyspaces"]["objects"]["servers"][0]
    first["standby"] = "mysql://app:x@127.0.0.1:1"
    with Cluster.from_topology(broken) as cluster:
        found = only(verify(cluster))
        (unread,) = found.unread
        assert (unread.server, unread.role) == ("server1", "standby")
        assert "server1 (standby) cannot be reached" in unread.reason
        assert found.databases == 6


# -- shapes, and that it only reads


@pytest.mark.usefixtures("altered")
def test_as_json(cluster: Cluster, servers: dict[str, Any]) -> None:
    run(
        servers["server2"],
        ALTERED,
        "ALTER TABLE notes ADD extra INT",
        "DROP TABLE alembic_version",
    )
    mapping = verify(cluster, standby=False).to_mapping()
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
    assert "+  `extra` int(11)" in changed["others"][0]["diff"]


# With what the driver says when it connects.
READING = r"SELECT|SHOW|ROLLBACK|SET (SESSION|NAMES|AUTOCOMMIT)"


@pytest.mark.usefixtures("altered")
def test_it_only_reads(
    cluster: Cluster, servers: dict[str, Any], mariadb_fleet: Any
) -> None:
    if not mariadb_fleet.local:
        pytest.skip("the log is root's to read")
    run(servers["server2"], ALTERED, "ALTER TABLE notes ADD extra INT")
    with servers["server2"].query_log() as log:
        assert not verify(cluster).ok
    assert len(log.statements) > 10
    for statement in log.statements:
        assert re.match(READING, statement)


def test_what_is_read_of_all_databases_opens_few_tables(
    cluster: Cluster, servers: dict[str, Any], mariadb_fleet: Any
) -> None:
    """A table that is opened for its catalogue costs ten times as much."""
    if not mariadb_fleet.local:
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


def test_more_variants_than_are_read_one_by_one(mariadb_fleet: Any) -> None:
    """Every database differs from every other, in one table of two."""
    count = 20
    document = mariadb_fleet.topology_mapping(
        shards=count, database="db_variants{shard:02d}"
    )
    mariadb_fleet.create_databases(document)
    with Cluster.from_topology(document) as cluster:
        try:
            keyspace = cluster.topology.keyspace("objects")
            for place in cluster.places.all_places(keyspace):
                with place.engine.begin() as connection:
                    for name, comment in (
                        ("same", 0),
                        ("own", place.shard_id),
                    ):
                        connection.exec_driver_sql(
                            f"CREATE TABLE {place.schema}.{name} (id INT) "
                            f"COMMENT 'of {comment}'"
                        )
            (drift,) = only(verify(cluster)).drifted
        finally:
            mariadb_fleet.drop_databases(document)
    assert drift.table == "own"
    assert not drift.suspect
    assert [variant.count for variant in drift.others] == [1] * (count - 1)
    # So many differences are enough.
    assert sum(bool(variant.diff) for variant in drift.others) == 16


def test_a_server_that_does_not_care_for_the_case_of_names(
    mariadb_installed: None,
) -> None:
    option = "--lower-case-table-names=1"
    with MariaDBServer("server1", fast=True, options=[option]) as server:
        for shard in (0, 1):
            build(server, shard)
        broken = document(
            {"server1": server, "server2": server}, standby=False
        )
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
