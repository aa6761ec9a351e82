"""The tables of a move: their rows on both sides, and their references.

:class:`LegacyRows` are the rows in the database, by their primary keys;
:class:`ShardObjects` are the objects of one virtual shard, by their ids.  Both
are a :class:`~sqla_shard.migrate.copies.MarkedRows`.
"""

from __future__ import annotations

import json
import reprlib
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from datetime import datetime, tzinfo, UTC
from typing import Any, Protocol, TypeAlias

from sqlalchemy import (
    BigInteger,
    bindparam,
    Column,
    Connection,
    DateTime,
    delete,
    Dialect,
    Engine,
    func,
    insert,
    inspect,
    Integer,
    JSON,
    not_,
    null,
    select,
    Table,
    TIMESTAMP,
    TypeDecorator,
    update,
)
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm.attributes import flag_modified
from sqlalchemy.types import TypeEngine

from sqla_shard.cluster.cluster import Cluster
from sqla_shard.engine import Places
from sqla_shard.engine.rendering import Place
from sqla_shard.exc import ConversionError, DeclarationError
from sqla_shard.exc.base import message
from sqla_shard.ids import DEFAULT_LAYOUT, IdLayout
from sqla_shard.migrate.copies import look_twice, one_read, Row, snapshot
from sqla_shard.migrate.declaration import Owned, Owner
from sqla_shard.migrate.exact_types import (
    exact_table,
    is_rewritten,
    is_stored_alike,
    is_written_late,
    JSONText,
    written,
)
from sqla_shard.migrate.future import Future, FutureTable
from sqla_shard.migrate.marks import after_key, among, Key, Marks, RowMark
from sqla_shard.models.lookup_table import link
from sqla_shard.planning import spec_of
from sqla_shard.session import ShardSession
from sqla_shard.topology import Keyspace
from sqla_shard.types import UTCTimestamp

#: A type id, and the primary key in the database.
Reference: TypeAlias = tuple[int, Any]


@dataclass(frozen=True, kw_only=True)
class AttributeDifference:
    """One attribute that differs.

    :ivar attribute: name of the attribute of the object.
    :ivar expected: value of the row, converted.
    :ivar found: value of the object.
    """

    attribute: str
    expected: Any
    found: Any


class Conversion:
    """The way from rows of a table to objects of a class.

    It returns the values of an object for a row, with the
    object ids of the rows that it refers to.  Values are compared as Python has
    them, not as text: text by code points, so ``"a"`` and ``"A "`` differ although
    the server may call them equal; times with a zone by the moment; numbers by
    value, and a truth value in JSON is not a number.

    :param table: the table, as the declaration says it will be.
    :param cls: the object class.
    :param names: attributes by name of column, where they differ; None for a
        column that the objects do not have.
    :param zone: time zone in which the application has written times without
        one: blob fields store moments.
    :param convert: functions by name of column that return the value of the
        attribute, such as a member of an enumeration; their results are not
        changed.
    :param revert: functions by name of column that return the value of the
        column: of the attribute, or of the attributes by name if the objects
        do not have the column.
    :raises DeclarationError: if the class has no such attribute.

    :ivar raw: columns on the shards that have the values as the database has
        them, by name of column there.
    :ivar stored: those of ``raw`` whose type makes other values in Python: it gets
        none of them.  Ids, keys of lookups and what a function of ``revert`` gets
        are not stored.
    :ivar converted: names of the columns with a function.
    :ivar checked: names of the columns with values that Python has.
    """

    def __init__(
        self,
        table: FutureTable,
        cls: type[Any],
        *,
        names: Mapping[str, str | None] | None = None,
        zone: tzinfo = UTC,
        convert: Mapping[str, Callable[[Any], Any]] | None = None,
        revert: Mapping[str, Callable[[Any], Any]] | None = None,
    ) -> None:
        self._table = table.table.key
        self._zone = zone
        self._convert = dict(convert or {})
        self._revert = dict(revert or {})
        given = dict(names or {})
        columns = [column.name for column in table.table.columns]
        self._attributes: dict[str, str] = {}
        problems = [
            f"{table.table.key} has no column {name!r}"
            for name in {*given, *self._convert, *self._revert}.difference(columns)
        ]
        for name in columns:
            attribute = given.get(name, name)
            if attribute is None or name == table.id_column:
                continue
            if not hasattr(cls, attribute):
                problems.append(
                    f"{cls.__name__} has no attribute {attribute!r} for "
                    f"{table.table.key}.{name}; name another one, or None to "
                    "leave the column behind"
                )
            self._attributes[name] = attribute
        if problems:
            raise DeclarationError(sorted(problems))
        self._left = tuple(
            name
            for name in columns
            if name != table.id_column and name not in self._attributes
        )
        self._names = tuple(self._attributes.values())
        self.raw: dict[str, Column[Any]] = {
            name: column
            for name, attribute in self._attributes.items()
            if name not in self._convert
            and name not in self._revert
            and (column := _plain(cls, attribute)) is not None
            and _are_alike(column.type, table.table.c[name].type)
        }
        self.converted: set[str] = self._convert.keys() | self._revert.keys()
        self.stored: dict[str, Column[Any]] = {
            name: column
            for name, column in self.raw.items()
            if self._revert.keys() <= self._attributes.keys()
            and name not in table.kinds
            and name not in table.lookups
            and column.computed is None
            and is_rewritten(column.type)
            and is_stored_alike(column.type, table.table.c[name].type)
        }
        self.checked: set[str] = (
            self._attributes.keys() - self.converted - self.stored.keys()
        )
        # What a function does not get is a moment already.
        self._moments = {
            column.name
            for column in table.table.columns
            if isinstance(column.type, (TIMESTAMP, UTCTimestamp))
            and column.name not in self.converted
        }
        self._types = {
            name: kind.type_id
            for name, kind in table.kinds.items()
            if name in self._attributes and kind.type_id is not None
        }

    def references(self, row: Mapping[str, Any]) -> set[Reference]:
        """Return the rows that a row refers to."""
        return {
            (type_id, row[name])
            for name, type_id in self._types.items()
            if row[name] is not None
        }

    def _called(
        self, functions: Mapping[str, Callable[[Any], Any]], name: str, value: Any
    ) -> Any:
        try:
            return functions[name](value)
        except Exception as error:  # of the application's function
            raise ConversionError(
                column=f"{self._table}.{name}",
                value=reprlib.repr(value),
                reason=f"{type(error).__name__}: {message(error)}",
            ) from error

    def values(
        self, row: Mapping[str, Any], ids: Mapping[Reference, int]
    ) -> dict[str, Any]:
        """Return the values of the object's attributes.

        :param row: the values of the row by name of column.
        :param ids: the object ids of :meth:`references`.
        :raises KeyError: if one is missing.
        :raises ConversionError: if a function of ``convert`` fails.
        """
        attributes = {}
        for name, attribute in self._attributes.items():
            value = row[name]
            if name in self._convert:
                given = None if value is JSON.NULL else value
                value = self._called(self._convert, name, given)
            elif value is JSON.NULL and name not in self.raw:
                raise ConversionError(
                    column=f"{self._table}.{name}",
                    value="null",
                    reason="the field has None for NULL, not for a JSON null; "
                    "give Moved(convert=..., revert=...), or a JSON column",
                )
            elif name in self._types and value is not None:
                value = ids[self._types[name], value]
            elif (
                isinstance(value, datetime)
                and value.tzinfo is None
                and name not in self.raw
            ):
                value = self._moment(name, value)
            attributes[attribute] = value
        return attributes

    def _moment(self, name: str, value: datetime) -> datetime:
        """Return the moment of a time in the zone.

        Where clocks are put forward, times of an hour are skipped: one of them
        would come back as another, and a comparison of moments would not see it.
        """
        moment = value.replace(tzinfo=self._zone)
        try:
            shown = moment.astimezone(UTC).astimezone(self._zone)
        except OverflowError:
            # At the ends of the calendar; the field says so.
            return moment
        if shown.replace(tzinfo=None) != value:
            raise ConversionError(
                column=f"{self._table}.{name}",
                value=str(value),
                reason=f"the zone {self._zone} skips this time, where clocks are put "
                "forward; change it, or give Moved(convert=..., revert=...)",
            )
        return moment

    def object_references(self, attributes: Mapping[str, Any]) -> set[tuple[int, int]]:
        """Return the type ids and object ids that an object refers to."""
        return {
            (type_id, attributes[self._attributes[name]])
            for name, type_id in self._types.items()
            if attributes[self._attributes[name]] is not None
        }

    def attributes(self, found: Any) -> dict[str, Any]:
        """Return the values of the attributes of an object, by name."""
        return {name: getattr(found, name) for name in self._names}

    def row(
        self, attributes: Mapping[str, Any], keys: Mapping[tuple[int, int], Any]
    ) -> dict[str, Any]:
        """Return the values of a row by name of column; see :meth:`values`.

        :param attributes: those of an object.
        :param keys: the primary keys of :meth:`object_references`.
        :raises KeyError: if one is missing.
        """
        values = {}
        for name, attribute in self._attributes.items():
            value = attributes[attribute]
            if name in self._revert:
                value = self._called(self._revert, name, value)
            elif name in self._types and value is not None:
                value = keys[self._types[name], value]
            elif (
                isinstance(value, datetime)
                and value.tzinfo is not None
                and name not in self._moments
                and name not in self.raw
            ):
                value = value.astimezone(self._zone).replace(tzinfo=None)
            values[name] = value
        return values

    def attribute_of(self, column: str) -> str | None:
        """Return the attribute of a column, if the objects have it."""
        return self._attributes.get(column)

    @property
    def left(self) -> tuple[str, ...]:
        """The columns that the objects do not have."""
        return self._left

    def reverts(self, name: str) -> bool:
        """Return whether a value of a column can be computed from objects."""
        return name in self._revert

    def converts(self, name: str) -> bool:
        """Return whether a function converts the values of a column."""
        return name in self._convert

    def left_behind(self, attributes: Mapping[str, Any]) -> dict[str, Any]:
        """Return values of the columns that the objects do not have."""
        return {
            name: self._called(self._revert, name, attributes)
            for name in self._revert
            if name not in self._attributes
        }

    def differences(
        self, values: Mapping[str, Any], found: Mapping[str, Any]
    ) -> Iterator[AttributeDifference]:
        """Yield the attributes of an object that differ.

        :param values: what :meth:`values` has returned for the row.
        :param found: what :meth:`attributes` has returned for the object.
        """
        for attribute, expected in values.items():
            value = found[attribute]
            if not is_same(expected, value) and not self._is_one_hour(expected, value):
                yield AttributeDifference(
                    attribute=attribute, expected=expected, found=value
                )

    def _is_one_hour(self, expected: Any, value: Any) -> bool:
        """Return whether two moments are one time in the zone.

        Where clocks are put back an hour occurs twice, and the column does
        not say which of them it was.
        """
        if not isinstance(expected, datetime) or not isinstance(value, datetime):
            return False
        try:
            one, other = (
                (moment if moment.tzinfo else moment.replace(tzinfo=UTC))
                .astimezone(UTC)
                .astimezone(self._zone)
                .replace(tzinfo=None)
                for moment in (expected, value)
            )
        except OverflowError:
            # At the ends of the calendar clocks are not put back.
            return False
        return one == other


def _plain(cls: type[Any], attribute: str) -> Column[Any] | None:
    """Return the column of an attribute that is one of the table."""
    # Not column_attrs, which configures all mappers.
    column = inspect(cls).columns.get(attribute)
    return column if isinstance(column, Column) else None


def _are_alike(one: TypeEngine[Any], other: TypeEngine[Any]) -> bool:
    """Return whether values of two types are written alike."""
    if isinstance(one, TypeDecorator) or isinstance(other, TypeDecorator):
        return type(one) is type(other)
    return one._type_affinity is other._type_affinity


def is_same(one: Any, other: Any) -> bool:
    """Return whether two values of columns are the same."""
    if one is None or other is None:
        return one is other
    match one, other:
        case datetime(), datetime():
            return _in_utc(one) == _in_utc(other)
        case ((bytes() | bytearray() | memoryview()), _):
            kinds = (bytes, bytearray, memoryview)
            return isinstance(other, kinds) and bytes(one) == bytes(other)
        case ((Mapping() | Sequence()), _) if not isinstance(one, str):
            return _is_same_json(one, other)
    return bool(one == other)


def _in_utc(value: datetime) -> datetime:
    """Return a time without zone; the sessions of a cluster have UTC."""
    if value.tzinfo is None:
        return value
    return value.astimezone(UTC).replace(tzinfo=None)


def _is_same_json(one: Any, other: Any) -> bool:
    if isinstance(one, Mapping):
        return (
            isinstance(other, Mapping)
            and one.keys() == other.keys()
            and all(_is_same_json(one[name], other[name]) for name in one)
        )
    if isinstance(one, Sequence) and not isinstance(one, str):
        return (
            isinstance(other, Sequence)
            and not isinstance(other, str)
            and len(one) == len(other)
            and all(map(_is_same_json, one, other))
        )
    # In Python True is 1.
    return isinstance(one, bool) is isinstance(other, bool) and bool(one == other)


#: Execution options of an INSERT.  The ORM omits NULL, and the server writes its
#: default.
_WITH_NULL = {"render_nulls": True}

#: Key of ``Session.info`` of sessions that copy: their writes have versions.
COPYING = "sqla_shard_copying"


@dataclass(frozen=True, kw_only=True)
class Moved:
    """Conversion of the rows of a table into objects.

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
    zone: tzinfo = UTC
    convert: Mapping[str, Callable[[Any], Any]] = field(default_factory=dict)
    revert: Mapping[str, Callable[[Any], Any]] = field(default_factory=dict)


class AnyConversion(Protocol):
    """Interface of :class:`Conversion` and of that of a mapping table."""

    @property
    def left(self) -> tuple[str, ...]:
        """The columns that are left behind."""
        ...

    def reverts(self, name: str) -> bool:
        """Return whether a value of such a column can be computed."""
        ...

    @property
    def raw(self) -> Mapping[str, Column[Any]]:
        """The columns on the shards that have the values as they are."""
        ...

    def converts(self, name: str) -> bool:
        """Return whether a function converts the values of a column."""
        ...

    def references(self, row: Row) -> set[Reference]:
        """Return the rows that a row refers to, besides its key."""
        ...

    def values(self, row: Row, ids: Mapping[Reference, int]) -> dict[str, Any]:
        """Return the attributes on the shards."""
        ...

    def attributes(self, found: Any) -> dict[str, Any]:
        """Return the attributes of an object."""
        ...

    def differences(self, values: Row, found: Row) -> Iterator[AttributeDifference]:
        """Yield the attributes that differ."""
        ...


class MovedRows:
    """Base of the tables of a move.

    :param name: name of the table.
    :param table: the table as it is.
    :param cls: the class on the shards.
    :param keys: the number of ids that identify a row there.

    :ivar marks: the marks in the database, by primary key.
    :ivar shard_marks: the marks on the shards; the first id of a key names
        its shard.
    """

    def __init__(self, name: str, table: Table, cls: type[Any], keys: int) -> None:
        self.name = name
        self.table = table
        self.cls = cls
        self.mapper: Any = inspect(cls)
        self.spec: Any = spec_of(self.mapper.local_table)
        self.layout: IdLayout = self.spec.layout or DEFAULT_LAYOUT
        #: The table, with types that change no value.
        self.exact: Table = exact_table(table)
        self.marks: Marks = Marks(self.exact)
        self.shard_marks: Marks = Marks(self.mapper.local_table, [BigInteger()] * keys)

    def legacy(self, engine: Engine) -> LegacyRows:
        """Return the rows in the database."""
        return LegacyRows(self, engine)

    def on(self, cluster: Cluster, shard_id: int) -> ShardPart:
        """Return the rows on a shard."""
        raise NotImplementedError

    @property
    def conversion(self) -> AnyConversion:
        """The way from rows to the shards and back."""
        raise NotImplementedError

    def place(self, session: ShardSession, shard_id: int) -> Place:
        """Return the location of a shard of the class."""
        return session.places.place(self.keyspace(session.places), shard_id)

    def keyspace(self, places: Places) -> Keyspace:
        """Return the keyspace of the class."""
        spec = self.spec
        return places.keyspace(spec.keyspace, spec.kind, spec.layout)


class MovedTable(MovedRows):
    """A table whose rows become objects.

    :param item: its part of the declaration.
    :param future: the tables as they will be.
    :param moved: how its rows become objects.
    :param lookups: lookup classes by the name of the column.
    :raises DeclarationError: if the class does not fit.

    :ivar parent: the table of the rows that these are colocated with; None if
        they are owners.
    :ivar parent_column: name of the column with its primary key.
    :ivar lookups: lookup classes by the name of the attribute with the key.
    :ivar raw: columns on the shards, with types that change no value, by name
        of the attribute; where the mapped type may change one.
    :ivar late: those of ``raw`` that have JSON, vectors, the mapper's versions, or
        values of which their type makes others in Python.
    :ivar stored: names of those of which their type makes others in Python.
    :ivar vectors: names of those that have vectors.
    :ivar computed: attributes that the servers of the shards compute.
    :ivar kept: columns on the shards, by name of the attribute, that an UPDATE
        changes unless it names them: with ``onupdate``, or with ON UPDATE on
        the server, which moments may have.
    """

    def __init__(
        self,
        item: Owner | Owned,
        future: Future,
        moved: Moved,
        lookups: Mapping[str, type[Any]],
    ) -> None:
        found = future.tables[item.table]
        super().__init__(item.table, found.table, moved.cls, 1)
        self.type_id: int = found.spec.type_id or 0
        self._check(found.id_column)
        self._conversion = Conversion(
            found,
            moved.cls,
            names=moved.names,
            zone=moved.zone,
            convert=moved.convert,
            revert=moved.revert,
        )
        raw = self._conversion.raw
        stored = self._conversion.stored
        self.exact: Table = exact_table(
            self.table,
            raw,
            self._conversion.converted,
            stored,
            self._conversion.checked,
        )
        self.marks: Marks = Marks(self.exact)
        there = exact_table(
            self.mapper.local_table,
            [column.name for column in raw.values()],
            stored=[column.name for column in stored.values()],
        )
        self.raw: dict[str, Column[Any]] = {
            attribute: there.c[column.key]
            for name, column in raw.items()
            if (attribute := self._conversion.attribute_of(name))
            and there.c[column.key].type is not column.type
        }
        self.late: dict[str, Column[Any]] = {
            attribute: there.c[column.key]
            for name, column in raw.items()
            if (attribute := self._conversion.attribute_of(name))
            and (
                name in stored
                or column.type._type_affinity is JSON
                or is_written_late(column.type)
                # Of the mapper, which counts its own writes.
                or column is self.mapper.version_id_col
            )
            and column.computed is None
        }
        self.stored: frozenset[str | None] = frozenset(
            self._conversion.attribute_of(name) for name in stored
        )
        self.vectors: frozenset[str | None] = frozenset(
            attribute
            for name, column in raw.items()
            if (attribute := self._conversion.attribute_of(name))
            and is_written_late(column.type)
        )
        self.computed: frozenset[str | None] = frozenset(
            attribute
            for name, column in raw.items()
            if (attribute := self._conversion.attribute_of(name))
            and column.computed is not None
        )
        self.kept: dict[str, Column[Any]] = {
            attribute: there.c[column.key]
            for attribute, column in self.mapper.columns.items()
            if isinstance(column, Column)
            and column.table is self.mapper.local_table
            and column.computed is None
            and (column.onupdate is not None or column.type._type_affinity is DateTime)
        }
        self.lookups: dict[str, type[Any]] = self._lookups(lookups)
        self.parent_column: str | None = found.parent_column
        self.parent: str | None = None
        if self.parent_column is not None:
            parent = found.kinds[self.parent_column].type_id
            self.parent = future.types[parent or 0]

    @property
    def conversion(self) -> Conversion:
        """The way from rows to objects and back."""
        return self._conversion

    def _check(self, id_column: str | None) -> None:
        problems = []
        if self.spec.type_id != self.type_id:
            problems.append(
                f"{self.cls.__name__} has the type_id {self.spec.type_id}, "
                f"and {self.name} is declared with {self.type_id}"
            )
        keys = [column.name for column in self.table.primary_key]
        if keys != [id_column] or not isinstance(self.table.c[keys[0]].type, Integer):
            problems.append(
                f"the primary key of {self.name} must be one column of "
                f"integers, not {', '.join(keys) or 'missing'}"
            )
        if problems:
            raise DeclarationError(problems)

    def fits(self, key: Key) -> bool:
        """Return whether an object id has room for a primary key."""
        return 0 < int(key[0]) <= self.layout.max_local_id

    def _lookups(self, given: Mapping[str, type[Any]]) -> dict[str, type[Any]]:
        by_attribute = {}
        for column, cls in given.items():
            attribute = self._conversion.attribute_of(column)
            if attribute is None or link(cls).type_id != self.type_id:
                problem = (
                    f"{cls.__name__} is not a lookup of {self.name}.{column} "
                    f"and {self.cls.__name__}"
                )
                raise DeclarationError([problem])
            by_attribute[attribute] = cls
        return by_attribute

    def on(self, cluster: Cluster, shard_id: int) -> ShardObjects:
        """Return the objects on a shard."""
        return ShardObjects(self, cluster, shard_id)


@contextmanager
def _converted(column: str, value: str) -> Iterator[None]:
    try:
        yield
    except SQLAlchemyError:
        raise
    except Exception as error:  # of a type, such as an unknown Enum
        raise ConversionError(
            column=column,
            value=value,
            reason=f"{type(error).__name__}: {message(error)}",
        ) from error


class LegacyRows:
    """The rows of a table in the database, by primary key."""

    def __init__(self, one: MovedRows, engine: Engine) -> None:
        self.marks: Marks = one.marks
        self.table: Table = one.exact
        self.engine = engine
        self._keys = tuple(self.table.primary_key)
        self._computed = {
            column.name for column in self.table.columns if column.computed is not None
        }

    @contextmanager
    def begin(self) -> Iterator[Connection]:
        """Begin a transaction whose reads have one snapshot."""
        with snapshot(self.engine) as connection:
            yield connection

    @contextmanager
    def begin_marking(self) -> Iterator[Connection]:
        """Begin a transaction that only writes marks."""
        with self.engine.begin() as connection:
            yield connection

    def look(self, keys: Collection[Key]) -> dict[Key, tuple[RowMark, Row | None]]:
        """Return marks and rows by key."""
        with (
            one_read(self.engine) as connection,
            _converted(self.table.name, "what the database has"),
        ):
            return self.marks.rows_of(connection, keys)

    def read(self, connection: Connection, keys: Collection[Key]) -> dict[Key, Row]:
        """Return rows by key.

        :raises ConversionError: if the type of a column refuses a value.
        """
        statement = select(self.table).where(among(self._keys, list(keys)))
        with _converted(self.table.name, "what the database has"):
            return {
                tuple(row[column.name] for column in self._keys): row
                for row in map(dict, connection.execute(statement).mappings())
            }

    def write(self, connection: Connection, rows: Mapping[Key, Row | None]) -> None:
        """Insert or update rows; delete those that are None."""
        there = self.read(connection, rows)
        for key, row in rows.items():
            here = among(self._keys, [key])
            given = self._given(row)
            if row is None:
                if key in there:
                    connection.execute(delete(self.table).where(here))
            elif key not in there:
                names = (column.name for column in self._keys)
                own = dict(zip(names, key, strict=True))
                connection.execute(insert(self.table).values({**given, **own}))
            elif given:
                connection.execute(update(self.table).where(here).values(given))

    def write_first(self, connection: Connection, rows: Mapping[Key, Row]) -> None:
        """Write rows that had no mark."""
        self.write(connection, rows)

    def insert(self, connection: Connection, row: Row) -> Key:
        """Insert a row, and return the key that the database chooses."""
        done = connection.execute(insert(self.table).values(self._given(row)))
        key: Any = done.inserted_primary_key
        return tuple(key)

    def _given(self, row: Row | None) -> dict[str, Any]:
        """Return the values that the server does not compute itself."""
        given = {
            name: value
            for name, value in (row or {}).items()
            if name not in self._computed
        }
        return written(self.table, given)


class ShardPart:
    """The rows of one shard, in one transaction at a time."""

    def __init__(self, one: MovedRows, cluster: Cluster, shard_id: int) -> None:
        self.marks: Marks = one.shard_marks
        self._one = one
        self._cluster = cluster
        self._shard_id = shard_id
        self._session: Any = None

    @contextmanager
    def begin(self) -> Iterator[Connection]:
        """Begin a transaction on the shard, whose reads have one snapshot."""
        with self._cluster.begin(cache=False, info={COPYING: True}) as session:
            session.shows_hidden = True
            self._session = session
            place = self._place
            connection = session.root_connection(place)
            if session.reads_latest(place):
                # Marks, rows and their number are read by several statements.
                place.backend.begin_locking(connection)
            yield session._view(place)

    def begin_marking(self) -> AbstractContextManager[Connection]:
        """Begin a transaction that only writes marks."""
        return self.begin()

    def look(self, keys: Collection[Key]) -> dict[Key, tuple[RowMark, Row | None]]:
        """Return marks and rows by key."""
        return look_twice(self, keys)

    @property
    def _place(self) -> Place:
        return self._one.place(self._session, self._shard_id)

    def read(self, connection: Connection, keys: Collection[Key]) -> dict[Key, Row]:
        """Return the attributes of rows by key."""
        raise NotImplementedError

    def write(self, connection: Connection, rows: Mapping[Key, Row | None]) -> None:
        """Insert or update rows; delete those that are None."""
        raise NotImplementedError

    def write_first(self, connection: Connection, rows: Mapping[Key, Row]) -> None:
        """Write rows that had no mark."""
        self.write(connection, rows)

    def delete(self, keys: Collection[Key]) -> None:
        """Delete rows, in a transaction."""
        self.write(self._session._view(self._place), dict.fromkeys(keys))

    def page(self, after: Key | None, limit: int) -> list[Key]:
        """Return the next keys of the shard, in a transaction.

        :param after: the last key of the page before.
        """
        columns = tuple(self._one.mapper.primary_key)
        statement = select(*columns).order_by(*columns).limit(limit)
        if after is not None:
            statement = statement.where(after_key(columns, after))
        rows = self._session.execute(statement, bind_arguments={"place": self._place})
        return [tuple(row) for row in rows]

    def count(self, after: Key | None, until: Key | None) -> int:
        """Return the number of rows of the shard, in a transaction.

        :param after: the key before the first one; None for all before.
        :param until: the last key; None for all that follow.
        """
        columns = tuple(self._one.mapper.primary_key)
        statement = select(func.count()).select_from(columns[0].table)
        if after is not None:
            statement = statement.where(after_key(columns, after))
        if until is not None:
            statement = statement.where(not_(after_key(columns, until)))
        place = {"place": self._place}
        number: int = self._session.execute(
            statement, bind_arguments=place
        ).scalar_one()
        return number


class ShardObjects(ShardPart):
    """The objects of one shard, by object id.

    The rows have the attributes of :class:`Conversion`.

    :ivar former: the attributes, before the last write, of the objects that
        it has changed or deleted, by key.
    """

    _one: MovedTable

    def __init__(self, one: MovedRows, cluster: Cluster, shard_id: int) -> None:
        super().__init__(one, cluster, shard_id)
        self.former: dict[Key, Row] = {}

    def read(self, connection: Connection, keys: Collection[Key]) -> dict[Key, Row]:
        """Return the attributes of objects by key."""
        ids = [object_id for (object_id,) in keys]
        objects = self._session.get_many(self._one.cls, ids)
        rows: dict[Key, Row] = {
            key: self._one.conversion.attributes(one)
            for key, one in zip(keys, objects, strict=True)
            if one is not None
        }
        if self._one.raw and rows:
            (key_column,) = self._key_columns
            statement = select(key_column, *self._one.raw.values()).where(
                among([key_column], list(rows))
            )
            for object_id, *values in connection.execute(statement):
                exact = dict(zip(self._one.raw, values, strict=True))
                rows[object_id,] = {**rows[object_id,], **exact}
        return rows

    def write(self, connection: Connection, rows: Mapping[Key, Row | None]) -> None:
        """Insert or update objects; delete those that are None."""
        cls = self._one.cls
        self.former = {}
        there = self._session.get_many(cls, [i for (i,) in rows])
        new, gone = [], []
        late: dict[Key, Row] = {}
        for (key, row), found in zip(rows.items(), there, strict=True):
            if found is not None:
                self.former[key] = self._one.conversion.attributes(found)
            if row is None:
                gone.append(key[0])
                continue
            mapped, is_late = self._mapped(row, connection.dialect)
            if found is None:
                new.append({"id": key[0], **mapped})
            else:
                for name, value in mapped.items():
                    setattr(found, name, value)
                    if name in self._one.kept:
                        flag_modified(found, name)
            # Of an equal value the session writes nothing.
            if is_late or found is not None:
                late[key] = row
        if new:
            self._session.execute(insert(cls), new, execution_options=_WITH_NULL)
        self._write_late(connection, late)
        if gone:
            self._session.execute(delete(cls).where(cls.id.in_(gone)))

    def write_first(self, connection: Connection, rows: Mapping[Key, Row]) -> None:
        """Insert objects that had no mark, without reading existing rows.

        :raises IntegrityError: if one of them exists.
        """
        new, late = [], {}
        for key, row in rows.items():
            mapped, is_late = self._mapped(row, connection.dialect)
            new.append({"id": key[0], **mapped})
            if is_late:
                late[key] = row
        if new:
            self._session.execute(
                insert(self._one.cls), new, execution_options=_WITH_NULL
            )
        self._write_late(connection, late)

    @property
    def _key_columns(self) -> tuple[Column[Any], ...]:
        columns = {**self._one.raw, **self._one.late}.values()
        (found,) = {column.table for column in columns}
        return tuple(found.primary_key)

    def _mapped(self, row: Row, dialect: Dialect) -> tuple[Row, bool]:
        """Return the values that the class can write itself.

        :returns: them, and whether one of them is not yet as the database has it.
        :raises ConversionError: if the type of a column refuses a value.
        """
        one = self._one
        if not one.computed and not one.late and not one.vectors:
            return row, False
        values, is_late = {}, False
        for name, value in row.items():
            # The type of the class takes other values than hexadecimal digits.
            if name in one.computed or name in one.vectors:
                is_late = is_late or name in one.late
            elif name not in one.late:
                values[name] = value
            else:
                column: Any = one.late[name]
                with _converted(f"{one.cls.__name__}.{name}", reprlib.repr(value)):
                    values[name], is_same = (
                        column.type.loaded(value, dialect)
                        if name in one.stored
                        else (_parsed(value, column), False)
                    )
                is_late = is_late or not is_same
        return values, is_late

    def _write_late(self, connection: Connection, rows: Mapping[Key, Row]) -> None:
        """Write the values of ``late`` as the database has them.

        The class writes NULL as a JSON null, and other spaces; a vector as its
        own type reads it; and the next version; other values as its types make
        them.
        """
        late = self._one.late
        if not late or not rows:
            return
        self._session.flush()
        (key_column,) = self._key_columns
        given: dict[Any, Any] = {
            column: bindparam(f"v_{name}") for name, column in late.items()
        }
        kept = {column: column for column in self._one.kept.values()}
        statement = (
            update(key_column.table)
            .where(key_column == bindparam("key_of_row"))
            .values({**kept, **given})
        )
        connection.execute(
            statement,
            [
                {"key_of_row": key[0], **{f"v_{name}": row[name] for name in late}}
                for key, row in rows.items()
            ],
        )


def _parsed(value: Any, column: Column[Any]) -> Any:
    """Return a JSON value that the class writes first."""
    if isinstance(column.type, TypeDecorator):
        # It would get the expressions, too.
        return None if value is JSON.NULL else value
    if value is None:
        return null()
    if isinstance(column.type, JSONText):
        return json.loads(value, parse_float=_finite)
    return value


def _finite(digits: str) -> float:
    """Return a number that JSON has: MariaDB keeps texts of larger ones."""
    return max(-sys.float_info.max, min(float(digits), sys.float_info.max))
