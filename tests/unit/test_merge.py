"""Rows of several shards, made one answer in Python."""

from __future__ import annotations

import gc
import itertools
import operator
import pickle
import random
import weakref
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy import Column, func, Integer, MetaData, select, Table, text

from sqla_shard import ShardedId
from sqla_shard.engine import scatter
from sqla_shard.engine.merge import (
    Coalesce,
    Constant,
    Extreme,
    First,
    GroupRule,
    Mean,
    Merge,
    OrderKey,
    Total,
)
from sqla_shard.engine.values import Fraction, Text
from sqla_shard.exc import ScatterLimitError, ScatterUnsupportedError
from sqla_shard.planning import plan, Spread
from sqla_shard.planning.elements import by_id_columns
from sqla_shard.planning.having import Compared


def test_runs_are_put_one_after_another() -> None:
    runs = [[(1, "a"), (2, "b")], [], [(0, "c")]]
    rows = Merge(hidden=1).rows(runs)
    assert rows == [("a",), ("b",), ("c",)]
    assert Merge(hidden=1, limit=2).rows(runs) == [("a",), ("b",)]
    assert Merge(limit=0).rows(runs) == []
    assert Merge(hidden=1, limit=2).rows([[], []]) == []


def test_one_run_is_sorted_already() -> None:
    run: list[Any] = [(3, "a"), (1, "b")]
    merge = Merge(hidden=1, keys=(OrderKey(First(0)),))
    assert merge.rows([run]) == [("a",), ("b",)]


@pytest.mark.parametrize(
    ("key", "want"),
    [
        (OrderKey(First(0)), [None, None, 1, 2, 3]),
        (OrderKey(First(0), descending=True), [3, 2, 1, None, None]),
        (OrderKey(First(0), nulls_last=True), [1, 2, 3, None, None]),
        (OrderKey(First(0), nulls_last=False), [None, None, 1, 2, 3]),
        (OrderKey(First(0), descending=True, nulls_last=True), [3, 2, 1, None, None]),
        (OrderKey(First(0), descending=True, nulls_last=False), [None, None, 3, 2, 1]),
    ],
)
def test_where_null_goes(key: OrderKey, want: list[Any]) -> None:
    for values in itertools.permutations([None, 1, 2, 3, None]):
        runs: list[Any] = [[(value,)] for value in values]
        rows = Merge(keys=(key,)).rows(runs)
        assert [value for (value,) in rows] == want


def test_rows_that_are_equal_keep_their_order() -> None:
    runs: list[Any] = [[(1, "a"), (1, "b")], [(0, "c"), (1, "d")]]
    down = Merge(keys=(OrderKey(First(0), descending=True),))
    assert [row[1] for row in down.rows(runs)] == ["a", "b", "d", "c"]


def test_several_keys_at_random(rng: random.Random) -> None:
    keys = (OrderKey(First(0)), OrderKey(First(1), descending=True))
    merge = Merge(hidden=1, keys=keys, limit=7)

    def place(row: Any) -> Any:
        return row[0], -row[1]

    for _ in range(200):
        runs = [
            sorted(
                (
                    (rng.randrange(3), rng.randrange(4), rng.random())
                    for _ in range(rng.randrange(6))
                ),
                key=place,
            )
            for _ in range(rng.randrange(1, 5))
        ]
        every = sorted((row for run in runs for row in run), key=place)
        assert merge.rows(runs) == [row[1:] for row in every[:7]]


def test_values_that_cannot_be_compared_are_refused() -> None:
    merge = Merge(keys=(OrderKey(First(0)),))
    with pytest.raises(ScatterUnsupportedError, match="ORDER BY"):
        merge.rows([[(1,)], [("a",)]])


def _combined(*columns: Any, same: tuple[int, ...] = ()) -> Merge:
    return Merge(combine=GroupRule(same, (), columns))


def test_totals() -> None:
    merge = _combined(Total(0), Total(1))
    runs: list[Any] = [[(2, None)], [(3, Decimal("1.5"))], [(0, None)]]
    assert merge.rows(runs) == [(5, Decimal("1.5"))]
    assert merge.rows([[(None, None)]] * 2) == [(None, None)]


def test_sums_have_all_of_their_digits() -> None:
    big = Decimal("8" * 35 + "." + "8" * 30)
    ((total,),) = _combined(Total(0)).rows([[(big,)]] * 9)
    assert str(total) == "7" + "9" * 34 + "9." + "9" * 29 + "2"


def test_the_largest_decimal_stands_for_larger_ones() -> None:
    most = Decimal("9" * 35 + "." + "9" * 30)
    with pytest.raises(ScatterUnsupportedError, match=r"more digits.*cast"):
        _combined(Total(0)).rows([[(Decimal(1),)], [(most.copy_negate(),)]])


@pytest.mark.parametrize(
    ("sums", "counts", "like", "want"),
    [
        ("5", 2, "0.0000", "2.5000"),
        ("10", 3, "0.0000", "3.3333"),
        ("20", 3, "0.0000", "6.6667"),
        ("1", 8, "0.00", "0.13"),  # half away from zero
        ("-1", 8, "0.00", "-0.13"),
        ("1e40", 3, "0.0", "3" * 40 + ".3"),
    ],
)
def test_averages_are_rounded_as_servers_do(
    sums: str, counts: int, like: str, want: str
) -> None:
    runs: list[Any] = [[(None, None, 0)], [(Decimal(like), Decimal(sums), counts)]]
    rows = _combined(Mean(0, 1, 2)).rows(runs)
    assert rows == [(Decimal(want),)]
    assert str(rows[0][0]) == want


@pytest.mark.parametrize(("places", "want"), [(30, "1.539681428"), (38, "1.539681429")])
def test_averages_of_quotients_by_the_server(places: int, want: str) -> None:
    # MySQL, which returns 30 places, rounds each quotient: it cuts off the
    # digits after the ninth, and MariaDB those after the eighteenth.
    total = Decimal(f"10.77777{'0' * (places - 5)}")
    runs: list[Any] = [[(Decimal("0.000000000"), total, 7)]]
    merge = _combined(Mean(0, 1, 2, Fraction.GROUPS))
    assert merge.rows(runs) == [(Decimal(want),)]


def test_floats_have_the_digits_of_their_column() -> None:
    runs: list[Any] = [[(2.6000000279170253e18,)], [(12345.669921875,)]]
    least = _combined(Extreme(0, 0, False))
    assert least.rows(runs) == [(12345.669921875,)]
    assert least.rows(runs, [".6g"]) == [(12345.7,)]
    assert least.rows(runs, [".2f"]) == [(12345.67,)]
    greatest = _combined(Extreme(0, 0, True))
    assert greatest.rows(runs, [".6g"]) == [(2.6e18,)]


def test_averages_of_floats_and_of_nothing() -> None:
    merge = _combined(Mean(0, 1, 2))
    assert merge.rows([[(1.0, 2.0, 2)], [(4.0, 4.0, 1)]]) == [(2.0,)]
    assert merge.rows([[(None, None, 0)]] * 2) == [(None,)]


def test_extremes_by_another_column() -> None:
    runs: list[Any] = [[("ä", b"b")], [(None, None)], [("Z", b"z")]]
    assert _combined(Extreme(0, 1, True)).rows(runs) == [("Z",)]
    assert _combined(Extreme(0, 1, False)).rows(runs) == [("ä",)]
    assert _combined(Extreme(0, 1, True)).rows([[(None, None)]]) == [(None,)]


def test_extremes_that_agree_in_what_is_shown() -> None:
    runs: list[Any] = [
        [(Decimal("1.0"), Decimal("1.04"), 0.25)],
        [(Decimal("1.0"), Decimal("1.03"), 0.5)],
        [(Decimal("0.9"), Decimal("9.99"), 1.5)],
    ]
    merge = _combined(Extreme(2, 0, True, tie_index=1))
    assert merge.rows(runs) == [(0.25,)]
    runs[1] = [(Decimal("1.0"), Decimal("1.04"), 0.5)]
    with pytest.raises(ScatterUnsupportedError, match="one of") as caught:
        merge.rows(runs)
    assert caught.value.construct == "max()"


def test_values_in_place_of_null() -> None:
    merge = _combined(Coalesce(Total(0), 1))
    assert merge.rows([[(None, 7)], [(None, 7)]]) == [(7,)]
    # The first shard has nothing, and its description is not passed on.
    assert merge.rows([[(None, 7)], [(3, 3)]]) == [(3,)]


def test_groups_of_several_shards() -> None:
    columns = (First(1), Total(2))
    merge = Merge(
        hidden=1,
        keys=(OrderKey(Total(2), descending=True),),
        limit=2,
        combine=GroupRule((0,), (), columns),
    )
    runs: list[Any] = [
        [(b"A", "a", 1), (None, None, 2)],
        [(b"A", "A", 4), (b"B", "b", 3)],
    ]
    assert merge.rows(runs) == [("a", 5), ("b", 3)]


def test_distinct_rows_of_several_shards() -> None:
    merge = Merge(
        hidden=1, keys=(OrderKey(First(0)),), limit=2, combine=GroupRule((0,), ())
    )
    runs: list[Any] = [[(b"a", "a"), (b"c", "c")], [(b"a", "A"), (b"b", "b")]]
    assert merge.rows(runs) == [("a",), ("b",)]


def test_rows_that_a_server_has_counted_twice() -> None:
    merge = Merge(hidden=1, limit=2, combine=GroupRule((0,), ()))
    runs: list[Any] = [[(b"a", "a"), (b"a", "a\u3000")], [(b"b", "b")]]
    with pytest.raises(ScatterUnsupportedError, match="spaces; use group_by"):
        merge.rows(runs)
    merge = Merge(hidden=1, limit=3, combine=GroupRule((0,), ()))
    assert merge.rows(runs) == [("a",), ("b",)]
    with pytest.raises(ScatterUnsupportedError, match="spaces; use group_by"):
        merge.rows(runs, most_rows=1)
    assert merge.rows(runs, most_rows=2) == [("a",), ("b",)]


@pytest.mark.parametrize("identity", [b"long", b"big5_chinese_ci", b"no text"])
def test_texts_that_compare_equal(identity: bytes) -> None:
    merge = Merge(hidden=1, combine=GroupRule((0,), (0,)))
    alike = b"x" * 32
    same: list[Any] = [[(alike, "a"), (None, None)], [(alike, "A")]]
    assert merge.rows(same) == [("a",), (None,)]
    runs: list[Any] = [[(alike, "a")], [(identity, "b")]]
    with pytest.raises(ScatterUnsupportedError):
        merge.rows(runs)


_SPACE = b"\x02\x09"


def _by_weights(*rows: Any) -> list[Any]:
    text = Text(0, 1, 2)
    merge = Merge(3, (OrderKey(First(0), sorted_by=2),), texts=(text,))
    runs = [[(weights, padding, w, w)] for weights, padding, w in rows]
    return [shown for (shown,) in merge.rows(runs)]


def test_texts_that_end_are_padded() -> None:
    tab, letter = b"\x02\x01", b"\x20\x75"
    rows = [
        (letter + letter, _SPACE, "aa"),
        (letter, _SPACE, "a"),
        (letter + tab, _SPACE, "a\t"),
        (letter + _SPACE * 9 + tab, _SPACE, "a         \t"),
        (letter + _SPACE, _SPACE, "a "),
        (b"", _SPACE, ""),
    ]
    want = ["", "a\t", "a         \t", "a", "a ", "aa"]
    assert _by_weights(*rows) == want
    # Without padding, the shorter text comes first.
    bare = [(weights, b"", shown) for weights, _, shown in rows]
    want = ["", "a", "a\t", "a ", "a         \t", "aa"]
    assert _by_weights(*bare) == want


def test_texts_are_compared_level_by_level() -> None:
    padding = b"\x02\x09\x00\x20\x00\x02"
    # A weight ends in 0 where the next one begins with it.
    rows = [
        (b"\x20\x00\0\0\0\x24\0\0\0\x02", padding, "accent"),
        (b"\x20\x00\0\0\0\x20\0\0\0\x08", padding, "case"),
        (b"\x20\x00\x02\x09\0\0\0\x20\0\0", padding, "none"),
        (b"\x20\x00\x20\x00\0\0\0\x20\0\0", padding, "longer"),
    ]
    want = ["none", "case", "accent", "longer"]
    assert _by_weights(*rows) == want


@pytest.mark.parametrize(
    ("row", "match"),
    [
        ((b"b", b"\x00", "b"), "differ from shard to shard"),
        ((b"b", b"big5_chinese_ci", "b"), "differ from shard to shard"),
        ((None, b" ", 5), "not a text"),
    ],
)
def test_weights_that_do_not_compare(row: Any, match: str) -> None:
    with pytest.raises(ScatterUnsupportedError, match=match):
        _by_weights((b"a", b" ", "a"), row)


def test_collations_whose_weights_are_not_exact() -> None:
    with pytest.raises(ScatterUnsupportedError, match="latin2_czech_cs"):
        _by_weights(*[(b"a", b"latin2_czech_cs", "a")] * 2)


@pytest.mark.parametrize(
    "limits",
    [
        *({"max_shards": value} for value in (0, -1, 1.0, True, "1")),
        *({"max_rows": value} for value in (0, -1, 2.5, True, "1")),
        *({"timeout": value} for value in (0, -1, True, "1")),
        *({"timeout": float(value)} for value in ("nan", "inf", "1e300")),
        {"on_error": "ignore"},
    ],
)
def test_limits_that_make_no_sense(limits: dict[str, Any]) -> None:
    (name,) = limits
    with pytest.raises(ValueError, match=name):
        scatter(**limits)


def test_sort_keys_are_freed_with_their_column() -> None:
    table = Table("pins", MetaData(), Column("n", Integer))
    column = weakref.ref(table.c.n)
    statement = select(table.c.n).order_by(table.c.n)
    first, second = (plan(statement, None, Spread()) for _ in range(2))
    hidden, again = (
        one.statement._prefixes[0][0].elements[0] for one in (first, second)
    )
    assert hidden is again
    assert b"SortKey" not in pickle.dumps(statement)
    del table, statement, first, second, hidden, again
    gc.collect()
    assert column() is None


def test_a_subquery_is_not_computed_without_the_rows_of_its_shard() -> None:
    table = Table("t", MetaData(), Column("a", Integer), Column("b", Integer))
    other = table.alias()
    alike = select(func.avg(other.c.b)).where(other.c.a == table.c.a)
    groups = select(table.c.a).group_by(table.c.a)
    for condition in (func.max(table.c.b) > alike.scalar_subquery(), alike.exists()):
        with pytest.raises(ScatterUnsupportedError, match="a subquery or window"):
            plan(groups.having(condition), {}, Spread())


def test_the_label_of_an_id_beside_sql_as_text() -> None:
    """The text may have a column of that name, which servers would prefer."""
    table = Table("pins", MetaData(), Column("local_id", ShardedId(1)))
    label = table.c.local_id.label("x")
    statement = select(label).select_from(text("json_each('[1]')")).order_by("x")
    assert by_id_columns(statement) is statement


def test_groups_by_the_name_of_a_label_are_counted() -> None:
    table = Table("pins", MetaData(), Column("n", Integer))
    inner = select(table.c.n.label("q")).group_by("q").subquery()
    counted = plan(select(func.count()).select_from(inner), {}, Spread())
    assert "GROUP BY pins.n" in str(counted.statement)


def test_too_many_groups_are_not_computed() -> None:
    """They may lack rows that max_rows has left out."""
    columns = (First(0), Extreme(1, 2, greatest=True, longest=1))
    merge = Merge(combine=GroupRule((0,), columns=columns))
    runs: list[Any] = [[(1, "ab", b"a"), (2, "b", b"b")], [(1, "ac", b"a")]]
    with pytest.raises(ScatterUnsupportedError, match=r"func\.left"):
        merge.rows(runs, most_rows=2)
    with pytest.raises(ScatterLimitError, match="max_rows=1"):
        merge.rows(runs, most_rows=1)


def test_an_average_is_not_compared_with_a_text() -> None:
    between = Constant((Decimal("0.76"), Decimal("0.78")))
    compared = Compared(between, Constant("0.77"), operator.gt)
    with pytest.raises(ScatterUnsupportedError, match="compares numbers"):
        compared([()])
