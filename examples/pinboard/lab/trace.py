"""The statements of a page, for the strip at its bottom.

Statements come from events of the cluster, and cache hits from
:func:`sqla_shard.cache.counting`: nothing is estimated.  A redirect after a
write has no page, so the next page of the same browser shows it, too.
"""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field

from flask import Flask, g, has_request_context, request, Response, session as cookie
from sqlalchemy import event

from sqla_shard import Cluster
from sqla_shard.cache import counting, Counts
from sqla_shard.engine import StatementReport
from sqla_shard.exc import RoutingError
from sqla_shard.session.commit import CommitReport
from sqla_shard.topology.keyspaces import as_ranges

#: Writes that wait for the next page of their browser.
_MOST = 100
_COOKIE = "lab_write"


@dataclass(frozen=True, kw_only=True)
class Part:
    """The part of one server in a statement.

    :ivar shards: such as ``0-31``.
    :ivar connections: number of connections; on SQLite, of files.
    :ivar seconds: time of the slowest of them.
    :ivar error: type of its error, if any.
    """

    server: str
    shards: str
    connections: int
    statements: int
    rows: int | None
    seconds: float
    error: str | None


@dataclass(frozen=True, kw_only=True)
class Shown:
    """A statement as the strip shows it.

    :ivar sql: without values, and with a placeholder for the database.
    """

    verb: str
    sql: str
    keyspace: str
    shards: str
    scattered: bool
    seconds: float
    parts: tuple[Part, ...]


@dataclass
class Trace:
    """The statements of a request.

    :ivar commits: outcomes of transactions that have written.
    :ivar refusals: messages of statements that were refused.
    """

    title: str
    statements: list[Shown] = field(default_factory=list)
    places: set[tuple[str, int]] = field(default_factory=set)
    commits: list[CommitReport] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)
    cache: Counts = field(default_factory=Counts)

    @property
    def servers(self) -> list[str]:
        """The servers of all statements."""
        return sorted({p.server for s in self.statements for p in s.parts})

    @property
    def shards(self) -> int:
        """The number of virtual shards, of all keyspaces."""
        return len(self.places)

    @property
    def seconds(self) -> float:
        """Time spent waiting for statements and COMMITs."""
        spent = sum(one.seconds for one in self.statements)
        return spent + sum(one.seconds for one in self.commits)

    def shard_ids(self, keyspace: str) -> set[int]:
        """Return the virtual shards of a keyspace."""
        return {shard for name, shard in self.places if name == keyspace}

    def add(self, report: StatementReport) -> None:
        """Add a statement."""
        self.places.update((report.keyspace, one) for one in report.shards)
        self.statements.append(
            Shown(
                verb=report.statement.split(maxsplit=1)[0],
                sql=report.statement,
                keyspace=report.keyspace,
                shards=as_ranges(report.shards),
                scattered=report.scattered,
                seconds=report.seconds,
                parts=_parts(report),
            )
        )


def _parts(report: StatementReport) -> tuple[Part, ...]:
    """Return one part for each server.

    On SQLite each shard is a file, and has a report of its own.
    """
    found: dict[str, Part] = {}
    shards: dict[str, list[int]] = {}
    for one in report.servers:
        before = found.get(one.server)
        shards.setdefault(one.server, []).extend(one.shards)
        rows = None if before is None else before.rows
        if one.rows is not None:
            rows = (rows or 0) + one.rows
        error = None if before is None else before.error
        if one.error is not None:
            error = type(one.error).__name__
        found[one.server] = Part(
            server=one.server,
            shards=as_ranges(shards[one.server]),
            connections=1 + (before.connections if before else 0),
            statements=one.statements + (before.statements if before else 0),
            rows=rows,
            seconds=max(one.seconds, before.seconds if before else 0.0),
            error=error,
        )
    return tuple(found.values())


class Traces:
    """Collects the statements of each request of an application.

    :param cluster: the cluster whose events are listened to.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._lock = threading.Lock()
        self._writes: OrderedDict[str, Trace] = OrderedDict()
        self._listeners: dict[str, Callable[..., None]] = {
            "after_statement": self._statement,
            "commit_ended": self._commit,
            "statement_refused": self._refusal,
        }

    def install(self, app: Flask) -> None:
        """Listen to the cluster, and to the requests of an application."""
        for name, listener in self._listeners.items():
            event.listen(self._cluster, name, listener)
        app.before_request(self._begin)
        app.after_request(self._store)
        app.teardown_request(self._end)

    def close(self) -> None:
        """Stop listening."""
        for name, listener in self._listeners.items():
            # There are none if no application was created.
            if event.contains(self._cluster, name, listener):
                event.remove(self._cluster, name, listener)

    @property
    def now(self) -> Trace:
        """The trace of this request so far."""
        if "lab_trace" not in g:
            # Refused before our first function ran, such as for a CSRF token.
            self._begin()
        trace: Trace = g.lab_trace
        trace.cache = g.lab_counts()
        return trace

    def before(self) -> Trace | None:
        """Return the write that has led to this page, once."""
        key = cookie.pop(_COOKIE, None)
        with self._lock:
            return None if key is None else self._writes.pop(key, None)

    # -- requests

    def _begin(self) -> None:
        g.lab_trace = Trace(title=f"{request.method} {request.path}")
        g.lab_stack = ExitStack()
        g.lab_counts = g.lab_stack.enter_context(counting())

    def _store(self, response: Response) -> Response:
        if request.method == "POST" and response.status_code == 303:
            key = secrets.token_urlsafe(9)
            with self._lock:
                self._writes[key] = self.now
                while len(self._writes) > _MOST:
                    self._writes.popitem(last=False)
            cookie[_COOKIE] = key
        return response

    def _end(self, error: BaseException | None) -> None:
        stack: ExitStack | None = g.pop("lab_stack", None)
        if stack is not None:
            stack.close()

    # -- events of the cluster; other threads do not belong to a page

    def _statement(self, cluster: Cluster, report: StatementReport) -> None:
        if has_request_context() and "lab_trace" in g:
            g.lab_trace.add(report)

    def _commit(self, cluster: Cluster, report: CommitReport) -> None:
        if report.outcome == "read":
            return
        if has_request_context() and "lab_trace" in g:
            g.lab_trace.commits.append(report)

    def _refusal(self, cluster: Cluster, error: RoutingError) -> None:
        if has_request_context() and "lab_trace" in g:
            g.lab_trace.refusals.append(str(error))
