"""Positions as column values."""

from __future__ import annotations

from decimal import Decimal
from enum import IntEnum

import pytest
from hypothesis import given, strategies as st
from sqlalchemy import (
    Column,
    create_engine,
    func,
    insert,
    literal,
    MetaData,
    select,
    Table,
)
from sqlalchemy.dialects import mysql, sqlite

from sqla_shard import exc
from sqla_shard.dialects.coding import code_values
from sqla_shard.types import LookupKey, Sequence38
from sqla_shard.types.columns import MAX_SEQUENCE

TABLE = Table("rows", MetaData(), Column("at", Sequence38()))
POSITIONS = st.integers(0, MAX_SEQUENCE) | st.builds(
    lambda digits, part: part % 10**digits,
    st.integers(1, 38),
    st.integers(0, MAX_SEQUENCE),
)


class Place(IntEnum):
    ONE = 1


def bound(value, dialect):
    return Sequence38().process_bind_param(value, dialect)


def test_of_the_column():
    kind = Sequence38()
    assert kind.python_type is int
    assert str(kind.compile(mysql.dialect())) == "NUMERIC(38, 0)"
    assert str(kind.compile(sqlite.dialect())) == "CHAR(38)"


@given(value=POSITIONS)
def test_there_and_back(value):
    kind = Sequence38()
    for dialect in (mysql.dialect(), sqlite.dialect()):
        stored = bound(value, dialect)
        assert kind.process_result_value(stored, dialect) == value
    # The type of drivers for DECIMAL.
    back = kind.process_result_value(Decimal(value), mysql.dialect())
    assert (back, type(back)) == (value, int)


@given(one=POSITIONS, other=POSITIONS)
def test_text_has_the_order_of_the_numbers(one, other):
    first, second = (bound(v, sqlite.dialect()) for v in (one, other))
    assert (first < second) == (one < other)
    assert len(first) == len(second) == 38


@pytest.mark.parametrize(
    "wrong", [-1, 10**38, True, False, "5", b"5", 1.0, Decimal(5), Place.ONE, (), []]
)
@pytest.mark.parametrize("dialect", [mysql.dialect(), sqlite.dialect()])
def test_invalid_values(wrong, dialect):
    with pytest.raises(exc.InvalidSequenceError) as caught:
        bound(wrong, dialect)
    assert caught.value.value == wrong
    assert repr(wrong) in str(caught.value)


def test_null_passes():
    for dialect in (mysql.dialect(), sqlite.dialect()):
        assert bound(None, dialect) is None
        assert Sequence38().process_result_value(None, dialect) is None


def test_literals():
    query = select(TABLE.c.at).where(TABLE.c.at > 10**37)
    for dialect, expected in (
        (mysql.dialect(), "> 1" + "0" * 37),
        (sqlite.dialect(), "> '1" + "0" * 37 + "'"),
    ):
        shown = query.compile(dialect=dialect, compile_kwargs={"literal_binds": True})
        assert str(shown).endswith(expected)


@given(values=st.lists(POSITIONS, min_size=1, max_size=20, unique=True))
def test_on_sqlite(values):
    engine = create_engine("sqlite://")
    TABLE.metadata.create_all(engine)
    with engine.begin() as connection:
        connection.execute(insert(TABLE), [{"at": value} for value in values])
        order = list(connection.scalars(select(TABLE.c.at).order_by(TABLE.c.at)))
        assert order == sorted(values)
        above = select(TABLE.c.at).where(TABLE.c.at > values[0])
        assert set(connection.scalars(above)) == {
            value for value in values if value > values[0]
        }
    engine.dispose()


@pytest.mark.parametrize(
    "make",
    [
        lambda c: c + 1,
        lambda c: 1 + c,
        lambda c: c - 1,
        lambda c: 1 - c,
        lambda c: c * 2,
        lambda c: 2 * c,
        lambda c: c / 2,
        lambda c: c // 2,
        lambda c: c % 2,
        lambda c: -c,
    ],
)
def test_arithmetic_is_refused(make):
    with pytest.raises(exc.UnsupportedStatementError):
        make(TABLE.c.at)


@pytest.mark.parametrize(("kind", "value"), [(Sequence38, 5), (LookupKey, "key")])
def test_values_beside_a_column(kind, value):
    """SQLite would not find a number or a text without its type."""
    engine = create_engine("sqlite://")
    code_values(engine)
    table = Table("rows", MetaData(), Column("at", kind()))
    column = func.coalesce(literal(value), table.c.at)
    with engine.begin() as connection:
        table.create(connection)
        connection.execute(insert(table), {"at": value})
        for condition in (
            literal(value) == table.c.at,
            func.ifnull(table.c.at, value) == value,
            func.nullif(table.c.at, value).is_(None),
        ):
            statement = select(column).where(condition)
            assert connection.scalars(statement).all() == [value]
    engine.dispose()
