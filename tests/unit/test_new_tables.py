"""Tables that can be created with their indexes in one statement."""

from __future__ import annotations

import pytest

from sqla_shard.dialects.mysql.ddl import creation_of, Index, index_of

PINS = (
    "\nCREATE TABLE pins (\n\tid BIGINT NOT NULL AUTO_INCREMENT, \n\t"
    "a INTEGER, \n\tb VARCHAR(50), \n\tc TEXT, \n\tPRIMARY KEY (id)\n)\n\n"
)
INDEX = "CREATE INDEX by_a ON pins (a)"


def with_column(text: str) -> str:
    return PINS.replace("c TEXT", text)


def with_tail(text: str) -> str:
    return PINS.rstrip() + text


def test_the_text_stays_as_it_is():
    unique = "CREATE UNIQUE INDEX by_b ON pins (b, `a`)"
    assert creation_of([PINS, INDEX, unique]) == (
        "\nCREATE TABLE pins (\n\tid BIGINT NOT NULL AUTO_INCREMENT, \n\t"
        "a INTEGER, \n\tb VARCHAR(50), \n\tc TEXT, \n\tPRIMARY KEY (id)\n"
        ", KEY by_a (a), UNIQUE KEY by_b (b, `a`))\n\n"
    )


@pytest.mark.parametrize(
    "table",
    [
        with_column("`order` SMALLINT UNSIGNED DEFAULT '3'"),
        with_column("c VARCHAR(9) COMMENT 'a ), (''b'' % ; -- c'"),
        with_column(
            "ts TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6) "
            "ON UPDATE CURRENT_TIMESTAMP(6)"
        ),
        with_column(
            "data MEDIUMTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL"
        ),
        with_column("c INT, UNIQUE (c), CONSTRAINT other UNIQUE (a, c)"),
        with_tail("ENGINE=InnoDB DEFAULT CHARSET=utf8mb4"),
        with_tail("COMMENT='100%% ) ('"),
    ],
)
def test_joined_indexes(table):
    found = creation_of([table, INDEX])
    assert found is not None
    assert found.replace(", KEY by_a (a)", "") == table


@pytest.mark.parametrize(
    "table",
    [
        PINS.replace("CREATE TABLE", "CREATE TABLE IF NOT EXISTS"),
        PINS.replace("CREATE TABLE", "CREATE TEMPORARY TABLE"),
        PINS.replace("CREATE TABLE", "CREATE OR REPLACE TABLE"),
        PINS.replace("pins", "other.pins"),
        PINS.replace("pins", '"pins"'),
        PINS.replace(", \n\tPRIMARY KEY (id)", ""),
        PINS.replace("PRIMARY KEY (id)", "PRIMARY KEY (c(5))"),
        PINS.replace("BIGINT", "SERIAL"),
        PINS.rstrip().removesuffix(")"),
        "CREATE TABLE pins (LIKE boards)",
        "CREATE TABLE pins (SELECT 1 AS a)",
        "CREATE TABLE pins LIKE boards",
        "CREATE TABLE pins AS SELECT 1 AS a",
        INDEX,
        with_column("c JSON"),
        with_column("c ENUM('a')"),
        with_column("c POINT"),
        with_column("c INT AS (a + 1)"),
        with_column("c INT GENERATED ALWAYS AS (a + 1) VIRTUAL"),
        with_column("c INT INVISIBLE"),
        with_column("c INT UNIQUE"),
        with_column("c INT REFERENCES boards (id)"),
        with_column("c INT DEFAULT (1 + 1)"),
        with_column("c INT DEFAULT nextval(numbers)"),
        with_column("c INT CHECK (c > 1)"),
        with_column("c VARCHAR(9) DEFAULT 'a\\'b'"),
        with_column("c INT, CHECK (c > 1)"),
        with_column("c INT, KEY (c)"),
        with_column("c INT, INDEX by_c (c)"),
        with_column("c TEXT, UNIQUE (c)"),
        with_column("c VARCHAR(192), UNIQUE (c)"),
        with_column("c INT, FULLTEXT KEY (b)"),
        with_column("c INT, FOREIGN KEY(a) REFERENCES boards (id)"),
        with_column("c INT, CONSTRAINT of FOREIGN KEY(a) REFERENCES boards (id)"),
        with_column("c INT /* comment */"),
        with_column("c INT -- comment\n"),
        with_column("c INT # comment\n"),
        with_column("c INT, PERIOD FOR SYSTEM_TIME (a, b)"),
        with_tail(" SELECT 1 AS a"),
        with_tail(" AS VALUES (1)"),
        with_tail(" PARTITION BY HASH (id) PARTITIONS 4"),
        with_tail(" ENGINE=Aria"),
        with_tail(" WITH SYSTEM VERSIONING"),
        with_tail(" DATA DIRECTORY='/tmp'"),
        with_tail(" ROW_FORMAT=COMPRESSED"),
        with_tail(" AUTO_INCREMENT=7"),
        with_tail(" /* comment */"),
        with_tail("; DROP TABLE boards"),
    ],
)
def test_which_tables_are_not_recognized(table):
    assert creation_of([table, INDEX]) is None


def test_two_unique_indexes_have_an_order():
    first = "CREATE UNIQUE INDEX by_a ON pins (a)"
    second = "CREATE UNIQUE INDEX by_b ON pins (b)"
    assert creation_of([PINS, first, INDEX.replace("by_a", "a")]) is not None
    assert creation_of([PINS, first, second]) is None
    table = with_column("c INT, UNIQUE (c)")
    assert creation_of([table, first]) is None
    assert creation_of([table, INDEX]) is not None


@pytest.mark.parametrize(
    "index",
    [
        "CREATE INDEX IF NOT EXISTS by_a ON pins (a)",
        "CREATE OR REPLACE INDEX by_a ON pins (a)",
        "CREATE FULLTEXT INDEX by_b ON pins (b)",
        "CREATE SPATIAL INDEX by_b ON pins (b)",
        "CREATE INDEX by_a ON boards (a)",
        "CREATE INDEX by_a ON Pins (a)",
        "CREATE INDEX by_a ON other.pins (a)",
        "CREATE INDEX by_a USING BTREE ON pins (a)",
        "CREATE INDEX by_a ON pins (a) USING BTREE",
        "CREATE INDEX by_a ON pins (a) COMMENT 'a'",
        "CREATE INDEX by_a ON pins (a) ALGORITHM=COPY",
        "CREATE INDEX by_a ON pins (a) INVISIBLE",
        "CREATE INDEX by_a ON pins (a DESC)",
        "CREATE INDEX by_a ON pins (missing)",
        "CREATE INDEX by_b ON pins (b(5))",
        "CREATE INDEX by_c ON pins (c)",
        "CREATE INDEX by_c ON pins (c(5))",
        "CREATE INDEX by_a ON pins ((a + 1))",
        "CREATE INDEX by_a ON pins (a) -- comment",
        "CREATE INDEX by_a ON pins (a); DROP TABLE boards",
        'CREATE INDEX "by_a" ON pins (a)',
        "ALTER TABLE pins ADD INDEX by_a (a)",
    ],
)
def test_which_indexes_are_not_recognized(index):
    assert creation_of([PINS, index]) is None
    assert creation_of([PINS, INDEX, index]) is None


def test_the_parts_of_an_index():
    found = index_of("\nCREATE UNIQUE INDEX `By a` ON `Pins` (B, `group By`) ")
    assert found == Index(
        table="`Pins`", name="by a", columns=("b", "group by"), is_unique=True
    )
    found = index_of("CREATE INDEX by_a ON pins (a)")
    assert found == Index(table="pins", name="by_a", columns=("a",), is_unique=False)


@pytest.mark.parametrize(
    "statement", ["CREATE INDEX by_a ON pins (a(5))", "CREATE TABLE pins (a INT)", ""]
)
def test_statements_that_are_no_index(statement):
    assert index_of(statement) is None
