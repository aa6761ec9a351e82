"""Checksums of the rows of a table, computed by its server.

The checksum of a row is the first 64 bits of the SHA-256 of all its columns;
that of a chunk is the number of its rows and the XOR of their checksums.
CRC32 would not do: it is linear, so that values which two rows have swapped
leave the XOR unchanged; MySQL 9.7 has no SHA1() and no MD5().  What makes
different rows look equal, and equal rows look different, is treated as
follows.

- A separator inside a text: texts have their length in front.
- NULL in another column: the row ends with a bit for each column.
- Texts: their bytes as they are stored, trailing spaces included; neither a
  collation nor the character set of the connection matters.
- FLOAT is printed with 6 digits: it is cast to DOUBLE, for which MySQL has 22
  characters.  A DOUBLE needs up to 24, and only a column itself is printed in
  full there.
- TIMESTAMP depends on the time zone of the session: ``SESSION`` sets it.
- A concatenation of more than ``max_allowed_packet`` bytes would be NULL, and
  equal to any other: long texts are represented by their SHA-256.
- JSON on MariaDB is text: white space counts.

Not compared: the history of a system-versioned table.  Tables with a type of
column that is not listed here are reported as unread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqla_shard.fleet.admin import marked

#: What a session needs so that the same row has the same checksum on every
#: server.
SESSION = (
    "SET NAMES utf8mb4",
    "SET SESSION time_zone = '+00:00', sql_mode = ''",
    "SET SESSION sql_select_limit = DEFAULT",
)

#: Place of a row in the order of the key: a literal for each key column.
Bound = tuple[str, ...]

_TIMES = frozenset({"date", "time", "datetime", "timestamp"})
_INTEGERS = frozenset({"tinyint", "smallint", "mediumint", "int", "bigint", "year"})
_EXACT = _INTEGERS | _TIMES | {"decimal"}
_FLOATING = frozenset({"float", "double"})
_TEXTS = frozenset({"char", "varchar", "tinytext", "text", "mediumtext", "longtext"})
_BYTES = frozenset(
    {"binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"} | {"vector"}
)
#: Types whose values have a number, too.
_NUMBERED = frozenset({"enum", "set", "bit"})
_NAMED = frozenset({"uuid", "inet4", "inet6", "json"})
_SHAPES = frozenset(
    {"geometry", "geometrycollection", "geomcollection"}
    | {"point", "linestring", "polygon"}
    | {"multipoint", "multilinestring", "multipolygon"}
)
_KNOWN = _EXACT | _FLOATING | _TEXTS | _BYTES | _NUMBERED | _NAMED | _SHAPES

# The texts and bytes of a row that are concatenated; longer ones would not
# fit into the smallest packet that servers are configured with.
_BUDGET = 400_000


@dataclass(frozen=True, kw_only=True)
class ComparedColumn:
    """A column, as ``information_schema.columns`` describes it.

    :ivar name: its name.
    :ivar kind: its type without arguments, in lower case.
    :ivar full: its type with arguments.
    :ivar charset: character set of a text; None for others.
    :ivar collation: collation of a text; None for others.
    :ivar octets: maximum length in bytes; 0 for numbers and times.
    """

    name: str
    kind: str
    full: str
    charset: str | None
    collation: str | None
    octets: int

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> ComparedColumn:
        """Return the column of a row of ``information_schema.columns``."""
        return cls(
            name=row["column_name"],
            kind=row["data_type"].lower(),
            full=row["column_type"],
            charset=row["character_set_name"],
            collation=row["collation_name"],
            octets=int(row["character_octet_length"] or 0),
        )

    @property
    def is_comparable(self) -> bool:
        """Whether the type is one that this module compares."""
        return self.kind in _KNOWN

    @property
    def order(self) -> tuple[object, ...]:
        """The kind, collation and members that its values are ordered by."""
        members = self.full if self.kind in ("enum", "set") else None
        return self.kind, "unsigned" in self.full, self.collation, members

    def parts(self, *, is_long: bool = False) -> list[str]:
        """Return expressions that are all equal only for the same value.

        :param is_long: whether the value must not be concatenated.
        """
        name = marked(self.name)
        if self.kind == "double" or self.kind in _EXACT:
            return [name]
        if self.kind == "float":
            return [f"CAST({name} AS DOUBLE)"]
        if self.kind in _SHAPES:
            shape = f"ST_AsWKB({name})"
            return [f"ST_SRID({name})", f"LENGTH({shape})", _digest(shape)]
        if self.kind in _NAMED:
            name = f"CAST({name} AS CHAR)"
        length = f"LENGTH({name})"
        if is_long or self.kind == "json":
            return [length, _digest(name)]
        # MySQL refuses to concatenate a VECTOR.
        if self.kind in _TEXTS | _BYTES and self.kind != "vector":
            return [length, name]
        text = f"CAST({name} AS BINARY)"
        if self.kind == "enum":
            # The empty text may be a member, or the mark of a bad value.
            return [f"{name} + 0", length, text]
        return [length, text]

    def read(self) -> str:
        """Return an expression from which :meth:`literal` makes a literal."""
        name = marked(self.name)
        if self.kind in _TEXTS | _BYTES:
            return f"HEX(CAST({name} AS BINARY))"
        if self.kind in _NUMBERED:
            return f"{name} + 0"
        if self.kind in _FLOATING:
            return f"CAST({name} AS DOUBLE)"
        return f"CAST({name} AS CHAR)"

    def literal(self, value: Any) -> str:
        """Return the literal of a value of :meth:`read`."""
        if self.kind in _TEXTS:
            # Comparisons use the collation of the column on both servers.
            return f"_{self.charset} x'{value}' COLLATE {self.collation}"
        if self.kind in _BYTES:
            return f"x'{value}'"
        if self.kind in _FLOATING:
            return f"{value:.16e}"
        if self.kind in _TIMES | _NAMED:
            return f"'{value}'"
        if self.kind in _NUMBERED:
            return str(int(value))
        return str(value)

    def shown(self, value: Any) -> Any:
        """Return a value of :meth:`read` for people."""
        if self.kind in _TEXTS:
            codec = "cp1252" if self.charset == "latin1" else "utf-8"
            return bytes.fromhex(value).decode(codec, "backslashreplace")
        if self.kind in _BYTES:
            return f"0x{value.lower()}"
        if self.kind in _INTEGERS | _NUMBERED:
            return int(value)
        return value


class ComparedColumns:
    """The columns of a table that are compared, and its key.

    :param database: name of the database.
    :param table: name of the table.
    :param columns: all columns to compare.
    :param key: name of the index that identifies a row; None if the table
        has none.
    :param key_columns: names of its columns, in order.
    """

    def __init__(
        self,
        database: str,
        table: str,
        columns: Sequence[ComparedColumn],
        key: str | None,
        key_columns: Sequence[str] = (),
    ) -> None:
        by_name = {column.name: column for column in columns}
        self.columns: tuple[ComparedColumn, ...] = tuple(columns)
        self.key: tuple[ComparedColumn, ...] = tuple(
            by_name[name] for name in key_columns
        )
        self._place = f"{marked(database)}.{marked(table)}"
        self._index = f" FORCE INDEX ({marked(key)})" if key else ""
        self._long = _long(columns)
        self.checksum: str = _hash(
            [part for column in columns for part in self._parts(column)]
            + _nulls(columns)
        )

    def _parts(self, column: ComparedColumn) -> list[str]:
        return column.parts(is_long=column.name in self._long)

    # -- statements -------------------------------------------------------

    def chunk(self, low: Bound | None, high: Bound | None) -> str:
        """Return the statement for the count and the checksum of a range.

        :param low: the range begins after it; None: with the first row.
        :param high: the range ends with it; None: with the last row.
        """
        what = f"COUNT(*), BIT_XOR({self.checksum})"
        return self._select(what, self._where(low, high))

    def some(self, number: int, rows: int) -> str:
        """Return the statement for the count and the checksum of some rows.

        :param number: a number for the result, which is before them.
        :param rows: number of rows; of a table with no more, they are all.
        """
        hashed = self._select(f"{self.checksum} AS h", f" LIMIT {rows}")
        return _select(f"{number}, COUNT(*), BIT_XOR(h)", f"({hashed}) AS hashed", "")

    def bound(self, low: Bound | None, high: Bound | None, rows: int) -> str:
        """Return the statement for the key of the last of some rows.

        :param rows: number of rows of a range; fewer have no such row.
        """
        order = ", ".join(marked(column.name) for column in self.key)
        return self._select(
            self._key_list(),
            f"{self._where(low, high)} ORDER BY {order} LIMIT 1 OFFSET {rows - 1}",
        )

    def listing(self, low: Bound | None, high: Bound | None) -> str:
        """Return the statement for the key of each row of a range.

        The checksum of each column follows the key.
        """
        each = ", ".join(
            _hash(self._parts(column) + _nulls([column])) for column in self.columns
        )
        what = f"{self._key_list()}, {each}"
        return self._select(what, self._where(low, high))

    def one(self, key: Bound) -> str:
        """Return the statement for the checksum of a row."""
        return self._select(self.checksum, f" WHERE {self._is(key)}")

    def values(self, key: Bound, names: Sequence[str]) -> str:
        """Return the statement for the values of some columns of a row."""
        what = ", ".join(map(marked, names))
        return self._select(what, f" WHERE {self._is(key)}")

    def buckets(self) -> str:
        """Return the statement for 256 checksums of a table without a key.

        Equal rows would cancel each other in XOR: the checksums are added.
        """
        what = "h >> 56, COUNT(*), CAST(SUM(h) AS CHAR)"
        return _select(what, self._hashed(), " GROUP BY h >> 56")

    def bucket(self, number: int) -> str:
        """Return the statement for the checksums in a bucket."""
        rest = f" WHERE h >> 56 = {int(number)} GROUP BY h"
        return _select("h, COUNT(*)", self._hashed(), rest)

    def _hashed(self) -> str:
        return f"({self._select(f'{self.checksum} AS h', '')}) AS hashed"

    def _select(self, what: str, rest: str) -> str:
        return _select(what, f"{self._place}{self._index}", rest)

    # -- keys -------------------------------------------------------------

    def bound_of(self, values: Sequence[Any]) -> Bound:
        """Return the place of a row, of its key as :meth:`bound` reads it."""
        return tuple(
            column.literal(value)
            for column, value in zip(self.key, values, strict=False)
        )

    def shown(self, values: Sequence[Any]) -> tuple[Any, ...]:
        """Return a key for people, of its values as :meth:`bound` has it."""
        return tuple(
            column.shown(value) for column, value in zip(self.key, values, strict=False)
        )

    def _key_list(self) -> str:
        return ", ".join(column.read() for column in self.key)

    def _is(self, key: Bound) -> str:
        return " AND ".join(
            f"{marked(column.name)} = {literal}"
            for column, literal in zip(self.key, key, strict=True)
        )

    def _where(self, low: Bound | None, high: Bound | None) -> str:
        names = [marked(column.name) for column in self.key]
        limits = [
            _beyond(names, bound, sign)
            for bound, sign in ((low, ">"), (high, "<"))
            if bound is not None
        ]
        if high is not None:
            limits[-1] = f"({limits[-1]} OR ({self._is(high)}))"
        return f" WHERE {' AND '.join(limits)}" if limits else ""


def key_of(
    indexes: Mapping[str, Sequence[tuple[str, bool]]],
) -> tuple[str, tuple[str, ...]] | None:
    """Return the index that identifies a row, and its columns.

    :param indexes: of each unique index, the columns in order, and whether
        each is whole and cannot be NULL.
    :returns: the primary key, else another such index; None if there is none.
    """
    for name in sorted(indexes, key=lambda name: (name != "PRIMARY", name)):
        if all(is_good for _, is_good in indexes[name]):
            return name, tuple(column for column, _ in indexes[name])
    return None


def _select(what: str, source: str, rest: str) -> str:
    return f"SELECT {what} FROM {source}{rest}"  # noqa: S608 - quoted names


def _beyond(names: Sequence[str], bound: Bound, sign: str) -> str:
    """Return the condition that a key is after a place, or before it.

    ``(a, b) > (1, 2)`` would not use the index.
    """
    first, literal = names[0], bound[0]
    if len(names) == 1:
        return f"{first} {sign} {literal}"
    rest = _beyond(names[1:], bound[1:], sign)
    return f"({first} {sign} {literal} OR ({first} = {literal} AND {rest}))"


def _hash(parts: Sequence[str]) -> str:
    # With a binary separator texts are not converted; a CAST for each of them
    # took a quarter of the server's time for the statement.
    row = f"CONCAT_WS(CAST('#' AS BINARY), {', '.join(parts)})"
    return f"CAST(CONV(LEFT({_digest(row)}, 16), 16, 10) AS UNSIGNED)"


def _digest(value: str) -> str:
    return f"SHA2({value}, 256)"


def _nulls(columns: Sequence[ComparedColumn]) -> list[str]:
    return [f"ISNULL({marked(column.name)})" for column in columns]


def _long(columns: Sequence[ComparedColumn]) -> set[str]:
    found = set()
    left = _BUDGET
    for column in sorted(columns, key=lambda column: column.octets):
        left -= column.octets
        if left < 0:
            found.add(column.name)
    return found
