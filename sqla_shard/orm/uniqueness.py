"""Unique constraints: each virtual shard checks its own rows only.

Users on two shards can have one address in spite of ``unique=True``, so the
creation of such a class warns, with
:exc:`~sqla_shard.exc.UniquePerShardWarning`.  There is no warning where
nothing can go wrong: of a primary key, of a constraint with a column that
names the shard of its row, such as ``UniqueConstraint("user_id", "title")``
of a class that is colocated with its user, and of what has
``info={"unique_per_shard": True}``.
"""

from __future__ import annotations

import sys
import warnings
from typing import Any
from weakref import WeakKeyDictionary
from weakref import WeakSet

from sqlalchemy import Column
from sqlalchemy import event
from sqlalchemy import Index
from sqlalchemy import Table
from sqlalchemy import UniqueConstraint
from sqlalchemy.orm import Mapper

from sqla_shard.exc import UniquePerShardWarning
from sqla_shard.orm.creation import whole_or_not_at_all
from sqla_shard.routing import routes

__all__ = ["check_unique"]

#: The key in ``info``, of a column, a constraint or an index.
_MEANT = "unique_per_shard"

#: Tables that were checked, with the columns that tell the shard and hold no
#: id.  What is added to them later is checked when it is added.
_CHECKED: WeakKeyDictionary[Table, tuple[str, ...]] = WeakKeyDictionary()

#: Classes with foreign keys that have no type until another class is there.
_UNRESOLVED: WeakSet[Mapper[Any]] = WeakSet()


def check_unique(table: Table, *key: str) -> None:
    """Warn of what is unique on each virtual shard only.

    :param key: names of the columns that tell the shard of a row, beside
        those with ids.
    """
    found: list[Any] = [*table.constraints, *table.indexes]
    # Sets: without an order the first warning, which may be an error, would
    # be another in each process.
    for one in sorted(found, key=_described):
        _check(table, one, key)
    _CHECKED[table] = key


def _check(table: Table, one: Any, key: tuple[str, ...]) -> None:
    if not (
        isinstance(one, UniqueConstraint) or getattr(one, "unique", False)
    ):
        return
    columns = [m for m in _members(one) if isinstance(m, Column)]
    if any(routes(column) or column.name in key for column in columns):
        return
    infos = [one.info]
    if len(_members(one)) == 1:
        infos += [column.info for column in columns]
    if not any(info.get(_MEANT) for info in infos):
        warnings.warn(_warning(table, one), stacklevel=_stacklevel())


def _members(one: Any) -> list[Any]:
    """Return the columns and expressions of a constraint or an index."""
    if not isinstance(one, Index):
        return list(getattr(one, "columns", ()))
    # The column of Index(..., column.desc()).
    return [getattr(m, "element", m) for m in one.expressions]


def _described(one: Any) -> str:
    return ", ".join(
        m.name if isinstance(m, Column) else str(m) for m in _members(one)
    )


def _warning(table: Table, one: Any) -> UniquePerShardWarning:
    anchors = [
        column.name
        for column in table.columns
        # The id of an object itself makes everything unique.
        if routes(column) and list(table.primary_key) != [column]
    ]
    everywhere = (
        f"with {anchors[0]!r} in it the constraint holds everywhere, since "
        "that column names the shard; else "
        if anchors
        else ""
    )
    if isinstance(one, Index):
        where = "Index(..., unique=True)"
    else:
        where = "UniqueConstraint(...)"
    if one._column_flag:
        where = "mapped_column(..., unique=True)"
    return UniquePerShardWarning(
        f"({_described(one)}) of table {table.name!r} is unique on each "
        "virtual shard only: a server checks its own rows, and rows on two "
        "shards may have one value. To have it once in all shards: "
        f"{everywhere}make the value the key of a lookup class "
        "(LookupMixin, and sqla_shard.lookup.sign_up()), and leave out the "
        "constraint. If each shard is what you mean, say so: "
        f'{where[:-1]}, info={{"unique_per_shard": True}})'
    )


def _stacklevel() -> int:
    """Return that of the statement that made the class, or the index."""
    level, frame = 2, sys._getframe(2)
    while (above := frame.f_back) is not None and frame.f_globals.get(
        "__name__", ""
    ).startswith(("sqlalchemy.", "sqla_shard.")):
        level, frame = level + 1, above
    return level


# -- rows beside objects, whose classes have no mixin


def _is_plain(mapper: Mapper[Any]) -> bool:
    """Tell whether a class has a table, and none of our mixins checks it."""
    return (
        isinstance(mapper.local_table, Table)
        and (
            mapper.inherits is None
            or mapper.inherits.local_table is not mapper.local_table
        )
        and not any(
            base.__module__.startswith("sqla_shard.")
            for base in mapper.class_.__mro__
        )
    )


def _check_plain(mapper: Mapper[Any]) -> None:
    table: Any = mapper.local_table
    if any(
        routes(column) and (column.primary_key or column.foreign_keys)
        for column in table.columns
    ):
        check_unique(table)


@whole_or_not_at_all
def _constructed(mapper: Mapper[Any], cls: Any) -> None:
    if _is_plain(mapper):
        if any(column.type._isnull for column in mapper.local_table.columns):
            _UNRESOLVED.add(mapper)
        else:
            _check_plain(mapper)


def _configured(mapper: Mapper[Any], cls: Any) -> None:
    if mapper in _UNRESOLVED:
        _UNRESOLVED.remove(mapper)
        _check_plain(mapper)


def _attached(one: Any, table: Any) -> None:
    if table in _CHECKED:
        _check(table, one, _CHECKED[table])


event.listen(Mapper, "after_mapper_constructed", _constructed)
event.listen(Mapper, "mapper_configured", _configured)
event.listen(Index, "after_parent_attach", _attached)
event.listen(UniqueConstraint, "after_parent_attach", _attached)
