"""Types that read and write values of columns as the server has them.

Drivers and SQLAlchemy's types change some: a TIME beyond a day or below zero
becomes a time of day, a TIMESTAMP one of the session's time zone, a FLOAT or
VECTOR loses digits, a DOUBLE or DECIMAL is rounded by ``asdecimal``, an invalid
date becomes NULL with some drivers, and NULL of a JSON column is written as the
JSON value ``null``.  Types of the application do more: a pickle is written with
another protocol than it was read with.  Who compares what was read so on two sides
sees the same on both, and finds no difference.
"""

from __future__ import annotations

import json
import reprlib
from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import date, datetime, time, timedelta, UTC
from decimal import Decimal
from typing import Any

from sqlalchemy import (
    BINARY,
    Boolean,
    Column,
    Date,
    DateTime,
    Enum,
    Float,
    func,
    Integer,
    Interval,
    JSON,
    LargeBinary,
    literal,
    literal_column,
    MetaData,
    not_,
    Numeric,
    or_,
    String,
    Table,
    Time,
    TIMESTAMP,
    type_coerce,
    TypeDecorator,
    Uuid,
    VARBINARY,
)
from sqlalchemy.engine import Dialect
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.elements import ColumnElement
from sqlalchemy.sql.visitors import InternalTraversal
from sqlalchemy.types import TypeEngine, UserDefinedType

from sqla_shard.util.sqlalchemy_helpers import is_mysql

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_TICK = timedelta(microseconds=1)


class _OnServer(ColumnElement[Any]):
    """A value, in an expression on MySQL and MariaDB.

    :param column: the value.
    :param form: the expression, with ``{}`` for the value.
    """

    inherit_cache: bool | None = True
    _traverse_internals = [  # noqa: RUF012  # SQLAlchemy's own protocol
        ("column", InternalTraversal.dp_clauseelement),
        ("form", InternalTraversal.dp_string),
        ("type", InternalTraversal.dp_type),
    ]

    def __init__(
        self, column: ColumnElement[Any], form: str, type_: TypeEngine[Any]
    ) -> None:
        self.column = column
        self.form = form
        self.type = type_


@compiles(_OnServer)
def _column(element: _OnServer, compiler: Any, **kw: Any) -> str:
    return str(compiler.process(element.column, **kw))


@compiles(_OnServer, "mysql", "mariadb")
def _expression(element: _OnServer, compiler: Any, **kw: Any) -> str:
    return element.form.format(_column(element, compiler, **kw))


class _Exact(UserDefinedType[Any]):
    """Base of the types.

    :param type_: the type of the column.
    """

    target = "CHAR"

    def __init__(self, type_: TypeEngine[Any]) -> None:
        self.type_ = type_

    def column_expression(self, colexpr: ColumnElement[Any]) -> ColumnElement[Any]:
        """Return what a SELECT reads."""
        return _OnServer(colexpr, f"CAST({{}} AS {self.target})", self)

    def _is_original(self, dialect: Dialect) -> bool:
        # SQLite has no types of its own for these.
        return not is_mysql(dialect)


class _Moment(_Exact):
    """A time or date; one that Python does not have is the server's text."""

    cache_ok: bool | None = True

    def __init__(self, type_: TypeEngine[Any], parse: Callable[[str], Any]) -> None:
        super().__init__(type_)
        self.parse = parse

    def bind_processor(self, dialect: Dialect) -> Any:
        """Return that of the column's type."""
        return self.type_.dialect_impl(dialect).bind_processor(dialect)

    def result_processor(self, dialect: Dialect, coltype: object) -> Any:
        """Return a function that parses what a SELECT has read."""
        if self._is_original(dialect):
            plain = self.type_.dialect_impl(dialect)
            return plain.result_processor(dialect, coltype)
        return self._parsed

    def _parsed(self, value: Any) -> Any:
        if value is None:
            return None
        text = _decoded(value)
        try:
            return self.parse(text)
        except ValueError:
            return text


class _Stamp(_Moment):
    """A TIMESTAMP, which is a moment, whatever the session's time zone is.

    A value without a zone is one of UTC.
    """

    cache_ok: bool | None = True

    def __init__(self, type_: TypeEngine[Any], is_raw: bool) -> None:
        super().__init__(type_, self._moment)
        self.is_raw = is_raw

    def column_expression(self, colexpr: ColumnElement[Any]) -> ColumnElement[Any]:
        """Return what a SELECT reads."""
        return _OnServer(colexpr, "UNIX_TIMESTAMP({})", self)

    def bind_expression(self, bindvalue: Any) -> ColumnElement[Any]:
        """Return what an INSERT writes."""
        return _OnServer(bindvalue, "FROM_UNIXTIME({})", self)

    def bind_processor(self, dialect: Dialect) -> Any:
        """Return a function that makes seconds of moments, elsewhere texts in UTC."""
        is_original = self._is_original(dialect)
        own = super().bind_processor(dialect) if is_original else None

        def process(value: Any) -> Any:
            if isinstance(value, datetime):
                value = value.replace(tzinfo=value.tzinfo or UTC).astimezone(UTC)
                value = (
                    value.replace(tzinfo=None)
                    if is_original
                    else Decimal((value - _EPOCH) // _TICK).scaleb(-6)
                )
            return own(value) if own else value

        return process

    def result_processor(self, dialect: Dialect, coltype: object) -> Any:
        """Return a function that makes moments of what a SELECT has read."""
        plain = super().result_processor(dialect, coltype)
        if self.is_raw or not self._is_original(dialect):
            return plain

        def process(value: Any) -> Any:
            value = plain(value) if plain else value
            return value and value.replace(tzinfo=UTC)

        return process

    def _moment(self, text: str) -> Any:
        seconds = Decimal(text)
        if not seconds:
            # No TIMESTAMP has the first second.
            return "0000-00-00 00:00:00"
        moment = _EPOCH + int(seconds.scaleb(6)) * _TICK
        return moment.replace(tzinfo=None) if self.is_raw else moment


class _Digits(_Exact):
    """A FLOAT or DOUBLE with all of its digits."""

    cache_ok: bool | None = True
    target = "DOUBLE"

    def __init__(self, type_: TypeEngine[Any], is_raw: bool = False) -> None:
        super().__init__(type_)
        self.is_raw = is_raw

    def bind_processor(self, dialect: Dialect) -> Any:
        """Return a function that makes floats of decimals.

        Drivers write decimals with all zeros, and servers have 65 digits.
        """

        def process(value: Any) -> Any:
            return None if value is None else float(value)

        return process

    def result_processor(self, dialect: Dialect, coltype: object) -> Any:
        """Return a function that makes a decimal of all digits, if any."""
        if not getattr(self.type_, "asdecimal", False) or self.is_raw:
            return None

        def process(value: Any) -> Any:
            return None if value is None else Decimal(repr(float(value)))

        return process


class JSONText(_Exact):
    """The text of a JSON column: NULL is None, and a JSON null ``"null"``."""

    cache_ok: bool | None = True

    def result_processor(self, dialect: Dialect, coltype: object) -> Any:
        """Return a function that decodes what some drivers return."""
        return _decoded


class _JSONValue(JSONText):
    """A value of a JSON column: NULL is None, a JSON null ``JSON.NULL``."""

    cache_ok: bool | None = True

    def bind_processor(self, dialect: Dialect) -> Any:
        """Return a function that writes None as NULL."""

        def process(value: Any) -> Any:
            if value is None:
                return None
            return json.dumps(None if value is JSON.NULL else value)

        return process

    def result_processor(self, dialect: Dialect, coltype: object) -> Any:
        """Return a function that tells the two apart."""

        def process(value: Any) -> Any:
            if value is None:
                return None
            document = json.loads(_decoded(value))
            return JSON.NULL if document is None else document

        return process


class _Number(_Exact):
    """A number that the type of the application would change."""

    cache_ok: bool | None = True

    def column_expression(self, colexpr: ColumnElement[Any]) -> ColumnElement[Any]:
        """Return what a SELECT reads."""
        return colexpr

    def bind_processor(self, dialect: Dialect) -> Any:
        """Return that of the column's type."""
        return self.type_.dialect_impl(dialect).bind_processor(dialect)


class _Rounded(_Number):
    """A DECIMAL as a float; one that no float has is a decimal."""

    cache_ok: bool | None = True

    def result_processor(self, dialect: Dialect, coltype: object) -> Any:
        """Return a function that makes floats of those that are the same."""
        if self._is_original(dialect):
            return self.type_.dialect_impl(dialect).result_processor(dialect, coltype)

        def process(value: Any) -> Any:
            if value is None:
                return None
            rounded = float(value)
            return rounded if Decimal(repr(rounded)) == value else value

        return process


class _Bits(_Exact):
    """A SET that is read by the numbers of its members.

    SQLAlchemy adds 0 to it, which on MySQL is a float of 53 bits.
    """

    cache_ok: bool | None = True
    target = "UNSIGNED"

    def __init__(self, type_: Any, is_raw: bool) -> None:
        super().__init__(type_)
        self.values: tuple[str, ...] = tuple(type_.values)
        self.is_raw = is_raw

    def bind_processor(self, dialect: Dialect) -> Any:
        """Return that of the column's type."""
        return self.type_.dialect_impl(dialect).bind_processor(dialect)

    def result_processor(self, dialect: Dialect, coltype: object) -> Any:
        """Return a function that makes the members of the number, if not raw."""
        if self.is_raw:
            return None

        def process(value: Any) -> Any:
            if value is None:
                return None
            return {one for at, one in enumerate(self.values) if value >> at & 1}

        return process


class _Truth(_Number):
    """A BOOL: another number than 0 and 1 is no truth value."""

    cache_ok: bool | None = True

    def result_processor(self, dialect: Dialect, coltype: object) -> Any:
        """Return a function that leaves other numbers as they are."""

        def process(value: Any) -> Any:
            return bool(value) if value in (0, 1) else value

        return process


class _Hex(_Exact):
    """The bytes of a VECTOR, which as text has fewer digits."""

    cache_ok: bool | None = True

    def column_expression(self, colexpr: ColumnElement[Any]) -> ColumnElement[Any]:
        """Return what a SELECT reads."""
        return func.hex(colexpr)

    def bind_expression(self, bindvalue: Any) -> ColumnElement[Any]:
        """Return what an INSERT writes."""
        return func.unhex(bindvalue)

    def result_processor(self, dialect: Dialect, coltype: object) -> Any:
        """Return a function that decodes what some drivers return."""
        return _decoded


class _Stored(UserDefinedType[Any]):
    """Values that the server stores, without the expressions of a type of its own.

    :param type_: the type of the column.
    """

    cache_ok: bool | None = True

    def __init__(self, type_: TypeEngine[Any]) -> None:
        self.type_ = type_


def is_vector(type_: TypeEngine[Any]) -> bool:
    """Return whether a type of the application is VECTOR."""
    shown: Any = getattr(type_, "get_col_spec", str)
    return isinstance(type_, UserDefinedType) and shown().upper().startswith("VECTOR")


def is_written_late(type_: TypeEngine[Any]) -> bool:
    """Return whether the class would write another value than the server stores.

    It has a text of it, which is made and read by expressions.
    """
    return is_vector(type_) or (
        not isinstance(type_, _Exact) and _has_expressions(type_)
    )


def _decoded(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value


def _time(text: str) -> time:
    if text[:2] > "23":
        # Some versions of Python take 24:00:00 for the midnight before.
        raise ValueError(text)
    return time.fromisoformat(text)


def exact(
    type_: TypeEngine[Any],
    *,
    is_raw: bool,
    is_converted: bool = False,
    is_stored: bool = False,
    is_checked: bool = False,
) -> TypeEngine[Any]:
    """Return the type that reads and writes values as the server has them.

    :param type_: the type of a column.
    :param is_raw: whether a column of the same type gets the values: JSON
        stays text, no decimal becomes a float, and moments have no zone.
    :param is_converted: whether a function gets the values: then a TIMESTAMP
        has the time zone of the session.
    :param is_stored: as for :class:`Rewritten`.
    :param is_checked: as for :class:`Rewritten`.
    """
    if isinstance(type_, Boolean):
        return _Truth(type_)
    if is_rewritten(type_):
        return Rewritten(
            type_, is_raw=is_raw, is_stored=is_stored, is_checked=is_checked
        )
    if is_raw and isinstance(type_, TypeDecorator) and _has_expressions(type_):
        # Such as of a geometry, whose text has no SRID: what the server stores.
        type_ = type_.impl_instance
    if isinstance(type_, TypeDecorator):
        return type_
    if isinstance(type_, Time):
        return _Moment(type_, _time)
    if isinstance(type_, TIMESTAMP) and not is_converted:
        return _Stamp(type_, is_raw)
    if isinstance(type_, DateTime):
        return _Moment(type_, datetime.fromisoformat)
    if isinstance(type_, Date):
        return _Moment(type_, date.fromisoformat)
    if isinstance(type_, JSON):
        return (JSONText if is_raw else _JSONValue)(type_)
    if getattr(type_, "retrieve_as_bitwise", False):
        return _Bits(type_, is_raw)
    if is_raw and is_vector(type_):
        return _Hex(type_)
    if is_raw and isinstance(type_, UserDefinedType) and _has_expressions(type_):
        return _Stored(type_)
    if isinstance(type_, Float):
        return _Digits(type_, is_raw=is_raw)
    if isinstance(type_, Numeric) and not type_.asdecimal:
        return Numeric(type_.precision, type_.scale) if is_raw else _Rounded(type_)
    return type_


class Rewritten(TypeDecorator[Any]):
    """A value of which the type of the application makes another one in Python.

    What it writes may differ from what it has read.

    :param type_: the type of the column.
    :param is_raw: as for :func:`exact`.
    :param is_stored: whether Python has the value that the server has.
    :param is_checked: whether to refuse one that the type would write differently.
    """

    impl = String
    cache_ok = True

    def __init__(
        self,
        type_: TypeEngine[Any],
        # Not by keyword only: the key of the cache of statements has these.
        is_raw: bool = False,
        is_stored: bool = False,
        is_checked: bool = False,
    ) -> None:
        super().__init__()
        self.type_ = type_
        self.is_raw = is_raw
        self.is_stored = is_stored
        self.is_checked = is_checked

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """Return the type of the server, whose values do not change."""
        impl = _impl(self.type_, dialect)
        if isinstance(impl, JSON):
            return JSONText(impl)
        # The type says what the times of a session are, unless both sides have it.
        is_moment = self.is_raw and isinstance(impl, TIMESTAMP)
        return exact(impl, is_raw=is_moment, is_converted=not is_moment)

    def column_expression(self, column: ColumnElement[Any]) -> ColumnElement[Any]:
        """Return what a SELECT reads, of this type: otherwise it gets no value."""
        expression = self.impl_instance.column_expression(column)
        return column if expression is None else type_coerce(expression, self)

    def process_bind_param(self, value: Any, dialect: Dialect) -> Any:
        """Return what the server gets."""
        return value if self.is_stored else _dumped(self.type_, value, dialect)

    def process_result_value(self, value: Any, dialect: Dialect) -> Any:
        """Return what Python gets."""
        if self.is_stored:
            return value
        loaded_value = _loaded(self.type_, value, dialect)
        if self.is_checked and not isinstance(_impl(self.type_, dialect), JSON):
            back = _dumped(self.type_, loaded_value, dialect)
            if not _is_same(back, value):
                raise ValueError(
                    f"{type(self.type_).__name__} reads {reprlib.repr(value)} and "
                    f"writes {reprlib.repr(back)}: it would come back as another "
                    "value; give Moved(convert=..., revert=...), or a column of the "
                    "same type"
                )
        return loaded_value

    def loaded(self, value: Any, dialect: Dialect) -> tuple[Any, bool]:
        """Return the value in Python of one of the server.

        :returns: it, and whether the type writes it as the server has it.
        """
        loaded_value = _loaded(self.type_, value, dialect)
        if isinstance(_impl(self.type_, dialect), JSON):
            # The class may write other spaces.
            return (None if loaded_value is JSON.NULL else loaded_value), False
        return loaded_value, _is_same(_dumped(self.type_, loaded_value, dialect), value)


def is_rewritten(type_: TypeEngine[Any]) -> bool:
    """Return whether a type makes other values in Python of those of the server."""
    if isinstance(type_, Enum):
        return type_.enum_class is not None
    if isinstance(type_, Uuid):
        return True
    if not isinstance(type_, TypeDecorator) or isinstance(type_, Interval):
        return False
    if _has_expressions(type_):
        return False
    # Those of a driver get values that only a driver has read.
    of_texts = (String, LargeBinary, BINARY, VARBINARY)
    return not _has_own(type_, *_OF_DRIVERS) or isinstance(
        type_.impl_instance, of_texts
    )


def is_stored_alike(one: TypeEngine[Any], other: TypeEngine[Any]) -> bool:
    """Return whether two types make the same values of those of the server.

    Not if the dialect has a say: the two sides may have different ones.
    """
    if isinstance(one, Enum) and isinstance(other, Enum):
        return one.enum_class is other.enum_class and one.enums == other.enums
    if isinstance(one, Uuid) and isinstance(other, Uuid):
        return not one.native_uuid and not other.native_uuid
    if isinstance(one, TypeDecorator) and isinstance(other, TypeDecorator):
        return (
            type(one) is type(other)
            and not _has_own(one, "load_dialect_impl")
            and _parameters(one) == _parameters(other)
            and is_stored_alike(one.impl_instance, other.impl_instance)
        )
    return one._type_affinity is other._type_affinity


_OF_DRIVERS = ("bind_processor", "result_processor")


def _has_own(type_: TypeEngine[Any], *names: str) -> bool:
    base: Any = TypeDecorator if isinstance(type_, TypeDecorator) else TypeEngine
    return any(getattr(type(type_), name) is not getattr(base, name) for name in names)


def _has_expressions(type_: TypeEngine[Any]) -> bool:
    return isinstance(type_, (TypeDecorator, UserDefinedType)) and _has_own(
        type_, "bind_expression", "column_expression"
    )


def _parameters(type_: TypeDecorator[Any]) -> dict[str, Any]:
    return {
        name: value
        for name, value in vars(type_).items()
        # What SQLAlchemy computes once is no parameter.
        if name != "impl" and not hasattr(TypeDecorator, name)
    }


def _is_driven(type_: TypeEngine[Any]) -> bool:
    """Return whether a rewritten type reads what a driver has read."""
    return not isinstance(type_, TypeDecorator) or _has_own(type_, *_OF_DRIVERS)


def _impl(type_: TypeEngine[Any], dialect: Dialect) -> TypeEngine[Any]:
    """Return the type below those that are rewritten."""
    while is_rewritten(type_):
        if not isinstance(type_, TypeDecorator):
            return String()
        type_ = type_.load_dialect_impl(dialect)
    return type_


def _loaded(type_: TypeEngine[Any], value: Any, dialect: Dialect) -> Any:
    """Return the value in Python of one of the server."""
    if isinstance(type_, JSON):
        return _JSONValue(type_).result_processor(dialect, None)(value)
    if not is_rewritten(type_):
        return value
    if _is_driven(type_):
        process = type_.dialect_impl(dialect).result_processor(dialect, None)
        return process(value) if process else value
    decorator: Any = type_
    value = _loaded(decorator.load_dialect_impl(dialect), value, dialect)
    # The marker of a JSON null is none of its values.
    if value is JSON.NULL or not _has_own(decorator, "process_result_value"):
        return value
    return decorator.process_result_value(value, dialect)


def _dumped(type_: TypeEngine[Any], value: Any, dialect: Dialect) -> Any:
    """Return what the server gets for a value in Python."""
    if isinstance(type_, JSON):
        return _JSONValue(type_).bind_processor(dialect)(value)
    if not is_rewritten(type_):
        return value
    if _is_driven(type_):
        process = type_.dialect_impl(dialect).bind_processor(dialect)
        return process(value) if process else value
    decorator: Any = type_
    if value is not JSON.NULL and _has_own(decorator, "process_bind_param"):
        value = decorator.process_bind_param(value, dialect)
    return _dumped(decorator.load_dialect_impl(dialect), value, dialect)


def _is_same(back: Any, value: Any) -> bool:
    """Return whether what a type writes is what it has read."""
    if back is None or value is None:
        return back is value
    if isinstance(back, bool):
        back = int(back)
    # Drivers write numbers and UUIDs into texts, too.
    return bool(back == value) or str(back) == str(value)


def written(table: Table, row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a row for an INSERT or UPDATE of an exact table.

    A zero TIMESTAMP, which is a text, has no seconds.
    """
    return {
        name: literal(value, String())
        if isinstance(value, str) and isinstance(table.c[name].type, _Stamp)
        else value
        for name, value in row.items()
    }


def exact_table(
    table: Table,
    raw: Collection[str] = (),
    converted: Collection[str] = (),
    stored: Collection[str] = (),
    checked: Collection[str] = (),
) -> Table:
    """Return a copy of a table whose columns have the types of :func:`exact`.

    It reads and writes rows; it is not created.

    :param raw: names of columns whose values go to one of the same type.
    :param converted: names of columns whose values go to a function.
    :param stored: names of columns whose values Python has as the server has them.
    :param checked: names of columns with values that must come back the same.
    """
    copy = table.to_metadata(MetaData())
    for column in copy.columns:
        name = column.name
        column.type = exact(
            column.type,
            is_raw=name in raw,
            is_converted=name in converted,
            is_stored=name in stored,
            is_checked=name in checked,
        )
    return copy


#: Character sets with codes of one character: they all become the code of the first.
#: Found, as the next, by a conversion of all codes of one to three bytes on MariaDB
#: 10.11 and MySQL 9.7.
WITH_TWINS = frozenset({"armscii8", "cp932", "eucjpms", "sjis", "ujis"})

#: Those with codes that become U+FFFD, of which some come back as they were.
_WITH_REPLACEMENT = frozenset({"big5", "tis620"})


_TEXT = "CAST({0} AS BINARY)"

_UNICODE = "CAST(CONVERT({0} USING utf8mb4) AS BINARY)"


def changed_in_unicode(column: Column[Any], character_set: str) -> ColumnElement[bool]:
    """Return whether a text changes by a conversion to Unicode and back.

    :param character_set: that of the column.
    """
    back = f"CONVERT(CONVERT({{0}} USING utf8mb4) USING {character_set})"
    # One that the server does not convert at all is NULL.
    form = f"(NOT (CAST({back} AS BINARY) <=> {_TEXT}))"
    if character_set in _WITH_REPLACEMENT:
        form = f"({form} OR LOCATE(x'EFBFBD', {_UNICODE}) > 0)"
    return _OnServer(column, form, Boolean())


def has_more_marks(column: Column[Any]) -> ColumnElement[bool]:
    """Return whether a text has more question marks in Unicode.

    Each character that is lost is one.
    """
    theirs, ours = (
        f"LENGTH({one}) - LENGTH(REPLACE({one}, '?', ''))" for one in (_UNICODE, _TEXT)
    )
    # One that the server does not convert at all is NULL.
    return _OnServer(column, f"COALESCE({theirs} > {ours}, TRUE)", Boolean())


#: A reason of :func:`unfit` for which a row is copied nevertheless.
DIFFERS = "a JSON value of SQL whose text MySQL reads as another one"


def unfit(
    column: Column[Any], dialect: Dialect, *, is_raw: bool
) -> Iterator[tuple[str, ColumnElement[bool]]]:
    """Yield which values of a column do not fit, and their condition.

    :param column: the column.
    :param dialect: the dialect.
    :param is_raw: as for :func:`exact`.
    """
    type_ = column.type
    if isinstance(type_, TypeDecorator):
        type_ = type_.impl_instance
    if isinstance(type_, JSON) and not is_raw:
        is_null = func.upper(func.json_type(column)) == "NULL"
        yield "a JSON null, which a field cannot tell from NULL", is_null
    if not is_mysql(dialect):
        return
    is_mariadb = getattr(dialect, "is_mariadb", False)
    if isinstance(type_, JSON) and is_raw and not is_mariadb:
        # Such as a DECIMAL: a text has none.  A field has what Python reads.
        form = "CAST(CAST(CAST({0} AS CHAR) AS JSON) AS CHAR)"
        written: Any = _OnServer(column, form, String())
        yield DIFFERS, written != _OnServer(column, "CAST({} AS CHAR)", String())
    if getattr(type_, "retrieve_as_bitwise", False):
        number: Any = _OnServer(column, "CAST({} AS UNSIGNED)", Integer())
        # SQLAlchemy reads a number with a sign.
        yield (
            "the 64th member of a SET, which SQLAlchemy does not read",
            number >= 2**63,
        )
    if isinstance(type_, Time) and not is_raw:
        last: Any = literal_column("'23:59:59.999999'")
        is_time = column.between(literal_column("'00:00:00'"), last)
        yield "a TIME that is no time of day", not_(is_time)
    elif isinstance(type_, Numeric) and not (type_.asdecimal or is_raw):
        reason = "a DECIMAL with more digits than a float has"
        form = "CAST(CAST({} AS DOUBLE) AS DECIMAL(65, 30))"
        yield reason, _OnServer(column, form, Numeric()) != column
    elif isinstance(type_, Boolean):
        number = type_coerce(column, Integer)
        yield "a BOOL that is neither 0 nor 1", number.not_in([0, 1])
    elif isinstance(type_, (Date, DateTime)):
        parts = (func.year, func.month, func.dayofmonth)
        reason = (
            "a zero or partial date, which a field cannot have, and a column "
            "only without NO_ZERO_DATE and NO_ZERO_IN_DATE in sql_mode"
        )
        yield reason, or_(*(part(column) == 0 for part in parts))
    elif not is_raw and is_vector(type_):
        reason = "a VECTOR, which only a column of the same type has"
        yield reason, column.is_not(None)
    elif isinstance(type_, Enum) and "" not in type_.enums:
        reason = "the error value '' of ENUM, which strict mode refuses"
        yield reason, column == literal_column("''")
