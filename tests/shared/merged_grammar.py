"""Random SELECTs that several shards must answer as one database does.

Every production of :class:`Grammar` is answerable: a refusal of what it makes
is a failure.  The same seed makes the same statement for the shards and for
their mirror.
"""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Callable
from dataclasses import dataclass
from dataclasses import field
from typing import Any

from sqlalchemy import case
from sqlalchemy import distinct
from sqlalchemy import func
from sqlalchemy import or_
from sqlalchemy import select
from sqlalchemy.orm import aliased
from sqlalchemy.orm import joinedload
from sqlalchemy.orm import selectinload
from sqlalchemy.orm import subqueryload

from sqla_shard import scatter
from sqla_shard.orm.expressions import Coded
from tests.shared.merged_data import Rows
from tests.shared.merged_data import SAMPLES
from tests.shared.merged_models import COLLATIONS

__all__ = ["Grammar", "Made", "Value"]

_WARE = ("number", "big", "price", "weight", "size", "sold", "day", "moment")
_WARE += ("hour", "colour", "spelled")
_GEM = ("number", "price", "weight", "sold", "day", "moment", "colour", "rank")
#: Kinds that sum() and avg() take.
_SUMMED = ("big", "number", "price", "weight", "size")


@dataclass
class Value:
    """An expression, and how its values compare.

    :ivar kind: ``id``, or a key of ``SAMPLES``.
    :ivar collation: of a text; None of others.
    """

    expression: Any
    kind: str
    collation: str | None = None


@dataclass
class Made:
    """A statement, and what has to be known to compare its answers.

    :ivar keys: what it is sorted by, spelled out.
    :ivar order: the same, by the position of the column and its direction;
        complete where the rows are distinct.
    :ivar distinct: whether they are.
    :ivar collations: by position, of texts of which a server may show any
        that it takes for equal.
    :ivar limit: its LIMIT, which ``statement`` does not have yet.
    :ivar options: loader options, ``scatter()`` and the like.
    :ivar objects: whether it loads objects.
    :ivar unique: whether rows are repeated for the members of collections.
    """

    statement: Any
    keys: list[Any] = field(default_factory=list)
    order: list[tuple[int, Callable[[Any], Any]]] = field(default_factory=list)
    distinct: bool = False
    collations: dict[int, str] = field(default_factory=dict)
    limit: int | None = None
    options: list[Any] = field(default_factory=list)
    objects: bool = False
    unique: bool = False


class Grammar:
    """Makes one random statement.

    :param rng: seeded alike for both sets of models.
    :param models: :data:`~.merged_models.SHARDED` or ``PLAIN``.
    :param rows: what there is.
    :param dialect: ``sqlite`` or ``mysql``.
    """

    kinds: tuple[str, ...] = (
        *("rows", "rows", "objects", "objects", "distinct", "distinct"),
        *("aggregates", "groups", "groups", "groups"),
    )

    def __init__(
        self, rng: random.Random, models: Any, rows: Rows, dialect: str
    ) -> None:
        self.rng = rng
        self.models = models
        self.rows = rows
        self.dialect = dialect
        self.values: list[Value] = []
        self.joined: list[tuple[Any, Any, bool]] = []
        #: Whether there is a subqueryload(), which takes no order.
        self.subqueries = False

    def chance(self, percent: int) -> bool:
        return self.rng.randrange(100) < percent

    def make(self) -> Made:
        self._sources()
        kind = self.rng.choice(self.kinds)
        made: Made = getattr(self, f"_{kind}")()
        made.statement = self._from(made.statement)
        made.options += self._route(made)
        return made

    # -- what is read

    def _sources(self) -> None:
        """Choose tables, joined by the ids of their shard."""
        m = self.models
        name = self.rng.choice(["Ware", "Ware", "Ware", "Shop", "Gem"])
        first = getattr(m, name)
        if self.chance(30):
            first = aliased(first)
        self.name, self.first = name, first
        self.values = self._values_of(name, first)
        if self.chance(60):
            return
        new = self.rng.choice(
            {"Ware": ["Shop", "Mark", "Gem"]}.get(name, ["Ware"])
        )
        other = getattr(m, new)
        if self.chance(30):
            other = aliased(other)
        if {name, new} == {"Ware", "Shop"}:
            ware, shop = (first, other) if name == "Ware" else (other, first)
            on = ware.shop_id == shop.id
        elif new == "Mark":
            on = other.ware_id == first.id
        else:
            ware, gem = (first, other) if name == "Ware" else (other, first)
            on = gem.ware_id == m.full(ware.id)
        self.joined.append((other, on, self.chance(40)))
        self.values += self._values_of(new, other)

    def _values_of(self, name: str, e: Any) -> list[Value]:
        found = [
            Value(getattr(e, key), "id")
            for key in ("id", "shop_id", "ware_id")
            if hasattr(e, key)
        ]
        kinds = {"Ware": _WARE, "Gem": _GEM}.get(name, ("number",))
        found += [
            Value(getattr(e, key), "colour" if key == "spelled" else key)
            for key in kinds
        ]
        found += [
            Value(getattr(e, key), "text", collation)
            for key, collation in COLLATIONS.items()
            if hasattr(e, key)
        ]
        if name == "Ware":
            found.append(Value(e.story, "text", COLLATIONS["story"]))
        return found

    def _from(self, statement: Any) -> Any:
        statement = statement.select_from(self.first)
        for other, on, outer in self.joined:
            statement = statement.join(other, on, isouter=outer)
        for _ in range(self.rng.choice([0, 0, 1, 2])):
            statement = statement.where(self._condition())
        return statement

    def _route(self, made: Made) -> list[Any]:
        """Name ids of several shards, or all shards."""
        named = self.chance(50)
        if named:
            ids = self.rows.ids[self.name]
            some = self.rng.sample(ids, self.rng.randint(2, len(ids)))
            made.statement = made.statement.where(self.first.id.in_(some))
        return [] if named and self.chance(70) else [scatter()]

    # -- expressions

    def value(self, *kinds: str) -> Value:
        """Return an expression, most often a column."""
        fitting = [v for v in self.values if not kinds or v.kind in kinds]
        chosen = self.rng.choice(fitting)
        return self._derived(chosen) if self.chance(25) else chosen

    def _derived(self, value: Value) -> Value:
        e, kind = value.expression, value.kind
        if kind == "number":
            how = self.rng.randrange(4)
            if how == 0:
                return Value(e + 1, kind)
            if how == 1:
                return Value(func.coalesce(e, 0), kind)
            if how == 2:
                return Value(func.abs(e), kind)
            return Value(case((e > 0, 1), else_=0), kind)
        if kind == "weight":
            return Value(-e, kind)
        if kind == "price":
            return Value(e * 2, kind)
        if kind == "text" and value.collation != "latin1_german2_ci":
            if self.chance(50):
                return Value(func.lower(e), kind, value.collation)
            if value.collation == "utf8mb4_bin":
                return Value(func.coalesce(e, "?"), kind, value.collation)
        return value

    def _condition(self) -> Any:
        if self.chance(20):
            return or_(self._simple(), self._simple())
        return self._simple()

    def _simple(self) -> Any:
        chosen = self.rng.choice([v for v in self.values if v.kind != "id"])
        e = chosen.expression
        how = self.rng.randrange(5)
        if how == 0:
            return e.is_not(None)
        if chosen.kind == "rank" or how == 1:
            return self.first.id.is_not(None)
        sample = SAMPLES[self._sampled(chosen)]
        if chosen.kind in ("colour", "sold") or how == 2:
            return e.in_(self._bound(chosen, self.rng.sample(sample, 2)))
        (least,) = self._bound(chosen, [self.rng.choice(sample)])
        return e >= least if how == 3 else e <= least

    def _sampled(self, value: Value) -> str:
        return "latin" if value.kind == "text" else value.kind

    def _bound(self, value: Value, sample: list[Any]) -> list[Any]:
        """Return values as the column takes them."""
        if value.kind == "moment" and _is_blob(value.expression):
            return [v.replace(tzinfo=dt.timezone.utc) for v in sample]
        return sample

    # -- sorting

    def _sorted(self, made: Made, values: list[Value], *, total: bool) -> Made:
        """Sort by some of the values; by ids at the end, if asked."""
        count = min(self.rng.randint(1, 3), len(values))
        for at in self.rng.sample(range(len(values)), count):
            directed = self._direction()
            made.keys.append(directed(values[at].expression))
            made.order.append((at, directed))
        if total:
            others = [other for other, _, _ in self.joined]
            made.keys += [
                self._direction()(e.id if hasattr(e, "id") else e.name)
                for e in (self.first, *others)
            ]
        made.statement = made.statement.order_by(*made.keys)
        return made

    def _direction(self) -> Callable[[Any], Any]:
        # MariaDB has no words for NULLS FIRST.
        nulls = [None, "nulls_last", "nulls_first"]
        nulls = nulls if self.dialect == "sqlite" else [None]
        words = (
            self.rng.choice([None, "asc", "desc"]),
            self.rng.choice(nulls),
        )

        def directed(element: Any) -> Any:
            for word in words:
                element = getattr(element, word)() if word else element
            return element

        return directed

    def _limited(self, made: Made, percent: int = 60) -> Made:
        if self.chance(percent):
            made.limit = self.rng.choice([0, 1, 2, 3, 5, 9, 50])
        return made

    # -- productions

    def _rows(self) -> Made:
        values = [self.value() for _ in range(self.rng.randint(1, 4))]
        shown = [self._shown(v.expression, i) for i, v in enumerate(values)]
        made = Made(select(*shown))
        if self.chance(80):
            pool = values if self.chance(50) else [self.value(), *values]
            made = self._sorted(made, pool, total=self.chance(50))
            made = self._limited(made)
        return made

    def _shown(self, expression: Any, index: int) -> Any:
        # Twice the same column is one column to SQLAlchemy, and its keys
        # are not what is tested here.
        return expression.label(f"c{index}")

    def _objects(self) -> Made:
        shown: list[Any] = [self.first]
        if self.joined and self.chance(40):
            other, _, _ = self.joined[0]
            shown.append(other)
        if self.chance(30):
            shown.append(self.value().expression.label("beside"))
        made = Made(select(*shown), objects=True)
        loader = self._loader(made)
        if loader is not None:
            made.options.append(loader)
        if self.chance(70) and not self.subqueries:
            total = made.unique or self.chance(60)
            values = [self.value(), self.value()]
            made = self._sorted(made, values, total=total)
            if not made.unique:
                made = self._limited(made)
        return made

    def _loader(self, made: Made) -> Any:
        """Return an eager load of the first class."""
        first = self.first
        how = self.rng.choice([selectinload, joinedload, subqueryload, None])
        if how is None or self.name == "Gem":
            return None
        self.subqueries = how is subqueryload
        if self.name == "Shop":
            made.unique = how is joinedload
            loader = how(first.wares)
            if self.chance(40):
                loader = loader.selectinload(self.models.Ware.marks)
            return loader
        if self.chance(50) or self.subqueries:
            made.unique = how is joinedload
            return how(first.marks)
        loader = how(first.shop)
        if self.chance(30):
            loader = loader.selectinload(self.models.Shop.wares)
        return loader

    def _distinct(self) -> Made:
        values = [self.value() for _ in range(self.rng.randint(1, 3))]
        if self.chance(20):
            values.append(Value(self.first.id, "id"))
        made = self._alike(values)
        made.statement = made.statement.distinct()
        made.distinct = True
        if self.chance(60):
            made = self._limited(self._sorted(made, values, total=False))
        return made

    def _alike(self, values: list[Value]) -> Made:
        """Select values of which a server shows one for many."""
        shown = [self._shown(v.expression, i) for i, v in enumerate(values)]
        made = Made(select(*shown))
        self._note(made, values)
        return made

    def _note(self, made: Made, values: list[Value]) -> None:
        made.collations = {
            i: v.collation for i, v in enumerate(values) if v.collation
        }

    def _aggregate(self) -> Value:
        how = self.rng.choice(["count", "rows", "sum", "avg", "min", "max"])
        if how == "rows":
            return Value(func.count(), "number")
        if how in ("sum", "avg"):
            # A sum that overflows is an error to SQLite.
            chosen = self.value(*_SUMMED[self.dialect == "sqlite" :])
            made = getattr(func, how)(chosen.expression)
            if how == "sum" and self.chance(30):
                made = func.coalesce(made, 0)
            return Value(made, "number")
        if how == "count":
            if self.chance(30):
                ids = distinct(self.first.id)
                return Value(func.count(ids), "number")
            return Value(func.count(self.value().expression), "number")
        chosen_value = self._compared()
        made = getattr(func, how)(chosen_value.expression)
        return Value(made, chosen_value.kind, chosen_value.collation)

    def _compared(self) -> Value:
        """Return what min() and max() compare as ORDER BY does."""
        while True:
            value = self.value()
            # The least local id of a shard; and MariaDB compares an ENUM
            # in min() as text.
            if value.kind not in ("id", "colour", "rank"):
                return value

    def _aggregates(self) -> Made:
        count = self.rng.randint(1, 4)
        return self._alike([self._aggregate() for _ in range(count)])

    def _groups(self) -> Made:
        # MariaDB refuses one expression twice.
        keys = [self.value()]
        if self.chance(50) and (other := self.value()) != keys[0]:
            keys.append(other)
        if self.chance(15):
            keys.append(Value(self.first.id, "id"))
        made_of = [self._aggregate() for _ in range(self.rng.randint(0, 3))]
        shown = [*keys, *made_of]
        if self.chance(20):
            shown = made_of or keys
        made = self._alike(shown)
        by = [key.expression for key in keys]
        made.statement = made.statement.group_by(*by)
        if self.chance(70):
            pool = [*keys, *made_of]
            if self.chance(30):
                pool.append(self._aggregate())
            made = self._limited(self._sorted(made, pool, total=False))
        return made


def _is_blob(expression: Any) -> bool:
    return isinstance(expression.type, Coded)
