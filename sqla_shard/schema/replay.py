"""Replay of static revisions on a shard, in few round trips.

On its first shard a run executes a command through alembic.  If all revisions
are static, everything that was sent becomes a :class:`Plan`.  On shards that
are at the same revisions the plan is sent in packets of several statements:

1. the lock, the defaults of the database, the open entries of the ledger, the
   revisions, and the definition of the first table;
2. the entry of a statement and the statement itself, or the entries of a new
   table and its indexes and one CREATE TABLE; with the last one of a
   revision, the new version, and the end of the entries;
3. COMMIT, and after the last revision the release of the lock.

Apart from indexes that are created with their table, the server executes the
same statements, in the same order, as without a plan, and stops at the first
that fails.  The definition of a table that exists is
read between two packets, so each ALTER TABLE is in a packet of its own.

If the first packet finds a shard in another state, alembic runs there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from sqla_shard.dialects.base import Batch, Statement
from sqla_shard.exc import SchemaError
from sqla_shard.outbox.tables import LEDGER
from sqla_shard.schema import ledger
from sqla_shard.schema.effects import read, StatementProperties
from sqla_shard.schema.journal import Journal
from sqla_shard.schema.versions import Version

_OPEN = f"SELECT 1 FROM {LEDGER.name} WHERE is_open LIMIT 1"  # noqa: S608 - a constant

_After = Callable[[int, Sequence[Any]], None]


class NotAsPlannedError(Exception):
    """Raised before anything is changed, if a shard is in another state."""


@dataclass(frozen=True, kw_only=True)
class NewTable:
    """Statements that one CREATE TABLE replaces where the table is new.

    :ivar name: name of the table, not quoted.
    :ivar count: number of the statements.
    :ivar creation: the CREATE TABLE.
    """

    name: str
    count: int
    creation: str


@dataclass(frozen=True, kw_only=True)
class PlannedStep:
    """The statements that a static revision sends to every shard.

    :ivar statements: the statements of the revision.
    :ivar tables: the new tables, by the position of their first statement.
    :ivar versions: those of alembic that record its revision.
    :ivar title: its name in the report.
    """

    direction: str
    revision: str
    statements: tuple[str, ...]
    versions: tuple[str, ...]
    title: str
    tables: Mapping[int, NewTable] = field(default_factory=dict)

    @property
    def is_plain(self) -> bool:
        """Whether each of its statements names one table."""
        return all(len(read(one).tables) == 1 for one in self.statements)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The statements that a command sends to all shards at the same revisions.

    :ivar first: the statements that create alembic's table, if it is new.
    :ivar defaults: the row of :meth:`.Batch.defaults` where it was made.
    :ivar own: the statements that create the tables of this package, if the
        process has sent them.
    """

    first: tuple[str, ...]
    defaults: tuple[Any, ...]
    steps: tuple[PlannedStep, ...]
    own: tuple[str, ...] = ()

    @property
    def statements(self) -> list[str]:
        """The statements of all revisions."""
        return [one for step in self.steps for one in step.statements]


def new_tables(
    statements: Sequence[str], creation: Callable[[Sequence[str]], str | None]
) -> dict[int, NewTable]:
    """Return the tables that can be created with the indexes that follow.

    :param statements: the statements of a revision; each names one table.
    :param creation: :meth:`.Batch.creation`.
    """
    found: dict[int, NewTable] = {}
    first = 0
    while first < len(statements):
        properties = read(statements[first])
        (table,) = properties.tables
        last = first + 1
        while properties.creates_table and last < len(statements):
            after = read(statements[last])
            if after.creates_table or after.tables != (table,):
                break
            last += 1
        # As many of the statements after it as can be joined.
        while last > first + 1:
            text = creation(statements[first:last])
            if text is not None:
                found[first] = NewTable(
                    name=table.strip("`"), count=last - first, creation=text
                )
                break
            last -= 1
        first = last
    return found


class Replay:
    """Sends a plan to one shard.

    :param applied: called with each revision whose version was written.
    :ivar is_positioned: whether the shard was found as planned.
    """

    def __init__(
        self,
        plan: Plan,
        connection: Connection,
        batch: Batch,
        journal: Journal,
        applied: Callable[[PlannedStep], None],
    ) -> None:
        self._plan = plan
        self._connection = connection
        self._batch = batch
        self._journal = journal
        self._applied = applied
        self._names: set[str] = set()
        self._trip: list[tuple[Statement, _After | None]] = []
        self.is_positioned = False

    def run(self, version: Version, version_table: str) -> None:
        """Send the plan.

        :param version_table: the name of alembic's table.
        :raises NotAsPlannedError: if alembic has to run instead.
        :raises Interrupted: if the run has to stop.
        """
        self._journal.start([])
        self._position(version, version_table)
        commit, release = self._batch.leave(version.shard.database)
        for step in self._plan.steps:
            self._send(step)
            self._add(commit)
            if step is self._plan.steps[-1]:
                self._add(release)
            # Otherwise a failure of the next revision would roll back the
            # version, and leave two revisions with open entries.
            self._flush()
            self._applied(step)

    def _position(self, version: Version, version_table: str) -> None:
        shard = version.shard
        use, lock = self._batch.enter(shard.schema, 0)
        self._add(use)
        self._add(lock, self._check_lock)
        if version.internal is None:
            self._flush()
            ledger.upgrade_own_tables(
                self._connection, None, self._batch, self._plan.own
            )
        self._add((_OPEN, ()), self._check_open)
        heads = version.heads
        if heads:
            quote = self._connection.dialect.identifier_preparer.quote
            query = f"SELECT version_num FROM {quote(version_table)}"  # noqa: S608 - quoted
            self._add((query, ()), partial(self._check_heads, heads))
        statements = [read(one) for one in self._plan.statements]
        if not heads or any(one.creates_table for one in statements):
            absent = None if heads else version_table
            self._add(self._batch.names(), partial(self._check_names, absent))
        last, check = self._trip.pop()
        self._add(last, partial(self._found, check))
        beginning = self._plan.steps[0].statements[:1]
        if not heads or all(read(one).creates_table for one in beginning):
            self._flush()
        # Otherwise the definition of the first table is read with these.
        for statement in self._plan.first:
            self._add((statement, ()))

    def _check_lock(self, count: int, rows: Sequence[Any]) -> None:
        if tuple(rows[0]) != (1, *self._plan.defaults):
            raise NotAsPlannedError

    def _check_open(self, count: int, rows: Sequence[Any]) -> None:
        if rows:
            raise NotAsPlannedError

    def _check_heads(
        self, heads: tuple[str, ...], count: int, rows: Sequence[Any]
    ) -> None:
        if tuple(sorted(row[0] for row in rows)) != heads:
            raise NotAsPlannedError

    def _check_names(self, absent: str | None, count: int, rows: Sequence[Any]) -> None:
        self._names = {row[0] for row in rows}
        if absent in self._names:
            raise NotAsPlannedError

    def _found(self, check: _After | None, count: int, rows: Sequence[Any]) -> None:
        if check is not None:
            check(count, rows)
        self.is_positioned = True

    def _send(self, step: PlannedStep) -> None:
        """Send a revision, its entries and its version, without COMMIT."""
        journal = self._journal
        journal.begin(step.direction, step.revision)
        journal.mute()
        done = 0
        while done < len(step.statements):
            table = step.tables.get(done)
            if table is not None and table.name not in self._names:
                self._create(table, step.statements[done:])
                done += table.count
                continue
            statement = step.statements[done]
            properties = read(statement)
            before = self._before(properties)
            number = journal.next_entry(statement, properties)
            self._add(
                journal.entry(number, statement, json.dumps(before)),
                partial(self._started, number),
            )
            self._add((statement, ()), partial(self._ended, 1))
            done += 1
        for statement in step.versions:
            self._add((statement, ()), self._check_version)
        if step.statements:
            self._add(journal.closing())
        self._flush()

    def _create(self, table: NewTable, statements: Sequence[str]) -> None:
        """Create a table with its indexes."""
        self._names.add(table.name)
        before = json.dumps(dict.fromkeys(read(statements[0]).tables))
        number, entries = self._journal.joined_entries(
            statements[: table.count], before
        )
        self._add(entries, partial(self._started, number))
        self._add((table.creation, ()), partial(self._ended, table.count))

    def _before(self, properties: StatementProperties) -> dict[str, Any]:
        """Return the definition of the table before a statement."""
        (table,) = properties.tables
        name = table.strip("`")
        is_local = properties.creates_table and "." not in name
        if is_local and name not in self._names:
            self._names.add(name)
            return {table: None}
        found: dict[str, Any] = {table: None}
        query = self._batch.definition(table)

        def after(count: int, rows: Sequence[Any]) -> None:
            found[table] = self._batch.digest(rows)

        self._add(query, after)
        try:
            self._flush()
        except DBAPIError as error:
            if error.statement != query[0] or not self._batch.is_absent(error):
                raise
        return found

    def _started(self, number: int, count: int, rows: Sequence[Any]) -> None:
        self._journal.started(number)

    def _ended(self, entries: int, count: int, rows: Sequence[Any]) -> None:
        self._journal.ended(entries)

    def _check_version(self, count: int, rows: Sequence[Any]) -> None:
        if count != 1:
            raise SchemaError(
                f"alembic's table was changed during the {self._journal.step}:"
                f" {count} row(s) have the revision that it had before. "
                "Correct the table and repeat the command"
            )

    def _add(self, statement: Statement, after: _After | None = None) -> None:
        self._trip.append((statement, after))

    def _flush(self) -> None:
        trip, self._trip = self._trip, []
        with closing(self._batch.send([one for one, _ in trip])) as results:
            for (_, after), (count, rows) in zip(trip, results, strict=True):
                if after is not None:
                    after(count, rows)
