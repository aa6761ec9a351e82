"""Expressions of several aggregates, compared with one database."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import (
    case,
    cast,
    distinct,
    Float,
    func,
    Integer,
    literal,
    Numeric,
    select,
    String,
)

from sqla_shard import scatter
from sqla_shard.exc import ScatterUnsupportedError
from tests.models.clusters import PINS, plain_engine
from tests.models.merged_models import PLAIN, SHARDED
from tests.suites.merged import compared_rows, same_rows


def _columns(*make: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda m: select(*[one(m.Ware) for one in make])


def _rounded(w: Any) -> Any:
    return func.round(func.avg(w.price), 2)


_COLUMNS: dict[str, Callable[[Any], Any]] = {
    "a sum by a sum": lambda w: func.sum(w.price) / func.sum(w.number),
    "a sum by a count": lambda w: func.sum(w.number) / func.count(w.number),
    "a sum of doubles": lambda w: func.sum(w.weight) / func.count(),
    "a percentage": lambda w: (
        100.0 * func.sum(case((w.sold, 1), else_=0)) / func.count()
    ),
    "a weighted mean": lambda w: func.sum(w.weight * w.number) / func.sum(w.number),
    "round(avg())": _rounded,
    "round(avg()) to a whole number": lambda w: func.round(func.avg(w.price)),
    "round(avg()) of doubles": lambda w: func.round(func.avg(w.weight), 3),
    "round() to more digits": lambda w: func.round(func.avg(w.number), 7),
    "coalesce(round(avg()))": lambda w: func.coalesce(_rounded(w), 0),
    "an average that is shifted": lambda w: func.avg(w.number) * 3 - 1,
    "a sum and one": lambda w: func.sum(w.number) + 1,
    "a span": lambda w: func.max(w.number) - func.min(w.number),
    "a span of decimals": lambda w: func.max(w.price) - func.min(w.price),
    "a span of floats": lambda w: func.max(w.size) - func.min(w.size),
    "a negated sum": lambda w: -func.sum(w.number),
    "abs()": lambda w: func.abs(func.min(w.number)),
    "a cast": lambda w: cast(func.sum(w.number), Integer),
    "a cast to text": lambda w: cast(func.count(), String(10)),
    "a cast to decimal": lambda w: cast(func.avg(w.price), Numeric(20, 3)),
    "CASE": lambda w: case((func.count() > 5, "many"), else_="few"),
    "a comparison": lambda w: func.sum(w.number) > func.count(),
    "nullif()": lambda w: func.nullif(func.sum(w.number), 3),
    "by nothing": lambda w: func.sum(w.number) / func.sum(w.number * 0),
    "coalesce() of two": lambda w: func.coalesce(func.max(w.number), func.count(), 0),
    "distinct and more": lambda w: 100 * func.count(distinct(w.number)) / func.count(),
}

_DISTINCT: dict[str, Callable[[Any], Any]] = {
    **{
        key: lambda w, key=key: func.count(distinct(getattr(w, key)))
        for key in (
            *("number", "big", "price", "weight", "size", "sold", "day"),
            *("moment", "hour", "colour", "spelled", "name", "general"),
            *("exact", "story", "shop_id", "id"),
        )
    },
    "a method": lambda w: func.count(w.number.distinct()),
    "a function": lambda w: func.count(func.distinct(w.number)),
    "an expression": lambda w: func.count(distinct(func.coalesce(w.number, 7))),
}

_STATEMENTS: dict[str, Callable[[Any], Any]] = {
    "all at once": _columns(*_COLUMNS.values()),
    "distinct ones at once": _columns(
        lambda w: func.count(distinct(w.number)),
        lambda w: func.count(distinct(w.name)),
        lambda w: func.count(),
        lambda w: func.sum(w.number),
        lambda w: func.avg(w.price),
        lambda w: func.max(w.moment),
        lambda w: func.coalesce(func.sum(w.price), 0),
        lambda w: literal("beside"),
    ),
    # MySQL rounds quotients, but not the averages of these.
    "averages": lambda m: (
        select(
            m.Ware.big,
            func.avg(m.Ware.number) * 2,
            func.avg(m.Ware.number) * 100_000,
            func.avg(m.Ware.price) - 1,
            func.avg(m.Ware.number) * func.avg(m.Ware.price),
            func.avg(m.Ware.number) / 3,
            func.avg(m.Ware.number) > func.count() / 7,
        )
        .group_by(m.Ware.big)
        .order_by(m.Ware.big)
    ),
    "groups": lambda m: (
        select(
            m.Ware.sold,
            func.sum(m.Ware.price) / func.count(),
            func.count(distinct(m.Ware.number)),
            _rounded(m.Ware),
        )
        .group_by(m.Ware.sold)
        .order_by(m.Ware.sold)
    ),
    "groups by what is computed with": lambda m: (
        select(m.Ware.number * func.count(), func.count() + m.Ware.number)
        .group_by(m.Ware.number)
        .order_by(m.Ware.number)
    ),
    "sorted by it": lambda m: (
        select(m.Ware.number, _rounded(m.Ware).label("mean"))
        .group_by(m.Ware.number)
        .order_by(func.avg(m.Ware.price) + 1, "mean", m.Ware.number)
        .limit(4)
    ),
    "sorted by the number of different ones": lambda m: (
        select(m.Ware.number)
        .group_by(m.Ware.number)
        .order_by(func.count(distinct(m.Ware.general)).desc(), m.Ware.number)
    ),
    "HAVING an average": lambda m: (
        select(m.Ware.number, func.count())
        .group_by(m.Ware.number)
        .having(func.avg(m.Ware.price) > 1)
        .order_by(m.Ware.number)
    ),
    "HAVING averages that are equal": lambda m: (
        select(m.Ware.number)
        .group_by(m.Ware.number)
        .having(func.avg(m.Ware.number) == m.Ware.number)
        .order_by(m.Ware.number)
    ),
    "HAVING a quotient and a count": lambda m: (
        select(m.Ware.number)
        .group_by(m.Ware.number)
        .having(func.sum(m.Ware.weight) / func.count() < 100000, func.count() > 1)
        .order_by(m.Ware.number)
    ),
    "HAVING different ones": lambda m: (
        select(m.Ware.sold)
        .group_by(m.Ware.sold)
        .having(func.count(distinct(m.Ware.number)) > 2)
        .order_by(m.Ware.sold)
    ),
    "HAVING without GROUP BY": lambda m: select(
        func.count(), func.sum(m.Ware.number)
    ).having(func.count() > 3),
    "HAVING without GROUP BY, of none": lambda m: select(
        func.count(distinct(m.Ware.number))
    ).having(func.count(distinct(m.Ware.number)) > 300),
    "HAVING IN": lambda m: (
        select(m.Ware.number)
        .group_by(m.Ware.number)
        .having(func.count().in_([1, 2, 3]))
        .order_by(m.Ware.number)
    ),
    "no rows": lambda m: select(
        func.sum(m.Ware.price) / func.count(),
        func.coalesce(func.sum(m.Ware.price) / func.sum(m.Ware.number), 0),
        func.sum(m.Ware.weight) + 1,
        cast(func.sum(m.Ware.number), Float),
    ).where(m.Ware.number == 99),
    "no rows that differ": lambda m: select(
        func.count(distinct(m.Ware.number)),
        func.count() + 1,
        func.sum(m.Ware.price),
        func.coalesce(func.sum(m.Ware.number), 5),
        func.max(m.Ware.name),
        func.avg(m.Ware.weight),
        literal(3),
    ).where(m.Ware.number == 99),
    "groups of none": lambda m: (
        select(m.Ware.number, func.sum(m.Ware.price) / func.count())
        .where(m.Ware.number == 99)
        .group_by(m.Ware.number)
    ),
    "the groups of ids": lambda m: (
        select(func.sum(m.Mark.number) / func.count())
        .group_by(m.Mark.ware_id)
        .order_by(m.full(m.Mark.ware_id))
    ),
    "fields of a blob": lambda m: select(
        func.round(func.avg(m.Gem.price), 2),
        func.sum(m.Gem.number) / func.count(),
        func.count(distinct(m.Gem.word)),
        func.count(distinct(m.Gem.day)),
    ),
    **{name: _columns(make) for name, make in _COLUMNS.items()},
    **{f"distinct {name}": _columns(make) for name, make in _DISTINCT.items()},
}


#: MySQL rounds the averages in them, so that some data have two results.
_NESTED_AVERAGES = frozenset({"an average that is shifted", "all at once"})


class MergedComputed:
    """``compared`` comes from the test module."""

    @pytest.mark.parametrize("name", _STATEMENTS)
    def test_is_what_one_database_computes(self, compared, backend, name):
        make = _STATEMENTS[name]
        want = compared.plain.execute(make(PLAIN)).all()
        made = make(SHARDED).options(scatter())
        with compared.cluster.session() as session:
            try:
                got = session.execute(made).all()
            except ScatterUnsupportedError as error:
                refused = str(error)
            else:
                refused = ""
        if refused:
            assert backend.kind == "mysql", refused
            assert name in _NESTED_AVERAGES, refused
            assert "func.count" in refused
            return
        assert same_rows(got, want), f"{got}\n{want}"
        if compared.dialect != "sqlite":
            # With the same digits.
            assert _digits(got) == _digits(want)

    def test_it_is_one_more_round_trip(self, compared):
        ware = SHARDED.Ware
        shown = select(func.sum(ware.number)).options(scatter())
        plain = compared.cluster.explain(shown)
        shown = select(func.sum(ware.number) + 1).options(scatter())
        computed = compared.cluster.explain(shown)
        assert computed.refusal is None
        assert computed.round_trips == plain.round_trips + 1
        assert any("compute" in step for step in computed.merge)


def _digits(rows: Any) -> list[list[str]]:
    return [
        [f"{v:.9g}" if isinstance(v, float) else str(v) for v in row] for row in rows
    ]


cluster = PINS.on_backend()
compared = compared_rows()
plain_engine = plain_engine()
