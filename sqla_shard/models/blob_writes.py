"""Writes of a blob: changes of other writers stay; dictionaries that compress it.

The UPDATE of a blob compares the stored text with the text that was read; if
they are equal, as usual, one statement is enough.  Otherwise the row is locked
and read again, and the two sets of changes are merged field by field.  A field
changed on both sides is a conflict, which raises
:exc:`~sqla_shard.exc.StaleDataError`, and nothing is written.

``session.merge()`` of a detached object does the same: it merges the changes
made since the object was loaded.  Ordinary columns follow the rules of
SQLAlchemy.

If the class has a ``version_id_col``, the UPDATE also compares and increments
the version, and a row with another version is a conflict in any case.

Each virtual shard has its dictionaries in its own database, and one row says
which of them, if any, is used for writing.  A process reads that row when it
first writes a blob to the shard, in the same transaction, and again after a
minute or when the topology has changed.  So a blob is only compressed with a
dictionary that its shard has, and a process that has not noticed a change yet
writes with the previous dictionary, or JSON, which all processes can read.
"""

from __future__ import annotations

import json
import weakref
from collections.abc import Iterable, Mapping
from time import monotonic
from typing import Any

from sqlalchemy import (
    bindparam,
    Connection,
    event,
    inspect,
    select,
    Text,
    true,
    type_coerce,
    update,
)
from sqlalchemy.orm import Mapper, object_session, Session
from sqlalchemy.orm.attributes import set_committed_value
from sqlalchemy.orm.base import NO_VALUE, PASSIVE_NO_INITIALIZE

from sqla_shard.engine import Places
from sqla_shard.engine.rendering import Place
from sqla_shard.exc import BlobValueError, ClassDefinitionError, StaleDataError
from sqla_shard.models.blob_fields import raiser
from sqla_shard.outbox.tables import DICTIONARIES as TABLE
from sqla_shard.session import ShardSession
from sqla_shard.session.flush import place_of
from sqla_shard.types import Blob, JSONBlob
from sqla_shard.types.blob import decode_blob, decode_stored, encode_blob, pack_blob
from sqla_shard.types.compression import DICTIONARIES, Dictionary
from sqla_shard.types.tracking import Node, plain
from sqla_shard.util import sqlalchemy_private as private

#: Seconds for which a process writes with the dictionary that was active.
DICTIONARY_SECONDS = 60.0

_ACTIVE = select(TABLE.c.id).where(
    TABLE.c.name == bindparam("the_name"), TABLE.c.is_active == true()
)
_CONTENT = select(TABLE.c.content).where(TABLE.c.id == bindparam("the_id"))

#: Active dictionaries by topology, shard and name; and until when they are
#: valid.
_Known = dict[tuple[tuple[str, int], str], tuple[Dictionary | None, float]]
_known: weakref.WeakKeyDictionary[Places, _Known] = weakref.WeakKeyDictionary()

_GONE: Any = object()
"""Stands for the JSON text of a field that was removed."""


def dictionary_name(table: Any) -> str | None:
    """Return the name of the dictionary of a table.

    :returns: None if blobs of the table are not compressed.
    """
    kind: JSONBlob = table.c.data.type
    if kind.compression is None:
        return None
    return kind.dictionary


def _refuse_columns(mapper: Mapper[Any], cls: type[Any]) -> None:
    """Handle ``mapper_configured``: refuse compression of other columns.

    They would be written as JSON for ever.

    :raises ClassDefinitionError: for such a column.
    """
    for column in mapper.columns:
        if (
            isinstance(column.type, JSONBlob)
            and column.type.compression is not None
            and (column.name != "data" or not hasattr(cls, "__sqla_shard__"))
        ):
            raise ClassDefinitionError(
                f"the column {column.name} cannot be compressed: only the "
                "blob of an object class can, with the class keyword "
                'compression="zstd"; leave it out',
                class_name=cls.__name__,
            )


event.listen(Mapper, "mapper_configured", _refuse_columns)


def choose_dictionary(mapper: Mapper[Any], connection: Connection, target: Any) -> None:
    """Set the dictionary of the blob of an object that is written."""
    name = dictionary_name(mapper.local_table)
    if name is None:
        return
    session = object_session(target)
    if not isinstance(session, ShardSession):
        return
    place = place_of(session, mapper, target)
    blob: Blob = target.__dict__["data"]
    blob.dictionary = _active(connection, session.places, place, name)


def choose_for_rows(
    session: ShardSession, table: Any, place: Place, rows: Iterable[Mapping[str, Any]]
) -> None:
    """Set the dictionary of the blobs of rows of an INSERT."""
    name = dictionary_name(table)
    if name is None:
        return
    dictionary = _active(session._view(place), session.places, place, name)
    for row in rows:
        blob = row.get("data")
        if isinstance(blob, Blob):
            blob.dictionary = dictionary


def _active(
    connection: Connection, places: Places, place: Place, name: str
) -> Dictionary | None:
    """Return the active dictionary of a shard; None to write JSON."""
    known = _known.setdefault(places, {})
    key = place.address, name
    entry = known.get(key)
    now = monotonic()
    if entry is None or entry[1] <= now:
        dictionary = _read(connection, name)
        entry = known[key] = dictionary, now + DICTIONARY_SECONDS
    return entry[0]


def _read(connection: Connection, name: str) -> Dictionary | None:
    dictionary_id = connection.execute(_ACTIVE, {"the_name": name}).scalar()
    if dictionary_id is None:
        return None
    known = DICTIONARIES.known(dictionary_id)
    if known is not None:
        return known
    content = connection.execute(_CONTENT, {"the_id": dictionary_id}).scalar()
    return None if content is None else DICTIONARIES.add(bytes(content))


def changes(base: dict[str, Any], blob: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that differ from ``base``, as JSON text.

    JSON text is compared, because 1, 1.0 and True are equal in Python but
    different in JSON.
    """
    return {
        field: _text(blob, field)
        for field in {*base, *blob}
        if _text(base, field) != _text(blob, field)
    }


def _text(blob: dict[str, Any], field: str) -> Any:
    return json.dumps(blob[field]) if field in blob else _GONE


def _conflicts(mine: Iterable[str], theirs: Iterable[str]) -> list[str]:
    """Return the fields that both sides changed.

    This includes a field that has the same value on both sides: if both
    increment it from 0 to 1, one increment would be lost.
    """
    return sorted(set(mine) & set(theirs))


def watch_assignments(mapper: Mapper[Any], cls: type[Any]) -> None:
    """Handle ``after_mapper_constructed``: listen to assigned blobs."""
    # Before the listener of Blob itself, which replaces the assigned object.
    # Without include_key SQLAlchemy would wrap the listener, which is called
    # for each new object.
    event.listen(cls.data, "set", _on_set, raw=True, retval=True, include_key=True)


def _on_set(state: Any, value: Any, old: Any, initiator: Any) -> Any:
    """Handle an assignment to ``data``, including by ``session.merge()``.

    :raises BlobValueError: for None.
    :raises StaleDataError: if a field was changed on both sides.
    """
    if value is None:
        raise BlobValueError(
            "must be a dict, not None; assign {} to empty it",
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
    for parent in value.holders:
        if parent is state:
            continue
        if parent.key == state.key and value.source is not None:
            return _merge_detached(state, value, old)
        if (
            parent.key is None
            and value.from_fields
            and parent.class_ is state.class_
            and parent.dict.get("id") == state.key[1][0]
        ):
            return {**plain(old), **plain(value)}
    return value


def _merge_detached(state: Any, value: Blob, old: Blob) -> dict[str, Any]:
    base = _decode_source(value.source)
    mine = changes(base, value)
    # Unflushed changes of the session are overwritten, as merge() does with
    # other attributes.
    conflicts = _conflicts(mine, changes(base, _decode_source(old.source)))
    if conflicts:
        raise StaleDataError(
            class_name=state.class_.__name__,
            object_id=state.key[1][0],
            fields=tuple(conflicts),
        )
    result: dict[str, Any] = plain(old)
    for field in mine:
        if field in value:
            result[field] = plain(value[field])
        else:
            result.pop(field, None)
    return result


def _decode_source(text: str | None) -> Blob:
    return decode_blob("{}" if text is None else text)


#: Key in ``session.info``: the objects that the running flush has written,
#: with the text of the blob before the flush, and the value that was replaced.
_WRITTEN = "sqla_shard.written"


def write_blob(mapper: Mapper[Any], connection: Connection, target: Any) -> None:
    """Handle ``before_update``: write a changed blob.

    SQLAlchemy writes ordinary columns in the same flush.

    :raises StaleDataError: if another writer changed the same fields, or
        deleted the row.
    :raises BlobTooLargeError: if the blob does not fit its column.
    """
    state = inspect(target)
    if "data" not in state.committed_state:
        return
    blob: Blob = target.data
    statements = _statements_of(mapper, state)
    text = encode_blob(blob, statements.max_bytes)
    if text != blob.source:
        remember_written(state, blob)
        choose_dictionary(mapper, connection, target)
        values = {"object_id": state.identity[0]}
        if statements.version is not None:
            values.update(statements.version.values_of(target))
        written = _Text(blob, text)
        # The value of the column when the blob was read or written.
        old_text = blob.source if blob.stored is None else blob.stored
        if blob.source is None or not statements.replace(
            connection, {**values, "new_text": written.value, "old_text": old_text}
        ):
            written = _merge(target, connection, statements, values)
        blob.source, blob.stored = written.text, written.packed
        session = object_session(target)
        if session is not None:
            session.expire(target, ["ts"])
        if statements.version is not None:
            statements.version.apply(target, values)
    # SQLAlchemy must not write the blob again.
    set_committed_value(target, "data", blob)


class _Text:
    """The text of a blob, and what is written to the column."""

    def __init__(self, blob: Blob, text: str) -> None:
        self.text = text
        self.packed = pack_blob(blob, text)

    @property
    def value(self) -> str | bytes:
        """The value of the column."""
        return self.text if self.packed is None else self.packed


def show_change(mapper: Mapper[Any], connection: Connection, target: Any) -> None:
    """Handle ``after_update``: restore the history of the blob.

    Until the end of a flush listeners expect the change in the history.
    """
    state = inspect(target)
    written = _written(state).get(state)
    if written is not None:
        state.committed_state["data"] = written[1]


def remember_written(state: Any, blob: Blob) -> None:
    """Save the text of a blob before a flush writes the blob."""
    assigned = state.committed_state.get("data", NO_VALUE)
    _written(state)[state] = (blob.source, assigned)


def forget_written(session: Session, *context: Any) -> None:
    """Handle the start and the end of a flush."""
    session.info.pop(_WRITTEN, None)


def source_of(state: Any, blob: Blob) -> str | None:
    """Return the text with which a blob is compared to find its changes.

    Within a flush this is the text before the flush; None for a new object.
    """
    if state.session is not None and private.is_flushing(state.session):
        written = _written(state).get(state)
        if written is not None:
            source: str | None = written[0]
            return source
    return blob.source


def _written(state: Any) -> dict[Any, tuple[str | None, Any]]:
    written: dict[Any, tuple[str | None, Any]]
    written = state.session.info.setdefault(_WRITTEN, {})
    return written


def _merge(
    target: Any, connection: Connection, statements: _Statements, values: dict[str, Any]
) -> _Text:
    """Lock the row, and merge the object's changes into it."""
    blob: Blob = target.data
    name = type(target).__name__
    object_id = values["object_id"]
    stored = statements.lock(connection, object_id)
    if stored is None:
        raise StaleDataError(class_name=name, object_id=object_id, fields=())
    version = statements.version
    if version is not None and stored.version != values["old_version"]:
        raise _stale_error(name, object_id, version.key)
    current = decode_stored(stored.text, statements.type)
    base = decode_blob("{}" if blob.source is None else blob.source)
    mine = changes(base, blob)
    theirs = changes(base, current)
    conflicts = _conflicts(mine, theirs)
    if conflicts:
        raise StaleDataError(
            class_name=name, object_id=object_id, fields=tuple(conflicts)
        )
    _accept(target, blob, current, theirs)
    written = _Text(blob, encode_blob(blob, statements.max_bytes))
    statements.overwrite(connection, {**values, "new_text": written.value})
    return written


def _accept(target: Any, blob: Blob, current: Blob, theirs: dict[str, Any]) -> None:
    """Apply another writer's changes to the object.

    Containers that were read from these fields before are outdated.  A later
    change of such a container raises an error, because it would overwrite the
    other writer's change, or be lost.
    """
    name = type(target).__name__
    object_id = target.id
    for attribute in target.__sqla_shard__.fields.values():
        if not theirs.keys().isdisjoint(attribute.keys):
            attribute.supersede(blob, _stale_error(name, object_id, attribute.name))
    for field in theirs:
        old = blob.get(field)
        if field in current:
            blob[field] = current[field]
        else:
            blob.pop(field, None)
        if isinstance(old, Node) and old is not blob.get(field):
            old._on_change = raiser(_stale_error(name, object_id, field))


def _stale_error(class_name: str, object_id: int, field: str) -> StaleDataError:
    return StaleDataError(class_name=class_name, object_id=object_id, fields=(field,))


class _Version:
    """The ``version_id_col`` of a class."""

    def __init__(self, mapper: Mapper[Any], column: Any) -> None:
        self.column = column
        self.key = mapper.get_property_by_column(column).key
        self._generator: Any = mapper.version_id_generator
        self.is_old = column == bindparam("old_version", type_=column.type)
        self.change: dict[Any, Any] = {}
        if self._generator is not False:
            self.change[column] = bindparam("new_version", type_=column.type)

    def values_of(self, target: Any) -> dict[str, Any]:
        """Return the version of an object, and the next one."""
        old = getattr(target, self.key)
        if self._generator is False:
            return {"old_version": old}
        return {"old_version": old, "new_version": self._generator(old)}

    def apply(self, target: Any, values: dict[str, Any]) -> None:
        """Set the version of an object to the one written."""
        if "new_version" in values:
            set_committed_value(target, self.key, values["new_version"])
        else:
            # The server increments the version.
            inspect(target).session.expire(target, [self.key])


class _Statements:
    """The statements that write the blobs of one table.

    :param versioned: whether the statements increment the version, if there is
        one.
    """

    def __init__(self, mapper: Mapper[Any], *, versioned: bool) -> None:
        table: Any = mapper.local_table
        (key,) = table.primary_key
        data = table.c.data
        self.type: JSONBlob = data.type
        self.max_bytes = self.type.max_bytes
        text = type_coerce(data, Text())
        here = key == bindparam("object_id", type_=key.type)
        new = bindparam("new_text", type_=Text())
        change = update(table).values({data: type_coerce(new, Text())})
        change = change.where(here)
        read: list[Any] = [text.label("text")]
        self.version: _Version | None = None
        if versioned and mapper.version_id_col is not None:
            self.version = _Version(mapper, mapper.version_id_col)
            read.append(mapper.version_id_col.label("version"))
            change = change.where(self.version.is_old)
            change = change.values(self.version.change)
        old = bindparam("old_text", type_=Text())
        self._replace = change.where(text == old)
        self._overwrite = change
        self._lock = select(*read).where(here).with_for_update()

    def replace(self, connection: Connection, values: dict[str, Any]) -> bool:
        """Write a new text if the row still contains the old text."""
        return connection.execute(self._replace, values).rowcount == 1

    def lock(self, connection: Connection, key: int) -> Any:
        """Lock the row; return its text and version, None if not found."""
        return connection.execute(self._lock, {"object_id": key}).first()

    def overwrite(self, connection: Connection, values: dict[str, Any]) -> None:
        """Write a text to a locked row."""
        connection.execute(self._overwrite, values)


_INFO = "sqla_shard.saving"


def _statements_of(mapper: Mapper[Any], state: Any) -> _Statements:
    # If other columns are changed as well, the UPDATE of SQLAlchemy follows:
    # only one of the two may increment the version.
    versioned = mapper.version_id_col is None or not _has_changed_columns(mapper, state)
    table: Any = mapper.local_table
    known = table.info.setdefault(_INFO, {})
    statements: _Statements | None = known.get(versioned)
    if statements is None:
        statements = known[versioned] = _Statements(mapper, versioned=versioned)
    return statements


def _has_changed_columns(mapper: Mapper[Any], state: Any) -> bool:
    """Return True if other columns of the row have changed."""
    columns = {
        mapper.get_property_by_column(column).key
        for column in mapper.local_table.c
        # Other columns belong to classes that share the table.
        if mapper.columns.contains_column(column)
    } - {"data"}
    return any(
        state.get_history(key, PASSIVE_NO_INITIALIZE).has_changes()
        for key in columns.intersection(state.committed_state)
    )
