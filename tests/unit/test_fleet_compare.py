"""Statements of comparisons, and what their reports say."""

from __future__ import annotations

import re
import threading
from concurrent.futures import Future

import pytest

from sqla_shard.exc import FleetServerError
from sqla_shard.fleet.checksums import ComparedColumn, ComparedColumns, key_of
from sqla_shard.fleet.compare import (
    _Comparison,
    _Pair,
    _Unit,
    compare_servers,
    CompareOptions,
    CutoverContents,
)
from sqla_shard.fleet.differences import _counter, DataReport, Difference, UnreadPlace
from sqla_shard.fleet.replication import MariaDBReplication, MySQLReplication
from tests.models.scripted_admin import ScriptedAdmin


def column(name, kind, **more):
    options = {"full": kind, "charset": None, "collation": None, "octets": 0}
    return ComparedColumn(name=name, kind=kind, **{**options, **more})


def test_the_rate_holds_for_small_tables_too(monkeypatch):
    """Of a table that is not read to its end its first rows count, too."""
    answer = [(0, 3, "equal"), (1, 101, "more")]
    admin = ScriptedAdmin({"UNION ALL": answer})
    waits = []
    monkeypatch.setattr(
        threading.Event,
        "wait",
        lambda event, timeout: waits.append((round(timeout), len(admin.asked))),
    )
    comparison = _Comparison(
        *(None, None, False, CompareOptions(rate=1.0)), watch=bool, point=None
    )
    columns = ComparedColumns("d", "t", [column("n", "int")], "PRIMARY", ["n"])
    for _ in range(2):
        units = [
            _Unit(database="d", table=name, columns=columns, chunk=1000, is_new=True)
            for name in ("t", "u")
        ]
        pair = _Pair((admin, admin), Inline())
        assert comparison._glance(units, pair) == units[1:]
    # The second time it waits before it reads.
    assert next(one for one in waits if one[0]) == (104, 2)
    assert comparison.rows == 6


class Opened(ScriptedAdmin):
    """Opens other sessions; remembers their time-outs, and what they run."""

    def __init__(self):
        super().__init__({"": []})
        self.timeouts = []

    def __enter__(self):
        return self

    def __exit__(self, *details):
        pass

    def another(self, *, timeout):
        self.timeouts.append(timeout)
        self.timeout = timeout
        return self

    close = __exit__


def limits_of(admin):
    return [text for text in admin.texts if re.search("max_(stat|exec)", text)]


def test_a_cutover_waits_for_no_response_beyond_its_limit():
    """Nor does the server go on with a statement that is not waited for."""
    one, two = Opened(), Opened()
    two.is_mariadb = True
    contents = CutoverContents(
        *(lambda: one, lambda: two, list), limit=20.0, operation=None
    )
    contents.prepare()
    assert {*one.timeouts, *two.timeouts} == {20.0}
    assert limits_of(one)[-1] == "SET SESSION max_execution_time = 20000"
    assert limits_of(two)[-1] == "SET SESSION max_statement_time = 20.000000"


def test_nor_does_one_that_reads_definitions():
    one, two = Opened(), Opened()
    two.is_mariadb = True
    options = CompareOptions(counters=False)
    servers = (lambda: one), (lambda: two)
    assert not compare_servers(*servers, ["d"], replicates=False, options=options).ok
    assert limits_of(one) == ["SET SESSION max_execution_time = 10000"]
    assert limits_of(two) == ["SET SESSION max_statement_time = 10.000000"]


def test_differences_are_compared_again_for_some_seconds_after_the_limit(monkeypatch):
    comparison = _Comparison(
        *(None, None, True, CompareOptions(limit=1.0)), watch=bool, point=None
    )
    comparison._end = 0.0
    one = Difference(database="d", table="t", kind="row", key=(1,))
    columns = ComparedColumns("d", "t", [column("n", "int")], "PRIMARY", ["n"])
    comparison._report(one, columns, ("1",))
    waits = []

    def point(pairs, patience):
        waits.append(patience)
        raise FleetServerError(server="a", number=0, reason="late")

    monkeypatch.setattr(comparison, "_at_point", point)
    comparison._again()
    assert waits == [10.0]


class Inline:
    """A pool whose calls are done at once."""

    def submit(self, call, *arguments):
        done = Future()
        done.set_result(call(*arguments))
        return done


class TestPoints:
    def test_mariadb_applies_until_a_place_in_the_binary_log(self):
        admin = ScriptedAdmin(
            {
                "binlog_snapshot": [
                    ("Binlog_snapshot_file", "bin.000002"),
                    ("Binlog_snapshot_position", "4711"),
                ]
            }
        )
        replication = MariaDBReplication(admin)
        replication.stop_applier()
        replication.apply_until(replication.snapshot_end("0-1-42"))
        assert admin.texts == [
            "STOP SLAVE SQL_THREAD",
            (
                "START SLAVE SQL_THREAD UNTIL MASTER_LOG_FILE = 'bin.000002',"
                " MASTER_LOG_POS = 4711"
            ),
        ]

    def test_mysql_applies_until_a_set_of_gtids(self):
        admin = ScriptedAdmin()
        replication = MySQLReplication(admin)
        replication.stop_applier()
        replication.apply_until(replication.snapshot_end("a:1-5"))
        assert admin.texts == [
            "STOP REPLICA SQL_THREAD",
            "START REPLICA SQL_THREAD UNTIL SQL_AFTER_GTIDS = 'a:1-5'",
        ]

    @pytest.mark.parametrize(
        ("applied", "is_at"),
        [
            ("1-1-5", True),
            ("1-1-5,9-9-1", True),
            ("1-1-6", False),
            ("1-1-4", False),
            ("", False),
        ],
    )
    def test_mariadb_is_at(self, applied, is_at):
        assert MariaDBReplication(ScriptedAdmin()).is_at(applied, "1-1-5") == is_at

    @pytest.mark.parametrize(
        ("left", "is_at"), [("", True), ("b:1", True), ("a:6,\nb:1", False)]
    )
    def test_mysql_is_at(self, left, is_at):
        admin = ScriptedAdmin(
            {
                "SELECT GTID_SUBSET(%s, %s)": [(1,)],
                "SELECT GTID_SUBTRACT(%s, %s)": [(left,)],
            }
        )
        assert MySQLReplication(admin).is_at("a:1-6", "a:1-5") == is_at

    def test_applier_is_not_started_without_the_receiver(self):
        admin = ScriptedAdmin({"SHOW SLAVE STATUS": []})
        with pytest.raises(FleetServerError):
            MariaDBReplication(admin).start_applier()
        assert admin.texts == []


class TestStatements:
    def test_bounds_use_the_collation_of_the_column(self):
        name = column("n", "varchar", charset="latin1", collation="latin1_german2_ci")
        columns = ComparedColumns("d", "t", [name], "PRIMARY", ["n"])
        bound = columns.bound_of(["FC"])
        assert bound == ("_latin1 x'FC' COLLATE latin1_german2_ci",)
        assert columns.shown(["FC"]) == ("ü",)
        assert f"`n` > {bound[0]}" in columns.chunk(bound, None)

    def test_composite_keys_use_their_index(self):
        two = [column("a", "int"), column("b", "int")]
        columns = ComparedColumns("d", "t", two, "PRIMARY", ["a", "b"])
        sql = columns.chunk(("1", "2"), ("3", "4"))
        assert "FORCE INDEX (`PRIMARY`)" in sql
        assert "(`a` > 1 OR (`a` = 1 AND `b` > 2))" in sql
        assert "OR (`a` = 3 AND `b` = 4))" in sql

    def test_long_values_are_not_concatenated(self):
        two = [
            column("a", "varchar", octets=400),
            column("b", "longtext", octets=2**32 - 1),
        ]
        sql = ComparedColumns("d", "t", two, None).checksum
        assert "LENGTH(`a`), `a`, LENGTH(`b`), SHA2(`b`, 256)" in sql

    def test_names_are_quoted(self):
        columns = ComparedColumns("d%", "a`b", [column("x%d", "int")], None)
        assert "`d%%`.`a``b`" in columns.buckets()
        assert "`x%%d`" in columns.checksum

    def test_key(self):
        assert key_of({}) is None
        assert key_of({"u": [("a", False)]}) is None
        assert key_of({"a": [("a", True)], "PRIMARY": [("b", True)]}) == (
            "PRIMARY",
            ("b",),
        )
        assert key_of({"b": [("x", True)], "a": [("y", True), ("z", True)]})


class TestReports:
    def report(self, **more):
        options = {
            "first": "a (h:1)",
            "second": "b (h:2)",
            "replicates": True,
            "points": ("0-1-2",),
            "databases": 1,
            "tables": 2,
            "rows": 3,
            "seconds": 1.0,
            "locked": 0.001,
            "stopped": 0.02,
            "found": 0,
            "differences": (),
        }
        return DataReport(**{**options, **more})

    def test_equal(self):
        report = self.report()
        assert report.ok
        assert str(report).endswith("a (h:1) and b (h:2): equal")

    def test_unread_shards_are_not_equal(self):
        unread = UnreadPlace(database="d", table="t", reason="lost")
        report = self.report(unread=(unread,))
        assert not report.ok
        assert "d.t: not compared: lost" in str(report)
        assert "equal" not in str(report)

    def test_an_error_in_a_database_that_is_late(self):
        places = (
            UnreadPlace(database="d", table="t", reason="lost"),
            UnreadPlace(database="d", table="u", reason="limit", late=True),
        )
        report = self.report(unread=places)
        assert report.late == ("d",)
        assert "d.t: not compared: lost" in report.summary()
        assert "d.u" not in report.summary()

    def test_the_number_of_unlisted_rows(self):
        one = Difference(
            database="d", table="t", kind="row", key=(1, 2), columns=("a",)
        )
        report = self.report(found=9, differences=(one,))
        assert not report.ok
        assert "d.t (1, 2): differs in a" in str(report)
        assert "8 more differences are not listed" in str(report)

    def test_a_difference_that_has_gone(self):
        one = Difference(
            database="d", table="t", kind="extra_row", key=(1,), lasts=False
        )
        assert str(one) == (
            "d.t 1: exists on the second server only; equal when compared again"
        )


@pytest.mark.parametrize(
    ("before", "after", "second", "is_equal"),
    [
        (1, 1, None, True),
        (None, None, 1, True),
        (None, 5, None, True),
        (None, 5, 3, True),
        (None, None, 2, False),
        (5, 5, None, False),
    ],
)
def test_a_counter_without_rows_is_unset_or_one(before, after, second, is_equal):
    found = list(_counter("db00001", "pins", before, after, second))
    assert (not found) is is_equal
