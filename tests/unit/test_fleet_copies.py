"""Statements of copies, as they are sent; nothing is connected to."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from pymysql.err import OperationalError
from sqlalchemy.exc import DBAPIError

from sqla_shard.exc import FleetServerError, FleetSetupError
from sqla_shard.fleet import Account
from sqla_shard.fleet.admin import _packets, Admin, quoted
from sqla_shard.fleet.orphans import _tables_of
from sqla_shard.fleet.replica import _size
from sqla_shard.fleet.replication import MariaDBReplication, MySQLReplication
from sqla_shard.fleet.row_copy import (
    _AUTO_INCREMENT,
    definition_in,
    differences,
    literal,
    ServerTable,
    StoredColumn,
    tables_of,
)
from tests.models.scripted_admin import ScriptedAdmin


def test_mysql_clones_with_the_account_as_parameters():
    admin = ScriptedAdmin()
    account = Account(user="operator", password="secret")
    MySQLReplication(admin).clone_from("a", 3307, account)
    assert admin.sent == [
        ("SET GLOBAL clone_valid_donor_list = %s", "a:3307"),
        ("CLONE INSTANCE FROM %s@%s:3307 IDENTIFIED BY %s", "operator", "a", "secret"),
    ]


def test_mysql_lists_filters():
    sql = (
        "SELECT filter_name, filter_rule FROM"
        " performance_schema.replication_applier_global_filters"
    )
    admin = ScriptedAdmin({sql: [("REPLICATE_DO_DB", "db1"), ("OTHER", "")]})
    assert MySQLReplication(admin).filters() == ("REPLICATE_DO_DB=db1",)


def test_mariadb_has_no_clone():
    account = Account(user="operator", password="secret")
    with pytest.raises(FleetSetupError, match="MariaDB, which has no CLONE"):
        MariaDBReplication(ScriptedAdmin()).clone_from("a", 3307, account)


@pytest.mark.parametrize(
    ("applied", "position", "expected"),
    [
        ("", "", ""),
        ("1-1-5", "", "1-1-5"),
        ("1-1-5", "1-1-7", "1-1-7"),
        ("1-1-9,3-3-1", "1-1-7,2-2-4", "1-1-9,2-2-4,3-3-1"),
        ("1-1-7", "1-2-7", "1-2-7"),
    ],
)
def test_the_later_position_of_each_domain_counts(applied, position, expected):
    admin = ScriptedAdmin(
        {
            "SELECT @@GLOBAL.gtid_slave_pos": [(applied,)],
            "SELECT @@GLOBAL.gtid_binlog_pos": [(position,)],
        }
    )
    assert MariaDBReplication(admin).committed() == expected


@pytest.mark.parametrize(
    ("kind", "sql"),
    [
        ("int", "IFNULL(`a``b`, 'NULL')"),
        ("bit", "IFNULL(`a``b` + 0, 'NULL')"),
        ("float", "IFNULL(`a``b` + 0E0, 'NULL')"),
        ("json", "CONVERT(QUOTE(`a``b`) USING utf8mb4)"),
        ("blob", "IF(`a``b` IS NULL, 'NULL', CONCAT('x''', HEX(`a``b`), ''''))"),
    ],
)
def test_literals(kind, sql):
    assert literal(StoredColumn(name="a`b", type=kind)) == sql


def test_the_counter_of_a_comment_is_not_that_of_the_table():
    sql = (
        "CREATE TABLE `t` (\n  `a` int COMMENT ') ENGINE AUTO_INCREMENT=5'\n"
        ") ENGINE=InnoDB AUTO_INCREMENT=42 DEFAULT CHARSET=utf8mb4"
    )
    assert _AUTO_INCREMENT.search(sql)[2] == "42"


def test_the_counter_of_a_table_with_a_tablespace():
    sql = (
        "CREATE TABLE `t` (\n  `a` int\n) /*!50100 TABLESPACE `ts1` */"
        " ENGINE=InnoDB{} DEFAULT CHARSET=utf8mb4"
    )
    shown = ("t", sql.format(" AUTO_INCREMENT=42"))
    assert definition_in(shown, ScriptedAdmin()) == (sql.format(""), 42)


def test_the_size_of_tables_without_persistent_statistics():
    admin = ScriptedAdmin(
        {
            "innodb_table_stats": [("d", "a", 1, 2**30)],
            "data_length": [("d", "b", 2**30, 1)],
            "information_schema.tables": [("d", "a"), ("d", "b")],
        }
    )
    assert _size(MySQLReplication(admin)).startswith("about 2.00 GiB are copied")


class WithoutCase(ScriptedAdmin):
    """A server that compares names of databases without case, as MariaDB does."""

    def each(self, statements):
        return ([(text, "CREATE")] for text in statements)


def test_databases_whose_names_differ_in_case():
    admin = WithoutCase(
        {
            "columns": [],
            "table_stats": [],
            ".tables": [("Shard_1", "t"), ("shard_1", "u")],
            ".TABLES": [("Shard_1", "t"), ("shard_1", "u")],
        }
    )
    assert set(tables_of(admin, ["shard_1"])) == {("shard_1", "u")}
    assert _tables_of(admin, ["shard_1"]) == {"shard_1": ["u"]}


class Lost:
    """Sends nothing, as the session has ended."""

    def __init__(self, error):
        self._error = error

    def send(self, statements):
        raise self._error

    def end(self):
        raise driver_error(0, "")


def driver_error(number, text):
    return DBAPIError(None, None, OperationalError(number, text))


@pytest.mark.parametrize(
    ("error", "raised", "text"),
    [
        (driver_error(2013, "Lost connection"), FleetServerError, "2013"),
        (KeyboardInterrupt("Ctrl-C"), KeyboardInterrupt, "Ctrl-C"),
    ],
)
def test_the_first_error_of_statements_sent_together(error, raised, text):
    admin = Admin.__new__(Admin)
    admin.name, admin.host, admin.port = "server1", "a", 3306
    ddl = SimpleNamespace(batch=lambda connection: Lost(error))
    admin._backend, admin._connection = SimpleNamespace(ddl=ddl), None
    with pytest.raises(raised, match=text):
        admin.run_each(["SELECT 1"])


def test_how_many_statements_are_sent_together():
    for count, size, parts in ((257, 9, [256, 1]), (5, 2**18, [2, 2, 1]), (0, 0, [])):
        found = _packets(["x" * size] * count)
        assert [len(part) for part in found] == parts
    assert len(next(_packets(["x" * 2**20]))) == 1


def test_definitions_of_mysql_do_not_depend_on_how_they_were_written():
    written = "CREATE TABLE `t` (\n  `a` text{} COLLATE utf8mb4_bin\n)"
    for text in ("", " CHARACTER SET utf8mb4"):
        admin = ScriptedAdmin({})
        sql, _ = definition_in(("t", written.format(text)), admin)
        assert sql == written.format("")


def table(name, **changes):
    values = {
        "database": "d",
        "name": name,
        "sql": "CREATE",
        "auto_increment": 1,
        "columns": (StoredColumn(name="a", type="int"),),
        "size": 1,
    }
    return ("d", name), ServerTable(**{**values, **changes})


def test_differences_ignore_counters_and_sizes():
    before = dict([table("a"), table("b"), table("c")])
    after = dict(
        [table("a", auto_increment=9, size=7), table("b", sql="x"), table("e")]
    )
    assert differences(before, after) == [
        "d.b is defined differently",
        "d.c exists on one side only",
        "d.e exists on one side only",
    ]
    assert quoted("a`b") == "`a``b`"
