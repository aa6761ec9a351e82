"""Load per virtual shard: samples, and reports of them.

A process samples the statements of its sessions; a :class:`LoadSnapshot` has
the counts of the last seconds, and :class:`LoadReport` adds the snapshots of
several processes::

    from sqla_shard.monitor import measure_load
    from sqla_shard.monitor.load import report_load

    meter = measure_load(cluster)
    ...
    report = report_load([meter.snapshot()], cluster.topology)
    for shard in report.shards:
        print(shard.shard_id, shard.server, shard.read_share)

A statement that is sent to all shards because of ``scatter()`` loads all of
them alike: it is counted for its table, not for the shards.
"""

from __future__ import annotations

import os
import socket
import threading
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from time import monotonic, time
from typing import Any, ClassVar, NamedTuple
from weakref import WeakKeyDictionary

from sqlalchemy.sql import operators
from sqlalchemy.sql.dml import Insert
from sqlalchemy.sql.elements import (
    BinaryExpression,
    BindParameter,
    BooleanClauseList,
    Grouping,
)
from sqlalchemy.sql.schema import Table

from sqla_shard.cluster.cluster import Cluster
from sqla_shard.engine import ExecutionPlan
from sqla_shard.exc import OptionError
from sqla_shard.planning import has_objects, routing_column, spec_of
from sqla_shard.topology import Topology
from sqla_shard.types.shard_bound import Slotted
from sqla_shard.util.json_values import JsonObject
from sqla_shard.util.processes import in_children

#: Maximum number of cells, and of keys, of a snapshot.
MOST_CELLS = 1000

#: A shard is hot above this multiple of the load that it would have if all
#: shards had the same.
_HOT = 3.0

#: Minimum number of samples of a hot shard.
_ENOUGH = 10

_VERSION = 1

#: The shard of the sum of the cells that are cut off.
OTHERS = -1


class Cell(NamedTuple):
    """The key that the samples of a snapshot are counted by.

    :ivar keyspace: name of the keyspace.
    :ivar shard_id: the virtual shard; None for all of them, by
        ``scatter()``; :data:`OTHERS` for those that are cut off.
    :ivar table: name of the table; empty for textual SQL.
    :ivar writes: whether the statement is an INSERT, UPDATE or DELETE.
    """

    keyspace: str
    shard_id: int | None
    table: str
    writes: bool


class Key(NamedTuple):
    """An object, or the list of an object, in samples.

    :ivar keyspace: name of the keyspace.
    :ivar shard_id: the virtual shard.
    :ivar table: name of the table.
    :ivar object_id: id of the object, or of the source of the list.
    :ivar is_list: whether the table has several rows for the id.
    :ivar writes: whether the statement is an INSERT, UPDATE or DELETE.
    """

    keyspace: str
    shard_id: int
    table: str
    object_id: int
    is_list: bool
    writes: bool


@dataclass(frozen=True, kw_only=True)
class LoadSnapshot:
    """The samples of one process in the last seconds.

    :ivar process: host and id of the process.
    :ivar at: when it was taken, in seconds since 1970.
    :ivar seconds: the time that it covers.
    :ivar rate: share of the statements that were sampled.
    :ivar cells: samples by shard and table; at most 1,000, the largest, and
        the sum of the others.
    :ivar keys: samples by object or list; the largest 1,000.
    """

    process: str
    at: float
    seconds: float
    rate: float
    cells: Mapping[Cell, int]
    keys: Mapping[Key, int]

    def as_dict(self) -> dict[str, Any]:
        """Return the snapshot as JSON values, for :meth:`from_dict`."""
        return {
            "version": _VERSION,
            "process": self.process,
            "at": self.at,
            "seconds": self.seconds,
            "rate": self.rate,
            "cells": [[*cell, count] for cell, count in self.cells.items()],
            "keys": [[*key, count] for key, count in self.keys.items()],
        }

    @classmethod
    def from_dict(cls, values: Any) -> LoadSnapshot | None:
        """Return a snapshot from its JSON values.

        :returns: None if they are not a snapshot of this version: others may
            have written them, or a disk may have damaged them.
        """
        if not isinstance(values, dict) or values.get("version") != _VERSION:
            return None
        try:
            snapshot = cls(
                process=values["process"],
                at=values["at"],
                seconds=values["seconds"],
                rate=values["rate"],
                cells={Cell(*cell): count for *cell, count in values["cells"]},
                keys={Key(*key): count for *key, count in values["keys"]},
            )
        except (KeyError, TypeError, ValueError):
            return None
        return snapshot if snapshot._is_valid() else None

    def _is_valid(self) -> bool:
        return (
            _has_types((self.process,), ((str,),))
            and _is_within(self.at, 0, _LAST_TIME)
            and _is_within(self.seconds, 1, _MOST_SECONDS)
            and _is_within(self.rate, 1e-9, 1)
            and all(map(_is_count, self.cells.values()))
            and all(map(_is_count, self.keys.values()))
            and all(_has_types(cell, _CELL_TYPES) for cell in self.cells)
            and all(_has_types(key, _KEY_TYPES) for key in self.keys)
        )


_CELL_TYPES = ((str,), (int, type(None)), (str,), (bool,))

_KEY_TYPES = ((str,), (int,), (str,), (int,), (bool,), (bool,))

_LAST_TIME, _MOST_SECONDS = 2.0**40, 86_400


def _is_within(value: object, least: float, most: float) -> bool:
    return type(value) in (int, float) and least <= value <= most  # type: ignore[operator]  # a number


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < 2**63


def _has_types(one: Iterable[object], types: Iterable[tuple[type, ...]]) -> bool:
    return all(type(part) in its for part, its in zip(one, types, strict=True))


def cut(counts: Counter[Cell]) -> dict[Cell, int]:
    """Return the largest counts, and the sums of the others by table."""
    ordered = counts.most_common()
    cells = dict(ordered[:MOST_CELLS])
    rest: Counter[Cell] = Counter()
    for cell, count in ordered[MOST_CELLS:]:
        rest[cell._replace(shard_id=OTHERS)] += count
    for cell, count in rest.items():
        cells[cell] = cells.get(cell, 0) + count
    return cells


@dataclass(frozen=True, kw_only=True)
class KeyLoad:
    """The load of an object, or of the list of an object.

    :ivar table: name of the table.
    :ivar object_id: id of the object, or of the source of the list.
    :ivar is_list: whether it is a list: rows of a mapping, for example.
    :ivar keyspace: name of the keyspace.
    :ivar shard_id: the virtual shard.
    :ivar reads: reads per second.
    :ivar writes: writes per second.
    :ivar share: share of the statements of its shard, from 0 to 1.
    """

    table: str
    object_id: int
    is_list: bool
    keyspace: str
    shard_id: int
    reads: float
    writes: float
    share: float


@dataclass(frozen=True, kw_only=True)
class ShardLoad(JsonObject):
    """The load of a virtual shard.

    :ivar keyspace: name of the keyspace.
    :ivar shard_id: the virtual shard.
    :ivar server: name of its server; None if the topology does not have it.
    :ivar samples: number of samples.
    :ivar reads: reads per second.
    :ivar writes: writes per second.
    :ivar read_share: share of the reads of its keyspace, from 0 to 1.
    :ivar write_share: share of the writes of its keyspace, from 0 to 1.
    :ivar fair_share: the share if all shards had the same load.
    :ivar hot_reads: whether it has many more reads than the fair share; the
        difference is not due to chance.
    :ivar hot_writes: whether it has many more writes than the fair share.
    :ivar keys: its most used objects and lists, the most used first.
    """

    keyspace: str
    shard_id: int
    server: str | None
    samples: int
    reads: float
    writes: float
    read_share: float
    write_share: float
    fair_share: float
    hot_reads: bool
    hot_writes: bool
    keys: tuple[KeyLoad, ...]

    derived: ClassVar[tuple[str, ...]] = ("is_hot",)

    @property
    def is_hot(self) -> bool:
        """Whether its reads or its writes are hot."""
        return self.hot_reads or self.hot_writes

    def sentences(self) -> list[str]:
        """Return what is hot, in English; empty if nothing is."""
        sentences = []
        for is_hot, share, what in (
            (self.hot_reads, self.read_share, "reads"),
            (self.hot_writes, self.write_share, "writes"),
        ):
            if not is_hot:
                continue
            where = "" if self.server is None else f" on {self.server}"
            text = (
                f"shard {self.shard_id} of {self.keyspace}{where} takes "
                f"{_percent(share)} of {what}"
            )
            keys = [k for k in self.keys if getattr(k, what)]
            own = getattr(self, what)
            if keys and own:
                top = max(keys, key=lambda key: getattr(key, what))
                kind = "list" if top.is_list else "object"
                part = min(getattr(top, what) / own, 1)
                text += (
                    f"; the {kind} {top.table} {top.object_id} takes "
                    f"{_percent(part)} of that"
                )
            sentences.append(text)
        return sentences


@dataclass(frozen=True, kw_only=True)
class TableLoad:
    """The load of a table, on all shards.

    :ivar keyspace: name of the keyspace.
    :ivar table: name of the table; empty for textual SQL.
    :ivar reads: reads per second.
    :ivar writes: writes per second.
    :ivar scattered: statements per second that were sent to all shards; they
        are included in the other two.
    """

    keyspace: str
    table: str
    reads: float
    writes: float
    scattered: float


@dataclass(frozen=True, kw_only=True)
class LoadReport(JsonObject):
    """The load of the shards, from the samples of several processes.

    :ivar processes: the processes, by host and id.
    :ivar seconds: the longest time that a snapshot covers.
    :ivar samples: number of samples.
    :ivar reads: reads per second.
    :ivar writes: writes per second.
    :ivar shards: the shards with the highest load, the highest first.
    :ivar tables: the tables, the most used first.
    """

    processes: tuple[str, ...]
    seconds: float
    samples: int
    reads: float
    writes: float
    shards: tuple[ShardLoad, ...]
    tables: tuple[TableLoad, ...]

    @property
    def hot(self) -> tuple[ShardLoad, ...]:
        """The hot shards."""
        return tuple(shard for shard in self.shards if shard.is_hot)

    def sentences(self) -> list[str]:
        """Return what is hot, in English; empty if nothing is."""
        return [one for shard in self.hot for one in shard.sentences()]

    def as_dict(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        return {**super().as_dict(), "sentences": self.sentences()}

    def __str__(self) -> str:
        count = len(self.processes)
        plural = "" if count == 1 else "es"
        first = (
            f"{count} process{plural}, {self.samples:,} samples of {self.seconds:.0f} "
            f"s: {self.reads:,.0f} reads/s, {self.writes:,.0f} writes/s"
        )
        lines = [first]
        lines += [f"HOT: {one}" for one in self.sentences()]
        for shard in self.shards:
            server = shard.server or "?"
            lines.append(
                f"{shard.keyspace} {shard.shard_id} ({server}): {shard.reads:,.0f} "
                f"reads/s ({_percent(shard.read_share)}), {shard.writes:,.0f} writes/s "
                f"({_percent(shard.write_share)})"
            )
            lines += [
                f"  {key.table} {key.object_id}: {_percent(key.share)}"
                for key in shard.keys
            ]
        return "\n".join(lines)


def report_load(
    snapshots: Iterable[LoadSnapshot],
    topology: Topology,
    *,
    top: int = 10,
    keys: int = 3,
) -> LoadReport:
    """Return the load of the shards, from the samples of processes.

    :param snapshots: one of each process.
    :param topology: the topology, for the servers of the shards.
    :param top: maximum number of shards; hot ones are listed first.
    :param keys: maximum number of objects and lists of each shard.
    """
    return _Sums(list(snapshots), topology).report(top, keys)


class _Sums:
    """The sums of snapshots, which may have different rates and times."""

    def __init__(self, snapshots: Sequence[LoadSnapshot], topology: Topology) -> None:
        self._snapshots = snapshots
        self._topology = topology
        #: Statements per second, by cell and by key.
        self._cells: defaultdict[Cell, float] = defaultdict(float)
        self._keys: defaultdict[Key, float] = defaultdict(float)
        self._samples: Counter[tuple[str, int | None]] = Counter()
        #: Samples of all shards of a keyspace, by whether they write.
        self._totals: Counter[tuple[str, bool]] = Counter()
        for one in snapshots:
            weight = 1 / (one.rate * one.seconds)
            for cell, count in one.cells.items():
                self._cells[cell] += count * weight
                self._samples[cell.keyspace, cell.shard_id] += count
                self._totals[cell.keyspace, cell.writes] += count
            for key, count in one.keys.items():
                self._keys[key] += count * weight

    def report(self, top: int, keys: int) -> LoadReport:
        shards = sorted(
            self._shards(keys), key=lambda s: (not s.is_hot, -s.reads - s.writes)
        )
        return LoadReport(
            processes=tuple(sorted(one.process for one in self._snapshots)),
            seconds=max((one.seconds for one in self._snapshots), default=0.0),
            samples=self._samples.total(),
            reads=self._rate(writes=False),
            writes=self._rate(writes=True),
            shards=tuple(shards[:top]),
            tables=tuple(self._tables()),
        )

    def _rate(self, *, writes: bool, keyspace: str | None = None) -> float:
        return sum(
            rate
            for cell, rate in self._cells.items()
            if cell.writes == writes and keyspace in (None, cell.keyspace)
        )

    def _shards(self, most_keys: int) -> Iterable[ShardLoad]:
        rates: defaultdict[tuple[str, int], list[float]] = defaultdict(
            lambda: [0.0, 0.0]
        )
        for cell, rate in self._cells.items():
            if cell.shard_id not in (None, OTHERS):
                rates[cell.keyspace, cell.shard_id][cell.writes] += rate
        totals = {
            (name, writes): self._rate(writes=writes, keyspace=name)
            for name in {name for name, _ in rates}
            for writes in (False, True)
        }
        by_shard = self._keys_by_shard()
        for (name, shard_id), (reads, writes) in rates.items():
            keyspace = self._topology.keyspaces.get(name)
            open_shards = 1 if keyspace is None else keyspace.shards
            server = None
            if keyspace is not None and shard_id < keyspace.shards:
                server = keyspace.server_for(shard_id).name
            fair = 1 / open_shards
            read_share = _share(reads, totals[name, False])
            write_share = _share(writes, totals[name, True])
            yield ShardLoad(
                keyspace=name,
                shard_id=shard_id,
                server=server,
                samples=self._samples[name, shard_id],
                reads=reads,
                writes=writes,
                read_share=read_share,
                write_share=write_share,
                fair_share=fair,
                hot_reads=_is_hot(read_share, fair, self._totals[name, False]),
                hot_writes=_is_hot(write_share, fair, self._totals[name, True]),
                keys=_key_loads(by_shard[name, shard_id], reads + writes, most_keys),
            )

    def _keys_by_shard(self) -> defaultdict[tuple[str, int], dict[Key, list[float]]]:
        """Return reads and writes of each key, by keyspace and shard."""
        keys: defaultdict[tuple[str, int], dict[Key, list[float]]] = defaultdict(dict)
        for key, rate in self._keys.items():
            both = keys[key.keyspace, key.shard_id].setdefault(
                key._replace(writes=False), [0.0, 0.0]
            )
            both[key.writes] += rate
        return keys

    def _tables(self) -> list[TableLoad]:
        tables: defaultdict[tuple[str, str], list[float]] = defaultdict(
            lambda: [0.0, 0.0, 0.0]
        )
        for cell, rate in self._cells.items():
            sums = tables[cell.keyspace, cell.table]
            sums[cell.writes] += rate
            if cell.shard_id is None:
                sums[2] += rate
        loads = [
            TableLoad(
                keyspace=keyspace,
                table=table,
                reads=reads,
                writes=writes,
                scattered=scattered,
            )
            for (keyspace, table), (reads, writes, scattered) in tables.items()
        ]
        return sorted(loads, key=lambda one: -one.reads - one.writes)


def _key_loads(
    keys: Mapping[Key, Sequence[float]], rate: float, most: int
) -> tuple[KeyLoad, ...]:
    """Return the load of the most used keys of a shard.

    :param keys: reads and writes per second, by key.
    :param rate: statements per second of the shard.
    """
    ordered = sorted(keys.items(), key=lambda one: -sum(one[1]))
    return tuple(
        KeyLoad(
            table=key.table,
            object_id=key.object_id,
            is_list=key.is_list,
            keyspace=key.keyspace,
            shard_id=key.shard_id,
            reads=reads,
            writes=writes,
            share=min(_share(reads + writes, rate), 1.0),
        )
        for key, (reads, writes) in ordered[:most]
    )


def _share(part: float, total: float) -> float:
    return part / total if total else 0.0


def _is_hot(share: float, fair: float, samples: int) -> bool:
    """Return whether a share is much above the fair one, beyond chance.

    :param samples: number of samples of all shards of the keyspace.
    """
    own = share * samples
    if own < _ENOUGH:
        return False
    # Two standard errors: among many shards some have many samples by
    # chance.
    least = share - 2 * sqrt(share * (1 - share) / samples)
    # In a keyspace of two shards, no share can be three times a half.
    return least > min(_HOT * fair, (1 + fair) / 2)


def _percent(share: float) -> str:
    return f"{share * 100:.1f} %"


#: Seconds of a slot.
_SLOT = 2.0

#: Maximum number of cells, and of keys, of a slot.
_MOST = 10_000

#: Maximum number of ids that are counted of one statement.
_MOST_IDS = 100


class _CountSlot:
    """The counts of two seconds."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.cells: Counter[Cell] = Counter()
        self.keys: Counter[Key] = Counter()


class LoadMeter:
    """Counts samples of the statements of a cluster.

    Of every hundredth statement, on average, the meter counts keyspace, shard and
    table, and the id of the object or list in its WHERE clause or its row.  The
    counts are in slots of two seconds; old slots are dropped.

    :param cluster: the cluster.
    :param rate: share of the statements to sample, above 0 and at most 1.
    :param window: seconds for which counts are stored.
    :raises OptionError: if an argument is not valid, or the cluster
        has a meter already.
    """

    def __init__(
        self, cluster: Cluster, *, rate: float = 0.01, window: float = 30.0
    ) -> None:
        if not 0 < rate <= 1:
            raise OptionError(
                "must be above 0 and at most 1", option="rate", value=rate
            )
        if not _SLOT <= window <= 3600:
            raise OptionError(
                f"must be {_SLOT:g} to 3600 seconds", option="window", value=window
            )
        self.rate = rate
        self.window = window
        self._readings: WeakKeyDictionary[Any, _StatementReading] = WeakKeyDictionary()
        self._slots: deque[_CountSlot] = deque()
        self.after_fork()
        with _lock:
            if cluster in _meters:
                raise OptionError(
                    "has a meter already; stop() it first, or use meter_of(cluster)",
                    option="cluster",
                    value=cluster,
                )
            _meters[cluster] = self
        self._sampling = cluster.sampling
        self._sampling.begin(rate, self._take)
        in_children(self)

    def after_fork(self) -> None:
        """Drop the counts of the parent process."""
        self._lock = threading.Lock()
        self._slots.clear()
        self._since = monotonic()
        self._process = f"{socket.gethostname()}:{os.getpid()}"

    def stop(self) -> None:
        """Take no more samples."""
        self._sampling.end()
        with _lock:
            for cluster, meter in list(_meters.items()):
                if meter is self:
                    del _meters[cluster]

    def snapshot(self, seconds: float | None = None) -> LoadSnapshot:
        """Return the counts of the last seconds.

        :param seconds: the time to cover; by default, and at most, the
            window.  It is extended to whole slots of two seconds.
        """
        window = self.window if seconds is None else min(seconds, self.window)
        now = monotonic()
        first = int((now - window) / _SLOT)
        cells: Counter[Cell] = Counter()
        keys: Counter[Key] = Counter()
        with self._lock:
            for slot in self._slots:
                if slot.number >= first:
                    cells.update(slot.cells)
                    keys.update(slot.keys)
        start = max(self._since, first * _SLOT)
        return LoadSnapshot(
            process=self._process,
            at=time(),
            # Just after the start, rates would be far too high.
            seconds=max(now - start, 1.0),
            rate=self.rate,
            cells=cut(cells),
            keys=dict(keys.most_common(MOST_CELLS)),
        )

    def _take(self, plan: ExecutionPlan, context: Any) -> None:
        """Count a statement, as :class:`.Sampling` requires."""
        writes = context.isinsert or context.isupdate or context.isdelete
        reading = self._reading(context.compiled)
        keyspace = plan.places[0].keyspace
        shards: Iterable[int | None] = (
            (None,) if plan.scattered else (place.shard_id for place in plan.places)
        )
        # The ids of a statement on several shards name no single hot one.
        ids = reading.ids(context) if len(plan.places) == 1 else ()
        with self._lock:
            slot = self._slot()
            for shard_id in shards:
                cell = Cell(keyspace, shard_id, reading.table, writes)
                _count(slot.cells, cell)
            for object_id in ids:
                key = Key(
                    keyspace,
                    plan.places[0].shard_id,
                    reading.table,
                    object_id,
                    reading.is_list,
                    writes,
                )
                _count(slot.keys, key)

    def _slot(self) -> _CountSlot:
        now = monotonic()
        number = int(now / _SLOT)
        slots = self._slots
        if not slots or slots[-1].number != number:
            slots.append(_CountSlot(number))
            oldest = int((now - self.window) / _SLOT)
            while slots[0].number < oldest:
                slots.popleft()
        return slots[-1]

    def _reading(self, compiled: Any) -> _StatementReading:
        # SQLAlchemy's cache has one object for each kind of statement.
        reading = None if compiled is None else self._readings.get(compiled)
        if reading is None:
            reading = _StatementReading(getattr(compiled, "statement", None))
            if compiled is not None:
                self._readings[compiled] = reading
        return reading


def _count(counts: Counter[Any], one: Any) -> None:
    """Count, unless that would take too much memory."""
    if one in counts or len(counts) < _MOST:
        counts[one] += 1


class _StatementReading:
    """The way to find the table and the ids of a statement.

    :ivar table: name of the table; empty if there is none.
    :ivar is_list: whether the table has several rows for an id.
    """

    def __init__(self, statement: Any) -> None:
        table = _table_of(statement)
        self.table = "" if table is None else str(table.name)
        self.is_list = False
        self._parameters: list[str] = []
        if table is None or spec_of(table).id_index is None:
            return
        self.is_list = not has_objects(table)
        column = routing_column(table)
        if isinstance(statement, Insert):
            self._parameters = [column.key]
        else:
            self._parameters = list(_compared(statement, column))

    def ids(self, context: Any) -> Iterator[int]:
        """Yield the ids of a statement, at most 100."""
        room = _MOST_IDS
        rows = context.compiled_parameters if self._parameters else ()
        for row in rows:
            for name in self._parameters:
                for object_id in _ids_in(row.get(name)):
                    if not room:
                        return
                    room -= 1
                    yield object_id


def _table_of(statement: Any) -> Table | None:
    """Return the first table of a statement, if it has any."""
    table = getattr(statement, "table", None)
    if table is None:
        froms = getattr(statement, "get_final_froms", None)
        tables = froms() if froms is not None else ()
        table = tables[0] if tables else None
        while table is not None and hasattr(table, "left"):
            table = table.left
        table = getattr(table, "element", table)
    return table if isinstance(table, Table) else None


def _compared(statement: Any, column: Any) -> Iterator[str]:
    """Yield the parameters that a WHERE clause compares with a column."""
    left = [getattr(statement, "whereclause", None)]
    while left:
        clause = left.pop()
        if isinstance(clause, Grouping):
            left.append(clause.element)
        elif isinstance(clause, BooleanClauseList):
            if clause.operator is operators.and_:
                left += clause.clauses
        elif (
            isinstance(clause, BinaryExpression)
            and clause.operator in (operators.eq, operators.in_op)
            and getattr(clause.left, "key", None) == column.key
            and isinstance(clause.right, BindParameter)
        ):
            yield str(clause.right.key)


def _ids_in(value: Any) -> Iterable[int]:
    """Return the ids of a parameter."""
    if isinstance(value, Slotted):
        ids: Iterable[int] = getattr(value.slot, "ids", ())
        return ids
    values = value if isinstance(value, (list, tuple)) else (value,)
    return [one for one in values if isinstance(one, int)]


_lock = threading.Lock()

_meters: WeakKeyDictionary[Cluster, LoadMeter] = WeakKeyDictionary()


def measure_load(
    cluster: Cluster, *, rate: float = 0.01, window: float = 30.0
) -> LoadMeter:
    """Sample the statements of a cluster; see :class:`LoadMeter`.

    :param rate: share of the statements to sample, above 0 and at most 1.
    :param window: seconds for which counts are stored.
    :raises OptionError: see :class:`LoadMeter`.
    """
    return LoadMeter(cluster, rate=rate, window=window)


def meter_of(cluster: Cluster) -> LoadMeter | None:
    """Return the meter of a cluster in this process, if it has one."""
    with _lock:
        return _meters.get(cluster)
