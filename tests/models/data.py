"""Rows for the random statements, on a few shards and in one database."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import insert

from sqla_shard import Cluster
from tests.models.layouts import pack
from tests.models.models import BOARD, COMMENT, NOTE, PIN


@dataclass
class Rows:
    """Rows by class name, and the ids that statements may name."""

    tables: dict[str, list[dict[str, Any]]]
    ids: dict[int, list[int]] = field(default_factory=dict)


def make_rows(rng: random.Random, shards: tuple[int, ...]) -> Rows:
    """Return rows of every class on every one of the shards.

    Numbers are few and often NULL, so that conditions meet; references
    among them are NULL often enough to matter.
    """
    tables: dict[str, list[dict[str, Any]]] = {
        name: [] for name in ("Board", "Pin", "Comment", "Tag", "Note")
    }

    def number() -> int | None:
        return rng.choice([None, 0, 1, 2, 3])

    # On one of the shards pins have no comments, and there are none.
    empty = rng.choice(shards)
    every_board = [pack(s, BOARD, k) for s in shards for k in (1, 2)]
    for shard in shards:
        boards = [pack(shard, BOARD, k) for k in (1, 2)]
        for k, board in enumerate(boards):
            tables["Board"].append({"id": board, "name": f"b{k}", "n": number()})
        pins: list[int] = []
        for k in range(1, rng.randint(2, 4) + 1):
            pin = pack(shard, PIN, k)
            tables["Pin"].append(
                {
                    "id": pin,
                    "title": f"t{rng.randint(0, 2)}",
                    "n": number(),
                    "board_id": rng.choice([None, *every_board]),
                    "home_id": rng.choice([None, *boards]),
                    "root_id": rng.choice([None, *pins]),
                }
            )
            pins.append(pin)
        comments: list[int] = []
        count = 0 if shard == empty else rng.randint(2, 6)
        for k in range(1, count + 1):
            comment = pack(shard, COMMENT, k)
            tables["Comment"].append(
                {
                    "id": comment,
                    "pin_id": rng.choice(pins),
                    "body": f"c{rng.randint(0, 2)}",
                    "n": number(),
                    "reply_to_id": rng.choice([None, *comments]),
                }
            )
            comments.append(comment)
        for pin in pins:
            for name in rng.sample(["x", "y", "z"], rng.randint(0, 2)):
                tables["Tag"].append({"pin_id": pin, "name": name, "n": number()})
        for k in range(1, rng.randint(1, 3) + 1):
            tables["Note"].append(
                {
                    "id": pack(shard, NOTE, k),
                    "pin_id": rng.choice(pins),
                    "text": f"n{rng.randint(0, 2)}",
                    "n": number(),
                }
            )
    found = Rows(tables)
    for type_id, name in (
        (PIN, "Pin"),
        (BOARD, "Board"),
        (COMMENT, "Comment"),
        (NOTE, "Note"),
    ):
        ids = [row["id"] for row in tables[name]]
        # And some that no row has, on a shard with rows and on one without.
        ids += [pack(shards[0], type_id, 77), pack(shards[0] + 1, type_id, 1)]
        found.ids[type_id] = ids
    return found


def store(rows: Rows, models: Any, target: Cluster | Any) -> None:
    """Insert the rows into a cluster, or through a session of one database."""
    if isinstance(target, Cluster):
        with target.begin(cross_shard="unordered") as session:
            _insert(rows, models, session)
    else:
        _insert(rows, models, target)


def _insert(rows: Rows, models: Any, session: Any) -> None:
    for name, table in rows.tables.items():
        if table:
            session.execute(insert(getattr(models, name)), [dict(row) for row in table])
