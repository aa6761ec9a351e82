"""From a compiled statement to the text and parameters of one shard.

Statements are compiled once for all shards, with a mark in place of the
schema and :class:`~sqla_shard.types.binds.ShardBound` parameters in place of
what differs by shard.  The two event handlers here put in the values as late
as possible, when SQLAlchemy hands the text to the driver; so its compiled
cache stays small, and its log and its errors show the SQL that was sent.

Which shards those are travels with the execution, as the execution option
:data:`OPTION`: a :class:`Plan`, or nothing for statements that are not ours.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from sqlalchemy import Connection
from sqlalchemy import Engine
from sqlalchemy.engine.cursor import FullyBufferedCursorFetchStrategy

from sqla_shard.dialects import Backend
from sqla_shard.exc import ColocationError
from sqla_shard.exc import NoShardKeyError
from sqla_shard.types.binds import Address
from sqla_shard.types.binds import IdSlot
from sqla_shard.types.binds import ShardBound

__all__ = [
    "OPTION",
    "SCHEMA",
    "TRANSLATE",
    "Place",
    "Plan",
    "execute_everywhere",
    "render",
    "render_event",
]

#: Stands for the database of the shard in compiled SQL, and may in text().
SCHEMA = "__sqla_shard__"

#: The schema_translate_map of every statement: constant, so that it does not
#: multiply the entries of the compiled cache.  SQLAlchemy adds a key of its
#: own to it, so it is a plain dict.
TRANSLATE: dict[str | None, str | None] = {None: SCHEMA}

OPTION = "sqla_shard"


@dataclass(frozen=True, eq=False)
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


class Plan:
    """The shards of one execution, and the connection to each.

    :ivar places: at least one.
    :ivar connections: one for each place; those of one server are the same
        object.
    :ivar wrote: called with the place before a statement writes there.
    """

    __slots__ = ("connections", "jobs", "places", "wrote")

    def __init__(
        self,
        places: Sequence[Place],
        connections: Sequence[Connection] = (),
        wrote: Callable[[Place, str], None] | None = None,
    ) -> None:
        self.places = places
        self.connections = connections
        self.wrote = wrote
        self.jobs: list[tuple[Connection, str, Any]] = []


_FORMAT_TOKEN = re.compile(r"%%|(%s)")
# A question mark inside a literal or a quoted name is not a placeholder.
_QMARK_TOKEN = re.compile(
    r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|`(?:[^`]|``)*`|(\?)"""
)


@lru_cache(maxsize=1024)
def _pieces(text: str, placeholder: str) -> tuple[str, ...]:
    """Split a statement at its placeholders."""
    token = _FORMAT_TOKEN if placeholder == "%s" else _QMARK_TOKEN
    pieces = []
    start = 0
    for match in token.finditer(text):
        if match.group(1):
            pieces.append(text[start : match.start()])
            start = match.end()
    pieces.append(text[start:])
    return tuple(pieces)


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
        if isinstance(value, IdSlot):
            slots = slots or {}
            slots[index] = value.text_at(place.shard_id)
        elif isinstance(value, ShardBound):
            values.append(value.at(place.shard_id))
        else:
            values.append(value)
    if slots:
        pieces = _pieces(text, placeholder)
        out = [pieces[0]]
        for index, piece in enumerate(pieces[1:]):
            out.append(slots.get(index, placeholder))
            out.append(piece)
        text = "".join(out)
    return text.replace(SCHEMA, place.schema), tuple(values)


def render_event(
    connection: Connection,
    cursor: Any,
    statement: str,
    parameters: Any,
    context: Any,
    executemany: bool,
) -> tuple[str, Any]:
    """Handle ``before_cursor_execute``: put in what differs by shard."""
    plan: Plan | None = context.execution_options.get(OPTION)
    if plan is None:
        if SCHEMA in statement:
            raise NoShardKeyError(
                "this connection was given no shard; take one with "
                'session.connection(bind_arguments={"shard_id": ...})',
                tables=(),
            )
        return statement, parameters
    place = plan.places[0]
    _before(plan, place, connection, cursor, statement, parameters, context)
    if not isinstance(parameters, (tuple, list)):
        return statement.replace(SCHEMA, place.schema), parameters
    placeholder = "%s" if context.dialect.paramstyle == "format" else "?"
    if parameters and isinstance(parameters[0], (tuple, list)):
        rows = [render("", row, place, placeholder)[1] for row in parameters]
        return statement.replace(SCHEMA, place.schema), rows
    if len(plan.places) > 1:
        if _locks(context):
            for other, there in zip(
                plan.connections, plan.places, strict=True
            ):
                there.backend.lock(other)
        plan.jobs = [
            (other, *render(statement, parameters, there, placeholder))
            for other, there in zip(
                plan.connections[1:], plan.places[1:], strict=True
            )
        ]
    return render(statement, parameters, place, placeholder)


def _before(
    plan: Plan,
    place: Place,
    connection: Connection,
    cursor: Any,
    statement: str,
    parameters: Any,
    context: Any,
) -> None:
    """Do what must come before a statement on its connection."""
    if context.isinsert or context.isupdate or context.isdelete:
        if plan.wrote is not None:
            plan.wrote(place, _describe(context))
        if context.isinsert:
            _check_addresses(parameters, place)
    elif getattr(context, "is_text", False) or context.compiled is None:
        place.backend.use(connection, cursor, place.schema)
        if plan.wrote is not None and not _only_reads(statement):
            plan.wrote(place, "textual SQL")
    elif len(plan.places) == 1 and _locks(context):
        place.backend.lock(connection)


def _describe(context: Any) -> str:
    table = getattr(context.compiled.statement, "table", None)
    return f"a row of {getattr(table, 'name', 'a table')}"


def _only_reads(statement: str) -> bool:
    return statement.lstrip(" \n\t(").upper().startswith(("SELECT", "SHOW"))


def _locks(context: Any) -> bool:
    statement = context.compiled.statement
    return getattr(statement, "_for_update_arg", None) is not None


def _check_addresses(parameters: Any, place: Place) -> None:
    # Address.at() saturates, which is right in a comparison; stored, it
    # would be a reference to a row that does not exist.
    rows = (
        parameters
        if parameters and isinstance(parameters[0], (tuple, list))
        else (parameters,)
    )
    for row in rows:
        for value in row:
            if isinstance(value, Address) and not value.is_at(place.shard_id):
                raise ColocationError(
                    f"{value.object_id} is not an object of type "
                    f"{value.type_id} on shard {place.shard_id}, where "
                    "the row is inserted; a ShardedId column refers to a "
                    "row of the same shard. Use ObjectRef for others",
                    class_name="INSERT",
                    field="ShardedId",
                    value=value.object_id,
                )


def execute_everywhere(
    cursor: Any, statement: str, parameters: Any, context: Any
) -> bool | None:
    """Handle ``do_execute``: run a statement on all shards of its plan.

    The rows of the other shards join those of the first in one buffer, so
    that the ORM loads them all in one go.
    """
    plan: Plan | None = context.execution_options.get(OPTION)
    if plan is None or not plan.jobs:
        return None
    jobs, plan.jobs = plan.jobs, []
    context.dialect.do_execute(cursor, statement, parameters, context)
    rows = list(cursor.fetchall())
    for connection, text, values in jobs:
        # Rendered already, whatever the connection itself is bound to.
        result: Any = connection.exec_driver_sql(
            text, values, execution_options={OPTION: None}
        )
        rows.extend(result.cursor.fetchall())
        result.close()
    context.cursor_fetch_strategy = FullyBufferedCursorFetchStrategy(
        cursor, initial_buffer=rows
    )
    return True
