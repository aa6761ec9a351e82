"""Comparisons of two servers find every difference, and only those."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import signal
import subprocess
import threading
import time
import uuid
from dataclasses import replace
from datetime import datetime
from functools import partial

import pymysql
import pytest
from hypothesis import given, HealthCheck, settings, strategies as st

from sqla_shard.exc import (
    ApplierStoppedError,
    FleetLockedError,
    FleetServerError,
    OperationRefusedError,
)
from sqla_shard.fleet import common_point as points, compare
from sqla_shard.fleet.admin import Admin
from sqla_shard.fleet.compare import compare_servers, CompareOptions, verify_data
from sqla_shard.fleet.journal import Record
from sqla_shard.fleet.replication import Replication, replication_kind
from sqla_shard.testing.local_server import wait_until
from tests.servers.command_line import COMMAND, environment, invoke
from tests.servers.fleet_pairs import FleetPairs
from tests.servers.server_statements import unlogged

pytestmark = pytest.mark.live

SOAK = os.environ.get("SQLA_SHARD_SOAK") == "1"
ROWS = 1_000_000 if SOAK else 4000
# Three rounds of a million rows take minutes.
ROUNDS = 3 if SOAK else 2
EXAMPLES = 1500 if SOAK else 20

# Name: statements on the primary, statements on the standby only, and the
# differences: kind, table, key, columns.
CASES = {
    "one byte": (
        (
            "CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(50));"
            "INSERT INTO t SELECT seq, CONCAT('row ', seq) FROM seq_1_to_3000"
        ),
        "UPDATE t SET v = 'Row 1500' WHERE id = 1500",
        {("row", "t", (1500,), ("v",))},
    ),
    "lost rows": (
        (
            "CREATE TABLE t (id INT PRIMARY KEY);"
            "INSERT INTO t SELECT seq FROM seq_1_to_2500"
        ),
        "DELETE FROM t WHERE id IN (1, 1000, 1001, 2500)",
        {("missing_row", "t", (n,), ()) for n in (1, 1000, 1001, 2500)},
    ),
    "extra rows": (
        (
            "CREATE TABLE t (id INT PRIMARY KEY);"
            "INSERT INTO t SELECT 2 * seq FROM seq_1_to_1500"
        ),
        "INSERT INTO t VALUES (-5), (2001), (9000)",
        {("extra_row", "t", (n,), ()) for n in (-5, 2001, 9000)},
    ),
    "all rows lost": (
        (
            "CREATE TABLE t (id INT PRIMARY KEY);"
            "INSERT INTO t SELECT seq FROM seq_1_to_1300"
        ),
        "DELETE FROM t",
        {("missing_row", "t", (n,), ()) for n in range(1, 1301)},
    ),
    "all rows extra": (
        "CREATE TABLE t (id INT PRIMARY KEY)",
        "INSERT INTO t SELECT seq FROM seq_1_to_1300",
        {("extra_row", "t", (n,), ()) for n in range(1, 1301)},
    ),
    "null moved": (
        (
            "CREATE TABLE t (id INT PRIMARY KEY, a INT, b INT);"
            "INSERT INTO t VALUES (1, 7, NULL)"
        ),
        "UPDATE t SET a = NULL, b = 7",
        {("row", "t", (1,), ("a", "b"))},
    ),
    "null and empty": (
        (
            "CREATE TABLE t (id INT PRIMARY KEY, a TEXT); INSERT INTO t VALUES"
            " (1, NULL), (2, '')"
        ),
        "UPDATE t SET a = IF(id = 1, '', NULL)",
        {("row", "t", (n,), ("a",)) for n in (1, 2)},
    ),
    "values swapped between rows": (
        (
            "CREATE TABLE t (id INT PRIMARY KEY, v TEXT);"
            "INSERT INTO t VALUES (1, 'abc'), (2, 'xyz')"
        ),
        "UPDATE t SET v = IF(id = 1, 'xyz', 'abc')",
        {("row", "t", (n,), ("v",)) for n in (1, 2)},
    ),
    "rows swapped between tables": (
        (
            "CREATE TABLE t (id INT PRIMARY KEY, v TEXT);"
            "CREATE TABLE u LIKE t; INSERT INTO t VALUES (1, 'a');"
            "INSERT INTO u VALUES (2, 'b')"
        ),
        (
            "DELETE FROM t; DELETE FROM u; INSERT INTO u VALUES (1, 'a');"
            "INSERT INTO t VALUES (2, 'b')"
        ),
        {
            ("missing_row", "t", (1,), ()),
            ("extra_row", "t", (2,), ()),
            ("missing_row", "u", (2,), ()),
            ("extra_row", "u", (1,), ()),
        },
    ),
    "separator in a text": (
        (
            "CREATE TABLE t (id INT PRIMARY KEY, a TEXT, b TEXT);"
            "INSERT INTO t VALUES (1, 'a#b', 'c'), (2, '', '0#1')"
        ),
        (
            "UPDATE t SET a = 'a', b = 'b#c' WHERE id = 1;"
            "UPDATE t SET a = '0#1', b = '' WHERE id = 2"
        ),
        {("row", "t", (n,), ("a", "b")) for n in (1, 2)},
    ),
    "last bit of FLOAT": (
        (
            "CREATE TABLE t (id INT PRIMARY KEY, f FLOAT, d DOUBLE);"
            "INSERT INTO t VALUES (1, 1.5, 0.1), (2, 16777215, 1e300),"
            " (3, 1.5, -8.324796234259385e-282)"
        ),
        (
            "UPDATE t SET f = 1.50000012 WHERE id = 1;"
            "UPDATE t SET f = 16777214, d = 1.0000000000000002e300"
            " WHERE id = 2; UPDATE t SET d = -8.324796234259383e-282 WHERE id = 3"
        ),
        {
            ("row", "t", (1,), ("f",)),
            ("row", "t", (2,), ("f", "d")),
            ("row", "t", (3,), ("d",)),
        },
    ),
    "trailing spaces": (
        (
            "CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(9), w TEXT);"
            "INSERT INTO t VALUES (1, 'a', 'a')"
        ),
        "UPDATE t SET v = 'a ', w = 'a  '",
        {("row", "t", (1,), ("v", "w"))},
    ),
    "case and accents": (
        (
            "CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(9)"
            " COLLATE utf8mb4_general_ci); INSERT INTO t VALUES (1, 'resume')"
        ),
        "UPDATE t SET v = 'Résumé'",
        {("row", "t", (1,), ("v",))},
    ),
    "white space of JSON": (
        (
            "CREATE TABLE t (id INT PRIMARY KEY, v JSON);"
            """INSERT INTO t VALUES (1, '{"a":1}')"""
        ),
        """UPDATE t SET v = '{"a": 1}'""",
        {("row", "t", (1,), ("v",))},
    ),
    "bytes": (
        (
            "CREATE TABLE t (id INT PRIMARY KEY, v BLOB, w BINARY(4),"
            " b BIT(9));"
            "INSERT INTO t VALUES (1, x'00ff2300', x'00', b'101')"
        ),
        "UPDATE t SET v = x'00ff23', w = x'0001', b = b'100000101'",
        {("row", "t", (1,), ("v", "w", "b"))},
    ),
    "decimal of 38 digits": (
        (
            "CREATE TABLE t (id INT PRIMARY KEY, v DECIMAL(38, 10));"
            "INSERT INTO t VALUES (1, 1234567890123456789012345678.0123456789)"
        ),
        "UPDATE t SET v = 1234567890123456789012345678.0123456788",
        {("row", "t", (1,), ("v",))},
    ),
    "microseconds": (
        (
            "CREATE TABLE t (id INT PRIMARY KEY, a DATETIME(6), b TIMESTAMP(6)"
            " NULL, c TIME(6)); SET time_zone = '+05:00';"
            "INSERT INTO t VALUES (1, '2024-02-03 04:05:06.000007',"
            " '2024-02-03 04:05:06.000007', '04:05:06.000007')"
        ),
        (
            "UPDATE t SET a = a + INTERVAL 1 MICROSECOND, b = b - INTERVAL 1"
            " MICROSECOND, c = '04:05:06'"
        ),
        {("row", "t", (1,), ("a", "b", "c"))},
    ),
    "generated columns": (
        (
            "CREATE TABLE t (id INT PRIMARY KEY, v INT,"
            " w INT AS (v + 1) STORED,"
            " x INT AS (v * 2) VIRTUAL); INSERT INTO t (id, v) VALUES (1, 5)"
        ),
        "UPDATE t SET v = 6",
        {("row", "t", (1,), ("v", "w", "x"))},
    ),
    "keys of texts": (
        (
            "CREATE TABLE t (a VARCHAR(20) COLLATE utf8mb4_general_ci, b"
            " VARCHAR(20) CHARACTER SET latin1, c INT, v INT,"
            " PRIMARY KEY (a, b, c));"
            "INSERT INTO t SELECT ELT(1 + seq %% 5, '', 'é\\'\"%%', 'B ',"
            " 'zé',"
            " 'ab\\\\'), CONCAT('ü', seq %% 7), seq, seq FROM seq_1_to_3000"
        ),
        "UPDATE t SET v = -1 WHERE c IN (1, 2222);DELETE FROM t WHERE c = 3",
        {
            ("row", "t", ("é'\"%", "ü1", 1), ("v",)),
            ("row", "t", ("B ", "ü3", 2222), ("v",)),
            ("missing_row", "t", ("zé", "ü3", 3), ()),
        },
    ),
    "character sets": (
        (
            "CREATE TABLE t (id INT PRIMARY KEY, a VARCHAR(9) CHARACTER SET latin1,"
            " b VARCHAR(9) CHARACTER SET utf16, c CHAR(9) COLLATE utf8mb4_general_ci,"
            " d TEXT COLLATE utf8mb4_unicode_ci, e BLOB);"
            "INSERT INTO t VALUES (1, 'ü', 'ü', 'ü', 'ü', 'ü'),"
            " (2, 'ü', 'ü', 'ü', 'ü', 'ü'), (3, NULL, '', NULL, '', NULL)"
        ),
        (
            "UPDATE t SET a = 'Ü', b = 'Ü' WHERE id = 1;"
            "UPDATE t SET c = 'u', d = 'Ü' WHERE id = 2;"
            "UPDATE t SET a = '', b = NULL, d = NULL, e = '' WHERE id = 3"
        ),
        {
            ("row", "t", (1,), ("a", "b")),
            ("row", "t", (2,), ("c", "d")),
            ("row", "t", (3,), ("a", "b", "d", "e")),
        },
    ),
    "other case of a key": (
        (
            "CREATE TABLE t (k VARCHAR(9) COLLATE utf8mb4_general_ci"
            " PRIMARY KEY);"
            "INSERT INTO t VALUES ('a'), ('b'), ('c')"
        ),
        "UPDATE t SET k = 'B' WHERE k = 'b'",
        {("missing_row", "t", ("b",), ()), ("extra_row", "t", ("B",), ())},
    ),
    "keys of other types": (
        (
            "CREATE TABLE t (a DATETIME(3), b DECIMAL(9, 2), c BINARY(3),"
            " d ENUM('z', 'a'), v INT, PRIMARY KEY (a, b, c, d));"
            "INSERT INTO t SELECT '2024-01-01' + INTERVAL seq * 7 %% 50"
            " SECOND, -(seq / 4), CHAR(seq %% 256), 1 + seq %% 2, 0"
            " FROM seq_1_to_2500;"
            "CREATE TABLE f (k DOUBLE PRIMARY KEY, v INT);"
            "INSERT INTO f SELECT SIN(seq), 0 FROM seq_1_to_2500;"
            "CREATE TABLE g (k DOUBLE, l FLOAT, PRIMARY KEY (k, l));"
            "INSERT INTO g VALUES (-8.324796234259385e-282, -2.0024093e-36)"
        ),
        (
            "UPDATE t SET v = 1 WHERE b = -150;UPDATE f SET v = 1 WHERE k > 0.999;"
            "DELETE FROM g"
        ),
        {
            ("row", "t", ("2024-01-01 00:00:00.000", "-150.00", "0x580000", 1), ("v",)),
            ("row", "f", None, ("v",)),
            (
                "missing_row",
                "g",
                (-8.324796234259385e-282, -2.0024093187227794e-36),
                (),
            ),
        },
    ),
    "no key": (
        (
            "CREATE TABLE t (a INT, b TEXT);"
            "INSERT INTO t SELECT seq %% 3, 'x' FROM seq_1_to_900"
        ),
        ("DELETE FROM t WHERE a = 1 LIMIT 2;UPDATE t SET b = NULL WHERE a = 2 LIMIT 1"),
        {("missing_row", "t", None, ()), ("extra_row", "t", None, ())},
    ),
    "unique key instead of a primary key": (
        (
            "CREATE TABLE t (a INT NOT NULL, b INT NULL, UNIQUE (b),"
            " UNIQUE (a)); INSERT INTO t VALUES (1, 2), (2, NULL)"
        ),
        "UPDATE t SET b = NULL WHERE a = 1",
        {("row", "t", (1,), ("b",))},
    ),
    "large rows": (
        (
            "CREATE TABLE t (id INT PRIMARY KEY, v LONGBLOB, w LONGTEXT);"
            "INSERT INTO t VALUES (1, REPEAT('x', 9000000),"
            " REPEAT('y', 9000000))"
        ),
        "UPDATE t SET w = CONCAT(LEFT(w, 8999999), 'z') WHERE id = 1",
        {("row", "t", (1,), ("w",))},
    ),
    "shapes and UUIDs": (
        (
            "CREATE TABLE t (id INT PRIMARY KEY, g POINT, u UUID, i INET6);"
            "INSERT INTO t VALUES (1, POINT(1, 2),"
            " '123e4567-e89b-12d3-a456-426655440000', '::1')"
        ),
        "UPDATE t SET g = POINT(1, 3), i = '::2'",
        {("row", "t", (1,), ("g", "i"))},
    ),
    "counter": (
        (
            "CREATE TABLE t (id INT AUTO_INCREMENT PRIMARY KEY);"
            "INSERT INTO t VALUES (), ()"
        ),
        "ALTER TABLE t AUTO_INCREMENT = 100",
        {("auto_increment", "t", (), ())},
    ),
    "definition": (
        (
            "CREATE TABLE t (id INT PRIMARY KEY, v INT); INSERT INTO t VALUES"
            " (1, 1); CREATE VIEW w AS SELECT 1"
        ),
        (
            "ALTER TABLE t ADD x INT, ADD KEY (v); CREATE OR REPLACE VIEW w AS"
            " SELECT 2; UPDATE t SET v = 2"
        ),
        {
            ("definition", "t", (), ()),
            ("definition", "w", (), ()),
            ("row", "t", (1,), ("v",)),
        },
    ),
    "tables": (
        (
            "CREATE TABLE t (id INT PRIMARY KEY); CREATE TABLE u LIKE t;"
            "CREATE TRIGGER g BEFORE INSERT ON u FOR EACH ROW SET NEW.id = 1"
        ),
        "DROP TABLE t; CREATE TABLE x LIKE u; DROP TRIGGER g",
        {
            ("missing_table", "t", (), ()),
            ("extra_table", "x", (), ()),
            ("missing_table", "trigger g", (), ()),
        },
    ),
    "databases": (
        "CREATE TABLE t (id INT PRIMARY KEY)",
        "DROP DATABASE {db}",
        {("missing_database", "", (), ())},
    ),
    "names": (
        (
            "CREATE TABLE `a``b %% ' \"é` (`i%%d #` INT PRIMARY KEY,"
            " `v``` INT);"
            "INSERT INTO `a``b %% ' \"é` VALUES (1, 1)"
        ),
        "UPDATE `a``b %% ' \"é` SET `v``` = 2",
        {("row", "a`b % ' \"é", (1,), ("v`",))},
    ),
}
NAMES = {name: f"db{index + 100:05}" for index, name in enumerate(CASES)}


# Types of MariaDB.
_OWN_TYPES = {" UUID,": " CHAR(36),", " INET6)": " VARCHAR(45))"}
# MySQL has no tables of the engine SEQUENCE.
_SEQUENCE = re.compile(r"\bseq_1_to_(\d+)")
_NUMBERS = (
    r"JSON_TABLE(CONCAT('[0', REPEAT(',0', \1 - 1), ']'), '$[*]'"
    " COLUMNS (seq FOR ORDINALITY)) AS s"
)


def execute(server, statements, *, database=None, logged=True):
    """Run statements, separated by semicolons, as root."""
    with server.root_connect() as connection:
        cursor = connection.cursor()
        cursor.execute(f"SET sql_log_bin = {int(logged)}")
        if database is not None:
            cursor.execute(f"USE {database}")
        for statement in statements.split(";"):
            if statement.strip():
                text = statement.strip().replace("%%", "%")
                text = _SEQUENCE.sub(_NUMBERS, text)
                if server.kind == "mysql":
                    for own, like in _OWN_TYPES.items():
                        text = text.replace(own, like)
                cursor.execute(text.replace("{db}", database or ""))


def found_in(report):
    """Return kind, table, key and columns of differences by database."""
    by_database = {}
    for one in report.differences:
        key = one.key
        if key and (str(key[0]).startswith("checksum") or one.table == "f"):
            key = None
        by_database.setdefault(one.database, set()).add(
            (one.kind, one.table, key, one.columns)
        )
    return by_database


def applies(pair):
    """Return whether the applier and the receiver of the standby run."""
    with pair.standby.root_connect() as connection:
        cursor = connection.cursor(pymysql.cursors.DictCursor)
        cursor.execute("SHOW REPLICA STATUS")
        row = cursor.fetchone()
    threads = [row[name] for name in row if re.search("_Running$", name)]
    return threads == ["Yes", "Yes"]


def start_applier(pair):
    """Return the remedy that names the statement of the server."""
    kind = replication_kind(is_mariadb=pair.primary.kind == "mariadb")
    return f"run on this server: {kind.START_APPLIER}"


def can_write(pair):
    """Return whether the primary is not locked."""
    with pair.primary.root_connect(read_timeout=10) as connection:
        cursor = connection.cursor()
        cursor.execute("CREATE DATABASE IF NOT EXISTS db65535")
    return True


@pytest.fixture(scope="module")
def pairs(server_kind, tmp_path_factory):
    folder = tmp_path_factory.mktemp("fleet")
    with FleetPairs(folder, shards=4, pair=server_kind.pair) as pairs:
        for shard in range(4):
            execute(pairs["server1"].primary, f"CREATE DATABASE db{shard:05}")
        yield pairs


@pytest.fixture(scope="module")
def pair(pairs):
    return pairs["server1"]


@pytest.fixture
def fleet(pairs):
    return pairs.fleet()


@pytest.fixture
def run(pairs):
    """Return a function that runs the command."""
    env = credentials(pairs)

    def run(*arguments):
        return invoke("-t", pairs.path, "fleet", "verify", *arguments, env=env)

    return run


def credentials(pairs):
    operator = pairs.accounts.operator
    return {
        "SQLA_SHARD_OPERATOR_USER": operator.user,
        "SQLA_SHARD_OPERATOR_PASSWORD": operator.password,
    }


@pytest.fixture
def rng(request, say):
    seed = request.config.getoption("hypothesis_seed")
    say(f"seed {seed}")
    return random.Random(seed)


@pytest.fixture(scope="class")
def changed(pairs, pair):
    """Create the cases, compare, change the standby, compare again."""
    for name, (setup, _, _) in CASES.items():
        database = NAMES[name]
        execute(pair.primary, f"CREATE DATABASE IF NOT EXISTS {database}")
        execute(pair.primary, setup, database=database)
    pair.wait_caught_up()
    options = CompareOptions(most=10_000, values=True)
    before = verify_data(pairs.fleet(), "server1", options=options)
    for name, (_, change, _) in CASES.items():
        execute(pair.standby, change, database=NAMES[name], logged=False)
    streamed = []
    options = CompareOptions(most=300, values=True, on_difference=streamed.append)
    after = verify_data(
        pairs.fleet(), "server1", databases=NAMES.values(), options=options
    )
    yield before, after, streamed
    for server in (pair.primary, pair.standby):
        for database in NAMES.values():
            execute(server, f"DROP DATABASE IF EXISTS {database}", logged=False)


class TestDifferences:
    def test_none_is_found_before(self, changed):
        before, _, _ = changed
        assert before.ok, str(before)
        assert before.rows > 10_000

    @pytest.mark.parametrize("name", CASES)
    def test_is_found(self, changed, pairs, name):
        _, after, streamed = changed
        whole = found_in(type("Report", (), {"differences": streamed}))
        expected = CASES[name][2]
        if name == "white space of JSON" and pairs.kind == "mysql":
            # It stores what it has parsed.
            expected = None
        assert whole.get(NAMES[name]) == expected, str(after)[:3000]

    def test_all_are_counted_and_streamed(self, changed):
        _, after, streamed = changed
        assert after.found == len(streamed) > 2600
        assert len(after.differences) == 300
        assert not after.ok

    def test_values(self, changed):
        _, _, streamed = changed
        (one,) = [d for d in streamed if d.key == (1500,) and d.columns]
        assert one.values == {"v": ("'row 1500'", "'Row 1500'")}
        assert "'row 1500' -> 'Row 1500'" in str(one)

    def test_they_last(self, changed):
        _, after, _ = changed
        rows = [d for d in after.differences if d.columns]
        assert rows
        assert all(one.lasts for one in rows)

    def test_report_has_json_values(self, changed):
        _, after, _ = changed
        document = json.loads(json.dumps(after.as_dict()))
        assert document["found"] == after.found
        assert "differences" in str(after)


@pytest.mark.only_on("mysql")
def test_vectors(pair, fleet):
    execute(
        pair.primary,
        "CREATE TABLE v (id INT PRIMARY KEY, a VECTOR(2)); INSERT INTO v VALUES"
        " (1, STRING_TO_VECTOR('[1,2]')), (2, STRING_TO_VECTOR('[1,2]')), (3, NULL)",
        database="db00000",
    )
    pair.wait_caught_up()
    assert verify_data(fleet, "server1", databases=["db00000"]).ok
    execute(
        pair.standby,
        "UPDATE v SET a = STRING_TO_VECTOR('[1,3]') WHERE id = 2",
        database="db00000",
        logged=False,
    )
    report = verify_data(fleet, "server1", databases=["db00000"])
    execute(pair.primary, "DROP TABLE v", database="db00000")
    assert [one.key for one in report.differences] == [(2,)]


@pytest.mark.only_on("mariadb")
def test_minus_zero_is_zero(pair):
    # MariaDB stores no negative zero: there is no difference to find.
    execute(
        pair.primary,
        "CREATE OR REPLACE TABLE zero (a DOUBLE); INSERT INTO zero VALUES"
        " (-1e-200 * 1e-200), (-0e0)",
        database="db00000",
    )
    found = pair.primary.root_execute(
        "SELECT CAST(a AS CHAR), ATAN2(a, -1) > 0 FROM db00000.zero"
    )
    assert found == [("0", 1), ("0", 1)]
    execute(pair.primary, "DROP TABLE zero", database="db00000")


@pytest.mark.thorough
def test_tables_that_cannot_be_compared(pair, fleet):
    execute(
        pair.primary,
        "CREATE TABLE m (id INT PRIMARY KEY) ENGINE=MyISAM;"
        "CREATE TABLE k (id INT PRIMARY KEY)",
        database="db00000",
    )
    pair.wait_caught_up()
    execute(
        pair.standby,
        "ALTER TABLE k DROP PRIMARY KEY, ADD x INT PRIMARY KEY",
        database="db00000",
        logged=False,
    )
    report = verify_data(fleet, "server1", databases=["db00000"])
    execute(pair.primary, "DROP TABLE m, k", database="db00000")
    assert {one.table: one.reason.split(";")[0] for one in report.unread} == {
        "m": "the engine MyISAM has no snapshots",
        "k": "its primary keys are different",
    }
    assert not report.ok
    assert "2 tables not compared" in str(report)


class TestWithoutReplication:
    """Two servers that have the same rows, each at its own point."""

    def compared(self, fleet, pair, **options):
        return verify_data(
            fleet,
            "server1",
            against=pair.standby.url,
            replicates=False,
            databases=["db00001"],
            options=CompareOptions(**options),
        )

    def test_small_tables_are_read_together(self, fleet, pair, monkeypatch):
        """A server has thousands of shards, with few rows in most tables."""
        names = [f"small{number}" for number in range(40)]
        execute(
            pair.primary,
            "CREATE TABLE bare (v INT);INSERT INTO bare VALUES (1), (1);"
            + ";".join(
                f"CREATE TABLE {name} (id INT PRIMARY KEY);"
                f"INSERT INTO {name} VALUES (1), (2)"
                for name in names
            ),
            database="db00001",
        )
        pair.wait_caught_up()
        unlogged(pair.standby, "DELETE FROM db00001.small7 WHERE id = 2")
        unlogged(pair.standby, "DELETE FROM db00001.bare")

        asked = []
        rows = Admin.rows

        def heard(admin, sql, *parameters):
            asked.append(sql)
            return rows(admin, sql, *parameters)

        monkeypatch.setattr(Admin, "rows", heard)
        report = verify_data(fleet, "server1", databases=["db00001"])
        assert sum("BIT_XOR" in sql for sql in asked) < 10
        found = sorted((one.table, one.kind, one.key) for one in report.differences)
        (bare, missing) = found
        assert bare[:2] == ("bare", "missing_row")
        assert missing == ("small7", "missing_row", (2,))
        assert (report.tables, report.rows) == (41, 82)
        tables = ", ".join((*names, "bare"))
        execute(pair.primary, f"DROP TABLE {tables}", database="db00001")

    @pytest.fixture
    def different(self, pair):
        """Create two rows that differ."""
        execute(
            pair.primary,
            "CREATE TABLE t (id INT PRIMARY KEY, v INT);"
            "INSERT INTO t VALUES (1, 1), (2, 2)",
            database="db00001",
        )
        pair.wait_caught_up()
        execute(pair.standby, "UPDATE t SET v = 0", database="db00001", logged=False)
        yield
        execute(pair.primary, "DROP TABLE t", database="db00001")

    @pytest.mark.usefixtures("different")
    def test_what_was_found_is_reported_in_any_case(self, fleet, pair, monkeypatch):
        """Also if it cannot be read again."""
        asked = []
        take = compare.common_point

        @contextlib.contextmanager
        def killed(*arguments, patience, **options):
            asked.append(patience)
            with take(*arguments, patience=patience, **options) as point:
                if len(asked) == 2:
                    ((session, _),) = point.pairs
                    number = session.value("SELECT CONNECTION_ID()")
                    execute(pair.primary, f"KILL {number}")
                yield point

        monkeypatch.setattr(compare, "common_point", killed)
        report = self.compared(fleet, pair, limit=50.0)
        assert (report.found, report.settled) == (2, 0)
        assert [one.lasts for one in report.differences] == [None, None]
        assert all(10.0 <= one <= 50.0 for one in asked)

    @pytest.mark.usefixtures("different")
    def test_differences_are_read_again(self, fleet, pair, monkeypatch):
        seen = []
        take = points.snapshots

        def repaired(*arguments, **options):
            seen.append(arguments)
            if len(seen) == 3:
                execute(
                    pair.standby,
                    "UPDATE t SET v = id WHERE id = 1",
                    database="db00001",
                    logged=False,
                )
            return take(*arguments, **options)

        monkeypatch.setattr(points, "snapshots", repaired)
        report = self.compared(fleet, pair)
        assert (report.found, report.settled) == (1, 1)
        assert report.differences[0].key == (2,)
        assert not report.replicates

    def test_the_applier_is_not_touched(self, fleet, pair, monkeypatch):
        monkeypatch.setattr(Replication, "stop_applier", None)
        assert self.compared(fleet, pair).ok


class Writers:
    """Threads that write whatever standbys must repeat.

    They rest three times as long as a transaction takes: on a busy machine a
    standby would not keep up with them.
    """

    def __init__(self, server, rng):
        self._server = server
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._write, args=(rng.random(),)) for _ in range(3)
        ]
        self.writes = 0

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        wait_until(lambda: self.writes > 20, seconds=60)
        return self

    def __exit__(self, *exc_info):
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _write(self, seed):
        rng = random.Random(seed)
        connection = self._server.root_connect()
        connection.autocommit(False)
        with connection, connection.cursor() as cursor:
            while not self._stop.is_set():
                begin = time.monotonic()
                # Deadlocks of the three are rolled back.
                with contextlib.suppress(pymysql.err.OperationalError):
                    for _ in range(rng.randint(1, 5)):
                        cursor.execute(*self._statement(rng))
                    if rng.random() < 0.1:
                        connection.rollback()
                    else:
                        connection.commit()
                        self.writes += 1
                self._stop.wait(3 * (time.monotonic() - begin))

    def _statement(self, rng):
        place = f"db0000{rng.randrange(4)}.w"
        # Not row 17: on a standby that is late a write would repair it.
        key = rng.randrange(18, ROWS)
        return rng.choice(
            [
                (f"INSERT INTO {place} (v, f) VALUES (%s, RAND())", (key,)),
                (f"UPDATE {place} SET v = UUID() WHERE id = %s", (key,)),
                (f"DELETE FROM {place} WHERE id = %s", (key,)),
                (f"UPDATE {place} SET id = -id, f = f / 3 WHERE id = %s", (key,)),
                (
                    (
                        f"UPDATE {place} SET v = CONCAT(v, 'x') WHERE id"
                        " BETWEEN %s AND %s + 20"
                    ),
                    (key, key),
                ),
            ]
        )


@pytest.fixture
def written(pair):
    """Tables for writers, with rows."""
    for shard in range(4):
        execute(
            pair.primary,
            "CREATE TABLE w (id INT AUTO_INCREMENT PRIMARY KEY, v TEXT,"
            " f FLOAT, at TIMESTAMP(6) DEFAULT CURRENT_TIMESTAMP(6));"
            "INSERT INTO w (v, f) SELECT SHA2(seq, 256), SQRT(seq) FROM"
            f" seq_1_to_{ROWS // 4}",
            database=f"db{shard:05}",
        )
    pair.wait_caught_up(600)
    yield
    for shard in range(4):
        execute(pair.primary, "DROP TABLE w", database=f"db{shard:05}")


def test_no_false_difference_under_writes(fleet, pair, written, rng, say):
    # A counter that a rollback has raised differs until the next INSERT.
    options = CompareOptions(counters=False, seconds=0.1, chunk_seconds=0.02)
    with Writers(pair.primary, rng) as writers:
        before = writers.writes
        for _ in range(ROUNDS):
            report = verify_data(fleet, "server1", options=options)
            assert report.ok, str(report)
            assert report.rows >= ROWS // 2
            say(f"{report.summary()}; {len(report.points)} points")
        assert writers.writes > before
        execute(
            pair.standby,
            "UPDATE w SET f = -1 WHERE id = 17",
            database="db00002",
            logged=False,
        )
        execute(
            pair.standby,
            "INSERT INTO w (id, v) VALUES (17, 'extra') ON DUPLICATE KEY"
            " UPDATE v = 'different'",
            database="db00003",
            logged=False,
        )
    assert applies(pair)
    # The writers have ended: nothing repairs the changed rows.
    pair.wait_caught_up(600)
    report = verify_data(fleet, "server1", options=options)
    assert {one.table for one in report.differences} == {"w"}
    assert {one.key for one in report.differences} == {(17,)}


def test_what_is_left_at_the_limit_is_named(fleet, pair, written, run):
    # The second read would wait for its turn for an hour.
    found = run("server1", "--shards", "0-3", "--rate", "0.001", "--limit", "1")
    assert found.exit_code == 3
    # With the same rate and limit.
    said = r"verify server1 (--shards [0-9,-]+) --rate 0.001 --limit 1$"
    left = re.search(said, found.stdout, re.M)
    assert left, found.output
    assert "not compared: the limit" not in found.stdout
    rest = run("server1", "--no-counters", *left[1].split())
    assert rest.exit_code == 0, rest.output


def test_rate_is_limited(fleet, pair, written, monkeypatch):
    waits = []
    wait = threading.Event.wait

    def recorded(event, timeout=None):
        if timeout is None:
            return wait(event)
        waits.append(timeout)
        return wait(event, min(timeout, 0.01))

    monkeypatch.setattr("sqla_shard.fleet.compare.threading.Event.wait", recorded)
    options = CompareOptions(rate=1000.0, threads=1, counters=False)
    assert verify_data(
        fleet, "server1", databases=["db00000", "db00001"], options=options
    ).ok
    assert max(waits) > 0.5


class TestOperations:
    """Differences that an operation may have made are not reported."""

    @pytest.fixture(autouse=True)
    def different(self, pair):
        execute(
            pair.primary,
            "CREATE TABLE o (id INT PRIMARY KEY, v INT);INSERT INTO o VALUES (1, 1)",
            database="db00000",
        )
        pair.wait_caught_up()
        execute(pair.standby, "UPDATE o SET v = 2", database="db00000", logged=False)
        yield
        execute(pair.primary, "DROP TABLE o", database="db00000")
        pair.wait_caught_up()

    @pytest.fixture(autouse=True)
    def progress_of_each_chunk(self, monkeypatch):
        """A small comparison is over before the first report otherwise."""
        monkeypatch.setattr(compare, "_PROGRESS_SECONDS", 0.0)

    def compared(self, fleet, begin):
        """Compare; ``begin`` is called once, after some rows."""
        begun = []

        def progress(event):
            if event.rows and not begun:
                begun.append(begin())

        shown = []
        options = CompareOptions(
            on_progress=progress, on_difference=shown.append, counters=False
        )
        try:
            verify_data(fleet, "server1", databases=["db00000"], options=options)
        finally:
            assert begun
            begun[0].release()
            assert shown == []

    def record(self):
        return Record(
            id=f"20261123T000000Z-failover-{uuid.uuid4().hex[:6]}",
            plan={"title": "failover of server1"},
            token=1,
            holder="another",
            started=0.0,
        )

    def test_one_that_runs(self, fleet, pairs, pair):
        journal = pairs.fleet().journal
        with pytest.raises(FleetLockedError, match="failover of server1"):
            self.compared(fleet, lambda: journal.begin(self.record()))
        hold = journal.take_over()
        hold.write(replace(hold.record, state="undone"))
        hold.release()
        assert applies(pair)

    def test_one_that_has_ended(self, fleet, pairs):
        def begin():
            hold = pairs.fleet().journal.begin(self.record())
            hold.write(replace(hold.record, state="finished"))
            hold.release()
            return hold

        ended = pytest.raises(FleetServerError, match="failover of server1 has ended")
        with ended:
            self.compared(fleet, begin)


class TestApplier:
    """It runs again after whatever ends the making of a common point."""

    def point(self, pairs):
        fleet = pairs.fleet()
        pair = pairs["server1"]
        return points.common_point(
            lambda: fleet.admin(pair.primary.url, name="primary"),
            lambda: fleet.admin(pair.standby.url, name="standby"),
            pairs=1,
            patience=10.0,
        )

    def test_interrupted_at_each_statement(self, pairs, pair, monkeypatch):
        calls = [0]
        at = [0]
        run = Admin._translated

        @contextlib.contextmanager
        def interrupting(admin):
            calls[0] += 1
            if calls[0] == at[0]:
                raise KeyboardInterrupt
            with run(admin):
                yield

        monkeypatch.setattr(Admin, "_translated", interrupting)
        with self.point(pairs):
            pass
        total = calls[0]
        assert total > 20
        for number in range(1, total + 1):
            calls[0], at[0] = 0, number
            with pytest.raises(KeyboardInterrupt), self.point(pairs):
                pass
            assert applies(pair), f"after statement {number}"
        assert can_write(pair)

    @pytest.mark.parametrize("side", ["primary", "standby"])
    def test_sessions_are_killed(self, pairs, pair, monkeypatch, side):
        take = points.snapshots

        def killed(admin, *arguments, **options):
            server = getattr(pair, side)
            with server.root_connect() as connection:
                cursor = connection.cursor()
                cursor.execute(
                    "SELECT id FROM information_schema.processlist"
                    " WHERE user = 'operator'"
                )
                for (number,) in cursor.fetchall():
                    # One may have ended meanwhile.
                    with contextlib.suppress(pymysql.err.MySQLError):
                        cursor.execute(f"KILL {number}")
            return take(admin, *arguments, **options)

        monkeypatch.setattr(points, "snapshots", killed)
        with pytest.raises(FleetServerError), self.point(pairs):
            pass
        assert applies(pair)

    def test_standby_cannot_be_applied_to(self, pairs, pair):
        execute(pair.primary, "CREATE TABLE e (id INT PRIMARY KEY)", database="db00000")
        pair.wait_caught_up()
        execute(
            pair.standby, "INSERT INTO e VALUES (1)", database="db00000", logged=False
        )
        execute(pair.standby, "STOP REPLICA SQL_THREAD")
        execute(pair.primary, "INSERT INTO e VALUES (1)", database="db00000")
        refused = pytest.raises(
            OperationRefusedError, match=r"applier 'No'.*it was stopped"
        )
        with refused, self.point(pairs):
            pass
        execute(pair.standby, "DELETE FROM e", database="db00000", logged=False)
        execute(pair.standby, "START REPLICA SQL_THREAD")
        pair.wait_caught_up()
        execute(pair.primary, "DROP TABLE e", database="db00000")

    @pytest.mark.parametrize("number", ["SIGTERM", "SIGHUP", "SIGINT"])
    def test_a_command_that_gets_a_signal(self, pairs, pair, number):
        with pair.primary.root_connect() as holder:
            cursor = holder.cursor()
            cursor.execute("CREATE TABLE IF NOT EXISTS db00000.h (id INT)")
            pair.wait_caught_up()
            # No snapshot can be opened, while the applier is stopped.
            cursor.execute("LOCK TABLES db00000.h WRITE")
            for _ in range(5):
                status, said = self.interrupted(pairs, pair, number)
                if "1205" not in said:
                    break
                # It gave up before it got the signal.
            cursor.execute("UNLOCK TABLES")
        assert status == 128 + signal.Signals[number], said
        assert applies(pair), said

    @staticmethod
    def interrupted(pairs, pair, number):
        """Send a signal to a comparison that has stopped the applier.

        :returns: its exit status, and what it wrote to standard error.
        """
        with subprocess.Popen(
            [*COMMAND, "-t", pairs.path, "fleet", "verify", "server1"],
            env=environment(**credentials(pairs)),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            # Under nohup, or in the background of a shell, it is ignored.
            preexec_fn=partial(signal.signal, signal.Signals[number], signal.SIG_DFL),
        ) as command:
            try:
                stopped = wait_until(lambda: not applies(pair), seconds=60, every=0.01)
                command.send_signal(signal.Signals[number])
                said = command.communicate(timeout=60)[1]
            finally:
                command.kill()
        assert stopped, said
        return command.returncode, said

    def test_a_comparison_that_was_killed_is_named(self, run, pair):
        # Without a table there is nothing to compare.
        execute(
            pair.primary, "CREATE TABLE IF NOT EXISTS h (id INT)", database="db00000"
        )
        pair.wait_caught_up()
        execute(pair.standby, "STOP REPLICA SQL_THREAD")
        found = run("server1")
        execute(pair.standby, "START REPLICA SQL_THREAD")
        wait_until(lambda: applies(pair), seconds=60)
        assert found.exit_code == 3
        assert start_applier(pair) in found.stderr

    def test_it_cannot_be_started(self, pairs, pair, monkeypatch):
        def fail(replication):
            raise FleetServerError(server="s", number=1, reason="no threads")

        with monkeypatch.context() as patch:
            kind = replication_kind(is_mariadb=pairs.kind == "mariadb")
            patch.setattr(kind, "start_applier", fail)
            with pytest.raises(ApplierStoppedError) as caught, self.point(pairs):
                pass
        assert start_applier(pair) in str(caught.value)
        assert not applies(pair)
        execute(pair.standby, "START REPLICA SQL_THREAD")
        wait_until(lambda: applies(pair), seconds=60)

    def test_receiver_runs_meanwhile(self, pairs, pair, monkeypatch):
        seen = []
        take = points.snapshots

        def watching(admin, *arguments, **options):
            with pair.standby.root_connect() as connection:
                cursor = connection.cursor(pymysql.cursors.DictCursor)
                cursor.execute("SHOW REPLICA STATUS")
                row = cursor.fetchone()
                seen.extend(row[n] for n in row if n.endswith("_IO_Running"))
            return take(admin, *arguments, **options)

        monkeypatch.setattr(points, "snapshots", watching)
        with self.point(pairs):
            pass
        assert seen == ["Yes", "Yes"]

    def test_others_start_it(self, pairs, pair, monkeypatch):
        """A standby that has gone on is not compared."""
        take = points.snapshots
        seen = []

        def meddling(admin, *arguments, **options):
            seen.append(admin)
            if len(seen) == 2:
                execute(pair.primary, "CREATE DATABASE db65000")
                execute(pair.standby, "START REPLICA SQL_THREAD")
                pair.wait_caught_up()
            return take(admin, *arguments, **options)

        monkeypatch.setattr(points, "snapshots", meddling)
        refused = pytest.raises(FleetServerError, match="others must not")
        with refused, self.point(pairs):
            pass
        execute(pair.primary, "DROP DATABASE db65000")
        assert applies(pair)


def test_lost_sessions_are_replaced(fleet, pair, written, monkeypatch):
    """The comparison goes on at another point."""
    rows = Admin.rows
    calls = []

    def dying(admin, sql, *parameters):
        if "BIT_XOR" in sql:
            calls.append(sql)
            if len(calls) == 5:
                number = rows(admin, "SELECT CONNECTION_ID()")[0][0]
                with admin.another() as other:
                    other.kill(number)
        return rows(admin, sql, *parameters)

    monkeypatch.setattr(Admin, "rows", dying)
    options = CompareOptions(counters=False, threads=1)
    report = verify_data(fleet, "server1", options=options)
    assert report.ok, str(report)
    assert len(report.points) == 2


class TestCommand:
    def test_equal(self, run):
        found = run("server1")
        assert found.exit_code == 0
        assert "equal" in found.stdout

    @pytest.mark.thorough
    def test_different(self, run, pair):
        execute(
            pair.standby,
            "CREATE TABLE extra (id INT PRIMARY KEY)",
            database="db00002",
            logged=False,
        )
        found = run("server1", "--shards", "2-3", "--json")
        text = run("server1", "--databases", "db00002")
        execute(pair.standby, "DROP TABLE extra", database="db00002", logged=False)
        assert found.exit_code == text.exit_code == 1
        (one,) = json.loads(found.stdout)["differences"]
        assert (one["kind"], one["table"]) == ("extra_table", "extra")
        assert "db00002.extra: exists on the standby only" in text.stdout

    def test_not_read(self, run, pair):
        found = run("server1", "--against", "mysql://127.0.0.1:1")
        assert found.exit_code == 3
        assert "127.0.0.1:1" in found.stderr

    def test_a_database_that_neither_has(self, run):
        found = run("server1", "--databases", "db00001,db09999")
        assert found.exit_code == 3
        assert "db09999: not compared: neither server has it" in found.stdout
        assert "1 databases not compared" in found.stdout

    def test_arguments(self, run):
        assert run("server1", "--shards", "900").exit_code == 2
        assert run("server2").exit_code == 1
        both = run("server1", "--shards", "1", "--databases", "a")
        assert both.exit_code == 2


# -- random tables --------------------------------------------------------

TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=6)
# Type, and the values that it can hold.
TYPES = st.sampled_from(
    [
        ("INT", st.integers(-(2**31), 2**31 - 1)),
        ("VARCHAR(20)", TEXT | st.sampled_from(["#", "1#", "a ", "a", ""])),
        ("TEXT", TEXT),
        ("BLOB", st.binary(max_size=5)),
        ("VARBINARY(9)", st.binary(max_size=5)),
        ("DOUBLE", st.floats(allow_nan=False, allow_infinity=False)),
        ("FLOAT", st.floats(-(2.0**60), 2.0**60, width=32)),
        ("DECIMAL(20,5)", st.decimals(-(10**9), 10**9, places=5)),
        ("DATETIME(6)", st.datetimes(datetime(1000, 1, 1))),
        ("BIT(8)", st.integers(0, 255)),
        ("ENUM('', 'a', 'b#')", st.sampled_from(["", "a", "b#"])),
        ("JSON", st.sampled_from(["[]", "[ ]", '{"a":1}', '{"a": 1}'])),
    ]
)
KEYS = st.sampled_from(
    [
        ("INT", st.integers(-5000, 5000)),
        ("VARCHAR(20) COLLATE utf8mb4_general_ci", TEXT),
        ("VARBINARY(20)", st.binary(max_size=4)),
        ("DOUBLE", st.floats(-1e9, 1e9)),
        ("FLOAT", st.floats(-(2.0**60), 2.0**60, width=32)),
        ("DECIMAL(10,3)", st.decimals(-(10**5), 10**5, places=3)),
    ]
)


@st.composite
def tables(draw):
    """Return columns, width of the key, and rows."""
    keys = draw(st.lists(KEYS, min_size=1, max_size=3))
    others = draw(st.lists(TYPES, min_size=1, max_size=5))
    row = st.tuples(
        *(values for _, values in keys), *(st.none() | values for _, values in others)
    )
    rows = draw(st.lists(row, min_size=1, max_size=12))
    return [kind for kind, _ in keys], [kind for kind, _ in others], rows


def without_log(server):
    connection = server.root_connect()
    cursor = connection.cursor()
    cursor.execute("SET sql_log_bin = 0, sql_mode = ''")
    return connection, cursor


def insert(cursor, rows):
    marks = ", ".join(["%s"] * len(rows[0]))
    for row in rows:
        cursor.execute(f"INSERT IGNORE INTO db00003.r VALUES ({marks})", row)


def compare_quickly(pairs):
    fleet = pairs.fleet()
    pair = pairs["server1"]
    return compare_servers(
        lambda: fleet.admin(pair.primary.url, name="primary"),
        lambda: fleet.admin(pair.standby.url, name="standby"),
        ["db00003"],
        replicates=False,
        options=CompareOptions(threads=1, first_chunk=2),
    )


@pytest.fixture
def small_chunks(monkeypatch):
    monkeypatch.setattr("sqla_shard.fleet.compare._CHUNK", (2, 3))
    monkeypatch.setattr("sqla_shard.fleet.compare._ROWS", 2)


@pytest.mark.thorough
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[*HealthCheck])
@given(table=tables(), data=st.data())
def test_random_tables(pairs, pair, small_chunks, table, data):
    """Equal tables are equal, and each change of a row is found."""
    keys, others, rows = table
    names = [f"c{n}" for n in range(len(keys) + len(others))]
    columns = ", ".join(
        f"{name} {kind}" for name, kind in zip(names, [*keys, *others], strict=True)
    )
    key = ", ".join(names[: len(keys)])
    with contextlib.ExitStack() as stack:
        cursors = []
        for server in (pair.primary, pair.standby):
            connection, cursor = without_log(server)
            stack.enter_context(connection)
            cursor.execute("DROP TABLE IF EXISTS db00003.r")
            cursor.execute(
                f"CREATE TABLE db00003.r ({columns},"
                f" PRIMARY KEY ({key})) CHARACTER SET utf8mb4"
            )
            stack.callback(cursor.execute, "DROP TABLE db00003.r")
            insert(cursor, rows)
            cursors.append(cursor)
        report = compare_quickly(pairs)
        assert report.ok, str(report)
        where = f"ORDER BY {key} {data.draw(st.sampled_from(['', 'DESC']))}"
        _, cursor = cursors
        kind = data.draw(st.sampled_from(["update", "move", "delete", "add"]))
        one, two = (data.draw(st.sampled_from(names)) for _ in range(2))
        if kind == "update":
            index = data.draw(st.integers(0, len(rows) - 1))
            value = rows[index][names.index(one)]
            statement = f"UPDATE IGNORE db00003.r SET {one} = %s {where}"
            changes = cursor.execute(f"{statement} LIMIT 1", (value,))
        elif kind == "move":
            if dict(zip(names, [*keys, *others], strict=True))[one] == "JSON":
                # MySQL refuses other values, even with IGNORE.
                two = one
            changes = cursor.execute(
                f"UPDATE IGNORE db00003.r SET {one} = {two} {where} LIMIT 1"
            )
        elif kind == "delete":
            changes = cursor.execute(f"DELETE FROM db00003.r {where} LIMIT 1")
        else:
            changes = cursor.execute(
                f"INSERT IGNORE INTO db00003.r ({names[0]}) VALUES ('77')"
            )
        report = compare_quickly(pairs)
        assert (report.found > 0) == (changes > 0), str(report)
        assert report.found <= 2 * changes
