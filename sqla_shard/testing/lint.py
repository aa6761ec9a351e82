"""Find statements that become slow, or unsafe, as shards are added.

With a few shards on one machine they are fast, and no test fails.  The linter
checks the statements that are sent during a test:

``scatter``
    A statement was sent to all shards, because of ``scatter()``.
``fan_out``
    A statement was sent to more than ``max_shards`` shards because of its
    ids; off by default.
``cross_shard_write``
    A transaction has written several virtual shards, which
    ``cross_shard=`` allows: its COMMIT is not atomic.
``n_plus_one``
    One line has sent the same SELECT more than ``max_repeats`` times in
    one session, each time to one shard, such as by lazy loading in a loop;
    one statement for all ids would be enough.

It detects neither statements that bypass SQLAlchemy nor a loop that opens a
session for each object.  In a pytest run it is switched on as described
below; without pytest::

    with ShardLint(cluster) as lint:
        show_board(board_id)
    lint.check()
"""

from __future__ import annotations

import re
import sys
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, get_args, Literal, TypeAlias

from sqlalchemy import event

from sqla_shard.cluster.cluster import Cluster
from sqla_shard.engine import StatementReport
from sqla_shard.engine.rendering import SCHEMA
from sqla_shard.util.source_lines import calling_line, SourceLine
from sqla_shard.util.sqlalchemy_helpers import stop_listening

__all__ = [
    "KINDS",
    "MAX_REPEATS",
    "Evidence",
    "Finding",
    "FindingKind",
    "ShardLint",
    "SourceLine",
    "calling_line",
]


FindingKind: TypeAlias = Literal[
    "scatter", "fan_out", "cross_shard_write", "n_plus_one"
]
"""The kinds of findings."""

KINDS: tuple[str, ...] = get_args(FindingKind)
"""All kinds of findings."""

_LONGEST = 300

#: The beginning of a statement that counts rows.
_COUNTS = re.compile(r"SELECT count\(", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A line that has sent a slow or unsafe statement.

    :ivar kind: see :data:`FindingKind`.
    :ivar line: the line of the application.
    :ivar statement: the first statement of that kind, without values.
    :ivar count: number of times that it was sent.
    :ivar what: description of the problem.
    :ivar remedy: description of the remedy.
    """

    kind: FindingKind
    line: SourceLine
    statement: str
    count: int
    what: str
    remedy: str

    def __str__(self) -> str:
        inside = f", in {self.line.function}" if self.line.function else ""
        lines = [f"{self.line}: {self.kind}{inside}"]
        if self.line.text:
            lines.append(f"    {self.line.text}")
        lines += [
            f"  {self.what}:",
            f"    {_shown(self.statement)}",
            f"  {self.remedy}",
        ]
        return "\n".join(lines)


class Evidence:
    """The statements of a finding.

    :ivar first: the first statement.
    :ivar count: number of statements.
    :ivar shards: their virtual shards.
    :ivar before: keyspace and shard that the transaction has written before.
    """

    def __init__(self, first: StatementReport) -> None:
        self.first = first
        self.count: int = 0
        self.shards: set[int] = set()
        self.before: tuple[str, int] | None = None

    def add(self, report: StatementReport) -> None:
        """Count another statement of the same kind."""
        self.count += 1
        self.shards.update(report.shards)

    def finding(
        self, kind: FindingKind, line: SourceLine, max_shards: int | None
    ) -> Finding:
        """Return the finding.

        :param max_shards: the limit of shards.
        """
        what, remedy = _EXPLAINED[kind](self, max_shards)
        return Finding(
            kind=kind,
            line=line,
            statement=self.first.statement,
            count=self.count,
            what=what,
            remedy=remedy,
        )


def _scatter(seen: Evidence, max_shards: int | None) -> tuple[str, str]:
    what = (
        f"scatter() has sent it to all {len(seen.shards)} shards of "
        f"{seen.first.keyspace!r}{_times(seen.count)}"
    )
    return what, "Use ids in WHERE, or a column that determines the shard."


def _fan_out(seen: Evidence, max_shards: int | None) -> tuple[str, str]:
    what = (
        f"its ids are on {len(seen.shards)} shards, and at most {max_shards} "
        f"are allowed{_times(seen.count)}"
    )
    remedy = (
        "Use fewer ids in one statement, or put objects that are read "
        "together on one shard with colocate_with."
    )
    return what, remedy


def _cross_shard(seen: Evidence, max_shards: int | None) -> tuple[str, str]:
    keyspace, shard_id = seen.before or ("", 0)
    what = (
        f"it writes {_list_of(seen.shards)} of {seen.first.keyspace!r} in a "
        f"transaction that has written shard {shard_id} of {keyspace!r}"
    )
    remedy = (
        "COMMIT is not atomic over shards: write one shard in each "
        "transaction, or make sure that a partial commit does no harm."
    )
    return what, remedy


def _n_plus_one(seen: Evidence, max_shards: int | None) -> tuple[str, str]:
    loads = seen.first.loads
    if loads is None:
        who = "it was sent"
        remedy = (
            "Read all in one call: session.get_many(Class, ids), or select() "
            "with in_()."
        )
        if _COUNTS.match(seen.first.statement):
            remedy = (
                "Count all in one call: select(Class.key, func.count()) with "
                "in_() and group_by(Class.key)."
            )
    elif "." in loads:
        who = f"{loads} was loaded lazily"
        remedy = f"Load it together with its objects: .options(selectinload({loads}))."
    else:
        who = f"expired or deferred attributes of {loads} were loaded"
        remedy = (
            "Load the objects again with one statement, undefer() what is "
            "needed, or open the session with expire_on_commit=False."
        )
    what = (
        f"{who} {seen.count} times in one session, each time from one shard "
        f"({_list_of(seen.shards)})"
    )
    return what, remedy


_EXPLAINED: dict[FindingKind, Callable[[Evidence, int | None], tuple[str, str]]] = {
    "scatter": _scatter,
    "fan_out": _fan_out,
    "cross_shard_write": _cross_shard,
    "n_plus_one": _n_plus_one,
}


def _list_of(shards: Collection[int]) -> str:
    ordered = sorted(shards)
    if len(ordered) == 1:
        return f"shard {ordered[0]}"
    shown = ", ".join(map(str, ordered[:8]))
    return f"shards {shown}{', ...' if len(ordered) > 8 else ''}"


def _times(count: int) -> str:
    return "" if count == 1 else f", {count} times"


def _shown(statement: str) -> str:
    text = " ".join(statement.replace(f"{SCHEMA}.", "").split())
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


MAX_REPEATS = 5
"""Default maximum number of times that a line may send the same SELECT."""

_WRITES = re.compile(r"\s*(INSERT|UPDATE|DELETE|REPLACE)\b", re.IGNORECASE)


class ShardLint:
    """Collects findings while it is open; they can be read afterwards.

    Statements of all threads are checked.  A session that is in a transaction
    is checked from its next transaction.

    :param clusters: the clusters to listen to; by default all clusters of the
        process.
    :param allow: kinds of findings that are allowed.
    :param max_repeats: maximum number of times that a line may send the same
        SELECT in one session, and in one request of Flask.
    :param max_shards: maximum number of shards of the ids of a statement;
        None for no limit.
    :raises ValueError: if a kind or a number is not valid.
    """

    def __init__(
        self,
        *clusters: Cluster,
        allow: Collection[FindingKind] = (),
        max_repeats: int = MAX_REPEATS,
        max_shards: int | None = None,
    ) -> None:
        self.max_repeats: int = _count("max_repeats", max_repeats)
        self.max_shards = max_shards
        if max_shards is not None:
            _count("max_shards", max_shards)
        self._targets: tuple[Any, ...] = clusters or (Cluster,)
        self._allowed = Counter(_known(allow))
        self._lock = threading.Lock()
        self._found: dict[tuple[Any, ...], Evidence] = {}
        self._repeats: dict[tuple[Any, ...], Evidence] = {}

    def __repr__(self) -> str:
        return f"<ShardLint findings={len(self.findings)}>"

    def __enter__(self) -> ShardLint:
        try:
            for target in self._targets:
                event.listen(target, "after_statement", self.see)
            return self
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *details: object) -> None:
        for target in self._targets:
            stop_listening(target, "after_statement", self.see)

    @property
    def findings(self) -> list[Finding]:
        """The findings, in order."""
        with self._lock:
            return [
                seen.finding(kind, line, self.max_shards)
                for (kind, line, *_), seen in self._found.items()
            ]

    def check(self) -> None:
        """Fail if there are findings.

        :raises AssertionError: if there are any; lists all findings.
        """
        text = self.text()
        if text:
            raise AssertionError(text)

    def text(self) -> str:
        """Return a report of all findings; empty if there are none."""
        findings = self.findings
        if not findings:
            return ""
        kinds = Counter(finding.kind for finding in findings)
        counts = ", ".join(
            kind if count == 1 else f"{count} {kind}" for kind, count in kinds.items()
        )
        return f"sqla_shard: {counts}\n\n" + "\n\n".join(map(str, findings))

    @contextmanager
    def allow(self, *kinds: FindingKind) -> Iterator[None]:
        """Allow kinds of findings inside the block, in all threads.

        :raises ValueError: if a kind is not valid.
        """
        known = _known(kinds)
        with self._lock:
            self._allowed.update(known)
        try:
            yield
        finally:
            with self._lock:
                self._allowed.subtract(known)

    def see(self, cluster: Cluster, report: StatementReport) -> None:
        """Check a statement; a listener of ``after_statement``."""
        line = calling_line()
        writes = report.writes or bool(_WRITES.match(report.statement))
        with self._lock:
            if report.scattered:
                self._record("scatter", line, report)
            elif self.max_shards is not None and len(report.shards) > self.max_shards:
                self._record("fan_out", line, report)
            if writes:
                self._check_write(line, report)
            elif len(report.shards) == 1:
                self._check_read(line, report)

    def _check_write(self, line: SourceLine, report: StatementReport) -> None:
        if report.session is None or report.session.log.first is None:
            return
        before = report.session.log.first[0].address
        if all((report.keyspace, i) == before for i in report.shards):
            return
        # One flush writes many tables from the same line.
        seen = self._record("cross_shard_write", line, report, each=False)
        if seen is not None:
            seen.before = seen.before or before

    def _check_read(self, line: SourceLine, report: StatementReport) -> None:
        if self._allowed["n_plus_one"] > 0:
            return
        session = getattr(report.session, "hash_key", None)
        key = session, _request(), line, report.keyspace, report.statement
        repeats = self._repeats.setdefault(key, Evidence(report))
        repeats.add(report)
        if repeats.count > self.max_repeats:
            self._found.setdefault(("n_plus_one", line, *key), repeats)

    def _record(
        self,
        kind: FindingKind,
        line: SourceLine,
        report: StatementReport,
        *,
        each: bool = True,
    ) -> Evidence | None:
        """Record a finding, unless it is allowed.

        :param each: whether each statement is a separate finding.
        """
        if self._allowed[kind] > 0:
            return None
        key = kind, line, report.statement if each else ""
        seen = self._found.setdefault(key, Evidence(report))
        seen.add(report)
        return seen


def _request() -> object:
    """Return the request of Flask that is handled, if any.

    The requests of a test that has pushed a context share its session.
    """
    flask: Any = sys.modules.get("flask")
    if flask is None or not flask.has_request_context():
        return None
    return flask.request._get_current_object()


def _known(kinds: Collection[str]) -> tuple[str, ...]:
    if isinstance(kinds, str):
        raise ValueError(f"allow={kinds!r} is one string; give a list of kinds")
    for kind in kinds:
        if kind not in KINDS:
            raise ValueError(f"{kind!r} is not a kind of finding: {', '.join(KINDS)}")
    return tuple(kinds)


def _count(name: str, value: int) -> int:
    if type(value) is not int or value < 1:
        raise ValueError(f"{name}={value!r} must be an integer from 1")
    return value
