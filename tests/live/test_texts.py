"""Texts over shards, against what servers say of each of their collations."""

from __future__ import annotations

import os
from typing import Any

import pytest
from sqlalchemy import (
    cast,
    collate,
    Column,
    create_engine,
    func,
    Integer,
    make_url,
    MetaData,
    select,
    Table,
    text,
)
from sqlalchemy.dialects import mysql

from sqla_shard.dialects.sorting import OfText
from sqla_shard.engine.values import check_identities, Text, weigh
from sqla_shard.exc import ScatterUnsupportedError
from tests.models.clusters import on_servers
from tests.suites.texts import planted, random_text, Title

pytestmark = pytest.mark.live

cluster = on_servers("texts")
titles = planted()

_SOAK = os.environ.get("SQLA_SHARD_SOAK") == "1"
#: In each run, together with a few others.
_ALWAYS = (
    *("utf8mb4_general_ci", "utf8mb4_bin", "utf8mb4_unicode_ci"),
    *("utf8mb4_unicode_520_ci", "utf8mb4_german2_ci", "utf8mb4_thai_520_w2"),
    *("utf8mb4_nopad_bin", "utf8mb4_unicode_nopad_ci", "utf8mb3_unicode_ci"),
    *("utf8mb3_general_ci", "latin1_swedish_ci", "latin1_german2_ci"),
    *("utf8mb4_uca1400_ai_ci", "utf8mb4_uca1400_as_ci", "ucs2_unicode_ci"),
    *("utf8mb4_uca1400_ai_cs", "utf8mb4_uca1400_as_cs", "latin7_general_ci"),
    *("utf8mb4_uca1400_nopad_ai_cs", "utf8mb4_uca1400_nopad_as_cs"),
    *("utf16_uca1400_as_cs", "utf32_bin", "gbk_chinese_ci", "sjis_bin"),
    *("big5_bin", "tis620_thai_ci", "cp1250_polish_ci", "macroman_bin"),
)
#: In each run on MySQL.
_ALWAYS_ON_MYSQL = (
    *("utf8mb4_0900_ai_ci", "utf8mb4_0900_as_cs", "utf8mb4_0900_bin"),
    *("utf8mb4_ja_0900_as_cs_ks", "utf8mb4_zh_0900_as_cs", "gb18030_bin"),
)
_INEXACT = (
    *("big5_chinese_ci", "big5_chinese_nopad_ci", "cp1250_czech_cs"),
    *("latin2_czech_cs", "tis620_thai_nopad_ci", "tis620_thai_ci"),
    "gb18030_chinese_ci",
)
_PARTS = ("sorted", "sorted_padding", "extreme", "extreme_padding", "same")


@pytest.fixture(scope="module")
def plain(fleet):
    server = fleet.servers[0]
    name = "main_plain_texts"
    with server.connect(autocommit=True) as connection:
        connection.cursor().execute(f"CREATE DATABASE {name}")
    url = make_url(server.url).set(drivername="mysql+pymysql", database=name)
    engine = create_engine(url)
    with engine.connect() as connection:
        yield connection
    engine.dispose()
    with server.connect(autocommit=True) as connection:
        connection.cursor().execute(f"DROP DATABASE {name}")


@pytest.fixture(scope="module")
def collations(plain):
    """Names of all collations, and of their character sets."""
    is_mariadb = plain.dialect.is_mariadb
    name = "full_collation_name" if is_mariadb else "collation_name"
    found = plain.execute(
        text(
            f"SELECT {name}, character_set_name "
            "FROM information_schema.collation_character_set_applicability "
            "WHERE character_set_name <> 'binary'"
        )
    )
    return {row[0]: row[1] for row in found}


def _is_inexact(plain: Any, name: str) -> bool:
    if name == "tis620_thai_ci":
        return not plain.dialect.is_mariadb
    return name in _INEXACT


def _table(plain: Any, name: str, charset: str, length: int, texts: list[str]) -> Table:
    """Make a table of texts of a collation."""
    plain.execute(text("DROP TABLE IF EXISTS texts"))
    of = mysql.VARCHAR(length, charset=charset, collation=name)
    table = Table(
        "texts", MetaData(), Column("id", Integer, primary_key=True), Column("x", of)
    )
    table.create(plain)
    # Characters that the set does not have become question marks.
    plain.execute(
        text("INSERT IGNORE INTO texts VALUES (:id, :x)"),
        [{"id": n, "x": one[:length]} for n, one in enumerate(texts)],
    )
    return table


def _texts(rng: Any, lengths: tuple[int, ...], count: int) -> list[str]:
    """Return texts of which many differ at their end only."""
    found = ["", " ", "\0"]
    for _ in range(count):
        begin = random_text(rng, rng.choice(lengths))
        ends = ["", " ", random_text(rng, 1), "  \x01", "\0", "\u0301"]
        found += [begin + end for end in rng.sample(ends, 3)]
        found.append(begin.swapcase())
    return found


def _check(plain: Any, table: Table) -> None:
    """Compare all pairs of texts as the server does, and sort them."""
    name = table.c.x.type.collation
    parts = [OfText(table.c.x, part) for part in (*_PARTS, "identity")]
    made = select(*parts, table.c.x, table.c.id).order_by(table.c.x)
    rows = [tuple(row) for row in plain.execute(made)]
    given = {row[7]: row for row in rows}
    texts = (Text(0, 1, 6), Text(2, 3, 6))
    (rows,) = weigh([rows], texts)
    check_identities(row[5] for row in rows)
    keys = {row[7]: row for row in rows}
    order = [row[0] for row in rows]
    assert order == sorted(order), name
    other = table.alias()
    x, y = table.c.x, other.c.x
    pairs = select(table.c.id, other.c.id, x == y, x < y)
    pairs = pairs.where(table.c.id < other.c.id)
    for one, two, equal, less in plain.execute(pairs):
        a, b = keys[one], keys[two]
        case = f"{name}: {a[6]!r} and {b[6]!r}; {given[one]}, {given[two]}"
        assert (a[5] == b[5]) is bool(equal), case
        assert (a[2] == b[2]) is bool(equal), case
        assert (a[2] < b[2]) is bool(less), case
        # Else DISTINCT would have rows twice.
        assert a[4] == b[4] or not equal, case


def test_every_collation(plain, collations, rng, say):
    chosen = [c for c in collations if not _is_inexact(plain, c)]
    if not _SOAK:
        always = (*_ALWAYS, *_ALWAYS_ON_MYSQL, *rng.sample(chosen, 60))
        chosen = [c for c in chosen if c in always]
    for name in chosen:
        texts = _texts(rng, (0, 1, 1, 2, 3, 5, 8), 10)
        # Servers sort by all levels of so many characters.
        _check(plain, _table(plain, name, collations[name], 20, texts))
    say(f"{len(chosen)} collations")


@pytest.mark.parametrize(
    "name", [c for c in (*_ALWAYS, *_ALWAYS_ON_MYSQL) if "utf8mb4" in c]
)
def test_every_length(plain, collations, rng, name):
    if name not in collations:
        pytest.skip("the server lacks this collation")
    # Up to where servers stop sorting.
    lengths = tuple(range(10, 120 if "thai" not in name else 60, 7))
    if "_as_" in name or "_cs" in name or "_w2" in name:
        lengths = (17, 18, 19)
    many = 40 if _SOAK else 8
    length = 20 if max(lengths) < 20 else 130
    texts = _texts(rng, lengths, many)
    _check(plain, _table(plain, name, "utf8mb4", length, texts))


@pytest.mark.parametrize("name", _INEXACT)
def test_collations_that_are_refused(plain, collations, name):
    if name not in collations or not _is_inexact(plain, name):
        pytest.skip("the server has no such collation, or an exact one")
    table = _table(plain, name, collations[name], 8, ["a", "b"])
    with pytest.raises(ScatterUnsupportedError, match=f"{name}.*collate"):
        _check(plain, table)


def test_comparing_what_is_made_of_two_collations(titles, server_kind):
    titles.add("unicode", "b", "a", "B", german="ä")
    mixed = Title.unicode + Title.german
    comparisons = [
        (select(func.min(mixed)), ["Bä"]),
        (select(mixed).distinct().order_by(mixed), ["Bä", "aä", "bä"]),
        (select(func.count(Title.id)).group_by(mixed), [1, 1, 1]),
    ]
    if not server_kind.is_mysql:
        refused, answered = comparisons, []
    else:
        # MySQL compares the characters.
        refused, answered = comparisons[:1], comparisons[1:]
    for made, _ in refused:
        with pytest.raises(ScatterUnsupportedError, match=r"collate\(\)"):
            titles.scalars(made)
    for made, answer in answered:
        assert titles.scalars(made) == answer
    one = collate(mixed, "utf8mb4_unicode_ci")
    assert titles.scalars(select(func.min(one))) == ["aä"]
    assert len(titles.scalars(select(one).distinct())) == 2
    groups = select(func.count(Title.id)).group_by(one)
    assert sorted(titles.scalars(groups)) == [1, 2]


@pytest.mark.only_on("mysql")
def test_texts_that_the_character_set_of_a_column_lacks(titles):
    titles.add("latin", "b", "a")
    secret = Title.latin + "日本"
    with pytest.raises(ScatterUnsupportedError, match=r"3854.*cast") as caught:
        titles.scalars(select(secret))
    assert "xE6" not in str(caught.value)
    cast_ = cast(Title.latin, mysql.CHAR(charset="utf8mb4")) + "日本"
    assert titles.scalars(select(func.min(cast_))) == ["a日本"]


def test_long_texts_are_distinguished(titles, rng):
    begin = random_text(rng, 2000)
    texts = [begin + end for end in ("", "a", "A", "b", "日", "本")]
    titles.add("story", *texts * 2)
    made = select(func.count(Title.id)).group_by(Title.story)
    assert sorted(titles.scalars(made)) == [2, 2, 2, 2, 4]
    made = select(Title.story).distinct()
    assert len(titles.scalars(made)) == 5


def test_pages_by_accents_that_servers_do_not_sort_by(titles, server_kind):
    titles.add("cased", "é", "e", "E", "f")
    made = select(Title.cased).order_by(Title.cased)
    order = titles.scalars(made)
    assert order == ["e", "E", "é", "f"]
    if server_kind.is_mysql:
        assert titles.pages(made, 1) == order
        return
    with pytest.raises(ScatterUnsupportedError, match="accents or case"):
        titles.pages(made, 2)
    short = collate(Title.cased, "utf8mb4_uca1400_ai_ci")
    assert len(titles.pages(select(Title.id).order_by(short), 1)) == 4


def test_pages_by_what_ends_in_nul(titles, server_kind):
    titles.add("exact", "a\0", "a", "b")
    made = select(Title.exact).order_by(Title.exact)
    if server_kind.is_mysql:
        assert titles.pages(made, 1) == ["a", "a\0", "b"]
    else:
        with pytest.raises(ScatterUnsupportedError, match="sorts like the en"):
            titles.pages(made, 1)
    padded = collate(Title.exact, "utf8mb4_bin")
    shown = titles.pages(select(Title.exact).order_by(padded), 1)
    assert shown == ["a\0", "a", "b"]


@pytest.mark.parametrize(("count", "fits"), [(256, True), (257, False)])
def test_pages_by_long_texts(titles, count, fits):
    titles.add("story", "é" * count, "z")
    made = select(Title.number).order_by(Title.story)
    if fits:
        assert titles.pages(made, 1) == [0, 1]
        return
    with pytest.raises(ScatterUnsupportedError, match=r"func\.left"):
        titles.pages(made, 1)
    left = func.left(Title.story, 256)
    assert titles.pages(select(Title.number).order_by(left), 1) == [0, 1]
