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

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple, TypeAlias

from sqlalchemy import (
    and_,
    BigInteger,
    bindparam,
    Boolean,
    Column,
    Computed,
    Connection,
    false,
    func,
    Index,
    insert,
    Integer,
    MetaData,
    not_,
    or_,
    select,
    Table,
    true,
    UniqueConstraint,
    update,
)
from sqlalchemy.sql.elements import ColumnElement
from sqlalchemy.types import TypeEngine

from sqla_shard.dialects.sql import COUNTING, InsertCounting, InsertMissing

#: Values of the columns that identify a row.
Key: TypeAlias = tuple[Any, ...]


@dataclass(frozen=True)
class KeyPart:
    """One of several equal parts of the rows, for a process of its own.

    :ivar number: the part, from 1 to ``count``.
    :ivar count: the number of parts.
    :raises ValueError: if there is no such part.
    """

    number: int
    count: int

    def __post_init__(self) -> None:
        if not 1 <= self.number <= self.count:
            raise ValueError(f"part {self.number} of {self.count} does not exist")

    def has(self, columns: Sequence[Column[Any]]) -> ColumnElement[bool]:
        """Return the condition of its rows.

        :param columns: the columns of the key, the first of integers.
        """
        # Objects that were deleted before they were copied have negative keys.
        return func.abs(columns[0]) % self.count == self.number - 1


# -- The tables of marks, and conditions of the keys of rows.

_PREFIX = "sqla_shard_moved_"

_LONGEST = 64


def table_of_marks(source: Table, types: Sequence[TypeEngine[Any]]) -> Table:
    """Return the table of marks, with the same collation and engine.

    :param types: the types of the values that identify a row; if empty, those
        of its primary key.
    :raises ValueError: if its name is too long.
    """
    types = types or [_wide(one) for one in source.primary_key]
    name = f"{_PREFIX}{source.name}"
    if len(name) > _LONGEST:
        raise ValueError(
            f"the name of the table of marks, {name!r}, has more than "
            f"{_LONGEST} characters: rename {source.key}"
        )
    keys = [
        Column(f"key_{index}", type_, primary_key=True, autoincrement=False)
        for index, type_ in enumerate(types, start=1)
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
        # On SQLite names of indexes are those of the whole file.
        UniqueConstraint("object_id", name=f"{name}_id"[-_LONGEST:]),
        Index(f"{name}_waits"[-_LONGEST:], "waits", "object_id"),
        schema=source.schema,
        info={COUNTING: (tuple(one.name for one in keys), "version")},
        **{
            name: value
            for name, value in source.kwargs.items()
            if name.startswith(("mysql_", "mariadb_"))
        },
    )


def waits_in(marks: Table) -> ColumnElement[bool]:
    """Return the condition of the marks of rows that wait to be copied."""
    # With IS TRUE servers use no index: they would read all marks for each
    # page, and sort them.
    return marks.c.waits == true()


def _wide(column: Column[Any]) -> TypeEngine[Any]:
    """Return the type of a key; integers have room for those of no row."""
    if isinstance(column.type, Integer):
        return BigInteger().with_variant(Integer(), "sqlite")
    return column.type


def among(columns: Sequence[Column[Any]], keys: Sequence[Key]) -> ColumnElement[bool]:
    """Return the condition of rows with one of some keys."""
    first, *others = columns
    if not others:
        return first.in_([value for (value,) in keys])
    # Row values in IN do not use the primary key on older servers.
    rests: dict[Any, list[Key]] = {}
    for value, *rest in keys:
        rests.setdefault(value, []).append(tuple(rest))
    return or_(
        false(),
        *(and_(first == value, among(others, some)) for value, some in rests.items()),
    )


def after_key(columns: Sequence[Column[Any]], key: Key) -> ColumnElement[bool]:
    """Return the condition of keys that follow a key, in their order."""
    greater: ColumnElement[bool] = columns[0] > key[0]
    if len(columns) == 1:
        return greater
    rest = after_key(columns[1:], key[1:])
    return or_(greater, and_(columns[0] == key[0], rest))


#: Maximum number of keys in one statement.
_BATCH = 500


class RowMark(NamedTuple):
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
    :param types: the types of the values that identify a row; by default
        those of its primary key.
    :raises ValueError: if it has no primary key, or too long a name.
    """

    def __init__(self, table: Table, types: Sequence[TypeEngine[Any]] = ()) -> None:
        self.key: tuple[Column[Any], ...] = tuple(table.primary_key)
        if not self.key:
            raise ValueError(f"{table.key} has no primary key")
        self.table: Table = table_of_marks(table, types)
        self._columns = tuple(column for column in self.table.c if column.primary_key)

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
        self,
        connection: Connection,
        keys: Iterable[Key],
        *,
        number: int,
        ids: Mapping[Key, int] | None = None,
    ) -> None:
        """Make rows wait to be copied that have no mark of this round.

        :param number: the round.
        :param ids: object ids for rows that have no mark yet.
        """
        for batch in _batches(_sorted(keys)):
            rows = [
                {
                    **self._values(key),
                    "object_id": (ids or {}).get(key),
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
        part: KeyPart | None = None,
    ) -> list[Key]:
        """Return the next keys of the rows of the table itself.

        :param after: the last key of the page before.
        :param limit: maximum number of rows.
        :param part: the part of the rows; None for all.
        """
        return _keys(connection, self.key, after=after, limit=limit, part=part)

    def page_end(
        self, connection: Connection, *, after: Key | None, limit: int
    ) -> Key | None:
        """Return the last key of a page of rows of the table itself.

        :param after: the last key of the page before.
        :param limit: number of rows of the page.
        :returns: None if there are fewer.
        """
        statement = select(*self.key).order_by(*self.key).offset(limit - 1).limit(1)
        if after is not None:
            statement = statement.where(after_key(self.key, after))
        row = connection.execute(statement).first()
        return None if row is None else tuple(row)

    def unmarked(
        self,
        connection: Connection,
        *,
        after: Key | None,
        until: Key | None,
        needs_id: bool,
    ) -> dict[Key, bool]:
        """Return the rows of the table itself that have no mark.

        :param after: the last key of the page before; None for the first one.
        :param until: the last key of the page; None for all that follow.
        :param needs_id: whether a mark without an object id is none.
        :returns: whether the row waits to be copied, by key.
        """
        mark = self._columns[0]
        missing: ColumnElement[bool] = mark.is_(None)
        if needs_id:
            missing = or_(missing, self.table.c.object_id.is_(None))
        statement = (
            select(*self.key, self.table.c.waits)
            .select_from(self.key[0].table.outerjoin(self.table, self._own()))
            .where(missing)
            .order_by(*self.key)
        )
        if after is not None:
            statement = statement.where(after_key(self.key, after))
        if until is not None:
            statement = statement.where(not_(after_key(self.key, until)))
        return {tuple(row[:-1]): bool(row[-1]) for row in connection.execute(statement)}

    def outdated(
        self,
        connection: Connection,
        *,
        number: int,
        after: Key | None = None,
        limit: int = _BATCH,
        part: KeyPart | None = None,
    ) -> list[Key]:
        """Return keys of marks of earlier rounds; the row may be deleted.

        :param number: the round.
        :param after: the last key of the page before.
        :param limit: maximum number of marks.
        :param part: the part of the rows; None for all.
        """
        return _keys(
            connection,
            self._columns,
            self.table.c.round < number,
            after=after,
            limit=limit,
            part=part,
        )

    def receive(
        self,
        connection: Connection,
        versions: Mapping[Key, int],
        *,
        number: int,
        there: Collection[Key] = (),
    ) -> set[Key]:
        """Lock the marks of rows that are copied here, and set their versions.

        The caller writes the rows in the same transaction, and only those that
        are returned: the others are as new as the copy, or newer.

        :param versions: the versions of the copies, by key.
        :param number: the round, for rows that have no mark yet.
        :param there: keys of rows that probably have one.
        :returns: the keys of the rows to write.
        """
        keys = _sorted(versions)
        self._insert_missing(
            connection, [key for key in keys if key not in there], number
        )
        marks = self.marks_of(connection, keys, locking=True)
        if missing := [key for key in keys if key not in marks]:
            self._insert_missing(connection, missing, number)
            marks.update(self.marks_of(connection, missing, locking=True))
        newer = [key for key in keys if marks[key].version < versions[key]]
        for version, batch in _by_version(versions, newer):
            connection.execute(
                update(self.table)
                .where(self._among(batch))
                .values(version=version, copied=version)
            )
        return set(newer)

    def insert(
        self, connection: Connection, versions: Mapping[Key, int], *, number: int
    ) -> None:
        """Insert the marks of rows that are copied here for the first time.

        :param versions: the versions of the copies, by key.
        :param number: the round.
        :raises IntegrityError: if one of them has a mark.
        """
        rows = [
            {
                **self._values(key),
                "version": versions[key],
                "copied": versions[key],
                "round": number,
            }
            for key in _sorted(versions)
        ]
        if rows:
            connection.execute(insert(self.table), rows)

    def _insert_missing(
        self, connection: Connection, keys: Sequence[Key], number: int
    ) -> None:
        """Insert marks of no version for rows that have none."""
        missing = {"version": 0, "copied": 0, "round": number}
        if keys:
            connection.execute(
                InsertMissing(self.table),
                [{**self._values(key), **missing} for key in keys],
            )

    def claim_ids(
        self, connection: Connection, ids: Mapping[Key, int], *, number: int = 0
    ) -> dict[Key, int]:
        """Claim object ids, also for rows that have no mark yet.

        :param ids: the ids to claim, by key.
        :param number: the round of marks that are inserted; 0 if the row is
            to be claimed in any round.
        :returns: the ids of these rows: an id that was claimed before remains.
        :raises IntegrityError: if an id is claimed for another row.
        """
        if not ids:
            return {}
        self._insert_missing(connection, _sorted(ids), number)
        self.set_ids(connection, ids)
        marks = self.marks_of(connection, ids, locking=True)
        return {
            key: mark.object_id
            for key, mark in marks.items()
            if mark.object_id is not None
        }

    def set_ids(self, connection: Connection, ids: Mapping[Key, int]) -> None:
        """Set the object ids of rows that have a mark, and no id yet.

        :param ids: the ids, by key.
        :raises IntegrityError: if an id is claimed for another row.
        """
        statement = (
            update(self.table)
            .where(self.table.c.object_id.is_(None), *self._bound())
            .values(object_id=bindparam("claimed"))
        )
        rows = [{**self._bind(key), "claimed": ids[key]} for key in _sorted(ids)]
        if rows:
            connection.execute(statement, rows)

    def marks_of(
        self, connection: Connection, keys: Collection[Key], *, locking: bool = False
    ) -> dict[Key, RowMark]:
        """Return the marks of rows by key; those without one are missing.

        :param locking: whether to lock them, and read what was committed last
            instead of the snapshot of the transaction.
        """
        count = len(self._columns)
        marks: dict[Key, RowMark] = {}
        for batch in _batches(_sorted(keys)):
            statement = self._select().where(self._among(batch))
            if locking:
                statement = statement.with_for_update()
            for row in connection.execute(statement):
                marks[tuple(row[:count])] = _mark(row, count)
        return marks

    def versions_of(
        self, connection: Connection, keys: Collection[Key]
    ) -> dict[Key, int]:
        """Return the versions of rows by key, of those that have a mark."""
        versions = {}
        for batch in _batches(_sorted(keys)):
            rows = connection.execute(
                select(*self._columns, self.table.c.version).where(self._among(batch))
            )
            versions.update({tuple(row[:-1]): row[-1] for row in rows})
        return versions

    def rows_of(
        self, connection: Connection, keys: Collection[Key]
    ) -> dict[Key, tuple[RowMark, Mapping[str, Any] | None]]:
        """Return marks, and the rows of the table itself, by key.

        A mark and its row are read by one statement.  Rows without a mark are
        missing.
        """
        source, own = self.key[0].table, self._own()
        names = [column.name for column in source.columns]
        at = names.index(self.key[0].name)
        statement = (
            self._select()
            .add_columns(*source.columns)
            .select_from(self.table.outerjoin(source, own))
        )
        count = len(self._columns)
        found: dict[Key, tuple[RowMark, Mapping[str, Any] | None]] = {}
        for batch in _batches(_sorted(keys)):
            rows = connection.execute(statement.where(self._among(batch)))
            for row in rows:
                values = row[count + 4 :]
                found[tuple(row[:count])] = (
                    _mark(row, count),
                    None
                    if values[at] is None
                    else dict(zip(names, values, strict=True)),
                )
        return found

    def keys_of(
        self, connection: Connection, object_ids: Collection[int]
    ) -> dict[int, Key]:
        """Return the keys of rows by their object ids."""
        keys = {}
        object_id = self.table.c.object_id
        for batch in _batches(sorted(object_ids)):
            rows = connection.execute(
                select(object_id, *self._columns).where(object_id.in_(batch))
            )
            keys.update({row[0]: tuple(row[1:]) for row in rows})
        return keys

    def waiting_without_id(
        self,
        connection: Connection,
        *,
        after: Key | None = None,
        limit: int = _BATCH,
        part: KeyPart | None = None,
    ) -> list[Key]:
        """Return keys of rows that wait, of those without an object id.

        :param after: the last key of the page before.
        :param limit: maximum number of keys.
        :param part: the part of the rows; None for all.
        """
        return _keys(
            connection,
            self._columns,
            waits_in(self.table),
            self.table.c.object_id.is_(None),
            after=after,
            limit=limit,
            part=part,
        )

    def marked(
        self,
        connection: Connection,
        *,
        after: int = 0,
        limit: int = _BATCH,
        waits: bool = False,
        part: KeyPart | None = None,
    ) -> dict[int, Key]:
        """Return keys by object id, in the order of these.

        So a page has rows of few shards.

        :param after: the last object id of the page before.
        :param limit: maximum number of rows.
        :param waits: whether to return only rows that wait to be copied.
        :param part: the part of the rows; None for all.
        """
        of = self.table.c
        statement = (
            select(of.object_id, *self._columns)
            .where(of.object_id > after)
            .order_by(of.object_id)
            .limit(limit)
        )
        if waits:
            statement = statement.where(waits_in(self.table))
        if part is not None:
            statement = statement.where(part.has(self._columns))
        return {row[0]: tuple(row[1:]) for row in connection.execute(statement)}

    def keys_after(
        self, connection: Connection, *, after: Key | None = None, limit: int = _BATCH
    ) -> list[Key]:
        """Return keys of marks in their order.

        :param after: the last key of the page before.
        :param limit: maximum number of keys.
        """
        return _keys(connection, self._columns, after=after, limit=limit)

    def count_waiting(self, connection: Connection) -> int:
        """Return the number of rows that wait to be copied."""
        number: int = connection.execute(
            select(func.count()).where(waits_in(self.table))
        ).scalar_one()
        return number

    def count_unclaimed(self, connection: Connection, *, number: int) -> int:
        """Return the number of rows without a mark of a round."""
        source = self.key[0].table
        statement = (
            select(func.count())
            .select_from(source.outerjoin(self.table, self._own()))
            .where(or_(self._columns[0].is_(None), self.table.c.round < number))
        )
        found: int = connection.execute(statement).scalar_one()
        return found

    def set_copied(self, connection: Connection, versions: Mapping[Key, int]) -> None:
        """Record versions that the other side has; lower ones are ignored."""
        for version, batch in _by_version(versions, _sorted(versions)):
            connection.execute(
                update(self.table)
                .where(self.table.c.copied < version, self._among(batch))
                .values(copied=version)
            )

    def _own(self) -> ColumnElement[bool]:
        """Return the condition of the row of a mark, in the table itself."""
        return and_(
            *(
                ours == theirs
                for ours, theirs in zip(self._columns, self.key, strict=True)
            )
        )

    def _select(self) -> Any:
        of = self.table.c
        return select(*self._columns, of.object_id, of.version, of.copied, of.round)

    def _values(self, key: Key) -> dict[str, Any]:
        names = [column.name for column in self._columns]
        return dict(zip(names, key, strict=True))

    def _bound(self) -> list[ColumnElement[bool]]:
        """Return the conditions of a key whose values :meth:`_bind` gives."""
        # The names of columns are those of the values of an UPDATE.
        return [column == bindparam(f"of_{column.name}") for column in self._columns]

    def _bind(self, key: Key) -> dict[str, Any]:
        return {f"of_{name}": v for name, v in self._values(key).items()}

    def _among(self, keys: Sequence[Key]) -> ColumnElement[bool]:
        return among(self._columns, keys)


def _keys(
    connection: Connection,
    columns: Sequence[Column[Any]],
    *conditions: ColumnElement[bool],
    after: Key | None = None,
    limit: int,
    part: KeyPart | None = None,
) -> list[Key]:
    """Return the next keys, in their order."""
    statement = select(*columns).where(*conditions).order_by(*columns).limit(limit)
    if after is not None:
        statement = statement.where(after_key(columns, after))
    if part is not None:
        statement = statement.where(part.has(columns))
    return [tuple(row) for row in connection.execute(statement)]


def _mark(row: Sequence[Any], at: int) -> RowMark:
    """Return the mark in a row of a SELECT, whose key ends at a position."""
    return RowMark(*row[at : at + 4])


def _by_version(
    versions: Mapping[Key, int], keys: Iterable[Key]
) -> Iterator[tuple[int, list[Key]]]:
    """Yield versions with their keys, each in batches of the keys' order."""
    grouped: dict[int, list[Key]] = {}
    for key in keys:
        grouped.setdefault(versions[key], []).append(key)
    for version, same in grouped.items():
        for batch in _batches(same):
            yield version, batch


def _sorted(keys: Iterable[Key]) -> list[Key]:
    return sorted(set(keys))


def _batches(values: Sequence[Any]) -> Iterator[list[Any]]:
    rest = iter(values)
    while batch := list(islice(rest, _BATCH)):
        yield batch
