"""Reports of shadow mode: one of a process, or merged from many.

A report is a JSON document.  It has the text of statements as they are sent,
with placeholders: a value is in it only if the application writes values into
the text itself.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from sqla_shard.exc import MigrateSetupError
from sqla_shard.migrate.verdicts import Outcome, OUTCOMES
from sqla_shard.util.json_values import parsed_json

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
class Report:
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
        return {"version": VERSION, **asdict(self)}

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
    found: dict[Any, Any] = {item.key: item for item in one}
    for item in other:
        known = found.get(item.key)
        if known is not None:
            item = replace(item, count=known.count + item.count)
        found[item.key] = item
    return tuple(sorted(found.values(), key=lambda item: -item.count.seconds))


# -- text

_SHOWN: dict[Outcome, str] = {
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
    yield (
        f"{total.statements:,} statements of {sampled:,} transactions"
        f"{_of_all(sampled, report.seen)}, {total.seconds:.3f} s in the "
        f"database; {report.planning:.3f} s to plan them"
    )
    yield ""
    for name in OUTCOMES:
        count = report.outcomes.get(name, Count())
        yield (
            f"  {_SHOWN[name]:<24}{count.statements:>9,}"
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
    for site in sorted(sites, key=_worst):
        yield ""
        yield from _site_lines(site, report.total)


def _of_all(sampled: int, seen: int) -> str:
    return "" if sampled >= seen else f" (of {seen:,})"


def _worst(site: Site) -> tuple[int, float]:
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
        f"{_SHOWN[site.outcome]}, {_counted(site.count.statements)}, "
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
