"""Sources of the ids of new objects.

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
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, get_args, Literal, NoReturn

from sqla_shard.engine.rendering import Place
from sqla_shard.exc import (
    ClassDefinitionError,
    IdServiceError,
    LocalIdsExhaustedError,
    MissingIdError,
)
from sqla_shard.ids import TimeLayout
from sqla_shard.models.id_clock import TimeIds
from sqla_shard.routing.specs import NewIds
from sqla_shard.session import ShardSession
from sqla_shard.session.new_ids import IdService
from sqla_shard.types import ShardedId

__all__ = ["IdService", "IdSource", "new_ids_for", "source_of"]

IdSource = Literal["server", "application", "service"]

_SOURCES: tuple[IdSource, ...] = get_args(IdSource)


def source_of(cls: Any) -> IdSource:
    """Return where the ids of a class come from: its ``id_source``.

    :raises ClassDefinitionError: if the attribute is something else.
    """
    found: Any = getattr(cls, "id_source", "server")
    for source in _SOURCES:
        if found == source:
            return source
    raise ClassDefinitionError(
        f"id_source is {found!r}; it must be one of {', '.join(map(repr, _SOURCES))}",
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
