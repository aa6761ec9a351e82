"""Putting two sets of changes of one blob together, field by field.

Three states take part: the one that both sides started from, and what each
made of it.  A flush that finds its row changed merges what the object and
what the other writer changed; ``session.merge()`` of a detached object
merges what was changed while it was detached into the object as it is now.
Ordinary columns are none of this: there SQLAlchemy's own rules hold.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from sqlalchemy import event
from sqlalchemy.orm import Mapper

from sqla_shard.exc import BlobValueError
from sqla_shard.exc import StaleDataError
from sqla_shard.types import Blob
from sqla_shard.types.blob import decode_blob
from sqla_shard.types.tracking import plain

__all__ = ["GONE", "changes", "conflicts", "watch_assignments"]

GONE: Any = object()
"""Stands for the JSON text of a field that was removed."""


def changes(base: dict[str, Any], blob: dict[str, Any]) -> dict[str, Any]:
    """Return what differs from ``base``, by field, as JSON text.

    Text, because 1, 1.0 and True are equal to Python and not the same.
    """
    return {
        field: _text(blob, field)
        for field in {*base, *blob}
        if _text(base, field) != _text(blob, field)
    }


def _text(blob: dict[str, Any], field: str) -> Any:
    return json.dumps(blob[field]) if field in blob else GONE


def conflicts(mine: Iterable[str], theirs: Iterable[str]) -> list[str]:
    """Return the fields that both sides changed.

    Also where both made the same of it: two that count one further from 0
    agree on 1, and one of them would be lost.
    """
    return sorted(set(mine) & set(theirs))


def watch_assignments(mapper: Mapper[Any], cls: type[Any]) -> None:
    """Handle ``after_mapper_constructed``: listen to assigned blobs."""
    # Before the listener of Blob itself, which forgets where they are from.
    event.listen(cls.data, "set", _assigned, raw=True, retval=True)


def _assigned(state: Any, value: Any, old: Any, initiator: Any) -> Any:
    """Handle an assignment to ``data``: tell ``session.merge()`` from others.

    :raises BlobValueError: for None.
    :raises StaleDataError: when a field was changed on both sides.
    """
    if value is None:
        raise BlobValueError(
            "a blob is a dict, not None; assign {} to empty it",
            field=f"{state.class_.__name__}.data",
            value=None,
        )
    if (
        value is old
        or state.key is None
        or not isinstance(value, Blob)
        or not isinstance(old, Blob)
    ):
        return value
    for parent in list(value._parents):
        if parent is state:
            continue
        if parent.key == state.key and value.source is not None:
            return _of_detached(state, value, old)
        if (
            parent.key is None
            and value.from_fields
            and parent.class_ is state.class_
            and parent.dict.get("id") == state.key[1][0]
        ):
            return {**plain(old), **plain(value)}
    return value


def _of_detached(state: Any, value: Blob, old: Blob) -> dict[str, Any]:
    base = _decoded(value.source)
    mine = changes(base, value)
    # What the session itself has changed and not written yet is overwritten,
    # as merge() does with everything.
    found = conflicts(mine, changes(base, _decoded(old.source)))
    if found:
        raise StaleDataError(
            class_name=state.class_.__name__,
            object_id=state.key[1][0],
            fields=found,
        )
    result: dict[str, Any] = plain(old)
    for field in mine:
        if field in value:
            result[field] = plain(value[field])
        else:
            result.pop(field, None)
    return result


def _decoded(text: str | None) -> Blob:
    return decode_blob("{}" if text is None else text)
