"""The tables of a move: their rows on both sides, and what they refer to.

:class:`LegacyRows` are the rows in the database, by their primary keys;
:class:`ShardRows` are the objects of one virtual shard, by their object ids.
Both are a :class:`~sqla_shard.migrate.copying.Part`.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterator
from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from dataclasses import field
from datetime import timezone
from datetime import tzinfo
from typing import Any

from sqlalchemy import BigInteger
from sqlalchemy import Connection
from sqlalchemy import delete
from sqlalchemy import Engine
from sqlalchemy import insert
from sqlalchemy import inspect
from sqlalchemy import Integer
from sqlalchemy import select
from sqlalchemy import update

from sqla_shard.cluster.cluster import Cluster
from sqla_shard.engine import Places
from sqla_shard.engine.rendering import Place
from sqla_shard.exc import DeclarationError
from sqla_shard.ids import DEFAULT_LAYOUT
from sqla_shard.migrate.copying import Row
from sqla_shard.migrate.copying import snapshot
from sqla_shard.migrate.declaration import Owned
from sqla_shard.migrate.declaration import Owner
from sqla_shard.migrate.future import Future
from sqla_shard.migrate.marks import Key
from sqla_shard.migrate.marks import Marks
from sqla_shard.migrate.rows import Conversion
from sqla_shard.routing import spec_of
from sqla_shard.session import ShardSession
from sqla_shard.topology import Keyspace

__all__ = ["COPYING", "LegacyRows", "Moved", "MovedTable", "ShardRows"]

#: Key of ``Session.info`` of sessions that copy: their writes have versions.
COPYING = "sqla_shard_copying"


@dataclass(frozen=True, kw_only=True)
class Moved:
    """How the rows of a table become objects.

    :ivar cls: the object class.
    :ivar names: attributes by name of column, where they differ; None for a
        column that the objects do not have.
    :ivar zone: time zone in which the application has written times without
        one.
    :ivar convert: functions by name of column that return the value of the
        attribute.
    :ivar revert: functions by name of column that return the value of the
        column; for each column of ``convert``, and for those that the objects
        do not have, which get the object.
    """

    cls: type[Any]
    names: Mapping[str, str | None] = field(default_factory=dict)
    zone: tzinfo = timezone.utc
    convert: Mapping[str, Callable[[Any], Any]] = field(default_factory=dict)
    revert: Mapping[str, Callable[[Any], Any]] = field(default_factory=dict)


class MovedTable:
    """One table of a move.

    :param item: its part of the declaration.
    :param future: the tables as they will be.
    :param moved: how its rows become objects.
    :raises DeclarationError: if the class does not fit.

    :ivar parent: the table of the rows that these are colocated with; None if
        they are owners.
    :ivar parent_column: name of the column with its primary key.
    """

    def __init__(
        self, item: Owner | Owned, future: Future, moved: Moved
    ) -> None:
        found = future.tables[item.table]
        self.name = item.table
        self.table = found.table
        self.cls = moved.cls
        self.mapper = inspect(moved.cls)
        self.spec = spec_of(self.mapper.local_table)
        self.layout = self.spec.layout or DEFAULT_LAYOUT
        self.type_id: int = found.spec.type_id or 0
        self._check(found.id_column)
        self.conversion = Conversion(
            found,
            moved.cls,
            names=moved.names,
            zone=moved.zone,
            convert=moved.convert,
            revert=moved.revert,
        )
        self.parent_column = found.parent_column
        self.parent: str | None = None
        if self.parent_column is not None:
            parent = found.kinds[self.parent_column].type_id
            self.parent = future.types[parent or 0]
        self.marks = Marks(self.table)
        self.shard_marks = Marks(self.mapper.local_table, [BigInteger()])

    def _check(self, id_column: str | None) -> None:
        problems = []
        if self.spec.type_id != self.type_id:
            problems.append(
                f"{self.cls.__name__} has the type_id {self.spec.type_id}, "
                f"and {self.name} is declared with {self.type_id}"
            )
        keys = [column.name for column in self.table.primary_key]
        if keys != [id_column] or not isinstance(
            self.table.c[keys[0]].type, Integer
        ):
            problems.append(
                f"the primary key of {self.name} must be one column of "
                f"integers, not {', '.join(keys) or 'missing'}"
            )
        if problems:
            raise DeclarationError(problems)

    def legacy(self, engine: Engine) -> LegacyRows:
        """Return the rows in the database."""
        return LegacyRows(self, engine)

    def on(self, cluster: Cluster, shard_id: int) -> ShardRows:
        """Return the objects on a shard."""
        return ShardRows(self, cluster, shard_id)

    def place(self, session: ShardSession, shard_id: int) -> Place:
        """Return the location of a shard of the objects."""
        return session.places.place(self.keyspace(session.places), shard_id)

    def keyspace(self, places: Places) -> Keyspace:
        """Return the keyspace of the objects."""
        spec = self.spec
        return places.keyspace(spec.keyspace, spec.kind, spec.layout)


class LegacyRows:
    """The rows of a table in the database, by primary key."""

    def __init__(self, one: MovedTable, engine: Engine) -> None:
        self.marks = one.marks
        self.table = one.table
        self.engine = engine
        self._key = one.table.primary_key.columns[0]

    @contextmanager
    def begin(self) -> Iterator[Connection]:
        """Begin a transaction whose reads have one snapshot."""
        with snapshot(self.engine) as connection:
            yield connection

    def read(
        self, connection: Connection, keys: Collection[Key]
    ) -> dict[Key, Row]:
        """Return rows by key."""
        found = connection.execute(
            select(self.table).where(self._key.in_([key for (key,) in keys]))
        )
        rows = map(dict, found.mappings())
        return {(row[self._key.name],): row for row in rows}

    def write(
        self, connection: Connection, rows: Mapping[Key, Row | None]
    ) -> None:
        """Insert or update rows; delete those that are None."""
        gone = [key for (key,), row in rows.items() if row is None]
        there = self.read(connection, rows)
        for key, row in rows.items():
            if row is None:
                continue
            if key not in there:
                connection.execute(
                    insert(self.table), {**row, self._key.name: key[0]}
                )
            elif row:
                connection.execute(
                    update(self.table).where(self._key == key[0]), row
                )
        if gone:
            connection.execute(delete(self.table).where(self._key.in_(gone)))

    def insert(self, connection: Connection, row: Row) -> Key:
        """Insert a row, and return the key that the database chooses."""
        done = connection.execute(insert(self.table), dict(row))
        key: Any = done.inserted_primary_key
        return tuple(key)


class ShardRows:
    """The objects of one shard, by object id, in one transaction at a time.

    The rows have the attributes of :class:`Conversion`.
    """

    def __init__(
        self, one: MovedTable, cluster: Cluster, shard_id: int
    ) -> None:
        self.marks = one.shard_marks
        self._one = one
        self._cluster = cluster
        self._shard_id = shard_id
        self._session: Any = None

    @contextmanager
    def begin(self) -> Iterator[Connection]:
        """Begin a transaction on the shard."""
        with self._cluster.begin(cache=False, info={COPYING: True}) as session:
            session.shows_hidden = True
            self._session = session
            yield session.view(self._one.place(session, self._shard_id))

    def read(
        self, connection: Connection, keys: Collection[Key]
    ) -> dict[Key, Row]:
        """Return the attributes of objects by key."""
        ids = [object_id for (object_id,) in keys]
        found = self._session.get_many(self._one.cls, ids)
        return {
            key: self._one.conversion.attributes(one)
            for key, one in zip(keys, found, strict=True)
            if one is not None
        }

    def write(
        self, connection: Connection, rows: Mapping[Key, Row | None]
    ) -> None:
        """Insert or update objects; delete those that are None."""
        cls = self._one.cls
        kept = {i: row for (i,), row in rows.items() if row is not None}
        there = self._session.get_many(cls, list(kept))
        new = []
        for (object_id, row), found in zip(kept.items(), there, strict=True):
            if found is None:
                new.append({"id": object_id, **row})
                continue
            for name, value in row.items():
                setattr(found, name, value)
        if new:
            self._session.execute(insert(cls), new)
        gone = [object_id for (object_id,) in rows if object_id not in kept]
        if gone:
            self._session.execute(delete(cls).where(cls.id.in_(gone)))

    def page(self, after: int, limit: int) -> list[int]:
        """Return the next object ids of the shard, in a transaction.

        :param after: the last id of the page before; 0 for the first page.
        """
        cls = self._one.cls
        statement = select(cls.id).order_by(cls.id).limit(limit)
        if after:
            statement = statement.where(cls.id > after)
        place = self._one.place(self._session, self._shard_id)
        return list(
            self._session.scalars(statement, bind_arguments={"place": place})
        )
