"""Reports of shadow mode, the verdicts in them, and the owners of rows.

There is one of each process, and one that is merged from many.

A report is a JSON document.  It has the text of statements as they are sent,
with placeholders: a value is in it only if the application writes values into
the text itself.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, get_args, Literal, TypeAlias

from sqlalchemy import Column, delete, insert, MetaData, select, Table, update
from sqlalchemy.sql import operators
from sqlalchemy.sql.elements import BinaryExpression, BindParameter, Tuple
from sqlalchemy.sql.lambdas import LambdaElement

from sqla_shard.exc import (
    CrossShardWriteError,
    KeyspaceMismatchError,
    MigrateSetupError,
    NoShardKeyError,
    ReferenceWriteError,
    ScatterUnsupportedError,
    ShardError,
    UnsupportedStatementError,
)
from sqla_shard.planning.clauses import inner, is_list, nested, ungrouped, unlabelled
from sqla_shard.planning.reader import Reader
from sqla_shard.util import sqlalchemy_private as private
from sqla_shard.util.json_values import JsonObject, parsed_json

# -- Verdicts on statements: how they would run on virtual shards.

Outcome: TypeAlias = Literal[
    "single_shard",
    "any_shard",
    "global",
    "several_shards",
    "lookup",
    "scatter",
    "cross_shard_write",
    "refused",
    "textual",
]

"""The outcomes of statements."""

OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)

"""All outcomes, the best first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """The way in which a statement would run on virtual shards.

    :ivar outcome: see :data:`Outcome`.
    :ivar error: the class of the error that the cluster would raise for the
        statement as it is; None if it would be executed.
    :ivar construct: the part of the statement that is refused, if known.
    :ivar reason: why.
    :ivar remedy: what to do about it; empty if nothing has to be done.
    """

    outcome: Outcome
    error: str | None = None
    construct: str = ""
    reason: str = ""
    remedy: str = ""


_REMEDIES: dict[type[ShardError], str] = {
    KeyspaceMismatchError: (
        "Declare the tables as Owned by one owner, a small one as Reference, "
        "or execute one statement for each keyspace."
    ),
    CrossShardWriteError: (
        "Write the rows of one owner in each transaction, and the others by "
        'an operation (begin(cross_shard="logged")).'
    ),
    ReferenceWriteError: "Write the rows by Class.replace() or upsert().",
    ScatterUnsupportedError: (
        "Name one owner in WHERE, or read the rows and do it in Python."
    ),
    UnsupportedStatementError: (
        "Rewrite the statement as the reason says; load objects of other "
        "owners by selectinload() or get_many()."
    ),
    NoShardKeyError: "Name ids in WHERE.",
}


def refused(
    error: ShardError,
    outcome: Outcome = "refused",
    *,
    remedy: str | None = None,
    construct: str = "",
) -> Verdict:
    """Return the verdict of a statement that raises an error."""
    if remedy is None:
        remedy = next(
            (text for kind, text in _REMEDIES.items() if isinstance(error, kind)), ""
        )
    return Verdict(
        outcome=outcome,
        error=type(error).__name__,
        construct=str(getattr(error, "construct", construct)),
        reason=str(error),
        remedy=remedy,
    )


VERSION = 1

"""Version of the document."""

_LONGEST = 300


@dataclass(frozen=True, kw_only=True)
class Count:
    """A number of statements.

    :ivar statements: the number.
    :ivar seconds: the time that they took in the database.
    """

    statements: int = 0
    seconds: float = 0.0

    def __add__(self, other: Count) -> Count:
        return Count(
            statements=self.statements + other.statements,
            seconds=self.seconds + other.seconds,
        )


@dataclass(frozen=True, kw_only=True)
class Site:
    """Statements of one form and verdict that one line has executed.

    :ivar file: path of the file.
    :ivar line: number of the line.
    :ivar function: the function that contains it.
    :ivar statement: the statement, without values.
    :ivar tables: its tables.
    """

    file: str
    line: int
    function: str
    statement: str
    tables: tuple[str, ...]
    outcome: Outcome
    error: str | None
    construct: str
    reason: str
    remedy: str
    count: Count

    @property
    def key(self) -> tuple[Any, ...]:
        """The key that the same line and form have in two reports."""
        return (self.file, self.line, self.statement, self.outcome, self.reason)


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """A form of statement, reduced to what determines its shards.

    :ivar kind: ``select``, ``insert``, ``update`` or ``delete``.
    :ivar tables: its tables.
    :ivar equal: the columns that are equal to a value.
    :ivar within: the columns that are in a list of values.
    :ivar ties: the pairs of columns that are equal.
    """

    kind: str
    tables: tuple[str, ...]
    equal: tuple[str, ...] = ()
    within: tuple[str, ...] = ()
    ties: tuple[tuple[str, str], ...] = ()
    count: Count = Count()

    @property
    def key(self) -> tuple[Any, ...]:
        """The form."""
        return self.kind, self.tables, self.equal, self.within, self.ties


@dataclass(frozen=True, kw_only=True)
class Report(JsonObject):
    """Report of shadow mode.

    :ivar outcomes: statements by outcome.
    :ivar refused: statements that the cluster would refuse as they are.
    :ivar sites: statements by line, the most time first.
    :ivar traffic: forms of statements, for suggestions.
    :ivar transactions: transactions by what they wrote: ``read``,
        ``one_owner``, ``several_owners`` or ``unknown_owner``.
    :ivar seen: number of transactions, with those that were not sampled.
    :ivar references: number of inserted rows whose foreign key refers to a
        row of the same owner, of another one, and of an unknown one.
    :ivar foreign_keys: foreign keys that cannot be constraints, and why.
    :ivar undeclared: tables that are not declared.
    :ivar omitted: statements whose line is not among the sites, since there
        were too many.
    :ivar failures: errors of shadow mode itself, by message.
    :ivar planning: seconds of the processor that shadow mode took.
    :ivar processes: number of processes.
    """

    outcomes: Mapping[str, Count] = field(default_factory=dict)
    refused: Count = Count()
    sites: tuple[Site, ...] = ()
    traffic: tuple[Traffic, ...] = ()
    transactions: Mapping[str, int] = field(default_factory=dict)
    seen: int = 0
    references: Mapping[str, tuple[int, int, int]] = field(default_factory=dict)
    foreign_keys: Mapping[str, str] = field(default_factory=dict)
    undeclared: tuple[str, ...] = ()
    omitted: int = 0
    failures: Mapping[str, int] = field(default_factory=dict)
    planning: float = 0.0
    processes: int = 1

    @property
    def total(self) -> Count:
        """All statements."""
        return sum(self.outcomes.values(), Count())

    def share(self, *outcomes: Outcome) -> float:
        """Return the share of statements with some outcomes, 0 to 1."""
        total = self.total.statements
        found = sum(
            self.outcomes[name].statements for name in outcomes if name in self.outcomes
        )
        return found / total if total else 0.0

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON document."""
        return {"version": VERSION, **super().as_dict()}

    def as_json(self) -> bytes:
        """Return the JSON document for a file that :func:`load` reads."""
        return json.dumps(self.as_dict()).encode()

    def summary(self) -> str:
        """Return the counts as text, without the lines."""
        return "\n".join(_summary_lines(self))

    def __str__(self) -> str:
        return "\n".join([self.summary(), *_all_site_lines(self)])


def load(path: str | os.PathLike[str]) -> Report:
    """Read the report in a file.

    :raises MigrateSetupError: if the file has no report, or one of another
        version.
    :raises OSError: if it cannot be read.
    """
    try:
        document = parsed_json(Path(path).read_text("utf-8"))
        version = document["version"]
        if version == VERSION:
            return _report(document)
        reason = f"version {version} of a report; this package reads {VERSION}"
    except (KeyError, TypeError, ValueError) as error:
        reason = f"not a report of shadow mode ({type(error).__name__})"
    raise MigrateSetupError(f"{path}: {reason}")


def _report(document: dict[str, Any]) -> Report:
    known = {one.name: document[one.name] for one in fields(Report)}
    known["outcomes"] = {name: Count(**one) for name, one in known["outcomes"].items()}
    known["refused"] = Count(**known["refused"])
    known["sites"] = tuple(
        Site(**{**one, "tables": tuple(one["tables"]), "count": Count(**one["count"])})
        for one in known["sites"]
    )
    known["traffic"] = tuple(
        Traffic(
            kind=one["kind"],
            tables=tuple(one["tables"]),
            equal=tuple(one["equal"]),
            within=tuple(one["within"]),
            ties=tuple((left, right) for left, right in one["ties"]),
            count=Count(**one["count"]),
        )
        for one in known["traffic"]
    )
    known["references"] = {
        name: (one[0], one[1], one[2]) for name, one in known["references"].items()
    }
    known["undeclared"] = tuple(known["undeclared"])
    return Report(**known)


def merge(reports: Iterable[Report]) -> Report:
    """Return one report of several, such as those of all processes."""
    found = Report(processes=0)
    for one in reports:
        found = Report(
            outcomes=_added(found.outcomes, one.outcomes, Count()),
            refused=found.refused + one.refused,
            sites=_together(found.sites, one.sites),
            traffic=_together(found.traffic, one.traffic),
            transactions=_added(found.transactions, one.transactions, 0),
            seen=found.seen + one.seen,
            references={
                name: _sum3(
                    found.references.get(name, (0, 0, 0)),
                    one.references.get(name, (0, 0, 0)),
                )
                for name in {**found.references, **one.references}
            },
            foreign_keys={**found.foreign_keys, **one.foreign_keys},
            undeclared=tuple(sorted({*found.undeclared, *one.undeclared})),
            omitted=found.omitted + one.omitted,
            failures=_added(found.failures, one.failures, 0),
            planning=found.planning + one.planning,
            processes=found.processes + one.processes,
        )
    return found


def _sum3(one: Sequence[int], other: Sequence[int]) -> tuple[int, int, int]:
    same, different, unknown = (a + b for a, b in zip(one, other, strict=True))
    return same, different, unknown


def _added(one: Mapping[str, Any], other: Mapping[str, Any], zero: Any) -> Any:
    return {
        name: one.get(name, zero) + other.get(name, zero) for name in {**one, **other}
    }


def _together(one: Sequence[Any], other: Sequence[Any]) -> tuple[Any, ...]:
    items: dict[Any, Any] = {item.key: item for item in one}
    for item in other:
        known = items.get(item.key)
        if known is not None:
            item = replace(item, count=known.count + item.count)
        items[item.key] = item
    return tuple(sorted(items.values(), key=lambda item: -item.count.seconds))


# -- text

_OUTCOME_TEXTS: dict[Outcome, str] = {
    "single_shard": "single shard",
    "any_shard": "any shard",
    "global": "global keyspace",
    "several_shards": "several shards, by id",
    "lookup": "lookup, then one shard",
    "scatter": "all shards (scatter)",
    "cross_shard_write": "cross-shard write",
    "refused": "refused",
    "textual": "textual SQL",
}

#: Outcomes that need no change.
_FINE = frozenset({"single_shard", "any_shard", "global", "several_shards"})


def _summary_lines(report: Report) -> Iterator[str]:
    total = report.total
    sampled = sum(report.transactions.values())
    of_all = "" if sampled >= report.seen else f" (of {report.seen:,})"
    yield (
        f"{total.statements:,} statements of {sampled:,} transactions"
        f"{of_all}, {total.seconds:.3f} s in the database; "
        f"{report.planning:.3f} s to plan them"
    )
    yield ""
    for name in OUTCOMES:
        count = report.outcomes.get(name, Count())
        yield (
            f"  {_OUTCOME_TEXTS[name]:<24}{count.statements:>9,}"
            f"{_percent(count.statements, total.statements):>9}"
            f"{_percent(count.seconds, total.seconds):>9} of the time"
        )
    yield ""
    yield (
        f"Refused as they are: {report.refused.statements:,} "
        f"({_percent(report.refused.statements, total.statements)})."
    )
    yield from _transaction_lines(report)
    yield from _table_lines(report)
    for message, number in report.failures.items():
        yield f"Not planned, {number} times: {message}"
    if report.omitted:
        yield f"{report.omitted:,} statements are not among the lines."


def _all_site_lines(report: Report) -> Iterator[str]:
    sites = [one for one in report.sites if one.outcome not in _FINE]
    for site in sorted(sites, key=_severity):
        yield ""
        yield from _site_lines(site, report.total)


def _severity(site: Site) -> tuple[int, float]:
    return -OUTCOMES.index(site.outcome), -site.count.seconds


def _percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "-"


def _transaction_lines(report: Report) -> Iterator[str]:
    shown = (
        ("read", "only read"),
        ("one_owner", "wrote rows of one owner"),
        ("several_owners", "wrote rows of several owners"),
        ("unknown_owner", "wrote rows whose owner is not known"),
    )
    parts = [
        f"{report.transactions[name]:,} {words}"
        for name, words in shown
        if report.transactions.get(name)
    ]
    if parts:
        yield f"Transactions: {', '.join(parts)}."


def _table_lines(report: Report) -> Iterator[str]:
    for column, reason in report.foreign_keys.items():
        same, other, unknown = report.references.get(column, (0, 0, 0))
        seen = same + other + unknown
        counted = f"; of another owner in {other:,} of {seen:,} rows"
        yield (
            f"Foreign key {column} cannot be a constraint: {reason}"
            f"{counted if seen else ''}."
        )
    if report.undeclared:
        yield f"Not declared, so global: {', '.join(report.undeclared)}."


def _counted(statements: int) -> str:
    return f"{statements:,} statement{'s' * (statements != 1)}"


def _site_lines(site: Site, total: Count) -> Iterator[str]:
    yield (
        f"{_short(site.file)}:{site.line}, in {site.function}: "
        f"{_OUTCOME_TEXTS[site.outcome]}, {_counted(site.count.statements)}, "
        f"{_percent(site.count.seconds, total.seconds)} of the time"
    )
    text = " ".join(site.statement.split())
    cut = f"{text[: _LONGEST - 3]}..." if text[_LONGEST:] else text
    yield f"    {cut}"
    if site.reason:
        error = f"{site.error}: " if site.error else ""
        yield f"  {error}{site.reason}"
    if site.remedy:
        yield f"  Remedy: {site.remedy}"


def _short(file: str) -> str:
    """Return a path relative to the working directory, if it is in it."""
    here = f"{os.getcwd()}{os.sep}"
    return file.removeprefix(here)


# -- Owners of rows, as the forms of statements name them.
#
# reduced reads a statement as the router does, and returns its tables, the
# columns that are compared with values, and the pairs of columns that are
# equal; statement_of makes a statement of these, for the planner.


def reduced(statement: Any) -> Traffic | None:
    """Return the key that determines the shards of a statement, or None.

    Conditions of subqueries count as those of the statement; OR is read only
    where all parts compare the same column.

    :raises ShardError: if the router cannot read the statement.
    """
    if isinstance(statement, LambdaElement):
        statement = private.resolved(statement)
    if getattr(statement, "is_insert", False):
        if not isinstance(statement.table, Table):
            return None
        return Traffic(kind="insert", tables=(str(statement.table.key),))
    reader = Reader(statement, {})
    equal: set[str] = set()
    within: set[str] = set()
    ties: set[tuple[str, str]] = set()
    for block in reader.blocks:
        for clause, _ in block.filters:
            _read(clause, equal, within, ties)
    tables = dict.fromkeys(
        str(leaf.table.key) for leaf in reader.leaves if isinstance(leaf.table, Table)
    )
    if not tables:
        return None
    kind = "select"
    if not getattr(statement, "is_select", False):
        kind = "update" if statement.is_update else "delete"
    return Traffic(
        kind=kind,
        tables=tuple(tables),
        equal=tuple(sorted(equal)),
        within=tuple(sorted(within)),
        ties=tuple(sorted(ties)),
    )


def _read(
    clause: Any, equal: set[str], within: set[str], ties: set[tuple[str, str]]
) -> None:
    clause = ungrouped(clause)
    if is_list(clause, operators.or_):
        names = {_compared(part) for part in clause.clauses}
        if len(names) == 1 and (name := names.pop()) is not None:
            within.add(name)
        return
    if not isinstance(clause, BinaryExpression):
        return
    left, right = ungrouped(clause.left), ungrouped(clause.right)
    name = _compared(clause)
    if isinstance(left, Tuple) and isinstance(right, BindParameter):
        within.update(filter(None, map(_name, left.clauses)))
    elif name is not None:
        (equal if clause.operator is operators.eq else within).add(name)
    elif clause.operator is operators.eq:
        _tie(left, right, ties)
    elif clause.operator is operators.in_op and nested(right) is not None:
        columns = list(inner(right).selected_columns)
        if len(columns) == 1:
            _tie(left, columns[0], ties)


def _tie(left: Any, right: Any, ties: set[tuple[str, str]]) -> None:
    one, other = _name(left), _name(right)
    if one is not None and other is not None and one != other:
        ties.add((min(one, other), max(one, other)))


def _compared(clause: Any) -> str | None:
    """Return the column that a clause compares with values, or None."""
    clause = ungrouped(clause)
    if not isinstance(clause, BinaryExpression):
        return None
    if clause.operator not in (operators.eq, operators.in_op):
        return None
    left, right = ungrouped(clause.left), ungrouped(clause.right)
    if isinstance(left, BindParameter):
        left, right = right, left
    return _name(left) if isinstance(right, BindParameter) else None


def _name(element: Any) -> str | None:
    for base in getattr(unlabelled(element), "base_columns", ()):
        if isinstance(base, Column) and isinstance(base.table, Table):
            return f"{base.table.key}.{base.name}"
    return None


def statement_of(traffic: Traffic, metadata: MetaData) -> Any:
    """Return a statement of a form.

    :returns: None if the metadata does not have all of its tables.
    """
    tables = [metadata.tables.get(name) for name in traffic.tables]
    known = [table for table in tables if table is not None]
    if len(known) < len(tables) or not known:
        return None
    first = known[0]
    if traffic.kind == "insert":
        return insert(first)
    conditions = list(_conditions(traffic, metadata.tables))
    if traffic.kind == "update":
        other = [c for c in first.columns if not c.primary_key]
        column = next((c for c in other if not c.foreign_keys), None)
        values = {} if column is None else {column.name: None}
        return update(first).where(*conditions).values(values)
    if traffic.kind == "delete":
        return delete(first).where(*conditions)
    return select(*_columns(known)).where(*conditions)


def _columns(tables: Iterable[Table]) -> Iterator[Any]:
    for table in tables:
        yield next(iter(table.primary_key or table.columns))


def _conditions(traffic: Traffic, tables: Mapping[str, Table]) -> Iterator[Any]:
    def find(name: str) -> Any:
        table, _, column = name.rpartition(".")
        return tables[table].columns[column]

    for name in traffic.equal:
        yield find(name) == BindParameter(None, None, unique=True)
    for name in traffic.within:
        column = find(name)
        yield column.in_(BindParameter(None, [], expanding=True, unique=True))
    for left, right in traffic.ties:
        yield find(left) == find(right)
