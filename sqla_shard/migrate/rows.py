"""Rows of the database, as objects, and whether the two are the same.

A :class:`Conversion` returns the values of an object for a row, with the
object ids of the rows that it refers to.  Values are compared as Python has
them, not as text: text by code points, so ``"a"`` and ``"A "`` differ although
the server may call them equal; times with a zone by the moment; numbers by
value, and a truth value in JSON is not a number.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, tzinfo, UTC
from typing import Any, TypeAlias

from sqlalchemy import Column, inspect, JSON

from sqla_shard.exc import ConversionError, DeclarationError
from sqla_shard.exc.base import message
from sqla_shard.migrate.future import FutureTable

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
        self.raw = {
            name: column
            for name, attribute in self._attributes.items()
            if name not in self._convert
            and name not in self._revert
            and (column := _plain(cls, attribute)) is not None
            and column.type._type_affinity is table.table.c[name].type._type_affinity
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
        found = {}
        for name, attribute in self._attributes.items():
            value = row[name]
            if name in self._convert:
                given = None if value is JSON.NULL else value
                value = self._called(self._convert, name, given)
            elif value is JSON.NULL:
                raise ConversionError(
                    column=f"{self._table}.{name}",
                    value="null",
                    reason="the field has None for NULL, not for a JSON null; "
                    "give Moved(convert=..., revert=...), or a JSON column",
                )
            elif name in self._types and value is not None:
                value = ids[self._types[name], value]
            elif isinstance(value, datetime) and value.tzinfo is None:
                value = value.replace(tzinfo=self._zone)
            found[attribute] = value
        return found

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
        found = {}
        for name, attribute in self._attributes.items():
            value = attributes[attribute]
            if name in self._revert:
                value = self._called(self._revert, name, value)
            elif name in self._types and value is not None:
                value = keys[self._types[name], value]
            elif isinstance(value, datetime) and value.tzinfo is not None:
                value = value.astimezone(self._zone).replace(tzinfo=None)
            found[name] = value
        return found

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
