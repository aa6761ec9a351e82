"""Tables and ids for random statements."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy.orm import aliased

from tests.models.data import Rows
from tests.models.models import BOARD, COMMENT, NOTE, PIN


@dataclass
class Id:
    """A column of ids.

    :ivar type_id: of the objects that it names.
    :ivar whole: whether shards store the whole id in it.
    """

    column: Any
    type_id: int
    whole: bool = False


@dataclass
class Source:
    """One FROM of a SELECT."""

    entity: Any
    ids: list[Id]
    numbers: list[Any]
    texts: list[Any] = field(default_factory=list)

    @property
    def columns(self) -> list[Any]:
        return [i.column for i in self.ids] + self.numbers + self.texts


class Tables:
    """Chooses tables and ids.

    :param rng: seeded alike for both sets of models.
    :param models: :data:`~.models.SHARDED` or :data:`~.models.PLAIN`.
    :param rows: what there is.
    """

    def __init__(self, rng: random.Random, models: Any, rows: Rows) -> None:
        self.rng = rng
        self.models = models
        self.rows = rows
        self.label = 0
        #: Whether subqueries in FROM may be common table expressions.
        self.ctes = True

    def chance(self, percent: int) -> bool:
        return self.rng.randrange(100) < percent

    def table(self, used: set[str]) -> Source:
        models = self.models
        name = self.rng.choice(
            ["Pin", "Pin", "Comment", "Comment", "Board", "Tag", "Note"]
        )
        e: Any = getattr(models, name)
        if name in used or self.chance(40):
            e = aliased(e)
        else:
            used.add(name)
        return self.described(name, e)

    def described(self, name: str, e: Any) -> Source:
        if name == "Pin":
            ids = [
                Id(e.id, PIN),
                Id(e.root_id, PIN),
                Id(e.home_id, BOARD, whole=True),
                Id(e.board_id, BOARD, whole=True),
            ]
            return Source(e, ids, [e.n], [e.title])
        if name == "Comment":
            ids = [Id(e.id, COMMENT), Id(e.pin_id, PIN), Id(e.reply_to_id, COMMENT)]
            return Source(e, ids, [e.n], [e.body])
        if name == "Board":
            return Source(e, [Id(e.id, BOARD)], [e.n], [e.name])
        if name == "Tag":
            return Source(e, [Id(e.pin_id, PIN)], [e.n], [e.name])
        ids = [Id(e.id, NOTE), Id(e.pin_id, PIN, whole=True)]
        return Source(e, ids, [e.n], [e.text])

    # -- ids

    def tie(self, new: Source, sources: list[Source]) -> Any:
        """Return an equality of ids of two sources, or None."""
        pairs = [
            (a, b)
            for s in sources
            for a in s.ids
            for b in new.ids
            if a.type_id == b.type_id
        ]
        if not pairs:
            return None
        a, b = self.rng.choice(pairs)
        return self.compared(a, b, "==")

    def compared(self, a: Id, b: Id, how: str) -> Any:
        left, right = self.like(a, b)
        if self.chance(50):
            left, right = right, left
        if how == "==":
            return left == right
        if how == "!=":
            return left != right
        return left < right

    def like(self, a: Id, b: Id) -> tuple[Any, Any]:
        """Return two columns of ids in forms that compare."""
        left, right = a.column, b.column
        if a.whole and not b.whole:
            right = self.models.full(right)
        if b.whole and not a.whole:
            left = self.models.full(left)
        return left, right

    def value(self, type_id: int) -> int:
        return self.rng.choice(self.rows.ids[type_id])

    def values(self, type_id: int) -> list[int]:
        """Return ids, half of the time of one shard."""
        ids = self.rows.ids[type_id]
        if self.chance(50):
            shard = self.rng.choice(ids) >> 46
            ids = [i for i in ids if i >> 46 == shard]
        return self.rng.sample(ids, self.rng.randint(1, min(4, len(ids))))

    def pin(self, sources: list[Source]) -> Any:
        """Return a condition that names ids."""
        first = sources[0] if self.chance(80) else self.rng.choice(sources)
        chosen = first.ids[0] if self.chance(70) else self.rng.choice(first.ids)
        if self.chance(55):
            return chosen.column == self.value(chosen.type_id)
        values = self.values(chosen.type_id)
        return chosen.column.in_([] if self.chance(4) else values)
