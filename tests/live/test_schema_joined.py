"""New tables that are created with their indexes in one statement."""

from __future__ import annotations

import re
from contextlib import closing
from functools import partial
from random import Random

import pymysql
import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import mysql
from sqlalchemy.schema import CreateIndex, CreateTable

from sqla_shard import exc, schema
from sqla_shard.dialects.mysql.ddl import creation_of, MySQLDDL
from sqla_shard.schema import Answer
from sqla_shard.schema.replay import is_static
from tests.models.schema import LEDGER, on_servers, Project, runner_fixture, VERSIONS

pytestmark = pytest.mark.live
runner = runner_fixture()
project = on_servers("schjoi", shards=4)

UPGRADE = """
    op.create_table(
        "boards",
        sa.Column("id", sa.BigInteger, primary_key=True),
        sa.Column("title", sa.String(50), comment="at most 100%s, 'quoted'"),
        sa.Column("likes", sa.Integer, index=True),
        sa.Column("order", sa.Integer, index=True, unique=True),
        mysql_comment="100%",
    )
    op.create_index("by_title", "boards", ["title", "likes"])
    op.create_table(
        "pins",
        sa.Column("id", sa.BigInteger, primary_key=True),
        sa.Column("likes", sa.Integer, index=True),
    )
    op.add_column("pins", sa.Column("link", sa.String(20)))
"""
TABLES = ("boards", "pins")
#: The statements of each table that one CREATE TABLE replaces.
JOINED = {"boards": range(4), "pins": range(4, 6)}
UP = ("-x", "jobs=1", "-x", "new=0-3", "upgrade", "head")
#: A shard that is not the first.
SHARD = 1


@pytest.fixture
def arranged(project: Project) -> Project:
    assert is_static(str(project.add("0001", UPGRADE)), "upgrade")
    return project


def upgraded(project: Project) -> None:
    """Upgrade, and check that all shards have what alembic has created."""
    project.alembic(*UP)
    wanted = project.tables(0)
    assert sorted(wanted) == list(TABLES)
    for shard_id in project.shards:
        assert project.tables(shard_id) == wanted, shard_id
        assert project.heads(shard_id) == ["0001"]
        entries = project.ledger(shard_id)
        assert [e["number"] for e in entries] == list(range(7))
        assert {(e["state"], e["is_open"]) for e in entries} == {("finished", 0)}


def end_in(project: Project, table: str, *, exists: bool) -> None:
    """Give a shard the state in which a killed runner would have left it.

    :param table: the table whose CREATE TABLE was sent last.
    :param exists: whether the server has executed it.
    """
    upgraded(project)
    query = project.query
    for name in TABLES[TABLES.index(table) + exists :]:
        query(SHARD, f"DROP TABLE {{db}}{name}")
    if exists and table == "pins":
        query(SHARD, "ALTER TABLE {db}pins DROP COLUMN link")
    query(SHARD, f"DELETE FROM {{db}}{VERSIONS}")
    numbers = JOINED[table]
    query(SHARD, f"DELETE FROM {{db}}{LEDGER} WHERE number > {numbers[-1]}")
    query(
        SHARD,
        f"UPDATE {{db}}{LEDGER} SET is_open = 1, ended_at = NULL, "
        "state = 'started' WHERE direction = 'upgrade'",
    )
    query(
        SHARD,
        f"UPDATE {{db}}{LEDGER} SET state = 'joined', tables_before = NULL "
        f"WHERE number BETWEEN {numbers[1]} AND {numbers[-1]}",
    )


def status(project: Project) -> schema.ShardStatus:
    return schema.status(project.config()).shards[SHARD]


# Indexes are joined with their table on MariaDB alone.
@pytest.mark.only_on("mariadb")
def test_one_statement_is_sent(arranged):
    with_log = "SET GLOBAL log_output = 'TABLE', GLOBAL general_log = 1"
    arranged.query(0, "TRUNCATE TABLE mysql.general_log")
    [(output,)] = arranged.query(0, "SELECT @@GLOBAL.log_output")
    arranged.query(0, with_log)
    try:
        upgraded(arranged)
    finally:
        arranged.query(0, f"SET GLOBAL general_log = 0, GLOBAL log_output = '{output}'")
    rows = arranged.query(0, "SELECT argument FROM mysql.general_log")
    sent = [re.sub(r"\s+", " ", row[0]).strip() for row in rows]
    for index in ("ix_boards_likes", "by_title", "ix_pins_likes"):
        # By alembic on the first shard of the server.
        assert sum(f"CREATE INDEX {index} " in one[:40] for one in sent) == 1
        assert sum(f", KEY {index} (" in one for one in sent) == 1


@pytest.mark.parametrize("exists", [False, True])
@pytest.mark.parametrize("table", TABLES)
def test_a_runner_that_was_killed(arranged, table, exists):
    end_in(arranged, table, exists=exists)
    found = status(arranged)
    assert found.condition == "interrupted"
    number = JOINED[table][0] + 1
    assert f"in its statement {number}: CREATE TABLE {table}" in found.detail
    upgraded(arranged)
    assert status(arranged).condition == "current"


@pytest.mark.parametrize("answer", ["statement-done", "statement-undone"])
@pytest.mark.parametrize("exists", [False, True])
def test_no_statement_is_in_doubt(arranged, exists, answer):
    end_in(arranged, "pins", exists=exists)
    before = arranged.ledger(SHARD)
    with pytest.raises(exc.SchemaError, match="exists with all of them"):
        schema.resolve(arranged.config(), SHARD, Answer(answer))
    assert arranged.ledger(SHARD) == before
    upgraded(arranged)


def replaced(index: str, other: str) -> tuple[str, str, list[str], str]:
    """Return a doubt of :data:`DOUBTS`: another index has the name."""
    change = f"ALTER TABLE {{db}}boards DROP KEY {index}, ADD {other}"
    return "boards", change, [index], f"DROP INDEX {index} ON {{db}}boards"


VIEW = "CREATE VIEW {db}pins AS SELECT 1"
PINS = "CREATE TABLE {db}pins (id BIGINT PRIMARY KEY, likes INTEGER)"
ONE = "DROP INDEX by_title ON {db}boards"
BOTH = "ALTER TABLE {db}boards DROP KEY by_title, DROP KEY ix_boards_order"
#: What an operator sends after an interruption: the table that is created
#: then, the statement, the missing indexes, and what to send before these.
#: Without a statement, it is the CREATE TABLE that the status shows.
DOUBTS = {
    "created by hand": ("pins", "", ["ix_pins_likes"], ""),
    "another table": ("pins", PINS, ["ix_pins_likes"], ""),
    "view": ("pins", VIEW, ["ix_pins_likes"], ""),
    "dropped": ("boards", ONE, ["by_title"], ""),
    "both dropped": ("boards", BOTH, ["by_title", "ix_boards_order"], ""),
    "other order": replaced("by_title", "KEY by_title (likes, title)"),
    "fewer columns": replaced("by_title", "KEY by_title (title)"),
    "prefix": replaced("by_title", "KEY by_title (title(5), likes)"),
    "unique": replaced("by_title", "UNIQUE by_title (title, likes)"),
    "not unique": replaced("ix_boards_order", "KEY ix_boards_order (`order`)"),
}


def open_statements(project: Project) -> list[str]:
    entries = project.ledger(SHARD)
    return [e["statement"].strip() for e in entries if e["is_open"]]


def put_in_doubt(project: Project, name: str) -> None:
    table, statement, *_ = DOUBTS[name]
    end_in(project, table, exists=table == "boards")
    if not statement:
        creation = open_statements(project)[JOINED[table][0]]
        statement = creation.replace("CREATE TABLE ", "CREATE TABLE {db}", 1)
    project.query(SHARD, statement)


@pytest.mark.parametrize("name", DOUBTS)
def test_a_table_without_its_indexes(arranged, name):
    table, _, missing, undo = DOUBTS[name]
    put_in_doubt(arranged, name)
    sent = open_statements(arranged)
    numbers = JOINED[table]
    wanted = [
        one for one in sent[numbers[1] :] if one.split(" ON ")[0].split()[-1] in missing
    ]
    assert len(wanted) == len(missing)
    before = status(arranged)
    report = arranged.report(*UP, status=1)["shards"][SHARD]
    after = status(arranged)
    assert report["state"] == before.condition == after.condition == "in doubt"
    for shown in (before.detail, report["error"], after.detail):
        where = f"in its statement {numbers[0] + 1}, which creates {table} "
        assert where in shown
        assert f"without {len(missing)} of them" in shown
        for one in sent[numbers[1] :]:
            assert (one in shown) == (one in wanted)
    assert open_statements(arranged) == sent
    assert arranged.heads(SHARD) == []
    # Another table is removed, as the message says; otherwise the statements
    # of the message are sent.
    if name in ("another table", "view"):
        kind = "VIEW" if name == "view" else "TABLE"
        arranged.query(SHARD, f"DROP {kind} {{db}}{table}")
    else:
        if undo:
            arranged.query(SHARD, undo)
        for one in wanted:
            arranged.query(SHARD, one.replace(" ON ", " ON {db}"))
    upgraded(arranged)
    assert status(arranged).condition == "current"


def test_an_answer_about_a_table_without_its_index(arranged):
    put_in_doubt(arranged, "created by hand")
    for answer in (Answer.STATEMENT_UNDONE, Answer.STATEMENT_DONE):
        # The second one corrects the first.
        found = schema.resolve(arranged.config(), SHARD, answer)
        assert found.statement.lstrip().startswith("CREATE TABLE pins")
        assert status(arranged).condition == "interrupted"
    arranged.alembic(*UP)
    assert status(arranged).condition == "current"
    wanted, found = (arranged.tables(one)["pins"] for one in (0, SHARD))
    assert "ix_pins_likes" in wanted
    assert "ix_pins_likes" not in found
    assert "`link`" in found


def test_a_table_that_is_removed_after_the_answer(arranged):
    put_in_doubt(arranged, "another table")
    schema.resolve(arranged.config(), SHARD, Answer.STATEMENT_UNDONE)
    arranged.query(SHARD, "DROP TABLE {db}pins")
    upgraded(arranged)


def test_a_revision_that_is_undone_by_hand(arranged):
    end_in(arranged, "pins", exists=True)
    for name in TABLES:
        arranged.query(SHARD, f"DROP TABLE {{db}}{name}")
    found = schema.resolve(arranged.config(), SHARD, Answer.REVISION_UNDONE)
    assert found.statement.lstrip().startswith("CREATE TABLE pins")
    arranged.query(SHARD, f"DELETE FROM {{db}}{LEDGER}")
    upgraded(arranged)


def test_a_revision_that_was_edited_meanwhile(arranged):
    end_in(arranged, "pins", exists=True)
    [path] = (arranged.directory / "migrations" / "versions").glob("*.py")
    arranged.rewrite(path, "String(50)", "String(51)")
    report = arranged.report(*UP, status=1)
    assert report["shards"][SHARD]["state"] == "in doubt"
    found = status(arranged)
    assert found.condition == "in doubt"
    assert "was changed after it was interrupted" in found.detail
    assert "Restore its file and repeat the command" in found.detail
    assert "answer with revision-done or revision-undone" in found.detail
    for answer in (Answer.STATEMENT_DONE, Answer.STATEMENT_UNDONE):
        with pytest.raises(exc.SchemaError) as refused:
            schema.resolve(arranged.config(), SHARD, answer)
        assert "after restoring the file of the revision" in str(refused.value)
        assert "answer with revision-done or revision-undone" in str(refused.value)
    arranged.rewrite(path, "String(51)", "String(50)")
    upgraded(arranged)


def test_a_table_that_could_not_be_created(arranged):
    # A table that exists already refers to a column of another type.
    server, database = arranged.place(SHARD)
    connection = arranged.servers[server].root_connect(ssl_disabled=True)
    with closing(connection), connection.cursor() as cursor:
        cursor.execute(f"USE {database}")
        cursor.execute("SET foreign_key_checks = 0")
        cursor.execute(
            "CREATE TABLE sqla_shard_test (n INT PRIMARY KEY, "
            "FOREIGN KEY (n) REFERENCES pins (id))"
        )
    report = arranged.report(*UP, status=1)
    found = report["shards"][SHARD]
    assert found["state"] == "failed"
    assert re.search("errno: 150|^.1215, ", found["error"])
    assert len(found["done"]) == 4
    entries = [e for e in arranged.ledger(SHARD) if e["is_open"]]
    assert [e["state"] for e in entries][-1] == "failed"
    assert [e["number"] for e in entries] == list(range(5))
    assert entries[-1]["statement"].lstrip().startswith("CREATE TABLE pins")
    assert status(arranged).condition == "failed"
    arranged.query(SHARD, "DROP TABLE {db}sqla_shard_test")
    upgraded(arranged)


def test_connections_and_runners_that_are_killed(arranged, rng):
    arranged.provision()
    for kills_the_runner in (True, False, True, False):
        run = arranged.start("-x", "continue_on_error=yes", *UP)
        while not run.has_ended():
            shard_id = rng.choice(arranged.shards)
            found = arranged.running(shard_id, "%CREATE TABLE %, KEY %")
            if found and kills_the_runner:
                run.kill()
                break
            for connection in found:
                arranged.end(shard_id, connection)
    upgraded(arranged)


# -- any table

WORDS = ["a", "Order", "group by", "key", "ключ", "x1", "data$", "SELECT"]
LITERALS = ["0", "-3", "'7'", "NULL", "'%%'", "CURRENT_TIMESTAMP", "now()"]


def some_table(rng: Random) -> list[str]:
    """Return CREATE TABLE and CREATE INDEX, as alembic would send them."""
    types = [
        sa.Integer(),
        sa.BigInteger(),
        sa.SmallInteger(),
        mysql.INTEGER(unsigned=True),
        sa.Numeric(20, 3),
        sa.Float(),
        sa.Boolean(),
        sa.String(rng.choice([1, 40, 191, 200, 800])),
        sa.CHAR(20),
        mysql.VARCHAR(30, charset="latin1", collation="latin1_bin"),
        sa.Text(),
        mysql.MEDIUMBLOB(),
        sa.LargeBinary(20),
        sa.Date(),
        sa.DateTime(),
        mysql.DATETIME(fsp=6),
        mysql.TIMESTAMP(fsp=3),
        sa.JSON(),
        sa.Enum("a", "b"),
    ]
    columns = [sa.Column("id", sa.BigInteger, primary_key=True)]
    if rng.random() < 0.1:
        columns = [sa.Column("id", sa.BigInteger, nullable=False)]
    names = rng.sample(WORDS, rng.randint(1, len(WORDS)))
    for name in names:
        more = {}
        if rng.random() < 0.3:
            more["comment"] = rng.choice(["100%", "a ), ('b' ;", "# --", "ü"])
        if rng.random() < 0.2:
            more["server_default"] = sa.text(rng.choice(LITERALS))
        if rng.random() < 0.05:
            more["server_onupdate"] = sa.FetchedValue()
        column = sa.Column(name, rng.choice(types), nullable=rng.random() < 0.6, **more)
        columns.append(column)
    items = [
        sa.UniqueConstraint(*some_of(rng, names), name=name)
        for name in rng.sample(["first", "second", None], rng.randint(0, 2))
        if rng.random() < 0.4
    ]
    if rng.random() < 0.1:
        items.append(sa.ForeignKeyConstraint(["id"], ["others.id"]))
    if rng.random() < 0.1:
        items.append(sa.CheckConstraint("id > 1"))
    options = {}
    if rng.random() < 0.2:
        options["mysql_engine"] = rng.choice(["InnoDB", "InnoDB", "Aria"])
    if rng.random() < 0.2:
        options["mysql_charset"] = rng.choice(["latin1", "utf8mb4"])
    if rng.random() < 0.2:
        options["comment"] = "100% ) '' ("
    if rng.random() < 0.1:
        options["mysql_row_format"] = "COMPACT"
    metadata = sa.MetaData()
    sa.Table("others", metadata, sa.Column("id", sa.BigInteger))
    name = rng.choice(["t", "Some table", "order"])
    made = sa.Table(name, metadata, *columns, *items, **options)
    for number in range(rng.randint(1, 4)):
        parts = some_of(rng, [*names, "id"])
        long = {}
        if rng.random() < 0.1:
            long["mysql_length"] = 5
        if rng.random() < 0.05:
            long["mysql_prefix"] = "FULLTEXT"
        sa.Index(
            f"ix {number}" if rng.random() < 0.3 else f"ix_{number}",
            *(made.c[part] for part in parts),
            unique=rng.random() < 0.3,
            **long,
        )
    dialect = mysql.dialect(is_mariadb=True)
    indexes = sorted(made.indexes, key=lambda index: str(index.name))
    return [
        str(one.compile(dialect=dialect))
        for one in (CreateTable(made), *map(CreateIndex, indexes))
    ]


def some_of(rng: Random, names: list[str]) -> list[str]:
    return rng.sample(names, rng.randint(1, min(3, len(names))))


#: The server's view of a table, besides SHOW CREATE TABLE.
STORED = {
    "statistics": "index_name, non_unique, seq_in_index, column_name, "
    "collation, sub_part, nullable, index_type, comment, index_comment",
    "columns": "ordinal_position, column_name, column_default, is_nullable, "
    "column_type, character_set_name, collation_name, column_key, extra, "
    "column_comment",
    "tables": "engine, row_format, create_options, table_collation, table_comment",
    "table_constraints": "constraint_name, constraint_type",
}
INNODB = "information_schema.innodb_sys"
TABLES_OF = f"FROM {INNODB}_tables t WHERE t.name LIKE '{{}}/%'"
INDEXES_OF = f"FROM {INNODB}_indexes i WHERE i.table_id = (SELECT t.table_id "
STORAGE = (
    f"SELECT t.flag, t.n_cols, t.row_format {TABLES_OF}",
    f"SELECT i.name, i.type, i.n_fields {INDEXES_OF} {TABLES_OF}) ORDER BY 1",
    # Duplicates are found in the order in which these were created.
    f"SELECT i.name {INDEXES_OF} {TABLES_OF}) AND type & 2 ORDER BY index_id",
)


def stored(cursor, database: str) -> list:
    """Return the definition of the one table of a database."""
    [name] = names_of(cursor, database)
    cursor.execute(f"SHOW CREATE TABLE `{database}`.`{name}`")
    found = [cursor.fetchone()]
    for source, columns in STORED.items():
        cursor.execute(
            f"SELECT {columns} FROM information_schema.{source} "
            f"WHERE table_schema = '{database}' ORDER BY {columns}"
        )
        found.append(cursor.fetchall())
    for query in STORAGE:
        cursor.execute(query.format(database))
        found.append(cursor.fetchall())
    return found


def names_of(cursor, database: str) -> list[str]:
    cursor.execute(
        "SELECT table_name FROM information_schema.tables "
        f"WHERE table_schema = '{database}'"
    )
    return [row[0] for row in cursor.fetchall()]


# See test_one_statement_is_sent.
@pytest.mark.only_on("mariadb")
@pytest.mark.parametrize("seed", range(6))
def test_the_tables_are_equal(project, rng, seed):
    """Compare two databases, also after a change of the table."""
    server, first = project.place(0)
    _, second = project.place(1)
    connection = project.servers[server].root_connect(ssl_disabled=True)
    engine = sa.create_engine(
        "mysql+pymysql://",
        creator=partial(project.servers[server].root_connect, ssl_disabled=True),
        poolclass=sa.NullPool,
    )
    joined = drawn = 0
    with closing(connection), connection.cursor() as cursor:
        cursor.execute("SET sql_mode = CONCAT(@@sql_mode, ',STRICT_ALL_TABLES')")
        while joined < 15:
            drawn += 1
            assert drawn < 2000
            statements = some_table(rng)
            creation = creation_of(statements)
            if creation is None:
                continue
            for database, sent in ((first, statements), (second, [creation])):
                for name in names_of(cursor, database):
                    cursor.execute(f"DROP TABLE `{database}`.`{name}`")
                cursor.execute(f"USE {database}")
                try:
                    for statement in sent:
                        # Parameters, so that %% becomes %.
                        cursor.execute(statement, ())
                except pymysql.err.Error:
                    # Alembic fails on the first shard, and makes no plan.
                    assert database == first, statements
                    break
            else:
                same(cursor, (first, second), statements)
                assert missing_in(engine, first, statements) == []
                assert missing_in(engine, second, statements) == []
                for database in (first, second):
                    [name] = names_of(cursor, database)
                    cursor.execute(
                        f"ALTER TABLE `{database}`.`{name}` ADD zz INT, "
                        "ADD KEY (zz), FORCE"
                    )
                same(cursor, (first, second), statements)
                joined += 1


def missing_in(engine: sa.Engine, database: str, statements: list[str]) -> list[str]:
    with engine.connect() as connection:
        connection.exec_driver_sql(f"USE {database}")
        return MySQLDDL().missing_indexes(connection, statements[1:])


def same(cursor, databases: tuple[str, str], statements: list[str]) -> None:
    found = [stored(cursor, database) for database in databases]
    assert found[0] == found[1], statements
