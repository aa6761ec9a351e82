"""The effect of a statement, as read from its text."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, strategies as st

from sqla_shard.schema.effects import Effect, is_refused, read

READS = [
    "SELECT 1",
    "select * from pins",
    "  \n\t SELECT 1",
    "(SELECT 1) UNION (SELECT 2)",
    "((select 1))",
    "-- why\nSELECT 1",
    "# why\nSELECT 1",
    "/* why */ /* DELETE */ SELECT 1",
    "/*+ MAX_EXECUTION_TIME(1) */ SELECT 1",
    "SELECT 'DELETE FROM pins; DROP TABLE pins'",
    "SELECT * FROM pins FOR UPDATE",
    "SELECT REPLACE(body, 'a', 'b') FROM pins;",
    "SHOW TABLES",
    "SHOW CREATE TABLE pins",
    "DESCRIBE pins",
    "DESC pins",
    "EXPLAIN SELECT 1",
    "EXPLAIN DELETE FROM pins",
    "EXPLAIN ANALYZE SELECT 1",
    "VALUES (1), (2)",
    "WITH a AS (SELECT 1) SELECT * FROM a",
    (
        "with recursive a (n) as (select 1 union select n + (1) from a) "
        "select replace(n, 1, 2) from a"
    ),
    "WITH a AS (SELECT 1), b AS (SELECT 2 FROM (SELECT 3) c) SELECT * FROM b",
    "CREATE TEMPORARY TABLE t (id INT)",
    "CREATE TEMPORARY TABLE t AS SELECT * FROM pins",
    "DROP TEMPORARY TABLE t",
    "SET @newest = (SELECT MAX(id) FROM pins)",
]
SESSION = [
    "SET NAMES utf8mb4",
    "set session lock_wait_timeout = 5",
    "SET @x = 1",
    "SET FOREIGN_KEY_CHECKS=0",
    "SET @@session.sql_mode = ''",
    "SET SESSION wait_timeout = @@GLOBAL.wait_timeout",
    "SET TRANSACTION ISOLATION LEVEL READ COMMITTED",
    "SAVEPOINT sa_savepoint_1",
    "RELEASE SAVEPOINT sa_savepoint_1",
    "ROLLBACK TO SAVEPOINT sa_savepoint_1",
    "ROLLBACK TO sa_savepoint_1",
    "START TRANSACTION",
    "BEGIN",
    "BEGIN IMMEDIATE",
    "PRAGMA foreign_keys=ON",
]
ROWS = [
    "INSERT INTO pins VALUES (1)",
    "insert ignore into pins select * from old",
    "INSERT INTO pins VALUES ('it''s; \\'so')",
    "UPDATE pins SET body = 'SELECT'",
    "DELETE FROM pins",
    "REPLACE INTO pins VALUES (1)",
    "/* SELECT */ DELETE FROM pins",
    "-- SELECT\n  DELETE FROM pins;",
    "WITH a AS (SELECT 1) DELETE FROM pins WHERE id IN (SELECT * FROM a)",
    "WITH a AS (SELECT 1) INSERT INTO pins SELECT * FROM a",
    "with a as (select ')' from b) update pins set id = 1",
]
UNKNOWN = [
    "",
    ";",
    "-- only this",
    "CALL fill()",
    "DO f()",
    "COMMIT",
    "ROLLBACK",
    "LOCK TABLES pins WRITE",
    "TRUNCATE TABLE pins",
    "truncate pins",
    "LOAD DATA INFILE 'x' INTO TABLE pins",
    "CREATE TRIGGER t BEFORE INSERT ON pins FOR EACH ROW SET @a = 1",
    "CREATE PROCEDURE p() DELETE FROM pins",
    "CREATE TABLE a AS SELECT * FROM pins",
    "CREATE TABLE a SELECT * FROM pins",
    "CREATE TABLE a (id INT) IGNORE SELECT * FROM pins",
    "CREATE OR REPLACE TABLE pins (id INT)",
    "ALTER TABLE pins TRUNCATE PARTITION p0",
    "alter table pins exchange partition p0 with table q",
    "ALTER TABLE pins DISCARD TABLESPACE",
    "ALTER TABLE pins IMPORT TABLESPACE",
    "ALTER TABLE pins COALESCE PARTITION 2",
    "ALTER TABLE pins DROP COLUMN a, ADD COLUMN a INT",
    "ALTER TABLE pins DROP `A`, ADD a INT",
    "ALTER TABLE pins RENAME COLUMN a TO b, RENAME COLUMN b TO a",
    "ALTER TABLE pins CHANGE a b INT, CHANGE COLUMN `b` a INT FIRST",
    "RENAME TABLE a TO c, b TO a, c TO b",
    "RENAME TABLE a TO b WAIT 5 to c",
    "RENAME USER a TO b",
    "SELECT NEXTVAL(numbers)",
    "SELECT NEXT VALUE FOR numbers",
    "SELECT SETVAL(numbers, 5)",
    "EXPLAIN ANALYZE UPDATE pins, b SET pins.a = 1",
    "ANALYZE UPDATE pins SET a = 1",
    "SET STATEMENT max_statement_time = 5 FOR DELETE FROM pins",
    "SET GLOBAL read_only = 1",
    "SET @a = 1, GLOBAL read_only = 1",
    "SET @@global.read_only = 1",
    "SET PASSWORD FOR app = 'x'",
    "BEGIN NOT ATOMIC DELETE FROM pins; END",
    "SELECT 1; DELETE FROM pins",
    "SET @a = 1; DELETE FROM pins",
    "/*!40101 DELETE FROM pins */",
    "/*M!100100 DELETE FROM pins */",
    "SELECT 1 /*! INTO @a */",
    "WITH",
    "XA COMMIT 'a'",
    "PREPARE a FROM 'DELETE FROM pins'",
    "EXECUTE a",
    "GRANT ALL ON pins TO app",
    "VACUUM",
]
TABLES = {
    "CREATE TABLE pins (id INT)": ["pins"],
    "create table\n\tif not exists `pins` (id int)": ["`pins`"],
    "CREATE TABLE db.pins LIKE db.old": ["db.pins"],
    "CREATE TABLE `d`.`p i` (a TEXT DEFAULT 'SELECT')": ["`d`.`p i`"],
    'CREATE TABLE pins (`select` INT, "SELECT" INT)': ["pins"],
    "CREATE /* of pins */ TABLE -- here\n pins (id INT)": ["pins"],
    "ALTER TABLE pins ADD ts INT": ["pins"],
    "ALTER TABLE pins ADD a INT COMMENT 'TRUNCATE; or not'": ["pins"],
    "ALTER TABLE `pins` ADD `import` INT": ["`pins`"],
    "ALTER TABLE IF EXISTS pins DROP COLUMN ts": ["pins"],
    "ALTER TABLE pins NOWAIT DROP COLUMN ts": ["pins"],
    "alter online ignore table pins force": ["pins"],
    "ALTER TABLE pins DROP PRIMARY KEY, ADD PRIMARY KEY (a, b)": ["pins"],
    "ALTER TABLE pins DROP INDEX i, ADD INDEX i (a)": ["pins"],
    "ALTER TABLE pins CHANGE a a BIGINT, CHANGE b b BIGINT": ["pins"],
    "ALTER TABLE pins RENAME TO cards": ["pins", "cards"],
    "ALTER TABLE pins ADD a INT, RENAME TO cards;": ["pins", "cards"],
    "ALTER TABLE pins RENAME COLUMN a TO b": ["pins"],
    "DROP TABLE pins": ["pins"],
    "DROP TABLE IF EXISTS pins, `b` , c.d CASCADE": ["pins", "`b`", "c.d"],
    "DROP VIEW v": ["v"],
    "CREATE INDEX i ON pins (id)": ["pins"],
    "CREATE UNIQUE INDEX i USING BTREE ON pins (id)": ["pins"],
    "CREATE OR REPLACE INDEX i ON pins (id)": ["pins"],
    "DROP INDEX i ON pins": ["pins"],
    "DROP INDEX IF EXISTS i ON `pins`": ["`pins`"],
    "CREATE OR REPLACE VIEW v AS SELECT 1": ["v"],
    "RENAME TABLE a TO b": ["a", "b"],
    "rename tables a to b,\n `c` to d": ["a", "b", "`c`", "d"],
}


@pytest.mark.parametrize("statement", READS)
def test_reads(statement):
    assert read(statement).effect is Effect.READS


@pytest.mark.parametrize("statement", SESSION)
def test_changes_the_connection_alone(statement):
    assert read(statement).effect is Effect.SESSION


@pytest.mark.parametrize("statement", ROWS)
def test_changes_rows(statement):
    assert read(statement).effect is Effect.ROWS


@pytest.mark.parametrize("statement", UNKNOWN)
def test_unrecognised_statements_are_unknown(statement):
    assert read(statement).effect is Effect.UNKNOWN


@pytest.mark.parametrize(("statement", "tables"), TABLES.items())
def test_changes_tables_and_names_them(statement, tables):
    found = read(statement)
    assert found.effect is Effect.TABLES
    assert [re.sub(r"\s", "", name) for name in found.tables] == [
        re.sub(r"\s", "", name) for name in tables
    ]


def test_use_goes_to_another_database():
    assert read("USE `other`").effect is Effect.LEAVES


def test_rows_that_a_statement_returns_may_be_read():
    assert read("INSERT INTO pins VALUES (1) RETURNING id").returns_rows
    assert not read("INSERT INTO pins VALUES ('RETURNING')").returns_rows


@pytest.mark.parametrize(
    ("statement", "is_whole"),
    [
        ("CREATE TRIGGER t BEFORE INSERT ON a FOR EACH ROW SET @a = 1", True),
        ("create definer=`app`@`%` procedure p() BEGIN SELECT 1; END", True),
        ("CREATE EVENT e ON SCHEDULE EVERY 1 DAY DO DELETE FROM a", True),
        # The object that it replaces may be lost.
        ("CREATE OR REPLACE TRIGGER t BEFORE INSERT ON a", False),
        ("CREATE SEQUENCE s INCREMENT BY 2", True),
        ("CREATE OR REPLACE SEQUENCE s INCREMENT BY 2", False),
        ("CALL fill()", False),
        ("DROP FUNCTION f", True),
        ("ALTER SEQUENCE s RESTART 5", True),
        ("DROP  SEQUENCE s, r", False),
        ("CREATE TABLE a AS SELECT 1", True),
        ("CREATE OR REPLACE TABLE a AS SELECT 1", False),
        ("TRUNCATE a", True),
        ("ALTER TABLE a DROP n, ADD n TEXT", True),
        ("RENAME TABLE a TO c, b TO a, c TO b", True),
        ("GRANT SELECT ON *.* TO a, b", False),
        ("DELETE FROM a; CREATE TRIGGER t BEFORE INSERT ON a", False),
        ("create procedure p() r: LOOP SELECT 1; LEAVE r; END LOOP `r`;", True),
        ("ALTER EVENT e DO BEGIN DELETE FROM a; DELETE FROM b; END", True),
        # The second statement is another one.
        ("DROP TRIGGER t; CREATE PROCEDURE p() BEGIN SELECT 1; END", False),
        ("ALTER PROCEDURE p COMMENT ''; BEGIN NOT ATOMIC DELETE FROM a; END", False),
        ("CREATE EVENT e ON SCHEDULE EVERY 1 DAY DO DELETE FROM a; CRATE", False),
    ],
)
def test_texts_refused_as_a_whole(statement, is_whole):
    found = read(statement)
    assert found.effect is Effect.UNKNOWN
    assert found.is_whole is is_whole


@pytest.mark.parametrize(
    ("statement", "number", "reason", "refused"),
    [
        ("CRATE TABLE a (n INT)", 1064, "syntax", True),
        ("GRANT SELECT ON *.* TO", 1064, "syntax", True),
        ("GRANT SELECT ON *.* TO a, b", 1133, "no such user", False),
        # The errors of what they execute.
        ("CALL fill()", 1064, "syntax", False),
        ("EXECUTE IMMEDIATE @it", 1064, "syntax", False),
        ("SET STATEMENT sql_mode = '' FOR CALL fill()", 1064, "syntax", False),
        ("DELETE FROM a; CRATE", 1064, "syntax", False),
        ("CALL fill()", 1305, "PROCEDURE db1.fill does not exist", True),
        ("call `Fill`", 1305, "PROCEDURE db1.fill does not exist", True),
        ("CALL db2.fill()", 1305, "PROCEDURE db2.fill does not exist", True),
        ("CALL fill()", 1305, "PROCEDURE db1.other does not exist", False),
        ("CALL fill()", 1305, "PROCEDURE db2.fill does not exist", False),
        ("CALL fill()", 1305, "FUNCTION db1.fill does not exist", False),
        ("/*!50003 CALL fill() */", 1064, "syntax", False),
        ("DROP TRIGGER IF EXISTS t; UPDATE a SET n = 1; CRATE", 1064, "", False),
        ("CREATE TABLE a AS SELECT 1", 1050, "it exists", True),
        # It may have been done, and have waited for a standby to acknowledge.
        *(
            ("RENAME TABLE a TO c, b TO a, c TO b", number, "its end", False)
            for number in (3, 1021, 1026, 1053, 1180, 1317, 1598, 1927, 1969, 3024)
        ),
        # The connection may have been lost after it.
        ("CREATE TABLE a AS SELECT 1", 2013, "lost", False),
        ("CREATE TABLE a AS SELECT 1", "odd", "a client's", False),
    ],
)
def test_errors_of_the_server_that_say_that_nothing_was_done(
    statement, number, reason, refused
):
    assert is_refused(statement, Exception(number, reason), "db1") is refused
    assert not is_refused(statement, None, "db1")


_SPACE = st.sampled_from(
    [" ", "\n", "\t\r\n", "/* SELECT 1 */", " -- SELECT ';\n", "\n# it's\n"]
)
_CASE = st.sampled_from([str.lower, str.upper, str.title])
_KNOWN = {
    **dict.fromkeys(READS, Effect.READS),
    **dict.fromkeys(SESSION, Effect.SESSION),
    **dict.fromkeys(ROWS, Effect.ROWS),
    **dict.fromkeys(TABLES, Effect.TABLES),
    **dict.fromkeys(UNKNOWN, Effect.UNKNOWN),
}
_PLAIN = [
    statement for statement in _KNOWN if not re.search(r"['\"`#]|--|/\*", statement)
]


@given(data=st.data())
def test_space_comments_and_case_make_no_difference(data):
    statement = data.draw(st.sampled_from(_PLAIN))
    change = data.draw(_CASE)
    words = [change(part) + data.draw(_SPACE) for part in statement.split(" ")]
    written = data.draw(_SPACE) + "".join(words)
    assert read(written).effect is _KNOWN[statement], written


@given(text=st.text())
def test_any_text_is_read(text):
    assert read(text).effect in Effect


@given(
    first=st.sampled_from([*READS, *SESSION]),
    second=st.sampled_from([*ROWS, *TABLES, *UNKNOWN[3:]]),
)
def test_text_after_a_semicolon_is_never_ignored(first, second):
    joined = f"{first};\n{second}"
    assert read(joined).effect not in (Effect.READS, Effect.SESSION), joined
