"""Rows of many-to-many relationships, each on the shard of its objects.

SQLAlchemy writes the link rows of a whole flush through one connection, that
of the class.  Here they are handed to it shard by shard.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqla_shard.exc import ColocationError
from sqla_shard.ids import SHARD_SHIFT
from sqla_shard.rendering import Place
from sqla_shard.routing import routes
from sqla_shard.routing import spec_of
from sqla_shard.session.core import ShardSession
from sqla_shard.session.links import mapping_class
from sqla_shard.session.views import bulk_on

__all__ = ["write_by_shard"]

Row = dict[str, Any]


def write_by_shard(relation: Any) -> None:
    """Have the link rows of a relationship written on their shards.

    :param relation: of a mapper that was configured, with ``secondary``.
    """
    processor = relation._dependency_processor
    write = processor._run_crud
    table = relation.secondary
    columns = tuple(column for column in table.columns if routes(column))

    def by_shard(
        flush: Any, inserted: list[Row], updated: list[Row], deleted: list[Row]
    ) -> None:
        session = flush.session
        if not isinstance(session, ShardSession):
            write(flush, inserted, updated, deleted)
            return
        grouped: dict[Place, tuple[list[Row], list[Row], list[Row]]] = {}
        for index, rows in enumerate((inserted, updated, deleted)):
            for row in rows:
                place = _place(session, relation, columns, row)
                grouped.setdefault(place, ([], [], []))[index].append(row)
        for place, some in grouped.items():
            session.log.wrote(place, f"rows of {table.name}", table)
            with bulk_on(session, place):
                write(flush, *some)

    processor._run_crud = by_shard


def _place(
    session: ShardSession, relation: Any, columns: Iterable[Any], row: Row
) -> Place:
    """Return the place of a link row.

    :raises ColocationError: when it holds ids of two shards.
    """
    ids = [row[column.key] for column in columns if column.key in row]
    shards = {value >> SHARD_SHIFT for value in ids}
    if len(shards) != 1:
        # Objects that an event has linked in the middle of the flush.
        raise ColocationError(
            f"a row of {relation.secondary.name} would link objects of the "
            f"shards {sorted(shards)}, and is on one of them only. For "
            f"objects of different shards write\n{mapping_class(relation)}",
            class_name=relation.parent.class_.__name__,
            field=relation.key,
            value=tuple(ids),
        )
    spec = spec_of(relation.secondary)
    keyspace = session.places.keyspace(spec.keyspace, spec.kind)
    return session.places.place(keyspace, shards.pop())
