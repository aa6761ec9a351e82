"""Writing a blob without overwriting what another writer changed.

An UPDATE of a blob names the text that was read: if the row still holds it,
the new text takes its place, and that is the usual case, one statement.  If
not, the row is read again under its lock and the two sets of changes are put
together field by field.  A field changed on both sides is a conflict:
:exc:`~sqla_shard.exc.StaleDataError`, and nothing is written.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqlalchemy import bindparam
from sqlalchemy import Connection
from sqlalchemy import inspect
from sqlalchemy import select
from sqlalchemy import Text
from sqlalchemy import type_coerce
from sqlalchemy import update
from sqlalchemy.orm import Mapper
from sqlalchemy.orm import object_session
from sqlalchemy.orm.attributes import set_committed_value

from sqla_shard.exc import StaleDataError
from sqla_shard.orm.fields import raiser
from sqla_shard.orm.merging import changes
from sqla_shard.orm.merging import conflicts
from sqla_shard.types import Blob
from sqla_shard.types.blob import decode_blob
from sqla_shard.types.blob import encode_blob
from sqla_shard.types.nodes import Node

__all__ = ["write_blob"]


def write_blob(
    mapper: Mapper[Any], connection: Connection, target: Any
) -> None:
    """Write a changed blob in place of SQLAlchemy's own UPDATE.

    It handles ``before_update``; ordinary columns beside the blob are left
    to SQLAlchemy, in the same flush.

    :raises StaleDataError: when another writer changed the same fields, or
        the row is gone.
    :raises BlobTooLargeError: when the blob does not fit its column.
    """
    state = inspect(target)
    if "data" not in state.committed_state:
        return
    blob: Blob = target.data
    statements = _statements_of(mapper)
    text = encode_blob(blob, statements.max_bytes)
    if text != blob.source:
        object_id = state.identity[0]
        if blob.source is None or not statements.replace(
            connection, object_id, blob.source, text
        ):
            text = _put_together(target, connection, statements, object_id)
        blob.source = text
        session = object_session(target)
        if session is not None:
            session.expire(target, ["ts"])
    # The flush finds nothing left to write.
    set_committed_value(target, "data", blob)


def _put_together(
    target: Any, connection: Connection, statements: _Statements, key: int
) -> str:
    """Merge the object's changes into the row, which it locks."""
    blob: Blob = target.data
    name = type(target).__name__
    stored = statements.lock(connection, key)
    if stored is None:
        raise StaleDataError(class_name=name, object_id=key, fields=())
    current = decode_blob(stored)
    base = decode_blob("{}" if blob.source is None else blob.source)
    mine = changes(base, blob)
    theirs = changes(base, current)
    found = conflicts(mine, theirs)
    if found:
        raise StaleDataError(class_name=name, object_id=key, fields=found)
    _take_over(target, blob, current, theirs)
    text = encode_blob(blob, statements.max_bytes)
    statements.overwrite(connection, key, text)
    return text


def _take_over(
    target: Any, blob: Blob, current: Blob, theirs: Iterable[str]
) -> None:
    """Bring another writer's changes into the object.

    Containers that were read from it before now hold what is no longer
    there.  A change of one must not overwrite the other writer's, and must
    not be lost without a word either.
    """
    name = type(target).__name__
    object_id = target.id
    for made in target.__sqla_shard__.fields.values():
        if not {made.name, *made.aliases}.isdisjoint(theirs):
            made.supersede(blob, _stale(name, object_id, made.name))
    for field in theirs:
        old = blob.get(field)
        if field in current:
            blob[field] = current[field]
        else:
            blob.pop(field, None)
        if isinstance(old, Node) and old is not blob.get(field):
            old._on_change = raiser(_stale(name, object_id, field))


def _stale(class_name: str, object_id: int, field: str) -> StaleDataError:
    return StaleDataError(
        class_name=class_name, object_id=object_id, fields=(field,)
    )


class _Statements:
    """The statements that write the blobs of one table."""

    def __init__(self, mapper: Mapper[Any]) -> None:
        table: Any = mapper.local_table
        (key,) = table.primary_key
        data = table.c.data
        self.max_bytes: int = data.type.max_bytes
        text = type_coerce(data, Text())
        here = key == bindparam("object_id", type_=key.type)
        new = bindparam("new_text", type_=Text())
        change = update(table).values({data: type_coerce(new, Text())})
        old = bindparam("old_text", type_=Text())
        self._replace = change.where(here, text == old)
        self._overwrite = change.where(here)
        self._lock = select(text).where(here).with_for_update()

    def replace(
        self, connection: Connection, key: int, old: str, new: str
    ) -> bool:
        """Write a text if the row still holds the old one."""
        values = {"object_id": key, "old_text": old, "new_text": new}
        return connection.execute(self._replace, values).rowcount == 1

    def lock(self, connection: Connection, key: int) -> str | None:
        """Lock the row and return its text, None if it is gone."""
        found: str | None = connection.scalar(self._lock, {"object_id": key})
        return found

    def overwrite(self, connection: Connection, key: int, text: str) -> None:
        """Write a text; the row is locked."""
        values = {"object_id": key, "new_text": text}
        connection.execute(self._overwrite, values)


_INFO = "sqla_shard.saving"


def _statements_of(mapper: Mapper[Any]) -> _Statements:
    table: Any = mapper.local_table
    found: _Statements | None = table.info.get(_INFO)
    if found is None:
        found = table.info[_INFO] = _Statements(mapper)
    return found
