"""Shadow mode: watches an application on one database, as if it were sharded.

::

    from sqla_shard.migrate import Declaration, Owned, Owner, Shadow

    declaration = Declaration(
        Owner("users.id"), Owned("posts", colocate_with="user_id")
    )
    shadow = Shadow(declaration, Base.metadata)
    shadow.watch(engine)
    ...
    print(shadow.report())

Shadow mode listens to events of SQLAlchemy.  It changes no statement, sends
none, and raises no error into the application: an error of its own is counted
in the report, and logged when it first occurs.  It plans whole transactions,
since their writes have to be on one shard; those that it has no time for are
counted only.
"""

from __future__ import annotations

import atexit
import os
import random
import re
import socket
import sysconfig
import threading
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path
from time import perf_counter, process_time, thread_time
from types import FrameType, TracebackType
from typing import Any
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, Engine, event, MetaData
from sqlalchemy.orm import object_mapper, Session
from sqlalchemy.sql.ddl import ExecutableDDLElement
from sqlalchemy.sql.elements import (
    ReleaseSavepointClause,
    RollbackToSavepointClause,
    SavepointClause,
)

from sqla_shard.exc import MigrateSetupError, ShardError
from sqla_shard.exc.base import message
from sqla_shard.migrate.declaration import Declaration
from sqla_shard.migrate.future import Future
from sqla_shard.migrate.planner import Form, MOST_VALUES, Planner, Writes
from sqla_shard.migrate.report import Count, reduced, Report, Site, Traffic, Verdict
from sqla_shard.util import sqlalchemy_private as private
from sqla_shard.util.files import replace_file
from sqla_shard.util.logs import careful_log
from sqla_shard.util.processes import in_children
from sqla_shard.util.source_lines import calling_frame, position_of
from sqla_shard.util.sqlalchemy_helpers import stop_listening

_log = careful_log("sqla_shard.migrate")

#: Maximum number of objects of a flush whose owner is learned.
_MOST_OBJECTS = 200
_LIBRARIES = tuple(
    f"{path}{os.sep}"
    for name, path in sysconfig.get_paths().items()
    if name in ("stdlib", "platstdlib", "purelib", "platlib")
)
# The packages whose frames are not of the application, wherever they are.
_NOT_APPLICATION = frozenset({"sqlalchemy", "sqla_shard", "greenlet"})

# Statements that neither read nor write rows.
_NO_ROWS = (
    ExecutableDDLElement,
    ReleaseSavepointClause,
    RollbackToSavepointClause,
    SavepointClause,
)
# The same as texts.  Applications create tables with them, and SQLAlchemy
# looks for those of SQLite with PRAGMA.
_NO_ROWS_TEXT = re.compile(
    r"\s*(ALTER|ANALYZE|BEGIN|COMMIT|CREATE|DROP|PRAGMA|RELEASE|RENAME|"
    r"ROLLBACK|SAVEPOINT|SET|SHOW|START|TRUNCATE|USE|VACUUM)\b",
    re.IGNORECASE,
)


class Shadow:
    """Plans the statements of an application as if it were sharded.

    :param declaration: what the tables will be.
    :param metadata: the tables of the application.
    :param sample: share of transactions that are planned, 0 to 1.
    :param budget: maximum share that planning may take of the processor time
        of transactions, and of the process; None for no limit.
    :param directory: directory for reports, one file for each process; None
        to write none.
    :param every: seconds between two reports of a process.
    :param packages: names of the application's packages; by default the
        application is what is outside of ``site-packages``.
    :param most_sites: maximum number of lines in a report.
    :raises DeclarationError: if the declaration does not fit the tables.
    :raises MigrateSetupError: if an option is not valid.
    """

    def __init__(
        self,
        declaration: Declaration,
        metadata: MetaData,
        *,
        sample: float = 1.0,
        budget: float | None = 0.02,
        directory: str | os.PathLike[str] | None = None,
        every: float = 60.0,
        packages: Collection[str] = (),
        most_sites: int = 2000,
    ) -> None:
        for name, share in (("sample", sample), ("budget", budget)):
            if share is not None and not 0 <= share <= 1:
                raise MigrateSetupError(f"{name}={share!r} must be from 0 to 1")
        self.future: Future = Future(declaration, metadata)
        self._sample = sample
        self._budget = budget
        self._every = every
        self._directory = None if directory is None else Path(directory)
        self._packages = frozenset(packages)
        self._most_sites = most_sites
        self._watched: list[Any] = []
        self._files: dict[str, bool] = {}
        self._random = random.Random()  # noqa: S311  # not a secret
        self._flushed = _flushed_columns(self.future)
        self._watch = EngineWatch(
            begin=self._begin,
            plan=self._plan,
            end=self._end,
            calling_frame=self._calling_frame,
            failed=self._failed,
        )
        self._reset()
        in_children(self)
        if self._directory is not None:
            atexit.register(self._write_in_time, 0.0)

    def _reset(self) -> None:
        self._watch.forget()
        self._planner = Planner(self.future)
        self._recorder = ShadowCounts(self._most_sites)
        self._forms: WeakKeyDictionary[Any, tuple[Form, Traffic | None]] = (
            WeakKeyDictionary()
        )
        self._since = process_time()
        self._written = perf_counter()

    def after_fork(self) -> None:
        """Reset the counters of the parent process."""
        self._reset()

    def __repr__(self) -> str:
        return f"<Shadow of {len(self._watched)} engines>"

    def __enter__(self) -> Shadow:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    # -- setup

    def watch(self, *targets: Any) -> None:
        """Watch engines, or the engines of sessions.

        :param targets: an engine or asynchronous engine; a session, or a
            factory of sessions, with its engine as ``bind``; or the class
            ``Engine`` for all engines of the process.
        :raises MigrateSetupError: if a target has no engine.
        """
        for engine in map(_engine_of, targets):
            if engine in self._watched:
                continue
            is_first = not self._watched
            self._watched.append(engine)
            if is_first:
                event.listen(Session, "before_flush", self._before_flush)
            self._watch.listen(engine)

    def close(self) -> None:
        """Stop watching, and write the report if there is a directory."""
        for engine in self._watched:
            self._watch.remove(engine)
        if self._watched:
            stop_listening(Session, "before_flush", self._before_flush)
        self._watched.clear()
        if self._directory is not None:
            atexit.unregister(self._write_in_time)
            self._write_in_time(0.0)

    # -- reports

    def report(self) -> Report:
        """Return the report of this process so far.

        A statement is counted when its transaction sends the next one, or
        ends.
        """
        return self._recorder.report(self.future, self._planner.references)

    def _write_in_time(self, every: float) -> None:
        """Write the report of this process if the last one is too old."""
        now = perf_counter()
        if self._directory is None or now - self._written < every:
            return
        self._written = now
        name = f"shadow-{socket.gethostname()}-{os.getpid()}.json"
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            replace_file(self._directory / name, self.report().as_json(), 0o644)
        except OSError as error:
            self._failed(error)

    def _failed(self, error: BaseException) -> None:
        """Count an error of shadow mode, and log it once."""
        if self._recorder.failure(error):
            _log.warning("shadow mode: not planned: %s", error, exc_info=error)

    # -- transactions

    def _begin(self) -> PlannedTransaction | None:
        """Return a new transaction; None if it is not planned."""
        self._recorder.begun()
        if self._sample < 1 and self._random.random() >= self._sample:
            return None
        if self._budget is not None and not self._has_time(self._budget):
            return None
        return PlannedTransaction(self._planner.writes())

    def _has_time(self, budget: float) -> bool:
        """Return whether planning has taken less than its share of the time.

        The time of transactions that are not planned is estimated by that of
        the others.
        """
        recorder = self._recorder
        own = recorder.busy - recorder.planning
        busy = own * recorder.seen / recorder.ended if recorder.ended else 0
        available = min(busy, process_time() - self._since)
        return recorder.planning <= budget * available

    def _plan(self, transaction: PlannedTransaction) -> None:
        """Plan and count the pending execution of a transaction."""
        started = thread_time()
        try:
            self._see(transaction, transaction.pending)
        finally:
            self._recorder.planned(thread_time() - started)

    def _end(self, transaction: PlannedTransaction, is_committed: bool) -> None:
        writes = transaction.writes
        if writes.is_refused:
            what = "several_owners"
        elif writes.log.first is not None:
            what = "one_owner"
        elif writes.has_unknown:
            what = "unknown_owner"
        else:
            # A session ends one that has only read by ROLLBACK.
            what, is_committed = "read", True
        self._recorder.transaction(
            what if is_committed else "rolled_back", transaction.processor_time
        )
        self._write_in_time(self._every)

    def _before_flush(self, session: Session, context: Any, instances: Any) -> None:
        """Learn the owners of objects that a flush updates or deletes."""
        if not self._watch.is_planning:
            return
        started = thread_time()
        objects = [*session.deleted, *session.dirty][:_MOST_OBJECTS]
        try:
            for one in objects:
                mapper = object_mapper(one)
                known = self._flushed.get(str(mapper.local_table))
                if known is None:
                    continue
                table, columns = known
                row = {
                    name: vars(one).get(mapper.get_property_by_column(column).key)
                    for name, column in columns.items()
                }
                self._planner.learn(table, row)
        except Exception as error:  # it must not become the application's
            self._failed(error)
        self._recorder.planned(thread_time() - started)

    # -- statements

    def _see(self, transaction: PlannedTransaction, context: Any) -> None:
        """Plan and count an execution."""
        statement = context.invoked_statement
        if isinstance(statement, SavepointClause):
            # The event of the same name does not have the name.
            transaction.writes.log.savepoint(statement.ident)
        elif isinstance(statement, RollbackToSavepointClause):
            transaction.writes.log.rolled_back(statement.ident)
        if isinstance(statement, _NO_ROWS):
            return
        compiled = context.compiled
        if _NO_ROWS_TEXT.match(context.statement or ""):
            return
        known = None if compiled is None else self._forms.get(compiled)
        if known is None:
            known = self._read(
                context.statement if statement is None else statement, compiled
            )
            if compiled is not None:
                self._forms[compiled] = known
        form, traffic = known
        inserted = getattr(context, "inserted_primary_key_rows", None)
        verdict = self._planner.judge(
            form,
            () if compiled is None else _parameters(context),
            transaction.writes,
            (inserted or ()) if form.kind == "insert" else (),
        )
        text = context.statement if compiled is None else compiled.string
        self._recorder.statement(
            form, traffic, verdict, transaction.line, text or "", transaction.seconds
        )

    def _read(self, statement: Any, compiled: Any) -> tuple[Form, Traffic | None]:
        form = self._planner.form(statement, compiled)
        if form.kind == "text":
            return form, None
        try:
            return form, reduced(statement)
        except ShardError:
            # The router cannot read it, and the verdict says why.
            return form, None

    def _calling_frame(self) -> FrameType | None:
        """Return the innermost frame of the application."""
        return calling_frame(self._is_library) or calling_frame()

    def _is_library(self, frame: FrameType) -> bool:
        name = frame.f_code.co_filename
        found = self._files.get(name)
        if found is None:
            package = str(frame.f_globals.get("__name__")).partition(".")[0]
            if self._packages:
                found = package not in self._packages
            else:
                found = package in _NOT_APPLICATION or name.startswith(_LIBRARIES)
            self._files[name] = found
        return found


def _parameters(context: Any) -> list[dict[str, Any]]:
    """Return the parameters of an execution, with lists as they were given."""
    rows: list[dict[str, Any]] = context.compiled_parameters
    expanded = private.expanded_parameters(context)
    if not expanded:
        return rows
    # A statement with lists is not an executemany().
    row = rows[0]
    lists = {
        name: [row[key] for key in keys[:MOST_VALUES]]
        for name, keys in expanded.items()
    }
    return [{**row, **lists}]


def _engine_of(target: Any) -> Any:
    """Return the engine of an object.

    :raises MigrateSetupError: if it has none.
    """
    if target is Engine or isinstance(target, Engine):
        return target
    for name in ("sync_engine", "bind", "sync_session", "engine"):
        engine = getattr(target, name, None)
        if engine is not None and engine is not target:
            return _engine_of(engine)
    options = getattr(target, "kw", None)
    if isinstance(options, dict) and options.get("bind") is not None:
        return _engine_of(options["bind"])
    factory = getattr(target, "session_factory", None)
    if factory is not None:
        return _engine_of(factory)
    raise MigrateSetupError(
        f"{target!r} has no engine; give the engine itself, or the class "
        "Engine for all engines of the process"
    )


def _flushed_columns(future: Future) -> dict[str, Any]:
    """Return the columns of owned rows that name the owner, by table."""
    return {
        str(one.table): (
            one,
            {
                name: one.table.columns[name]
                for name in (one.id_column, one.parent_column)
            },
        )
        for one in future.tables.values()
        if one.id_column is not None and one.parent_column is not None
    }


# -- The events of the engines that shadow mode watches.
#
# A listener of connection events costs each connection and statement of its
# engine some time, even if it does nothing.  Those of the dialect's
# ``do_execute`` cost next to nothing; so these see every statement, and decide
# for each transaction whether it is planned.  Only the connection of such a
# transaction gets listeners of its own.


#: The line of a statement that no frame of Python has executed.
_NOWHERE = ("<unknown>", 0, "")


class PlannedTransaction:
    """A transaction that is planned.

    :ivar writes: what it has written.
    :ivar begun_at: the processor time of the thread that has sent its first
        statement.
    :ivar thread: that thread.
    :ivar pending: the execution that is planned next, after SQLAlchemy has
        read the primary keys that it has inserted; None if there is none.
    :ivar line: the line of the application that has executed it.
    :ivar started: when it was sent.
    :ivar seconds: the time that it took.
    """

    __slots__ = (
        "begun_at",
        "line",
        "pending",
        "seconds",
        "started",
        "thread",
        "writes",
    )

    def __init__(self, writes: Writes) -> None:
        self.writes: Writes = writes
        self.begun_at: float = thread_time()
        self.thread: int = threading.get_ident()
        self.pending: Any = None
        self.line: tuple[str, int, str] = _NOWHERE
        self.started: float = 0.0
        self.seconds: float = 0.0

    @property
    def processor_time(self) -> float | None:
        """The seconds of its thread so far; None in another thread."""
        if self.thread != threading.get_ident():
            return None
        return thread_time() - self.begun_at


class _Known:
    """The state of a connection.

    :ivar identity: ``id()`` of SQLAlchemy's transaction, which may be that of
        a later one as well.
    :ivar transaction: the transaction; None if it is not planned.
    """

    __slots__ = ("identity", "transaction")

    def __init__(self, identity: int, transaction: PlannedTransaction | None) -> None:
        self.identity = identity
        self.transaction = transaction


class EngineWatch:
    """Listens to engines.

    :param begin: called for each transaction; returns None for one that is
        not planned.
    :param plan: called with a transaction and its pending execution.
    :param end: called with a transaction that has ended, and whether it was
        committed.
    :param calling_frame: returns the innermost frame of the application.
    :param failed: called with an error of one of these, which must not become
        the application's.
    """

    def __init__(
        self,
        *,
        begin: Callable[[], PlannedTransaction | None],
        plan: Callable[[PlannedTransaction], None],
        end: Callable[[PlannedTransaction, bool], None],
        calling_frame: Callable[[], FrameType | None],
        failed: Callable[[BaseException], None],
    ) -> None:
        self._begin = begin
        self._plan = plan
        self._end = end
        self._calling_frame = calling_frame
        self._failed = failed
        self._lock = threading.Lock()
        self._open = 0
        self._known: WeakKeyDictionary[Connection, _Known] = WeakKeyDictionary()
        self._listeners: tuple[tuple[str, Callable[..., None]], ...] = (
            ("do_execute", self._sent),
            ("do_executemany", self._sent),
            ("do_execute_no_params", self._sent_without_parameters),
            ("handle_error", self._raised),
        )

    def listen(self, engine: Any) -> None:
        """Listen to an engine."""
        for name, listener in self._listeners:
            event.listen(engine, name, listener)

    def remove(self, engine: Any) -> None:
        """Do not listen to an engine any more."""
        for name, listener in self._listeners:
            stop_listening(engine, name, listener)
        # Its open connections have listeners that find nothing.
        self._known.clear()
        self._count(-self._open)

    def forget(self) -> None:
        """Forget all transactions, in a child process."""
        # A thread of the parent may have held the lock.
        self._lock = threading.Lock()
        self._known.clear()
        self._open = 0

    @property
    def is_planning(self) -> bool:
        """Whether a transaction that is planned may be open."""
        return self._open > 0

    def _count(self, change: int) -> None:
        with self._lock:
            self._open += change

    def _sent(self, cursor: Any, statement: Any, parameters: Any, context: Any) -> None:
        connection = context.root_connection
        open_transaction = connection.get_transaction()
        if open_transaction is None:
            # A statement of the dialect, about a server that it meets: no
            # transaction would end.
            return
        known = self._known.get(connection)
        identity = id(open_transaction)
        if known is None or (known.transaction is None and known.identity != identity):
            known = self._decide(connection, identity)
        transaction = known.transaction
        if transaction is None:
            return
        # A bulk INSERT is sent in several parts.
        if transaction.pending is not context:
            self._plan_pending(transaction)
            transaction.pending = context
            transaction.line = self._line()
            transaction.seconds = 0.0
        transaction.started = perf_counter()

    def _line(self) -> tuple[str, int, str]:
        try:
            frame = self._calling_frame()
            return _NOWHERE if frame is None else position_of(frame)
        except Exception as error:  # it must not become the application's
            self._failed(error)
            return _NOWHERE

    def _sent_without_parameters(
        self, cursor: Any, statement: Any, context: Any
    ) -> None:
        self._sent(cursor, statement, (), context)

    def _decide(self, connection: Connection, identity: int) -> _Known:
        known = _Known(identity, self._begin())
        self._known[connection] = known
        if known.transaction is not None:
            self._count(1)
            event.listen(connection, "after_cursor_execute", self._received)
            event.listen(connection, "commit", self._committed)
            event.listen(connection, "rollback", self._rolled_back)
        return known

    def _received(self, connection: Connection, *arguments: Any) -> None:
        known = self._known.get(connection)
        if known is not None and known.transaction is not None:
            transaction = known.transaction
            transaction.seconds += perf_counter() - transaction.started

    def _raised(self, context: Any) -> None:
        """Drop the execution that has raised an error."""
        connection = context.connection
        # There is none if an engine cannot connect.
        known = None if connection is None else self._known.get(connection)
        transaction = None if known is None else known.transaction
        if transaction is not None and transaction.pending is context.execution_context:
            transaction.pending = None

    def _committed(self, connection: Connection) -> None:
        self._ended(connection, True)

    def _rolled_back(self, connection: Connection) -> None:
        self._ended(connection, False)

    def _ended(self, connection: Connection, is_committed: bool) -> None:
        known = self._known.pop(connection, None)
        if known is not None and known.transaction is not None:
            transaction = known.transaction
            if transaction.pending is not None and not transaction.seconds:
                # A bulk INSERT that began before the connection had a
                # listener.
                transaction.seconds = perf_counter() - transaction.started
            self._count(-1)
            self._plan_pending(transaction)
            try:
                self._end(transaction, is_committed)
            except Exception as error:  # it must not become the application's
                self._failed(error)

    def _plan_pending(self, transaction: PlannedTransaction) -> None:
        if transaction.pending is None:
            return
        try:
            self._plan(transaction)
        except Exception as error:  # it must not become the application's
            self._failed(error)
        transaction.pending = None


# -- Counts the verdicts of statements, in bounded memory.


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
        self.seen: int = 0
        self.ended: int = 0
        self.busy: float = 0.0
        self.planning: float = 0.0

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
