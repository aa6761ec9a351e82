"""Rewriting of rows with the active dictionary of their shard.

A page of rows is read, and each row whose blob has another form is written if
it still has the value that was read; so a change by the application is never
overwritten, and a changed row has been written in a current form anyway.  The
time of the last change ``ts`` stays as it is, and the text of a blob is
compared before it is replaced.

The run can be interrupted at any time.  With a position file the next run
resumes where it was; without one it reads the rewritten rows again, and does
not write them.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import bindparam, select, type_coerce, update
from sqlalchemy.types import NullType

from sqla_shard.cluster.cluster import Cluster
from sqla_shard.engine import Places
from sqla_shard.engine.rendering import Place
from sqla_shard.engine.unreachable import (
    ShardsReport,
    unreachable_lines,
    UnreachableServer,
)
from sqla_shard.exc import BlobError, DamagedBlobError
from sqla_shard.session import ShardSession
from sqla_shard.session.connections import bulk_on
from sqla_shard.topology import Keyspace
from sqla_shard.types import Blob
from sqla_shard.types.blob import decode_stored, pack_blob
from sqla_shard.types.compression import DICTIONARIES, MARKER, PREFIX_BYTES, unpack
from sqla_shard.upkeep.blobs.dictionaries import active_id, Blobs
from sqla_shard.upkeep.checks import Check, CheckedPage
from sqla_shard.upkeep.run import Run, VerifyProgress
from sqla_shard.util.pace import Pace

#: Maximum number of unreadable rows in a report.
_MOST = 1000


@dataclass(frozen=True, kw_only=True)
class UnreadableRow:
    """A row whose blob cannot be read.

    :ivar object_id: id of the object.
    :ivar reason: the error.
    """

    object_id: int
    reason: str

    def as_dict(self) -> dict[str, str]:
        """Return JSON values; the id as a text, since JavaScript rounds it."""
        return {"object_id": str(self.object_id), "reason": self.reason}


@dataclass(kw_only=True)
class RewriteReport(ShardsReport):
    """The result of :func:`rewrite` or :func:`check`.

    :ivar table: name of the table.
    :ivar rows: number of rows that were read.
    :ivar rewritten: number of rows that were written.
    :ivar changed: number of rows that the application changed or deleted
        meanwhile, and that were not written.
    :ivar bytes_before: size of the blobs that were rewritten, before.
    :ivar bytes_after: their size now.
    :ivar unreadable: rows that cannot be read, at most 1,000, and only those that
        were read since the last interruption.
    :ivar unreadable_rows: number of all rows that cannot be read.
    :ivar unreachable: shards that could not be read, by server.
    """

    table: str
    rows: int = 0
    rewritten: int = 0
    changed: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    unreadable_rows: int = 0
    unreadable: list[UnreadableRow] = field(default_factory=list)
    unreachable: list[UnreachableServer] = field(default_factory=list)

    def __str__(self) -> str:
        first = (
            f"{self.table}: {self.rows:,} rows read, {self.rewritten:,} rewritten, "
            f"{self.changed:,} changed meanwhile, {self.unreadable_rows:,} unreadable"
        )
        if self.rewritten:
            first += f"; {self.bytes_before:,} bytes before, {self.bytes_after:,} after"
        rows = [f"{one.object_id}: {one.reason}" for one in self.unreadable]
        left = self.unreadable_rows - len(rows)
        if left:
            rows.append(f"{left:,} more are unreadable; see: sqla-shard blobs check")
        return "\n".join([first, *rows, *unreachable_lines(self.unreachable)])


def rewrite(
    cluster: Cluster,
    cls: Any,
    *,
    rate: float | None = None,
    batch: int = 200,
    position: str | os.PathLike[str] | None = None,
    on_progress: Callable[[VerifyProgress], object] | None = None,
) -> RewriteReport:
    """Rewrite rows with the active dictionary of their shard, or as JSON.

    Deactivated shards are rewritten as JSON.

    :param cls: an object class with ``compression="zstd"``.
    :param rate: maximum number of rows to read per second; None for no limit.
    :param batch: maximum number of rows of a transaction.
    :param position: file with the position of an interrupted run.
    :param on_progress: called after each batch with a
        :class:`~sqla_shard.upkeep.VerifyProgress`, whose ``counts["rewritten"]``
        is the number of rows that were written so far.
    :raises ClassDefinitionError: if blobs of the class are not compressed.
    :raises VerifyPositionError: if the file belongs to another run.
    :raises ValueError: if ``rate`` or ``batch`` is not valid.
    """
    rows = _BlobRows(Blobs(cls), writes=True)
    return _run(cluster, rows, Pace(rate=rate, batch=batch), on_progress, position)


def check(
    cluster: Cluster,
    cls: Any,
    *,
    rate: float | None = None,
    batch: int = 200,
    on_progress: Callable[[VerifyProgress], object] | None = None,
) -> RewriteReport:
    """Read the blobs of all rows, and report those that cannot be read.

    The parameters are those of :func:`rewrite`; nothing is written.
    """
    rows = _BlobRows(Blobs(cls), writes=False)
    return _run(cluster, rows, Pace(rate=rate, batch=batch), on_progress)


def _run(
    cluster: Cluster,
    rows: _BlobRows,
    pace: Pace,
    on_progress: Callable[[VerifyProgress], object] | None,
    position: str | os.PathLike[str] | None = None,
) -> RewriteReport:
    report = Run(
        cluster,
        [rows],
        repair=(),
        pace=pace,
        command="rewrite",
        position=position,
        on_progress=on_progress,
    ).run()
    counts = report.tallies[rows.subject].looked
    unreadable = [
        UnreadableRow(object_id=object_id, reason=text)
        for object_id, text in rows.unreadable.items()
    ]
    return RewriteReport(
        table=rows.subject,
        rows=counts["rows"],
        rewritten=counts["rewritten"],
        changed=counts["changed"],
        bytes_before=counts["bytes_before"],
        bytes_after=counts["bytes_after"],
        unreadable_rows=counts["unreadable"],
        unreadable=unreadable[:_MOST],
        unreachable=[*report.unreachable],
    )


class _BlobRows(Check):
    """The rows of a table, each page of which is read, or rewritten.

    :ivar unreadable: the rows that cannot be read, and why.
    """

    def __init__(self, blobs: Blobs, *, writes: bool) -> None:
        self.subject = blobs.table.name
        self.kinds = {}
        self.unreadable: dict[int, str] = {}
        self._blobs = blobs
        self._writes = writes
        self._statements = _BlobStatements(blobs.table)

    def keyspace(self, places: Places) -> Keyspace:
        return self._blobs.keyspace(places)

    def read(
        self, session: ShardSession, shard_id: int, after: Any, limit: int
    ) -> CheckedPage:
        """Read a page of rows; write those whose form is not the active one."""
        place = self._blobs.place(session.places, shard_id)
        rows = session.execute(
            self._statements.read.limit(limit),
            {"after": after or 0},
            bind_arguments={"place": place},
        ).all()
        readable = []
        for object_id, value, moment in rows:
            try:
                blob = decode_stored(value, self._blobs.type)
            except BlobError as error:
                if len(self.unreadable) < _MOST:
                    self.unreadable[object_id] = str(error)
            else:
                self.unreadable.pop(object_id, None)
                readable.append((object_id, value, moment, blob))
        # Saved in the position file, unlike the rows.
        counts = Counter(unreadable=len(rows) - len(readable))
        if self._writes:
            self._write(session, place, readable, counts)
        last = rows[-1][0] if rows else after
        return CheckedPage(len(rows), last, counts=counts)

    def _write(
        self,
        session: ShardSession,
        place: Place,
        rows: Sequence[Any],
        counts: Counter[str],
    ) -> None:
        active = active_id(session, place, self._blobs.name)
        dictionary = None if active is None else DICTIONARIES.find(active)
        prefix = b"" if dictionary is None else dictionary.prefix
        # The text of the rows is the same, so that caches stay valid.
        with bulk_on(session, place):
            view = session._view(place)
            for object_id, old, moment, blob in rows:
                if _form(old) == prefix:
                    continue
                blob.dictionary = dictionary
                new = self._packed(blob)
                if new == old:
                    continue
                key = {"the_id": object_id}
                done = view.execute(
                    self._statements.write, {**key, "old": old, "new": new}
                )
                if not done.rowcount:
                    counts["changed"] += 1
                    continue
                if view.dialect.name == "sqlite":
                    # The trigger has set the time of the last change.
                    view.execute(self._statements.restore_time, {**key, "time": moment})
                counts["rewritten"] += 1
                counts["bytes_before"] += _length(old)
                counts["bytes_after"] += _length(new)

    def _packed(self, blob: Blob) -> str | bytes:
        text: Any = blob.source
        packed = pack_blob(blob, text)
        if packed is None:
            return str(text)
        if unpack(packed, self._blobs.type.limit) != text:
            raise DamagedBlobError(
                table=self._blobs.table.name,
                reason="its text differs after compression; nothing was written",
            )
        return packed


class _BlobStatements:
    """The statements that read and write the blobs of a table."""

    def __init__(self, table: Any) -> None:
        (key,) = table.primary_key
        data, ts = table.c.data, table.c.ts
        value = type_coerce(data, NullType())
        raw = NullType()
        self.read = (
            select(key, value, type_coerce(ts, raw))
            .where(key > bindparam("after", type_=key.type))
            .order_by(key)
        )
        here = key == bindparam("the_id", type_=key.type)
        # Otherwise the server would set the time of the last change.
        self.write = (
            update(table)
            .where(here, value == bindparam("old", type_=raw))
            .values({data: type_coerce(bindparam("new", type_=raw), raw), ts: ts})
        )
        self.restore_time = (
            update(table)
            .where(here)
            .values({ts: type_coerce(bindparam("time", type_=raw), raw)})
        )


def _form(value: str | bytes) -> bytes:
    """Return the prefix of a compressed value; empty for JSON."""
    if isinstance(value, str) or value[:1] != MARKER:
        return b""
    return value[:PREFIX_BYTES]


def _length(value: str | bytes) -> int:
    return len(value.encode() if isinstance(value, str) else value)
