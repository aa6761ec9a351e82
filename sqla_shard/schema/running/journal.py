"""What a revision has done on a virtual shard, statement by statement.

Before a statement runs, an entry for it is inserted into the ledger, over
the same connection and in the same transaction:

- a change of tables commits it before it begins, so an entry that has no
  successor is of a statement in flight: looking at the tables it names tells
  whether it took effect, for they are as they were or they are not;
- rows that a statement writes are committed, or rolled back, together with
  its entry: it is in the ledger exactly when it took effect;
- what is neither is committed before and after, so that its entry is there
  in any case; when it has no successor, nothing tells what became of it.

An entry with a successor has taken effect.  With the last COMMIT of the
revision, which also writes alembic's version, the entries are closed.

When a revision is run again after an interruption, statements that have
taken effect are skipped, if they are the same as then.  A revision that
reads the database before that is not run: its answers could be others now.
The number of rows that a skipped statement changed is not kept: ``rowcount``
of it is -1.

What the journal refuses a revision, it refuses again at the end, should the
revision have caught the error.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from datetime import timezone
from functools import partial
from hashlib import sha256
from typing import Any

from sqlalchemy import bindparam
from sqlalchemy import Connection
from sqlalchemy import delete
from sqlalchemy import event
from sqlalchemy import insert
from sqlalchemy import update
from sqlalchemy.exc import DBAPIError

from sqla_shard.dialects import DDL
from sqla_shard.exc import InDoubtError
from sqla_shard.exc import SchemaError
from sqla_shard.internal import LEDGER
from sqla_shard.schema.running.ledger import changed_tables
from sqla_shard.schema.running.ledger import Entry
from sqla_shard.schema.running.ledger import FAILED
from sqla_shard.schema.running.ledger import FINISHED
from sqla_shard.schema.running.ledger import open_entries
from sqla_shard.schema.running.ledger import said
from sqla_shard.schema.running.ledger import settled
from sqla_shard.schema.running.ledger import STARTED
from sqla_shard.schema.statements import Effect
from sqla_shard.schema.statements import read
from sqla_shard.schema.statements import Reading

__all__ = ["Interrupted", "Journal", "UnfinishedError"]

_NEW = (
    "direction",
    "revision",
    "number",
    "state",
    "statement",
    "digest",
    "tables_before",
    "error",
    "runner",
    "started_at",
    "is_open",
)
_CLOSE = (
    update(LEDGER)
    .where(LEDGER.c.is_open.is_(True))
    .values(is_open=False, state=FINISHED, ended_at=bindparam("moment"))
)


class Interrupted(Exception):  # noqa: N818 - not an error: it was asked for
    """Raised before a statement, once the run was told to stop."""


class UnfinishedError(InDoubtError):
    """Raised when something else is asked for than what was interrupted."""


class Journal:
    """Writes the ledger of the shard that a connection is on.

    :param connection: what revisions run on; its engine is listened to.
    :ivar stop: whether to run no further statement.
    :ivar count: how many statements ran on the shard.
    :ivar sent: the statements of the revision.
    :ivar is_repeatable: whether sending them once more does the same.
    :ivar is_soiled: whether the connection may be another than before.
    """

    stop = False

    def __init__(self, connection: Connection, ddl: DDL) -> None:
        self._connection = connection
        self._ddl = ddl
        self._runner = f"{socket.gethostname()} {os.getpid()}"[:255]
        self._listening = False
        self.entries: list[Entry] = []
        self.count = 0
        self.is_soiled = False
        self._forget()
        self._new = insert(LEDGER).compile(
            dialect=connection.dialect, column_keys=list(_NEW)
        )
        engine = connection.engine
        event.listen(engine, "do_execute", self._execute)
        event.listen(engine, "do_executemany", self._execute_many)
        event.listen(engine, "do_execute_no_params", self._execute_bare)

    def _forget(self) -> None:
        self._direction = self._revision = ""
        self._digest = ""
        self._number = 0
        self._runs = self._has_read = self._is_many = False
        self._refused: Exception | None = None
        self.sent: list[str] = []
        self.is_repeatable = True
        self._skipped: list[Entry] = []
        self._names: set[str] | None = None
        self._rolls_back: bool | None = None

    def enter(self) -> None:
        """Begin with a shard: read what was left open there."""
        self._listening = False
        self._forget()
        self.count = 0
        self.is_soiled = False
        self.entries = open_entries(self._connection)

    # -- one revision

    def begin(self, direction: str, revision: str) -> None:
        """Begin with a revision, or go on with it.

        :raises InDoubtError: when another one was interrupted here, or what
            this one has done cannot be told.
        """
        self._forget()
        self._direction, self._revision = direction, revision
        if self.entries:
            self._go_on(self.entries[-1])
        self._listening = True

    def _go_on(self, last: Entry) -> None:
        if (last.direction, last.revision) != (
            self._direction,
            self._revision,
        ):
            raise self._unfinished(last, f"finish it before {self.step}")
        if settled(self._connection, self._ddl, last):
            self._skipped = self.entries
            return
        self._skipped = self.entries[:-1]
        with self._silently():
            self._connection.execute(
                delete(LEDGER).where(LEDGER.c.id == last.id)
            )
            # They lose their successor, which has told as much.
            self._connection.execute(
                update(LEDGER)
                .where(LEDGER.c.is_open.is_(True))
                .values(state=FINISHED)
            )
            # Not to come back with what fails from here on.
            self._commit()

    def check_ended(self) -> None:
        """Refuse to leave a revision that was interrupted as it is.

        :raises InDoubtError: when one was, and nothing has gone on with it.
        """
        if self.entries:
            raise self._unfinished(
                self.entries[-1],
                "that is not what was asked for now; finish it first",
            )

    def check_stamp(self) -> None:
        """Refuse to write another version over an unfinished revision.

        :raises UnfinishedError: when there is one.
        """
        if self.entries:
            raise self._unfinished(
                self.entries[-1], "a stamp would forget it; finish it first"
            )

    @staticmethod
    def _unfinished(last: Entry, remedy: str) -> UnfinishedError:
        reason = f" ({said(last.error)})" if last.error else ""
        return UnfinishedError(
            f"{last.step} was interrupted here{reason}; {remedy}",
            statement=last.statement,
        )

    def mute(self) -> None:
        """Let all statements pass, until the next revision begins."""
        self._listening = False

    def end(self) -> None:
        """End with the statements of a revision; its version comes next.

        :raises InDoubtError: when it is not the one that was interrupted.
        """
        self._listening = False
        if self._refused is not None:
            # The revision has caught it, and left out what was to follow.
            raise self._refused
        if self._number < len(self._skipped):
            raise self._changed(self._skipped[self._number])

    def close(self) -> None:
        """Close the entries of a revision, to be committed with it."""
        if self._number or self.entries:
            self._connection.execute(_CLOSE, {"moment": _now()})
        self.entries = []

    @property
    def is_running(self) -> bool:
        """Whether a statement of the revision was sent, and has not ended."""
        return self._runs

    @property
    def step(self) -> str | None:
        """The revision that has begun, as messages name it."""
        if not self._revision:
            return None
        return f"{self._direction} of {self._revision}"

    def note(self, error: str) -> None:
        """Write down why it cannot be told what a revision has done."""
        self.entries = open_entries(self._connection)
        if not self.entries:
            return
        last = self.entries[-1]
        # Why it had failed is what an operator needs first.
        before = last.error or ""
        if error not in before:
            text = f"{before}\n{error}" if before else error
            self._connection.execute(
                update(LEDGER).where(LEDGER.c.id == last.id).values(error=text)
            )

    def fail(self, error: str) -> list[Entry]:
        """Write down that the revision failed; its transaction is over.

        :returns: the entries of statements that have taken effect.
        """
        self.entries = open_entries(self._connection)
        last = self.entries[-1] if self.entries else None
        done = self.entries
        if self._runs and last is not None and last.number == self._number - 1:
            done = self.entries[:-1]
            before = last.tables_before
            if before is not None and not changed_tables(
                self._connection, self._ddl, json.loads(before)
            ):
                # Whoever mends the table now may do so.
                before = None
            # Some of its rows may have been committed before it failed.
            half = self._is_many and read(last.statement).effect is Effect.ROWS
            self._connection.execute(
                update(LEDGER)
                .where(LEDGER.c.id == last.id)
                .values(
                    state=STARTED if half else FAILED,
                    error=error,
                    tables_before=before,
                    ended_at=_now(),
                )
            )
        elif self._revision:
            self._insert(len(done), "", None, state=FAILED, error=error)
        return done

    def doubt(self) -> InDoubtError | None:
        """Return why it cannot be told what was done, or None if it can."""
        entries = open_entries(self._connection)
        try:
            if entries:
                settled(self._connection, self._ddl, entries[-1])
        except InDoubtError as error:
            return error
        return None

    def repeat(self, statements: Iterable[str]) -> None:
        """Send what a static revision has sent to another shard."""
        for statement in statements:
            self._on(statement, (), partial(self._send, statement, ()))

    # -- one statement

    def _execute(
        self, cursor: Any, statement: str, parameters: Any, context: Any
    ) -> bool | None:
        dialect = context.dialect
        return self._on(
            statement,
            parameters,
            lambda: dialect.do_execute(cursor, statement, parameters, context),
        )

    def _execute_many(
        self, cursor: Any, statement: str, parameters: Any, context: Any
    ) -> bool | None:
        dialect = context.dialect
        return self._on(
            statement,
            parameters,
            lambda: dialect.do_executemany(
                cursor, statement, parameters, context
            ),
            many=True,
        )

    def _execute_bare(
        self, cursor: Any, statement: str, context: Any
    ) -> bool | None:
        dialect = context.dialect
        return self._on(
            statement,
            None,
            lambda: dialect.do_execute_no_params(cursor, statement, context),
        )

    def _on(
        self,
        statement: str,
        parameters: Any,
        run: Callable[[], None],
        *,
        many: bool = False,
    ) -> bool | None:
        if not self._listening:
            return None
        self._is_many = many
        try:
            reading = read(statement)
            number = self._admitted(statement, parameters, reading)
        except (Interrupted, SchemaError) as refusal:
            self._refused = refusal
            raise
        if number is None:
            return None
        if number < len(self._skipped):
            return True
        with self._silently():
            apart = self._write(number, statement, reading)
        self._runs = True
        run()
        self._runs = False
        self.count += 1
        if apart:
            self._commit()
        return True

    def _admitted(
        self, statement: str, parameters: Any, reading: Reading
    ) -> int | None:
        """Number a statement; None for one that needs no entry.

        :raises InDoubtError: when the revision cannot be gone on with.
        :raises SchemaError: when it would leave its database.
        :raises Interrupted: when no other statement is to run.
        """
        if reading.effect is Effect.LEAVES:
            raise SchemaError(
                "a revision stays in the database of its virtual shard, and "
                f"the next would not be in its own: {said(statement)}"
            )
        self.is_soiled |= reading.stays
        if reading.effect is Effect.READS or reading.answers:
            self._check_reading(statement)
            self._has_read = True
        if reading.effect is Effect.TABLES and not parameters:
            self.sent.append(statement)
        else:
            self.is_repeatable = False
        if reading.effect in (Effect.READS, Effect.SESSION):
            return None
        if self._refused is not None:
            raise self._refused
        number = self._number
        self._number += 1
        shown = f"{self._digest}\n{statement}\n{parameters or ()!r}"
        self._digest = sha256(shown.encode()).hexdigest()
        if number < len(self._skipped):
            if self._skipped[number].digest != self._digest:
                raise self._changed(self._skipped[number])
            return number
        # One that has read could not be gone on with after statements that
        # have taken effect: it goes on to its end instead.
        if self.stop and not self._has_read:
            raise Interrupted
        return number

    def _write(self, number: int, statement: str, reading: Reading) -> bool:
        """Insert the entry of a statement.

        :returns: whether the statement is to be committed by itself.
        """
        if self._ddl.undoes:
            self._insert(number, statement, None)
            return False
        if reading.effect is Effect.TABLES:
            before = json.dumps(self._before(statement, reading))
            # Committed by the statement itself, before it begins.
            self._insert(number, statement, before)
            return False
        if reading.effect is Effect.UNKNOWN:
            # It may have made tables.
            self._names = self._rolls_back = None
        self._insert(number, statement, None)
        if reading.effect is Effect.ROWS and self._is_rolled_back():
            return False
        self._commit()
        return True

    def _before(self, statement: str, reading: Reading) -> dict[str, Any]:
        tables = reading.tables
        name = tables[0].strip("`")
        if reading.creates and "." not in name:
            if self._names is None:
                self._names = self._ddl.names(self._connection)
            if name not in self._names:
                # To ask for each table that is yet to be created would be a
                # round trip more for nothing.
                self._names.add(name)
                return {tables[0]: None}
        if len(tables) > 1:
            self._names = None
        return dict(self._ddl.definitions(self._connection, tables))

    def _insert(
        self,
        number: int,
        statement: str,
        before: str | None,
        *,
        state: str = STARTED,
        error: str | None = None,
    ) -> None:
        values = (
            self._direction,
            self._revision,
            number,
            state,
            statement,
            self._digest,
            before,
            error,
            self._runner,
            _now().isoformat(" ", "microseconds"),
            True,
        )
        # In the order of the columns, or by their names.
        self._send(
            str(self._new),
            values
            if self._new.positional
            else dict(zip(_NEW, values, strict=True)),
        )

    def _send(self, statement: str, parameters: Any) -> None:
        """Send a statement past SQLAlchemy, which takes ten times as long.

        :raises DBAPIError: as SQLAlchemy would.
        """
        errors = self._connection.dialect.loaded_dbapi.Error
        cursor = self._connection.connection.cursor()
        try:
            cursor.execute(statement, parameters)
        except errors as error:
            raise DBAPIError.instance(
                statement,
                parameters,
                error,
                errors,
                dialect=self._connection.dialect,
            ) from error
        finally:
            cursor.close()

    def _is_rolled_back(self) -> bool:
        if self._rolls_back is None:
            self._rolls_back = self._ddl.rolls_back(self._connection)
        return self._rolls_back

    def _commit(self) -> None:
        # Past SQLAlchemy, whose transaction is that of the whole revision.
        self._connection.connection.commit()

    def _check_reading(self, statement: str) -> None:
        if self._number < len(self._skipped):
            first = self._skipped[0]
            raise InDoubtError(
                f"{first.step} was interrupted after "
                f"{len(self._skipped)} statement(s), and it reads the "
                "database before that, which may have answered otherwise "
                f"then: {said(statement)}",
                statement=statement,
            )

    def _changed(self, entry: Entry) -> InDoubtError:
        return InDoubtError(
            f"{entry.step} is not the same as when it was interrupted: its "
            f"statement {entry.number + 1} was {said(entry.statement)}",
            statement=entry.statement,
        )

    @contextmanager
    def _silently(self) -> Iterator[None]:
        """Let statements of this journal itself pass."""
        self._listening, listened = False, self._listening
        try:
            yield
        finally:
            self._listening = listened


def _now() -> datetime:
    return datetime.now(timezone.utc).replace(tzinfo=None)
