"""Compares the content of two servers while both serve.

::

    report = verify_data(fleet, "sharddb001")
    if not report.ok:
        print(report)

Every row is read on both servers, by checksums of chunks in the order of the
primary key; chunks that differ are divided until the rows are found.  A
primary and its standby are compared at common points of replication
(:mod:`~sqla_shard.fleet.common_point`): what is reported did differ, whatever
is written meanwhile.  Two servers without replication between them must not be
written, or only such rows as differ when they are read again are reported.

Limits: tables of InnoDB and RocksDB; others are reported as unread, and so are
tables whose definition changes meanwhile.  A table without a key is read by
one statement, and its rows are named by their checksums.  Not compared:
events, routines, accounts, values of sequences, and the history of a
system-versioned table.  :mod:`~sqla_shard.fleet.checksums` lists how columns
are compared.

Before a cutover between two servers (:class:`CutoverContents`) the second one
replicates from the first, and the rows are compared at common points of
replication while both serve.

After a split nothing replicates any more, and the new home is written: so
snapshots are opened while neither side is, and are read when both serve again.
Until then the servers cannot purge old versions of rows.  After a failover the
former primary replicates from the new one, and both are compared at common
points, as before; nothing is done while writes are stopped.

AUTO_INCREMENT is not compared: a rolled-back INSERT makes it differ until the
next one.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

from sqla_shard.exc import FleetLockedError, FleetServerError, FleetSetupError
from sqla_shard.exc.base import shortened_list
from sqla_shard.fleet.admin import Admin
from sqla_shard.fleet.checksums import Bound, ComparedColumns
from sqla_shard.fleet.common_point import (
    common_point,
    CommonPoint,
    Opener,
    prepare_comparison,
    QuietPoint,
    RESPONSE_SECONDS,
)
from sqla_shard.fleet.differences import (
    compare_catalogues,
    DataReport,
    Difference,
    DifferenceKind,
    UnreadPlace,
    wait_applied,
)
from sqla_shard.fleet.fleet import Fleet, pair_named
from sqla_shard.fleet.journal import FleetJournal
from sqla_shard.fleet.operation import FleetOperation
from sqla_shard.fleet.replication import replication_of
from sqla_shard.fleet.row_copy import databases_of
from sqla_shard.util.pace import Interval

_CHUNK = (100, 100_000)
# Rows of a range whose columns are listed.
_ROWS = 1000
#: Tables that are read with one statement, if they have no more than some rows.
_TOGETHER, _FEW = 32, 100
_MAX_FAILURES = 3
#: Seconds between two reports of the progress.
_PROGRESS_SECONDS = 1.0

#: Seconds that a server is given even after the limit.
_LEAST_SECONDS = 10.0

# Seconds between two looks at the journal.
_LOOK_SECONDS = 5.0

#: Is called before a point is made, and with True when something differs;
#: raises if an operation of the fleet may be the cause.
Watch = Callable[[bool], object]

#: Count and checksum of a range.
_Sum = tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class CompareProgress:
    """Progress of a comparison, which reads definitions first, then rows.

    :ivar databases: databases of which the definitions are compared.
    :ivar all_databases: databases to compare.
    :ivar tables: tables of which all rows are compared.
    :ivar all_tables: tables to compare; 0 as long as definitions are read.
    :ivar rows: rows compared.
    :ivar seconds: time since the start.
    """

    databases: int
    all_databases: int
    tables: int
    all_tables: int
    rows: int
    seconds: float

    def __str__(self) -> str:
        if not self.all_tables:
            return (
                f"definitions of {self.databases:,} of {self.all_databases:,} "
                f"databases compared, {self.seconds:.0f} s"
            )
        return (
            f"{self.rows:,} rows compared, {self.tables:,} of "
            f"{self.all_tables:,} tables, {self.seconds:.0f} s"
        )


@dataclass(frozen=True, kw_only=True)
class CompareOptions:
    """Options of a comparison of two servers.

    :ivar threads: sessions on each server.
    :ivar rate: rows per second on each server, at most; None: no limit.
    :ivar seconds: age of a snapshot after which a new point is made; while it
        is open, its server cannot purge old versions of rows.
    :ivar chunk_seconds: time that the statement for a chunk should take.
    :ivar first_chunk: rows of the first chunk of a table.
    :ivar most: number of differences in the report; all are counted.
    :ivar values: whether to report the values of columns that differ.
    :ivar counters: whether to compare AUTO_INCREMENT.
    :ivar patience: seconds for the standby to catch up.
    :ivar limit: seconds after which the rest is reported as unread; None: no
        limit.
    :ivar on_difference: is called for every difference, also for those beyond
        ``most``, from one thread at a time.
    :ivar on_progress: is called about once a second.
    """

    threads: int = 2
    rate: float | None = None
    seconds: float = 600.0
    chunk_seconds: float = 0.3
    first_chunk: int = 1000
    most: int = 1000
    values: bool = False
    counters: bool = True
    patience: float = 60.0
    limit: float | None = None
    on_difference: Callable[[Difference], object] | None = None
    on_progress: Callable[[CompareProgress], object] | None = None


def verify_data(
    fleet: Fleet,
    server: str,
    *,
    against: str | None = None,
    databases: Iterable[str] | None = None,
    replicates: bool | None = None,
    options: CompareOptions | None = None,
) -> DataReport:
    """Compare a primary with its standby, or with another server.

    :param server: name of the server in the topology.
    :param against: URL of another server, such as ``mysql://host:3306``; by
        default the standby.
    :param databases: names of the databases.  By default those of the
        topology, and, of a standby, all others that one of the two has.
    :param replicates: whether the other server replicates from the primary;
        by default whether it says so.
    :param options: how to compare.
    :raises UnknownServerError: if the topology has no such server.
    :raises FleetSetupError: if it has no standby.
    :raises FleetLockedError: if an operation is running, or begins before
        something is found to differ.
    :raises OperationRefusedError: if the standby does not replicate.
    :raises FleetServerError: if a server cannot be read, or an operation has
        ended meanwhile and something differs.
    :raises ApplierStoppedError: if the applier of the standby was stopped and
        cannot be started.
    """
    pair = pair_named(fleet.topology(), server)
    watch = _watching(fleet.journal, server)
    watch(False)
    if against is None and pair.standby is None:
        raise FleetSetupError(
            f"{server} has no standby; name another server with --against"
        )
    other = against or str(pair.standby)
    role = "standby" if against is None else "other server"

    def first() -> Admin:
        """Connect to the primary."""
        return fleet.admin(pair.primary, name=f"{server} primary")

    def second() -> Admin:
        """Connect to the other server."""
        return fleet.admin(other, name=f"{server} {role}")

    if replicates is None:
        replicates = against is None or _replicates(first, second)
    if databases is None:
        found = set(pair.databases())
        if against is None:
            for opener in (first, second):
                with opener() as admin:
                    found.update(databases_of(admin))
        databases = found
    return compare_servers(
        first,
        second,
        databases,
        replicates=replicates,
        options=options or CompareOptions(),
        watch=watch,
    )


def _watching(journal: FleetJournal, server: str) -> Watch:
    """Return a function that refuses databases changed by operations."""
    before = {record.id for record in journal.history()}

    def watch(differs: bool) -> None:
        """Look at the journal; see :data:`Watch`."""
        pending = journal.pending()
        if pending is not None and pending.running:
            raise FleetLockedError(
                fleet=journal.name,
                operation=pending.record.title,
                holder=pending.record.holder,
                running=True,
            )
        ended = [
            record.title
            for record in (journal.history() if differs else ())
            if record.id not in before
        ]
        if ended:
            raise FleetServerError(
                server=server,
                number=0,
                reason=f"{', '.join(ended)} has ended during the comparison, "
                "and may have made the differences; compare again",
            )

    return watch


def compare_servers(
    first: Opener,
    second: Opener,
    databases: Iterable[str],
    *,
    replicates: bool,
    options: CompareOptions,
    watch: Watch = bool,
    point: CommonPoint | None = None,
) -> DataReport:
    """Compare databases of two servers.

    :param first: connects to the primary, or to one of two servers.
    :param second: connects to its standby, or to the other one.
    :param databases: names of the databases.
    :param replicates: whether the second replicates from the first; if not,
        neither should be written meanwhile.
    :param watch: see :data:`Watch`.
    :param point: where to compare rows; by default at points made for it.
    :raises OperationRefusedError: see :func:`verify_data`.
    """
    comparison = _Comparison(
        first, second, replicates, options, watch=watch, point=point
    )
    return comparison.run(databases)


def _replicates(first: Opener, second: Opener) -> bool:
    with first() as primary, second() as standby:
        status = replication_of(standby).status()
        return status is not None and status.source == primary.address


@dataclass(kw_only=True)
class _Unit:
    """A table, and how far it was compared.

    :ivar is_new: whether it is read first with others, in case it is small.
    """

    database: str
    table: str
    columns: ComparedColumns
    chunk: int
    is_new: bool
    low: Bound | None = None
    failures: int = 0

    def difference(
        self, kind: DifferenceKind, key: tuple[Any, ...], **more: Any
    ) -> Difference:
        """Return a difference of a row."""
        return Difference(
            database=self.database, table=self.table, kind=kind, key=key, **more
        )


@dataclass(kw_only=True)
class _Listed:
    """A difference for the report; of a row, how to read it again."""

    difference: Difference
    columns: ComparedColumns | None = None
    key: Bound = ()


class _Interrupted(Exception):  # noqa: N818 - no error
    """Ends the threads of a comparison that was interrupted, or is late."""


class _Pair:
    """The sessions of a thread, one on each server, in the same snapshot."""

    def __init__(self, sessions: tuple[Admin, Admin], pool: ThreadPoolExecutor) -> None:
        self.sessions = sessions
        self._pool = pool

    def rows(self, sql: str) -> tuple[list[Any], list[Any]]:
        """Return the rows of a statement on each server."""
        first, second = self.sessions
        other = self._pool.submit(second.rows, sql)
        try:
            mine = first.rows(sql)
        finally:
            # A session is for one thread at a time.
            wait([other])
        return mine, other.result()

    def sums(self, sql: str) -> tuple[_Sum, _Sum]:
        """Return the counts and checksums of a range."""
        ((one,), (two,)) = self.rows(sql)
        return (one[0], one[1]), (two[0], two[1])


@dataclass
class _Comparison:
    first: Opener
    second: Opener
    replicates: bool
    options: CompareOptions
    watch: Watch
    point: CommonPoint | None
    queue: deque[_Unit] = field(default_factory=deque)
    listed: list[_Listed] = field(default_factory=list)
    unread: list[UnreadPlace] = field(default_factory=list)
    found: int = 0
    rows: int = 0
    settled: int = 0

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._next = self._began = time.monotonic()
        self._report_times = Interval(_PROGRESS_SECONDS)
        self._databases = self._all_databases = self._tables = self._all_tables = 0
        self._points: list[str] = []
        self._locked = 0.0
        self._stopped = 0.0
        self._end = float("inf")

    def run(self, databases: Iterable[str]) -> DataReport:
        """Compare definitions, then rows, then the differences again."""
        names = sorted(set(databases))
        self._all_databases = len(names)
        limit = self.options.limit
        half = float("inf")
        if limit is not None:
            self._end = self._began + limit
            # The rows of what was read need time, too.
            half = self._began + limit / 2
        with self.first() as one, self.second() as two:
            servers = str(one), str(two)

            def settle() -> None:
                """Wait until the standby has the primary's position."""
                if self.replicates:
                    wait_applied(one, two, self._patience())

            for admin in (one, two):
                prepare_comparison(admin)
            catalogue = compare_catalogues(
                one,
                two,
                names,
                settle=settle,
                counters=self.options.counters,
                until=half,
                on_read=self._count_databases,
            )
        self.unread += catalogue.unread
        for difference in catalogue.differences:
            self._report(difference)
        self.queue.extend(
            _Unit(
                database=database,
                table=table,
                columns=columns,
                chunk=self.options.first_chunk,
                # Equal rows would cancel each other.
                is_new=bool(columns.key),
            )
            for database, table, columns in catalogue.tables
        )
        self._all_tables = len(self.queue)
        while self.queue and time.monotonic() < self._end:
            self._round()
        late = [
            *((name, "") for name in catalogue.late),
            *((unit.database, unit.table) for unit in self.queue),
        ]
        self.unread += (
            UnreadPlace(
                database=database,
                table=table,
                reason=f"the limit of {limit:g} s was reached",
                late=True,
            )
            for database, table in late
        )
        self._again()
        return DataReport(
            first=servers[0],
            second=servers[1],
            replicates=self.replicates,
            points=tuple(self._points),
            databases=catalogue.databases,
            tables=len(catalogue.tables),
            rows=self.rows,
            seconds=time.monotonic() - self._began,
            locked=self._locked,
            stopped=self._stopped,
            found=self.found,
            differences=tuple(one.difference for one in self.listed),
            settled=self.settled,
            unread=tuple(self.unread),
        )

    def _patience(self, least: float = 1.0) -> float:
        """Return for how many seconds the standby may be awaited now."""
        return max(least, min(self.options.patience, self._end - time.monotonic()))

    # -- rounds -----------------------------------------------------------

    @contextmanager
    def _at_point(self, pairs: int, patience: float) -> Iterator[CommonPoint]:
        # Not into an operation: it needs the applier that is stopped here.
        self.watch(bool(self.found))
        if self.point is not None:
            self._points = [self.point.position]
            yield self.point
            return
        with common_point(
            self.first,
            self.second,
            pairs=pairs,
            replicates=self.replicates,
            patience=patience,
            timeout=_timeout(self._end - time.monotonic()),
        ) as point:
            self._points.append(point.position)
            self._locked = max(self._locked, point.locked)
            self._stopped = max(self._stopped, point.stopped)
            yield point

    def _round(self) -> None:
        """Compare at one point, until it is too old."""
        threads = min(self.options.threads, len(self.queue))
        with (
            self._at_point(threads, self._patience()) as point,
            ThreadPoolExecutor(2 * threads) as pool,
        ):
            until = min(time.monotonic() + self.options.seconds, self._end)
            futures = [
                pool.submit(self._work, _Pair(pair, pool), until)
                for pair in point.pairs[:threads]
            ]
            try:
                while wait(futures, timeout=_LOOK_SECONDS).not_done:
                    if self.found:
                        self.watch(True)
            except BaseException:
                self._stop.set()
                raise
            for future in futures:
                future.result()

    def _work(self, pair: _Pair, until: float) -> None:
        while time.monotonic() < until:
            units = self._taken()
            if not units:
                return
            try:
                if units[0].is_new:
                    left = self._glance(units, pair)
                else:
                    left = [] if self._walk(units[0], pair, until) else units
            except _Interrupted:
                with self._lock:
                    self.queue.extend(units)
                return
            except FleetServerError as error:
                # The session may be lost, or the definition has changed since
                # the snapshot: go on at another point.
                if not units[0].is_new:
                    self._failed(units[0], error)
                    return
                for unit in units:
                    unit.is_new = False
                with self._lock:
                    self.queue.extend(units)
                return
            with self._lock:
                self.queue.extend(left)

    def _taken(self) -> list[_Unit]:
        """Return the next table, or the next ones that were not read yet."""
        with self._lock:
            units: list[_Unit] = []
            while self.queue and len(units) < _TOGETHER:
                if units and not (units[0].is_new and self.queue[0].is_new):
                    break
                units.append(self.queue.popleft())
            return units

    def _glance(self, units: list[_Unit], pair: _Pair) -> list[_Unit]:
        """Compare small tables with one statement; return the others.

        A shard has few rows of most of its tables, and a server thousands of
        shards: a statement for each table would take most of the time.
        """
        most = min(_FEW, self.options.first_chunk)
        sql = " UNION ALL ".join(
            unit.columns.some(number, most + 1) for number, unit in enumerate(units)
        )
        left = []
        # How many they are is known afterwards only: the next read waits.
        self._wait(0)
        first, second = map(sorted, pair.rows(sql))
        self._wait(sum(count for _, count, _ in first))
        for mine, other in zip(first, second, strict=True):
            number, count, _ = mine
            unit = units[number]
            unit.is_new = False
            if count > most or other != mine:
                left.append(unit)
            else:
                self._count(count, ends=True)
        return left

    def _failed(self, unit: _Unit, error: FleetServerError) -> None:
        unit.failures += 1
        with self._lock:
            if unit.failures < _MAX_FAILURES:
                self.queue.append(unit)
            else:
                self.unread.append(
                    UnreadPlace(
                        database=unit.database, table=unit.table, reason=str(error)
                    )
                )

    # -- tables -----------------------------------------------------------

    def _walk(self, unit: _Unit, pair: _Pair, until: float) -> bool:
        """Compare a table from where it was left; return whether it ended."""
        if not unit.columns.key:
            self._without_key(unit, pair)
            return True
        while True:
            self._wait(unit.chunk)
            high = self._high(unit, pair)
            began = time.monotonic()
            one, two = pair.sums(unit.columns.chunk(unit.low, high))
            taken = time.monotonic() - began
            self._drill(unit, pair, (unit.low, high), one, two)
            self._count(one[0], ends=high is None)
            if high is None:
                return True
            unit.low = high
            unit.failures = 0
            unit.chunk = _resized(unit.chunk, taken, self.options.chunk_seconds)
            if time.monotonic() > until:
                return False

    def _high(self, unit: _Unit, pair: _Pair) -> Bound | None:
        """Return the end of the next chunk; None if it is the last."""
        columns = unit.columns
        first, second = pair.sessions
        found = first.rows(columns.bound(unit.low, None, unit.chunk))
        if not found:
            # The other server may have many more rows.
            found = second.rows(columns.bound(unit.low, None, unit.chunk))
        return columns.bound_of(found[0]) if found else None

    def _drill(
        self,
        unit: _Unit,
        pair: _Pair,
        ends: tuple[Bound | None, Bound | None],
        one: _Sum,
        two: _Sum,
    ) -> None:
        """Report the rows of a range that differ."""
        if one == two:
            return
        if max(one[0], two[0]) <= _ROWS:
            self._list(unit, pair, ends)
            return
        low, high = ends
        larger = pair.sessions[one[0] < two[0]]
        half = max(one[0], two[0]) // 2
        found = larger.rows(unit.columns.bound(low, high, half))
        middle = unit.columns.bound_of(found[0])
        self._wait(half)
        left, right = pair.sums(unit.columns.chunk(low, middle))
        self._drill(unit, pair, (low, middle), left, right)
        self._drill(unit, pair, (middle, high), _rest(one, left), _rest(two, right))

    def _list(
        self, unit: _Unit, pair: _Pair, ends: tuple[Bound | None, Bound | None]
    ) -> None:
        """Compare the rows of a range one by one."""
        columns = unit.columns
        width = len(columns.key)
        first, second = (
            {columns.bound_of(row): row for row in side}
            for side in pair.rows(columns.listing(*ends))
        )
        for key, row in first.items():
            shown = columns.shown(row)
            if key not in second:
                self._report(unit.difference("missing_row", shown), columns, key)
                continue
            names = tuple(
                column.name
                for column, mine, other in zip(
                    columns.columns, row[width:], second[key][width:], strict=True
                )
                if mine != other
            )
            if names:
                self._report(
                    unit.difference(
                        "row",
                        shown,
                        columns=names,
                        values=self._values(unit, pair, key, names),
                    ),
                    columns,
                    key,
                )
        for key, row in second.items():
            if key not in first:
                self._report(
                    unit.difference("extra_row", columns.shown(row)), columns, key
                )

    def _values(
        self, unit: _Unit, pair: _Pair, key: Bound, names: tuple[str, ...]
    ) -> dict[str, tuple[str, str]]:
        if not self.options.values:
            return {}
        (mine,), (other,) = pair.rows(unit.columns.values(key, names))
        return {
            name: (_cut(one), _cut(two))
            for name, one, two in zip(names, mine, other, strict=True)
        }

    def _without_key(self, unit: _Unit, pair: _Pair) -> None:
        """Compare a table by the checksums of its rows."""
        first, second = (
            {row[0]: row[1:] for row in side}
            for side in pair.rows(unit.columns.buckets())
        )
        self._count(sum(count for count, _ in first.values()), ends=True)
        for number in sorted(first.keys() | second.keys()):
            if first.get(number) == second.get(number):
                continue
            if self._stop.is_set():
                raise _Interrupted
            mine, other = (
                dict(side) for side in pair.rows(unit.columns.bucket(number))
            )
            for row in sorted(mine.keys() | other.keys()):
                left = mine.get(row, 0) - other.get(row, 0)
                if left:
                    self._report(
                        unit.difference(
                            "missing_row" if left > 0 else "extra_row",
                            (f"checksum {row:016x}",),
                            detail=f"{abs(left)} times",
                        )
                    )

    # -- the report -------------------------------------------------------

    def _report(
        self,
        difference: Difference,
        columns: ComparedColumns | None = None,
        key: Bound = (),
    ) -> None:
        with self._lock:
            self.found += 1
            if self.found <= self.options.most:
                self.listed.append(
                    _Listed(difference=difference, columns=columns, key=key)
                )
            elif self.options.on_difference is not None:
                self.options.on_difference(difference)

    def _again(self) -> None:
        """Compare the listed rows again, at another point.

        Even after the limit: they are few, and a standby may be late.
        """
        # Not an error, which would hide what was found: the others say that
        # they were not compared again.
        with suppress(FleetServerError):
            if any(one.columns is not None for one in self.listed):
                with (
                    self._at_point(1, self._patience(_LEAST_SECONDS)) as point,
                    ThreadPoolExecutor(1) as pool,
                ):
                    pair = _Pair(point.pairs[0], pool)
                    for one in tuple(self.listed):
                        if not self._lasts(one, pair):
                            self.listed.remove(one)
        if self.found:
            self.watch(True)
        if self.options.on_difference is not None:
            for one in self.listed:
                self.options.on_difference(one.difference)

    def _lasts(self, one: _Listed, pair: _Pair) -> bool:
        """Read a row again; return whether it stays in the report."""
        if one.columns is None:
            return True
        first, second = pair.rows(one.columns.one(one.key))
        lasts = first != second
        if not lasts and not self.replicates:
            # The first look has read the servers at different moments.
            self.found -= 1
            self.settled += 1
            return False
        one.difference = replace(one.difference, lasts=lasts)
        return True

    # -- pace -------------------------------------------------------------

    def _count_databases(self, number: int) -> None:
        self._databases += number
        self._tell()

    def _count(self, rows: int, *, ends: bool) -> None:
        """Count rows of a table.

        :param ends: whether they are the last ones.
        """
        with self._lock:
            self.rows += rows
            self._tables += ends
            self._tell()

    def _tell(self) -> None:
        # Not for each chunk: small tables have one chunk each, and a server has
        # thousands of them.
        if self.options.on_progress and self._report_times.is_over():
            self.options.on_progress(
                CompareProgress(
                    databases=self._databases,
                    all_databases=self._all_databases,
                    tables=self._tables,
                    all_tables=self._all_tables,
                    rows=self.rows,
                    seconds=time.monotonic() - self._began,
                )
            )

    def _wait(self, rows: int) -> None:
        """Wait for the turn of some rows, if the rate is limited."""
        if self.options.rate is not None:
            with self._lock:
                begin = max(self._next, time.monotonic())
                self._next = begin + rows / self.options.rate
            self._stop.wait(min(begin, self._end) - time.monotonic())
        if self._stop.is_set() or time.monotonic() > self._end:
            raise _Interrupted


def _timeout(left: float) -> float:
    """Return the seconds to wait for a response.

    A limit holds for a server that does not respond any more, too.

    :param left: seconds until the limit.
    """
    return min(RESPONSE_SECONDS, max(_LEAST_SECONDS, left))


def _resized(chunk: int, taken: float, wanted: float) -> int:
    """Return the rows of the next chunk."""
    least, most = _CHUNK
    factor = min(4.0, max(0.25, wanted / max(taken, 1e-6)))
    return int(min(most, max(least, chunk * factor)))


def _rest(whole: _Sum, part: _Sum) -> _Sum:
    return whole[0] - part[0], whole[1] ^ part[1]


def _cut(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}..."


#: Sessions on each server that compare rows, and differences that are shown.
_THREADS = 2
_MAX_SHOWN = 5
#: Seconds between two reports of progress.
_REPORT_SECONDS = 5.0


class CutoverContents:
    """The databases of a cutover, on both servers.

    :param source: connects to the old home, or to the primary.
    :param target: connects to the new one, or to the standby.
    :param databases: returns the names of the databases.
    :param limit: seconds that each comparison may take.
    :param operation: the operation, which reports the progress and checks that
        this process has its lock.
    """

    def __init__(
        self,
        source: Opener,
        target: Opener,
        databases: Callable[[], Sequence[str]],
        *,
        limit: float,
        operation: FleetOperation,
    ) -> None:
        self._limit = limit
        self._operation = operation
        self._servers = source, target
        self._databases = databases
        self._quiet: QuietPoint | None = None
        self._cutover: CommonPoint | None = None

    def replicated(self) -> DataReport:
        """Compare while the target replicates from the source.

        :raises FleetServerError: if a server cannot be read.
        :raises OperationRefusedError: if the target does not replicate.
        :raises ApplierStoppedError: if its applier cannot be started again.
        """
        return self._compare(None)

    def prepare(self) -> None:
        """Open the sessions of the snapshots, if they are not open."""
        if self._quiet is None:
            self._quiet = QuietPoint(
                *self._servers, pairs=_THREADS, timeout=_timeout(self._limit)
            )

    def take(self, position: str) -> None:
        """Open the snapshots, while neither server is written."""
        self.prepare()
        if self._quiet is not None:
            self._cutover = self._quiet.open(position)

    def after(self) -> DataReport | None:
        """Compare the snapshots; None if another process has taken them.

        :raises FleetServerError: if a server cannot be read.
        """
        if self._cutover is None:
            return None
        return self._compare(self._cutover)

    def close(self) -> None:
        """Close the sessions of the snapshots."""
        if self._quiet is not None:
            self._quiet.close()
        self._quiet = self._cutover = None

    def _compare(self, point: CommonPoint | None) -> DataReport:
        times = Interval(_REPORT_SECONDS)

        def progress(event: CompareProgress) -> None:
            """Report the progress, every few seconds."""
            if times.is_over():
                self._operation.report(str(event))

        return compare_servers(
            *self._servers,
            self._databases(),
            replicates=point is None,
            options=CompareOptions(
                threads=_THREADS,
                counters=False,
                limit=self._limit,
                on_progress=progress,
            ),
            watch=self._operation.check_hold,
            point=point,
        )


def proof_of(report: DataReport) -> str:
    """Return a sentence about the tables that were compared and equal."""
    text = (
        f"{report.rows:,} rows of {report.tables:,} tables are equal, "
        f"compared in {report.seconds:.1f} s"
    )
    if report.unread:
        text += (
            f"; not compared, or not to their end: {len(report.unread):,} "
            f"tables or databases ({shortened_list(report.unread, 1)})"
        )
    return text


def fault_of(report: DataReport) -> str:
    """Return a sentence about differences and tables not compared."""
    found = [str(one) for one in (*report.differences, *report.unread)]
    return (
        f"{report.found:,} rows or definitions differ, and {len(report.unread):,} "
        f"tables or databases were not compared ({shortened_list(found, _MAX_SHOWN)})"
    )
