"""Samples of the statements of a cluster in this process.

Of every hundredth statement, on average, the meter counts keyspace, shard and
table, and the id of the object or list in its WHERE clause or its row.  The
counts are in slots of two seconds; old slots are dropped.
"""

from __future__ import annotations

import os
import socket
import threading
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from time import monotonic, time
from typing import Any
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
from sqla_shard.monitor.load import Cell, cut, Key, LoadSnapshot, MOST_CELLS
from sqla_shard.planning import has_objects, routing_column, spec_of
from sqla_shard.types.shard_bound import Slotted
from sqla_shard.util.processes import in_children

#: Seconds of a slot.
_SLOT = 2.0
#: Maximum number of cells, and of keys, of a slot.
_MOST = 10_000
#: Maximum number of ids that are counted of one statement.
_MOST_IDS = 100


class _Slot:
    """The counts of two seconds."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.cells: Counter[Cell] = Counter()
        self.keys: Counter[Key] = Counter()


class LoadMeter:
    """Counts samples of the statements of a cluster.

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
        self._readings: WeakKeyDictionary[Any, _Reading] = WeakKeyDictionary()
        self._slots: deque[_Slot] = deque()
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

    def _slot(self) -> _Slot:
        now = monotonic()
        number = int(now / _SLOT)
        slots = self._slots
        if not slots or slots[-1].number != number:
            slots.append(_Slot(number))
            oldest = int((now - self.window) / _SLOT)
            while slots[0].number < oldest:
                slots.popleft()
        return slots[-1]

    def _reading(self, compiled: Any) -> _Reading:
        # SQLAlchemy's cache has one object for each kind of statement.
        found = None if compiled is None else self._readings.get(compiled)
        if found is None:
            found = _Reading(getattr(compiled, "statement", None))
            if compiled is not None:
                self._readings[compiled] = found
        return found


def _count(counts: Counter[Any], one: Any) -> None:
    """Count, unless that would take too much memory."""
    if one in counts or len(counts) < _MOST:
        counts[one] += 1


class _Reading:
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
        left = _MOST_IDS
        rows = context.compiled_parameters if self._parameters else ()
        for row in rows:
            for name in self._parameters:
                for object_id in _ids_in(row.get(name)):
                    if not left:
                        return
                    left -= 1
                    yield object_id


def _table_of(statement: Any) -> Table | None:
    """Return the first table of a statement, if it has any."""
    table = getattr(statement, "table", None)
    if table is None:
        froms = getattr(statement, "get_final_froms", None)
        found = froms() if froms is not None else ()
        table = found[0] if found else None
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
