"""The tables of marks, and conditions of the keys of rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from sqlalchemy import (
    and_,
    BigInteger,
    Boolean,
    Column,
    Computed,
    false,
    func,
    Index,
    Integer,
    MetaData,
    or_,
    Table,
    true,
    UniqueConstraint,
)
from sqlalchemy.sql.elements import ColumnElement
from sqlalchemy.types import TypeEngine

from sqla_shard.dialects.sql import COUNTING

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
