"""Columns of cached classes: keys, encoding and checks of their rows.

A key consists of the name of the table and an id, and of nothing that differs
between processes: every writer of the row must invalidate the same key.  A
value begins with a digest of the columns and the generation of the row's
server.  A reader removes a value with another digest or generation.  So two
versions of a program, or processes with different topologies while a new one
is being published, invalidate each other's values, and do not read them.
"""

from __future__ import annotations

import json
import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from hashlib import blake2b
from math import isfinite
from typing import Any, TypeAlias, TypeVar

from sqlalchemy import inspect, Select, select, type_coerce, types
from sqlalchemy.engine import Dialect
from sqlalchemy.orm import Mapper
from sqlalchemy.types import NullType, PickleType, TypeDecorator, TypeEngine

from sqla_shard.engine.rendering import Place
from sqla_shard.exc import CacheClassError, OptionError
from sqla_shard.planning import has_objects, routing_column, spec_of
from sqla_shard.session import ShardSession
from sqla_shard.types import JSONBlob, Sequence38, ShardedId
from sqla_shard.types.columns import MAX_SEQUENCE
from sqla_shard.types.object_ids import IdType
from sqla_shard.util import sqlalchemy_private as private
from sqla_shard.util.json_values import decode_roughly, strict_decoder

# -- Encoding: JSON, which cannot execute code.
#
# A row is encoded as the driver returned it, so that the types of its columns
# process it like a row of the database.  A value of a type that JSON does not
# have is an object with one key, which names the type; drivers return no
# dictionaries.


K = TypeVar("K")

#: A backslash, and the escaped character.
_ESCAPE = re.compile(rb"\\(?:u[0-9A-Fa-f]{4}|.)", re.DOTALL)

#: The least integer that may have been decoded as a float.
_INEXACT = 2.0**63

FORMAT = 1
"""The version of the encoding; a change makes stored values unreadable."""


def _of_timedelta(value: timedelta) -> list[int]:
    return [value.days, value.seconds, value.microseconds]


def _to_timedelta(value: list[int]) -> timedelta:
    days, seconds, microseconds = value
    if {type(one) for one in value} != {int}:
        raise TypeError("a timedelta must have integers")
    return timedelta(days, seconds, microseconds)


def _of_bytes(value: bytes) -> str:
    return b64encode(value).decode("ascii")


def _to_bytes(value: str) -> bytes:
    return b64decode(value, validate=True)


def _to_decimal(value: str) -> Decimal:
    if type(value) is not str:
        raise TypeError("a decimal must be a string")
    return Decimal(value)


# In this order: a datetime is also a date.
_TAGS: tuple[tuple[type[Any], str, Callable[[Any], Any]], ...] = (
    (datetime, "t", datetime.isoformat),
    (date, "d", date.isoformat),
    (timedelta, "i", _of_timedelta),
    (Decimal, "n", str),
    (bytes, "b", _of_bytes),
    (bytearray, "b", _of_bytes),
)
_UNTAG: dict[str, Callable[[Any], Any]] = {
    "t": datetime.fromisoformat,
    "d": date.fromisoformat,
    "i": _to_timedelta,
    "n": _to_decimal,
    "b": _to_bytes,
}


def _tag(value: Any) -> dict[str, Any]:
    for kind, tag, write in _TAGS:
        if isinstance(value, kind):
            return {tag: write(value)}
    raise TypeError(f"a {type(value).__name__} is not a JSON value")


def _untag(value: dict[str, Any]) -> Any:
    ((tag, text),) = value.items()
    return _UNTAG[tag](text)


_encode = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_tag
).encode
_decode = strict_decoder(_untag)
_decode_json = strict_decoder()


def dump(value: Sequence[Any]) -> bytes:
    """Return rows, or lists of values of drivers, as bytes.

    :raises TypeError: if a value has another type.
    :raises ValueError: if a string cannot be encoded as UTF-8.
    """
    return _encode(value).encode("utf-8")


def parse(data: bytes) -> Any:
    """Return the rows that :func:`dump` has encoded, as lists.

    :raises ValueError: if they cannot be decoded.
    """
    try:
        return _parse(data)
    except (ArithmeticError, KeyError, RecursionError, TypeError) as error:
        raise ValueError(f"cannot be read: {error!r}") from error


def _parse(data: bytes) -> Any:
    if b"\\u" not in data:
        with suppress(ValueError):
            value = decode_roughly(data)
            if type(value) is list and _untag_inside(value):
                return value
    return _decode(_text_of(data))


def _untag_inside(values: list[Any]) -> bool:
    """Replace the objects in lists; return False if a number is not exact."""
    for at, value in enumerate(values):
        kind = type(value)
        if kind is dict:
            values[at] = _untag(value)
        elif kind is list:
            if not _untag_inside(value):
                return False
        elif kind is float and not -_INEXACT < value < _INEXACT:
            return False
    return True


def _text_of(data: bytes) -> str:
    r"""Return the decoded string of a value.

    :raises ValueError: if it is not UTF-8, or has an escape such as
        ``\ud800``: half of a surrogate pair, which servers refuse.
    """
    # dump() writes no such escapes; but "ud" may follow an escaped backslash.
    if b"\\ud" in data or b"\\uD" in data:
        for escape in _ESCAPE.findall(data):
            if escape[:3].lower() == b"\\ud":
                raise ValueError("half a surrogate pair")
    return data.decode("utf-8")


def parse_json(data: bytes) -> Any:
    """Return decoded JSON.

    :raises ValueError: if it is not valid.
    :raises RecursionError: if it is nested too deeply.
    """
    return _decode_json(_text_of(data))


def parse_many(data: Mapping[K, bytes]) -> dict[K, Any]:
    """Return decoded values, without those that cannot be decoded."""
    try:
        # One call for all values: the calls would take longer than decoding.
        rows = parse(b"[%s]" % b",".join(data.values()))
        if len(rows) == len(data):
            return dict(zip(data, rows, strict=True))
    except ValueError:
        pass  # one of the values cannot be decoded
    read = {}
    for key, one in data.items():
        with suppress(ValueError):
            read[key] = parse(one)
    return read


# -- Checks of column values, by the types of their columns.
#
# A cached value may be damaged, or written by any program that reaches the
# node.  A column value that the driver would not return is not passed to
# SQLAlchemy: an id of ``206158430286.0`` would become an integer, and a number
# instead of a string would raise at each read until the value expires.


#: Checks of a column value by its type; None if the type is sufficient.
Checks: TypeAlias = dict[type, Callable[[Any], bool] | None]

#: The positions of the values of a row that are checked, and their checks.
_RowCheck: TypeAlias = tuple[tuple[int, Callable[[Any], bool]], ...]

_LARGEST_EXPONENT = 400
_DIGITS = 38


def _fits_64_bits(value: int) -> bool:
    return -(2**63) <= value < 2**64


def _is_naive(value: datetime | time) -> bool:
    return value.tzinfo is None


def _of_naive(kind: type[datetime] | type[time]) -> Callable[[str], bool]:
    """Return a check of the strings that SQLite has for a type.

    SQLAlchemy makes an aware value of a string with an offset.
    """

    def check(value: str) -> bool:
        try:
            return _is_naive(kind.fromisoformat(value))
        except ValueError:
            return True  # the column has a format of its own, or refuses it

    return check


def _is_bounded(value: Decimal) -> bool:
    # Formatting a large exponent would take as many bytes of memory.
    return (
        value.is_finite() and abs(value.adjusted()) <= _LARGEST_EXPONENT
    ) or not value


def _is_sequence(value: int | Decimal) -> bool:
    return 0 <= value <= MAX_SEQUENCE and value == int(value)


def _is_whole(value: Decimal) -> bool:
    return value.is_finite() and _is_sequence(value)


def _is_sequence_text(value: str) -> bool:
    return len(value) == _DIGITS and value.isascii() and value.isdecimal()


_INTEGER: Checks = {int: _fits_64_bits}
_FLOAT: Checks = {float: isfinite}
_DECIMAL: Checks = {Decimal: _is_bounded}
_TEXT: Checks = {str: None}
_BYTES: Checks = {bytes: None, bytearray: None}
#: For columns of unknown types: all types that a driver may return.
_ANY: Checks = {
    **_INTEGER,
    **_FLOAT,
    **_DECIMAL,
    **_TEXT,
    **_BYTES,
    datetime: _is_naive,
    date: None,
    timedelta: None,
}
#: Column types; their checks for drivers with native types, and for SQLite.
_KINDS: tuple[tuple[type[Any], Checks, Checks], ...] = (
    (types.Integer, _INTEGER, _INTEGER),
    (types.Boolean, _INTEGER, _INTEGER),
    # SQLAlchemy 2.0 derives it from Numeric.
    (types.Float, _FLOAT, _FLOAT),
    (types.Numeric, _DECIMAL, {**_INTEGER, **_FLOAT}),
    (types.DateTime, {datetime: _is_naive}, {str: _of_naive(datetime)}),
    (types.Date, {date: None}, _TEXT),
    (types.Time, {timedelta: None}, {str: _of_naive(time)}),
    (types.LargeBinary, _BYTES, _BYTES),
    (types.String, _TEXT, _TEXT),
    (types.JSON, _TEXT, _TEXT),
)


class RowChecks:
    """Checks that cached rows have the types that a driver returns.

    :param columns: the columns of a row, in order.
    :param dialect: the dialect of the server of the rows.
    """

    def __init__(self, columns: Iterable[Any], dialect: Dialect) -> None:
        self._checks = [_checks_of_column(column, dialect) for column in columns]
        #: The checks of rows by the types of their values: few of them occur.
        self._by_types: dict[tuple[type, ...], _RowCheck] = {}

    def accepts(self, row: Any) -> bool:
        """Return whether the driver could have returned a row."""
        if type(row) is not list:
            return False
        kinds = tuple(map(type, row))
        checks = self._by_types.get(kinds)
        if checks is None:
            row_check = self._checks_of(kinds)
            if row_check is None:
                return False
            checks = self._by_types[kinds] = row_check
        for at, check in checks:
            if not check(row[at]):
                break
        else:
            return True
        return False

    def _checks_of(self, kinds: tuple[type, ...]) -> _RowCheck | None:
        """Return the checks of a row; None for a type that is refused."""
        if len(kinds) != len(self._checks):
            return None
        by_column = []
        for at, (kind, checks) in enumerate(zip(kinds, self._checks, strict=True)):
            if kind not in checks:
                return None
            check = checks[kind]
            if check is not None:
                by_column.append((at, check))
        return tuple(by_column)


def _checks_of_column(column: Any, dialect: Dialect) -> Checks:
    """Return the checks of the values of a column."""
    checks = dict(_checks_of_type(column.type, dialect))
    if column.nullable:
        checks[type(None)] = None
    return checks


def _checks_of_type(kind: Any, dialect: Dialect) -> Checks:
    as_text = dialect.name == "sqlite"
    if isinstance(kind, IdType):
        # A reference accepts ids of any type, also when it is written.
        return {int: _id_check(kind)}
    if isinstance(kind, Sequence38):
        if as_text:
            return {str: _is_sequence_text}
        return {int: _is_sequence, Decimal: _is_whole}
    if isinstance(kind, JSONBlob) and kind.compression is not None:
        # SQLite returns the type of each value.
        return {**_TEXT, **_BYTES}
    kind = kind.dialect_impl(dialect)
    while isinstance(kind, TypeDecorator):
        kind = kind.load_dialect_impl(dialect).dialect_impl(dialect)
    for known, typed, text in _KINDS:
        if isinstance(kind, known):
            return text if as_text else typed
    return _ANY


def _id_check(kind: IdType) -> Callable[[int], bool]:
    layout, type_id = kind.layout, kind.type_id
    max_id, max_type = layout.max_id, layout.max_type_id
    if kind.whole or not layout.names_type:
        return lambda value: 0 <= value <= max_id

    def check(value: int) -> bool:
        return 0 <= value <= max_id and value >> layout.type_shift & max_type == type_id

    return check


_PREFIX = re.compile(r"[!-9;-~]{1,40}")
_TABLE = re.compile(r"[!-~]{1,64}")
_ADDRESS = re.compile(r" at 0x[0-9A-Fa-f]+")


@dataclass(frozen=True, kw_only=True)
class Cached:
    """Options of a cached class.

    :ivar region: name of the region.
    :ivar version: a new version makes earlier values unreadable; raise it for
        a change that leaves the columns as they are.
    :ivar rows: maximum number of cached rows of each list of a mapping class.
    """

    region: str
    version: int = 1
    rows: int = 500


def check_prefix(prefix: Any) -> str:
    """Return the prefix of keys.

    :raises OptionError: if it is not valid.
    """
    if not isinstance(prefix, str) or not _PREFIX.fullmatch(prefix):
        raise OptionError(
            "is not a valid prefix of keys: use 1 to 40 ASCII characters "
            "without spaces and colons",
            option="prefix",
            value=prefix,
        )
    return prefix


def check_rows(rows: int) -> int:
    """Return the maximum number of cached rows of a list.

    :raises OptionError: if it is not valid.
    """
    if type(rows) is not int or not 1 <= rows <= 10_000:
        raise OptionError(
            "must be an integer, 1 to 10,000 rows of a list", option="rows", value=rows
        )
    return rows


class Columns:
    """The columns of a cached class.

    :ivar select: the SELECT of objects of the class.
    :ivar digest: a digest of the names and types of the columns.
    :raises CacheClassError: if the class cannot be loaded from its row alone.
    """

    def __init__(self, mapper: Mapper[Any], version: int) -> None:
        self.table: Any = mapper.local_table
        self.name: str = mapper.class_.__name__
        if mapper.polymorphic_on is not None or mapper.inherits is not None:
            raise CacheClassError(
                "has subclasses or a mapped base class, so an object may span "
                "several tables",
                class_name=self.name,
            )
        self._refuse_name()
        self.select: Select[Any] = select(mapper.class_)
        self._named = {column.name: column for column in self.table.c}
        compiled: Any = self.select.compile()
        self.names: list[Any] = [
            entry.keyname for entry in private.result_columns(compiled)
        ]
        others = [name for name in self.names if name not in self._named]
        if others or len(compiled.statement.get_final_froms()) != 1:
            raise CacheClassError(
                "is loaded with more than the columns of its table: "
                f"{', '.join(others) or 'a join'}; use lazy='select' or "
                "deferred() for it",
                class_name=self.name,
            )
        self._refuse_subqueries(mapper)
        self._refuse_expressions()
        self._refuse_cascades()
        # Addresses in memory differ between processes: remove them.
        types = [_ADDRESS.sub("", repr(self._named[name].type)) for name in self.names]
        self._row_checks: dict[str, RowChecks] = {}
        self.digest: str = digest(FORMAT, version, self.names, types)

    def _refuse_name(self) -> None:
        if not _TABLE.fullmatch(str(self.table.name)):
            raise CacheClassError(
                f"has the table {self.table.name!r}: keys contain its name, "
                "which must be 1 to 64 ASCII characters without spaces",
                class_name=self.name,
            )

    def _refuse_subqueries(self, mapper: Mapper[Any]) -> None:
        for relation in mapper.relationships:
            # SQLAlchemy would repeat the statement of the rows, which has no
            # ids here.
            if relation.lazy == "subquery":
                raise CacheClassError(
                    f"has the relationship {relation.key!r} with "
                    "lazy='subquery'; use lazy='selectin'",
                    class_name=self.name,
                )

    def _refuse_expressions(self) -> None:
        for name in self.names:
            kind = self._named[name].type
            if _is_pickled(kind):
                raise CacheClassError(
                    f"has the column {name!r} of type {kind!r}: a program "
                    "that can write to the cache could run code in readers; "
                    "use JSON",
                    class_name=self.name,
                )
            if not isinstance(kind, ShardedId) and _is_converted(kind):
                raise CacheClassError(
                    f"has the column {name!r} of type {kind!r}, whose values "
                    "the server converts in SELECT",
                    class_name=self.name,
                )

    def _refuse_cascades(self) -> None:
        for key in self.table.foreign_keys:
            for what, how in (("ondelete", key.ondelete), ("onupdate", key.onupdate)):
                if (how or "RESTRICT").upper() not in _NO_CHANGES:
                    raise CacheClassError(
                        f"has a foreign key with {what}={how!r}: the server "
                        "would change rows without invalidating them; use "
                        "relationship(cascade=...)",
                        class_name=self.name,
                    )

    def row_checks(self, dialect: Dialect) -> RowChecks:
        """Return the checks of rows, for the servers of one dialect."""
        checks = self._row_checks.get(dialect.name)
        if checks is None:
            columns = [self._named[name] for name in self.names]
            checks = self._row_checks[dialect.name] = RowChecks(columns, dialect)
        return checks

    def raw(self, *more: Any) -> Select[Any]:
        """Return a SELECT of each column as the driver returns it.

        :param more: columns before them.
        """
        return select(*more, *(self._raw(name) for name in self.names))

    def _raw(self, name: str) -> Any:
        column = self._named[name]
        # The server composes the id, which is the same in Python.
        if isinstance(column.type, ShardedId):
            return column
        return type_coerce(column, NullType()).label(name)


#: Actions of a foreign key that change no rows.
_NO_CHANGES = ("RESTRICT", "NO ACTION")


def _is_converted(kind: TypeEngine[Any]) -> bool:
    inner = kind.impl if isinstance(kind, TypeDecorator) else kind
    return any(private.has_column_expression(one) for one in (kind, inner))


def _is_pickled(kind: Any) -> bool:
    while isinstance(kind, TypeDecorator):
        if isinstance(kind, PickleType):
            return True
        kind = kind.impl
    return False


def check_id(table: Any, name: str, row_id: Any) -> int:
    """Return the number of the shard of rows of a class.

    :param name: name of the class, for messages.
    :param row_id: the id that names the shard.
    :raises InvalidIdError: if it is not a valid id.
    :raises WrongTypeError: if it is the id of another class.
    """
    shard_id: int = routing_column(table).type.shard_of(row_id, name)
    return shard_id


def place_of(session: ShardSession, table: Any, name: str, row_id: Any) -> Place:
    """Return the shard location of rows of a class; see :func:`check_id`.

    :raises UnknownShardError: if the shard is not open.
    """
    shard_id = check_id(table, name, row_id)
    spec = spec_of(table)
    keyspace = session.places.keyspace(spec.keyspace, spec.kind, spec.layout)
    return session.places.place(keyspace, shard_id)


def digest(*parts: Any) -> str:
    """Return a short string that is the same for the same parts."""
    return blake2b(repr(parts).encode(), digest_size=6).hexdigest()


def is_mapping(cls: Any) -> bool:
    """Return whether a class is a mapping class, and not an object class.

    :raises CacheClassError: if it is neither.
    """
    if hasattr(cls, "__sqla_shard_mapping__"):
        if spec_of(mapper_of(cls).local_table).places_of is not None:
            raise CacheClassError(
                "is spread over several shards; its lists are not cached",
                class_name=cls.__name__,
            )
        return True
    table = mapper_of(cls).local_table
    if spec_of(table).kind == "objects" and has_objects(table):
        return False
    raise CacheClassError(
        "must be an object class or a mapping class", class_name=cls.__name__
    )


def mapper_of(cls: Any) -> Mapper[Any]:
    """Return the mapper of a class.

    :raises CacheClassError: if it is not mapped.
    """
    mapper: Any = inspect(cls, raiseerr=False)
    if not isinstance(mapper, Mapper):
        raise CacheClassError(
            "is not a mapped class", class_name=getattr(cls, "__name__", cls)
        )
    return mapper
