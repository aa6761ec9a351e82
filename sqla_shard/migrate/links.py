"""Association tables that become mapping tables.

A row has the primary keys of two objects, which are its own primary key; on
the shards it has their object ids, and is on the shard of the first one.  The
column ``order_by`` becomes the position in the list, and the position becomes
the column: a time with the precision of the column, or an integer.  Without it
a list is in the order of its targets.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from datetime import datetime, timedelta, tzinfo, UTC
from types import MappingProxyType
from typing import Any

from sqlalchemy import Column, Connection, DateTime, Integer, select

from sqla_shard.cluster.cluster import Cluster
from sqla_shard.exc import ConversionError, DeclarationError
from sqla_shard.migrate.copying import Row
from sqla_shard.migrate.declaration import MappingTable
from sqla_shard.migrate.future import Future
from sqla_shard.migrate.mark_tables import among, Key
from sqla_shard.migrate.rows import AttributeDifference, Reference
from sqla_shard.migrate.tables import Moved, MovedRows, ShardPart
from sqla_shard.models.list_positions import STEP
from sqla_shard.models.mapping_definition import link

#: Positions of a microsecond, and of an integer.
_MICROSECOND = STEP // 1000
_NUMBER = 10**19
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TICK = timedelta(microseconds=1)


class MovedLinks(MovedRows):
    """An association table that becomes a mapping table.

    :param item: its part of the declaration.
    :param future: the tables as they will be.
    :param moved: the mapping class, and the time zone of ``order_by``.
    :raises DeclarationError: if the table or the class does not fit.
    """

    def __init__(self, item: MappingTable, future: Future, moved: Moved) -> None:
        found = future.tables[item.table]
        super().__init__(item.table, found.table, moved.cls, 2)
        definition = link(moved.cls)
        columns = item.source, item.target
        types = [found.kinds[name].type_id for name in columns]
        names = [column.name for column in found.table.primary_key]
        order = found.table.c[item.order_by] if item.order_by else None
        problems = []
        if set(names) != set(columns):
            problems.append(
                f"the primary key of {item.table} must be {item.source} and "
                f"{item.target}; declare a table with an id as Owned"
            )
        if types != [definition.source.type_id, definition.target.type_id]:
            problems.append(
                f"{moved.cls.__name__} maps other classes than those of "
                f"{item.source} and {item.target}"
            )
        if definition.spread > 1:
            problems.append(f"{moved.cls.__name__}: lists with spread= are not moved")
        if order is not None and not isinstance(order.type, (DateTime, Integer)):
            problems.append(f"{item.table}.{order.name} must be a time or an integer")
        if problems:
            raise DeclarationError(problems)
        self.source_column = definition.source.column
        self.target_column = definition.target.column
        self._types = types
        # The key of the database may have the other order.
        self._swapped = names[0] != item.source
        self._conversion = LinkConversion(
            [column.name for column in found.table.columns if column.name not in names],
            order,
            moved.zone,
        )

    @property
    def conversion(self) -> LinkConversion:
        """The way from rows to positions and back."""
        return self._conversion

    def on(self, cluster: Cluster, shard_id: int) -> ShardLinks:
        """Return the rows on a shard."""
        return ShardLinks(self, cluster, shard_id)

    def ends(self, key: Key) -> tuple[Reference, Reference]:
        """Return source and target of a key of either side."""
        source, target = self._types
        return (source or 0, key[0]), (target or 0, key[1])

    def turned(self, key: Key) -> Key:
        """Return a key of the database as source and target, or back."""
        return key[::-1] if self._swapped else key


class LinkConversion:
    """The way from rows of an association table to positions and back.

    :param columns: names of the columns besides the key.
    :param order: the column with the order, if any.
    :param zone: time zone in which it was written.
    """

    #: No column of the shards has the values as they are.
    raw: Mapping[str, Column[Any]] = MappingProxyType({})

    def __init__(
        self, columns: list[str], order: Column[Any] | None, zone: tzinfo
    ) -> None:
        self._order = order
        self._zone = zone
        self.left = tuple(
            name for name in columns if order is None or name != order.name
        )

    def reverts(self, name: str) -> bool:
        """Return False: there are no functions."""
        return False

    def converts(self, name: str) -> bool:
        """Return False: there are no functions."""
        return False

    def references(self, row: Row) -> set[Reference]:
        """Return nothing: the key has the references."""
        return set()

    def values(self, row: Row, ids: Mapping[Reference, int]) -> dict[str, Any]:
        """Return the position of a row."""
        if self._order is None:
            return {"sequence": STEP}
        value = row[self._order.name]
        if value is None:
            return {"sequence": 0}
        if isinstance(value, str):
            raise ConversionError(
                column=f"{self._order.table.name}.{self._order.name}",
                value=repr(value),
                reason="it is no moment, and positions are moments",
            )
        if not isinstance(value, datetime):
            return {"sequence": value * _NUMBER}
        if value.tzinfo is None:
            value = value.replace(tzinfo=self._zone)
        return {"sequence": (value - _EPOCH) // _TICK * _MICROSECOND}

    def attributes(self, found: Any) -> dict[str, Any]:
        """Return the position of a row of the mapping class."""
        return {"sequence": found.sequence}

    def row(self, attributes: Row) -> dict[str, Any]:
        """Return the column with the order, with its precision."""
        if self._order is None:
            return {}
        sequence = attributes["sequence"]
        if isinstance(self._order.type, Integer):
            return {self._order.name: sequence // _NUMBER}
        moment = _EPOCH + sequence // _MICROSECOND * _TICK
        if not getattr(self._order.type, "fsp", None):
            # The server would round it.
            moment = moment.replace(microsecond=0)
        moment = moment.astimezone(self._zone)
        return {self._order.name: moment.replace(tzinfo=None)}

    def differences(self, values: Row, found: Row) -> Iterator[AttributeDifference]:
        """Yield the position if it differs, with the column's precision."""
        if self.row(values) != self.row(found):
            yield AttributeDifference(
                attribute="sequence",
                expected=values["sequence"],
                found=found["sequence"],
            )


class ShardLinks(ShardPart):
    """The rows of a mapping table on one shard, by source and target."""

    _one: MovedLinks

    def read(self, connection: Connection, keys: Collection[Key]) -> dict[Key, Row]:
        """Return the positions of rows."""
        columns = tuple(self._one.mapper.primary_key)
        cls = self._one.cls
        found = self._session.execute(
            select(*columns, cls.sequence).where(among(columns, list(keys))),
            bind_arguments={"place": self._place},
        )
        return {
            (source, target): {"sequence": sequence}
            for source, target, sequence in found
        }

    def write(self, connection: Connection, rows: Mapping[Key, Row | None]) -> None:
        """Put targets into lists, or remove them."""
        lists: dict[int, dict[int, Row | None]] = {}
        for (source_id, target_id), row in rows.items():
            lists.setdefault(source_id, {})[target_id] = row
        # Two copies lock the lists in one order.
        for source_id, targets in sorted(lists.items()):
            self._write_list(source_id, targets)

    def _write_list(self, source_id: int, targets: Mapping[int, Row | None]) -> None:
        cls, session = self._one.cls, self._session
        placed = {}
        for target_id, row in sorted(targets.items()):
            if row is None:
                cls.remove(session, source_id, target_id)
            else:
                placed[target_id] = row["sequence"]
        if len(placed) > 1:
            cls.put_many(session, source_id, placed)
        else:
            # Needs a statement less.
            for target_id, sequence in placed.items():
                cls.put(session, source_id, target_id, sequence)
