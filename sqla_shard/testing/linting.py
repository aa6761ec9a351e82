"""Find statements that get slow, or unsafe, as shards are added.

With a few shards on one machine they are as fast as any, and so no test
fails.  The linter looks at what was sent while a test ran:

``scatter``
    A statement went to all shards, because of ``scatter()``.
``fan_out``
    A statement went to more shards than ``max_shards`` by the ids that it
    names; off unless that is given.
``cross_shard_write``
    A transaction has written several virtual shards, which
    ``cross_shard=`` allows: its COMMIT is not atomic.
``n_plus_one``
    One line has sent the same SELECT more than ``max_repeats`` times in
    one session, each time to one shard.  Lazy loading in a loop is the
    classic; one statement for all ids would have done.

It does not see statements that sessions send past SQLAlchemy, nor a loop
that opens a session for each object.  In a pytest run it is switched on as
described below; without pytest::

    with ShardLint(cluster) as lint:
        show_board(board_id)
    lint.check()
"""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Collection
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from sqlalchemy import event

from sqla_shard.cluster import Cluster
from sqla_shard.scattering import StatementReport
from sqla_shard.testing.callers import calling_line
from sqla_shard.testing.callers import SourceLine
from sqla_shard.testing.findings import Evidence
from sqla_shard.testing.findings import Finding
from sqla_shard.testing.findings import FindingKind
from sqla_shard.testing.findings import KINDS

__all__ = ["MAX_REPEATS", "ShardLint"]

MAX_REPEATS = 5
"""How often a line may send the same SELECT, unless told otherwise."""

_WRITES = re.compile(r"\s*(INSERT|UPDATE|DELETE|REPLACE)\b", re.IGNORECASE)


class ShardLint:
    """Collects findings while it is open; they stay readable.

    Statements of all threads are looked at.  A session that writes already
    is heard from its next transaction on.

    :param clusters: the clusters to listen to; none for all of the process.
    :param allow: kinds of findings that are meant to be.
    :param max_repeats: how often one line of one session may send the same
        SELECT.
    :param max_shards: how many shards a statement may go to by the ids that
        it names; None for any number.
    :raises ValueError: when there is no such kind, or a number is none.
    """

    def __init__(
        self,
        *clusters: Cluster,
        allow: Collection[FindingKind] = (),
        max_repeats: int = MAX_REPEATS,
        max_shards: int | None = None,
    ) -> None:
        self.max_repeats = _count("max_repeats", max_repeats)
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
        for target in self._targets:
            event.listen(target, "after_statement", self.see)
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for target in self._targets:
            event.remove(target, "after_statement", self.see)

    # -- reading

    @property
    def findings(self) -> list[Finding]:
        """What was found, in order."""
        with self._lock:
            return [
                seen.finding(kind, line, self.max_shards)
                for (kind, line, *_), seen in self._found.items()
            ]

    def check(self) -> None:
        """Fail if there are findings.

        :raises AssertionError: with all of them.
        """
        text = self.text()
        if text:
            raise AssertionError(text)

    def text(self) -> str:
        """Return all findings, for reading; empty if there are none."""
        findings = self.findings
        if not findings:
            return ""
        kinds = Counter(finding.kind for finding in findings)
        counts = ", ".join(
            kind if count == 1 else f"{count} {kind}"
            for kind, count in kinds.items()
        )
        return f"sqla_shard: {counts}\n\n" + "\n\n".join(map(str, findings))

    @contextmanager
    def allow(self, *kinds: FindingKind) -> Iterator[None]:
        """Let something be inside the block, in all threads.

        :param kinds: what.
        :raises ValueError: when there is no such kind.
        """
        known = _known(kinds)
        with self._lock:
            self._allowed.update(known)
        try:
            yield
        finally:
            with self._lock:
                self._allowed.subtract(known)

    # -- looking

    def see(self, cluster: Cluster, report: StatementReport) -> None:
        """Look at a statement; listens to ``after_statement``."""
        line = calling_line()
        writes = report.writes or bool(_WRITES.match(report.statement))
        with self._lock:
            if report.scattered:
                self._note("scatter", line, report)
            elif (
                self.max_shards is not None
                and len(report.shards) > self.max_shards
            ):
                self._note("fan_out", line, report)
            if writes:
                self._see_write(line, report)
            elif len(report.shards) == 1:
                self._see_read(line, report)

    def _see_write(self, line: SourceLine, report: StatementReport) -> None:
        if report.session is None or report.session.log.first is None:
            return
        before = report.session.log.first[0].address
        if all((report.keyspace, i) == before for i in report.shards):
            return
        # One flush writes many tables, all from the same line.
        seen = self._note("cross_shard_write", line, report, each=False)
        if seen is not None:
            seen.before = seen.before or before

    def _see_read(self, line: SourceLine, report: StatementReport) -> None:
        if self._allowed["n_plus_one"] > 0:
            return
        session = getattr(report.session, "hash_key", None)
        key = session, line, report.keyspace, report.statement
        repeats = self._repeats.setdefault(key, Evidence(report))
        repeats.add(report)
        if repeats.count > self.max_repeats:
            self._found.setdefault(("n_plus_one", line, *key), repeats)

    def _note(
        self,
        kind: FindingKind,
        line: SourceLine,
        report: StatementReport,
        *,
        each: bool = True,
    ) -> Evidence | None:
        """Take note of a finding, unless it is allowed.

        :param each: whether another statement is another finding.
        """
        if self._allowed[kind] > 0:
            return None
        key = kind, line, report.statement if each else ""
        seen = self._found.setdefault(key, Evidence(report))
        seen.add(report)
        return seen


def _known(kinds: Collection[str]) -> tuple[str, ...]:
    if isinstance(kinds, str):
        raise ValueError(
            f"allow={kinds!r} is one string; give a list of kinds"
        )
    for kind in kinds:
        if kind not in KINDS:
            raise ValueError(
                f"{kind!r} is no kind of finding; there are {', '.join(KINDS)}"
            )
    return tuple(kinds)


def _count(name: str, value: int) -> int:
    if type(value) is not int or value < 1:
        raise ValueError(f"{name}={value!r}; it is a number, from 1")
    return value
