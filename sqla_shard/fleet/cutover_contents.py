"""Rows of two servers, compared before a cutover between them and after it.

Before it, the second server replicates from the first, and the rows are
compared at common points of replication while both serve.

After a split nothing replicates any more, and the new home is written: so
snapshots are opened while neither side is, and are read when both serve again.
Until then the servers cannot purge old versions of rows.  After a failover the
former primary replicates from the new one, and both are compared at common
points, as before; nothing is done while writes are stopped.

AUTO_INCREMENT is not compared: a rolled-back INSERT makes it differ until the
next one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from sqla_shard.exc.base import shortened_list
from sqla_shard.fleet.common_point import CommonPoint, Opener, QuietPoint
from sqla_shard.fleet.compare import compare_servers, CompareOptions, Watch
from sqla_shard.fleet.differences import DataReport

#: Sessions on each server that compare rows, and differences that are shown.
_THREADS = 2
_SHOWN = 5
#: Seconds between two reports of progress.
_EVERY = 5.0


class CutoverContents:
    """The databases of a cutover, on both servers.

    :param source: connects to the old home, or to the primary.
    :param target: connects to the new one, or to the standby.
    :param databases: returns the names of the databases.
    :param limit: seconds that each comparison may take.
    :param report: is called with sentences about the progress.
    :param watch: see :data:`~sqla_shard.fleet.compare.Watch`.
    """

    def __init__(
        self,
        source: Opener,
        target: Opener,
        databases: Callable[[], Sequence[str]],
        *,
        limit: float,
        report: Callable[[str], object],
        watch: Watch,
    ) -> None:
        self._limit = limit
        self._report = report
        self._watch = watch
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
            self._quiet = QuietPoint(*self._servers, pairs=_THREADS)

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
        last = time.monotonic()

        def progress(rows: int) -> None:
            """Report the number of rows, every few seconds."""
            nonlocal last
            if time.monotonic() > last + _EVERY:
                last = time.monotonic()
                self._report(f"{rows:,} rows compared")

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
            watch=self._watch,
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
        f"{report.found:,} rows or definitions differ, and "
        f"{len(report.unread):,} tables or databases were not compared "
        f"({shortened_list(found, _SHOWN)})"
    )
