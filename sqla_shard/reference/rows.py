"""From what a caller gives to rows of a reference table.

A row is written in full.  What a mapping or an object leaves out is the
column's default, or NULL.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Mapping
from typing import Any
from typing import TypeAlias

from sqlalchemy import inspect

from sqla_shard.exc import ReferenceRowsError
from sqla_shard.exc import ReferenceSizeError
from sqla_shard.reference.definition import table_of

__all__ = [
    "MOST_ROWS",
    "Key",
    "Row",
    "Rows",
    "check_kept",
    "check_size",
    "given",
    "keys_of",
]

#: How many rows a reference table has at most.
MOST_ROWS = 10_000

#: The values of the primary key.
Key: TypeAlias = "tuple[Any, ...]"
#: The values of all columns, in their order.
Row: TypeAlias = "tuple[Any, ...]"
#: The rows of a table.
Rows: TypeAlias = "dict[Key, Row]"


def given(cls: Any, rows: Iterable[Any]) -> Rows:
    """Return rows by their keys.

    :param rows: mappings from attributes to values, or objects.
    :raises ReferenceRowsError: when one cannot be a row, or two have one
        key.
    :raises ReferenceSizeError: when there are too many.
    """
    table = table_of(cls)
    mapper = inspect(cls)
    names = {mapper.get_property_by_column(c).key: c for c in table.c}
    found: Rows = {}
    for one in rows:
        values = _values(cls, one, names)
        key = tuple(
            value
            for column, value in zip(table.c, values, strict=True)
            if column.primary_key
        )
        _check_key(cls, one, key)
        if key in found:
            raise ReferenceRowsError(
                reference=cls.__name__,
                row=key,
                reason="two of the rows have this key; leave one out",
            )
        found[key] = values
    check_size(cls.__name__, found)
    return found


def check_size(reference: str, rows: Rows) -> None:
    """Refuse more rows than a reference table may have.

    :raises ReferenceSizeError: when there are.
    """
    if len(rows) > MOST_ROWS:
        raise ReferenceSizeError(
            reference=reference, rows=len(rows), most=MOST_ROWS
        )


def check_kept(reference: str, wanted: Rows, there: Rows) -> None:
    """Refuse rows of which one has taken the place of another.

    :param there: what the server has made of them.
    :raises ReferenceRowsError: when there are fewer.
    """
    if len(there) < len(wanted):
        raise ReferenceRowsError(
            reference=reference,
            row=next(key for key in wanted if key not in there),
            reason="this key and another are one to the server, whose "
            "collation may ignore case and spaces at the end; write each as "
            "the table has it",
        )


def keys_of(cls: Any, keys: Iterable[Any]) -> set[Key]:
    """Return keys as tuples.

    :param keys: values, or tuples where the primary key has several columns.
    :raises ReferenceRowsError: when one cannot be a key.
    """
    if isinstance(keys, (str, bytes)):
        # Each of its characters would be a key, which mostly is in no row.
        raise ReferenceRowsError(
            reference=cls.__name__,
            row=keys,
            reason="keys are a list, also where it is one key",
        )
    count = len(table_of(cls).primary_key)
    found = set()
    for one in keys:
        key = tuple(one) if isinstance(one, (tuple, list)) else (one,)
        if len(key) != count:
            raise ReferenceRowsError(
                reference=cls.__name__,
                row=one,
                reason=f"its primary key has {count} column(s)",
            )
        _check_key(cls, one, key)
        found.add(key)
    return found


def _values(cls: Any, one: Any, names: Mapping[str, Any]) -> Row:
    """Return the values of a row in the order of the columns."""
    if isinstance(one, cls):
        state = inspect(one)
        # What was never set has no value yet; what has expired is loaded.
        known = state.dict if state.transient else _loaded(one, names)
    elif isinstance(one, Mapping):
        known = one
        strange = [name for name in one if name not in names]
        if strange:
            raise ReferenceRowsError(
                reference=cls.__name__,
                row=one,
                reason=f"{strange[0]!r} is none of {', '.join(names)}",
            )
    else:
        raise ReferenceRowsError(
            reference=cls.__name__,
            row=one,
            reason="a row is a mapping, or an object of the class",
        )
    return tuple(
        known[name] if name in known else _default(column)
        for name, column in names.items()
    )


def _loaded(one: Any, names: Iterable[str]) -> dict[str, Any]:
    return {name: getattr(one, name) for name in names}


def _default(column: Any) -> Any:
    if column.default is None:
        return None
    if column.default.is_callable:
        return column.default.arg(None)
    return column.default.arg


def _check_key(cls: Any, one: Any, key: Key) -> None:
    if any(value is None for value in key):
        raise ReferenceRowsError(
            reference=cls.__name__, row=one, reason="its key is NULL"
        )
