"""Texts of several scripts over shards, of which servers have many orders."""

from __future__ import annotations

import random
from typing import Any

import pytest
from sqlalchemy import cast, func, select, String, Text
from sqlalchemy.dialects import mysql
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sqla_shard import scatter
from sqla_shard.exc import ScatterUnsupportedError
from sqla_shard.types import ShardedId
from tests.models.clusters import PINS
from tests.models.collations import ServerText
from tests.models.layouts import LAYOUT, pack

#: Letters with accents and of several weights, contractions, and of several
#: scripts; combining marks; invisible characters; digits.
SCRIPTS = (
    *("aAbBcCzZ", "äÄáéÉßœŒæ½ǆĳöÖ", "chCHllLLngdz", "ÅåØøŁłÞþðĐđİıIi"),
    *("日本中国語漢字", "가각힣ᄀ", "ｱアあｶが゙ﾞー", "กขคเแไาำ"),
    *("ابتﷺﷻلا", "אבגשׁ", "абвЯЖё", "😀😁𝔸", "e\u0301a\u0308u\u0308"),
    *("\u0d4d\u1039\u0dca", "\x00\x01\t\n\x1f\x7f", "  \u00a0\u3000"),
    "-_.0123456789",
)


def random_text(rng: random.Random, length: int) -> str:
    """Return a text of characters of any script."""
    return "".join(rng.choice(rng.choice(SCRIPTS)) for _ in range(length))


class TextsBase(DeclarativeBase):
    """Base of the class of this suite."""

    id_layout = LAYOUT


def _of(type_: Any, collation: str) -> Any:
    on_server = type_.copy()
    on_server.collation = collation
    return mapped_column(type_.with_variant(on_server, "mysql", "mariadb"))


def _unlike(length: int, collation: str) -> Any:
    """Return a column whose collation MySQL has under another name."""
    on_server = ServerText(length, collation=collation)
    return mapped_column(
        mysql.VARCHAR(length).with_variant(on_server, "mysql", "mariadb")
    )


class Title(TextsBase):
    """Texts of several collations; each row has a text in one of them."""

    __tablename__ = "titles"

    id: Mapped[int] = mapped_column("local_id", ShardedId(31), primary_key=True)
    number: Mapped[int | None]
    unicode: Mapped[str | None] = _of(mysql.VARCHAR(8), "utf8mb4_unicode_ci")
    german: Mapped[str | None] = _of(mysql.VARCHAR(8), "utf8mb4_german2_ci")
    latin: Mapped[str | None] = _of(
        mysql.VARCHAR(8, charset="latin1"), "latin1_german2_ci"
    )
    story: Mapped[str | None] = _of(Text(), "utf8mb4_unicode_ci")
    exact: Mapped[str | None] = _unlike(8, "utf8mb4_nopad_bin")
    cased: Mapped[str | None] = _unlike(255, "utf8mb4_uca1400_as_cs")
    name: Mapped[str | None] = _of(mysql.VARCHAR(40), "utf8mb4_bin")
    nick: Mapped[str | None] = _of(mysql.VARCHAR(4), "utf8mb4_bin")


#: On three servers; two of them on one.
_SHARDS = (0, 1, 17, 31)


def planted() -> Any:
    """Return a fixture: a session that adds titles, and rolls back."""

    @pytest.fixture
    def titles(cluster: Any) -> Any:
        cluster.create_all(TextsBase.metadata)
        with cluster.session(cross_shard="unordered") as session:
            yield Added(session)
            session.rollback()

    return titles


class Added:
    """A session, and what adds titles to it."""

    def __init__(self, session: Any) -> None:
        self.session = session

    def add(self, field: str, *texts: Any, **others: Any) -> None:
        """Add a row for each text, one shard after another."""
        for number, value in enumerate(texts):
            shard = _SHARDS[number % len(_SHARDS)]
            title = pack(shard, 31, 1 + number // len(_SHARDS))
            row = {"number": number, field: value, **others}
            self.session.add(Title(id=title, **row))
        self.session.flush()

    def scalars(self, made: Any) -> list[Any]:
        """Return the values of a column over all shards."""
        return list(self.session.scalars(made.options(scatter())))

    def pages(self, made: Any, limit: int) -> list[Any]:
        """Return the items of all pages."""
        found, after = [], None
        while True:
            page = self.session.scatter_page(made, limit, after=after)
            found += list(page)
            after = page.next
            if after is None:
                return found


class Texts:
    """Takes ``titles`` from the test module."""

    @pytest.mark.parametrize("field", ["unicode", "story"])
    def test_texts_that_differ_at_their_end(self, titles, field):
        alike = "日本中国語漢" * (1 if field == "unicode" else 20)
        texts = [alike + end for end in "字人大一"] + ["語" + alike]
        titles.add(field, *texts * 3)
        column = getattr(Title, field)
        distinct = titles.scalars(select(column).distinct())
        assert sorted(distinct) == sorted(texts)
        groups = select(func.count(Title.id)).group_by(column)
        assert titles.scalars(groups) == [3] * 5
        order = titles.scalars(select(column).order_by(column))
        assert order == sorted(texts * 3, key=order.index)
        assert [order.count(text) for text in texts] == [3] * 5
        (least,) = titles.scalars(select(func.min(column)))
        (most,) = titles.scalars(select(func.max(column)))
        assert (least, most) == (order[0], order[-1])
        for limit in (1, 2, 7):
            shown = titles.pages(select(column).order_by(column), limit)
            assert shown == order
            ids = titles.pages(select(Title.id).order_by(column), limit)
            assert len(set(ids)) == 15

    def test_texts_of_a_column_that_is_made(self, titles):
        names = [f"a long name, number {n:02}" for n in range(11, -1, -1)]
        titles.add("name", *names)
        shown = func.coalesce(Title.nick, Title.name).label("shown")
        inner = select(shown)
        for source in (inner.subquery(), inner.cte()):
            made = select(source.c.shown).order_by(source.c.shown)
            assert titles.scalars(made.limit(3)) == names[:-4:-1]
            assert titles.scalars(made) == names[::-1]
            most = select(func.max(source.c.shown))
            assert titles.scalars(most) == [names[0]]
            groups = select(func.count(source.c.shown)).group_by(source.c.shown)
            assert titles.scalars(groups) == [1] * 12

    def test_texts_made_of_two_collations(self, titles, backend):
        titles.add("unicode", "b", "a", "B", "a", "ß")
        mixed = Title.unicode + cast(Title.number, String(9))
        made = select(mixed).order_by(Title.number)
        assert titles.scalars(made) == ["b0", "a1", "B2", "a3", "ß4"]
        assert sorted(titles.scalars(select(mixed))) == [
            *("B2", "a1", "a3", "b0", "ß4")
        ]
        assert titles.scalars(made.limit(2)) == ["b0", "a1"]
        order = titles.scalars(select(mixed).order_by(mixed.desc()))
        if backend.kind == "mariadb11":
            # It takes the collation of the column.
            assert order == ["ß4", "B2", "b0", "a3", "a1"]
        else:
            assert order == ["ß4", "b0", "a3", "a1", "B2"]

    def test_texts_made_of_two_columns(self, titles):
        titles.add("unicode", "b", "a", "B", "a", "c", german="Ä")
        mixed = Title.unicode + Title.german
        made = select(mixed).order_by(mixed)
        order = ["BÄ", "aÄ", "aÄ", "bÄ", "cÄ"]
        assert titles.scalars(made) == order
        assert titles.scalars(made.limit(2)) == order[:2]
        made = select(Title.number).order_by(mixed.desc(), Title.number)
        assert titles.scalars(made) == [4, 0, 1, 3, 2]

    def test_spaces_that_a_server_groups_apart(self, titles, backend):
        if backend.kind == "sqlite":
            pytest.skip("it has no such collation")
        # Equal texts that MySQL has apart in its temporary tables.
        spaces = [" ", "\u3000", "\u00a0 ", "\u3000 "]
        ends = ["a", "a\u3000", "a\u00a0 ", "a  \u3000"]
        for number, text in enumerate([*spaces, *ends, "b", "b", "c"]):
            for shard in _SHARDS[:2]:
                title = pack(shard, 31, 1 + number)
                titles.session.add(Title(id=title, number=1, german=text))
        titles.session.flush()
        german = Title.german
        groups = select(func.count(Title.id)).group_by(german)
        assert sorted(titles.scalars(groups)) == [2, 4, 8, 8]
        ordered = groups.order_by(german)
        assert titles.scalars(ordered) == [8, 8, 4, 2]
        assert titles.scalars(ordered.limit(2)) == [8, 8]
        assert titles.scalars(ordered.limit(3)) == [8, 8, 4]
        large = ordered.having(func.count(Title.id) >= 8)
        assert titles.scalars(large) == [8, 8]
        shown = groups.add_columns(german).options(scatter(max_rows=4))
        found = titles.session.execute(shown)
        assert sorted((n, text.strip()) for n, text in found) == [
            *((2, "c"), (4, "b"), (8, ""), (8, "a"))
        ]
        distinct = select(german).distinct().order_by(german)
        found = [text.strip() for text in titles.scalars(distinct)]
        assert found == ["", "a", "b", "c"]
        (count,) = titles.scalars(select(func.count(german.distinct())))
        assert count == 4
        limited = distinct.limit(2)
        if backend.kind != "mysql":
            found = [text.strip() for text in titles.scalars(limited)]
            assert found == ["", "a"]
            return
        with pytest.raises(ScatterUnsupportedError, match="spaces; use group"):
            titles.scalars(limited)
        few = distinct.options(scatter(max_rows=4))
        with pytest.raises(ScatterUnsupportedError, match="spaces; use group"):
            titles.session.scalars(few)
        instead = select(german).group_by(german).order_by(german)
        found = [text.strip() for text in titles.scalars(instead.limit(2))]
        assert found == ["", "a"]

    def test_a_text_that_ends_in_nul_is_different(self, titles):
        titles.add("exact", "a", "a\0", "a", "a\0", "a\0\0", "a ")
        made = select(func.count(Title.id)).group_by(Title.exact)
        assert sorted(titles.scalars(made)) == [1, 1, 2, 2]
        made = select(Title.exact).distinct()
        assert set(titles.scalars(made)) == {"a", "a\0", "a\0\0", "a "}
        (most,) = titles.scalars(select(func.max(Title.exact)))
        assert most == "a "


cluster = PINS.on_backend()
titles = planted()
