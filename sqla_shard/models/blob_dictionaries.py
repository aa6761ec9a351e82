"""The dictionaries with which blobs are written.

Each virtual shard has its dictionaries in its own database, and one row says
which of them, if any, is used for writing.  A process reads that row when it
first writes a blob to the shard, in the same transaction, and again after a
minute or when the topology has changed.  So a blob is only compressed with a
dictionary that its shard has, and a process that has not noticed a change yet
writes with the previous dictionary, or JSON, which all processes can read.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping
from time import monotonic
from typing import Any

from sqlalchemy import bindparam, Connection, event, select, true
from sqlalchemy.orm import Mapper, object_session

from sqla_shard.engine import Places
from sqla_shard.engine.rendering import Place
from sqla_shard.exc import ClassDefinitionError
from sqla_shard.outbox.tables import DICTIONARIES as TABLE
from sqla_shard.session import ShardSession
from sqla_shard.session.flush import place_of
from sqla_shard.types import Blob, JSONBlob
from sqla_shard.types.compression import DICTIONARIES, Dictionary

#: Seconds for which a process writes with the dictionary that was active.
SECONDS = 60.0

_ACTIVE = select(TABLE.c.id).where(
    TABLE.c.name == bindparam("the_name"), TABLE.c.is_active == true()
)
_CONTENT = select(TABLE.c.content).where(TABLE.c.id == bindparam("the_id"))

#: Active dictionaries by topology, shard and name; and until when they are
#: valid.
_Known = dict[tuple[tuple[str, int], str], tuple[Dictionary | None, float]]
_known: weakref.WeakKeyDictionary[Places, _Known] = weakref.WeakKeyDictionary()


def name_of(table: Any) -> str | None:
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
    name = name_of(mapper.local_table)
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
    name = name_of(table)
    if name is None:
        return
    found = _active(session._view(place), session.places, place, name)
    for row in rows:
        blob = row.get("data")
        if isinstance(blob, Blob):
            blob.dictionary = found


def _active(
    connection: Connection, places: Places, place: Place, name: str
) -> Dictionary | None:
    """Return the active dictionary of a shard; None to write JSON."""
    known = _known.setdefault(places, {})
    key = place.address, name
    found = known.get(key)
    now = monotonic()
    if found is None or found[1] <= now:
        dictionary = _read(connection, name)
        found = known[key] = dictionary, now + SECONDS
    return found[0]


def _read(connection: Connection, name: str) -> Dictionary | None:
    dictionary_id = connection.execute(_ACTIVE, {"the_name": name}).scalar()
    if dictionary_id is None:
        return None
    known = DICTIONARIES.known(dictionary_id)
    if known is not None:
        return known
    content = connection.execute(_CONTENT, {"the_id": dictionary_id}).scalar()
    return None if content is None else DICTIONARIES.add(bytes(content))
