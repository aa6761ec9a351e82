"""Random SELECTs that several shards must answer as one database does.

Every production of :class:`Grammar` is answerable: a refusal of what it makes
is a failure.  The same seed makes the same statement for the shards and for
their mirror.
"""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from sqlalchemy import (
    asc,
    case,
    cast,
    desc,
    distinct,
    func,
    literal,
    nulls_first,
    nulls_last,
    or_,
    select,
)
from sqlalchemy.orm import (
    aliased,
    joinedload,
    selectinload,
    subqueryload,
    with_loader_criteria,
    with_polymorphic,
)

from sqla_shard import scatter
from sqla_shard.models.field_types import Coded
from tests.models.merged_data import Rows, SAMPLES
from tests.models.merged_models import COLLATIONS, CoreTable

_WARE = ("number", "big", "price", "weight", "size", "sold", "day", "moment")
_WARE += ("hour", "colour", "spelled")
_GEM = ("number", "price", "weight", "sold", "day", "moment", "colour", "rank")
_WORDS = {
    "asc": asc,
    "desc": desc,
    "nulls_first": nulls_first,
    "nulls_last": nulls_last,
}
_SUBCLASSES = {"Ware": "Crate", "Gem": "Pearl"}
#: Kinds of which a field has another format than a column.
_FORMATTED = ("moment", "colour")
#: Kinds that sum() and avg() take.
_SUMMED = ("big", "number", "price", "weight", "size")


@dataclass
class Value:
    """An expression, and how its values compare.

    :ivar kind: ``id``, or a key of ``SAMPLES``.
    :ivar collation: of a text; None of others.
    :ivar label: under which it is shown, if it is.
    :ivar is_field: whether it is a field of a blob, on the shards.
    """

    expression: Any
    kind: str
    collation: str | None = None
    label: str | None = None
    is_field: bool = False


@dataclass
class Made:
    """A statement, and the properties needed to compare its results.

    :ivar keys: what it is sorted by, spelled out.
    :ivar order: the same, by the position of the column and its direction;
        complete where the rows are distinct.
    :ivar distinct: whether they are.
    :ivar collations: by position, of texts of which a server may show any
        that it takes for equal.
    :ivar limit: its LIMIT, which ``statement`` does not have yet.
    :ivar offset: its OFFSET, the same.
    :ivar options: loader options, ``scatter()`` and the like.
    :ivar objects: whether it loads objects.
    :ivar unique: whether rows are repeated for the members of collections.
    :ivar whole: whether ``statement`` has its FROM.
    :ivar counted: the SELECT whose rows ``statement`` counts, if it does.
    :ivar keyed: whether an id is in each distinct row or group, so that all of
        its rows are on one shard.
    :ivar maker: the grammar with its aliases, of which SQLAlchemy has weak
        references.
    """

    statement: Any
    keys: list[Any] = field(default_factory=list)
    order: list[tuple[int, Callable[[Any], Any]]] = field(default_factory=list)
    distinct: bool = False
    collations: dict[int, str] = field(default_factory=dict)
    limit: int | None = None
    offset: int = 0
    options: list[Any] = field(default_factory=list)
    objects: bool = False
    unique: bool = False
    whole: bool = False
    counted: Any = None
    keyed: bool = False
    maker: Any = None


def _source(entity: Any) -> Any:
    return entity.table if isinstance(entity, CoreTable) else entity


class Grammar:
    """Makes one random statement.

    :param rng: seeded alike for both sets of models.
    :param models: :data:`~.merged_models.SHARDED` or ``PLAIN``.
    :param rows: what there is.
    :param dialect: ``sqlite`` or ``mysql``.
    """

    kinds: tuple[str, ...] = (
        *("rows", "rows", "objects", "objects", "distinct", "distinct"),
        *("wrapped", "counted", "counted"),
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
        #: Whether it is made of tables, not of classes.
        self.core = False
        #: Whether there is a subqueryload(), which takes no order.
        self.subqueries = False

    def chance(self, percent: int) -> bool:
        return self.rng.randrange(100) < percent

    def make(self) -> Made:
        self._sources()
        kind = self.rng.choice(self.kinds)
        if self.core and kind == "objects":
            kind = "rows"
        made: Made = getattr(self, f"_{kind}")()
        if not self.core and self.chance(30):
            made.options.append(self._criteria())
        if made.whole:
            made.options.append(scatter())
            return made
        made.statement = self._from(made.statement)
        made.options += self._route(made)
        return made

    # -- columns and tables

    def _sources(self) -> None:
        """Choose tables, joined by the ids of their shard."""
        m = self.models
        name = self.rng.choice(["Ware", "Ware", "Ware", "Shop", "Gem"])
        # The fields of a blob are the class's alone.
        self.core = name != "Gem" and self.chance(25)
        first = self._entity(name)
        self.name, self.first = name, first
        self.values = self._values_of(name, first)
        if self.chance(60):
            return
        fitting = {"Ware": ["Shop", "Mark", "Gem"]}.get(name, ["Ware"])
        new = self.rng.choice(fitting[:2] if self.core else fitting)
        other = self._entity(new)
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

    def _entity(self, name: str) -> Any:
        entity = getattr(self.models, name)
        if self.core:
            table = entity.__table__
            return CoreTable(table.alias() if self.chance(30) else table)
        if name in _SUBCLASSES and self.chance(25):
            below = getattr(self.models, _SUBCLASSES[name])
            if self.chance(30):
                return with_polymorphic(entity, [below])
            entity = below
        return aliased(entity) if self.chance(30) else entity

    def _values_of(self, name: str, e: Any) -> list[Value]:
        found = [
            Value(getattr(e, key), "id")
            for key in ("id", "shop_id", "ware_id")
            if hasattr(e, key)
        ]
        kinds = {"Ware": _WARE, "Gem": _GEM}.get(name, ("number",))
        found += [
            Value(
                getattr(e, key),
                "colour" if key == "spelled" else key,
                is_field=name == "Gem",
            )
            for key in kinds
        ]
        below = e
        if name in _SUBCLASSES:
            below = getattr(e, getattr(self.models, _SUBCLASSES[name]).__name__, e)
        for key in ("twice", "score", "depth", "lustre"):
            if hasattr(below, key):
                is_field = key == "lustre"
                found.append(Value(getattr(below, key), "number", is_field=is_field))
        found += [
            Value(getattr(e, key), "text", collation)
            for key, collation in COLLATIONS.items()
            if hasattr(e, key)
        ]
        if name == "Ware":
            collation = COLLATIONS["story"]
            found.append(Value(e.story, "text", collation))
            # Longer than what its type says.
            shown = func.coalesce(e.nick, e.story)
            found.append(Value(shown, "text", collation))
        return found

    def _from(self, statement: Any) -> Any:
        statement = statement.select_from(_source(self.first))
        for other, on, outer in self.joined:
            statement = statement.join(_source(other), on, isouter=outer)
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

    def _related(self) -> Any:
        """Return a condition on rows that relationships lead to."""
        m, first = self.models, self.first
        number = self.rng.randint(0, 2)
        if self.name == "Shop" and self.chance(30):
            return first.wares.of_type(m.Crate).any(m.Crate.depth > number)
        if self.name == "Shop":
            return first.wares.any(m.Ware.number > number)
        if self.chance(50):
            return first.marks.any(m.Mark.number <= number)
        return first.shop.has(m.Shop.number < number)

    def _condition(self) -> Any:
        if self.name != "Gem" and not self.core and self.chance(15):
            return self._related()
        fields = [v for v in self.values if v.is_field and v.kind in _FORMATTED]
        if fields and self.chance(40):
            return self._beside(self.rng.choice(fields))
        if self.chance(20):
            return or_(self._simple(), self._simple())
        return self._simple()

    def _beside(self, chosen: Value) -> Any:
        """Compare what a function or CASE chooses from a field and a value."""
        (given,) = self._bound(chosen, [self.rng.choice(SAMPLES[chosen.kind])])
        e = chosen.expression
        other = self._typed(given, e) if self.models.plain else given
        columns = [v for v in self.values if v.kind == "moment" and not v.is_field]
        if chosen.kind == "moment" and columns and self.chance(50):
            other = self.rng.choice(columns).expression
        made = func.coalesce(e, other)
        if self.chance(50):
            made = case((e.is_not(None), e), else_=other)
        return made.in_([given])

    def _simple(self) -> Any:
        chosen = self.rng.choice([v for v in self.values if v.kind != "id"])
        e = chosen.expression
        if chosen.is_field and chosen.kind != "rank" and self.chance(30):
            # A value beside a field has the format of the field.
            (given,) = self._bound(chosen, [self.rng.choice(SAMPLES[chosen.kind])])
            e = func.coalesce(e, self._typed(given, e) if self.models.plain else given)
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

    def _typed(self, given: Any, column: Any) -> Any:
        """Return a value as one of a column, to which it is compared."""
        typed = literal(given, column.type)
        # To servers a time without a type is a text.
        is_text = self.dialect != "sqlite" and isinstance(given, dt.date)
        return cast(typed, column.type) if is_text else typed

    def _sampled(self, value: Value) -> str:
        return "latin" if value.kind == "text" else value.kind

    def _bound(self, value: Value, sample: list[Any]) -> list[Any]:
        """Return values as the column takes them."""
        if value.kind == "moment" and _is_blob(value.expression):
            return [v.replace(tzinfo=dt.UTC) for v in sample]
        return sample

    def _criteria(self) -> Any:
        """Return a condition on all rows of a class."""
        entity = getattr(self.models, self.name)
        condition = entity.number.is_distinct_from(self.rng.randint(0, 2))
        made: Any = with_loader_criteria
        return made(entity, condition, include_aliases=True)

    # -- sorting

    def _sorted(self, made: Made, values: list[Value], *, total: bool) -> Made:
        """Sort by some of the values; by ids at the end, if asked."""
        named: list[Any] = []
        count = min(self.rng.randint(1, 3), len(values))
        for at in self.rng.sample(range(len(values)), count):
            directed = self._direction()
            made.keys.append(directed(values[at].expression))
            made.order.append((at, directed))
            named.append(self._named(values[at], made.keys[-1], directed))
        if total:
            others = [other for other, _, _ in self.joined]
            last = [
                self._direction()(e.id if hasattr(e, "id") else e.name)
                for e in (self.first, *others)
            ]
            made.keys += last
            named += last
        made.statement = made.statement.order_by(*named)
        return made

    def _named(self, value: Value, key: Any, directed: Any) -> Any:
        """Return a key of ORDER BY, or the name of a label in its place."""
        if value.label is None or self.chance(75):
            return key
        return directed(value.label)

    def _direction(self) -> Callable[[Any], Any]:
        # MariaDB has no words for NULLS FIRST.
        nulls = [None, "nulls_last", "nulls_first"]
        nulls = nulls if self.dialect == "sqlite" else [None]
        words = (self.rng.choice([None, "asc", "desc"]), self.rng.choice(nulls))

        def directed(element: Any) -> Any:
            for word in words:
                element = _WORDS[word](element) if word else element
            return element

        return directed

    def _limited(self, made: Made, percent: int = 60) -> Made:
        if self.chance(percent):
            made.limit = self.rng.choice([0, 1, 2, 3, 5, 9, 50])
            made.offset = self.rng.choice([0, 0, 0, 1, 4, 30])
        return made

    # -- productions

    def _rows(self) -> Made:
        values = [self.value() for _ in range(self.rng.randint(1, 4))]
        made = Made(select(*self._labelled(values)))
        if self.chance(80):
            pool = values if self.chance(50) else [self.value(), *values]
            made = self._sorted(made, pool, total=self.chance(50))
            made = self._limited(made)
        return made

    def _wrapped(self) -> Made:
        """Read from a subquery, or a CTE."""
        fitting = [v for v in self.values if v.kind not in ("id", "colour")]
        values = [self.rng.choice(fitting) for _ in range(3)]
        values = [self._derived(v) if self.chance(25) else v for v in values]
        inner = self._from(select(*self._labelled(values)))
        source = inner.cte() if self.chance(50) else inner.subquery()
        values = [
            replace(v, expression=source.c[f"c{at}"], label=None)
            for at, v in enumerate(values)
        ]
        made = Made(select(*self._labelled(values)), whole=True)
        if self.chance(30):
            made = self._alike(values)
            made.statement = made.statement.distinct()
            made.distinct = made.whole = True
        return self._limited(self._sorted(made, values, total=False))

    def _counted(self) -> Made:
        """Count distinct rows, or groups."""
        values = [self.value() for _ in range(self.rng.randint(1, 2))]
        if str(values[0].expression) == str(values[-1].expression):
            del values[1:]  # MariaDB refuses one expression twice.
        inner = select(*self._labelled(values))
        # The columns may be all that names the class.
        implied = not self.joined and self.chance(60)
        if not implied:
            inner = self._from(inner)
        if self.chance(50):
            inner = inner.distinct()
        else:
            inner = inner.group_by(*[v.expression for v in values])
            if self.chance(40):
                inner = inner.add_columns(func.count().label("n"))
            if self.chance(40):
                inner = inner.having(func.count() > 1)
        shown = select(func.count()).select_from(inner.subquery())
        return Made(shown, whole=True, counted=inner, keyed=_has_id(values))

    def _labelled(self, values: list[Value]) -> list[Any]:
        # Twice the same column is one column to SQLAlchemy, and its keys
        # are not what is tested here.
        for at, value in enumerate(values):
            values[at] = replace(value, label=f"c{at}")
        return [value.expression.label(value.label) for value in values]

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
        made.keyed = _has_id(values)
        if self.chance(60):
            made = self._limited(self._sorted(made, values, total=False))
        return made

    def _alike(self, values: list[Value]) -> Made:
        """Select values of which a server shows one for many."""
        made = Made(select(*self._labelled(values)))
        made.collations = {i: v.collation for i, v in enumerate(values) if v.collation}
        return made

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
            if self.chance(60):
                counted = self.first.id
                if self.chance(50):
                    counted = self.value("number").expression
                return Value(func.count(distinct(counted)), "number")
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
        values = [self._aggregate() for _ in range(count)]
        if self.chance(80 if self.joined else 40):
            # One of ids, which are of one shard each, beside another; an id may
            # have several numbers of what is joined.
            both = [self.value("id").expression, self.value("number").expression]
            if self.joined:
                both = [self.first.id, self.joined[0][0].number]
            values += [Value(func.count(distinct(one)), "number") for one in both]
        return self._alike(values)

    def _groups(self) -> Made:
        keys = [self.value()]
        other = self.value()
        # MariaDB refuses one expression twice.
        if self.chance(50) and str(other.expression) != str(keys[0].expression):
            keys.append(other)
        if self.chance(15):
            keys.append(Value(self.first.id, "id"))
        made_of = [self._aggregate() for _ in range(self.rng.randint(0, 3))]
        shown = [*keys, *made_of]
        named = self.chance(15)
        if not named and self.chance(20):
            shown = made_of or keys
        made = self._alike(shown)
        made.keyed = _has_id(keys)
        by = [f"c{at}" if named else key.expression for at, key in enumerate(keys)]
        made.statement = made.statement.group_by(*by)
        pool = [*shown, *keys]
        if self.chance(70):
            if self.chance(30):
                pool.append(self._aggregate())
            made = self._limited(self._sorted(made, pool, total=False))
        return made


def _has_id(values: list[Value]) -> bool:
    return any(value.kind == "id" for value in values)


def _is_blob(expression: Any) -> bool:
    return isinstance(expression.type, Coded)
