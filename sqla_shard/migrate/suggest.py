"""Suggests declarations from foreign keys, joins and recorded traffic.

A candidate begins with one owner; the tables that refer to it, directly or
not, become owned by the foreign key that statements use most, association
tables become mapping tables, and unique columns that are searched by become
lookups.  Every form of statement of the traffic is planned by each candidate;
the score is the share of statements that one shard answers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from sqlalchemy import Column, MetaData, Table, UniqueConstraint

from sqla_shard.migrate.declaration import (
    Declaration,
    Item,
    Lookup,
    MappingTable,
    Owned,
    Owner,
    Reference,
)
from sqla_shard.migrate.future import Future
from sqla_shard.migrate.planner import Planner
from sqla_shard.migrate.report import Count, Outcome, statement_of, Traffic
from sqla_shard.util.json_values import JsonObject
from sqla_shard.util.sqlalchemy_helpers import sorted_tables

#: Maximum number of forms of statements that are planned, and of owners.
_MOST_FORMS = 300
_MOST_OWNERS = 3
#: Share of statements by which a further owner has to improve the score.
_IMPROVES = 0.01
#: Outcomes in which one shard answers.
_ONE_SHARD: tuple[Outcome, ...] = ("single_shard", "any_shard", "lookup")


@dataclass(frozen=True, kw_only=True)
class Suggestion(JsonObject):
    """A declaration, and its effect on the traffic.

    :ivar declaration: the declaration.
    :ivar score: share of statements that one shard answers, 0 to 1.
    :ivar outcomes: share of statements by outcome.
    :ivar reasons: why the tables are declared so.
    :ivar is_recorded: whether the score is of recorded traffic; otherwise of
        one statement for each key.
    """

    derived: ClassVar[tuple[str, ...]] = ("owners",)

    declaration: Declaration
    score: float
    outcomes: Mapping[Outcome, float]
    reasons: tuple[str, ...]
    is_recorded: bool

    @property
    def owners(self) -> tuple[str, ...]:
        """The tables of the owners."""
        return tuple(one.table for one in self.declaration.of(Owner))


def suggest(
    metadata: MetaData, traffic: Iterable[Traffic] = (), *, most: int = 5
) -> list[Suggestion]:
    """Return declarations for the tables of an application, the best first.

    :param traffic: recorded statements; without any, one statement for each
        primary and foreign key is assumed.
    :param most: maximum number of suggestions.
    """
    known = set(metadata.tables)
    recorded = [one for one in traffic if known.issuperset(one.tables)]
    is_recorded = bool(recorded)
    forms = sorted(
        recorded or _assumed(metadata), key=lambda one: -one.count.statements
    )[:_MOST_FORMS]
    draft = _Draft(metadata, forms)
    suggestions = [
        draft.suggestion((name,), is_recorded) for name in draft.candidates()
    ]
    suggestions.sort(key=lambda one: -one.score)
    return [
        _with_more(draft, one, is_recorded) if at == 0 else one
        for at, one in enumerate(suggestions[:most])
    ]


def _with_more(draft: _Draft, best: Suggestion, is_recorded: bool) -> Suggestion:
    """Add owners of tables that the first one does not reach."""
    while len(best.owners) < _MOST_OWNERS:
        taken = {
            item.table
            for item in best.declaration.items
            if not isinstance(item, Reference)
        }
        others = [
            draft.suggestion((*best.owners, name), is_recorded)
            for name in draft.candidates()
            if name not in taken
        ]
        better = max(others, key=lambda one: one.score, default=best)
        if better.score < best.score + _IMPROVES:
            break
        best = better
    return best


def _assumed(metadata: MetaData) -> Iterator[Traffic]:
    """Yield a statement for each primary key and each foreign key."""
    once = Count(statements=1)
    for table in sorted_tables(metadata):
        name = str(table.key)
        keys = tuple(f"{name}.{one.name}" for one in table.primary_key)
        yield Traffic(kind="select", tables=(name,), equal=keys, count=once)
        for column in table.columns:
            for key in column.foreign_keys:
                here = f"{name}.{column.name}"
                there = f"{key.column.table.key}.{key.column.name}"
                yield Traffic(kind="select", tables=(name,), equal=(here,), count=once)
                if key.column.table is not table:
                    yield Traffic(
                        kind="select",
                        tables=(name, str(key.column.table.key)),
                        equal=(there,),
                        ties=((min(here, there), max(here, there)),),
                        count=once,
                    )


class _Draft:
    """Makes the declaration of a choice of owners."""

    def __init__(self, metadata: MetaData, forms: Sequence[Traffic]) -> None:
        self._metadata = metadata
        self._forms = forms
        self._tables = sorted_tables(metadata)
        #: Statements that name a column, or write a table.
        self._uses: Counter[str] = Counter()
        self._filters: Counter[str] = Counter()
        self._writes: Counter[str] = Counter()
        self._statements: Counter[str] = Counter()
        for one in forms:
            count = one.count.statements
            # Once, where a column is compared and joined in one statement.
            compared = {*one.equal, *one.within}
            self._filters.update(dict.fromkeys(compared, count))
            used = compared.union(*one.ties)
            self._uses.update(dict.fromkeys(used, count))
            self._statements.update(dict.fromkeys(one.tables, count))
            if one.kind != "select":
                self._writes[one.tables[0]] += count
        self._statement_cache = [
            (one, statement)
            for one in forms
            if (statement := statement_of(one, metadata)) is not None
        ]

    def candidates(self) -> list[str]:
        """Return the tables that could be owners, in order."""
        referred = {
            str(key.column.table.key)
            for table in self._tables
            for key in table.foreign_keys
            if key.column.table is not table
        }
        return [
            str(table.key)
            for table in self._tables
            if str(table.key) in referred
            and len(table.primary_key) == 1
            and self._has_traffic(table)
        ]

    def _has_traffic(self, table: Table) -> bool:
        """Return whether rows of a table are inserted, or searched by.

        Otherwise it is a list of values, such as countries: all rows would be
        on the shards of a few of them.
        """
        name = str(table.key)
        columns = {f"{name}.{column.name}" for column in table.primary_key}
        for other in self._tables:
            for key in other.foreign_keys:
                if key.column.table is table:
                    columns.add(f"{other.key}.{key.parent.name}")
        return bool(self._writes[name] or any(self._filters[one] for one in columns))

    def suggestion(self, owners: tuple[str, ...], is_recorded: bool) -> Suggestion:
        """Return the declaration of some owners, with its score."""
        items: list[Item] = []
        reasons: list[str] = []
        objects: set[str] = set()
        for table in self._tables:
            item, reason = self._item(table, owners, objects)
            if item is not None:
                items.append(item)
                reasons.append(reason)
                if isinstance(item, (Owner, Owned)):
                    objects.add(item.table)
        items += self._lookups(objects)
        items += self._references(objects, items)
        declaration = Declaration(*items)
        outcomes = self._outcomes(declaration)
        return Suggestion(
            declaration=declaration,
            score=sum(outcomes.get(name, 0.0) for name in _ONE_SHARD),
            outcomes=outcomes,
            reasons=tuple(reasons),
            is_recorded=is_recorded,
        )

    def _item(
        self, table: Table, owners: tuple[str, ...], objects: set[str]
    ) -> tuple[Item | None, str]:
        """Return what a table would be, and why; None if nobody owns it."""
        name = str(table.key)
        if name in owners:
            key = next(iter(table.primary_key))
            return Owner(f"{name}.{key.name}"), f"{name} owns its rows"
        keys = [
            column
            for column in table.columns
            if any(_target(key) in objects for key in column.foreign_keys)
        ]
        if not keys:
            return None, ""
        keys.sort(key=lambda column: self._rank(name, column))
        best = keys[0]
        used = self._uses[f"{name}.{best.name}"]
        why = f"used by {used} of {self._statements[name]} statements"
        if len(keys) == 2 and all(key.primary_key for key in keys):
            other = keys[1]
            inverse = self._filters[f"{name}.{other.name}"] > 0
            also = f", and by {other.name}" if inverse else ""
            return (
                MappingTable(
                    name, source=best.name, target=other.name, inverse=inverse
                ),
                f"{name} links rows by {best.name}, {why}{also}",
            )
        same = [
            column.name
            for column in table.columns
            if any(_target(key) == name for key in column.foreign_keys)
        ]
        return (
            Owned(name, colocate_with=best.name, same_shard=same),
            f"{name} is owned by {best.name}, {why}",
        )

    def _rank(self, name: str, column: Column[Any]) -> tuple[Any, ...]:
        column_name = f"{name}.{column.name}"
        return (
            -self._filters[column_name],
            -self._uses[column_name],
            bool(column.nullable),
        )

    def _lookups(self, objects: set[str]) -> Iterator[Item]:
        for table in self._tables:
            if str(table.key) not in objects:
                continue
            for name in _unique_columns(table):
                column = f"{table.key}.{name}"
                if self._filters[column]:
                    yield Lookup(column)

    def _references(self, objects: set[str], items: Sequence[Item]) -> Iterator[Item]:
        """Yield the tables that objects refer to, and that are not written."""
        declared = {item.table for item in items}
        wanted = {
            _target(key)
            for table in self._tables
            if str(table.key) in objects
            for key in table.foreign_keys
        }
        for table in self._tables:
            name = str(table.key)
            if name in wanted and name not in declared and not self._writes[name]:
                yield Reference(name)

    def _outcomes(self, declaration: Declaration) -> dict[Outcome, float]:
        planner = Planner(Future(declaration, self._metadata))
        outcomes: Counter[Outcome] = Counter()
        for one, statement in self._statement_cache:
            form = planner.form(statement, statement.compile())
            verdict = form.verdict
            if one.within and not one.equal and form.several is not None:
                verdict = form.several
            outcomes[verdict.outcome] += one.count.statements
        total = sum(outcomes.values())
        return {name: count / total for name, count in outcomes.items() if total}


def _target(key: Any) -> str:
    return str(key.column.table.key)


def _unique_columns(table: Table) -> Iterator[str]:
    """Yield the columns whose values are unique, without the primary key."""
    names = {column.name for column in table.columns if column.unique}
    unique: list[Any] = [
        *(c for c in table.constraints if isinstance(c, UniqueConstraint)),
        *(index for index in table.indexes if index.unique),
    ]
    for one in unique:
        if len(one.columns) == 1:
            names.add(one.columns[0].name)
    for column in table.columns:
        if column.name in names and not column.primary_key:
            yield str(column.name)
