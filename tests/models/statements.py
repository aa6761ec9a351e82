"""Random statements, for the classes on shards and for their mirror.

A :class:`Maker` with the same seed makes the same statement for both sets
of models.  Most statements name ids in one way or another, for otherwise
nearly all of them would be refused; some do not.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    and_,
    case,
    exists,
    func,
    literal,
    not_,
    or_,
    select,
    union,
    union_all,
)
from sqlalchemy.orm import join

from tests.models.sources import Id, Source, Tables


class Maker(Tables):
    """Makes one random statement."""

    # -- sources

    def source(self, depth: int, used: set[str]) -> Source:
        if depth > 0 and self.chance(25):
            return self.derived(depth - 1)
        return self.table(used)

    def fitting(self, depth: int, used: set[str], others: list[Source]) -> Source:
        """Return a source that has ids of a type in common with others."""
        types = {i.type_id for s in others for i in s.ids}
        before = set(used)
        for _ in range(4):
            used.clear()
            used |= before
            made = self.source(depth, used)
            if any(i.type_id in types for i in made.ids):
                break
        return made

    def derived(self, depth: int) -> Source:
        """Return a subquery or a CTE."""
        select_, ids, _ = self.inner_select(depth)
        if self.chance(15):
            other, ids2, _ = self.inner_select(depth)
            plain = all(m._limit_clause is None for m in (select_, other))
            if plain and len(ids) == len(ids2):
                same = [
                    (a.type_id, a.whole) == (b.type_id, b.whole)
                    for a, b in zip(ids, ids2, strict=True)
                ]
                if all(same) and len(select_.selected_columns) == len(
                    other.selected_columns
                ):
                    combine = self.rng.choice([union, union_all])
                    select_ = combine(select_, other)
        common = self.chance(40) and self.ctes
        made: Any = select_.cte() if common else select_.subquery()
        if self.chance(15) and hasattr(made, "alias"):
            made = made.alias()
        columns = list(made.c)
        return Source(
            made,
            [Id(columns[at], i.type_id, i.whole) for at, i in enumerate(ids)],
            columns[len(ids) :],
        )

    def inner_select(self, depth: int) -> tuple[Any, list[Id], list[Any]]:
        sources, froms, wheres = self.froms(depth)
        ids = (
            self.rng.sample([i for s in sources for i in s.ids], self.rng.randint(1, 2))
            if sum(len(s.ids) for s in sources) > 1
            else sources[0].ids[:1]
        )
        numbers: list[Any] = [sources[0].numbers[0]]
        if self.chance(50):
            wheres.append(self.pin(sources))
        if self.chance(40):
            wheres.append(self.condition(sources, depth))
        if self.chance(30):
            numbers = [func.count(), func.sum(sources[0].numbers[0])]
            keys = [self.labelled(i.column) for i in ids]
            made = select(*keys, *map(self.labelled, numbers))
            made = made.group_by(*[i.column for i in ids])
            if self.chance(30):
                made = made.having(func.count() > 1)
        else:
            made = select(
                *[self.labelled(i.column) for i in ids], *map(self.labelled, numbers)
            )
            if self.chance(15):
                made = made.distinct()
            elif self.chance(30):
                every = [c for s in sources for c in s.columns]
                made = made.order_by(*every).limit(self.rng.randint(1, 3))
        made = made.select_from(*froms).where(*wheres)
        return made, ids, numbers

    def labelled(self, column: Any) -> Any:
        self.label += 1
        return column.label(f"c{self.label}")

    def froms(
        self, depth: int, outer: list[Source] | None = None
    ) -> tuple[list[Source], list[Any], list[Any]]:
        """Return sources, the elements of FROM, and conditions of joins."""
        used: set[str] = set()
        if outer:
            sources = [self.fitting(depth, used, outer)]
        else:
            sources = [self.source(depth, used)]
        tree, joined = sources[0].entity, sources[:]
        commas: list[Any] = []
        wheres: list[Any] = []
        for _ in range(self.rng.choice([0, 0, 0, 1, 1, 2])):
            new = self.fitting(depth, used, sources)
            how = self.rng.choice(["comma", "join", "join", "outer", "outer"])
            if how == "comma":
                wheres.append(self.on(new, sources, depth))
                commas.append(new.entity)
                sources.append(new)
                continue
            added, right = [new], new.entity
            if self.chance(20):
                # A join on the right side of a join.
                inner = self.fitting(depth, used, added)
                outer = self.chance(50)
                on = self.on(inner, added, depth)
                right = join(right, inner.entity, on, isouter=outer)
                added.append(inner)
            on = self.on(self.rng.choice(added), joined, depth, added)
            tree = join(tree, right, on, isouter=how == "outer")
            joined += added
            sources += added
        return sources, [tree, *commas], wheres

    def on(
        self,
        new: Source,
        others: list[Source],
        depth: int,
        added: list[Source] | None = None,
    ) -> Any:
        """Return a condition that joins a source to others."""
        every = [*others, *(added or [new])]
        made = self.tie(new, others) if self.chance(88) else None
        if made is None:
            return self.condition(every, 0)
        if self.chance(20):
            return and_(made, self.condition(every, depth - 1))
        return made

    # -- conditions

    def condition(self, sources: list[Source], depth: int) -> Any:
        """Return any condition."""
        kinds = ["number"] * 3 + ["id"] * 3 + ["ids", "text"]
        if depth > 0:
            kinds += ["not", "and", "or", "or", "exists", "exists", "in"]
            kinds += ["in", "scalar", "case", "relation"]
        return getattr(self, f"_{self.rng.choice(kinds)}")(sources, depth)

    def _number(self, sources: list[Source], depth: int) -> Any:
        column = self.rng.choice(self.rng.choice(sources).numbers)
        how = self.rng.randrange(5)
        value = self.rng.randint(0, 3)
        if how == 0:
            return column.is_(None)
        if how <= 2:
            return column < value
        if how == 3:
            other = self.rng.choice(self.rng.choice(sources).numbers)
            return column <= other
        return column == value

    def _text(self, sources: list[Source], depth: int) -> Any:
        texts = [t for s in sources for t in s.texts]
        if not texts:
            return self._number(sources, depth)
        return self.rng.choice(texts).like(f"%{self.rng.randint(0, 2)}")

    def _id(self, sources: list[Source], depth: int) -> Any:
        chosen = self.rng.choice(self.rng.choice(sources).ids)
        kind = chosen.type_id
        column, value = chosen.column, self.value(kind)
        how = self.rng.randrange(9)
        if how == 0:
            return column != value
        if how == 1:
            return column < value
        if how == 2:
            return column.between(*sorted([value, self.value(kind)]))
        if how == 3:
            return column.not_in(self.values(chosen.type_id))
        if how == 4:
            return column.is_(None)
        if how <= 6:
            return column.in_(self.values(chosen.type_id))
        return column == value

    def _ids(self, sources: list[Source], depth: int) -> Any:
        made = self.tie(self.rng.choice(sources), sources)
        if made is None:
            return self._number(sources, depth)
        a = self.rng.choice(sources).ids[0]
        others = [i for s in sources for i in s.ids if i.type_id == a.type_id]
        how = self.rng.choice(["==", "!=", "<"])
        return self.compared(a, self.rng.choice(others), how)

    def _not(self, sources: list[Source], depth: int) -> Any:
        return not_(self.condition(sources, depth - 1))

    def _and(self, sources: list[Source], depth: int) -> Any:
        return and_(
            self.condition(sources, depth - 1), self.condition(sources, depth - 1)
        )

    def _or(self, sources: list[Source], depth: int) -> Any:
        if self.chance(40):
            return or_(self.pin(sources), self.pin(sources))
        return or_(
            self.condition(sources, depth - 1), self.condition(sources, depth - 1)
        )

    def _case(self, sources: list[Source], depth: int) -> Any:
        return case(
            (self.condition(sources, depth - 1), 1), else_=0
        ) == self.rng.randint(0, 1)

    def subselect(self, outer: list[Source], depth: int, columns: Any) -> Any:
        """Return a correlated or an independent SELECT of columns."""
        sources, froms, wheres = self.froms(depth - 1, outer)
        chosen = columns(sources)
        if chosen is None:
            return None
        made = select(*chosen).select_from(*froms)
        if self.chance(70):
            tie = self.tie(sources[0], outer)
            if tie is not None:
                wheres.append(tie)
        if self.chance(30):
            wheres.append(self.pin(sources))
        if self.chance(50):
            wheres.append(self.condition([*sources, *outer], depth - 1))
        made = made.where(*wheres)
        # SQLAlchemy takes outer tables from the next SELECT alone, unless
        # told; both are to be seen here.
        if self.chance(50):
            made = made.correlate(*[s.entity for s in outer])
        return made

    def _exists(self, sources: list[Source], depth: int) -> Any:
        made = self.subselect(sources, depth, lambda found: [literal(1)])
        return made.exists() if self.chance(60) else not_(exists(made))

    def _in(self, sources: list[Source], depth: int) -> Any:
        left = self.rng.choice(self.rng.choice(sources).ids)
        found: list[Id] = []

        def column(inside: list[Source]) -> Any:
            fitting = [i for s in inside for i in s.ids if i.type_id == left.type_id]
            if not fitting:
                return None
            found.append(self.rng.choice(fitting))
            return [self.like(left, found[0])[1]]

        made = self.subselect(sources, depth, column)
        if made is None:
            return self._id(sources, depth)
        how = self.rng.randrange(10)
        (shown,) = made.selected_columns
        if how == 0:
            made = made.group_by(shown).having(func.count() > 1)
        elif how == 1:
            made = made.distinct()
        elif how == 2:
            made = made.order_by(shown).limit(1)
        compared = self.like(left, found[0])[0]
        if self.chance(60):
            return compared.in_(made)
        return compared.not_in(made)

    def _scalar(self, sources: list[Source], depth: int) -> Any:
        how = self.rng.choice(["count", "max", "id"])

        def column(found: list[Source]) -> Any:
            if how == "count":
                return [func.count()]
            if how == "max":
                return [func.max(found[0].numbers[0])]
            return [func.min(found[0].ids[0].column)]

        made = self.subselect(sources, depth, column)
        value: Any = self.rng.randint(0, 2)
        if how == "id":
            return made.scalar_subquery().is_not(None)
        return made.scalar_subquery() >= value

    def _relation(self, sources: list[Source], depth: int) -> Any:
        models = self.models
        for s in sources:
            kind = getattr(s.entity, "__mapper__", None)
            if kind is None:
                continue
            if kind.class_ is models.Pin:
                inner = self.described("Comment", models.Comment)
                inside = self.condition([inner], depth - 1)
                if self.chance(50):
                    return s.entity.comments.any(inside)
                return not_(s.entity.comments.any(inside))
            if kind.class_ is models.Comment:
                inner = self.described("Pin", models.Pin)
                return s.entity.pin.has(self.condition([inner], depth - 1))
        return self._id(sources, depth)

    # -- whole statements

    def select(self) -> Any:
        """Return a SELECT, sometimes a UNION."""
        depth = self.rng.choice([0, 1, 1, 2, 2])
        made = self.one(depth)
        if self.chance(6):
            other = self.one(depth)
            if (
                len(made.selected_columns) == len(other.selected_columns)
                and made._limit_clause is other._limit_clause is None
            ):
                made = self.rng.choice([union, union_all])(made, other)
        return made

    def one(self, depth: int) -> Any:
        sources, froms, wheres = self.froms(depth)
        if self.chance(88):
            wheres.append(self.pin(sources))
        if self.chance(55):
            wheres.append(self.condition(sources, depth))
        every = [c for s in sources for c in s.columns]
        kind = self.rng.randrange(10)
        if kind == 0:
            chosen = [func.count(), func.max(sources[0].numbers[0])]
            made = select(*chosen)
        elif kind == 1:
            key = self.rng.choice(every)
            made = select(key, func.count()).group_by(key)
        elif kind == 2:
            made = select(*self.rng.sample(every, 1)).distinct()
        elif kind == 3:
            made = select(*every).order_by(*every)
            if self.chance(70):
                made = made.limit(self.rng.randint(1, 3))
                if self.chance(30):
                    made = made.offset(1)
        elif kind == 4 and depth:
            inner = self.subselect(sources, depth, lambda s: [func.count()])
            made = select(sources[0].ids[0].column, inner.scalar_subquery())
        elif kind == 5 and self.chance(30):
            inner = select(func.count()).select_from(*froms).where(*wheres)
            return select(inner.exists(), inner.scalar_subquery())
        else:
            made = select(*self.rng.sample(every, min(3, len(every))))
        return made.select_from(*froms).where(*wheres)
