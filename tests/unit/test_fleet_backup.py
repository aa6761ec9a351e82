"""Statements of binary logs for a restored database; files of backups."""

from __future__ import annotations

import gzip

import pytest

from sqla_shard.exc import BackupDamagedError
from sqla_shard.fleet.binlog_events import first_state, LogReader, Statement
from sqla_shard.fleet.binlog_statements import NotReplayableError, rewritten
from sqla_shard.fleet.dumps import read_statements
from sqla_shard.fleet.files import File, files_at


def rewrite(sql, default="", sql_mode=0):
    """Return a statement on db7 for the database new."""
    statement = Statement(sql.encode(), default, sql_mode)
    return rewritten(statement, "db7", "new")


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("ALTER TABLE db7.pins ADD a INT", "ALTER TABLE `new`.pins ADD a INT"),
        ("DROP TABLE `db7` . `pins`", "DROP TABLE `new` . `pins`"),
        (
            "CREATE TABLE db7.a (b TEXT DEFAULT 'db7.x' COMMENT \"db8.y\")",
            "CREATE TABLE `new`.a (b TEXT DEFAULT 'db7.x' COMMENT \"db8.y\")",
        ),
        ("RENAME TABLE db7.a TO db7.b /* db8.c */", "RENAME TABLE `new`.a TO `new`.b "),
        ("TRUNCATE db7.a", "TRUNCATE `new`.a"),
        (
            "ALTER TABLE db7.a ADD CHECK (db7.a.b > 1.5)",
            "ALTER TABLE `new`.a ADD CHECK (`new`.a.b > 1.5)",
        ),
    ],
)
def test_names_are_replaced(sql, expected):
    found = rewrite(sql)
    assert (found.text, found.has_default) == (expected, False)


def test_a_default_database_is_replaced():
    found = rewrite("ALTER TABLE pins ADD a INT", default="db7")
    assert (found.text, found.has_default) == ("ALTER TABLE pins ADD a INT", True)


@pytest.mark.parametrize(
    ("sql", "default"),
    [
        ("ALTER TABLE db70.pins ADD a INT", ""),
        ("ALTER TABLE db8.pins COMMENT 'db7.pins'", "db8"),
        ("GRANT SELECT ON db7.* TO a", ""),
        ("ANALYZE TABLE pins", "db7"),
    ],
)
def test_others_are_left_out(sql, default):
    assert rewrite(sql, default) is None


@pytest.mark.parametrize(
    ("sql", "default", "message"),
    [
        ("DROP DATABASE db7", "", "not about a table"),
        ("INSERT INTO db7.pins VALUES (1)", "", "not about a table"),
        ("CREATE VIEW db7.v AS SELECT 1", "", "not about a table"),
        ("RENAME TABLE db7.a TO db8.a", "", "names db8"),
        ("CREATE TABLE a LIKE db8.a", "db7", "names db8"),
        ("DROP TABLE DB7.a", "", "names DB7"),
        ("DROP TABLE /*!40000 db8.*/ a", "db7", "executable comment"),
    ],
)
def test_statements_that_could_change_another_database_are_refused(
    sql, default, message
):
    with pytest.raises(NotReplayableError, match=message):
        rewrite(sql, default)


@pytest.mark.parametrize("sql_mode", [4, 1 << 20])
def test_other_quotes_are_refused(sql_mode):
    with pytest.raises(NotReplayableError, match="ANSI_QUOTES"):
        rewrite("DROP TABLE db7.a", sql_mode=sql_mode)


def test_other_character_sets_are_refused():
    statement = Statement(b"DROP TABLE db7.a\xe9", "", 0)
    with pytest.raises(NotReplayableError, match="UTF-8"):
        rewritten(statement, "db7", "new")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not a binary log"),
        (b"\xfebin" + b"x" * 5, "within an event"),
        (b"\xfebin" + bytes(9) + b"\xff\x00\x00\x00" + bytes(6), "within"),
        (b"\xfebin" + bytes(4) + b"\xa4" + bytes(4) + b"\x13" + bytes(9), "encrypted"),
    ],
)
def test_damaged_logs_are_refused(tmp_path, data, message):
    (tmp_path / "binlog.000001").write_bytes(data)
    path = File(files_at(tmp_path), "binlog.000001")
    with pytest.raises(BackupDamagedError, match=message):
        list(LogReader([path], "db7", "new").transactions())
    with pytest.raises(BackupDamagedError, match=message):
        first_state(path)


@pytest.mark.parametrize("kind", [0x21, 0x23, 0xA2, 0xA3])
def test_events_that_are_too_short(tmp_path, kind):
    """Of GTIDs, those before a log among them, of MySQL and of MariaDB."""
    event = bytes(4) + bytes([kind]) + bytes(4) + b"\x13" + bytes(9)
    (tmp_path / "binlog.000001").write_bytes(b"\xfebin" + event)
    path = File(files_at(tmp_path), "binlog.000001")
    with pytest.raises(BackupDamagedError, match="too short"):
        list(LogReader([path], "db7", "new").transactions())


def test_statements_of_a_dump_end_with_a_line(tmp_path):
    path = tmp_path / "db.sql.gz"
    with gzip.open(path, "wb") as file:
        file.write(b"-- c;\nSET a;\nCREATE TABLE b (\n  c INT,\n);\n")
        file.write(b"INSERT INTO b VALUES ('-- ;\\n;');\n")
    assert list(read_statements(File(files_at(tmp_path), path.name))) == [
        "SET a",
        "CREATE TABLE b (\n  c INT,\n)",
        "INSERT INTO b VALUES ('-- ;\\n;')",
    ]
