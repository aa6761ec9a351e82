"""One process that changes virtual shards of a server, one after another."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence
from functools import wraps
from time import monotonic
from typing import Any

from alembic.runtime.migration import MigrationStep
from alembic.runtime.migration import RevisionStep
from sqlalchemy import Connection
from sqlalchemy import Engine
from sqlalchemy import event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import SQLAlchemyError

from sqla_shard.dialects import Failure
from sqla_shard.engines import Places
from sqla_shard.exc import InDoubtError
from sqla_shard.exc import SchemaError
from sqla_shard.schema import internal
from sqla_shard.schema.options import RunOptions
from sqla_shard.schema.reports import Outcome
from sqla_shard.schema.reports import State
from sqla_shard.schema.running.journal import Interrupted
from sqla_shard.schema.running.journal import Journal
from sqla_shard.schema.running.journal import UnfinishedError
from sqla_shard.schema.running.ledger import Entry
from sqla_shard.schema.running.ledger import said
from sqla_shard.schema.running.static import is_static
from sqla_shard.schema.running.watching import Watchdog
from sqla_shard.schema.selecting import Shard
from sqla_shard.schema.versions import listed
from sqla_shard.schema.versions import Version

__all__ = ["Applier", "is_relative"]

_RELATIVE = re.compile(r"(?:[^@]+@)?[+-]\d+")

#: Commands whose steps depend on nothing but where a shard is.
_CACHED = frozenset({"upgrade", "downgrade"})
#: What sys.exit() in a revision raises, and what is like it.
_ENDINGS = (SystemExit, KeyboardInterrupt, GeneratorExit)
#: How much of an error is kept.
_MOST = 10_000


#: What is added to an error, by whether a statement was under way.
_OF_LOST = {
    True: "\nThe connection is lost: the next run looks at what the "
    "statement in flight has done",
    False: "\nThe connection is lost. No statement was under way: the next "
    "run goes on where this one was",
}
_OF_SILENT = (
    "\nThe server has stopped to answer, new connections neither; so this one "
    "was given up"
)
_OF_KILLED = "\nThe statement was ended with KILL QUERY; repeat the command"
_OF_READ_ONLY = (
    "\nThe server is read-only: it is a standby, or fenced, or was set to "
    "read_only. Repeat the command with the topology that names the "
    "primary"
)


class Applier:
    """Runs alembic's command on a shard, and keeps its journal.

    It holds one connection, to the server of the shard before.

    :param context: alembic's environment; the process is forked with it.
    :param fn: what alembic's command gives as the steps of a database.
    :param settings: for ``context.configure()``.
    """

    def __init__(
        self,
        context: Any,
        fn: Callable[..., Iterable[MigrationStep]],
        places: Places,
        options: RunOptions,
        settings: dict[str, Any],
    ) -> None:
        self._context = context
        self._fn = fn
        self._places = places
        self._options = options
        self._settings = settings
        self._cache: dict[tuple[str, ...], list[MigrationStep]] = {}
        #: The statements of static revisions, by direction and revision.
        self._sent: dict[tuple[str, str], list[str]] = {}
        self._engine: Engine | None = None
        self._connection: Connection | None = None
        self._journal: Journal | None = None
        self._watchdog: Watchdog | None = None
        self._steps: list[str] = []
        self._expected: tuple[str, ...] = ()
        self._is_stopped = False

    def stop(self, *details: object) -> None:
        """Stop after the statement that runs; a signal handler."""
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
            # Not earlier: closing sends ROLLBACK, and waits for it.
            self._watchdog.close()
        self._connection = self._engine = self._journal = None
        self._watchdog = None

    def __call__(self, version: Version) -> Outcome:
        """Do the work on one shard, and tell what became of it."""
        shard, began = version.shard, monotonic()
        self._steps.clear()
        count = 0
        found: dict[str, Any]
        try:
            connection, journal = self._connected(shard)
        except (DBAPIError, OSError) as error:
            self.close()
            found = {"state": State.UNREACHABLE, "error": _shown(error)}
        else:
            found = self._attempt(version, connection, journal)
            count = journal.count
            if journal.is_soiled:
                # The next shard would have what this one has set.
                self.close()
        return Outcome.of(
            shard,
            steps=tuple(self._steps),
            statements=count,
            seconds=monotonic() - began,
            **found,
        )

    def _connected(self, shard: Shard) -> tuple[Connection, Journal]:
        engine, ddl = shard.place.engine, shard.place.backend.ddl
        if (
            self._engine is None
            or self._engine.url != engine.url
            or not self._answers()
        ):
            self.close()
            self._engine = self._places.engines.apart(engine, timeout=math.inf)
            self._watchdog = Watchdog(
                self._places.engines, engine, shard.place.backend
            )
            # Before SQLAlchemy asks the questions of a first connection.
            event.listen(
                self._engine, "connect", self._watchdog.watch, insert=True
            )
        if self._connection is None or self._journal is None:
            self._connection = self._engine.connect()
            ddl.patience(self._connection, self._options.lock_wait)
            ddl.quicken(
                self._connection,
                self._settings.get("version_table", "alembic_version"),
            )
            self._journal = Journal(self._connection, ddl)
            self._journal.stop = self._is_stopped
        return self._connection, self._journal

    def _answers(self) -> bool:
        """Tell whether the connection is there, if there is one.

        A server ends one that is idle for too long, between two waves or
        while another shard takes its time.
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
            ddl.enter(connection, shard.schema)
            holder = ddl.hold(
                connection, shard.database, self._options.runner_wait
            )
            if holder is not None:
                connection.rollback()
                return {
                    "state": State.HELD,
                    "error": f"{shard.database} is held by {holder}: another "
                    "runner, or a statement that outlived one",
                }
            self._migrate(version, connection, journal)
            ddl.release(connection, shard.database)
            connection.commit()
        except Interrupted as stopped:
            return self._failed(shard, journal, State.INTERRUPTED, stopped)
        except InDoubtError as error:
            return self._failed(shard, journal, State.IN_DOUBT, error)
        # Whatever it is that a revision raises, it is told of in the report
        # and other shards go on.
        except (Exception, *_ENDINGS) as error:
            return self._failed(shard, journal, State.FAILED, error)
        return {"state": State.CHANGED if self._steps else State.CURRENT}

    def _migrate(
        self, version: Version, connection: Connection, journal: Journal
    ) -> None:
        # Another runner may have been here since the version was read.
        if version.internal != internal.head():
            internal.upgrade(connection, version.internal)
        journal.enter()
        if self._fn.__name__ == "do_stamp":
            journal.check_stamp()
        self._expected = version.heads
        # Alembic would not commit by itself what others have begun.
        connection.commit()
        self._context.configure(
            **{
                **self._settings,
                "connection": connection,
                "fn": self._stepping,
                "sqla_shard": version.shard,
                "on_version_apply": [
                    self._applied,
                    *self._settings.get("on_version_apply", ()),
                ],
            }
        )
        with self._context.begin_transaction():
            self._context.run_migrations()
        journal.check_ended()

    def _stepping(self, heads: Any, context: Any) -> Iterable[MigrationStep]:
        """Give alembic its steps, with the journal around each."""
        key = tuple(sorted(heads))
        if self._expected and not key and self._fn.__name__ == "upgrade":
            # Its database was dropped, or moved; not to be filled again.
            raise SchemaError(
                f"it was at {listed(self._expected)} when this run began, "
                "and has no revision now; look for its objects"
            )
        if key != self._expected and is_relative(
            context.opts.get("destination_rev")
        ):
            # One step more than was asked for, after another runner's.
            raise SchemaError(
                f"it was at {listed(self._expected)} when this run began, "
                f"and is at {listed(key)} now; another runner was here. "
                "Name the revision itself"
            )
        steps = self._cache.get(key)
        if steps is None:
            steps = [
                self._journalled(step) for step in self._fn(heads, context)
            ]
            if self._fn.__name__ in _CACHED:
                self._cache[key] = steps
        return steps

    def _journalled(self, step: MigrationStep) -> MigrationStep:
        if isinstance(step, RevisionStep):
            direction = "upgrade" if step.is_upgrade else "downgrade"
            revision, run = step.revision.revision, step.migration_fn
            repeats = self._options.replay and is_static(
                step.revision.path, direction
            )

            # Alembic logs the name of what it runs.
            @wraps(run)
            def journalled(**kwargs: Any) -> None:
                journal = self._journal
                assert journal is not None  # noqa: S101 - of _connected()
                journal.begin(direction, revision)
                sent = self._sent.get((direction, revision))
                if sent is None:
                    run(**kwargs)
                else:
                    journal.repeat(sent)
                journal.end()
                if repeats and journal.is_repeatable:
                    self._sent[direction, revision] = journal.sent

            step.migration_fn = journalled
        return step

    def _applied(self, *, step: Any, **kwargs: Any) -> None:
        assert self._journal is not None  # noqa: S101 - of _connected()
        self._journal.close()
        verb = "stamp"
        if not step.is_stamp:
            verb = "upgrade" if step.is_upgrade else "downgrade"
        revisions = (
            step.up_revision_ids
            if step.is_upgrade
            else (step.down_revision_ids or ("base",))
        )
        self._steps.append(f"{verb} of {', '.join(revisions)}")

    def _failed(
        self,
        shard: Shard,
        journal: Journal,
        state: State,
        error: BaseException,
    ) -> dict[str, Any]:
        journal.mute()
        step = journal.step
        done: Sequence[Entry] | None = None
        text = "" if state is State.INTERRUPTED else _shown(error)
        try:
            if self._is_lost(shard, error):
                if self._watchdog is not None and self._watchdog.has_cut:
                    text += _OF_SILENT
                self.close()
                text += _OF_LOST[journal.is_running]
            elif self._is_refused(shard, error):
                state = State.READ_ONLY
                text += _OF_READ_ONLY
                self._rolled_back()
                self._let_go(shard)
            else:
                if _is_killed(shard, error):
                    text += _OF_KILLED
                done, doubt = self._recorded(shard, journal, error, text)
                if doubt is not None:
                    # The next run would say so; somebody can look now.
                    state, done = State.IN_DOUBT, None
                    text += f"\n{doubt}"
        except (SQLAlchemyError, OSError) as second:
            self.close()
            text += f"\nand nothing could be written down: {_shown(second)}"
        return {
            "state": state,
            "error": text or None,
            "step": step,
            "done": (
                None
                if done is None
                else tuple(said(entry.statement) for entry in done)
            ),
        }

    def _is_lost(self, shard: Shard, error: BaseException) -> bool:
        connection = self._connection
        # By the revision itself; SQLAlchemy would open another one, in no
        # database and without the lock.
        if connection is None or connection.closed or connection.invalidated:
            return True
        if not isinstance(error, DBAPIError) or error.orig is None:
            return False
        if _is_killed(shard, error):
            # Either the statement alone, or with its connection.
            return not self._answers()
        backend = shard.place.backend
        return (
            error.connection_invalidated
            or backend.classify(error.orig) is Failure.LOST
        )

    def _is_refused(self, shard: Shard, error: BaseException) -> bool:
        """Tell whether the server is read-only."""
        return (
            isinstance(error, DBAPIError)
            and error.orig is not None
            and shard.place.backend.classify(error.orig) is Failure.FENCED
        )

    def _recorded(
        self, shard: Shard, journal: Journal, error: BaseException, text: str
    ) -> tuple[Sequence[Entry] | None, InDoubtError | None]:
        self._rolled_back()
        done: Sequence[Entry] | None = None
        doubt = None
        if isinstance(error, InDoubtError):
            # What was asked for is not about the one that was interrupted.
            if not isinstance(error, UnfinishedError):
                journal.note(text)
        elif journal.step is not None and not isinstance(error, Interrupted):
            done = journal.fail(text)
            doubt = journal.doubt()
        self._let_go(shard)
        return done, doubt

    def _rolled_back(self) -> None:
        assert self._connection is not None  # noqa: S101 - of _connected()
        self._connection.rollback()

    def _let_go(self, shard: Shard) -> None:
        """Give the lock of a shard back, and commit what was recorded."""
        connection = self._connection
        assert connection is not None  # noqa: S101 - of _connected()
        shard.place.backend.ddl.release(connection, shard.database)
        connection.commit()


def _is_killed(shard: Shard, error: BaseException) -> bool:
    return (
        isinstance(error, DBAPIError)
        and error.orig is not None
        and shard.place.backend.ddl.is_killed(error.orig)
    )


def is_relative(target: object) -> bool:
    """Tell whether a target counts from where a shard is."""
    return isinstance(target, str) and bool(_RELATIVE.fullmatch(target))


def _shown(error: BaseException) -> str:
    if isinstance(error, DBAPIError):
        statement = said(error.statement or "")
        return f"{error.orig}" + (f"\nin: {statement}" if statement else "")
    text = f"{type(error).__name__}: {error}"
    if len(text) > _MOST:
        text = f"{text[:_MOST]}... ({len(text)} characters)"
    # What is no Unicode could be neither written down nor printed.
    return text.encode("utf-8", "backslashreplace").decode()
