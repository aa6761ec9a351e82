"""Random SELECTs that several shards may refuse, and must not get wrong."""

from __future__ import annotations

from typing import Any

from sqlalchemy import cast, distinct, exists, func, select, String, union_all
from sqlalchemy.orm import aliased

from sqla_shard import scatter
from sqla_shard.engine import Scatter
from tests.models.merged_grammar import Grammar, Made


class FreeGrammar(Grammar):
    """Makes a statement that must be answered, and adds something to it."""

    # Distinct rows stay distinct, whatever columns are selected.
    kinds = ("rows", "objects", "aggregates", "groups")
    additions = (
        *("having", "counted", "computed", "window", "concatenated", "inner"),
        *("inner", "distinct_inside", "scalar", "scalar", "cast", "distinct"),
        *("existing", "united", "extreme", "locked"),
    )

    def make(self) -> Made:
        made = super().make()
        name = self.rng.choice(self.additions)
        changed: Made = getattr(self, f"_add_{name}")(made)
        return changed

    def _one(self, made: Made, *columns: Any) -> Made:
        """Show other columns, in no order."""
        statement = made.statement.with_only_columns(*columns)
        statement = statement.group_by(None).order_by(None)
        # Loader options are for objects.
        options = [o for o in made.options if isinstance(o, Scatter)]
        return Made(statement, options=options)

    def _number(self) -> Any:
        return self.value("number").expression

    def _add_having(self, made: Made) -> Made:
        key = self.value("number", "sold", "id").expression
        made = self._one(made, key, func.count())
        mean = func.avg(self.value("number", "price").expression)
        condition = self.rng.choice([func.count() > 1, mean > 0, mean < 1.5])
        made.statement = made.statement.group_by(key).having(condition)
        return made

    def _add_counted(self, made: Made) -> Made:
        counted = self.value().expression
        return self._one(made, func.count(distinct(counted)))

    def _add_computed(self, made: Made) -> Made:
        most, least = func.max(self._number()), func.min(self._number())
        mean = func.avg(self.value("number", "price").expression)
        choices = [most - least, most + 1, func.abs(least), -most]
        choices += [func.round(mean, 2), mean * 2, most / func.count()]
        return self._one(made, self.rng.choice(choices))

    def _add_window(self, made: Made) -> Made:
        by = self.value("number", "id").expression
        over = func.count().over(partition_by=by)
        return self._one(made, self.first.id, over)

    def _add_concatenated(self, made: Made) -> Made:
        names = func.group_concat(self.value("sold", "number").expression)
        return self._one(made, func.length(names))

    def _add_inner(self, made: Made) -> Made:
        """Read from a subquery, with or without a LIMIT of its own."""
        inner = self._one(made, self.first.id.label("i"), self._labelled_n())
        if self.chance(50):
            limited = inner.statement.order_by(self.first.id, "n")
            limited = limited.offset(self.rng.randint(0, 3))
            inner.statement = limited.limit(self.rng.randint(1, 4))
            inner.options = [scatter(max_offset=3)]
        found = inner.statement.subquery()
        shown = [func.count()] if self.chance(50) else [found.c.n]
        return Made(select(*shown).select_from(found), options=inner.options)

    def _labelled_n(self) -> Any:
        return self._number().label("n")

    def _add_distinct_inside(self, made: Made) -> Made:
        inner = self._one(made, self._labelled_n())
        found = inner.statement.distinct().subquery()
        shown = select(func.count()).select_from(found)
        return Made(shown, options=inner.options)

    def _add_scalar(self, made: Made) -> Made:
        mark = aliased(self.models.Mark)
        inner = select(func.count()).select_from(mark)
        if self.chance(60):
            # Of the row's own shard.
            inner = inner.where(mark.number == self._number())
        return self._one(made, self.first.id, inner.scalar_subquery())

    def _add_cast(self, made: Made) -> Made:
        text = cast(self.value("number", "id").expression, String(30))
        made = self._one(made, text)
        made.keys = [text]
        made.statement = made.statement.order_by(text)
        return made

    def _add_distinct(self, made: Made) -> Made:
        key = self._number()
        made = self._one(made, key, func.count())
        made.statement = made.statement.group_by(key).distinct()
        return made

    def _add_existing(self, made: Made) -> Made:
        inner = self._one(made, self.first.id).statement
        return Made(select(exists(inner.subquery().select())))

    def _add_united(self, made: Made) -> Made:
        inner = self._one(made, self._labelled_n())
        both = union_all(inner.statement, inner.statement).subquery()
        return Made(select(both.c.n), options=inner.options)

    def _add_extreme(self, made: Made) -> Made:
        colour = [v for v in self.values if v.kind in ("colour", "rank", "id")]
        chosen = self.rng.choice(colour).expression
        return self._one(made, func.max(chosen), func.min(chosen))

    def _add_locked(self, made: Made) -> Made:
        made.statement = made.statement.with_for_update()
        return made
