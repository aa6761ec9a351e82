"""Values beside a field, in statements that are compiled."""

from __future__ import annotations

import sys
from collections import Counter
from datetime import datetime
from typing import Any

import pytest
from sqlalchemy import (
    case,
    Column,
    create_engine,
    Date,
    DateTime,
    Enum,
    func,
    insert,
    Integer,
    literal,
    MetaData,
    select,
    String,
    Table,
    tuple_,
    union,
    update,
)

from sqla_shard.dialects import coding
from sqla_shard.exc import UnsupportedStatementError
from sqla_shard.types.columns import UTCTimestamp
from tests.models.objects import Color, Thing

#: A table of another object, with times.
OTHER = Table(
    "others",
    MetaData(),
    *(Column("id", Integer, primary_key=True), Column("kind", String(20))),
    *(Column("ts", UTCTimestamp()), Column("made", UTCTimestamp())),
    *(Column("at", DateTime), Column("day", Date), Column("color", Enum(Color))),
)


@pytest.fixture(scope="module")
def engine():
    engine = create_engine("sqlite://")
    coding.code_values(engine)
    yield engine
    engine.dispose()


def test_rows_without_names(engine):
    """A row of values() may be a tuple of the first columns."""
    rows = [(7, "x"), (8, "y")]
    compiled = insert(OTHER).values(rows).compile(engine)
    assert list(compiled.params.values()) == [7, "x", 8, "y"]
    with pytest.raises(UnsupportedStatementError, match="in Python"):
        insert(OTHER).values([(7, "x", Thing.at), (8, "y", None)]).compile(engine)


@pytest.mark.parametrize("field", [Thing.at, Thing.day])
def test_fields_in_columns_of_times(engine, field):
    with pytest.raises(UnsupportedStatementError, match="in Python"):
        update(OTHER).values(ts=field).compile(engine)


def test_times_of_columns_in_others(engine):
    c = OTHER.c
    for values in (
        {"ts": c.made},
        {"ts": func.now()},
        {"ts": c.at},
        {"at": c.ts},
        {"ts": func.coalesce(c.ts, c.made, func.now())},
        {"ts": case((c.at.is_(None), c.made), else_=c.ts)},
    ):
        update(OTHER).values(values).compile(engine)


def test_times_of_other_selects(engine):
    """SQLite found none of them, and a UNION returned both texts."""
    c, at, day = OTHER.c, select(Thing.at), select(Thing.day)
    moment = select(c.ts)
    for statement in (
        select(Thing.id).where(Thing.at.in_(moment)),
        select(Thing.id).where(Thing.at.not_in(moment)),
        select(Thing.id).where(tuple_(Thing.at, 1).in_(select(c.ts, literal(1)))),
        *(union(at, moment), union(moment, at), at.except_(moment)),
        *(union(at, day), union(day, at), union(moment, day)),
    ):
        with pytest.raises(UnsupportedStatementError, match=r"Thing\.(at|day)"):
            statement.compile(engine)
    known = datetime(2024, 5, 6)
    for statement in (
        union(moment, select(func.coalesce(c.ts, known))),
        select(c.id).where(c.ts.in_(select(Thing.at))),
        union(at, select(func.coalesce(Thing.at, known))),
        union(day, select(c.day)),
    ):
        statement.compile(engine)


def test_fields_of_two_formats_of_times(engine):
    for pair in (Thing.at, Thing.day), (Thing.day, Thing.at):
        with pytest.raises(UnsupportedStatementError, match=r"func\.date"):
            select(func.coalesce(*pair)).compile(engine)


def test_nested_expressions_are_walked_once(engine):
    """Each level of CASE doubled the walks of those below it."""

    def calls(depth: int) -> int:
        nested: Any = Thing.color
        for n in range(depth):
            nested = case((OTHER.c.id == n, OTHER.c.color), else_=nested)
        statement, found = select(nested), Counter[str]()

        def profile(frame: Any, event: str, arg: Any) -> None:
            if event == "call" and frame.f_code.co_filename == coding.__file__:
                found[frame.f_code.co_name] += 1

        sys.setprofile(profile)
        try:
            statement.compile(engine)
        finally:
            sys.setprofile(None)
        return found.total()

    # The square: each CASE is compiled with those below it.
    assert calls(12) < 5 * calls(6)
