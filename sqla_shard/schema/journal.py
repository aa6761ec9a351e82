"""Record of a revision on a virtual shard, statement by statement.

Before a statement runs, an entry for it is inserted into the ledger, over
the same connection and in the same transaction:

- DDL commits the entry before it begins, so an entry without a successor
  belongs to a statement in progress; comparing the definitions of the tables
  that it names shows whether it took effect;
- DML is committed, or rolled back, together with its entry: the entry is in
  the ledger if and only if the statement took effect;
- any other statement is committed before and after, so that its entry is in
  the ledger in any case; without a successor, its outcome is unknown.

Entries of indexes that a CREATE TABLE creates with its table are inserted
together with its entry, as joined.  Without a successor, they have taken
effect if the table exists with these indexes, and have not if there is none.

Any other entry with a successor has taken effect.  With the last COMMIT of the
revision, which also writes alembic's version, the entries are closed.

When a revision is run again after an interruption, statements that have taken
effect are skipped if their text is unchanged.  A revision that queries the
database before the last of these statements is refused: the query could return
other rows now.  The ledger does not store row counts: ``rowcount`` of a
skipped statement is -1.

An error that the journal raises in a revision is raised again at its end, in
case the revision has caught it.

Until a query returns other rows than on the first shard, or a revision asks for its
shard, nothing that it sends can depend on the shard.  So far each shard has to get
the statements of the first one: a value of ``uuid4()`` or ``now()`` would be another
one on each.  Digests of these statements, and of what they returned, are kept in the
last entry of a finished revision, for a later run.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from hashlib import sha256
from typing import Any, NamedTuple

from sqlalchemy import bindparam, Connection, delete, event, insert, update
from sqlalchemy.engine.cursor import FullyBufferedCursorFetchStrategy
from sqlalchemy.exc import DBAPIError

from sqla_shard.dialects import DDL
from sqla_shard.dialects.base import Statement
from sqla_shard.exc import InDoubtError, SchemaError
from sqla_shard.outbox.tables import LEDGER
from sqla_shard.schema.effects import Effect, read, StatementProperties
from sqla_shard.schema.ledger import (
    changed_tables,
    FAILED,
    FINISHED,
    JOINED,
    last_sent,
    LedgerEntry,
    now,
    one_line,
    open_entries,
    runner_name,
    STARTED,
    took_effect,
)

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
#: The same for a driver, in the style of MySQL.
_CLOSE_TEXT = (
    f"UPDATE {LEDGER.name} SET is_open = FALSE, "  # noqa: S608 - constants
    f"state = '{FINISHED}', ended_at = %s WHERE is_open"
)


#: Stands for the name of the database in what is compared on all shards.
_DATABASE = "\0"

#: The key of kept digests, where the names of tables have proofs: no table has it.
_KEPT = ""

#: Number of statements that are kept: they have to fit into a packet.
_MOST_KEPT = 100_000

#: Length of the digest of a statement in bytes.
_DIGEST = 8


class Interrupted(Exception):  # noqa: N818 - a requested stop is no error
    """Raised before the next statement if the run has to stop."""


class UnfinishedError(InDoubtError):
    """Raised if another command is run than the interrupted one."""


class SentStatement(NamedTuple):
    """A statement that the code of a revision has sent.

    :ivar text: the beginning of the statement and its parameters.
    :ivar digest: digest of all of both, without the name of the database.
    :ivar result: the number of rows, and the last id; of a query the digest of
        its rows; None if not known.
    """

    text: str
    digest: bytes
    result: Any = None

    @property
    def is_query(self) -> bool:
        """Whether it has returned rows, or an error in place of them."""
        return self.result is not None and isinstance(self.result[0], str)


class FirstSent(NamedTuple):
    """Statements that the code of a revision sent to the first shard.

    :ivar server: kind and version of the server: another one may get other
        statements.
    :ivar statements: those before the first that may depend on the shard.
    :ivar kept_on: the shard that an earlier run sent them to, which has kept
        their digests only; None if it was this run.
    """

    server: str
    statements: list[SentStatement]
    kept_on: int | None = None

    def as_json(self) -> str:
        """Return the digests and the results."""
        kept = self.statements[:_MOST_KEPT]
        pairs = [(one.digest.hex(), one.result) for one in kept]
        return json.dumps({_KEPT: [self.server, pairs]})

    @classmethod
    def of_json(cls, text: str, shard_id: int) -> FirstSent | None:
        """Return what a shard has kept; None if it is the proof of a statement."""
        kept = json.loads(text).get(_KEPT)
        if kept is None:
            return None
        server, pairs = kept
        statements = [
            SentStatement("", bytes.fromhex(digest), result and tuple(result))
            for digest, result in pairs
        ]
        return cls(server, statements, shard_id)


class Journal:
    """Writes the ledger of the shard that a connection uses.

    :param connection: the connection of the revisions; the journal listens
        to the events of its engine.
    :ivar stop: whether to execute no further statement.
    :ivar count: number of statements that were executed on the shard.
    :ivar sent: the statements of the revision.
    :ivar is_repeatable: whether they can be sent to other shards unchanged.
    :ivar apart: what alembic has sent between the revisions; None for a
        statement with parameters.
    :ivar is_kept: whether the ledger keeps the digests of the revision that has
        ended, for other shards.
    :ivar has_session_state: whether a statement may have changed the
        session of the connection, such as one of its variables.
    """

    stop = False

    def __init__(self, connection: Connection, ddl: DDL) -> None:
        self._connection = connection
        self._ddl = ddl
        self._runner = runner_name()
        self._listening = False
        self._database = ""
        self.entries: list[LedgerEntry] = []
        self.apart: list[str | None] = []
        self.count: int = 0
        self.has_session_state: bool = False
        self._reset()
        self._new = insert(LEDGER).compile(
            dialect=connection.dialect, column_keys=list(_NEW)
        )
        engine = connection.engine
        for name in ("do_execute", "do_executemany", "do_execute_no_params"):
            event.listen(engine, name, partial(self._execute, name))

    def _reset(self) -> None:
        self._direction = self._revision = ""
        self._digest = ""
        self._number = 0
        self._in_flight = self._has_read = self._is_many = False
        self._refused: Exception | None = None
        self.sent: list[str] = []
        self.is_repeatable: bool = True
        self._skipped: list[LedgerEntry] = []
        self._names: set[str] | None = None
        self._rolls_back: bool | None = None
        self._first: FirstSent | None = None
        self._comparable: list[SentStatement] = []
        self._may_differ = self.is_kept = False

    def enter(self, database: str) -> None:
        """Begin with a shard: read its open entries."""
        self.start(open_entries(self._connection))
        self._database = database

    def start(self, entries: list[LedgerEntry]) -> None:
        """Begin with a shard whose open entries are known."""
        self._listening = False
        self._reset()
        self.count = 0
        self.has_session_state = False
        self.entries = entries
        self.apart = []

    def begin(
        self, direction: str, revision: str, first: FirstSent | None = None
    ) -> None:
        """Begin a revision, or resume it.

        :param first: statements of the revision on the first shard.
        :raises InDoubtError: if another revision was interrupted here, or
            the outcome of a statement of this one is unknown.
        """
        self._reset()
        self._direction, self._revision = direction, revision
        if first is not None and first.server == self._server:
            self._first = first
        if self.entries:
            self._resume(last_sent(self.entries))
        self._listening = True

    def _resume(self, sent: Sequence[LedgerEntry]) -> None:
        last = sent[0]
        if (last.direction, last.revision) != (self._direction, self._revision):
            raise self._unfinished(last, f"finish it before the {self.step}")
        if took_effect(self._connection, self._ddl, sent):
            self._skipped = self.entries
            return
        self._skipped = self.entries[: -len(sent)]
        with self._unrecorded():
            self._delete(sent)
            # Mark these as finished: the entry that proved it was deleted.
            self._connection.execute(
                update(LEDGER).where(LEDGER.c.is_open.is_(True)).values(state=FINISHED)
            )
            # A rollback of a later statement must not restore the entry.
            self._commit()

    def _delete(self, entries: Iterable[LedgerEntry]) -> None:
        ids = [entry.id for entry in entries]
        self._connection.execute(delete(LEDGER).where(LEDGER.c.id.in_(ids)))

    def check_finished(self, reason: str) -> None:
        """Check that no revision is unfinished.

        :param reason: reason why the command cannot continue, for the message.
        :raises UnfinishedError: if there are open entries.
        """
        if self.entries:
            raise self._unfinished(
                last_sent(self.entries)[0], f"{reason}; finish it first"
            )

    @staticmethod
    def _unfinished(last: LedgerEntry, remedy: str) -> UnfinishedError:
        reason = f" ({one_line(last.error)})" if last.error else ""
        return UnfinishedError(
            f"{last.step} was interrupted here{reason}; {remedy}",
            statement=last.statement,
        )

    def mute(self) -> None:
        """Record no statements until the next revision begins."""
        self._listening = False

    def end(self) -> None:
        """End the statements of a revision; its version is written next.

        :raises InDoubtError: if it has fewer statements than it had before
            the interruption.
        """
        self._listening = False
        if self._refused is not None:
            # The revision caught the error, and may have skipped statements.
            raise self._refused
        if self._number < len(self._skipped):
            raise self._changed(self._skipped[self._number])
        if not self._may_differ:
            self._compare(SentStatement("no statement", b""))

    def differ(self) -> None:
        """Note that what follows may be another statement on another shard."""
        self._may_differ = True

    @property
    def first_sent(self) -> FirstSent:
        """Statements that other shards have to get."""
        return FirstSent(self._server, self._comparable)

    @property
    def _server(self) -> str:
        dialect = self._connection.dialect
        version = dialect.server_version_info
        return f"{dialect.name} {getattr(dialect, 'is_mariadb', False)} {version}"

    def close(self) -> None:
        """Close the entries of a revision; the caller commits."""
        if self.is_kept:
            if not self._number:
                self._insert(0, "", None)
                self._number = 1
            of_last = LEDGER.c.is_open.is_(True) & (LEDGER.c.number == self._number - 1)
            kept = self.first_sent.as_json()
            self._connection.execute(
                update(LEDGER).where(of_last).values(tables_before=kept)
            )
        if self._number or self.entries:
            self._connection.execute(_CLOSE, {"moment": now()})
        self.entries = []

    @property
    def is_running(self) -> bool:
        """Whether a statement of the revision is in progress."""
        return self._in_flight

    @property
    def revision(self) -> str:
        """The revision that has begun last on the shard."""
        return self._revision

    @property
    def step(self) -> str | None:
        """Direction and revision, such as ``upgrade of 1975ea83b712``."""
        if not self._revision:
            return None
        return f"{self._direction} of {self._revision}"

    def record_doubt(self, error: str) -> None:
        """Write the reason why a revision is in doubt into the ledger."""
        self.entries = open_entries(self._connection)
        if not self.entries:
            return
        last = last_sent(self.entries)[0]
        # Put the first error first: an operator needs it most.
        before = last.error or ""
        if error not in before:
            text = f"{before}\n{error}" if before else error
            self._connection.execute(
                update(LEDGER).where(LEDGER.c.id == last.id).values(error=text)
            )

    def fail(self, error: str, is_refused: Callable[[str], bool]) -> list[LedgerEntry]:
        """Write into the ledger that the revision failed.

        Its transaction has been rolled back.

        :param is_refused: returns whether the server has said that a statement
            did nothing.
        :returns: the entries of statements that have taken effect.
        """
        self.entries = open_entries(self._connection)
        last = self.entries[-1] if self.entries else None
        done = self.entries
        if self._in_flight and last is not None and last.number == self._number - 1:
            last, *joined = last_sent(self.entries)
            done = self.entries[: -1 - len(joined)]
            self._delete(joined)
            # Some of the rows may have been committed before the failure.
            half = self._is_many and read(last.statement).effect is Effect.ROWS
            before = last.tables_before
            if before is None:
                is_undone = not half and is_refused(last.statement)
            else:
                is_undone = not changed_tables(
                    self._connection, self._ddl, json.loads(before)
                )
            if is_undone:
                # An operator may repair the tables before the next run.
                before = "{}"
            self._connection.execute(
                update(LEDGER)
                .where(LEDGER.c.id == last.id)
                .values(
                    state=STARTED if half else FAILED,
                    error=error,
                    tables_before=before,
                    ended_at=now(),
                )
            )
        elif self._revision:
            self._insert(len(done), "", None, state=FAILED, error=error)
        return done

    def doubt(self) -> InDoubtError | None:
        """Return the error of the statement in doubt, if any, or None."""
        entries = open_entries(self._connection)
        try:
            if entries:
                took_effect(self._connection, self._ddl, last_sent(entries))
        except InDoubtError as error:
            return error
        return None

    def next_entry(self, statement: str, properties: StatementProperties) -> int:
        """Return the number of the next statement, which changes tables.

        :raises Interrupted: if the run has to stop.
        """
        number = self._next_number(statement, (), properties)
        assert number is not None  # noqa: S101 - it changes tables
        return number

    def entry(self, number: int, statement: str, before: str) -> Statement:
        """Return the INSERT of the entry of a statement."""
        return str(self._new), self._values(number, statement, before)

    def joined_entries(
        self, statements: Iterable[str], before: str
    ) -> tuple[int, Statement]:
        """Return the INSERT of the entries of one CREATE TABLE.

        :param statements: CREATE TABLE, and those of its indexes.
        :param before: the proof of the first one.
        :returns: the number of the last entry, and the statement.
        :raises Interrupted: if the run has to stop.
        """
        values: list[Any] = []
        count = number = 0
        for statement in statements:
            number = self.next_entry(statement, read(statement))
            proof = (None, JOINED) if count else (before, STARTED)
            values += self._values(number, statement, *proof)
            count += 1
        inserted, _, row = str(self._new).partition(" VALUES ")
        text = f"{inserted} VALUES {', '.join([row] * count)}"
        return number, (text, tuple(values))

    def started(self, number: int) -> None:
        """Note that the entry was inserted, and its statement was sent."""
        self._number = number + 1
        self._in_flight = True

    def ended(self, count: int = 1) -> None:
        """Note that the statement of the last entry has ended.

        :param count: number of entries of the statement.
        """
        self._in_flight = False
        self.count += count

    @staticmethod
    def closing() -> Statement:
        """Return the UPDATE that closes the entries of a revision."""
        return _CLOSE_TEXT, (now().isoformat(" ", "microseconds"),)

    def repeat(self, statements: Iterable[str]) -> None:
        """Send the statements that a static revision sent to another shard."""
        for statement in statements:
            self._handle(statement, (), partial(self._send, statement, ()))

    def _execute(
        self, name: str, cursor: Any, statement: str, *details: Any
    ) -> bool | None:
        """Handle an event.

        :param name: name of the event and of the method of the dialect.
        :param details: parameters, if any, and context.
        """
        execute = getattr(details[-1].dialect, name)

        def run() -> None:
            try:
                execute(cursor, statement, *details)
            except BaseException as error:
                # The revision may catch it.
                self._failed(statement, error)
                raise
            self._executed(cursor, details[-1])

        return self._handle(
            statement,
            details[0] if details[1:] else None,
            run,
            many=name == "do_executemany",
        )

    def _handle(
        self,
        statement: str,
        parameters: Any,
        run: Callable[[], None],
        *,
        many: bool = False,
    ) -> bool | None:
        if not self._listening:
            if read(statement).effect not in (Effect.READS, Effect.SESSION):
                self.apart.append(None if parameters else statement)
            return None
        self._is_many = many
        properties = read(statement)
        try:
            # First: a revision that was changed is in doubt where it was resumed.
            number = self._next_number(statement, parameters, properties)
            if not self._may_differ:
                sent = self._sent(statement, parameters)
                self._compare(sent, is_query=properties.effect is Effect.READS)
            if properties.returns_rows:
                self.differ()
        except (Interrupted, SchemaError) as refusal:
            self._refused = refusal
            raise
        if number is None:
            if self._may_differ or properties.effect is not Effect.READS:
                return None
            run()
            return True
        if number < len(self._skipped):
            return True
        with self._unrecorded():
            apart = self._write(number, statement, properties)
        self._in_flight = True
        run()
        self._in_flight = False
        self.count += 1
        if apart:
            self._commit()
        return True

    def _next_number(
        self, statement: str, parameters: Any, properties: StatementProperties
    ) -> int | None:
        """Return the number of a statement; None if it needs no entry.

        :raises InDoubtError: if the revision cannot be resumed.
        :raises SchemaError: if the statement leaves the database.
        :raises Interrupted: if the run has to stop.
        """
        if properties.effect is Effect.LEAVES:
            raise SchemaError(
                "a revision must not change to another database than that of "
                f"its virtual shard: {one_line(statement)}"
            )
        self.has_session_state |= properties.changes_session
        if properties.effect is Effect.READS or properties.returns_rows:
            self._check_reading(statement)
            self._has_read = True
        if properties.effect is Effect.TABLES and not parameters:
            self.sent.append(statement)
        else:
            self.is_repeatable = False
        if properties.effect in (Effect.READS, Effect.SESSION):
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
        # A revision that has queried the database could not be resumed after
        # statements that took effect, so it runs to its end.
        if self.stop and not self._has_read:
            raise Interrupted
        return number

    def _sent(self, statement: str, parameters: Any) -> SentStatement:
        values = repr(_with_repr(parameters))
        whole = f"{statement}\n{values}".replace(self._database, _DATABASE)
        digest = sha256(whole.encode("utf-8", "surrogatepass")).digest()
        return SentStatement(one_line(f"{statement} {values}"), digest[:_DIGEST])

    def _compare(self, sent: SentStatement, *, is_query: bool = False) -> None:
        """Compare a statement with that of the first shard.

        :raises SchemaError: if it is another one, and neither is a query.
        """
        at = len(self._comparable)
        self._comparable.append(sent)
        if self._first is None or at >= len(self._first.statements):
            return
        first = self._first.statements[at]
        if sent.digest == first.digest:
            return
        if is_query or first.is_query:
            # What it has returned may have been kept from another shard.
            self.differ()
            return
        kept_on = self._first.kept_on
        if kept_on is None:
            than = f"the first one of the run: {sent.text}, in place of {first.text}"
            remedy = "Compute its values at the top of the module"
        else:
            than = f"shard {kept_on} in an earlier run: {sent.text}"
            remedy = f"Write the values of shard {kept_on} into the revision"
        raise SchemaError(
            f"{self.step} sends another statement to this shard than to {than}. "
            f"{remedy}. If shards have to differ, ask for current_shard() before, or "
            "pass -x compare=false, --no-compare of sqla-shard"
        )

    def _executed(self, cursor: Any, context: Any) -> None:
        """Note what a statement has returned; rows are read, and handed on."""
        if self._may_differ:
            return
        if cursor.description is None:
            self._note(cursor.rowcount, cursor.lastrowid)
        elif {"stream_results", "yield_per"} & context.execution_options.keys():
            self.differ()  # there may be too many for the memory
        else:
            rows = cursor.fetchall()
            context.cursor_fetch_strategy = FullyBufferedCursorFetchStrategy(
                cursor, initial_buffer=rows
            )
            self._note("rows", _digest_of(rows))

    def _failed(self, statement: str, error: BaseException) -> None:
        """Note an error, which a query may have returned on each shard."""
        errors = self._connection.dialect.loaded_dbapi.Error
        is_query = read(statement).effect is Effect.READS
        if is_query and isinstance(error, errors):
            # Its text names the database; rows that do are other rows.
            text = repr(error.args).replace(self._database, _DATABASE)
            self._note("error", _digest_of([text]))
        else:
            self.differ()

    def _note(self, *result: Any) -> None:
        """Note the result of the last statement, on which others may depend."""
        if self._may_differ:
            return
        at = len(self._comparable) - 1
        self._comparable[at] = self._comparable[at]._replace(result=result)
        if self._first is not None and (
            at >= len(self._first.statements)
            or self._first.statements[at].result not in (None, result)
        ):
            self.differ()

    def _write(
        self, number: int, statement: str, properties: StatementProperties
    ) -> bool:
        """Insert the entry of a statement.

        :returns: whether to commit right after the statement.
        """
        if self._ddl.undoes:
            self._insert(number, statement, None)
            return False
        if properties.effect is Effect.TABLES:
            before = json.dumps(self._before(statement, properties))
            # DDL commits the entry before it begins.
            self._insert(number, statement, before)
            return False
        if properties.effect is Effect.UNKNOWN:
            # The statement may have created tables.
            self._names = self._rolls_back = None
        self._insert(number, statement, None)
        if properties.effect is Effect.ROWS and self._is_rolled_back():
            return False
        self._commit()
        return True

    def _before(
        self, statement: str, properties: StatementProperties
    ) -> dict[str, Any]:
        tables = properties.tables
        name = tables[0].strip("`")
        if properties.creates_table and "." not in name:
            if self._names is None:
                self._names = self._ddl.names(self._connection)
            if name not in self._names:
                # Querying the definition of a table that does not exist
                # would cost a round trip for each CREATE TABLE.
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
        values = self._values(number, statement, before, state, error)
        # The parameters: a sequence in column order, or a mapping by name.
        self._send(
            str(self._new),
            values if self._new.positional else dict(zip(_NEW, values, strict=True)),
        )

    def _values(
        self,
        number: int,
        statement: str,
        before: str | None,
        state: str = STARTED,
        error: str | None = None,
    ) -> tuple[Any, ...]:
        return (
            self._direction,
            self._revision,
            number,
            state,
            statement,
            self._digest,
            before,
            error,
            self._runner,
            now().isoformat(" ", "microseconds"),
            True,
        )

    def _send(self, statement: str, parameters: Any) -> None:
        """Send a statement through the DBAPI, ten times as fast as SQLAlchemy.

        :raises DBAPIError: as SQLAlchemy raises it.
        """
        errors = self._connection.dialect.loaded_dbapi.Error
        cursor = self._connection.connection.cursor()
        try:
            cursor.execute(statement, parameters)
        except errors as error:
            raise DBAPIError.instance(
                statement, parameters, error, errors, dialect=self._connection.dialect
            ) from error
        finally:
            cursor.close()

    def _is_rolled_back(self) -> bool:
        if self._rolls_back is None:
            self._rolls_back = self._ddl.rolls_back(self._connection)
        return self._rolls_back

    def _commit(self) -> None:
        # Use the DBAPI: SQLAlchemy's transaction belongs to the revision.
        self._connection.connection.commit()

    def _check_reading(self, statement: str) -> None:
        if self._number < len(self._skipped):
            first = self._skipped[0]
            raise InDoubtError(
                f"{first.step} was interrupted after "
                f"{len(self._skipped)} statement(s), and it queries the "
                "database before that point, which may return other rows "
                f"now: {one_line(statement)}",
                statement=statement,
            )

    def _changed(self, entry: LedgerEntry) -> InDoubtError:
        return InDoubtError(
            # First what to do: a status shortens the text.
            f"{entry.step} was changed after it was interrupted. Restore its "
            "file and repeat the command; or complete it or undo it by hand, "
            "and answer with revision-done or revision-undone. Its statement "
            f"{entry.number + 1} was {one_line(entry.statement)}",
            statement=entry.statement,
        )

    @contextmanager
    def _unrecorded(self) -> Iterator[None]:
        """Send the journal's own statements without recording them."""
        self._listening, listened = False, self._listening
        try:
            yield
        finally:
            self._listening = listened


def _digest_of(rows: Iterable[Any]) -> str:
    digest = sha256()
    for row in rows:
        digest.update(repr(_with_repr(row)).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()[: 2 * _DIGEST]


def _with_repr(value: Any) -> Any:
    """Return parameters whose texts are equal in each process if they are."""
    if isinstance(value, dict):
        return {key: _with_repr(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [*map(_with_repr, value)]
    if isinstance(value, memoryview):
        return bytes(value)
    kind: Any = type(value)
    # Else the address would be compared.
    return kind if kind.__repr__ is object.__repr__ else value
