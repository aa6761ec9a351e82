"""Copies between the database and the shards, in both directions.

Forward, the object ids of the rows and of those that they refer to are
claimed before.  Backward, an object that was created on the shards gets the
primary key that the database chooses, in the transaction that inserts it: a
second copy at the same time fails by the unique object id, and is repeated.
An object that was deleted before it was copied leaves a mark of a key below
zero, so that a late copy does not insert it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import datetime, timedelta, tzinfo, UTC
from functools import partial
from types import MappingProxyType
from typing import Any, TypeAlias

from sqlalchemy import (
    Column,
    Connection,
    DateTime,
    Engine,
    func,
    Integer,
    Select,
    select,
    TIMESTAMP,
)
from sqlalchemy.exc import IntegrityError, SQLAlchemyError

from sqla_shard.cluster.cluster import Cluster
from sqla_shard.dialects import Backend, backend_for, retry_conflicts
from sqla_shard.engine import by_server
from sqla_shard.engine.unreachable import reason
from sqla_shard.exc import ConversionError, DeclarationError, UnclaimableRowError
from sqla_shard.migrate.copies import (
    apply_images,
    Image,
    one_read,
    read_images,
    record_images,
    Row,
    snapshot,
)
from sqla_shard.migrate.declaration import MappingTable
from sqla_shard.migrate.future import Future
from sqla_shard.migrate.marks import among, Key, KeyPart, waits_in
from sqla_shard.migrate.stages import Side
from sqla_shard.migrate.tables import (
    AttributeDifference,
    Moved,
    MovedRows,
    MovedTable,
    Reference,
    ShardObjects,
    ShardPart,
)
from sqla_shard.models.list_positions import STEP
from sqla_shard.models.lookup_table import link as lookup_link
from sqla_shard.models.mapping_definition import link
from sqla_shard.util.logs import careful_log

#: Positions of a microsecond, and of an integer.
_MICROSECOND = STEP // 1000

_NUMBER = 10**19

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_TICK = timedelta(microseconds=1)


class MovedLinks(MovedRows):
    """An association table that becomes a mapping table.

    A row has the primary keys of two objects, which are its own primary key; on
    the shards it has their object ids, and is on the shard of the first one.  The
    column ``order_by`` becomes the position in the list, and the position becomes
    the column: a time with the precision of the column, or an integer.  Without it
    a list is in the order of its targets.

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
        self.source_column: str = definition.source.column
        self.target_column: str = definition.target.column
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
        self.left: tuple[str, ...] = tuple(
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
        if isinstance(self._order.type, TIMESTAMP):
            return {self._order.name: moment}
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
        pairs = self._session.execute(
            select(*columns, cls.sequence).where(among(columns, list(keys))),
            bind_arguments={"place": self._place},
        )
        return {
            (source, target): {"sequence": sequence}
            for source, target, sequence in pairs
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
        rows: list[Any] = []
        with self._cluster.session(cache=False) as session:
            places = session.places.all_places(one.keyspace(session.places))
            for on_one in by_server(places):
                rows += session.execute(statement, bind_arguments={"places": on_one})
        return rows

    def count(self, source: Side) -> dict[str, int]:
        """Return the numbers of rows that wait to be copied, by table."""
        counts = {}
        for name, one in self._tables.items():
            if source == "legacy":
                with snapshot(self._engine) as connection:
                    counts[name] = one.marks.count_waiting(connection)
                continue
            marks = one.shard_marks.table
            statement = select(func.count(marks.c.key_1)).where(waits_in(marks))
            counts[name] = sum(row[0] for row in self._on_servers(one, statement))
        return counts


def grouped(one: MovedRows, keys: Iterable[Key]) -> dict[int, list[Key]]:
    """Return keys on the shards by the number of their shard."""
    layout = one.layout
    groups: dict[int, list[Key]] = {}
    for key in keys:
        groups.setdefault(layout.unpack(key[0]).shard_id, []).append(key)
    return groups


_log = careful_log(__name__)

#: Attempts of a copy that loses against another transaction.
_ATTEMPTS = 4


class Copier:
    """Copies rows.

    :param tables: the tables of the move by name, parents first.
    :param engine: engine of the database.
    :param cluster: the cluster of the shards.
    """

    def __init__(
        self, tables: Mapping[str, MovedRows], engine: Engine, cluster: Cluster
    ) -> None:
        self.ids: IdMap = IdMap(tables, engine, cluster)
        self._engine = engine
        self._cluster = cluster

    # -- forward

    def forward(self, one: MovedRows, keys: Collection[Key], *, number: int) -> int:
        """Copy rows that wait from the database to the shards.

        :param number: the round.
        :returns: the number of rows that were written.
        """
        legacy = one.legacy(self._engine)
        images = {
            key: image
            for key, image in read_images(legacy, keys).items()
            if image.waits
        }
        keys_there = self.ids.shard_keys(one, images)
        images = {key: images[key] for key in images if key in keys_there}
        converted = self.converted(one, images, keys_there)
        written = 0
        for shard_id, some in grouped(one, converted).items():
            on_shard = {key: converted[key] for key in some}
            part = one.on(self._cluster, shard_id)
            written += apply_images(part, on_shard, number=number)
            if isinstance(part, ShardObjects) and isinstance(one, MovedTable):
                for attribute, lookup in one.lookups.items():
                    self._write_keys(lookup, attribute, on_shard, part.former)
        record_images(legacy, images)
        return written

    def _write_keys(
        self,
        lookup: Any,
        attribute: str,
        images: Mapping[Key, Image],
        former: Mapping[Key, Row],
    ) -> None:
        """Give objects their keys, and release the former ones.

        The rows wait until it is done.  A process that dies before it has
        released a former key leaves that one; ``sqla-shard verify lookups``
        finds it.

        :raises KeyTakenError: if a key belongs to another object.
        """
        wanted = {
            key: image.row[attribute]
            for key, image in images.items()
            if image.row is not None and image.row[attribute] is not None
        }
        run = self._cluster.run
        for key, row in former.items():
            if row[attribute] not in (None, wanted.get(key)):
                run(lookup.release, row[attribute], key[0])
        if not lookup_link(lookup).unique:
            for (object_id,), text in wanted.items():
                run(lookup.add, text, object_id)
            return
        with self._cluster.session(cache=False) as session:
            known = lookup.resolve_many(session, wanted.values())
        for (object_id,), text in wanted.items():
            if known.get(text) != object_id:
                run(lookup.claim, text, object_id)

    def converted(
        self, one: MovedRows, images: Mapping[Key, Image], keys_there: Mapping[Key, Key]
    ) -> dict[Key, Image]:
        """Return images of rows as they are on the shards.

        :param keys_there: the keys on the shards.
        """
        conversion = one.conversion
        references = self.ids.of_references(
            reference
            for image in images.values()
            if image.row is not None
            for reference in conversion.references(image.row)
        )
        return {
            keys_there[key]: Image(
                version=image.version,
                copied=image.copied,
                row=None
                if image.row is None
                else conversion.values(image.row, references),
            )
            for key, image in images.items()
        }

    # -- backward

    def back(
        self, one: MovedRows, shard_id: int, keys: Collection[Key], *, number: int
    ) -> int:
        """Copy rows from a shard to the database.

        :param keys: keys on the shard.
        :param number: the round.
        :returns: the number of rows that were written.
        """
        images = read_images(one.on(self._cluster, shard_id), keys)
        if isinstance(one, MovedLinks):
            references = self._keys_of(
                (end for key in images for end in one.ends(key)), number=number
            )
            written = self._apply_links_back(one, images, references, number)
        else:
            assert isinstance(one, MovedTable)  # noqa: S101  # two kinds
            written = self._objects_back(one, images, number)
        record_images(one.on(self._cluster, shard_id), images)
        return written

    def _objects_back(
        self, one: MovedTable, images: Mapping[Key, Image], number: int
    ) -> int:
        references = self._keys_of(
            (
                reference
                for image in images.values()
                if image.row is not None
                for reference in one.conversion.object_references(image.row)
            ),
            number=number,
        )
        try:
            return self._apply_back(one, images, references, number)
        except IntegrityError:
            # Another process has inserted one of them.
            return self._apply_back(one, images, references, number)

    def _apply_links_back(
        self,
        one: MovedLinks,
        images: Mapping[Key, Image],
        references: Mapping[tuple[int, int], Any],
        number: int,
    ) -> int:
        legacy = one.legacy(self._engine)
        keys = {
            key: one.turned(tuple(references[end] for end in one.ends(key)))
            for key in images
        }
        with legacy.begin() as connection:
            newer = one.marks.receive(
                connection,
                {keys[key]: image.version for key, image in images.items()},
                number=number,
                there={keys[key] for key, one in images.items() if one.copied},
            )
            legacy.write(
                connection,
                {
                    keys[key]: None
                    if image.row is None
                    else one.conversion.row(image.row)
                    for key, image in images.items()
                    if keys[key] in newer
                },
            )
        return len(newer)

    def keys_of(self, one: MovedTable, object_ids: Collection[int]) -> dict[int, Key]:
        """Return the primary keys of objects that have one."""
        with one_read(self._engine) as connection:
            return one.marks.keys_of(connection, object_ids)

    def _keys_of(
        self, references: Iterable[tuple[int, int]], *, number: int
    ) -> dict[tuple[int, int], Any]:
        """Return the keys of objects; copy those that have none before.

        :param references: type ids and object ids.
        """
        wanted: dict[int, set[int]] = {}
        for type_id, object_id in references:
            wanted.setdefault(type_id, set()).add(object_id)
        found = {}
        for type_id, object_ids in wanted.items():
            other = self.ids.types[type_id]
            keys = self.keys_of(other, object_ids)
            new = [(i,) for i in object_ids if i not in keys]
            for shard_id, some in grouped(other, new).items():
                self.back(other, shard_id, some, number=number)
            if new:
                keys = self.keys_of(other, object_ids)
            for object_id in object_ids:
                if object_id not in keys:
                    raise UnclaimableRowError(table=other.name, key=object_id)
                found[type_id, object_id] = keys[object_id][0]
        return found

    def existing_keys(self, one: MovedRows, keys: Collection[Key]) -> dict[Key, Key]:
        """Return the keys in the database, by those on the shards."""
        if isinstance(one, MovedTable):
            keys_there = self.keys_of(one, [object_id for (object_id,) in keys])
            return {(object_id,): key for object_id, key in keys_there.items()}
        assert isinstance(one, MovedLinks)  # noqa: S101  # two kinds
        wanted: dict[int, set[int]] = {}
        for key in keys:
            for type_id, object_id in one.ends(key):
                wanted.setdefault(type_id, set()).add(object_id)
        ends = {
            (type_id, object_id): key[0]
            for type_id, object_ids in wanted.items()
            for object_id, key in self.keys_of(
                self.ids.types[type_id], object_ids
            ).items()
        }
        return {
            key: one.turned(tuple(ends[end] for end in one.ends(key)))
            for key in keys
            if all(end in ends for end in one.ends(key))
        }

    def _apply_back(
        self,
        one: MovedTable,
        images: Mapping[Key, Image],
        references: Mapping[tuple[int, int], Any],
        number: int,
    ) -> int:
        legacy = one.legacy(self._engine)
        conversion = one.conversion
        rows = {
            object_id: None
            if image.row is None
            else conversion.row(image.row, references)
            for (object_id,), image in images.items()
        }
        with legacy.begin() as connection:
            known = one.marks.keys_of(connection, rows)
            new = {}
            for object_id in rows.keys() - known.keys():
                image, row = images[object_id,], rows[object_id]
                key: Key = (-object_id,)
                if row is not None and image.row is not None:
                    values = conversion.left_behind(image.row)
                    key = legacy.insert(connection, {**values, **row})
                new[key] = object_id
            one.marks.claim_ids(connection, new, number=number)
            keys = {**known, **{i: key for key, i in new.items()}}
            newer = one.marks.receive(
                connection,
                {keys[i]: images[i,].version for i in rows},
                number=number,
                there=set(keys.values()),
            )
            legacy.write(
                connection,
                {
                    keys[i]: rows[i]
                    for i in sorted(rows)
                    if keys[i] in newer and keys[i] not in new
                },
            )
        return len(newer)

    # -- in the direction of the rows that wait

    def copy(self, waiting: Waiting, *, number: int) -> int:
        """Copy rows that wait; return the number of written rows."""
        one, shard_id, keys = waiting
        if shard_id is None:
            return self.forward(one, keys, number=number)
        return self.back(one, shard_id, keys, number=number)

    def copy_or_log(self, waiting: Waiting, *, number: int) -> int:
        """Copy rows, in halves if together they fail.

        A deadlock is repeated.  Rows that cannot be copied are logged, and
        wait; if a server does not respond, all of them, without a further
        attempt.

        :returns: the number of rows that could not be copied.
        """
        one, shard_id, keys = waiting
        try:
            retry_conflicts(
                partial(self.copy, waiting, number=number),
                self._backends,
                attempts=_ATTEMPTS,
            )
        except SQLAlchemyError as error:
            if len(keys) > 1 and reason(error) is None:
                half = len(keys) // 2
                return sum(
                    self.copy_or_log((one, shard_id, some), number=number)
                    for some in (keys[:half], keys[half:])
                )
            _log.warning(
                "%s %s was not copied and waits: %s",
                one.name,
                ", ".join(map(str, keys[0]))
                if len(keys) == 1
                else f"({len(keys)} rows)",
                error,
            )
            return len(keys)
        return 0

    def _backends(self) -> set[Backend]:
        dialect = self._engine.dialect
        return {
            backend_for(dialect.name, driver=dialect.driver),
            *self._cluster.places.engines.backends(),
        }


# -- Object ids of rows: claimed once, in the table of marks.
#
# An owner gets the shard that the placement policy chooses; an owned row that of
# its parent, whose id is claimed first.  The local id is the primary key in the
# database, or if an object that was created on the shards has it, the primary
# key plus 2\ :sup:`35`.  Each claim is a transaction of one table, so that no
# two of them deadlock; the first claim of a row wins.


#: Maximum number of ids of a table in memory, about 150 bytes each.
_MOST = 50_000


class IdMap:
    """The map of primary keys and object ids.

    :param tables: the tables of the move, by name.
    :param engine: engine of the database.
    :param cluster: the cluster of the shards.
    :ivar types: the tables whose rows have object ids, by type id.
    """

    def __init__(
        self, tables: Mapping[str, MovedRows], engine: Engine, cluster: Cluster
    ) -> None:
        self.types: dict[int, MovedTable] = {
            one.type_id: one for one in tables.values() if isinstance(one, MovedTable)
        }
        # A claimed id never changes.
        self._known: dict[int, dict[Key, int]] = {i: {} for i in self.types}
        self._engine = engine
        self._cluster = cluster

    def object_ids(self, one: MovedTable, keys: Collection[Key]) -> dict[Key, int]:
        """Return the object ids of rows, and claim those that are missing.

        Rows that do not exist have none.
        """
        known = self._known[one.type_id]
        ids = {key: known[key] for key in keys if key in known}
        unknown = [key for key in keys if key not in ids]
        if not unknown:
            return ids
        with one_read(self._engine) as connection:
            marks = one.marks.marks_of(connection, unknown)
        new = {
            key: mark.object_id
            for key, mark in marks.items()
            if mark.object_id is not None
        }
        missing = self.proposals(one, [k for k in unknown if k not in new])
        if missing:
            with snapshot(self._engine) as connection:
                new.update(one.marks.claim_ids(connection, missing))
        if len(known) > _MOST:
            known.clear()
        known.update(new)
        return {**ids, **new}

    def of_references(self, references: Iterable[Reference]) -> dict[Reference, int]:
        """Return the object ids of rows of several tables.

        :raises UnclaimableRowError: if a row does not exist.
        """
        wanted = set(references)
        ids = self._existing(wanted)
        for type_id, value in wanted.difference(ids):
            raise UnclaimableRowError(table=self.types[type_id].name, key=value)
        return ids

    def _existing(self, references: Iterable[Reference]) -> dict[Reference, int]:
        """Return the object ids of the rows that exist, or have existed."""
        wanted: dict[int, set[Key]] = {}
        for type_id, value in references:
            wanted.setdefault(type_id, set()).add((value,))
        return {
            (type_id, key[0]): object_id
            for type_id, keys in wanted.items()
            for key, object_id in self.object_ids(self.types[type_id], keys).items()
        }

    def shard_keys(self, one: MovedRows, images: Mapping[Key, Image]) -> dict[Key, Key]:
        """Return the keys on the shards of rows that are copied.

        Rows that were deleted before they had one are recorded as copied.

        :raises UnclaimableRowError: if a row of an association table refers
            to a row that does not exist.
        """
        if isinstance(one, MovedTable):
            ids = self.own_ids(one, images)
            return {key: (object_id,) for key, object_id in ids.items()}
        assert isinstance(one, MovedLinks)  # noqa: S101  # there are two kinds
        keys = self.link_keys(one, images)
        gone = {
            key: image.version
            for key, image in images.items()
            if key not in keys and image.row is None
        }
        for key in images.keys() - keys.keys() - gone.keys():
            raise UnclaimableRowError(table=one.name, key=key)
        if gone:
            with self._engine.begin() as connection:
                one.marks.set_copied(connection, gone)
        return keys

    def link_keys(self, one: MovedLinks, keys: Iterable[Key]) -> dict[Key, Key]:
        """Return keys on the shards by those in the database."""
        ends = {key: one.ends(one.turned(key)) for key in keys}
        ids = self._existing(end for both in ends.values() for end in both)
        return {
            key: (ids[source], ids[target])
            for key, (source, target) in ends.items()
            if source in ids and target in ids
        }

    def own_ids(self, one: MovedTable, images: Mapping[Key, Image]) -> dict[Key, int]:
        """Return the object ids of rows that are copied; claim missing ones.

        Rows that were deleted before they had an id are recorded as copied.
        An image that is older than what is recorded gets no id: the row may
        be one of these.

        :raises ConversionError: if a primary key fits no id.
        :raises UnclaimableRowError: if a parent has no id.
        """
        missing = [key for key in images if images[key].object_id is None]
        for key in missing:
            if images[key].row is not None and not one.fits(key):
                raise ConversionError(
                    column=f"{one.name}.{one.table.primary_key.columns[0].name}",
                    value=repr(key[0]),
                    reason="an object id has room for primary keys from 1 to "
                    f"{one.layout.max_local_id}; give the row another one",
                )
        ids = {
            key: image.object_id
            for key, image in images.items()
            if image.object_id is not None
        }
        if not missing:
            return ids
        proposed = self.proposals(
            one, [key for key in missing if images[key].row is not None]
        )
        if one.parent_column is not None:
            parent = self._parent(one)
            # One that does not exist, or whose key fits no id.
            self.of_references(
                (parent.type_id, row[one.parent_column])
                for key in missing
                if (row := images[key].row) is not None and key not in proposed
            )
        with snapshot(self._engine) as connection:
            marks = one.marks.marks_of(connection, missing, locking=True)
            wanted, gone = {}, {}
            for key, mark in marks.items():
                if mark.object_id is not None:
                    ids[key] = mark.object_id
                elif images[key].row is None:
                    gone[key] = images[key].version
                elif mark.copied < images[key].version and key in proposed:
                    wanted[key] = proposed[key]
            # Their marks are locked, so no other transaction claims them.
            one.marks.set_ids(connection, wanted)
            ids.update(wanted)
            one.marks.set_copied(connection, gone)
        return ids

    def proposals(self, one: MovedTable, keys: Collection[Key]) -> dict[Key, int]:
        """Return ids that are free now for rows that exist, and fit one."""
        keys = [key for key in keys if one.fits(key)]
        if not keys:
            return {}
        with one_read(self._engine) as connection:
            parents = self._parents(connection, one, keys)
        if one.parent is None:
            shards = {key: self._new_shard(one) for key in parents}
        else:
            parent = self._parent(one)
            ids = self.object_ids(parent, set(parents.values()))
            layout = one.layout
            shards = {
                key: layout.unpack(ids[parent]).shard_id
                for key, parent in parents.items()
                if parent in ids
            }
        return self._packed(one, shards)

    def _parent(self, one: MovedTable) -> MovedTable:
        """Return the table of the parents of rows."""
        (found,) = (other for other in self.types.values() if other.name == one.parent)
        return found

    def _parents(
        self, connection: Connection, one: MovedTable, keys: Collection[Key]
    ) -> dict[Key, Key]:
        """Return the keys of the parents of rows; an owner is its own."""
        (key,) = one.table.primary_key
        parent = key if one.parent_column is None else one.table.c[one.parent_column]
        rows = connection.execute(
            select(key, parent).where(key.in_([value for (value,) in keys]))
        )
        return {(row[0],): (row[1],) for row in rows if row[1] is not None}

    def _new_shard(self, one: MovedTable) -> int:
        keyspace = one.keyspace(self._cluster.places)
        return self._cluster.placement(keyspace=keyspace, cls=one.cls)

    def _packed(self, one: MovedTable, shards: Mapping[Key, int]) -> dict[Key, int]:
        layout = one.layout
        free = {
            key: layout.pack(shard_id, one.type_id, key[0])
            for key, shard_id in shards.items()
        }
        with one_read(self._engine) as connection:
            taken = one.marks.keys_of(connection, free.values())
        offset = (layout.max_local_id + 1) // 2
        return {
            key: object_id + offset if taken.get(object_id, key) != key else object_id
            for key, object_id in free.items()
        }
