"""Marks: the versions of rows that move, and the map of their ids.

Each table that moves gets a table of marks in the same database.  A mark has
the key of a row, the object id that was claimed for it, its version, and the
highest version that the other side is known to have.  A row waits to be copied
while that is lower than the version.

A transaction that writes rows raises their versions with
:meth:`Marks.raise_versions`.  All statements lock the marks in the order of
their keys, by which transactions do not deadlock on marks alone, and insert
missing marks without locking gaps.

Marks are never deleted before the end of the move: a version that starts again
would let a late copy replace a newer one, and an object id could be claimed
for two rows.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any
from typing import TypeAlias

from sqlalchemy import and_
from sqlalchemy import BigInteger
from sqlalchemy import bindparam
from sqlalchemy import Boolean
from sqlalchemy import Column
from sqlalchemy import Computed
from sqlalchemy import Connection
from sqlalchemy import Index
from sqlalchemy import Integer
from sqlalchemy import MetaData
from sqlalchemy import or_
from sqlalchemy import select
from sqlalchemy import Table
from sqlalchemy import UniqueConstraint
from sqlalchemy import update
from sqlalchemy.sql.elements import ColumnElement

from sqla_shard.dialects.sql import COUNTING
from sqla_shard.dialects.sql import InsertCounting
from sqla_shard.dialects.sql import InsertMissing

__all__ = ["Key", "Mark", "Marks"]

#: Values of the columns that identify a row.
Key: TypeAlias = tuple[Any, ...]

#: Maximum number of keys in one statement.
_BATCH = 500

_PREFIX = "sqla_shard_moved_"
_LONGEST = 64


@dataclass(frozen=True, kw_only=True)
class Mark:
    """The mark of one row.

    :ivar object_id: the id that was claimed; None if none was.
    :ivar version: number of transactions that have written the row, and of
        times that it was claimed for a round.
    :ivar copied: highest version that the other side is known to have.
    :ivar round: the round in which the mark was inserted or claimed.
    """

    object_id: int | None
    version: int
    copied: int
    round: int

    @property
    def waits(self) -> bool:
        """Whether the row waits to be copied."""
        return self.copied < self.version


class Marks:
    """The marks of the rows of one table.

    :param table: the table that moves.
    :param key: names of the columns that identify a row; by default those of
        its primary key.
    :raises ValueError: if there are none.
    """

    def __init__(self, table: Table, key: Sequence[str] = ()) -> None:
        names = key or [column.name for column in table.primary_key]
        if not names:
            raise ValueError(f"{table.key} has no primary key; name the key")
        self.source = table
        self.key = tuple(table.c[name] for name in names)
        self.table = _table(table, self.key)
        self._columns = tuple(
            column for column in self.table.c if column.primary_key
        )

    def raise_versions(
        self, connection: Connection, keys: Iterable[Key], *, number: int
    ) -> None:
        """Raise the versions of rows that the transaction writes.

        :param keys: keys of the rows; each is counted once.
        :param number: the round, for rows that have no mark yet.
        """
        rows = [
            {**self._values(key), "version": 1, "copied": 0, "round": number}
            for key in _sorted(keys)
        ]
        if rows:
            connection.execute(InsertCounting(self.table), rows)

    def claim(
        self, connection: Connection, keys: Iterable[Key], *, number: int
    ) -> None:
        """Make rows wait to be copied that have no mark of this round.

        :param number: the round.
        """
        for batch in _batches(_sorted(keys)):
            rows = [
                {
                    **self._values(key),
                    "version": 1,
                    "copied": 0,
                    "round": number,
                }
                for key in batch
            ]
            connection.execute(InsertMissing(self.table), rows)
            connection.execute(
                update(self.table)
                .where(self._among(batch), self.table.c.round < number)
                .values(version=self.table.c.version + 1, round=number)
            )

    def page(
        self,
        connection: Connection,
        *,
        after: Key | None = None,
        limit: int = _BATCH,
    ) -> list[Key]:
        """Return the next keys of the rows of the table itself.

        :param after: the last key of the page before.
        :param limit: maximum number of rows.
        """
        statement = select(*self.key).order_by(*self.key).limit(limit)
        if after is not None:
            statement = statement.where(_after(self.key, after))
        return [tuple(row) for row in connection.execute(statement)]

    def outdated(
        self, connection: Connection, *, number: int, limit: int = _BATCH
    ) -> list[Key]:
        """Return keys of marks of earlier rounds; the row may be deleted.

        :param number: the round.
        :param limit: maximum number of marks.
        """
        statement = (
            select(*self._columns)
            .where(self.table.c.round < number)
            .order_by(*self._columns)
            .limit(limit)
        )
        return [tuple(row) for row in connection.execute(statement)]

    def receive(
        self,
        connection: Connection,
        versions: Mapping[Key, int],
        *,
        number: int,
    ) -> set[Key]:
        """Lock the marks of rows that are copied here, and set their versions.

        The caller writes the rows in the same transaction, and only those that
        are returned: the others are as new as the copy, or newer.

        :param versions: the versions of the copies, by key.
        :param number: the round, for rows that have no mark yet.
        :returns: the keys of the rows to write.
        """
        keys = _sorted(versions)
        if not keys:
            return set()
        missing = {"version": 0, "copied": 0, "round": number}
        connection.execute(
            InsertMissing(self.table),
            [{**self._values(key), **missing} for key in keys],
        )
        marks = self.marks_of(connection, keys, locking=True)
        newer = [key for key in keys if marks[key].version < versions[key]]
        if newer:
            connection.execute(
                update(self.table)
                .where(*self._bound())
                .values(
                    version=bindparam("reached"), copied=bindparam("reached")
                ),
                [
                    {**self._bind(key), "reached": versions[key]}
                    for key in newer
                ],
            )
        return set(newer)

    def claim_ids(
        self, connection: Connection, ids: Mapping[Key, int]
    ) -> dict[Key, int]:
        """Claim object ids for rows that have marks.

        :param ids: the ids to claim, by key.
        :returns: the ids of these rows: an id that was claimed before remains.
        :raises IntegrityError: if an id is claimed for another row.
        """
        if not ids:
            return {}
        statement = (
            update(self.table)
            .where(self.table.c.object_id.is_(None), *self._bound())
            .values(object_id=bindparam("claimed"))
        )
        connection.execute(
            statement,
            [{**self._bind(key), "claimed": ids[key]} for key in _sorted(ids)],
        )
        marks = self.marks_of(connection, ids, locking=True)
        return {
            key: mark.object_id
            for key, mark in marks.items()
            if mark.object_id is not None
        }

    def marks_of(
        self,
        connection: Connection,
        keys: Collection[Key],
        *,
        locking: bool = False,
    ) -> dict[Key, Mark]:
        """Return the marks of rows by key; those without one are missing.

        :param locking: whether to lock them, and read what was committed last
            instead of the snapshot of the transaction.
        """
        found = {}
        for batch in _batches(_sorted(keys)):
            statement = self._select().where(self._among(batch))
            if locking:
                statement = statement.with_for_update()
            found.update(self._read(connection, statement))
        return found

    def keys_of(
        self, connection: Connection, object_ids: Collection[int]
    ) -> dict[int, Key]:
        """Return the keys of rows by their object ids."""
        found = {}
        for batch in _batches(sorted(object_ids)):
            rows = self._read(
                connection,
                self._select().where(self.table.c.object_id.in_(batch)),
            )
            found.update({mark.object_id: key for key, mark in rows.items()})
        return {key: found[key] for key in found if key is not None}

    def waiting(
        self,
        connection: Connection,
        *,
        after: Key | None = None,
        limit: int = _BATCH,
    ) -> dict[Key, Mark]:
        """Return the marks of rows that wait to be copied, by key.

        :param after: the last key of the page before.
        :param limit: maximum number of rows.
        """
        statement = (
            self._select()
            .where(self.table.c.waits.is_(True))
            .order_by(*self._columns)
            .limit(limit)
        )
        if after is not None:
            statement = statement.where(_after(self._columns, after))
        return self._read(connection, statement)

    def set_copied(
        self, connection: Connection, versions: Mapping[Key, int]
    ) -> None:
        """Record versions that the other side has; lower ones are ignored."""
        if not versions:
            return
        connection.execute(
            update(self.table)
            .where(self.table.c.copied < bindparam("reached"), *self._bound())
            .values(copied=bindparam("reached")),
            [
                {**self._bind(key), "reached": versions[key]}
                for key in _sorted(versions)
            ],
        )

    def _select(self) -> Any:
        of = self.table.c
        return select(
            *self._columns, of.object_id, of.version, of.copied, of.round
        )

    def _read(self, connection: Connection, statement: Any) -> dict[Key, Mark]:
        count = len(self._columns)
        return {
            tuple(row[:count]): Mark(
                object_id=row[count],
                version=row[count + 1],
                copied=row[count + 2],
                round=row[count + 3],
            )
            for row in connection.execute(statement)
        }

    def _values(self, key: Key) -> dict[str, Any]:
        names = [column.name for column in self._columns]
        return dict(zip(names, key, strict=True))

    def _bound(self) -> list[ColumnElement[bool]]:
        """Return the conditions of a key whose values :meth:`_bind` gives."""
        # The names of columns are those of the values of an UPDATE.
        return [
            column == bindparam(f"of_{column.name}")
            for column in self._columns
        ]

    def _bind(self, key: Key) -> dict[str, Any]:
        return {f"of_{name}": v for name, v in self._values(key).items()}

    def _among(self, keys: Sequence[Key]) -> ColumnElement[bool]:
        if len(self._columns) == 1:
            return self._columns[0].in_([value for (value,) in keys])
        # Row values in IN do not use the primary key on older servers.
        return or_(
            *(
                and_(
                    *(
                        column == value
                        for column, value in zip(
                            self._columns, key, strict=True
                        )
                    )
                )
                for key in keys
            )
        )


def _table(source: Table, key: Sequence[Column[Any]]) -> Table:
    """Return the table of marks, with the same collation and engine."""
    name = f"{_PREFIX}{source.name}"
    if len(name) > _LONGEST:
        raise ValueError(
            f"the name of the table of marks, {name!r}, has more than "
            f"{_LONGEST} characters: rename {source.key}"
        )
    keys = [
        Column(
            f"key_{index}", column.type, primary_key=True, autoincrement=False
        )
        for index, column in enumerate(key, start=1)
    ]
    return Table(
        name,
        MetaData(),
        *keys,
        Column("object_id", BigInteger),
        Column("version", BigInteger, nullable=False),
        Column("copied", BigInteger, nullable=False),
        Column("round", Integer, nullable=False),
        Column(
            "waits",
            Boolean(create_constraint=False),
            Computed("version > copied", persisted=True),
        ),
        UniqueConstraint("object_id", name="sqla_shard_object_id"),
        Index("sqla_shard_waits", "waits"),
        schema=source.schema,
        info={COUNTING: (tuple(one.name for one in keys), "version")},
        **{
            name: value
            for name, value in source.kwargs.items()
            if name.startswith(("mysql_", "mariadb_"))
        },
    )


def _after(columns: Sequence[Column[Any]], key: Key) -> ColumnElement[bool]:
    """Return the condition of keys that follow a key, in their order."""
    greater: ColumnElement[bool] = columns[0] > key[0]
    if len(columns) == 1:
        return greater
    rest = _after(columns[1:], key[1:])
    return or_(greater, and_(columns[0] == key[0], rest))


def _sorted(keys: Iterable[Key]) -> list[Key]:
    return sorted(set(keys))


def _batches(values: Sequence[Any]) -> Iterator[list[Any]]:
    rest = iter(values)
    while batch := list(islice(rest, _BATCH)):
        yield batch
