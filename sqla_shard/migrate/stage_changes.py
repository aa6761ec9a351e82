"""The plan of a move, and changes of its stage."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from threading import Event
from time import monotonic

from sqlalchemy import (
    and_,
    case,
    Connection,
    Engine,
    func,
    inspect,
    not_,
    select,
    Table,
)
from sqlalchemy.sql.elements import ColumnElement

from sqla_shard.cluster.retries import repeat, Retries
from sqla_shard.dialects import backend_for
from sqla_shard.dialects.base import Backend
from sqla_shard.engine import ExecutionPlan, OPTION
from sqla_shard.engine.registry import by_server
from sqla_shard.engine.rendering import Place, TRANSLATE
from sqla_shard.exc import StageRefusedError
from sqla_shard.migrate.copies import locking_transaction, snapshot
from sqla_shard.migrate.declaration import Lookup, MappingTable, Reference
from sqla_shard.migrate.exact_types import (
    changed_in_unicode,
    DIFFERS,
    has_more_marks,
    is_written_late,
    unfit,
    WITH_TWINS,
)
from sqla_shard.migrate.marks import after_key, Key
from sqla_shard.migrate.move import Move
from sqla_shard.migrate.passes import last_pass, PASSES
from sqla_shard.migrate.stages import (
    advanced,
    check_step,
    Condition,
    DatabaseFence,
    Progress,
    STAGES,
)
from sqla_shard.migrate.tables import MovedRows, MovedTable
from sqla_shard.planning import spec_of
from sqla_shard.topology.keyspaces import as_ranges
from sqla_shard.util.json_values import JsonObject
from sqla_shard.util.sqlalchemy_helpers import is_mysql, sorted_tables

_PARALLEL = 8

_CHARACTER_SETS = "SELECT @@character_set_client, @@character_set_results"

#: Seconds that a fence waits for the transactions that have entered.
_PATIENCE = 3.0

#: Seconds after which a change of the fences is given up.
_TIMEOUT = 60.0


class Switch:
    """Changes the stage of a move.

    The store is written first, then each fence; a command that was killed is
    repeated, and continues with the fences that are behind.

    :param move: the move.
    :param on_step: called with a line of text at each step.
    """

    def __init__(
        self, move: Move, on_step: Callable[[str], object] = lambda _: None
    ) -> None:
        self._move = move
        self._on_step = on_step
        self._fence = DatabaseFence()

    # -- tables and fences

    def places(self) -> list[Place]:
        """Return all shards of the tables."""
        places = self._move.cluster.places
        found = {
            place.address: place
            for one in self._move.tables.values()
            for place in places.all_places(one.keyspace(places))
        }
        return list(found.values())

    def missing_tables(self) -> list[str]:
        """Return a line for each table of the classes that shards lack."""
        wanted: dict[tuple[str, int], set[str]] = {}
        shards: dict[tuple[str, int], Place] = {}
        for table in self._tables_of_classes():
            spec = spec_of(table)
            places = self._move.cluster.places
            keyspace = places.keyspace(spec.keyspace, spec.kind, spec.layout)
            for place in places.all_places(keyspace):
                shards[place.address] = place
                wanted.setdefault(place.address, set()).add(table.name)
        there: dict[tuple[str, int], set[str]] = {}

        def read(place: Place, connection: Connection) -> None:
            tables = place.backend.tables(connection, [place.schema])
            there[place.address] = tables[place.schema]

        self._on_shards(read, shards.values())
        missing: dict[str, list[Place]] = {}
        for address, names in wanted.items():
            for name in sorted(names - there[address]):
                missing.setdefault(name, []).append(shards[address])
        return [
            f"{name} is missing on shards "
            f"{as_ranges(one.shard_id for one in places)} of "
            f"{places[0].keyspace}; create it: sqla-shard schema upgrade "
            "(with schema --name if the keyspace has a section of "
            "alembic.ini), or create_all() in development"
            for name, places in missing.items()
        ]

    def obstacles(self, *, notes: bool = False) -> list[str]:
        """Return a line for each reason for which nothing is copied yet.

        :param notes: whether to add what is no such reason: what changes no
            character of a text, and texts that a function of ``convert`` gets.
        """
        lines = self.missing_tables()
        engine = self._move.engine
        if is_mysql(engine.dialect):
            with engine.connect() as connection:
                row = connection.exec_driver_sql(_CHARACTER_SETS).one()
            # That of results is NULL if the server does not convert them.
            if others := {*map(str, row)} - {"utf8mb4"}:
                lines.append(
                    f"connections to the database have the character set "
                    f"{', '.join(sorted(others))}, and other characters become "
                    "'?'; use ?charset=utf8mb4 in the URL of its engine"
                )
        for one in self._move.tables.values():
            lines += _generated_columns(engine, one)
            lines += _changed_texts(engine, one, notes=notes)
        return lines

    def _tables_of_classes(self) -> Iterator[Table]:
        for one in self._move.tables.values():
            yield one.cls.__table__
            if isinstance(one, MovedTable):
                for lookup in one.lookups.values():
                    yield lookup.__table__

    def prepare(self) -> None:
        """Create the fences and the tables of marks that are missing."""
        with snapshot(self._move.engine) as connection:
            self._fence.create(connection)
            PASSES.create(connection, checkfirst=True)
            for one in self._move.tables.values():
                one.marks.table.create(connection, checkfirst=True)

        tables = [
            self._fence.table,
            *(one.shard_marks.table for one in self._move.tables.values()),
        ]

        def create(place: Place, connection: Connection) -> None:
            # checkfirst= does not know the database of a shard.
            there = place.backend.tables(connection, [place.schema])
            for table in tables:
                if table.name not in there[place.schema]:
                    table.create(connection, checkfirst=False)
            self._fence.fill(connection)

        self._on_shards(create)

    def fences(self) -> list[int]:
        """Return the numbers in all fences."""
        fences = []
        with snapshot(self._move.engine) as connection:
            fences.append(self._fence.read(connection).number)
        self._on_shards(
            lambda _, connection: fences.append(self._fence.read(connection).number)
        )
        return fences

    def write_fences(self, progress: Progress) -> None:
        """Write the stage into the fences that are behind.

        While a fence waits for a transaction, later ones wait for it.  So it
        gives up after a few seconds, lets them pass, and tries again.

        :raises RetriesExhaustedError: if a transaction stays open for too
            long; the command can be repeated.
        """
        move = self._move
        dialect = move.engine.dialect
        backend = backend_for(dialect.name, driver=dialect.driver)

        def write() -> None:
            with (
                _patient(move.engine, backend) as connection,
                locking_transaction(connection),
            ):
                self._fence.write(connection, progress)
            self._on_shards(
                lambda _, connection: self._fence.write(connection, progress)
            )

        repeat(
            write,
            Retries(
                lambda: {backend, *move.cluster.places.engines.backends()},
                attempts=None,
                timeout=_TIMEOUT,
            ),
        )

    def _on_shards(
        self,
        action: Callable[[Place, Connection], object],
        shards: Iterable[Place] | None = None,
    ) -> None:
        """Run a transaction on each shard, all servers at once.

        :param shards: the shards; all of the tables by default.
        """

        def on_server(places: list[Place]) -> None:
            with _patient(places[0].engine, places[0].backend) as root:
                for place in places:
                    with locking_transaction(root):
                        action(place, _view(root, place))

        jobs = [
            partial(on_server, places)
            for places in by_server(self.places() if shards is None else shards)
        ]
        engines = self._move.cluster.places.engines
        engines.in_parallel(jobs, "move", _PARALLEL)

    # -- stages

    def go(self, name: str, *, timeout: float = 60.0) -> Progress:
        """Go forward to a stage, by way of those in between.

        :param timeout: seconds to copy the last rows in a stage in which
            writes wait; then the stage before is restored.
        :raises StageRefusedError: if it is not ahead, or a condition of a
            stage is not met.
        """
        now = self.begin()
        while now.stage != name:
            if now.rules.forward is None:
                raise StageRefusedError(
                    stage=now.stage,
                    wanted=name,
                    reason=f"{name} is not ahead; see rollback",
                )
            now = self._change(now, now.rules.forward, timeout)
        return now

    def back(self, *, timeout: float = 60.0) -> Progress:
        """Go back to the stage before.

        ``switched`` is left by way of ``returning`` to ``reading``.

        :raises StageRefusedError: if there is no way back.
        """
        now = self.begin()
        if now.stage == "returning":
            return self._change(now, "reading", timeout)
        if now.rules.back is None:
            raise StageRefusedError(
                stage=now.stage,
                wanted="the stage before",
                reason="there is no way back",
            )
        now = self._change(now, now.rules.back, timeout)
        if now.stage == "returning":
            now = self._change(now, "reading", timeout)
        return now

    def share(self, shares: dict[str, int]) -> Progress:
        """Set the percentage of reads from the shards, by table.

        :raises StageRefusedError: if the stage does not read the shards.
        """
        now = self.begin()
        if now.stage != "reading":
            raise StageRefusedError(
                stage=now.stage,
                wanted="shares of reads",
                reason="the stage reading has them",
            )
        self._store(now.with_shares({**now.shares, **shares}))
        return self.begin()

    def begin(self) -> Progress:
        """Finish a change that was interrupted, and return the stage."""
        now = self._move.progress(now=True)
        if now.number:
            self.write_fences(now)
        return now

    def _change(self, now: Progress, name: str, timeout: float) -> Progress:
        if now.stage == "legacy":
            self.prepare()
        forward = name == now.rules.forward
        if forward and name == "copying" and (lines := self.obstacles()):
            # Each copy of the application would fail, one after the other, or
            # change texts on both sides of a comparison.
            raise StageRefusedError(
                stage=now.stage, wanted=name, reason="; ".join(lines)
            )
        if forward and now.rules.truth is None:
            self._await_copies(now, timeout)
        elif now.rules.copies and STAGES[name].truth is None:
            # Most pending rows are copied before writes wait; one may wait
            # for another, which is copied after it.
            left = copy_waiting(self._move, now)
            left = left and copy_waiting(self._move, now)
            if left:
                raise StageRefusedError(
                    stage=now.stage,
                    wanted=name,
                    reason=f"{left} rows were not copied, and writes do not "
                    "wait for them; the log names those that failed",
                )
        met = self.met(now) if forward else ()
        check_step(now, name, met=met)
        new = advanced(now, name, fences=self.fences(), met=met)
        self._store(new)
        self._on_step(f"{new.number}: {now.stage} -> {new.stage}")
        return new

    def _store(self, new: Progress) -> None:
        self._move.store.write(new)
        self.write_fences(new)

    def _await_copies(self, now: Progress, timeout: float) -> None:
        """Copy the last rows while writes wait; go back if that fails."""
        waiting = drain(self._move, now, timeout=timeout)
        if not waiting:
            return
        back = advanced(now, STAGES[now.stage].back or "", fences=self.fences())
        self._store(back)
        raise StageRefusedError(
            stage=back.stage,
            wanted=now.rules.forward or "",
            reason=f"{waiting} rows were not copied in {timeout:g} s, and "
            "writes are accepted again; the log names those that failed",
        )

    def met(self, now: Progress) -> set[Condition]:
        """Return the conditions that are met, of those that matter now."""
        conditions: set[Condition] = set()
        needs = now.rules.needs
        # Writes have been marked since: all rows had a mark before.
        if "claimed" in needs and (
            now.stage == "closing" or not self.count_unclaimed(now)
        ):
            conditions.add("claimed")
        if "equal" in needs:
            last = last_pass(self._move, now)
            if last is not None and last.is_equal:
                conditions.add("equal")
        if "drained" in needs and now.rules.source is not None:
            counts = self._move.waiting.count(now.rules.source)
            if not any(counts.values()):
                conditions.add("drained")
        return conditions

    def count_unclaimed(self, now: Progress) -> int:
        """Return the number of rows without a mark of this round."""
        total = 0
        for one in self._move.tables.values():
            with snapshot(self._move.engine) as connection:
                total += one.marks.count_unclaimed(connection, number=now.round)
        return total


def copy_waiting(move: Move, now: Progress) -> int:
    """Copy the rows that wait, once; return how many could not be copied."""
    if now.rules.source is None:
        return 0
    return sum(
        move.copier.copy_or_log(waiting, number=now.round)
        for waiting in move.waiting.pages(now.rules.source)
    )


def drain(move: Move, now: Progress, *, timeout: float) -> int:
    """Copy the rows that wait; return the number of those that remain.

    :param timeout: seconds after which no more are copied.
    """
    source = now.rules.source
    if source is None:
        return 0
    deadline = monotonic() + timeout
    pause = Event()
    while True:
        copy_waiting(move, now)
        number = sum(move.waiting.count(source).values())
        if not number or monotonic() > deadline:
            return number
        # A row may wait for another one, which was copied after it.
        pause.wait(0.05)


@contextmanager
def _patient(engine: Engine, backend: Backend) -> Iterator[Connection]:
    """Open a connection that waits for locks for a short time only."""
    with engine.connect() as connection:
        try:
            backend.ddl.patience(connection, _PATIENCE)
            connection.commit()
            yield connection
        finally:
            # The pool must not get it back with these settings.
            connection.invalidate()


def _view(root: Connection, place: Place) -> Connection:
    return root.execution_options(
        **{OPTION: ExecutionPlan((place,)), "schema_translate_map": TRANSLATE}
    )


# -- Plan and progress of a move.


@dataclass(frozen=True, kw_only=True)
class PlannedTable:
    """One table of a move.

    :ivar table: name of the table.
    :ivar cls: name of the object class.
    :ivar parent: the table of the rows that own these; None for owners.
    :ivar rows: number of rows.
    :ivar left_behind: columns that the objects do not have.
    """

    table: str
    cls: str
    parent: str | None
    rows: int
    left_behind: tuple[str, ...]

    def __str__(self) -> str:
        where = "a shard for each" if self.parent is None else f"with {self.parent}"
        text = f"{self.table} -> {self.cls}: {self.rows:,} rows, {where}"
        if self.left_behind:
            text += f"; left behind: {', '.join(self.left_behind)}"
        return text


@dataclass(frozen=True, kw_only=True)
class MovePlan(JsonObject):
    """Plan of a move.

    :ivar tables: its tables, parents first.
    :ivar lookups: names of the lookup classes, by column.
    :ivar shards: number of shards.
    :ivar problems: what the application has to be changed for before.
    """

    tables: tuple[PlannedTable, ...]
    lookups: dict[str, str]
    shards: int
    problems: tuple[str, ...]

    def __str__(self) -> str:
        lines = [
            *map(str, self.tables),
            *(f"{key} -> {cls}" for key, cls in self.lookups.items()),
            f"to {self.shards} shards",
        ]
        lines += [f"problem: {problem}" for problem in self.problems]
        return "\n".join(lines)


def plan(move: Move) -> MovePlan:
    """Return the plan of a move; nothing is changed."""
    tables = []
    with snapshot(move.engine) as connection:
        for one in move.tables.values():
            rows = connection.execute(
                select(func.count()).select_from(one.table)
            ).scalar_one()
            tables.append(
                PlannedTable(
                    table=one.name,
                    cls=one.cls.__name__,
                    parent=one.parent
                    if isinstance(one, MovedTable)
                    else "their sources",
                    rows=rows,
                    left_behind=one.conversion.left,
                )
            )
    return MovePlan(
        tables=tuple(tables),
        lookups=dict(_lookups(move)),
        shards=len(Switch(move).places()),
        problems=tuple(_problems(move)),
    )


def _lookups(move: Move) -> Iterator[tuple[str, str]]:
    for item in move.declaration.of(Lookup):
        one = move.tables.get(item.table)
        if isinstance(one, MovedTable) and move.has_class(item):
            attribute = one.conversion.attribute_of(item.column) or ""
            cls = one.lookups[attribute]
            yield f"{item.table}.{item.column}", cls.__name__


def _problems(move: Move) -> Iterator[str]:
    for kind in (MappingTable, Lookup, Reference):
        for item in move.declaration.of(kind):
            if move.has_class(item):
                continue
            yield (
                f"{item.table}: the {kind.__name__} has no class in the move; "
                "copy it when its objects are on the shards"
            )
    for one in move.tables.values():
        for name in one.conversion.left:
            column = one.table.c[name]
            if not (
                column.nullable or column.server_default or column.default
            ) and not one.conversion.reverts(name):
                yield (
                    f"{one.name}.{name} is left behind and has no default: "
                    "after the switch new objects cannot be copied back; give "
                    "Moved(revert=...)"
                )
        yield from _problems_of_rows(move, one)
    for table in sorted_tables(move.metadata):
        yield from _problems_of_keys(move, table)
    yield from Switch(move).obstacles(notes=True)


def _problems_of_rows(move: Move, one: MovedRows) -> Iterator[str]:
    """Yield values that no shard can have, and what changes others."""
    dialect = move.engine.dialect
    backend = backend_for(dialect.name, driver=dialect.driver)
    given = one.conversion
    conditions = [
        (name, reason, condition)
        for name, column in one.table.columns.items()
        if name not in given.left and not given.converts(name)
        for reason, condition in unfit(column, dialect, is_raw=name in given.raw)
    ]
    for name, column in given.raw.items():
        if is_written_late(column.type) and not column.nullable:
            yield (
                f"{one.name}.{name}: its value is written after the rest of its "
                f"row; let {column.table.name}.{column.name} of the shards be "
                "NULL until the move has ended"
            )
    with snapshot(move.engine) as connection:
        triggers = backend.triggers(connection, one.table.name)
        if isinstance(one, MovedTable):
            yield from _problems_of_ids(connection, one)
    counts = _counts(move.engine, one, [condition for *_, condition in conditions])
    if triggers:
        yield (
            f"{one.name} has the triggers {', '.join(triggers)}: shards do "
            "not run them; and after the switch they change, in the "
            "database, rows that are copied back"
        )
    for (name, reason, _), count in zip(conditions, counts, strict=True):
        if count:
            effect = (
                "the copy has the other one, and a pass finds the row different"
                if reason == DIFFERS
                else "a row that does not fit is not copied"
            )
            yield (
                f"{one.name}.{name}: {count:,} rows have {reason}; change "
                f"them, or give Moved(convert=..., revert=...): {effect}"
            )


#: Number of rows of a statement that looks at all texts of them.
_PAGE = 5000


def _counts(
    engine: Engine, one: MovedRows, conditions: Sequence[ColumnElement[bool]]
) -> list[int]:
    """Return how many rows of a table meet each condition.

    By pages: one snapshot of all rows would keep the server from purging what is
    deleted meanwhile.
    """
    totals = [0] * len(conditions)
    if not conditions:
        return totals
    key = tuple(one.table.primary_key)
    counts = (func.count(case((condition, 1))) for condition in conditions)
    statement = select(*counts).select_from(one.table)
    after: Key | None = None
    while True:
        page = statement if after is None else statement.where(after_key(key, after))
        with snapshot(engine) as connection:
            end = one.marks.page_end(connection, after=after, limit=_PAGE)
            if end is not None:
                page = page.where(not_(after_key(key, end)))
            row = connection.execute(page).one()
        totals = [total + count for total, count in zip(totals, row, strict=True)]
        if end is None:
            return totals
        after = end


def _generated_columns(engine: Engine, one: MovedRows) -> Iterator[str]:
    """Yield the columns that the server refuses to write, once they come back."""
    backend = backend_for(engine.dialect.name, driver=engine.dialect.driver)
    with snapshot(engine) as connection:
        columns = backend.generated(connection, one.table.name)
    given = one.conversion
    for name in columns:
        column = one.table.c.get(name)
        if column is None or column.computed is not None:
            continue
        if name not in given.left or given.reverts(name):
            yield (
                f"{one.name}.{name} is generated by the server, and is not Computed "
                "in the metadata: after the switch no row could be copied back; "
                "declare Computed(...) there"
            )


def _changed_texts(engine: Engine, one: MovedRows, *, notes: bool) -> Iterator[str]:
    """Yield the columns with texts that a copy would change, on both sides.

    :param notes: as for :meth:`Switch.obstacles`.
    """
    backend = backend_for(engine.dialect.name, driver=engine.dialect.driver)
    quote = engine.dialect.identifier_preparer.quote
    given = one.conversion
    with snapshot(engine) as connection:
        found = backend.character_sets(connection, one.table.name)
    sets = {
        column.name: found[column.name]
        for column in one.table.columns
        if column.name in found
        and column.name not in given.left
        # Such a function gets question marks, and may be written for them.
        and (notes or not given.converts(column.name))
    }
    of = one.table.c
    changes = [changed_in_unicode(of[name], its) for name, its in sets.items()]
    counts = _counts(engine, one, changes)
    for (name, its), change, count in zip(sets.items(), changes, counts, strict=True):
        lost = count
        if count and its in WITH_TWINS:
            # Seldom, so that most columns are converted only once.
            is_lost = and_(change, has_more_marks(of[name]))
            (lost,) = _counts(engine, one, [is_lost])
        names = {"table": quote(one.table.name), "column": quote(name), "its": its}
        twins = _TWINS.format(**names)
        for number, effect in ((lost, _LOST), (count - lost if notes else 0, twins)):
            if number > 0:
                texts = f"{number:,} rows have a text in {its} {effect}"
                yield f"{one.name}.{name}: {texts}"


_LOST = (
    "with codes that are no character of Unicode: a copy changes them, and a "
    "comparison does not see it; change them, or let the column be a BLOB"
)
_TWINS = (
    "that comes back with other codes of the same characters, once its row is changed "
    "after the switch; to have these codes now: UPDATE {table} SET {column} = "
    "CONVERT(CONVERT({column} USING utf8mb4) USING {its})"
)


def _problems_of_ids(connection: Connection, one: MovedTable) -> Iterator[str]:
    (key,) = one.table.primary_key
    least, most = connection.execute(select(func.min(key), func.max(key))).one()
    odd = [
        value for value in (least, most) if value is not None and not one.fits((value,))
    ]
    if odd:
        yield (
            f"{one.name}.{key.name}: keys from {least} to {most}; an object "
            f"id has room for those from 1 to {one.layout.max_local_id}: "
            "rows with others are not copied, give them another key"
        )


def _problems_of_keys(move: Move, table: Table) -> Iterator[str]:
    for key in table.foreign_keys:
        column = f"{table.key}.{key.parent.name}"
        target = str(key.column.table.key)
        if target not in move.tables:
            continue
        if table.key not in move.tables:
            yield (
                f"{column} refers to {target}, which moves, and {table.key} "
                "does not: it will have the primary keys of the database"
            )
        elif (key.ondelete or "").upper() in ("CASCADE", "SET NULL"):
            yield (
                f"{column} has ON DELETE {key.ondelete}: the session does not "
                "see what the server changes; a pass finds these rows, or "
                "load and delete them in the session (passive_deletes=False)"
            )


@dataclass(frozen=True, kw_only=True)
class MoveStatus(JsonObject):
    """Progress of a move.

    :ivar progress: the stage.
    :ivar fences_behind: number of databases that do not have the last change.
    :ivar unclaimed: number of rows that the backfill has not reached.
    :ivar waiting: number of rows that wait to be copied, by table.
    :ivar differences: rows that the last pass has found different; None if
        there was no pass.
    """

    progress: Progress
    fences_behind: int
    unclaimed: int
    waiting: dict[str, int]
    differences: int | None

    def __str__(self) -> str:
        now = self.progress
        lines = [f"stage {now.stage}, change {now.number}, round {now.round}"]
        if now.shares and now.stage == "reading":
            shares = [f"{name} {share} %" for name, share in now.shares.items()]
            lines.append(f"reads from the shards: {', '.join(shares)}")
        if self.fences_behind:
            lines.append(
                f"{self.fences_behind} databases do not have this change; "
                "repeat the command that made it"
            )
        if now.rules.source == "legacy":
            lines.append(f"{self.unclaimed:,} rows for the backfill")
        if now.rules.source is not None:
            counts = [f"{name} {n:,}" for name, n in self.waiting.items()]
            lines.append(f"waiting to be copied: {', '.join(counts)}")
        if self.differences is not None:
            lines.append(f"last pass: {self.differences:,} different")
        return "\n".join(lines)


def status(move: Move) -> MoveStatus:
    """Return how far a move is; nothing is changed."""
    now = move.progress(now=True)
    switch = Switch(move)
    source = now.rules.source
    if not _is_prepared(move):
        return MoveStatus(
            progress=now, fences_behind=0, unclaimed=0, waiting={}, differences=None
        )
    last = last_pass(move, now)
    return MoveStatus(
        progress=now,
        fences_behind=sum(n != now.number for n in switch.fences()),
        unclaimed=switch.count_unclaimed(now) if source == "legacy" else 0,
        waiting={} if source is None else move.waiting.count(source),
        differences=None if last is None else last.differences,
    )


def _is_prepared(move: Move) -> bool:
    one: MovedRows = next(iter(move.tables.values()))
    table = one.marks.table
    return inspect(move.engine).has_table(table.name, schema=table.schema)
