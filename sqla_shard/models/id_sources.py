"""Sources of the ids of new objects, and the layouts of ids.

The attribute ``id_source`` of a class says it, usually of the declarative
base:

``"server"``
    AUTO_INCREMENT of the server, or the clock of the shard for a
    :class:`~sqla_shard.TimeLayout`.  The default.
``"application"``
    Every new object has its id when it is created: ``Pin(id=...)``.
``"service"``
    :attr:`.Cluster.id_service` issues the local ids, such as
    :class:`~sqla_shard.models.tickets.TicketServers`.

A class has the layout that its attribute ``id_layout`` says, which the
declarative base or an abstract base has::

    class Base(DeclarativeBase):
        id_layout = IdLayout(shard_bits=13, type_bits=10, local_bits=40)

Columns whose type has no layout of its own have that of their class.  The
keyspace has the layout in the topology as well; each use of a class compares
both, because ids that were created with one layout must never be read with
another.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, get_args, Literal, NoReturn

from sqlalchemy import bindparam, case, Connection, event, func, inspect, Table, update
from sqlalchemy.orm import Mapper

from sqla_shard.dialects.sql import InsertMissing
from sqla_shard.engine import ExecutionPlan, OPTION
from sqla_shard.engine.rendering import Place, TRANSLATE
from sqla_shard.exc import (
    ClassDefinitionError,
    IdServiceError,
    LocalIdsExhaustedError,
    MissingIdError,
)
from sqla_shard.ids import DEFAULT_LAYOUT, IdLayout, TimeLayout
from sqla_shard.outbox.tables import CLOCKS
from sqla_shard.planning import declare_new_ids, spec_of
from sqla_shard.planning.specs import NewIds
from sqla_shard.session import ShardSession
from sqla_shard.session.placement import IdService
from sqla_shard.types import IdType, ShardedId

__all__ = ["IdService", "IdSource", "new_ids_for", "source_of"]

IdSource = Literal["server", "application", "service"]

_SOURCES: tuple[IdSource, ...] = get_args(IdSource)


def source_of(cls: Any) -> IdSource:
    """Return where the ids of a class come from: its ``id_source``.

    :raises ClassDefinitionError: if the attribute is something else.
    """
    chosen: Any = getattr(cls, "id_source", "server")
    for source in _SOURCES:
        if chosen == source:
            return source
    raise ClassDefinitionError(
        f"id_source is {chosen!r}; it must be one of {', '.join(map(repr, _SOURCES))}",
        class_name=cls.__name__,
    )


def new_ids_for(cls: Any, table: str, kind: ShardedId) -> NewIds | None:
    """Return the function that issues the ids of a class.

    :param table: name of its table.
    :param kind: type of the column with its ids.
    :returns: None if AUTO_INCREMENT does.
    :raises ClassDefinitionError: see :func:`source_of`.
    """
    source = source_of(cls)
    if source == "application":
        return partial(_refuse, cls.__name__, table)
    if source == "service":
        return ServiceIds(table, kind)
    if isinstance(kind.layout, TimeLayout):
        return TimeIds(kind.layout, kind.type_id)
    return None


def _refuse(
    name: str, table: str, session: ShardSession, place: Place, count: int
) -> NoReturn:
    raise MissingIdError(
        table=table,
        reason=(
            "its ids are taken from the application (id_source). Set it: "
            f"{name}(id=...)"
        ),
    )


class ServiceIds:
    """Has the ids of a class issued by the service of the cluster.

    :param table: name of the table.
    :param kind: type of the column with its ids.
    """

    def __init__(self, table: str, kind: ShardedId) -> None:
        self._table = table
        self._layout = kind.layout
        self._type_id = kind.type_id

    def __call__(
        self, session: ShardSession, place: Place, count: int
    ) -> Sequence[int]:
        """Return new ids of a shard.

        :raises MissingIdError: if the cluster has no service.
        :raises IdServiceError: if the service issues none, or not as many.
        :raises LocalIdsExhaustedError: if one has too many bits.
        """
        service = session.cluster.id_service
        if service is None:
            raise MissingIdError(
                table=self._table,
                reason=(
                    "its ids are issued by a service (id_source), and the "
                    "cluster has none. Set cluster.id_service, such as to "
                    "TicketServers([...])"
                ),
            )
        # The cache is optional, and most processes need no service.
        from sqla_shard.cache.stores import awaited

        issued = awaited(session, partial(service.issue, self._table, count))
        layout = self._layout
        type_id = self._type_id if layout.names_type else 0
        if len(issued) != count or len(set(issued)) != count:
            raise IdServiceError(
                f"{count} different ids were requested for {self._table}, "
                f"and {service!r} has issued {len(issued)}, of which "
                f"{len(set(issued))} differ"
            )
        # Other values are refused by pack().
        highest = max((one for one in issued if type(one) is int), default=0)
        if highest > layout.max_local_id:
            raise LocalIdsExhaustedError(
                object_id=highest, type_id=self._type_id, bits=layout.local_bits
            )
        return [layout.pack(place.shard_id, type_id, one) for one in issued]


# -- Ids that begin with the time, from the clock of their shard.
#
# Each shard has a row with the highest local id that was issued: the time and
# the sequence number of its ids, see :class:`~sqla_shard.TimeLayout`.  To issue
# ids, one UPDATE advances it to the current time, or by the number of ids if it
# is there already.  So ids are unique, and increase on the shard, whatever the
# clocks of the processes say: where one is behind, or goes back, ids continue
# after the last one that was issued.
#
# The UPDATE has a transaction of its own, because its lock would otherwise let
# all transactions that insert into the shard wait for each other.  A transaction
# that is rolled back leaves a gap.  A file of SQLite has one writer at a time,
# so there the UPDATE is part of the transaction.


#: Key of the only row.
_ROW = 1
_NANOSECONDS = 1_000_000

_last = CLOCKS.c.last_id
_next = _last + bindparam("the_count")
_new = case((_next > bindparam("the_least"), _next), else_=bindparam("the_least"))
_own = update(CLOCKS).where(CLOCKS.c.id == _ROW)
# One statement, which is atomic without a transaction too: another process
# may advance the row before it could be read.
_ADVANCE = _own.values(last_id=func.last_insert_id(_new))
_ADVANCE_FILE = _own.values(last_id=_new).returning(_last)
_INSERT = InsertMissing(CLOCKS).values(id=_ROW, last_id=-1)


class TimeIds:
    """Issues the ids of a class.

    :param layout: layout of its ids.
    :param type_id: its type id, for messages.
    """

    def __init__(self, layout: TimeLayout, type_id: int) -> None:
        self._layout = layout
        self._type_id = type_id

    def __call__(
        self, session: ShardSession, place: Place, count: int
    ) -> Sequence[int]:
        """Return new ids of a shard, in increasing order.

        :raises LocalIdsExhaustedError: if the time has too many bits.
        """
        layout = self._layout
        now = session.cluster.id_clock() // _NANOSECONDS - layout.epoch_ms
        least = (max(now, 0) << layout.sequence_bits) + count - 1
        if least > layout.max_local_id:
            # The row must not be advanced: it never goes back.
            raise self._exhausted(least)
        last = _advance(session, place, least, count)
        if last > layout.max_local_id:
            raise self._exhausted(last)
        return [
            layout.pack(place.shard_id, 0, local_id)
            for local_id in range(last - count + 1, last + 1)
        ]

    def _exhausted(self, local_id: int) -> LocalIdsExhaustedError:
        return LocalIdsExhaustedError(
            object_id=local_id, type_id=self._type_id, bits=self._layout.local_bits
        )


def _advance(session: ShardSession, place: Place, least: int, count: int) -> int:
    """Advance the row of a shard; return the last id that is issued."""
    values = {"the_least": least, "the_count": count}
    if place.backend.one_writer:
        return _advance_file(session._view(place), values)
    with place.engine.connect() as root:
        connection = root.execution_options(
            **{OPTION: ExecutionPlan((place,)), "schema_translate_map": TRANSLATE}
        )
        result = connection.execute(_ADVANCE, values)
        if not result.rowcount:
            # The UPDATE has locked the gap, where another one may have to
            # insert the row: two of them would deadlock.
            root.rollback()
            connection.execute(_INSERT)
            root.commit()
            result = connection.execute(_ADVANCE, values)
        last: int = result.lastrowid
        root.commit()
    return last


def _advance_file(connection: Connection, values: dict[str, int]) -> int:
    last: int | None = connection.execute(_ADVANCE_FILE, values).scalar()
    if last is None:
        connection.execute(_INSERT)
        last = connection.execute(_ADVANCE_FILE, values).scalar_one()
    return last


def layout_of(cls: Any) -> IdLayout:
    """Return the layout of the ids of a class: its attribute ``id_layout``.

    :raises ClassDefinitionError: if the attribute is something else.
    """
    layout = getattr(cls, "id_layout", DEFAULT_LAYOUT)
    if isinstance(layout, IdLayout):
        return layout
    raise ClassDefinitionError(
        f"id_layout is {layout!r}; it must be an IdLayout, an attribute of "
        "the declarative base: id_layout = IdLayout(shard_bits=13, "
        "type_bits=10, local_bits=40)",
        class_name=cls.__name__,
    )


def adopt_layout(cls: Any, table: Table) -> None:
    """Let the columns of a class that contain ids use its layout."""
    layout = layout_of(cls)
    for column in table.columns:
        if isinstance(column.type, IdType):
            column.type.adopt(layout)


def check_parent_layout(cls: Any, key: str, theirs: IdLayout) -> None:
    """Reject a parent whose ids have another layout than the class.

    :param key: the field with the parent's id.
    :param theirs: the layout of the parent's ids.
    :raises ClassDefinitionError: for such a parent.
    """
    own = layout_of(cls)
    if theirs != own:
        raise ClassDefinitionError(
            f"colocate_with={key!r} holds {theirs}, and the class has {own}: "
            "the parent is in another keyspace, and an object is on the shard "
            "of a parent of its own keyspace; leave out colocate_with",
            class_name=cls.__name__,
        )


def require_default_layout(cls: Any) -> None:
    """Reject a class whose ids do not have the default layout.

    :raises ClassDefinitionError: for such a class.
    """
    spec = spec_of(inspect(cls).local_table)
    if spec.layout is not None and spec.layout != DEFAULT_LAYOUT:
        raise ClassDefinitionError(
            f"it has {spec.layout}, and follow graphs and feeds support the "
            "default layout only; use a class of a keyspace that has it",
            class_name=cls.__name__,
        )


def _adopt(mapper: Mapper[Any], cls: Any) -> None:
    """Handle ``after_mapper_constructed`` of every mapped class."""
    table = mapper.local_table
    if not isinstance(table, Table):
        return
    if hasattr(cls, "id_layout"):
        adopt_layout(cls, table)
    if mapper.inherits is None and len(table.primary_key) == 1:
        (column,) = table.primary_key
        if isinstance(column.type, ShardedId):
            new_ids = new_ids_for(cls, table.name, column.type)
            if new_ids is not None:
                declare_new_ids(table, new_ids)


# Classes without a mixin of this package may have columns with ids.
event.listen(Mapper, "after_mapper_constructed", _adopt)
