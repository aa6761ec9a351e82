"""Rows whose values differ where servers and Python compare differently."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from sqlalchemy import insert

from tests.models.layouts import pack
from tests.models.merged_models import COLLATIONS, Colour, GEM, Rank, SHOP, WARE

#: Case, accents, trailing spaces, characters that sort before a space, letters
#: of two bytes and of four, digits, and the empty text.
_TEXTS = (
    *("", " ", "a", "A", "a ", "a  ", "a\t", "a\x01", "a b", "ab", "AB"),
    *("b", "B", "ä", "Ä", "á", "ae", "e", "é", "É", "s", "ß", "ss", "SS"),
    *("z", "Z", "ö", "oe", "10", "9", "_", "日本", "日", "😀", "😁"),
    # Of several weights, or of none; of other scripts; with NUL at the end.
    *("日本語", "日本國", "½", "1/2", "œ", "ǆ", "dž", "ﷺ", "ﷺa", "ﷻ", "ch"),
    *("กเ", "เก", "ไทย", "لا", "שׁ", "ж", "Ё", "е\u0308", "a\u0301", "がが"),
    *("a\u00a0", "\u3000", "a\0", "\0", "a\0b", "a \t", "\u00ad", "각", "𝔸"),
)
#: Those of a single-byte character set.
_LATIN = tuple(text for text in _TEXTS if max(text, default="a") < "Ā")
#: Those of characters of at most three bytes.
_BASIC = tuple(text for text in _TEXTS if max(text, default="a") < "\uffff")
#: Alike in more characters than others have.
_LONG = (
    *_TEXTS,
    *("日本語" * 60 + end for end in ("", "日", "本", " ", "a", "A", "ﷺ", "\0")),
)
_NUMBERS = (-2, -1, 0, 1, 1, 2, 3)
_DECIMALS = ("0", "-0.5", "1.25", "1.2501", "12345678901234567890.1234", "2")
_DAYS = (dt.date(1999, 12, 31), dt.date(2024, 2, 29), dt.date(2024, 3, 1))
_MOMENTS = tuple(
    dt.datetime(2024, 5, day, 12, 0, second, micro)
    for day, second, micro in ((1, 0, 0), (1, 0, 7), (2, 59, 999999))
)

#: Values other than NULL, by kind of column.
SAMPLES: dict[str, tuple[Any, ...]] = {
    "number": _NUMBERS,
    "big": (-(2**63), 2**62, 2**63 - 1, 5),
    "price": tuple(map(Decimal, _DECIMALS)),
    # Sums of these are exact, in whatever order they are added.
    "weight": (-0.5, 0.0, 0.25, 1e6, 3.5, 1.0),
    # Equal in the six digits that a FLOAT is displayed with.
    "size": (0.5, 16777215.0, 16777214.0, -0.25, 2.0),
    "sold": (True, False),
    "day": _DAYS,
    "moment": _MOMENTS,
    "hour": (dt.time(0, 0), dt.time(9, 5, 7, 250000), dt.time(23, 59, 59)),
    "colour": tuple(Colour),
    "rank": tuple(Rank),
    "text": _TEXTS,
    "latin": _LATIN,
    "three": _BASIC,
    "nick": tuple(text for text in _TEXTS if len(text) <= 4),
    "story": _LONG,
    # SQLite cuts off what it reads of JSON at NUL; and servers do not sort
    # by NUL at the end, so that there are no pages by it.
    "word": tuple(text for text in _TEXTS if "\0" not in text),
}


@dataclass
class Rows:
    """Rows by class name, and the ids that statements may name."""

    tables: dict[str, list[dict[str, Any]]]
    ids: dict[str, list[int]]


def make_rows(rng: random.Random, shards: tuple[int, ...]) -> Rows:
    """Return rows of every class; one shard has shops and nothing else."""

    def one(kind: str, nulls: int = 25) -> Any:
        if rng.randrange(100) < nulls:
            return None
        return rng.choice(SAMPLES[kind])

    tables: dict[str, list[dict[str, Any]]] = {
        name: [] for name in ("Shop", "Ware", "Crate", "Mark", "Gem")
    }
    bare = rng.choice(shards)
    for shard in shards:
        shops = [pack(shard, SHOP, k) for k in (1, 2, 3)]
        tables["Shop"] += [
            {
                "id": shop,
                "name": one("text"),
                "general": one("text"),
                "number": one("number"),
            }
            for shop in shops
        ]
        if shard == bare:
            continue
        wares = [pack(shard, WARE, k) for k in range(1, 9)]
        tables["Ware"] += [_ware(ware, one, rng, shops) for ware in wares]
        tables["Crate"] += [
            {"local_id": row["id"], "depth": one("number")}
            for row in tables["Ware"][-len(wares) :]
            if row["kind"] == "crate"
        ]
        tables["Mark"] += [
            {
                "ware_id": ware,
                "name": name,
                "general": one("text"),
                "number": one("number"),
            }
            for ware in wares
            for name in rng.sample(["x", "y", "z"], rng.choice([0, 0, 1, 3]))
        ]
        tables["Gem"] += [
            _gem(pack(shard, GEM, k), rng.choice(wares), one, rng) for k in range(1, 6)
        ]
    _set_spaces(tables["Ware"])
    ids = {
        name: [row["id"] for row in tables[name]] + [pack(shards[0] + 1, t, 1)]
        for name, t in (("Shop", SHOP), ("Ware", WARE), ("Gem", GEM))
    }
    return Rows(tables, ids)


_Chosen = Callable[[str], Any]


def _ware(
    ware: int, one: _Chosen, rng: random.Random, shops: list[int]
) -> dict[str, Any]:
    kinds = ["number", "big", "price", "weight", "size", "sold"]
    kinds += ["day", "moment", "hour", "colour"]
    row = {kind: one(kind) for kind in kinds}
    texts = [key for key in COLLATIONS if key != "word"]
    row |= {key: one(key if key in SAMPLES else "text") for key in texts}
    row["spelled"] = one("colour")
    row["kind"] = rng.choice(("ware", "ware", "crate"))
    return {"id": ware, "shop_id": rng.choice([None, *shops]), **row}


def _set_spaces(wares: list[dict[str, Any]]) -> None:
    """Set texts that are equal in some collations, though their hashes differ.

    Two are of one shop, and one is on another shard.
    """
    for key in COLLATIONS:
        if key in wares[0] and "\u3000" in SAMPLES.get(key, _TEXTS):
            for at, space in ((0, " "), (1, "\u3000"), (-1, "\u3000")):
                wares[at][key] = space
    wares[1]["shop_id"] = wares[0]["shop_id"]


def _gem(gem: int, ware: int, one: _Chosen, rng: random.Random) -> dict[str, Any]:
    kinds = ["number", "price", "weight", "sold", "day", "moment"]
    kinds += ["colour", "rank"]
    row = {kind: one(kind) for kind in kinds}
    row["kind"] = rng.choice(("gem", "gem", "pearl"))
    row["lustre"] = one("number") if row["kind"] == "pearl" else None
    return {"id": gem, "ware_id": ware, "word": one("word"), **row}


def store(rows: Rows, models: Any, session: Any) -> None:
    """Insert the rows through a session of shards, or of one database."""
    for name, table in rows.tables.items():
        if name == "Crate":
            session.execute(insert(models.Crate.__table__), table)
        elif name != "Gem":
            session.execute(insert(getattr(models, name)), [*map(dict, table)])
    for kind, entity in ("gem", models.Gem), ("pearl", models.Pearl):
        gems = [dict(row) for row in rows.tables["Gem"] if row["kind"] == kind]
        for row in gems:
            _translate(row, plain=models.plain)
        session.execute(insert(entity), gems)


def _translate(row: dict[str, Any], *, plain: bool) -> None:
    """Return the values of a row that a blob stores, or its mirror."""
    if row["kind"] == "gem":
        del row["lustre"]
    if plain and row["rank"] is not None:
        row["rank"] = row["rank"].value
    if not plain and row["moment"] is not None:
        row["moment"] = row["moment"].replace(tzinfo=dt.UTC)
