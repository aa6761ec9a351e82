"""Rows of several shards, made one answer in Python."""

from __future__ import annotations

import itertools
import random
from decimal import Decimal
from typing import Any

import pytest

from sqla_shard.exc import ScatterUnsupportedError
from sqla_shard.scattering import scatter
from sqla_shard.scattering.merge import Combine
from sqla_shard.scattering.merge import Extreme
from sqla_shard.scattering.merge import First
from sqla_shard.scattering.merge import Key
from sqla_shard.scattering.merge import Mean
from sqla_shard.scattering.merge import Merge
from sqla_shard.scattering.merge import merge_rows
from sqla_shard.scattering.merge import Otherwise
from sqla_shard.scattering.merge import Total
from sqla_shard.scattering.texts import Text


def test_runs_are_put_one_after_another() -> None:
    runs = [[(1, "a"), (2, "b")], [], [(0, "c")]]
    rows = merge_rows(runs, Merge(hidden=1))
    assert rows == [("a",), ("b",), ("c",)]
    assert merge_rows(runs, Merge(hidden=1, limit=2)) == [("a",), ("b",)]
    assert merge_rows(runs, Merge(limit=0)) == []
    assert merge_rows([[], []], Merge(hidden=1, limit=2)) == []


def test_one_run_is_sorted_already() -> None:
    run: list[Any] = [(3, "a"), (1, "b")]
    merge = Merge(hidden=1, keys=(Key(First(0)),))
    assert merge_rows([run], merge) == [("a",), ("b",)]


@pytest.mark.parametrize(
    ("key", "want"),
    [
        (Key(First(0)), [None, None, 1, 2, 3]),
        (Key(First(0), descending=True), [3, 2, 1, None, None]),
        (Key(First(0), nulls_last=True), [1, 2, 3, None, None]),
        (Key(First(0), nulls_last=False), [None, None, 1, 2, 3]),
        (
            Key(First(0), descending=True, nulls_last=True),
            [3, 2, 1, None, None],
        ),
        (
            Key(First(0), descending=True, nulls_last=False),
            [None, None, 3, 2, 1],
        ),
    ],
)
def test_where_null_goes(key: Key, want: list[Any]) -> None:
    for values in itertools.permutations([None, 1, 2, 3, None]):
        runs: list[Any] = [[(value,)] for value in values]
        rows = merge_rows(runs, Merge(keys=(key,)))
        assert [value for (value,) in rows] == want


def test_rows_that_are_equal_keep_their_order() -> None:
    runs: list[Any] = [[(1, "a"), (1, "b")], [(0, "c"), (1, "d")]]
    down = Merge(keys=(Key(First(0), descending=True),))
    assert [row[1] for row in merge_rows(runs, down)] == ["a", "b", "d", "c"]


def test_several_keys_at_random(rng: random.Random) -> None:
    keys = (Key(First(0)), Key(First(1), descending=True))
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
        assert merge_rows(runs, merge) == [row[1:] for row in every[:7]]


def test_what_cannot_be_compared_is_refused() -> None:
    merge = Merge(keys=(Key(First(0)),))
    with pytest.raises(ScatterUnsupportedError, match="ORDER BY"):
        merge_rows([[(1,)], [("a",)]], merge)


def _combined(*columns: Any, same: tuple[int, ...] = ()) -> Merge:
    return Merge(combine=Combine(same, (), columns))


def test_totals() -> None:
    merge = _combined(Total(0), Total(1))
    runs: list[Any] = [[(2, None)], [(3, Decimal("1.5"))], [(0, None)]]
    assert merge_rows(runs, merge) == [(5, Decimal("1.5"))]
    assert merge_rows([[(None, None)]] * 2, merge) == [(None, None)]


def test_sums_have_all_of_their_digits() -> None:
    big = Decimal("8" * 35 + "." + "8" * 30)
    ((total,),) = merge_rows([[(big,)]] * 9, _combined(Total(0)))
    assert str(total) == "7" + "9" * 34 + "9." + "9" * 29 + "2"


def test_the_largest_decimal_stands_for_larger_ones() -> None:
    most = Decimal("9" * 35 + "." + "9" * 30)
    with pytest.raises(ScatterUnsupportedError, match=r"more digits.*cast"):
        merge_rows(
            [[(Decimal(1),)], [(most.copy_negate(),)]], _combined(Total(0))
        )


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
    runs: list[Any] = [
        [(None, None, 0)],
        [(Decimal(like), Decimal(sums), counts)],
    ]
    rows = merge_rows(runs, _combined(Mean(0, 1, 2)))
    assert rows == [(Decimal(want),)]
    assert str(rows[0][0]) == want


def test_averages_of_floats_and_of_nothing() -> None:
    merge = _combined(Mean(0, 1, 2))
    assert merge_rows([[(1.0, 2.0, 2)], [(4.0, 4.0, 1)]], merge) == [(2.0,)]
    assert merge_rows([[(None, None, 0)]] * 2, merge) == [(None,)]


def test_extremes_by_another_column() -> None:
    runs: list[Any] = [[("ä", b"b")], [(None, None)], [("Z", b"z")]]
    assert merge_rows(runs, _combined(Extreme(0, 1, True))) == [("Z",)]
    assert merge_rows(runs, _combined(Extreme(0, 1, False))) == [("ä",)]
    assert merge_rows([[(None, None)]], _combined(Extreme(0, 1, True))) == [
        (None,)
    ]


def test_extremes_that_agree_in_what_is_shown() -> None:
    runs: list[Any] = [
        [(Decimal("1.0"), Decimal("1.04"), 0.25)],
        [(Decimal("1.0"), Decimal("1.03"), 0.5)],
        [(Decimal("0.9"), Decimal("9.99"), 1.5)],
    ]
    merge = _combined(Extreme(2, 0, True, more=1))
    assert merge_rows(runs, merge) == [(0.25,)]
    runs[1] = [(Decimal("1.0"), Decimal("1.04"), 0.5)]
    with pytest.raises(ScatterUnsupportedError, match="one of") as caught:
        merge_rows(runs, merge)
    assert caught.value.construct == "max()"


def test_what_stands_in_place_of_nothing() -> None:
    merge = _combined(Otherwise(Total(0), 1))
    assert merge_rows([[(None, 7)], [(None, 7)]], merge) == [(7,)]
    # The first shard has nothing, and what it says of itself is not told.
    assert merge_rows([[(None, 7)], [(3, 3)]], merge) == [(3,)]


def test_groups_of_several_shards() -> None:
    columns = (First(1), Total(2))
    merge = Merge(
        hidden=1,
        keys=(Key(Total(2), descending=True),),
        limit=2,
        combine=Combine((0,), (), columns),
    )
    runs: list[Any] = [
        [(b"A", "a", 1), (None, None, 2)],
        [(b"A", "A", 4), (b"B", "b", 3)],
    ]
    assert merge_rows(runs, merge) == [("a", 5), ("b", 3)]


def test_distinct_rows_of_several_shards() -> None:
    merge = Merge(
        hidden=1,
        keys=(Key(First(0)),),
        limit=2,
        combine=Combine((0,), ()),
    )
    runs: list[Any] = [[(b"a", "a"), (b"c", "c")], [(b"a", "A"), (b"b", "b")]]
    assert merge_rows(runs, merge) == [("a",), ("b",)]


@pytest.mark.parametrize("identity", [b"long", b"big5_chinese_ci", b"no text"])
def test_texts_that_cannot_be_told_apart(identity: bytes) -> None:
    merge = Merge(hidden=1, combine=Combine((0,), (0,)))
    alike = b"x" * 32
    same: list[Any] = [[(alike, "a"), (None, None)], [(alike, "A")]]
    assert merge_rows(same, merge) == [("a",), (None,)]
    runs: list[Any] = [[(alike, "a")], [(identity, "b")]]
    with pytest.raises(ScatterUnsupportedError):
        merge_rows(runs, merge)


_SPACE = b"\x02\x09"


def _by_weights(*rows: Any) -> list[Any]:
    text = Text(0, 1, 2)
    merge = Merge(3, (Key(First(0), sorted_by=2),), texts=(text,))
    runs = [[(weights, padding, w, w)] for weights, padding, w in rows]
    return [shown for (shown,) in merge_rows(runs, merge)]


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
    # Without padding, what ends comes first.
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
        ((None, b" ", 5), "no text"),
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
