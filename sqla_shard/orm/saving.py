"""Writing a blob without overwriting what another writer changed.

An UPDATE of a blob names the text that was read: if the row still holds it,
the new text takes its place, and that is the usual case, one statement.  If
not, the row is read again under its lock and the two sets of changes are put
together field by field.  A field changed on both sides is a conflict:
:exc:`~sqla_shard.exc.StaleDataError`, and nothing is written.

Of a class with a ``version_id_col``, the UPDATE compares and counts the
version too, and a row of another version is a conflict whatever was changed.
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
from sqlalchemy.orm import Session
from sqlalchemy.orm.attributes import set_committed_value
from sqlalchemy.orm.base import NO_VALUE
from sqlalchemy.orm.base import PASSIVE_NO_INITIALIZE

from sqla_shard.exc import StaleDataError
from sqla_shard.orm.fields import raiser
from sqla_shard.orm.merging import changes
from sqla_shard.orm.merging import conflicts
from sqla_shard.types import Blob
from sqla_shard.types.blob import decode_blob
from sqla_shard.types.blob import encode_blob
from sqla_shard.types.nodes import Node

__all__ = [
    "forget_written",
    "remember_written",
    "show_change",
    "source_of",
    "write_blob",
]

#: Where a session has, for each object that the flush that goes on has
#: written, the text of its document before, and what was assigned over.
_WRITTEN = "sqla_shard.written"


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
    statements = _statements_of(mapper, state)
    text = encode_blob(blob, statements.max_bytes)
    if text != blob.source:
        remember_written(state)
        values = {"object_id": state.identity[0], "new_text": text}
        if statements.version is not None:
            values.update(statements.version.values_of(target))
        if blob.source is None or not statements.replace(
            connection, {**values, "old_text": blob.source}
        ):
            _put_together(target, connection, statements, values)
        blob.source = values["new_text"]
        session = object_session(target)
        if session is not None:
            session.expire(target, ["ts"])
        if statements.version is not None:
            statements.version.count(target, values)
    # The flush finds nothing left to write.
    set_committed_value(target, "data", blob)


def show_change(
    mapper: Mapper[Any], connection: Connection, target: Any
) -> None:
    """Handle ``after_update``: show listeners what was written.

    Until the end of a flush the history of a column has its change.
    """
    state = inspect(target)
    written = _written(state).get(state)
    if written is not None:
        state.committed_state["data"] = written[1]


def remember_written(state: Any) -> None:
    """Remember the text of a document that a flush is about to write."""
    assigned = state.committed_state.get("data", NO_VALUE)
    _written(state)[state] = (state.dict["data"].source, assigned)


def forget_written(session: Session, *context: Any) -> None:
    """Handle the begin and the end of a flush."""
    session.info.pop(_WRITTEN, None)


def source_of(state: Any, blob: Blob) -> str | None:
    """Return the text that the changes of a blob are to be compared with.

    Within a flush it is the text before that flush; None where there was
    none.
    """
    if state.session is not None and state.session._flushing:
        written = _written(state).get(state)
        if written is not None:
            source: str | None = written[0]
            return source
    return blob.source


def _written(state: Any) -> dict[Any, tuple[str | None, Any]]:
    found: dict[Any, tuple[str | None, Any]]
    found = state.session.info.setdefault(_WRITTEN, {})
    return found


def _put_together(
    target: Any,
    connection: Connection,
    statements: _Statements,
    values: dict[str, Any],
) -> None:
    """Merge the object's changes into the row, which it locks."""
    blob: Blob = target.data
    name = type(target).__name__
    object_id = values["object_id"]
    stored = statements.lock(connection, object_id)
    if stored is None:
        raise StaleDataError(class_name=name, object_id=object_id, fields=())
    version = statements.version
    if version is not None and stored.version != values["old_version"]:
        raise _stale(name, object_id, version.key)
    current = decode_blob(stored.text)
    base = decode_blob("{}" if blob.source is None else blob.source)
    mine = changes(base, blob)
    theirs = changes(base, current)
    found = conflicts(mine, theirs)
    if found:
        raise StaleDataError(
            class_name=name, object_id=object_id, fields=found
        )
    _take_over(target, blob, current, theirs)
    values["new_text"] = encode_blob(blob, statements.max_bytes)
    statements.overwrite(connection, values)


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
        if not set(made.keys).isdisjoint(theirs):
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


class _Version:
    """What counts the versions of the rows of a class."""

    def __init__(self, mapper: Mapper[Any], column: Any) -> None:
        self.column = column
        self.key = mapper.get_property_by_column(column).key
        self._generator: Any = mapper.version_id_generator
        self.is_old = column == bindparam("old_version", type_=column.type)
        self.change: dict[Any, Any] = {}
        if self._generator is not False:
            self.change[column] = bindparam("new_version", type_=column.type)

    def values_of(self, target: Any) -> dict[str, Any]:
        """Return the version that an object has, and the next."""
        old = getattr(target, self.key)
        if self._generator is False:
            return {"old_version": old}
        return {"old_version": old, "new_version": self._generator(old)}

    def count(self, target: Any, values: dict[str, Any]) -> None:
        """Give an object the version that was written."""
        if "new_version" in values:
            set_committed_value(target, self.key, values["new_version"])
        else:
            # The server counts.
            inspect(target).session.expire(target, [self.key])


class _Statements:
    """The statements that write the blobs of one table.

    :param counts: whether they count the version, where there is one.
    """

    def __init__(self, mapper: Mapper[Any], *, counts: bool) -> None:
        table: Any = mapper.local_table
        (key,) = table.primary_key
        data = table.c.data
        self.max_bytes: int = data.type.max_bytes
        text = type_coerce(data, Text())
        here = key == bindparam("object_id", type_=key.type)
        new = bindparam("new_text", type_=Text())
        change = update(table).values({data: type_coerce(new, Text())})
        change = change.where(here)
        read: list[Any] = [text.label("text")]
        self.version: _Version | None = None
        if counts and mapper.version_id_col is not None:
            self.version = _Version(mapper, mapper.version_id_col)
            read.append(mapper.version_id_col.label("version"))
            change = change.where(self.version.is_old)
            change = change.values(self.version.change)
        old = bindparam("old_text", type_=Text())
        self._replace = change.where(text == old)
        self._overwrite = change
        self._lock = select(*read).where(here).with_for_update()

    def replace(self, connection: Connection, values: dict[str, Any]) -> bool:
        """Write a text if the row still holds the old one."""
        return connection.execute(self._replace, values).rowcount == 1

    def lock(self, connection: Connection, key: int) -> Any:
        """Lock the row and return its text and version, None if it is gone."""
        return connection.execute(self._lock, {"object_id": key}).first()

    def overwrite(
        self, connection: Connection, values: dict[str, Any]
    ) -> None:
        """Write a text; the row is locked."""
        connection.execute(self._overwrite, values)


_INFO = "sqla_shard.saving"


def _statements_of(mapper: Mapper[Any], state: Any) -> _Statements:
    # Where columns are changed too, the UPDATE of SQLAlchemy itself comes
    # next: one of the two counts.
    counts = mapper.version_id_col is None or not _is_followed(mapper, state)
    table: Any = mapper.local_table
    known = table.info.setdefault(_INFO, {})
    found: _Statements | None = known.get(counts)
    if found is None:
        found = known[counts] = _Statements(mapper, counts=counts)
    return found


def _is_followed(mapper: Mapper[Any], state: Any) -> bool:
    """Tell whether SQLAlchemy has other columns of the row to write."""
    columns = {
        mapper.get_property_by_column(column).key
        for column in mapper.local_table.c
        # Others are of classes that share the table.
        if mapper.columns.contains_column(column)
    } - {"data"}
    return any(
        state.get_history(key, PASSIVE_NO_INITIALIZE).has_changes()
        for key in columns.intersection(state.committed_state)
    )
