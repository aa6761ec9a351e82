"""Statements that a browser sends are read without running Python."""

from __future__ import annotations

import pytest
import sqlalchemy
from sqlalchemy import func, select

import sqla_shard
from sqla_shard.engine import limits_of
from sqla_shard.exc import StatementTextError
from sqla_shard.fleet.binlog_statements import qualifiers
from sqla_shard.monitor.dashboard.statements import (
    is_sql,
    LONGEST,
    object_id_of,
    StatementReader,
)
from tests.servers.dashboard_scene import Base, Board, Pin

#: Statements that are read as Python reads them.
VALID = [
    "select(Pin)",
    "select(Pin.id, Pin.ts).where(Pin.id == 70437463654401)",
    "select(Pin).where(Pin.board_id.in_([pack(3, 2, 7), 70437463654401]))",
    "select(Pin).where((Pin.id > 5) & ~(Pin.id == 7) | (Pin.id <= 9))",
    "select(func.count(Pin.id))",
    "select(func.coalesce(func.max(Pin.ts), 1)).where(Pin.id != -1)",
    "select(Pin).join(Board, Pin.board_id == Board.id).limit(10)",
    "select(Pin).order_by(desc(Pin.ts), Pin.id.asc()).offset(2 + 3)",
    "select(Board).filter_by(title='100 % of \"boards\"')",
    "update(Board).where(Board.id == 7).values(ts=func.now())",
    "delete(Pin).where(and_(Pin.id == 7, or_(Pin.ts > 1, true())))",
    "select(case((Pin.id > 1, 'a'), else_='b')).where(Pin.ts.is_(None))",
]
#: Texts that would run code, read attributes of objects, or take all memory.
HOSTILE = [
    "__import__('os').system('id')",
    "open('/etc/passwd')",
    "eval('1')",
    "select.__globals__",
    "Pin.__class__",
    "Pin.__init__.__globals__",
    "Pin.metadata.bind",
    "Pin.registry",
    "select(Pin).__class__.__mro__",
    "select(Pin).compile()",
    "select(Pin).where(Pin.id == 1)._where_criteria",
    "func.__class__",
    "func.__init__.__globals__",
    "func.pg_sleep._x",
    "(lambda: 1)()",
    "[x for x in (1, 2)]",
    "{1: 2}",
    "f'{Pin.__class__}'",
    "'{0.__class__}'.format(Pin)",
    "'a' * 10**9",
    "'a' * 1000000000",
    "[1] * 1000000000",
    "(1, 2) * 1000000000",
    "'%1000000000d' % 1",
    "10**10**10",
    "1 << 1000000000",
    "select(*[Pin])",
    "select(Pin).where(**{})",
    "Pin(board_id=1)",
    "Pin.id(1)",
    "scatter().__class__",
    "select if 1 else 2",
    "(y := 1)",
    "await select(Pin)",
    "1 == 1 == 1",
    "1",
    "Pin",
    "func.now",
    "select(",
    "",
    "SELECT * FROM pins",
    "select(Pinn)",
    "select(Pin).limit('x').limit(object())",
    "not Pin.id",
    "Pin.id in [1]",
    "(" * 500 + "1" + ")" * 500,
    "-" * 3000 + "1",
    "select(Pin)" + " " * LONGEST,
]


@pytest.fixture(scope="module")
def reader() -> StatementReader:
    return StatementReader([Base])


@pytest.mark.parametrize("text", VALID)
def test_valid_statements_are_what_python_makes_of_them(reader, text):
    names = {
        **vars(sqlalchemy),
        **{name: getattr(sqla_shard, name) for name in sqla_shard.__all__},
        "Pin": Pin,
        "Board": Board,
    }
    wanted = eval(text, names)  # noqa: S307 - the texts above
    found = reader.read(text)
    assert found.compare(wanted)
    assert not found.compare(wanted.limit(3) if "select" in text else Pin.id)


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_everything_else_is_refused(reader, text):
    with pytest.raises(StatementTextError, match="the statement "):
        reader.read(text)


def test_scatter_is_an_option_of_a_statement(reader):
    found = reader.read("select(Pin).options(scatter(timeout=5))")
    limits = limits_of(found)
    assert limits is not None
    assert limits.timeout == 5
    assert limits_of(reader.read("select(Pin)")) is None


def test_a_name_that_is_nearly_right(reader):
    with pytest.raises(StatementTextError, match="did you mean Pin"):
        reader.read("select(Pinn)")


def test_the_classes_of_an_application_shadow_no_function():
    class Other:
        pass

    with pytest.raises(sqlalchemy.exc.NoInspectionAvailable):
        StatementReader([Other])
    assert StatementReader([Pin]).models == {"Pin": Pin}
    with pytest.raises(StatementTextError, match="'Board'"):
        StatementReader([Pin]).read("select(Board)")


def test_two_classes_of_one_name_are_refused():
    class Base2(sqlalchemy.orm.DeclarativeBase):
        pass

    class Pin(Base2):
        __tablename__ = "other_pins"
        id = sqlalchemy.orm.mapped_column(sqlalchemy.Integer, primary_key=True)

    with pytest.raises(StatementTextError, match="two classes"):
        StatementReader([Base, Pin])


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("241294492511762325", 241294492511762325),
        (" 0x10 ", 16),
        ("0X1f", 31),
        ("7", 7),
        ("", None),
        ("-7", None),
        ("1_000", None),
        ("٣", None),
        ("0x", None),
        ("select(Pin)", None),
        ("9" * 101, None),
    ],
)
def test_numbers(text, number):
    assert object_id_of(text) == number


def test_a_statement_is_not_run_by_reading_it(reader):
    found = reader.read("select(func.sleep(100))")
    assert str(found) == str(select(func.sleep(100)))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("SELECT 1", True),
        ("  select * from `db1`.pins", True),
        ("/* sqla_shard objects: 3 */ SELECT\n id FROM db1.pins", True),
        ("WITH a AS (SELECT 1) SELECT * FROM a", True),
        ("insert into db1.pins values (1)", True),
        ("select(Pin)", False),
        ("select (Pin)", False),
        ("delete(Pin).where(Pin.id == 7)", False),
        ("SELECTED", False),
        ("241294492511762325", False),
        ("", False),
        # Each of them would take years if it was tried in all ways.
        pytest.param("/**/" * 20_000 + "!", False, id="comments"),
        pytest.param("/*" * 20_000, False, id="open comments"),
        pytest.param("/* */ " * 20_000 + "SELECT a", True, id="spaces"),
    ],
)
def test_sql_texts(text: str, expected: bool) -> None:
    assert is_sql(text) == expected


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("SELECT a.id FROM db1.pins AS a", ["a", "db1"]),
        ("SELECT 1 FROM `db 1` . `pins`, `d``b`.x", ["db 1", "d`b"]),
        ("SELECT 'db1.pins', \"db2.pins\", '\\'db3.x', 'it''s db4.x'", []),
        ("SELECT 1 /* db1.pins */ -- db2.pins\n # db3.pins", []),
        ("SELECT 1.5, 2.e FROM pins", []),
        ("SELECT 1 FROM db1.pins WHERE 'a\\' FROM db2.pins", ["db1"]),
        ("SELECT 1 FROM db1.pins /* db2.pins", ["db1"]),
    ],
)
def test_names_before_a_dot(text: str, names: list[str]) -> None:
    assert qualifiers(text) == names
