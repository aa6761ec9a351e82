"""Copies of rows, by versions; see :doc:`/explanation/moving`.

A copy has three parts, each of them one transaction: :func:`read_images` on
the source, :func:`apply_images` on the target, :func:`record_images` on the
source again.  A process that dies between them leaves rows that wait, and any
process can copy them again.  The same parts are the copy after a write, the
backfill, the repair and the last copies before the sides change.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterator
from collections.abc import Mapping
from contextlib import AbstractContextManager
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from typing import Protocol
from typing import TypeAlias

from sqlalchemy import Connection
from sqlalchemy import Engine

from sqla_shard.dialects import backend_for
from sqla_shard.migrate.fences import Fence
from sqla_shard.migrate.mark_tables import Key
from sqla_shard.migrate.marks import Marks
from sqla_shard.migrate.stages import Progress

__all__ = [
    "Image",
    "Part",
    "Row",
    "apply_images",
    "begun",
    "claim_page",
    "read_images",
    "record_images",
    "snapshot",
]

#: The values of a row by name of column.
Row: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Image:
    """A row at one version.

    :ivar version: the version.
    :ivar row: the values; None if the row does not exist.
    :ivar object_id: the object id in its mark, if any.
    :ivar waits: whether it waits to be copied.
    """

    version: int
    row: Row | None
    object_id: int | None = None
    waits: bool = True


class Part(Protocol):
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

    def read(
        self, connection: Connection, keys: Collection[Key]
    ) -> dict[Key, Row]:
        """Return rows by key; those that do not exist are missing."""
        ...

    def write(
        self, connection: Connection, rows: Mapping[Key, Row | None]
    ) -> None:
        """Insert or update rows; delete those that are None."""
        ...


@contextmanager
def snapshot(engine: Engine) -> Iterator[Connection]:
    """Begin a transaction whose reads have one snapshot, and commit it.

    With READ COMMITTED a row could be newer than the version that was read
    before it; its next version would then be taken for a change.
    """
    with engine.connect() as connection, begun(connection):
        yield connection


@contextmanager
def begun(connection: Connection) -> Iterator[None]:
    """Begin a transaction as :func:`snapshot` does, on a connection."""
    dialect = connection.dialect
    backend = backend_for(dialect.name, driver=dialect.driver)
    with connection.begin():
        backend.begin_locking(connection)
        backend.lock(connection)
        yield


def read_images(source: Part, keys: Collection[Key]) -> dict[Key, Image]:
    """Return rows with their versions, from one snapshot.

    :param keys: keys of rows; those without a mark are left out.
    """
    with source.begin() as connection:
        marks = source.marks.marks_of(connection, keys)
        rows = source.read(connection, marks.keys())
    return {
        key: Image(
            version=mark.version,
            row=rows.get(key),
            object_id=mark.object_id,
            waits=mark.waits,
        )
        for key, mark in marks.items()
    }


def apply_images(
    target: Part, images: Mapping[Key, Image], *, number: int
) -> int:
    """Write rows whose version is higher than that of the target.

    :param number: the round.
    :returns: the number of rows that were written.
    """
    with target.begin() as connection:
        newer = target.marks.receive(
            connection,
            {key: image.version for key, image in images.items()},
            number=number,
        )
        target.write(connection, {key: images[key].row for key in newer})
    return len(newer)


def record_images(source: Part, images: Mapping[Key, Image]) -> None:
    """Record that the target has these versions, or higher ones."""
    with source.begin() as connection:
        source.marks.set_copied(
            connection, {key: image.version for key, image in images.items()}
        )


def claim_page(
    source: Part,
    fence: Fence,
    progress: Progress,
    *,
    after: Key | None = None,
    limit: int = 500,
    ids: Callable[[Collection[Key]], Mapping[Key, int]] | None = None,
) -> tuple[list[Key], Key | None]:
    """Make the next rows of a backfill wait to be copied.

    It ends with rows that were deleted since an earlier round: the other side
    may still have them.

    :param fence: the fence of the database.
    :param progress: the stage in which the backfill was started.
    :param after: the last key of the page before.
    :param limit: maximum number of rows.
    :param ids: returns object ids for rows that have none.
    :returns: keys of rows, no keys at the end, and ``after`` for the next
        page.  Rows that have a mark of this round are included, and remain as
        they are.
    :raises StageChangedError: if the stage has changed since.
    """
    with source.begin() as connection:
        keys = source.marks.page(connection, after=after, limit=limit)
        known = source.marks.marks_of(connection, keys)
        if keys:
            after = keys[-1]
        else:
            keys = source.marks.outdated(
                connection, number=progress.round, limit=limit
            )
    proposed = ids([k for k in keys if k not in known]) if ids else {}
    with source.begin() as connection:
        fence.enter_as(connection, progress)
        source.marks.claim(
            connection, keys, number=progress.round, ids=proposed
        )
    return keys, after
