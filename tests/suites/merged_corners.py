"""SELECTs of users that the random ones do not make, each by itself."""

from __future__ import annotations

import datetime as dt
import random
from collections import Counter
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy import (
    and_,
    bindparam,
    case,
    cast,
    distinct,
    extract,
    func,
    Integer,
    join,
    lambda_stmt,
    literal,
    not_,
    or_,
    select,
    String,
    text,
    type_coerce,
)
from sqlalchemy.orm import (
    aliased,
    Bundle,
    contains_eager,
    joinedload,
    with_loader_criteria,
)

from sqla_shard import scatter
from sqla_shard.exc import NoShardKeyError, ScatterUnsupportedError
from tests.models.clusters import PINS, plain_engine
from tests.models.layouts import pack, unpack
from tests.models.merged_models import PLAIN, SHARDED
from tests.suites.merged import compared_rows, same_rows

_Made = Callable[[Any], Any]


def _by(order: Callable[[Any], Any]) -> _Made:
    """Return wares in an order, and by their ids."""
    return lambda m: select(m.Ware.id).order_by(order(m.Ware), m.Ware.id)


def _pairs(m: Any, show: Callable[[Any, Any], Any]) -> Any:
    """Return a SELECT from wares and the others of their shops."""
    one, other = aliased(m.Ware), aliased(m.Ware)
    tied = and_(one.shop_id == other.shop_id, one.id != other.id)
    return show(one, other).join(other, tied)


def _groups(shown: Callable[[Any], Any]) -> _Made:
    """Return the displayed form of each number."""
    return lambda m: (
        select(m.Ware.number, shown(m.Ware))
        .group_by(m.Ware.number)
        .order_by(m.Ware.number)
    )


#: In an order that leaves nothing open.
_ANSWERED: dict[str, _Made] = {
    "ORDER BY a comparison": _by(lambda w: w.number == 2),
    "ORDER BY a parameter": _by(lambda w: (w.number == bindparam("x", 2)).desc()),
    "ORDER BY IN": _by(lambda w: w.number.in_([1, 3])),
    "ORDER BY IS DISTINCT": _by(lambda w: w.number.is_distinct_from(2)),
    "ORDER BY LIKE": _by(lambda w: w.general.like("a%")),
    "ORDER BY CASE": _by(lambda w: case((w.number == 1, 0), else_=2)),
    "ORDER BY CASE of texts": _by(lambda w: case((w.number == 1, w.uca), else_=None)),
    "ORDER BY CASE of an ENUM": _by(
        lambda w: case((w.number > 1, w.colour), else_=None)
    ),
    "ORDER BY coalesce() of an ENUM": _by(lambda w: func.coalesce(w.colour, "RED")),
    "ORDER BY a cast": _by(lambda w: cast(w.number, String(10))),
    "ORDER BY a quotient": _by(lambda w: w.number / 3),
    "ORDER BY coalesce() of numbers": _by(lambda w: func.coalesce(w.number, w.price)),
    "ORDER BY any()": lambda m: select(m.Shop.id).order_by(
        m.Shop.wares.any(m.Ware.number > 1), m.Shop.id
    ),
    "aliases in GROUP BY": lambda m: _pairs(
        m,
        lambda a, b: (
            select(a.number, b.number, func.count())
            .select_from(a)
            .group_by(a.number, b.number)
            .order_by(a.number, b.number)
        ),
    ),
    "aliases with DISTINCT": lambda m: _pairs(
        m,
        lambda a, b: (
            select(a.number, b.number)
            .select_from(a)
            .distinct()
            .order_by(b.number, a.number)
        ),
    ),
    "a label that is a column in ORDER BY": lambda m: select(
        (-m.Ware.number).label("number"), m.Ware.id
    ).order_by("number", m.Ware.id),
    "GROUP BY the name of a column": lambda m: (
        select(m.Ware.number, func.count()).group_by("number").order_by("number")
    ),
    "GROUP BY a label": lambda m: (
        select((m.Ware.number % 2).label("odd"), func.count())
        .group_by("odd")
        .order_by("odd")
    ),
    "coalesce() of max()": lambda m: select(
        func.coalesce(func.max(m.Ware.number), Decimal("0.5")),
        func.coalesce(func.max(m.Ware.uca), "x"),
        func.coalesce(func.sum(m.Ware.number), 0),
    ),
    "coalesce() of max() of nothing": lambda m: select(
        func.coalesce(func.max(m.Ware.number), Decimal("0.5")),
        func.coalesce(func.max(m.Ware.uca), "x"),
    ).where(m.Ware.number == 77),
    "ORDER BY coalesce() of max()": lambda m: (
        select(m.Ware.sold, func.count())
        .group_by(m.Ware.sold)
        .order_by(func.coalesce(func.max(m.Ware.big), 0), m.Ware.sold)
    ),
    "a count of groups, whose own options are ignored": lambda m: select(
        func.count()
    ).select_from(
        select(m.Ware.number)
        .options(with_loader_criteria(m.Ware, m.Ware.number > 1))
        .group_by(m.Ware.number)
        .subquery()
    ),
    "a count of groups that join a class of two tables": lambda m: select(
        func.count()
    ).select_from(
        select(m.Crate.exact, m.Shop.number)
        .select_from(m.Shop)
        .join(m.Crate, m.Crate.shop_id == m.Shop.id)
        .group_by(m.Crate.exact, m.Shop.number)
        .subquery()
    ),
    "sums of CASE": _groups(lambda w: func.sum(case((w.sold, w.number), else_=0))),
    "averages of comparisons": _groups(lambda w: func.avg(w.price > 1)),
    "largest id": _groups(lambda w: func.max(w.id)),
    "criteria of loaders": lambda m: (
        select(func.count(), func.max(m.Ware.number))
        .select_from(m.Ware)
        .options(with_loader_criteria(m.Ware, m.Ware.number < 2))
    ),
    "contains_eager": lambda m: (
        select(m.Ware.id, m.Shop.general)
        .join(m.Ware.shop)
        .order_by(m.Shop.id, m.Ware.id)
    ),
    "a bundle": lambda m: (
        select(Bundle("b", m.Ware.id, m.Ware.number))
        .order_by(m.Ware.number, m.Ware.id)
        .limit(5)
    ),
    "a bundle in GROUP BY and ORDER BY": lambda m: (
        select(m.Ware.number, m.Ware.sold, func.count())
        .group_by(bundle := Bundle("b", m.Ware.number, Bundle("c", m.Ware.sold)))
        .order_by(bundle)
    ),
    "LIMIT of an aggregate": lambda m: (
        select(func.count()).select_from(m.Ware).limit(0)
    ),
    "LIMIT of a literal": lambda m: (
        select(m.Ware.id).order_by(m.Ware.id).limit(literal(3))
    ),
    "count of a subquery": lambda m: select(func.count()).select_from(
        select(m.Ware).where(m.Ware.number > 0).subquery()
    ),
}


#: Counted, where each class has a condition.
_CONDITIONAL: dict[str, _Made] = {
    "distinct": lambda m: select(m.Ware.number).distinct(),
    "distinct functions": lambda m: select(func.abs(m.Ware.number)).distinct(),
    "distinct rows of an alias": lambda m: select(aliased(m.Ware).number).distinct(),
    "distinct, a column of the table first": lambda m: select(
        m.Ware.__table__.c.big, m.Ware.number
    ).distinct(),
    "distinct, from the table": lambda m: (
        select(m.Ware.number).select_from(m.Ware.__table__).distinct()
    ),
    "distinct entities": lambda m: select(m.Shop).distinct(),
    "distinct and LIMIT": lambda m: select(m.Ware.number).distinct().limit(2),
    "distinct of a join": lambda m: (
        select(m.Ware.number, m.Shop.number).join(m.Ware.shop).distinct()
    ),
    "distinct of an outer join": lambda m: (
        select(m.Shop.number).select_from(m.Shop).outerjoin(m.Shop.wares).distinct()
    ),
    "distinct of replaced columns": lambda m: (
        select(m.Ware)
        .select_from(m.Ware)
        .join(m.Ware.shop)
        .with_only_columns(m.Ware.number)
        .distinct()
    ),
    "distinct of two classes": lambda m: (
        select(func.coalesce(m.Ware.number, m.Shop.number))
        .where(m.Ware.shop_id == m.Shop.id)
        .distinct()
    ),
    "groups": lambda m: select(m.Ware.number).group_by(m.Ware.number),
    "groups and counts": lambda m: select(m.Ware.number, func.count()).group_by(
        m.Ware.number
    ),
    "counts alone": lambda m: select(func.count(m.Ware.id)).group_by(m.Ware.number),
    "HAVING": lambda m: (
        select(m.Ware.number).group_by(m.Ware.number).having(func.count() > 1)
    ),
}

#: The same where SQLAlchemy would lose the conditions with the columns.
_HIDDEN_CLASSES: dict[str, _Made] = {
    "a joined table": lambda m: (
        select(m.Ware.number, m.Shop.number)
        .join(m.Shop.__table__, m.Ware.shop_id == m.Shop.id)
        .distinct()
    ),
    "replaced columns": lambda m: (
        select(m.Ware).join(m.Ware.shop).with_only_columns(m.Ware.number).distinct()
    ),
    "a join in select_from()": lambda m: (
        select(m.Ware.number, m.Shop.number)
        .select_from(join(m.Ware, m.Shop, m.Ware.shop_id == m.Shop.id))
        .distinct()
    ),
}


def _counted(m: Any, rows: Any) -> Any:
    """Count the rows of a SELECT; some rows of each class are hidden."""
    made: Any = with_loader_criteria
    return (
        select(func.count())
        .select_from(rows.subquery())
        .options(
            *(
                made(entity, entity.number < 2, include_aliases=True)
                for entity in (m.Ware, m.Shop)
            )
        )
    )


#: Several counts of distinct values: those of ids are of one shard each.
_COUNTS: dict[str, Callable[[Any], Sequence[Any]]] = {
    "an id last": lambda m: (
        func.count(distinct(m.Mark.number)),
        func.count(distinct(m.Mark.ware_id)),
    ),
    "an id first": lambda m: (
        func.count(distinct(m.Mark.ware_id)),
        func.count(distinct(m.Mark.number)),
        func.count(),
        func.sum(m.Mark.number),
        func.avg(m.Mark.number),
    ),
    "two ids": lambda m: (
        func.count(distinct(m.Ware.id)),
        func.count(distinct(m.Mark.ware_id)),
        func.count(distinct(m.Mark.name)),
    ),
    "a computation": lambda m: (
        func.count(distinct(m.Ware.id)) - func.count(distinct(m.Mark.number)),
    ),
}


#: Statements with another result on one database than on shards; each once
#: returned a wrong one.
_REFUSED: dict[str, tuple[str, _Made]] = {
    "DISTINCT by another alias": (
        "DISTINCT",
        lambda m: _pairs(
            m,
            lambda a, b: select(a.number).select_from(a).distinct().order_by(b.number),
        ),
    ),
    "a label that is a column in GROUP BY": (
        "GROUP BY",
        lambda m: select((m.Ware.number % 2).label("number"), func.count()).group_by(
            "number"
        ),
    ),
    "a column's position": (
        "ORDER BY",
        lambda m: select(m.Ware.id, m.Ware.number).order_by(literal(2)),
    ),
    "a column's position in GROUP BY": (
        "GROUP BY",
        lambda m: select(m.Ware.number).group_by(literal(1)),
    ),
    "coalesce() of max() of texts": (
        "ORDER BY",
        lambda m: (
            select(m.Ware.number)
            .group_by(m.Ware.number)
            .order_by(func.coalesce(func.max(m.Ware.uca), "x"))
        ),
    ),
    "LIMIT below nothing": (
        "LIMIT",
        lambda m: select(m.Ware.id).order_by(m.Ware.id).limit(-1),
    ),
}

#: Texts of which the types of the statement do not tell.
_MISTAKEN: dict[str, _Made] = {
    "type_coerce()": _by(lambda w: type_coerce(w.uca, Integer)),
    "max() of type_coerce()": lambda m: select(
        func.max(type_coerce(m.Ware.uca, Integer))
    ),
    "coalesce() in GROUP BY": lambda m: select(func.count(m.Ware.id)).group_by(
        func.coalesce(m.Ware.number, m.Ware.general)
    ),
    "CASE": _by(lambda w: case((w.number > 1, w.number), else_=w.uca)),
    "max() of CASE": lambda m: select(
        func.max(case((m.Ware.number > 1, m.Ware.number), else_=m.Ware.uca))
    ),
}


#: Conditions that look at groups of all shards.
_HAVING: dict[str, Callable[[Any], Any]] = {
    "count": lambda w: func.count() > 3,
    "a column": lambda w: w.number > 0,
    "a comparison of two": lambda w: func.sum(w.number) >= func.count(),
    "sum": lambda w: func.sum(w.price) > Decimal("1.25"),
    "sum and float": lambda w: func.sum(w.price) > 0.5,
    "max": lambda w: func.max(w.big) >= func.min(w.big),
    "min": lambda w: func.min(w.price) == Decimal(0),
    "BETWEEN": lambda w: func.count(w.shop_id).between(2, 4),
    "NOT BETWEEN": lambda w: ~func.count(w.shop_id).between(2, 4),
    "IS NULL": lambda w: func.sum(w.price).is_(None),
    "IS NOT NULL": lambda w: func.max(w.big).is_not(None),
    "no key": lambda w: w.number.is_(None),
    "NOT of columns": lambda w: not_(and_(w.number > 1, w.number < 3)),
    "a parameter": lambda w: bindparam("n", 3) < func.count(),
    "CASE": lambda w: func.sum(case((w.sold, 1), else_=0)) > 1,
    "distinct ids": lambda w: func.count(distinct(w.id)) > 3,
    "an average": lambda w: func.avg(w.price) > 1,
    "an average of quotients": lambda w: func.avg(w.price / 3) > Decimal("0.77"),
    "an average of quotients, or another": lambda w: or_(
        func.avg(w.number / (w.price + 9)).between(0.01, 0.07), func.count() > 3
    ),
    "a sum of floats": lambda w: func.sum(w.weight) > 1,
    "an average of quotients of floats": lambda w: (
        func.avg(w.weight / 2) > func.min(2 / w.weight)
    ),
    "arithmetic": lambda w: func.count() + 1 > 2,
}

#: Values that servers compute with in another form than they return.
_NO_HAVING: dict[str, Callable[[Any], Any]] = {
    "a quotient": lambda w: func.max(w.price / 3) > 1,
    "a text": lambda w: func.max(w.uca) > "a",
    "a date": lambda w: func.max(w.day) > dt.date(2020, 1, 1),
}


#: Conditions on what a group has in common, with what it is grouped by.
_HAVING_COMMON: dict[str, tuple[_Made, _Made]] = {
    "a text": (lambda g: g.word, lambda g: g.word > "a"),
    "a number": (lambda g: g.number, lambda g: g.number.in_([1, 2])),
    "a number or a count": (
        lambda g: g.number,
        lambda g: or_(g.number == 1, func.count() > 1),
    ),
    "a decimal": (lambda g: g.price, lambda g: g.price >= Decimal("0.5")),
    "a double": (lambda g: g.weight, lambda g: g.weight.between(0, 2)),
    "a flag": (lambda g: g.sold, lambda g: g.sold.is_(True)),
    "a day": (lambda g: g.day, lambda g: g.day < dt.date(2020, 1, 1)),
    "an enum": (lambda g: g.colour, lambda g: g.colour.is_not(None)),
    "a reference": (lambda g: g.ware_id, lambda g: g.ware_id.is_not(None)),
    "none": (lambda g: g.number, lambda g: g.number.is_(None)),
    "a function": (lambda g: func.lower(g.word), lambda g: func.lower(g.word) != "a"),
    "arithmetic": (lambda g: g.number % 2, lambda g: g.number % 2 + 1 == 2),
    "a computation with one": (lambda g: g.number, lambda g: g.number % 2 > 0),
}


#: Functions of one row, in SELECT, ORDER BY and GROUP BY.
_FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "if()": lambda w: func.if_(w.number > 1, w.number, 0),
    "if() of texts": lambda w: func.if_(w.number > 1, w.exact, "none"),
    "greatest()": lambda w: func.greatest(w.number, 1),
    "least() of decimals": lambda w: func.least(w.price, w.number),
    "least() of doubles": lambda w: func.least(w.weight, w.number),
    "least() of times": lambda w: func.least(w.moment, func.now()),
    "ifnull()": lambda w: func.ifnull(w.number, 7),
    "coalesce() of functions": lambda w: func.coalesce(func.abs(w.number), 9),
    "timestampdiff()": lambda w: func.timestampdiff(text("MINUTE"), w.day, w.moment),
    "last_day()": lambda w: func.last_day(w.day),
    "year()": lambda w: func.year(w.moment),
    "date_format()": lambda w: func.date_format(w.moment, "%Y-%m"),
    "extract()": lambda w: extract("month", w.moment),
    "mid()": lambda w: func.mid(w.exact, 1, 1),
    "sin()": lambda w: func.sin(w.number),
}


def _having(m: Any, condition: Any) -> Any:
    return (
        select(m.Ware.number, func.count())
        .group_by(m.Ware.number)
        .having(condition)
        .order_by(m.Ware.number)
    )


def _random_condition(rng: random.Random, depth: int) -> Any:
    """Return a condition of a class, made of those above."""
    how = rng.choice(["one", "not", "and", "or"]) if depth else "one"
    if how == "one":
        return rng.choice(list(_HAVING.values()))
    first = _random_condition(rng, depth - 1)
    if how == "not":
        return lambda w: not_(first(w))
    second = _random_condition(rng, depth - 1)
    join = and_ if how == "and" else or_
    return lambda w: join(first(w), second(w))


class _LeastOf:
    """The least of a group, by the names of a class's columns.

    Servers let HAVING look at aggregates, and at columns that are shown.
    """

    def __init__(self, class_: Any) -> None:
        self.class_ = class_

    def __getattr__(self, key: str) -> Any:
        return func.min(getattr(self.class_, key))


def _comparable(row: Sequence[Any]) -> tuple[Any, ...]:
    # SQLite makes a double of a decimal.
    return tuple(
        f"{float(value):.12g}" if isinstance(value, Decimal) else value for value in row
    )


class MergedCorners:
    """``compared`` comes from the test module."""

    #: Random ones.
    conditions = 100

    @pytest.mark.parametrize("name", _ANSWERED)
    def test_one_answer(self, compared, name):
        want = compared.plain.execute(_ANSWERED[name](PLAIN)).all()
        made = _ANSWERED[name](SHARDED).options(scatter())
        with compared.cluster.session() as session:
            got = session.execute(made).all()
        assert same_rows(got, want), (got, want)
        assert len(got) or "LIMIT" in name

    @pytest.mark.parametrize("name", _REFUSED)
    def test_no_wrong_answer(self, compared, name):
        construct, make = _REFUSED[name]
        self._refused(compared, construct, make(SHARDED))

    @pytest.mark.parametrize("name", _MISTAKEN)
    def test_texts_are_not_compared_as_python_does(self, compared, name):
        if compared.dialect == "sqlite":
            pytest.skip("there texts compare as in Python")
        self._refused(compared, "cast()", _MISTAKEN[name](SHARDED))

    @pytest.mark.parametrize("name", _CONDITIONAL)
    def test_counted_rows_have_the_conditions_of_classes(self, compared, name):
        made = _CONDITIONAL[name]
        want = compared.plain.scalar(_counted(PLAIN, made(PLAIN)))
        statement = _counted(SHARDED, made(SHARDED)).options(scatter())
        with compared.cluster.session() as session:
            assert session.scalar(statement) == want
            counted = select(func.count()).select_from(made(SHARDED).subquery())
            everything = session.scalar(counted.options(scatter()))
        assert want
        assert want < everything or "LIMIT" in name

    @pytest.mark.parametrize("name", _HIDDEN_CLASSES)
    def test_no_condition_of_a_class_is_lost(self, compared, name):
        made = _HIDDEN_CLASSES[name]
        self._refused(compared, "JOIN", _counted(SHARDED, made(SHARDED)))
        want, statement = (
            select(func.count()).select_from(made(m).subquery())
            for m in (PLAIN, SHARDED)
        )
        with compared.cluster.session() as session:
            got = session.scalar(statement.options(scatter()))
        assert got == compared.plain.scalar(want)

    @pytest.mark.parametrize("grouped", [False, True])
    @pytest.mark.parametrize("name", _COUNTS)
    def test_several_counts_of_distinct_values(self, compared, name, grouped):
        def made(m):
            on = m.Mark.ware_id == m.Ware.id
            shown = select(*_COUNTS[name](m))
            if grouped:
                by = m.Ware.sold
                shown = shown.add_columns(by).group_by(by).order_by(by)
            return shown.select_from(m.Ware).join(m.Mark, on)

        want = compared.plain.execute(made(PLAIN)).all()
        with compared.cluster.session() as session:
            statement = made(SHARDED).options(scatter())
            got = session.execute(statement).all()
        assert same_rows(got, want), (got, want)

    def _refused(self, compared, construct, made):
        with (
            compared.cluster.session() as session,
            pytest.raises(ScatterUnsupportedError) as caught,
        ):
            session.execute(made.options(scatter())).all()
        assert caught.value.construct == construct

    @pytest.mark.parametrize("name", _HAVING)
    def test_having(self, compared, name):
        self._same_groups(compared, _HAVING[name])

    def test_random_having(self, compared, rng):
        shown = sum(
            self._same_groups(compared, _random_condition(rng, 3))
            for _ in range(self.conditions)
        )
        assert shown > self.conditions / 2

    def _same_groups(self, compared, condition):
        made = _having(PLAIN, condition(PLAIN.Ware))
        want = compared.plain.execute(made).all()
        made = _having(SHARDED, condition(SHARDED.Ware)).options(scatter())
        with compared.cluster.session() as session:
            got = session.execute(made).all()
            limited = session.execute(made.limit(2)).all()
        assert got == want, made
        assert limited == want[:2]
        return len(want)

    @pytest.mark.parametrize("where", ["one shard", "all shards"])
    @pytest.mark.parametrize("name", _HAVING_COMMON)
    def test_having_of_what_groups_have_in_common(self, compared, name, where):
        ids = compared.rows.ids["Gem"]
        if where == "one shard":
            shard = unpack(ids[0]).shard_id
            ids = [i for i in ids if unpack(i).shard_id == shard]
        by, condition = _HAVING_COMMON[name]

        def made(gem, condition, *shown):
            return (
                select(*shown, func.count())
                .where(gem.id.in_(ids))
                .group_by(by(gem))
                .having(condition)
            )

        gem = PLAIN.Gem
        wanted = made(gem, condition(_LeastOf(gem)), by(gem))
        want = compared.plain.execute(wanted).all()
        gem = SHARDED.Gem
        with compared.cluster.session() as session:
            statement = made(gem, condition(gem), by(gem)).options(scatter())
            got = session.execute(statement).all()
            statement = made(gem, condition(gem)).options(scatter())
            counts = session.execute(statement).all()
            labelled = by(gem).label("shown")
            statement = (
                select(labelled)
                .where(gem.id.in_(ids))
                .group_by("shown")
                .having(condition(gem))
            )
            shown = session.execute(statement.options(scatter())).all()
            inner = made(gem, condition(gem), by(gem).label("shown"))
            counted = select(func.count()).select_from(inner.subquery())
            assert session.scalar(counted.options(scatter())) == len(want)
        assert Counter(map(_comparable, got)) == Counter(map(_comparable, want))
        assert Counter(counts) == Counter((n,) for _, n in want)
        assert Counter(map(_comparable, shown)) == Counter(
            _comparable(row[:1]) for row in want
        )

    @pytest.mark.parametrize("negated", [False, True])
    @pytest.mark.parametrize("field", ["word", "number", "price", "sold", "day"])
    def test_groups_of_a_subquery(self, compared, field, negated):
        """MySQL compares the column of the subquery in HAVING."""
        ids = compared.rows.ids["Gem"]
        shard = unpack(ids[0]).shard_id
        ids = [i for i in ids if unpack(i).shard_id == shard]

        def made(gem):
            other = aliased(gem)
            by = getattr(other, field)
            often = select(by).where(other.id.in_(ids), by.is_not(None)).group_by(by)
            often = often.having(func.count() > 1)
            named = getattr(gem, field)
            among = named.not_in(often) if negated else named.in_(often)
            return select(func.count()).where(gem.id.in_(ids), among)

        want = compared.plain.scalar(made(PLAIN.Gem))
        with compared.cluster.session() as session:
            assert session.scalar(made(SHARDED.Gem)) == want

    @pytest.mark.parametrize("where", ["one shard", "all shards"])
    def test_columns_that_compute_with_what_groups_have_in_common(
        self, compared, where
    ):
        ids = compared.rows.ids["Gem"]
        if where == "one shard":
            shard = unpack(ids[0]).shard_id
            ids = [i for i in ids if unpack(i).shard_id == shard]

        def made(gem, key, *shown):
            found = select(*shown, func.count()).where(gem.id.in_(ids))
            return found.group_by(key).options(*more)

        for by, shown in (
            (lambda g: g.number, lambda g: (g.number + 1).label("n")),
            (lambda g: g.number, lambda g: func.sum(g.number) + g.number),
            (lambda g: g.word, lambda g: func.lower(g.word)),
            (lambda g: g.number, lambda g: case((g.number > 1, 2), else_=3)),
        ):
            gem, more = PLAIN.Gem, []
            want = compared.plain.execute(made(gem, by(gem), shown(gem))).all()
            gem, more = SHARDED.Gem, [scatter()]
            with compared.cluster.session() as session:
                statement = made(gem, by(gem), shown(gem))
                assert Counter(session.execute(statement)) == Counter(want)

    @pytest.mark.parametrize("name", _NO_HAVING)
    def test_having_that_is_not_exact(self, compared, name):
        condition = _NO_HAVING[name](SHARDED.Ware)
        made = _having(SHARDED, condition)
        self._refused(compared, "a computation", made)

    def test_having_is_explained(self, compared):
        made = _having(SHARDED, func.count() > 3).options(scatter())
        found = compared.cluster.explain(made)
        assert any("keep those with count(*) >" in one for one in found.merge)
        text, _ = found.sent[0].statements[0]
        assert "HAVING" not in text

    @pytest.mark.parametrize("by", ["label", "name"])
    def test_groups_by_the_label_of_an_id(self, compared, by):
        ware = SHARDED.Ware
        whole = ware.id.label("whole")
        made = select(whole, func.count(ware.id))
        made = made.group_by(whole if by == "label" else "whole")
        made = made.order_by(ware.id.desc()).options(scatter())
        stored = compared.plain.scalars(select(PLAIN.Ware.id))
        every = sorted(stored, reverse=True)
        for ids in (every, every[:1], every[:3]):
            with compared.cluster.session() as session:
                found = session.execute(made.where(ware.id.in_(ids))).all()
            assert found == [(one, 1) for one in ids]

    def test_functions_that_are_not_known_are_named(self, compared):
        made = select(SHARDED.Ware.id).order_by(func.median(SHARDED.Ware.big))
        with (
            compared.cluster.session() as session,
            pytest.raises(ScatterUnsupportedError, match=r"median\(\) may"),
        ):
            session.execute(made.options(scatter()))

    def test_eager_loads_follow_the_order(self, compared):
        def read(session, m, *options):
            made = (
                select(m.Shop)
                .join(m.Shop.wares)
                .order_by(m.Ware.number, m.Ware.id)
                .options(
                    contains_eager(m.Shop.wares).joinedload(m.Ware.shop),
                    joinedload(m.Shop.wares, m.Ware.marks),
                )
            )
            found = session.scalars(made.options(*options)).unique()
            return [(s.id, [w.id for w in s.wares]) for s in found]

        compared.plain.expunge_all()
        want = read(compared.plain, PLAIN)
        with compared.cluster.session() as session:
            assert read(session, SHARDED, scatter()) == want

    def test_functions_of_one_row(self, compared):
        if compared.dialect == "sqlite":
            pytest.skip("field() is of MySQL")

        def made(m):
            rank = func.field(m.Ware.number, 3, 1, 2)
            return select(m.Ware.id, rank).order_by(rank, m.Ware.id)

        want = compared.plain.execute(made(PLAIN)).all()
        with compared.cluster.session() as session:
            got = session.execute(made(SHARDED).options(scatter())).all()
        assert got == want

    @pytest.mark.parametrize("name", _FUNCTIONS)
    def test_functions_of_mysql(self, compared, name):
        if compared.dialect == "sqlite":
            pytest.skip("they are of MySQL")

        def made(m):
            shown = _FUNCTIONS[name](m.Ware)
            rows = select(m.Ware.id, shown).order_by(shown.desc(), m.Ware.id)
            groups = select(shown, func.count()).group_by(shown)
            return rows.limit(9), groups.order_by(shown)

        with compared.cluster.session() as session:
            for plain, sharded in zip(made(PLAIN), made(SHARDED), strict=True):
                want = compared.plain.execute(plain).all()
                got = session.execute(sharded.options(scatter())).all()
                assert got == want

    def test_rows_that_are_drawn_at_random(self, compared):
        with compared.cluster.session() as session:
            ware = SHARDED.Ware
            ids = session.scalars(select(ware.id).options(scatter())).all()
            drawn = select(ware.id).order_by(func.random(), ware.id)
            drawn = drawn.options(scatter())
            many = [session.scalar(drawn.limit(1)) for _ in range(40)]
            assert len(set(many)) > 1
            assert set(many) <= set(ids)
            everything = session.scalars(drawn).all()
            assert sorted(everything) == sorted(ids)
            objects = select(ware).order_by(func.random()).limit(3)
            found = session.scalars(objects.options(scatter())).all()
            assert len(set(found)) == 3
            groups = select(ware.sold).group_by(ware.sold)
            groups = groups.order_by(func.random()).options(scatter())
            assert len(set(session.scalars(groups))) >= 2
            with pytest.raises(ScatterUnsupportedError, match="column"):
                session.scatter_page(drawn, 3)
            seeded = select(ware.id).order_by(func.rand(7)).options(scatter())
            with pytest.raises(ScatterUnsupportedError):
                session.execute(seeded)

    def test_a_row_at_random_is_of_a_shard_by_its_rows(self, compared):
        # One of 21 rows is on the first shard, 20 are on the second.
        first, second = (pack(shard, 11, 900) for shard in (5, 6))
        with compared.cluster.session(cross_shard="unordered") as session:
            shop = SHARDED.Shop
            session.add(shop(id=first, number=77))
            session.add_all([shop(id=second + k, number=77) for k in range(20)])
            session.flush()
            drawn = select(shop.id).where(shop.number == 77)
            drawn = drawn.order_by(func.random()).limit(1).options(scatter())
            alone = [session.scalar(drawn) for _ in range(120)].count(first)
            session.rollback()
        # 6 of 120; each shard's turn would be 60.  Less than one run in a
        # thousand million has so many.
        assert alone < 30

    def test_explain_takes_what_execute_does(self, compared):
        cluster = compared.cluster
        ware = SHARDED.Ware
        with cluster.session() as session:
            query = session.query(ware).options(scatter()).limit(3)
            assert cluster.explain(query).refusal is None
        found = cluster.explain(lambda_stmt(lambda: select(ware)))
        assert isinstance(found.refusal, NoShardKeyError)
        assert len(found.with_scatter.shards) == 32


cluster = PINS.on_backend()
compared = compared_rows()
plain_engine = plain_engine()
