"""Counts the verdicts of statements, in bounded memory."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sqla_shard.exc.base import message
from sqla_shard.migrate.forms import Form
from sqla_shard.migrate.future import Future
from sqla_shard.migrate.report import Count, Report, Site, Traffic
from sqla_shard.migrate.verdicts import Verdict

#: Maximum number of forms of statements in a report, and of messages.
_MOST_FORMS = 2000
_MOST_FAILURES = 50
#: Maximum length of a statement's text in a report.
_LONGEST = 2000

# A line, as (file, number, function).
_Line = tuple[str, int, str]


class _Sum:
    """A number of statements, which grows."""

    __slots__ = ("seconds", "statements")

    def __init__(self) -> None:
        self.statements = 0
        self.seconds = 0.0

    def add(self, seconds: float) -> None:
        self.statements += 1
        self.seconds += seconds

    def count(self) -> Count:
        return Count(statements=self.statements, seconds=self.seconds)


class ShadowCounts:
    """The counts of one process.

    :param most: maximum number of lines of the application, with a form of
        statement and a verdict each.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._outcomes: dict[str, _Sum] = {}
        self._refused = _Sum()
        self._sites: dict[tuple[_Line, str, Verdict], tuple[Form, _Sum]] = {}
        self._traffic: dict[Any, tuple[Traffic, _Sum]] = {}
        self._transactions: Counter[str] = Counter()
        self._failures: Counter[str] = Counter()
        self._omitted = 0
        #: Transactions that have begun, and those that were planned and have
        #: ended; the seconds of the processor that these took, and planning.
        self.seen = 0
        self.ended = 0
        self.busy = 0.0
        self.planning = 0.0

    def statement(
        self,
        form: Form,
        traffic: Traffic | None,
        verdict: Verdict,
        line: _Line,
        text: str,
        seconds: float,
    ) -> None:
        """Count an execution."""
        with self._lock:
            self._outcomes.setdefault(verdict.outcome, _Sum()).add(seconds)
            if verdict.error is not None:
                self._refused.add(seconds)
            key = line, text, verdict
            site = self._sites.get(key)
            if site is None:
                if len(self._sites) >= self._most:
                    self._omitted += 1
                    site = form, _Sum()
                else:
                    site = self._sites[key] = form, _Sum()
            site[1].add(seconds)
            if traffic is not None:
                self._count_traffic(traffic, seconds)

    def _count_traffic(self, traffic: Traffic, seconds: float) -> None:
        known = self._traffic.get(traffic.key)
        if known is None:
            if len(self._traffic) >= _MOST_FORMS:
                return
            known = self._traffic[traffic.key] = traffic, _Sum()
        known[1].add(seconds)

    def begun(self) -> None:
        """Count a transaction that has begun."""
        with self._lock:
            self.seen += 1

    def planned(self, seconds: float) -> None:
        """Add the seconds of the processor that planning has taken."""
        with self._lock:
            self.planning += seconds

    def transaction(self, what: str, seconds: float | None) -> None:
        """Count a transaction that has ended.

        :param seconds: of the processor that it took; None if unknown.
        """
        with self._lock:
            self._transactions[what] += 1
            if seconds is not None:
                self.busy += seconds
                self.ended += 1

    def failure(self, error: BaseException) -> bool:
        """Count an error of shadow mode; return whether it is a new one."""
        text = f"{type(error).__name__}: {message(error)}"[:_LONGEST]
        with self._lock:
            is_new = text not in self._failures
            if is_new and len(self._failures) >= _MOST_FAILURES:
                text, is_new = "other errors", False
            self._failures[text] += 1
        return is_new

    def report(self, future: Future, references: Mapping[str, list[int]]) -> Report:
        """Return the counts so far."""
        with self._lock:
            sites = [
                _site(line, text, verdict, form, count.count())
                for (line, text, verdict), (form, count) in (self._sites.items())
            ]
            return Report(
                outcomes={name: one.count() for name, one in self._outcomes.items()},
                refused=self._refused.count(),
                sites=tuple(sorted(sites, key=lambda s: -s.count.seconds)),
                traffic=tuple(
                    replace(one, count=count.count())
                    for one, count in self._traffic.values()
                ),
                transactions=dict(self._transactions),
                seen=self.seen,
                references={
                    name: (one[0], one[1], one[2])
                    for name, one in list(references.items())
                },
                foreign_keys={one.column: one.reason for one in future.foreign_keys()},
                undeclared=tuple(future.undeclared()),
                omitted=self._omitted,
                failures=dict(self._failures),
                planning=self.planning,
            )


def _site(line: _Line, text: str, verdict: Verdict, form: Form, count: Count) -> Site:
    file, number, function = line
    return Site(
        file=file,
        line=number,
        function=function,
        statement=text[:_LONGEST],
        tables=form.tables,
        outcome=verdict.outcome,
        error=verdict.error,
        construct=verdict.construct,
        reason=verdict.reason,
        remedy=verdict.remedy,
        count=count,
    )
