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

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy import bindparam, select, type_coerce, update
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.types import NullType

from sqla_shard.cluster.cluster import Cluster
from sqla_shard.engine.rendering import Place
from sqla_shard.engine.unreachable import (
    reason,
    unreachable_lines,
    unreachable_values,
    UnreachableServer,
)
from sqla_shard.exc import (
    BlobError,
    DamagedBlobError,
    ServerUnreachableError,
    VerifyPositionError,
)
from sqla_shard.session import ShardSession
from sqla_shard.session.connections import bulk_on
from sqla_shard.types import Blob
from sqla_shard.types.blob import decode_stored, pack_blob
from sqla_shard.types.compression import DICTIONARIES, MARKER, PREFIX_BYTES, unpack
from sqla_shard.upkeep.blobs.dictionaries import active_id, Blobs
from sqla_shard.util.files import replace_file
from sqla_shard.util.json_values import parsed_json
from sqla_shard.util.pace import Pace

#: Seconds to retry the first failed transaction: a run waits for a failover
#: once, not for each shard of a server.
PATIENCE = 30.0

_FORMAT = 1

#: Mode of the position file.
_MODE = 0o644

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


@dataclass(frozen=True, kw_only=True)
class RewriteProgress:
    """The progress of a run.

    :ivar shard_id: the shard that was read last.
    :ivar shards: number of shards.
    :ivar rows: number of rows that were read so far.
    :ivar rewritten: number of rows that were written so far.
    """

    shard_id: int
    shards: int
    rows: int
    rewritten: int


@dataclass(kw_only=True)
class RewriteReport:
    """The result of :func:`rewrite` or :func:`check`.

    :ivar table: name of the table.
    :ivar rows: number of rows that were read.
    :ivar rewritten: number of rows that were written.
    :ivar changed: number of rows that the application changed or deleted
        meanwhile, and that were not written.
    :ivar bytes_before: size of the blobs that were rewritten, before.
    :ivar bytes_after: their size now.
    :ivar unreadable: rows that cannot be read, at most 1,000.
    :ivar unreachable: shards that could not be read, by server.
    """

    table: str
    rows: int = 0
    rewritten: int = 0
    changed: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    unreadable: list[UnreadableRow] = field(default_factory=list)
    unreachable: list[UnreachableServer] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Return the attributes as JSON values."""
        return {
            **vars(self),
            "unreadable": [
                {**vars(one), "object_id": str(one.object_id)}
                for one in self.unreadable
            ],
            "unreachable": unreachable_values(self.unreachable),
        }

    def __str__(self) -> str:
        first = (
            f"{self.table}: {self.rows:,} rows read, {self.rewritten:,} "
            f"rewritten, {self.changed:,} changed meanwhile, "
            f"{len(self.unreadable):,} unreadable"
        )
        if self.rewritten:
            first += f"; {self.bytes_before:,} bytes before, {self.bytes_after:,} after"
        rows = [f"{one.object_id}: {one.reason}" for one in self.unreadable]
        return "\n".join([first, *rows, *unreachable_lines(self.unreachable)])


def rewrite(
    cluster: Cluster,
    cls: Any,
    *,
    rate: float | None = None,
    batch: int = 200,
    position: str | os.PathLike[str] | None = None,
    on_progress: Callable[[RewriteProgress], object] | None = None,
) -> RewriteReport:
    """Rewrite rows with the active dictionary of their shard, or as JSON.

    Deactivated shards are rewritten as JSON.

    :param cls: an object class with ``compression="zstd"``.
    :param rate: maximum number of rows to read per second; None for no limit.
    :param batch: maximum number of rows of a transaction.
    :param position: file with the position of an interrupted run.
    :param on_progress: called after each batch.
    :raises ClassDefinitionError: if blobs of the class are not compressed.
    :raises VerifyPositionError: if the file belongs to another run.
    :raises ValueError: if ``rate`` or ``batch`` is not valid.
    """
    run = _Run(cluster, Blobs(cls), rate, batch, position, on_progress)
    return run.run(writes=True)


def check(
    cluster: Cluster,
    cls: Any,
    *,
    rate: float | None = None,
    batch: int = 200,
    on_progress: Callable[[RewriteProgress], object] | None = None,
) -> RewriteReport:
    """Read the blobs of all rows, and report those that cannot be read.

    The parameters are those of :func:`rewrite`; nothing is written.
    """
    run = _Run(cluster, Blobs(cls), rate, batch, None, on_progress)
    return run.run(writes=False)


class _Position:
    """The file with the next shard, and the last id that was read there."""

    def __init__(
        self, path: str | os.PathLike[str] | None, table: str, shards: int
    ) -> None:
        self._path = None if path is None else Path(path)
        self._run = {"format": _FORMAT, "table": table, "shards": shards}

    def load(self) -> tuple[int, int]:
        """Return the shard and the id, 0 and 0 without a file.

        :raises VerifyPositionError: if it is the file of another run.
        """
        if self._path is None:
            return 0, 0
        try:
            data = parsed_json(self._path.read_bytes())
            if data["run"] != self._run:
                raise ValueError(f"it is of the run {data['run']}")
            return int(data["shard"]), int(data["after"])
        except FileNotFoundError:
            return 0, 0
        except (ValueError, TypeError, LookupError) as error:
            raise VerifyPositionError(
                path=str(self._path), reason=f"it is not the file of this run: {error}"
            ) from error

    def save(self, shard: int, after: int) -> None:
        """Write the position."""
        if self._path is not None:
            data = {"run": self._run, "shard": shard, "after": after}
            self._path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(self._path, json.dumps(data).encode(), _MODE)

    def remove(self) -> None:
        """Remove the file."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)


class _Run:
    """One run over the rows of a table."""

    def __init__(
        self,
        cluster: Cluster,
        blobs: Blobs,
        rate: float | None,
        batch: int,
        position: str | os.PathLike[str] | None,
        on_progress: Callable[[RewriteProgress], object] | None,
    ) -> None:
        pace = Pace(rate=rate, batch=batch)
        self._cluster = cluster
        self._blobs = blobs
        self._batch = pace.limit
        self._on_progress = on_progress
        self._places = blobs.places(cluster)
        self._file = _Position(position, blobs.table.name, len(self._places))
        self._statements = _Statements(blobs.table)
        self._report = RewriteReport(table=blobs.table.name)
        self._throttle = pace.throttle()
        self._down: dict[str, SQLAlchemyError] = {}
        self._waits = True

    def run(self, *, writes: bool) -> RewriteReport:
        """Read all rows from the position on; write those of another form."""
        first, after = self._file.load()
        for shard_id in range(first, len(self._places)):
            # The shard may have moved since the run began.
            place = self._blobs.places(self._cluster)[shard_id]
            try:
                if place.server in self._down:
                    self._skip(place, self._down[place.server])
                    continue
                self._shard(place, after, writes=writes)
            except SQLAlchemyError as error:
                if reason(error) is None:
                    raise
                if isinstance(reason(error), ServerUnreachableError):
                    self._down[place.server] = error
                self._waits = False
                self._skip(place, error)
            after = 0
        if not self._report.unreachable:
            self._file.remove()
        return self._report

    def _skip(self, place: Place, error: Exception) -> None:
        self._report.unreachable.append(UnreachableServer.of([place], error))

    def _shard(self, place: Place, after: int, *, writes: bool) -> None:
        count = self._batch
        while count == self._batch:
            page: _Page = self._cluster.run(
                _rewrite_page if writes else _check_page,
                self._blobs,
                self._statements,
                place.shard_id,
                after,
                self._batch,
                timeout=PATIENCE,
                attempts=None if self._waits else 1,
            )
            count, after = page.rows, page.last
            self._add(page)
            self._file.save(place.shard_id, after)
            self._throttle.take(count)
            if self._on_progress is not None:
                self._on_progress(
                    RewriteProgress(
                        shard_id=place.shard_id,
                        shards=len(self._places),
                        rows=self._report.rows,
                        rewritten=self._report.rewritten,
                    )
                )

    def _add(self, page: _Page) -> None:
        report = self._report
        report.rows += page.rows
        report.rewritten += page.rewritten
        report.changed += page.changed
        report.bytes_before += page.bytes_before
        report.bytes_after += page.bytes_after
        left = _MOST - len(report.unreadable)
        report.unreadable += page.unreadable[:left]


@dataclass(kw_only=True)
class _Page:
    """The result of one transaction."""

    last: int
    rows: int = 0
    rewritten: int = 0
    changed: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    unreadable: list[UnreadableRow] = field(default_factory=list)


class _Statements:
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


class _Work:
    """One page of rows of a shard, in a transaction."""

    def __init__(
        self, session: ShardSession, blobs: Blobs, shard_id: int, after: int
    ) -> None:
        self._session = session
        self._blobs = blobs
        self._place = blobs.place(session.places, shard_id)
        self.page = _Page(last=after)

    def read(self, statements: _Statements, batch: int) -> list[Any]:
        """Return the rows that can be read, each with its blob."""
        rows = self._session.execute(
            statements.read.limit(batch),
            {"after": self.page.last},
            bind_arguments={"place": self._place},
        ).all()
        self.page.rows = len(rows)
        readable = []
        for object_id, value, moment in rows:
            self.page.last = object_id
            try:
                blob = decode_stored(value, self._blobs.type)
            except BlobError as error:
                self.page.unreadable.append(
                    UnreadableRow(object_id=object_id, reason=str(error))
                )
            else:
                readable.append((object_id, value, moment, blob))
        return readable

    def write(self, statements: _Statements, rows: Sequence[Any]) -> None:
        """Write the rows whose form is not that of the active dictionary."""
        found = active_id(self._session, self._place, self._blobs.name)
        dictionary = None if found is None else DICTIONARIES.find(found)
        prefix = b"" if dictionary is None else dictionary.prefix
        # The text of the rows is the same, so that caches stay valid.
        with bulk_on(self._session, self._place):
            for object_id, value, moment, blob in rows:
                if _form(value) != prefix:
                    blob.dictionary = dictionary
                    new = self._packed(blob)
                    if new != value:
                        self._replace(statements, object_id, value, new, moment)

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

    def _replace(
        self,
        statements: _Statements,
        object_id: int,
        old: str | bytes,
        new: str | bytes,
        moment: Any,
    ) -> None:
        view = self._session._view(self._place)
        key = {"the_id": object_id}
        done = view.execute(statements.write, {**key, "old": old, "new": new})
        if not done.rowcount:
            self.page.changed += 1
            return
        if view.dialect.name == "sqlite":
            # The trigger has set the time of the last change.
            view.execute(statements.restore_time, {**key, "time": moment})
        self.page.rewritten += 1
        self.page.bytes_before += _length(old)
        self.page.bytes_after += _length(new)


def _length(value: str | bytes) -> int:
    return len(value.encode() if isinstance(value, str) else value)


def _check_page(
    session: ShardSession,
    blobs: Blobs,
    statements: _Statements,
    shard_id: int,
    after: int,
    batch: int,
) -> _Page:
    """Read a page of rows."""
    work = _Work(session, blobs, shard_id, after)
    work.read(statements, batch)
    return work.page


def _rewrite_page(
    session: ShardSession,
    blobs: Blobs,
    statements: _Statements,
    shard_id: int,
    after: int,
    batch: int,
) -> _Page:
    """Read a page of rows, and rewrite those of another form."""
    work = _Work(session, blobs, shard_id, after)
    work.write(statements, work.read(statements, batch))
    return work.page
