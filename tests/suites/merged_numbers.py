"""Numbers of every kind: merged answers against those of one database.

Each statement is made of a seed, computes with columns of many scales and
types, and is answered by shards as by one database, to the last digit, or
refused.
"""

from __future__ import annotations

import math
import os
import random
from collections import Counter
from collections.abc import Callable, Sequence
from decimal import Context, Decimal
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import (
    BigInteger,
    case,
    cast,
    Double,
    Float,
    func,
    insert,
    Integer,
    Numeric,
    select,
    String,
)
from sqlalchemy.dialects import mysql
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.orm import aliased, DeclarativeBase, Mapped, mapped_column, Session
from sqlalchemy.types import NullType

from sqla_shard import Cluster, scatter
from sqla_shard.exc import ScatterUnsupportedError
from sqla_shard.types import ShardedId
from tests.models.clusters import PINS, plain_engine
from tests.models.layouts import LAYOUT, pack, unpack
from tests.suites.merged import report

#: Statements of a short run, and of one of hours.
SHORT = 400
LONG = 50_000

_COIN = 14
#: Two of one server, and one each of two others.
_SHARDS = (0, 1, 17, 31)
#: About servers' groups of nine digits, and those that people use.
_SCALES = (0, 1, 2, 4, 5, 8, 9, 13, 14, 18, 23, 30, 32)


class _Decimal(Numeric[Decimal]):
    """A DECIMAL with the most digits after the point that a server has."""


@compiles(_Decimal, "mysql")
def _decimal(element: _Decimal, compiler: Any, **kw: Any) -> str:
    if element.scale > 30 and not compiler.dialect.is_mariadb:
        return "DECIMAL(48, 30)"
    return str(compiler.visit_NUMERIC(element, **kw))


class _Numbers:
    """The columns of a coin that are no ids."""

    kind: Mapped[int | None]
    number: Mapped[int | None] = mapped_column(Integer)
    big: Mapped[int | None] = mapped_column(BigInteger)
    double: Mapped[float | None] = mapped_column(Double)
    single: Mapped[float | None] = mapped_column(Float)
    short: Mapped[float | None] = mapped_column(
        Float().with_variant(mysql.FLOAT(7, 2, asdecimal=False), "mysql")
    )
    fixed: Mapped[float | None] = mapped_column(
        Double().with_variant(mysql.DOUBLE(20, 3, asdecimal=False), "mysql")
    )
    word: Mapped[str | None] = mapped_column(String(20))


for _scale in _SCALES:
    setattr(_Numbers, f"n{_scale}", mapped_column(_Decimal(_scale + 18, _scale)))


class Base(DeclarativeBase):
    id_layout = LAYOUT


class Coin(_Numbers, Base):
    __tablename__ = "coins"

    id: Mapped[int] = mapped_column("local_id", ShardedId(_COIN), primary_key=True)


class PlainBase(DeclarativeBase):
    pass


class PlainCoin(_Numbers, PlainBase):
    __tablename__ = "coins"

    id: Mapped[int] = mapped_column("local_id", BigInteger, primary_key=True)


_DOUBLES = (0.0, 1.0, 0.5, 1.005, -2.675, 3.14159, 1234.5678, 0.001)
_SAMPLES: dict[str, tuple[Any, ...]] = {
    "kind": (1, 2, 3),
    "number": (0, 1, 1, 2, 3, 7, -5, 1000),
    "big": (1, 7, 2_600_000_000_000_000_000, 123_456_789_012),
    "double": (*_DOUBLES, 2.6e18, 1e-7),
    "single": (0.5, 1.1, 16777215.0, 12345.67, -0.25),
    "short": (0.25, 1.01, 12345.67, 99999.99, -0.1),
    "fixed": (0.125, 1.005, 12345.678, 9.87e15),
    "word": ("1.5", "x", "", "12"),
}


def _coin(shard: int, k: int, rng: random.Random) -> dict[str, Any]:
    def one(key: str) -> Any:
        return None if rng.randrange(8) == 0 else rng.choice(_SAMPLES[key])

    row = {key: one(key) for key in _SAMPLES}
    row["kind"] = rng.choice(_SAMPLES["kind"])
    for scale in _SCALES:
        value = rng.choice(
            [0, 1, 1, rng.randrange(-(10**6), 10**6), rng.randrange(10**15)]
        )
        number = Decimal(value).scaleb(-rng.choice([0, scale, scale]))
        null = rng.randrange(8) == 0
        row[f"n{scale}"] = None if null else number
    return {"id": pack(shard, _COIN, k), **row}


def compared_numbers() -> Any:
    """Return a fixture: both databases, filled with the same coins.

    The test module has fixtures ``cluster`` and ``plain_engine``.
    """

    @pytest.fixture(scope="module")
    def numbers(request: Any, cluster: Cluster, plain_engine: Any) -> Any:
        seed = request.config.getoption("hypothesis_seed")
        rng = random.Random(f"numbers {seed}")
        rows = [_coin(s, k, rng) for s in _SHARDS for k in range(1, 6)]
        cluster.create_all(Base.metadata)
        with cluster.begin(cross_shard="unordered") as session:
            session.execute(insert(Coin), rows)
        PlainBase.metadata.create_all(plain_engine)
        with Session(plain_engine) as plain:
            plain.execute(insert(PlainCoin), rows)
            plain.commit()
            yield SimpleNamespace(
                cluster=cluster,
                plain=plain,
                ids=[row["id"] for row in rows],
                dialect=plain_engine.dialect.name,
                is_mysql=plain_engine.dialect.name == "mysql"
                and not plain_engine.dialect.is_mariadb,
            )
            plain.rollback()

    return numbers


class NumberGrammar:
    """Makes one random statement of coins.

    :param rng: seeded alike for both classes.
    :param coin: the class.
    :param ids: what there is.
    :param dialect: ``sqlite`` or ``mysql``.
    """

    def __init__(
        self, rng: random.Random, coin: Any, ids: list[int], dialect: str
    ) -> None:
        self.rng = rng
        self.coin = coin
        self.ids = ids
        self.dialect = dialect

    def make(self) -> Any:
        kinds = ["rows", "distinct", "aggregates", "aggregates", "groups"]
        made = getattr(self, f"_{self.rng.choice(kinds)}")()
        if self.rng.randrange(3):
            # Of one shard alone a server answers in its own way.
            count = self.rng.randint(len(_SHARDS) + 1, len(self.ids))
            some = sorted(self.rng.sample(self.ids, count))
            made = made.where(self.coin.id.in_(some))
        return made

    # -- expressions

    def _column(self) -> Any:
        keys = [f"n{scale}" for scale in _SCALES]
        keys += ["number", "number", "n2", "n5", "n14", "big", "double"]
        keys += ["single", "short", "fixed"]
        return getattr(self.coin, self.rng.choice(keys))

    def _constant(self) -> Any:
        rng = self.rng
        return rng.choice(
            [
                rng.choice([1, 2, 3, 7]),
                Decimal(rng.randrange(1, 5000)).scaleb(-rng.choice([1, 2, 6])),
                rng.choice([0.5, 0.1, 1.5]),
            ]
        )

    def number(self, depth: int = 2) -> Any:
        """Return a number that is computed in some steps."""
        if depth == 0 or self.rng.randrange(4) == 0:
            return self._column()
        ways: list[Callable[[int], Any]] = [
            self._arithmetic,
            self._arithmetic,
            self._divided,
            self._divided,
            self._rounded,
            self._rounded,
            self._chosen,
            self._cast,
        ]
        if self.dialect != "sqlite":
            ways += [self._function, self._own_function, self._wide]
        return self.rng.choice(ways)(depth - 1)

    def _operand(self, depth: int) -> Any:
        if self.rng.randrange(3) == 0:
            return self._constant()
        return self.number(depth)

    def _arithmetic(self, depth: int) -> Any:
        one, other = self.number(depth), self._operand(depth)
        how = self.rng.randrange(5)
        if how == 4:
            return -one
        return [one + other, one - other, one * other, other * one][how]

    def _divided(self, depth: int) -> Any:
        one, other = self.number(depth), self._operand(depth)
        how = self.rng.randrange(6)
        if how == 0:
            return one % other
        return other / one if how == 1 else one / other

    def _rounded(self, depth: int) -> Any:
        value, places = self.number(depth), self.rng.choice([0, 1, 2, 5, 9])
        if self.dialect == "sqlite":
            return func.round(value, places)
        names = ["round", "round", "truncate", "ceil", "floor"]
        name = self.rng.choice(names)
        if name in ("ceil", "floor"):
            return getattr(func, name)(value)
        if self.rng.randrange(6) == 0:
            places = -places
        return getattr(func, name)(value, places)

    def _chosen(self, depth: int) -> Any:
        one, other = self.number(depth), self._operand(depth)
        how = self.rng.randrange(4)
        if how == 0:
            return func.nullif(one, other)
        if how == 1:
            return case((self.coin.kind > 1, one), else_=other)
        return func.coalesce(one, other)

    def _cast(self, depth: int) -> Any:
        value = self.number(depth)
        scale = self.rng.choice(_SCALES)
        types: list[Any] = [Numeric(max(30, 2 * scale), scale), Integer]
        if self.dialect != "sqlite":
            types += [Double, Float]
        return cast(value, self.rng.choice(types))

    def _function(self, depth: int) -> Any:
        one, other = self.number(depth), self._operand(depth)
        return self.rng.choice(
            [
                func.abs(one),
                func.greatest(one, other),
                func.least(one, other),
                getattr(func, "if")(self.coin.kind > 1, one, other),
                func.mod(one, other),
                func.sign(one),
            ]
        )

    def _own_function(self, depth: int) -> Any:
        one = self.number(depth)
        return self.rng.choice(
            [
                func.sqrt(func.abs(one)),
                func.pow(self.coin.kind, 2),
                func.char_length(self.coin.word),
                self.coin.number + func.ln(self.coin.kind),
            ]
        )

    def _wide(self, depth: int) -> Any:
        return self.rng.choice(_wide(self.coin))

    def text(self) -> Any:
        """Return a text that is made of a number."""
        value = self.number(1)
        return self.rng.choice(
            [
                cast(value, String),
                func.coalesce(cast(value, String), self.coin.word),
                func.lower(cast(value, String(60))),
                cast(value, String) + "|",
            ]
        )

    # -- productions

    def _rows(self) -> Any:
        shown = [
            self.text() if self.rng.randrange(4) == 0 else self.number()
            for _ in range(self.rng.randint(1, 3))
        ]
        columns = [e.label(f"c{at}") for at, e in enumerate(shown)]
        id_ = self.coin.id
        statement = select(id_, *columns).order_by(id_)
        if self.rng.randrange(2):
            statement = statement.limit(self.rng.choice([1, 3, 10, 50]))
        return statement

    def _distinct(self) -> Any:
        return select(self._key().label("c0")).distinct()

    def _key(self) -> Any:
        """Return the key of groups, in its displayed form."""
        coin = self.coin
        places = self.rng.choice([0, 1])
        return self.rng.choice(
            [
                # Each group is of one shard, which computes its average.
                coin.id,
                coin.kind,
                coin.number,
                coin.n2,
                coin.n5,
                coin.n2 * 2,
                func.round(coin.n2, places),
                cast(coin.n2, Numeric(20, 1)),
                func.coalesce(coin.n1, 0),
            ]
        )

    def _aggregate(self) -> Any:
        value = self.number()
        names = ["sum", "sum", "sum", "avg", "avg", "avg", "min", "max"]
        name = self.rng.choice([*names, "count"])
        if self.rng.randrange(12) == 0 and name in ("min", "max"):
            return getattr(func, name)(cast(value, Numeric(40, 10)))
        found = getattr(func, name)(value)
        if self.rng.randrange(4) == 0:
            other = self.rng.choice([0, 1, Decimal("0.5"), 0.5, "n/a"])
            # As the server returns it: SQLAlchemy converts both results
            # alike.
            found = func.coalesce(found, other, type_=NullType())
        return found

    def _aggregates(self) -> Any:
        count = self.rng.randint(1, 3)
        shown = [self._aggregate() for _ in range(count)]
        columns = [e.label(f"c{at}") for at, e in enumerate(shown)]
        return select(*columns)

    def _groups(self) -> Any:
        key = self._key().label("k")
        count = self.rng.randint(1, 2)
        shown = [self._aggregate() for _ in range(count)]
        columns = [e.label(f"c{at}") for at, e in enumerate(shown)]
        statement = select(key, *columns).group_by(key).order_by(key)
        if self.rng.randrange(5) == 0:
            statement = statement.having(func.sum(self.coin.n2) > 1)
        if self.rng.randrange(3) == 0:
            statement = statement.limit(self.rng.choice([1, 2, 5]))
        return statement


#: Statements with the same result on one database and on shards.
_NAMED: dict[str, Callable[[Any], Any]] = {
    "sum of quotients": lambda c: select(func.sum(c.number / 3)),
    "avg of quotients": lambda c: select(func.avg(c.n2 / 7)),
    # Of one place: with four more, and four for the average, nine are cut off.
    "avg of quotients of one place": lambda c: select(
        *(func.avg(c.n1 / n) for n in (3, 7, 11, 13, 17, 19))
    ),
    "sum of money by quotients": lambda c: select(func.sum(c.n2 / c.n5)),
    "avg of money or nothing": lambda c: select(
        func.avg(func.coalesce(c.n2, 0) / c.kind),
        func.avg(case((c.kind > 1, c.n4), else_=0) / 3),
    ),
    "sum of averages": lambda c: select(func.sum(c.n1 / 3 + c.n14 / 7)),
    "groups of quotients": lambda c: (
        select(c.kind, func.sum(c.number / 3), func.avg(c.n2 / 7))
        .group_by(c.kind)
        .order_by(c.kind)
    ),
    **{
        f"avg of scale {scale}": lambda c, scale=scale: select(
            func.avg(getattr(c, f"n{scale}"))
        )
        for scale in _SCALES
    },
    "avg of more than 64 bits": lambda c: select(func.avg(c.big * 0 + 4 * 10**18)),
    "rounded doubles": lambda c: select(
        func.sum(func.round(c.double, 2)), func.avg(func.round(c.double, 2))
    ),
    "FLOAT(7, 2)": lambda c: select(func.sum(c.short), func.avg(c.short)),
    "max of FLOAT": lambda c: select(
        func.max(cast(c.big, Float)), func.max(func.nullif(c.single, 1))
    ),
    "rounded rows": lambda c: select(
        c.id, func.round(c.double), func.round(c.fixed, 1)
    ).order_by(c.id),
    "texts of doubles": lambda c: select(
        c.id, cast(c.short, String), cast(c.double / 3, String)
    ).order_by(c.id),
    "coalesce of count": lambda c: _otherwise(func.count(c.number)),
    "coalesce of sum": lambda c: _otherwise(func.sum(c.number)),
    "coalesce of avg": lambda c: _otherwise(func.avg(c.n5)),
    "coalesce of a sum of quotients": lambda c: _otherwise(func.sum(c.number / 3)),
    "coalesce of max": lambda c: _otherwise(func.max(c.n14)),
    "max by a quotient, in groups": lambda c: (
        select(c.kind, func.max(_too_large(c)), func.min(_too_large(c)))
        .group_by(c.kind)
        .order_by(c.kind)
    ),
    "coalesce of max by a quotient, in groups": lambda c: (
        select(c.kind, func.coalesce(func.max(_too_large(c)), 0.5))
        .group_by(c.kind)
        .order_by(c.kind)
    ),
    "sum by a quotient, in groups": lambda c: (
        select(c.kind, func.sum(_too_large(c)), func.avg(_too_large(c)))
        .group_by(c.kind)
        .order_by(c.kind)
    ),
    "rows by a quotient": lambda c: select(c.id, _too_large(c)).order_by(c.id),
    "rows of mixed scales": lambda c: select(
        c.id, func.coalesce(c.n2 / 7, c.n14), func.coalesce(c.n14, c.n2 / 7)
    ).order_by(c.id),
}
#: Those of servers only.
_ON_SERVERS: dict[str, Callable[[Any], Any]] = {
    "ceil, floor and truncate": lambda c: (
        select(c.id, func.ceil(c.double), func.floor(c.fixed))
        .add_columns(func.truncate(c.double, 0))
        .order_by(c.id)
    ),
    "a decimal that is too long for its type": lambda c: select(
        c.id, c.n14 / c.n30
    ).order_by(c.id),
    "texts of long decimals": lambda c: select(
        c.id, cast(c.n23 * c.n18, String) + "|"
    ).order_by(c.id),
    "extremes of arithmetic with functions": lambda c: select(
        func.max(-func.ceil(c.n2)),
        func.min(func.round(c.n5, 2) * 2 / func.abs(c.n2)),
        func.max(func.abs(c.double) % 3),
    ),
    "groups of arithmetic with functions": lambda c: (
        select(func.round(c.n2, 1) * 2, func.count())
        .group_by(func.round(c.n2, 1) * 2)
        .order_by(func.round(c.n2, 1) * 2)
    ),
    "sum of greatest": lambda c: select(func.sum(func.greatest(c.n5 / 3, c.n2))),
    "sum of IF": lambda c: select(
        func.sum(getattr(func, "if")(c.kind > 1, c.n2 / 3, 0))
    ),
    "sum of mod": lambda c: select(func.sum(c.n5 / 3 % c.kind)),
}


def _wide(coin: Any) -> list[Any]:
    """Return functions of more digits than a server declares.

    On MariaDB, but for the last: MySQL declares a YEAR.
    """
    day = func.from_days(coin.kind + 3_600_000)
    few = [Decimal("0.5")] * 100
    return [
        func.ascii(func.concat("\u20ac", coin.kind)),
        func.bit_count(-coin.kind),
        func.field(coin.kind, *few, 1, 2, 3),
        func.find_in_set(coin.kind, f"{',' * 100}1,2,3"),
        func.hour(func.sec_to_time(coin.kind * 999_999)),
        func.interval(coin.kind, *range(-120, 2)),
        func.ord(func.concat("\U0001f600", coin.kind)),
        func.period_add(202611, coin.kind),
        func.period_diff(999912, coin.kind + 7000),
        func.to_days(day),
        func.to_seconds(day),
        func.yearweek(day),
        func.year(day),
    ]


_ON_SERVERS["functions of few declared digits"] = lambda c: select(
    c.id, *_wide(c)
).order_by(c.id)
# Shards never share the statement of an ord() on MariaDB, or of a year() on MySQL.
_ON_SERVERS["avg of functions of few declared digits"] = lambda c: (
    select(c.id, *(func.avg(w) for w in _wide(c) if w.name not in ("ord", "year")))
    .group_by(c.id)
    .order_by(c.id)
)
_ON_SERVERS["quotients of functions of few declared digits"] = lambda c: select(
    c.id, *(wide / 3 for wide in _wide(c))
).order_by(c.id)
_ON_SERVERS["extremes of functions of few declared digits"] = lambda c: (
    select(c.kind, *map(func.max, _wide(c))).group_by(c.kind).order_by(c.kind)
)
_ON_SERVERS["extremes of arithmetic with such functions"] = lambda c: select(
    *(func.max(wide + c.kind) for wide in _wide(c)),
    *(func.min(func.round(wide, 2)) for wide in _wide(c)),
)
_ON_SERVERS["times that are made of numbers"] = lambda c: (
    select(
        c.kind,
        func.max(func.sec_to_time(c.double)),
        func.min(func.sec_to_time(c.n2)),
        func.max(func.nullif(func.from_days(c.kind + 740_000), c.word)),
        func.min(func.nullif(func.sec_to_time(c.number), c.kind)),
    )
    .group_by(c.kind)
    .order_by(c.kind)
)
_ON_SERVERS["functions of few declared digits, or others"] = lambda c: select(
    c.id, *(func.coalesce(wide, Decimal("0.5")) for wide in _wide(c))
).order_by(c.id)


#: Statements that are refused if only the server knows a last digit.
_OPEN: dict[str, Callable[[Any], Any]] = {
    "avg of what is equal": lambda c: select(
        func.avg((c.n32 - c.n32) - c.n18), func.avg(c.n5 - (c.n23 - c.n23))
    ),
    "avg of quotients of unlike numbers": lambda c: select(
        func.avg(func.coalesce(c.kind, c.n18) / c.n5),
        func.avg(func.coalesce(c.kind, c.n14) / 7),
    ),
    "sum of a long product": lambda c: select(
        func.sum(func.coalesce(c.n32, c.n5) * func.coalesce(c.n13, c.n14))
    ),
    # Of two that are equal in all digits that are seen.
    "coalesce of min of a quotient": lambda c: (
        select(c.kind, func.coalesce(func.min(c.number / c.n18), 0.5, type_=NullType()))
        .group_by(c.kind)
        .order_by(c.kind)
    ),
}


def _too_large(coin: Any) -> Any:
    """Return some 10**8, whose type has seven digits before the point.

    The divisor is thought to be a millionth or more.
    """
    kind = cast(coin.kind, Numeric(3, 2))
    return cast(coin.kind, Numeric(1, 0)) / (kind / 99_999_999)


def _otherwise(aggregate: Any) -> Any:
    """Show an aggregate with values of several types in place of NULL."""
    others = ["x", 0, 0.5, Decimal("0.12345678")]
    if "count" in str(aggregate) or "max" in str(aggregate):
        others = ["x", 0]
    return select(
        *(
            func.coalesce(aggregate, other, type_=NullType()).label(f"c{at}")
            for at, other in enumerate(others)
        )
    )


class MergedNumbers:
    """Compares answers; ``numbers`` comes from the test module."""

    statements = SHORT

    @pytest.mark.parametrize("name", [*_NAMED, *_ON_SERVERS])
    def test_one_answer(self, numbers, name):
        if name in _ON_SERVERS and numbers.dialect == "sqlite":
            pytest.skip("SQLite has no such function")
        make = _NAMED.get(name) or _ON_SERVERS[name]
        assert _compare(numbers, make, name) == "equal"

    @pytest.mark.parametrize("name", _OPEN)
    def test_no_other_answer(self, numbers, name):
        found = _compare(numbers, _OPEN[name], name)
        assert found in ("equal", "avg()", "sum()", "min()")

    def test_numbers_are_equal_or_refused(self, numbers, rng, say):
        count = self.statements
        if os.environ.get("SQLA_SHARD_SOAK") == "1":
            count = LONG
        counts: Counter[str] = Counter()
        for _ in range(count):
            counts[compare(numbers, rng.randrange(1 << 48))] += 1
        report(type(self).__name__, counts, say)
        assert counts["equal"] > 0.6 * count


def compare(numbers: Any, seed: int) -> str:
    """Compare the answers to the statement of a seed; say how that went."""

    def make(coin: Any) -> Any:
        rng = random.Random(seed)
        grammar = NumberGrammar(rng, coin, numbers.ids, numbers.dialect)
        return grammar.make()

    return _compare(numbers, make, f"seed {seed}")


def _compare(numbers: Any, make: Callable[[Any], Any], name: str) -> str:
    wanted = _grouped_by_sorting(numbers, make(PlainCoin))
    try:
        want = _ordered(wanted, numbers.plain.execute(wanted))
    except DBAPIError:
        numbers.plain.rollback()
        return "no SQL"
    label = f"{name}: {wanted}"
    try:
        with numbers.cluster.session() as session:
            found = session.execute(make(Coin).options(scatter()))
            got = _ordered(wanted, found)
    except ScatterUnsupportedError as error:
        return error.construct
    except DBAPIError as error:
        code = error.orig.args[0] if error.orig else None
        if code in _codes_of_shards(numbers, make):
            return "no SQL of a shard"
        raise AssertionError(f"{label}\nraises {error}") from error
    if numbers.is_mysql:
        # The column of a UNION has the places of the widest of its values.
        got, want = _without_zeros(got), _without_zeros(want)
    # Rows are sorted by an id or by a group, and are compared as they are.
    rows = "id" in wanted.selected_columns
    kinds: tuple[type, ...] = () if rows else (float,)
    if numbers.dialect == "sqlite":
        # There a decimal is a double as well.
        kinds = (float, Decimal)
    if not _alike(got, want, kinds):
        others = [] if rows else _in_other_orders(numbers, make)
        assert _alike(got, want, kinds, others), (
            f"{label}\nhas {got}\nin place of {want}\nor {others}"
        )
    return "equal" if want else "equal and empty"


def _grouped_by_sorting(numbers: Any, wanted: Any) -> Any:
    if numbers.dialect != "sqlite" and wanted._group_by_clauses:
        # Grouping in a temporary table, it would round each sum at each row.
        return wanted.prefix_with("SQL_BIG_RESULT")
    return wanted


def _ordered(statement: Any, found: Any) -> list[tuple[Any, ...]]:
    rows = [tuple(row) for row in found]
    return rows if statement._order_by_clauses else sorted(rows, key=repr)


def _codes_of_shards(numbers: Any, make: Callable[[Any], Any]) -> set[Any]:
    """Return what the one database raises of the rows of single shards.

    All rows need not raise it: LIMIT may leave out the one that does, and
    a sum may be too large before others are taken from it.
    """
    codes = set()
    for shard in _SHARDS:
        ids = [i for i in numbers.ids if unpack(i).shard_id == shard]
        rows = select(PlainCoin).where(PlainCoin.id.in_(ids))
        coin = aliased(PlainCoin, rows.subquery("coins"))
        try:
            numbers.plain.execute(make(coin)).all()
        except DBAPIError as error:
            numbers.plain.rollback()
            codes.add(error.orig.args[0] if error.orig else None)
    return codes


def _without_zeros(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    exact = Context(prec=100)
    return [
        tuple(
            value.normalize(exact) if isinstance(value, Decimal) else value
            for value in row
        )
        for row in rows
    ]


def _in_other_orders(
    numbers: Any, make: Callable[[Any], Any]
) -> list[list[tuple[Any, ...]]]:
    """Return the answers of the one database to rows in other orders.

    Sums of doubles depend on the order: where they cancel each other out, the
    results may have hardly a digit in common.
    """
    id_ = PlainCoin.id
    found = []
    for factor in (1, 2, 5, 77, 333, 700, 999, 1008):
        order = id_ % 1009 * factor % 1009
        # Without LIMIT the server would drop the ORDER BY.
        rows = select(PlainCoin).order_by(order).limit(len(numbers.ids))
        coin = aliased(PlainCoin, rows.subquery("coins"))
        wanted = _grouped_by_sorting(numbers, make(coin))
        found.append(_ordered(wanted, numbers.plain.execute(wanted)))
    return found


def _alike(
    got: list[tuple[Any, ...]],
    want: list[tuple[Any, ...]],
    kinds: tuple[type, ...],
    others: Sequence[list[tuple[Any, ...]]] = (),
) -> bool:
    """Compare answers.

    :param others: of the one database, to rows in other orders: their
        differences are allowed, too.
    """
    if len(got) != len(want):
        return False
    for at, row in enumerate(want):
        for column, value in enumerate(row):
            also = [other[at][column] for other in others]
            if not _same(got[at][column], value, kinds, also):
                return False
    return True


def _same(one: Any, other: Any, kinds: tuple[type, ...], also: Sequence[Any]) -> bool:
    """Compare two values; those of some types to twelve digits."""
    if type(one) is not type(other):
        return False
    if isinstance(one, kinds):
        known = [other, *(v for v in also if isinstance(v, type(other)))]
        spread = max(known) - min(known)
        return math.isclose(one, other, rel_tol=1e-12, abs_tol=max(1e-9, 4 * spread))
    if isinstance(one, Decimal) and one:
        # With all of their places, trailing zeros included.
        return one.compare_total(other) == 0
    if isinstance(one, Decimal):
        # Servers have a zero with a minus sign, and it is equal to others.
        return one.copy_abs().compare_total(other.copy_abs()) == 0
    if one == other:
        return True
    # The text of such a zero.
    zeros = isinstance(one, str) and not one.strip("-0.") and one.strip("-")
    return bool(zeros and one.strip("-") == other.strip("-"))


cluster = PINS.on_backend()
numbers = compared_numbers()
plain_engine = plain_engine()
