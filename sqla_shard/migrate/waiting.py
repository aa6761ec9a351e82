"""The rows that wait to be copied, on both sides of a move."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeAlias

from sqlalchemy import Engine, func, Select, select

from sqla_shard.cluster.cluster import Cluster
from sqla_shard.engine import by_server
from sqla_shard.migrate.copying import snapshot
from sqla_shard.migrate.links import MovedLinks
from sqla_shard.migrate.mark_tables import Key, KeyPart, waits_in
from sqla_shard.migrate.stages import Side
from sqla_shard.migrate.tables import MovedRows

#: A table, and the keys of some of its rows that wait to be copied: in the
#: database, or on the shard of the number.
Waiting: TypeAlias = tuple[MovedRows, int | None, list[Key]]


class WaitingRows:
    """The rows that wait to be copied.

    :param tables: the tables of the move by name, parents first.
    :param engine: engine of the database.
    :param cluster: the cluster of the shards.
    """

    def __init__(
        self, tables: Mapping[str, MovedRows], engine: Engine, cluster: Cluster
    ) -> None:
        self._tables = tables
        self._engine = engine
        self._cluster = cluster

    def pages(
        self, source: Side, *, limit: int = 500, part: KeyPart | None = None
    ) -> Iterator[Waiting]:
        """Yield rows that wait to be copied from a side, in pages.

        :param limit: maximum number of rows of a page.
        :param part: the part of the rows of the database; None for all.
        """
        for one in self._tables.values():
            if source == "legacy":
                yield from self._rows_without_id(one, limit, part)
                if not isinstance(one, MovedLinks):
                    yield from self._rows_with_id(one, limit, part)
            else:
                yield from self._waiting_objects(one, limit)

    def _rows_without_id(
        self, one: MovedRows, limit: int, part: KeyPart | None
    ) -> Iterator[Waiting]:
        after: Key | None = None
        while True:
            with snapshot(self._engine) as connection:
                keys = one.marks.waiting_without_id(
                    connection, after=after, limit=limit, part=part
                )
            if not keys:
                return
            yield one, None, keys
            after = keys[-1]

    def _rows_with_id(
        self, one: MovedRows, limit: int, part: KeyPart | None
    ) -> Iterator[Waiting]:
        after = 0
        while True:
            with snapshot(self._engine) as connection:
                keys = one.marks.marked(
                    connection, after=after, limit=limit, waits=True, part=part
                )
            if not keys:
                return
            yield one, None, list(keys.values())
            after = max(keys)

    def _waiting_objects(self, one: MovedRows, limit: int) -> Iterator[Waiting]:
        marks = one.shard_marks.table
        statement = select(*marks.primary_key).where(waits_in(marks)).limit(limit)
        # The keys are object ids, so they name their shards.
        keys = [tuple(row) for row in self._on_servers(one, statement)]
        for shard_id, some in grouped(one, keys).items():
            yield one, shard_id, some

    def _on_servers(self, one: MovedRows, statement: Select[Any]) -> list[Any]:
        """Return the rows of all shards, by one statement for each server."""
        found: list[Any] = []
        with self._cluster.session(cache=False) as session:
            places = session.places.all_places(one.keyspace(session.places))
            for on_one in by_server(places):
                found += session.execute(statement, bind_arguments={"places": on_one})
        return found

    def count(self, source: Side) -> dict[str, int]:
        """Return the numbers of rows that wait to be copied, by table."""
        found = {}
        for name, one in self._tables.items():
            if source == "legacy":
                with snapshot(self._engine) as connection:
                    found[name] = one.marks.count_waiting(connection)
                continue
            marks = one.shard_marks.table
            statement = select(func.count(marks.c.key_1)).where(waits_in(marks))
            found[name] = sum(row[0] for row in self._on_servers(one, statement))
        return found


def grouped(one: MovedRows, keys: Iterable[Key]) -> dict[int, list[Key]]:
    """Return keys on the shards by the number of their shard."""
    layout = one.layout
    found: dict[int, list[Key]] = {}
    for key in keys:
        found.setdefault(layout.unpack(key[0]).shard_id, []).append(key)
    return found
