"""From a compiled statement to the text and parameters of one shard.

Statements are compiled once for all shards, with a mark in place of the
schema and :class:`~sqla_shard.types.binds.ShardBound` parameters in place of
what differs by shard.  :func:`render` puts in the values.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from sqlalchemy import Engine

from sqla_shard.dialects import Backend
from sqla_shard.types.binds import ShardBound
from sqla_shard.types.binds import Slot

__all__ = [
    "SCHEMA",
    "TRANSLATE",
    "Place",
    "pieces",
    "render",
]

#: Stands for the database of the shard in compiled SQL, and may in text().
SCHEMA = "__sqla_shard__"

#: The schema_translate_map of every statement: constant, so that it does not
#: multiply the entries of the compiled cache.  SQLAlchemy adds a key of its
#: own to it, so it is a plain dict.
TRANSLATE: dict[str | None, str | None] = {None: SCHEMA}


@dataclass(frozen=True, eq=False, slots=True)
class Place:
    """Where one virtual shard is now.

    :ivar keyspace: name of its keyspace.
    :ivar shard_id: its number; 0 in a global keyspace.
    :ivar server: name of the physical server.
    :ivar schema: its database, quoted, as statements name it.
    :ivar engine: the pool of the server.
    """

    keyspace: str
    shard_id: int
    server: str
    schema: str
    engine: Engine
    backend: Backend

    @property
    def address(self) -> tuple[str, int]:
        """Keyspace and shard: what stays the same when a server is split."""
        return self.keyspace, self.shard_id

    def __str__(self) -> str:
        return f"shard {self.shard_id} of {self.keyspace} on {self.server}"


_FORMAT_TOKEN = re.compile(r"%%|(%s)")
# A question mark inside a literal or a quoted name is not a placeholder.
_QMARK_TOKEN = re.compile(
    r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|`(?:[^`]|``)*`|(\?)"""
)


@lru_cache(maxsize=1024)
def pieces(text: str, placeholder: str) -> tuple[str, ...]:
    """Split a statement at its placeholders."""
    token = _FORMAT_TOKEN if placeholder == "%s" else _QMARK_TOKEN
    found = []
    start = 0
    for match in token.finditer(text):
        if match.group(1):
            found.append(text[start : match.start()])
            start = match.end()
    found.append(text[start:])
    return tuple(found)


def render(
    text: str, parameters: Sequence[Any], place: Place, placeholder: str
) -> tuple[str, tuple[Any, ...]]:
    """Return the statement and parameters of one shard.

    :param text: compiled SQL with :data:`SCHEMA` as schema.
    :param parameters: one value per placeholder, in order.
    :param placeholder: ``%s`` or ``?``.
    """
    values = []
    slots = None
    for index, value in enumerate(parameters):
        if isinstance(value, Slot):
            slots = slots or {}
            slots[index] = value.text_at(place.shard_id)
        elif isinstance(value, ShardBound):
            values.append(value.at(place.shard_id))
        else:
            values.append(value)
    if slots:
        parts = pieces(text, placeholder)
        out = [parts[0]]
        for index, piece in enumerate(parts[1:]):
            out.append(slots.get(index, placeholder))
            out.append(piece)
        text = "".join(out)
    return text.replace(SCHEMA, place.schema), tuple(values)
