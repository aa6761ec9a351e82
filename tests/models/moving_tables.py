"""A move between two real databases, by threads that die at random steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from threading import Event, Lock
from typing import Any

from sqlalchemy import (
    Column,
    Connection,
    delete,
    Engine,
    Integer,
    MetaData,
    select,
    Table,
)
from sqlalchemy.exc import DBAPIError

from sqla_shard.dialects import backend_for
from sqla_shard.dialects.base import Failure
from sqla_shard.dialects.sql import InsertMissing, Upsert
from sqla_shard.exc import StageRefusedError
from sqla_shard.migrate.copies import (
    apply_images,
    claim_page,
    look_twice,
    read_images,
    record_images,
    snapshot,
)
from sqla_shard.migrate.marks import Marks
from sqla_shard.migrate.stages import (
    advanced,
    DatabaseFence,
    other_side,
    Progress,
    Side,
    Stage,
    stage_store,
)

COUNTERS = Table(
    "counters",
    MetaData(),
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("value", Integer, nullable=False),
)


class DiedError(Exception):
    """The process was killed here."""


def copy_rows(source: Any, target: Any, keys: Any, *, number: int) -> int:
    """Copy rows from one database to another one with the same keys."""
    images = read_images(source, keys)
    written = apply_images(target, images, number=number)
    record_images(source, images)
    return written


class Counters:
    """The counters of one side; an implementation of ``Part``."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.marks = Marks(COUNTERS)
        self.fence = DatabaseFence()
        for table in (COUNTERS, self.marks.table, self.fence.table):
            table.drop(engine, checkfirst=True)
            table.create(engine)
        with engine.begin() as connection:
            self.fence.create(connection)

    @contextmanager
    def begin(self) -> Iterator[Connection]:
        with snapshot(self.engine) as connection:
            yield connection

    begin_marking = begin

    def look(self, keys: Any) -> dict[Any, Any]:
        return look_twice(self, keys)

    def read(self, connection: Connection, keys: Any) -> dict[Any, Any]:
        ids = [key[0] for key in keys]
        rows = connection.execute(select(COUNTERS).where(COUNTERS.c.id.in_(ids)))
        return {(row.id,): dict(row._mapping) for row in rows}

    def write(self, connection: Connection, rows: Any) -> None:
        for key, row in rows.items():
            if row is None:
                connection.execute(delete(COUNTERS).where(COUNTERS.c.id == key[0]))
            else:
                connection.execute(Upsert(COUNTERS), dict(row))

    write_first = write


class Move:
    """Writers, and the tool that changes the stages."""

    def __init__(
        self, sides: dict[Side, Engine], path: Any, seed: int, expected: int
    ) -> None:
        self.expected = expected
        self.sides = {name: Counters(e) for name, e in sides.items()}
        self.path = path
        self.store = stage_store(path)
        self.seed = seed
        self.acknowledged: Counter[int] = Counter()
        self.deaths = 0
        self.is_finished = False
        self.has_failed = False
        self._lock = Lock()
        self._pause = Event()

    def values(self, name: Side) -> Counter[int]:
        with self.sides[name].engine.connect() as connection:
            return Counter(
                {row.id: row.value for row in connection.execute(select(COUNTERS))}
            )

    # -- writers

    def writer(self, index: int, writes: int, keys: int) -> None:
        """Write until all writes were acknowledged, in several lives."""
        with self._reported():
            self._live(writes, keys, Random(self.seed * 100 + index))

    def _live(self, writes: int, keys: int, random: Random) -> None:
        known = Progress()
        left = writes
        while left:
            side = known.rules.truth
            if side is None:
                assert not self.has_failed
                self._pause.wait(0.01)
                known = self.store.read()
                continue
            key = (random.randrange(keys),)
            with self._life():
                progress = self._write(side, key, random)
                if progress is None:
                    assert not self.has_failed
                    known = self.store.read()
                    # The store may be ahead of this fence.
                    self._pause.wait(0.01)
                    continue
                left -= 1
                self._copy(side, key, progress, random)

    def _write(self, side: Side, key: Any, random: Random) -> Progress | None:
        """Add one; return None if the fence does not have this truth."""
        one = self.sides[side]
        with one.engine.begin() as connection:
            progress = one.fence.enter(connection)
            if progress.rules.truth != side:
                return None
            connection.execute(InsertMissing(COUNTERS), {"id": key[0], "value": 0})
            row = COUNTERS.c.id == key[0]
            connection.execute(
                COUNTERS.update().where(row).values(value=COUNTERS.c.value + 1)
            )
            if progress.rules.marks:
                one.marks.raise_versions(connection, [key], number=progress.round)
            self._may_die(random)
        with self._lock:
            self.acknowledged[key[0]] += 1
        return progress

    def _copy(self, side: Side, key: Any, progress: Progress, random: Random) -> None:
        if progress.rules.copies is None:
            return
        source, target = self.sides[side], self.sides[other_side(side)]
        self._may_die(random)
        images = read_images(source, [key])
        self._pause.wait(random.random() / 50)
        self._may_die(random)
        apply_images(target, images, number=progress.round)
        self._may_die(random)
        record_images(source, images)

    def _may_die(self, random: Random) -> None:
        if random.random() < 0.1:
            raise DiedError

    # -- the tool

    def tool(self, names: list[str]) -> None:
        """Go through stages, in several lives."""
        random = Random(self.seed)
        with self._reported():
            while not self.is_finished:
                with self._life():
                    self._step(names, random)

    @contextmanager
    def _life(self) -> Iterator[None]:
        """Go on after a death, or a transaction that another one has ended."""
        dialect = self.sides["legacy"].engine.dialect
        backend = backend_for(dialect.name, driver=dialect.driver)
        try:
            yield
        except DiedError:
            self.deaths += 1
        except DBAPIError as error:
            # A deadlock, after which applications and the tool try again.
            if backend.classify(error.orig) is not Failure.CONFLICT:
                raise

    @contextmanager
    def _reported(self) -> Iterator[None]:
        """End the other threads after an error."""
        try:
            yield
        except BaseException:
            self.has_failed = True
            raise

    def _step(self, names: list[str], random: Random) -> None:
        # The step follows from the store.
        position = self.store.read().number
        self._write_fences(random)
        if position == len(names):
            self.is_finished = True
            return
        self._work(random)
        self._await_writes(position / len(names))
        self._change(names[position])
        self._may_die(random)

    def _await_writes(self, share: float) -> None:
        """Wait for writes in this stage, if it accepts them."""
        if self.store.read().rules.truth is None:
            return
        while self.acknowledged.total() < share * self.expected:
            assert not self.has_failed
            self._pause.wait(0.01)

    def _write_fences(self, random: Random) -> None:
        progress = self.store.read()
        for name in random.sample(list(self.sides), 2):
            one = self.sides[name]
            with one.engine.begin() as connection:
                one.fence.write(connection, progress)
            self._may_die(random)

    def _work(self, random: Random) -> None:
        """Do the work of the stage."""
        progress = self.store.read()
        if progress.rules.copies == "shards":
            legacy = self.sides["legacy"]
            keys, after = claim_page(legacy, legacy.fence, progress, limit=2)
            while keys:
                self._may_die(random)
                keys, after = claim_page(
                    legacy, legacy.fence, progress, after=after, limit=2
                )
        self.drain(progress.rules)

    def drain(self, stage: Stage) -> None:
        """Copy all rows that wait."""
        if stage.source is None or stage.copies is None:
            return
        source, target = self.sides[stage.source], self.sides[stage.copies]
        while True:
            with source.engine.connect() as connection:
                marks = source.marks
                keys = [
                    *marks.waiting_without_id(connection, limit=2),
                    *marks.marked(connection, limit=2, waits=True).values(),
                ]
            if not keys:
                return
            number = self.store.read().round
            copy_rows(source, target, keys, number=number)

    def _change(self, name: str) -> None:
        """Change the stage, if its conditions are met."""
        progress = self.store.read()
        numbers = []
        for one in self.sides.values():
            with one.engine.connect() as connection:
                numbers.append(one.fence.read(connection).number)
        try:
            new = advanced(progress, name, fences=numbers, met=self._met(progress))
        except StageRefusedError:
            return
        self.store.write(new)

    def _met(self, progress: Progress) -> set[Any]:
        met = {"claimed"}
        source = progress.rules.source
        if source is None:
            return met
        one = self.sides[source]
        with one.engine.connect() as connection:
            if not one.marks.count_waiting(connection):
                met.add("drained")
        # Rows with equal versions are compared by the test at the end.
        met.add("equal")
        return met
