"""Execution of revisions, one virtual shard after another, and its watchdog.

The watchdog aborts a connection whose server stopped responding.
"""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial, wraps
from time import monotonic
from typing import Any

from alembic.runtime.migration import MigrationStep, RevisionStep
from sqlalchemy import Connection, Engine, event, Table
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.util import OrderedSet

from sqla_shard.dialects import Backend, Failure
from sqla_shard.engine import Engines, Places
from sqla_shard.engine.unreachable import cause_of
from sqla_shard.exc import InDoubtError, SchemaError
from sqla_shard.exc.base import message
from sqla_shard.schema import ledger
from sqla_shard.schema.effects import is_refused
from sqla_shard.schema.journal import FirstSent, Interrupted, Journal, UnfinishedError
from sqla_shard.schema.ledger import LedgerEntry, one_line, revisions_text, Version
from sqla_shard.schema.replay import (
    is_static,
    new_tables,
    NotAsPlannedError,
    Plan,
    PlannedStep,
    Replay,
)
from sqla_shard.schema.reports import Outcome, State
from sqla_shard.schema.selection import RunOptions, Shard
from sqla_shard.util.sqlalchemy_helpers import stop_listening

#: Seconds between two probes.
INTERVAL = 3.0
#: Number of consecutive failed probes that abort the connection.
_MOST_FAILED = 2


class Watchdog:
    """Aborts a connection whose server has stopped responding.

    An ALTER TABLE may take hours, so it has no timeout.  Meanwhile a thread
    connects to the same server every few seconds, with the timeouts of the
    engine.  After two consecutive failed probes it aborts the connection: the
    statement then fails with the error of a lost connection.

    :param engines: the engines of the cluster.
    :param engine: the engine of the server.
    :param backend: the dialect of the server.
    :ivar has_aborted: whether the connection was aborted.
    """

    def __init__(self, engines: Engines, engine: Engine, backend: Backend) -> None:
        self._engines = engines
        self._engine = engine
        self._backend = backend
        self._ended = threading.Event()
        self.has_aborted: bool = False

    def watch(self, dbapi_connection: Any, record: Any) -> None:
        """Watch a new connection; a listener for ``connect``."""
        if self._backend.waits:
            threading.Thread(
                target=self._run,
                args=(dbapi_connection,),
                name="sqla-shard-watchdog",
                daemon=True,
            ).start()

    def close(self) -> None:
        """Stop the thread without waiting for a probe in progress."""
        self._ended.set()

    def _run(self, dbapi_connection: Any) -> None:
        failed = 0
        while not self._ended.wait(INTERVAL):
            failed = 0 if self._answers() else failed + 1
            if failed == _MOST_FAILED and not self._ended.is_set():
                self.has_aborted = True
                self._backend.abort(dbapi_connection)
                return

    def _answers(self) -> bool:
        """Return whether the server responds, even if only with an error."""
        try:
            with self._engines.visit(self._engine):
                return True
        except DBAPIError as error:
            return (
                error.orig is None
                or self._backend.classify(error.orig) is not Failure.LOST
            )


_RELATIVE = re.compile(r"(?:[^@]+@)?[+-]\d+")

#: Commands whose steps depend only on the revisions of a shard.
_CACHED = frozenset({"upgrade", "downgrade"})
#: Exceptions that sys.exit() in a revision, or a signal, raises.
_ENDINGS = (SystemExit, KeyboardInterrupt, GeneratorExit)


#: Texts to append to an error, by whether a statement was in progress.
_OF_LOST = {
    True: "\nThe connection was lost during a statement: the next run checks "
    "whether it took effect",
    False: "\nThe connection was lost between two statements: the next run "
    "resumes after the last one",
}
_OF_SILENT = (
    "\nThe server stopped responding, even to new connections; the connection "
    "was aborted"
)
_OF_KILLED = "\nThe statement was interrupted by KILL QUERY; repeat the command"
_OF_READ_ONLY = (
    "\nThe server is read-only: it is a standby, is fenced, or has read_only "
    "set. Repeat the command with the topology that names the primary"
)
_OF_READ_ONLY_DATABASE = (
    "\nThe database is read-only, and the others of the server are not. "
    "Repeat the command after ALTER DATABASE {database} READ ONLY = 0"
)


class Applier:
    """Runs an alembic command on shards and records it in their ledgers.

    The connection of the previous shard on the same server is reused, and so
    is what was sent there, if it is the same for every shard.

    :param context: alembic's environment context.
    :param fn: returns the migration steps of a database, as alembic's
        commands define it.
    :param settings: keyword arguments for ``context.configure()``.
    :param versions: the revisions of shards when the command began.
    :ivar sent: the statements of static revisions, by direction and revision.
    :ivar first_sent: statements of each revision on the first shard.
    :ivar has_run_code: whether the Python code of a revision has run, which
        may have changed an object that it uses.  The process must change no
        other shard then: it would get other statements.
    """

    #: Whether shards may be changed without running alembic on them.
    replays = True

    def __init__(
        self,
        context: Any,
        fn: Callable[..., Iterable[MigrationStep]],
        places: Places,
        options: RunOptions,
        settings: dict[str, Any],
        versions: Sequence[Version],
    ) -> None:
        self._context = context
        self._versions = versions
        self._fn = fn
        self._places = places
        self._options = options
        self._settings = settings
        self._cache: dict[tuple[str, ...], list[MigrationStep]] = {}
        self.sent: dict[tuple[str, str], list[str]] = {}
        self.first_sent: dict[tuple[str, str], FirstSent] = {}
        self.has_run_code = False
        #: The plans by the revisions that they begin at.
        self._plans: dict[tuple[str, ...], Plan] = {}
        self._made: dict[tuple[str, ...], Plan] = {}
        #: The steps on the current shard; None if they cannot be a plan.
        self._planned: list[PlannedStep] | None = None
        self._first: tuple[str, ...] = ()
        self._engine: Engine | None = None
        self._connection: Connection | None = None
        self._journal: Journal | None = None
        self._watchdog: Watchdog | None = None
        self._steps: list[str] = []
        self._expected: tuple[str, ...] = ()
        self._is_stopped = False

    def stop(self, *details: object) -> None:
        """Stop after the current statement; a signal handler."""
        self._is_stopped = True
        if self._journal is not None:
            self._journal.stop = True

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
        if self._engine is not None:
            self._engine.dispose()
        if self._watchdog is not None:
            # Not earlier: close() sends ROLLBACK and waits for the response.
            self._watchdog.close()
        self._connection = self._engine = self._journal = None
        self._watchdog = None

    def __call__(self, version: Version) -> Outcome:
        """Run the command on one shard and return its outcome."""
        shard, began = version.shard, monotonic()
        self._steps.clear()
        replayed = self._replayed(version)
        if replayed is not None:
            result, count = replayed
        else:
            result, count = self._run(version)
        return Outcome.of(
            shard,
            steps=tuple(self._steps),
            statements=count,
            seconds=monotonic() - began,
            **result,
        )

    def _run(self, version: Version) -> tuple[dict[str, Any], int]:
        """Run alembic; return the state and the number of statements."""
        try:
            connection, journal = self._connected(version.shard)
        except (DBAPIError, OSError) as error:
            return self._unreachable(error), 0
        result = self._attempt(version, connection, journal)
        if journal.has_session_state:
            # The next shard must not inherit session variables.
            self.close()
        return result, journal.count

    def _unreachable(self, error: BaseException) -> dict[str, Any]:
        self.close()
        return {
            "state": State.UNREACHABLE,
            "error": _error_text(error),
            "cause": cause_of(error, responds=False),
        }

    def adopt(self, plans: Mapping[tuple[str, ...], Plan]) -> None:
        """Use plans that other processes have made, if there are none."""
        self._plans = {**plans, **self._plans}

    def made(self) -> dict[tuple[str, ...], Plan]:
        """Return the plans that were made since the last call."""
        plans, self._made = self._made, {}
        return plans

    def _replayed(self, version: Version) -> tuple[dict[str, Any], int] | None:
        """Send the plan for the revisions of a shard.

        :returns: the state and the number of statements; None if alembic
            has to run.
        """
        plan = self._plans.get(version.heads)
        if plan is None or not self._suits(version):
            return None
        shard = version.shard
        connection, journal = self._connection, self._journal
        if connection is None or journal is None:
            try:
                connection, journal = self._connected(shard)
            except (DBAPIError, OSError) as error:
                return self._unreachable(error), 0
        batch = shard.place.backend.ddl.batch(connection)
        if batch is None:
            return None  # The plan is that of a server with another driver.
        replay = Replay(plan, connection, batch, journal, self._done)
        table = self._settings.get("version_table", "alembic_version")
        try:
            replay.run(version, table)
        except (NotAsPlannedError, DBAPIError) as error:
            if replay.is_positioned:
                result = self._failed(shard, journal, State.FAILED, error)
                return result, journal.count
            # Nothing was changed.  The connection may be lost since the last
            # shard, or the database be gone: alembic's way reports it.
            self._abandon(shard, error)
            return None
        except Interrupted as stopped:
            result = self._failed(shard, journal, State.INTERRUPTED, stopped)
        except (Exception, *_ENDINGS) as error:
            # As of any shard: the others continue.
            result = self._failed(shard, journal, State.FAILED, error)
        else:
            result = {"state": State.CHANGED}
        return result, journal.count

    def _suits(self, version: Version) -> bool:
        """Return whether a plan can be sent to a shard."""
        connection, engine = self._connection, self._engine
        known = (ledger.own_head(), *(() if version.heads else (None,)))
        if version.open is not None or version.internal not in known:
            return False
        # Without a connection there will be a new one.
        return connection is None or (
            engine is not None
            and not connection.closed
            and not connection.invalidated
            and engine.url == version.shard.place.engine.url
        )

    def _done(self, step: PlannedStep) -> None:
        self._steps.append(step.title)

    def _abandon(self, shard: Shard, error: BaseException) -> None:
        """Leave a shard on which a plan has changed nothing."""
        try:
            if self._is_lost(shard, error):
                self.close()
            else:
                self._roll_back()
                self._release(shard)
        except (SQLAlchemyError, OSError):
            # The connection broke just now; the next one is a new one.
            self.close()

    def _plan(self, heads: tuple[str, ...], shard: Shard) -> None:
        """Make a plan of what alembic has sent to a shard."""
        connection, steps = self._connection, self._planned
        if connection is None:
            return
        batch = shard.place.backend.ddl.batch(connection)
        if (
            self.replays
            and steps
            and batch is not None
            and self._fn.__name__ in _CACHED
            and bool(heads) != bool(self._first)
            and not self._settings.get("on_version_apply")
            and not self._settings.get("version_table_schema")
        ):
            query, _ = batch.defaults()
            defaults = tuple(connection.exec_driver_sql(query).one())
            creation = partial(batch.creation, defaults=defaults)
            self._plans[heads] = self._made[heads] = Plan(
                first=self._first,
                defaults=defaults,
                steps=tuple(
                    replace(one, tables=new_tables(one.statements, creation))
                    for one in steps
                ),
                own=tuple(ledger.creating_own_tables(connection.dialect)),
            )

    def _connected(self, shard: Shard) -> tuple[Connection, Journal]:
        engine, ddl = shard.place.engine, shard.place.backend.ddl
        if (
            self._engine is None
            or self._engine.url != engine.url
            or not self._answers()
        ):
            self.close()
            self._engine = self._places.engines.new_engine(engine, timeout=math.inf)
            self._watchdog = Watchdog(self._places.engines, engine, shard.place.backend)
            # Listen before SQLAlchemy sends queries on its first connection.
            event.listen(self._engine, "connect", self._watchdog.watch, insert=True)
        if self._connection is None or self._journal is None:
            self._connection = self._engine.connect()
            ddl.patience(self._connection, self._options.lock_wait)
            ddl.quicken(
                self._connection, self._settings.get("version_table", "alembic_version")
            )
            self._journal = Journal(self._connection, ddl)
            self._journal.stop = self._is_stopped
        return self._connection, self._journal

    def _answers(self) -> bool:
        """Return whether the connection, if any, is alive.

        A server closes a connection that is idle for wait_timeout, for
        example between two waves.
        """
        connection = self._connection
        if connection is None:
            return True
        if connection.closed or connection.invalidated:
            return False
        try:
            raw = connection.connection.dbapi_connection
            return connection.dialect.do_ping(raw)  # type: ignore[arg-type]  # the driver's
        except connection.dialect.loaded_dbapi.Error:
            return False

    def _attempt(
        self, version: Version, connection: Connection, journal: Journal
    ) -> dict[str, Any]:
        shard, ddl = version.shard, version.shard.place.backend.ddl
        try:
            batch = ddl.batch(connection)
            if batch is not None:
                batch.end()
            ddl.enter(connection, shard.schema)
            holder = ddl.hold(connection, shard.database, self._options.runner_wait)
            if holder is not None:
                connection.rollback()
                return {
                    "state": State.HELD,
                    "error": f"{shard.database} is locked by {holder}: "
                    "another runner, or a statement that outlived its runner",
                }
            self._migrate(version, connection, journal)
            self._release(shard)
        except Interrupted as stopped:
            return self._failed(shard, journal, State.INTERRUPTED, stopped)
        except InDoubtError as error:
            return self._failed(shard, journal, State.IN_DOUBT, error)
        # A revision can raise any error; record it in the report, so that
        # the other shards continue.
        except (Exception, *_ENDINGS) as error:
            return self._failed(shard, journal, State.FAILED, error)
        return {"state": State.CHANGED if self._steps else State.CURRENT}

    def _migrate(
        self, version: Version, connection: Connection, journal: Journal
    ) -> None:
        # Another runner may have upgraded the tables of this package since
        # the version was read.
        if version.internal != ledger.own_head():
            ledger.upgrade_own_tables(connection, version.internal)
        journal.enter(version.shard.database)
        if self._fn.__name__ == "do_stamp":
            journal.check_finished("a stamp would hide it")
        self._expected = version.heads
        self._planned = None if journal.entries else []
        journal.apart.clear()
        # Alembic does not commit a transaction that it did not begin.
        connection.commit()
        self._context.configure(
            **{
                **self._settings,
                "connection": connection,
                "fn": self._steps_with_journal,
                "sqla_shard": version.shard,
                "sqla_shard_differs": journal.differ,
                "on_version_apply": [
                    self._applied,
                    *self._settings.get("on_version_apply", ()),
                ],
            }
        )
        with self._context.begin_transaction(), ordered_indexes():
            self._context.run_migrations()
        journal.check_finished("this command does not resume it")
        self._plan(version.heads, version.shard)

    def _steps_with_journal(self, heads: Any, context: Any) -> Iterable[MigrationStep]:
        """Return the steps of a database, each with the journal around it."""
        key = tuple(sorted(heads))
        expected = revisions_text(self._expected)
        if self._expected and not key and self._fn.__name__ == "upgrade":
            # The database was dropped or moved: create no empty tables.
            raise SchemaError(
                f"it was at {expected} when this run began, and has no "
                "revision now; find out where its objects are"
            )
        if key != self._expected and is_relative(context.opts.get("destination_rev")):
            # A relative target would count from another runner's revision.
            raise SchemaError(
                f"it was at {expected} when this run began, and is at "
                f"{revisions_text(key)} now: another runner changed it. Name "
                "the target revision"
            )
        steps = self._cache.get(key)
        if steps is None:
            steps = [self._journalled(step) for step in self._fn(heads, context)]
            if self._fn.__name__ in _CACHED:
                self._cache[key] = steps
        return steps

    def _journalled(self, step: MigrationStep) -> MigrationStep:
        if isinstance(step, RevisionStep):
            direction = "upgrade" if step.is_upgrade else "downgrade"
            revision, run = step.revision.revision, step.migration_fn
            # Not before the code runs: a process that changes one shard would
            # parse all revisions, also those whose statements it repeats.
            static = cache(partial(is_static, step.revision.path, direction))

            # Alembic logs the name of the function that it runs.
            @wraps(run)
            def journalled(**kwargs: Any) -> None:
                journal = self._journal
                assert journal is not None  # noqa: S101 - of _connected()
                if not self._steps:
                    self._first = _texts(journal)
                key = direction, revision
                sent = self.sent.get(key)
                compares = sent is None and self._options.compare and not static()
                if compares and key not in self.first_sent:
                    kept = self._kept(direction, revision)
                    if kept is not None:
                        self.first_sent[key] = kept
                journal.begin(direction, revision, self.first_sent.get(key))
                if not compares:
                    journal.differ()
                if sent is not None:
                    journal.repeat(sent)
                    journal.end()
                    return
                self.has_run_code |= not static()
                run(**kwargs)
                journal.end()
                repeats = self._options.replay and journal.is_repeatable
                if repeats and static():
                    self.sent[key] = journal.sent
                if compares:
                    journal.is_kept = True
                    self.first_sent.setdefault(key, journal.first_sent)

            step.migration_fn = journalled
        return step

    def _kept(self, direction: str, revision: str) -> FirstSent | None:
        """Return what an earlier run sent to a shard that finished a revision."""
        # Those that were at the revisions of this shard have not.
        others = {
            version.heads: version.shard
            for version in reversed(self._versions)
            if version.internal is not None
            and version.has_ledger
            and version.heads != self._expected
        }
        for shard in others.values():
            with self._places.engines.visit(shard.place.engine) as connection:
                shard.place.backend.ddl.enter(connection, shard.schema)
                text = ledger.kept_by(connection, direction, revision)
            first_sent = text and FirstSent.of_json(text, shard.shard_id)
            if first_sent:
                return first_sent
        return None

    def _applied(self, *, step: Any, **kwargs: Any) -> None:
        journal = self._journal
        assert journal is not None  # noqa: S101 - of _connected()
        versions = _texts(journal)
        journal.close()
        # What alembic sends for the next revision follows this UPDATE.
        journal.apart.clear()
        verb = "stamp"
        if not step.is_stamp:
            verb = "upgrade" if step.is_upgrade else "downgrade"
        revisions = (
            step.up_revision_ids
            if step.is_upgrade
            else (step.down_revision_ids or ("base",))
        )
        self._steps.append(f"{verb} of {', '.join(revisions)}")
        sent = self.sent.get((verb, journal.revision))
        if self._planned is None or sent is None or not versions:
            self._planned = None
            return
        one = PlannedStep(
            direction=verb,
            revision=journal.revision,
            statements=tuple(sent),
            versions=versions,
            title=self._steps[-1],
        )
        self._planned = [*self._planned, one] if one.is_plain else None

    def _failed(
        self, shard: Shard, journal: Journal, state: State, error: BaseException
    ) -> dict[str, Any]:
        journal.mute()
        step = journal.step
        done: Sequence[LedgerEntry] | None = None
        text = "" if state is State.INTERRUPTED else _error_text(error)
        try:
            if self._is_lost(shard, error):
                if self._watchdog is not None and self._watchdog.has_aborted:
                    text += _OF_SILENT
                self.close()
                text += _OF_LOST[journal.is_running]
            elif _is_read_only(shard, error):
                if _is_closed(shard, error):
                    text += _OF_READ_ONLY_DATABASE.format(database=shard.database)
                else:
                    state = State.READ_ONLY
                    text += _OF_READ_ONLY
                self._roll_back()
                self._release(shard)
            else:
                if _is_killed(shard, error):
                    text += _OF_KILLED
                done, doubt = self._recorded(shard, journal, error, text)
                if doubt is not None:
                    # The next run would refuse the shard; report it now.
                    state, done = State.IN_DOUBT, None
                    text += f"\n{doubt}"
        except (SQLAlchemyError, OSError) as second:
            self.close()
            text += f"\nand the ledger could not be written: {_error_text(second)}"
        return {
            "state": state,
            "error": text or None,
            "step": step,
            "done": (
                None
                if done is None
                else tuple(one_line(entry.statement) for entry in done)
            ),
        }

    def _is_lost(self, shard: Shard, error: BaseException) -> bool:
        connection = self._connection
        # The revision closed it: SQLAlchemy would connect again, without a
        # database and without the lock.
        if connection is None or connection.closed or connection.invalidated:
            return True
        if not isinstance(error, DBAPIError) or error.orig is None:
            return False
        if _is_killed(shard, error):
            # KILL QUERY ends the statement, KILL also the connection.
            return not self._answers()
        backend = shard.place.backend
        return (
            error.connection_invalidated or backend.classify(error.orig) is Failure.LOST
        )

    def _recorded(
        self, shard: Shard, journal: Journal, error: BaseException, text: str
    ) -> tuple[Sequence[LedgerEntry] | None, InDoubtError | None]:
        self._roll_back()
        done: Sequence[LedgerEntry] | None = None
        doubt = None
        if isinstance(error, InDoubtError):
            # UnfinishedError: the command is for another revision.
            if not isinstance(error, UnfinishedError):
                journal.record_doubt(text)
        elif journal.step is not None and not isinstance(error, Interrupted):
            orig = error.orig if isinstance(error, DBAPIError) else None
            done = journal.fail(
                text, partial(is_refused, error=orig, database=shard.database)
            )
            doubt = journal.doubt()
        self._release(shard)
        return done, doubt

    def _roll_back(self) -> None:
        assert self._connection is not None  # noqa: S101 - of _connected()
        self._connection.rollback()
        # SQLAlchemy does not send it for what a plan or the journal has sent.
        self._connection.connection.rollback()

    def _release(self, shard: Shard) -> None:
        """Commit the ledger, and release the lock of a shard."""
        connection = self._connection
        assert connection is not None  # noqa: S101 - of _connected()
        # Not later: the next runner must read this version.
        connection.commit()
        shard.place.backend.ddl.release(connection, shard.database)
        connection.commit()


@contextmanager
def ordered_indexes() -> Iterator[None]:
    """Create the indexes of a new table in the order of their names.

    SQLAlchemy has them in a set: each process would send them in an order of
    its own, and an interrupted revision could not be resumed by another.
    """
    try:
        event.listen(Table, "before_create", _order_indexes)
        yield
    finally:
        stop_listening(Table, "before_create", _order_indexes)


def _order_indexes(table: Table, *details: Any, **more: Any) -> None:
    table.indexes = OrderedSet(sorted(table.indexes, key=lambda index: str(index.name)))


def _texts(journal: Journal) -> tuple[str, ...]:
    """Return what alembic has sent since; nothing if it has parameters."""
    texts = [text for text in journal.apart if text is not None]
    is_complete = len(texts) == len(journal.apart)
    journal.apart.clear()
    return tuple(texts) if is_complete else ()


def _is_killed(shard: Shard, error: BaseException) -> bool:
    orig = error.orig if isinstance(error, DBAPIError) else None
    return orig is not None and shard.place.backend.ddl.is_killed(orig)


def _is_closed(shard: Shard, error: BaseException) -> bool:
    """Return whether only the database of the shard is read-only."""
    orig = error.orig if isinstance(error, DBAPIError) else None
    return orig is not None and shard.place.backend.ddl.closes_database(orig)


def _is_read_only(shard: Shard, error: BaseException) -> bool:
    """Return whether the server refused to write."""
    orig = error.orig if isinstance(error, DBAPIError) else None
    return orig is not None and (shard.place.backend.classify(orig) is Failure.FENCED)


def is_relative(target: object) -> bool:
    """Return whether a target is relative, such as ``+1``."""
    return isinstance(target, str) and bool(_RELATIVE.fullmatch(target))


def _error_text(error: BaseException) -> str:
    if isinstance(error, DBAPIError):
        statement = one_line(error.statement or "")
        return f"{error.orig}" + (f"\nin: {statement}" if statement else "")
    return f"{type(error).__name__}: {message(error)}"
