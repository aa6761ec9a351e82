"""Copies of rows, by versions; see :doc:`/explanation/moving`.

A copy has three parts, each of them one transaction: :func:`read_images` on
the source, :func:`apply_images` on the target, :func:`record_images` on the
source again.  A process that dies between them leaves rows that wait, and any
process can copy them again.  The same parts are the copy after a write, the
backfill, the repair and the last copies before the sides change.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeAlias

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import IntegrityError

from sqla_shard.dialects import backend_for
from sqla_shard.migrate.marks import Key, KeyPart, Marks, RowMark
from sqla_shard.migrate.stages import DatabaseFence, Progress

#: The values of a row by name of column.
Row: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Image:
    """A row at one version.

    :ivar version: the version.
    :ivar row: the values; None if the row does not exist.
    :ivar object_id: the object id in its mark, if any.
    :ivar copied: highest version that the other side is known to have.
    """

    version: int
    row: Row | None
    object_id: int | None = None
    copied: int = 0

    @property
    def waits(self) -> bool:
        """Whether it waits to be copied."""
        return self.copied < self.version


class MarkedRows(Protocol):
    """The rows of one table in one database, and their marks."""

    @property
    def marks(self) -> Marks:
        """The marks, in the same database."""
        ...

    def begin(self) -> AbstractContextManager[Connection]:
        """Begin a transaction whose reads have one snapshot.

        It is committed at the end; see :func:`snapshot`.
        """
        ...

    def begin_marking(self) -> AbstractContextManager[Connection]:
        """Begin a transaction that only writes marks, and reads nothing."""
        ...

    def read(self, connection: Connection, keys: Collection[Key]) -> dict[Key, Row]:
        """Return rows by key; those that do not exist are missing."""
        ...

    def look(self, keys: Collection[Key]) -> dict[Key, tuple[RowMark, Row | None]]:
        """Return marks and rows by key, both of one snapshot.

        Those without a mark are missing.
        """
        ...

    def write(self, connection: Connection, rows: Mapping[Key, Row | None]) -> None:
        """Insert or update rows; delete those that are None."""
        ...

    def write_first(self, connection: Connection, rows: Mapping[Key, Row]) -> None:
        """Write rows that had no mark; faster if none of them exists.

        :raises IntegrityError: if one exists, and was not replaced.
        """
        ...


@contextmanager
def snapshot(engine: Engine) -> Iterator[Connection]:
    """Begin a transaction whose reads have one snapshot, and commit it.

    With READ COMMITTED a row could be newer than the version that was read
    before it; its next version would then be taken for a change.
    """
    with engine.connect() as connection, locking_transaction(connection):
        yield connection


@contextmanager
def locking_transaction(connection: Connection) -> Iterator[None]:
    """Begin a transaction as :func:`snapshot` does, on a connection."""
    dialect = connection.dialect
    backend = backend_for(dialect.name, driver=dialect.driver)
    with connection.begin():
        backend.begin_locking(connection)
        backend.lock(connection)
        yield


@contextmanager
def one_read(engine: Engine) -> Iterator[Connection]:
    """Open a connection for a SELECT, which has a snapshot of its own.

    Needs fewer round trips than :func:`snapshot`; two statements see different
    states.  What is not committed is not seen, with any configured isolation
    level.
    """
    with engine.connect() as connection:
        dialect = connection.dialect
        backend = backend_for(dialect.name, driver=dialect.driver)
        backend.begin_skipping(connection)
        yield connection


def read_images(source: MarkedRows, keys: Collection[Key]) -> dict[Key, Image]:
    """Return rows with their versions, from one snapshot.

    :param keys: keys of rows; those without a mark are left out.
    """
    return {
        key: Image(
            version=mark.version, row=row, object_id=mark.object_id, copied=mark.copied
        )
        for key, (mark, row) in source.look(keys).items()
    }


def look_twice(
    part: MarkedRows, keys: Collection[Key]
) -> dict[Key, tuple[RowMark, Row | None]]:
    """Return what :meth:`MarkedRows.look` does, by a statement for each."""
    with part.begin() as connection:
        marks = part.marks.marks_of(connection, keys)
        rows = part.read(connection, marks.keys())
    return {key: (mark, rows.get(key)) for key, mark in marks.items()}


def apply_images(
    target: MarkedRows, images: Mapping[Key, Image], *, number: int
) -> int:
    """Write rows whose version is higher than that of the target.

    :param number: the round.
    :returns: the number of rows that were written.
    """
    versions = {key: image.version for key, image in images.items()}
    there = {key for key, image in images.items() if image.copied}
    if not there:
        try:
            with target.begin() as connection:
                target.marks.insert(connection, versions, number=number)
                first: dict[Key, Row] = {}
                gone: dict[Key, None] = {}
                for key, image in images.items():
                    if image.row is None:
                        gone[key] = None
                    else:
                        first[key] = image.row
                target.write_first(connection, first)
                if gone:
                    target.write(connection, gone)
        except IntegrityError:
            # The target has one of them: an earlier copy was not recorded, or
            # another program has inserted the row.
            pass
        else:
            return len(images)
    with target.begin() as connection:
        newer = target.marks.receive(connection, versions, number=number, there=there)
        target.write(connection, {key: images[key].row for key in newer})
    return len(newer)


def record_images(source: MarkedRows, images: Mapping[Key, Image]) -> None:
    """Record that the target has these versions, or higher ones."""
    with source.begin_marking() as connection:
        source.marks.set_copied(
            connection, {key: image.version for key, image in images.items()}
        )


@dataclass(frozen=True, kw_only=True)
class Claimed:
    """Progress of the claims of a backfill.

    :ivar key: the last key of the page before; None at the start.
    :ivar is_past_rows: whether that page had rows that were deleted.
    """

    key: Key | None = None
    is_past_rows: bool = False


def claim_page(
    source: MarkedRows,
    fence: DatabaseFence,
    progress: Progress,
    *,
    after: Claimed = Claimed(),
    limit: int = 500,
    part: KeyPart | None = None,
    ids: Callable[[Collection[Key]], Mapping[Key, int]] | None = None,
) -> tuple[list[Key], Claimed]:
    """Make the next rows of a backfill wait to be copied.

    It ends with rows that were deleted since an earlier round: the other side
    may still have them.

    :param fence: the fence of the database.
    :param progress: the stage in which the backfill was started.
    :param after: what was returned for the page before.
    :param limit: maximum number of rows.
    :param part: the part of the rows; None for all.
    :param ids: returns object ids for rows that have none.
    :returns: keys of rows, no keys at the end, and ``after`` for the next
        page.  Rows that have a mark of this round are included, and remain as
        they are.
    :raises StageChangedError: if the stage has changed since.
    """
    keys: list[Key] = []
    with source.begin() as connection:
        if not after.is_past_rows:
            keys = source.marks.page(
                connection, after=after.key, limit=limit, part=part
            )
            known = source.marks.marks_of(connection, keys)
        if not keys:
            # Marks of this round are before the last key: each page would
            # read them again.
            keys = source.marks.outdated(
                connection,
                number=progress.round,
                after=after.key if after.is_past_rows else None,
                limit=limit,
                part=part,
            )
            known = source.marks.marks_of(connection, keys)
            after = Claimed(is_past_rows=True)
    if keys:
        after = replace(after, key=keys[-1])
    wanted = [
        key for key in keys if key not in known or known[key].round < progress.round
    ]
    if keys and not wanted:
        # An earlier run has claimed them.
        return keys, after
    proposed = ids([k for k in wanted if k not in known]) if ids else {}
    with source.begin() as connection:
        fence.enter_as(connection, progress)
        source.marks.claim(connection, wanted, number=progress.round, ids=proposed)
    return keys, after
