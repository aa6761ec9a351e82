"""Values that compare in Python as expressions do on the server.

Rows that several servers have sorted are merged in Python, which compares
numbers and times.  The order of texts is that of a collation: Python compares
their weights, which servers compute.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from sqlalchemy import (
    Boolean,
    Column,
    Date,
    DateTime,
    Enum,
    Float,
    Integer,
    Interval,
    Numeric,
    String,
    Time,
    Uuid,
)
from sqlalchemy.dialects.mysql import BIT, SET, YEAR
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql import operators, roles
from sqlalchemy.sql.elements import (
    BinaryExpression,
    ClauseElement,
    CollationClause,
    ColumnElement,
    Grouping,
    Label,
    Null,
    TypeCoerce,
    UnaryExpression,
)
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.sql.visitors import InternalTraversal, iterate
from sqlalchemy.types import BINARY, LargeBinary, NullType, VARBINARY

from sqla_shard.dialects.coding import encoded_type
from sqla_shard.dialects.result_types import name_of, NUMBERS, plain_type, TEXTS, TIMES
from sqla_shard.exc import ScatterUnsupportedError
from sqla_shard.util import sqlalchemy_private as private

# ``WEIGHT_STRING()`` of a text returns bytes, its *weights*, that compare as
# its collation compares the text, with three exceptions:
#
# * a collation may pad: trailing spaces make no difference, and a shorter text
#   compares as if spaces followed it.  The number of weights does not follow
#   from the length of a text, so servers return them without padding, and the
#   weights of the padding; :mod:`sqla_shard.engine.values` does the rest;
# * a collation may compare all letters first, then all accents, then the case.
#   Such *levels* are selected one by one;
# * MariaDB gives its result the length that a text of one weight for each
#   character has, and truncates it when it sorts or groups.  With four
#   arguments the length is the second one.


#: Number of characters of a text that servers compare when they sort; MariaDB
#: counts four bytes of ``max_sort_length`` for each.
MOST_SORTED = 256

#: Characters of a text of which all weights are compared in min() and max().
LONGEST_COMPARED = 4096

# Bytes of the weights by which servers sort, ``max_sort_length``.
_SORTED = 1024
# No character has more than 8 weights of 2 bytes.
_EXTREME = 16 * LONGEST_COMPARED
# Bytes of the weights for GROUP BY and DISTINCT: enough for any TEXT.
_WHOLE = 1 << 20
_LONGEST_GROUPED = 65_535

#: Values that replace the identity of a text.
TOO_LONG_TO_GROUP = b"long"
NO_TEXT = b"no text"

# Accents, or upper and lower case, after all letters.
_LEVELS = "_(as_ci|as_cs|ai_cs|w2)$"
# Their weights do not compare as servers compare the texts; of MySQL and of
# MariaDB.
_INEXACT = "^big5_chinese|^(cp1250|latin2)_czech_cs$"
_INEXACT_MYSQL = f"{_INEXACT}|^gb18030_chinese_ci$|^tis620_thai_ci$"
_INEXACT_MARIADB = f"{_INEXACT}|^tis620_thai_nopad_ci$"


class OfText(ColumnElement[Any]):
    """A value that is compared instead of a text.

    On servers without collations it is the text itself.

    :param element: the text.
    :param part: ``sorted``, the weights by which servers sort; ``same``, the
        same for texts that are equal; ``extreme``, more weights.
        ``sorted_padding`` and ``extreme_padding``, their padding, or the name
        of a collation whose weights are not exact.  ``identity``: 32 bytes
        that are the same for equal texts; other values if there are none.
        ``unsorted``: the reason why a server may not sort exactly by the
        text, a number of :data:`UNSORTED`, or NULL.
    """

    __visit_name__ = "sqla_shard_of_text"
    inherit_cache: bool | None = True
    _traverse_internals = [  # noqa: RUF012  # SQLAlchemy's own protocol
        ("element", InternalTraversal.dp_clauseelement),
        ("part", InternalTraversal.dp_string),
        ("length", InternalTraversal.dp_plain_obj),
    ]

    def __init__(self, element: Any, part: str) -> None:
        self.element = element
        self.part = part
        self.length: int | None = _declared(element)
        self.type: Any = NullType()

    @property
    def _from_objects(self) -> Any:
        return private.from_objects(self.element)


def _declared(element: Any) -> int | None:
    """Return the length of a column of a table; None if it is not one."""
    tables = [getattr(c, "table", None) for c in element.base_columns]
    if element.__visit_name__ != "column" or not all(
        getattr(table, "__visit_name__", None) == "table" for table in tables
    ):
        return None
    length: int | None = getattr(element.type, "length", None)
    return length


@compiles(OfText)
def _of_text(element: OfText, compiler: Any, **kw: Any) -> str:
    if element.part in ("sorted_padding", "extreme_padding"):
        return "NULL"
    if element.part == "unsorted":
        # The same limit as on other servers, for tests on SQLite.
        value = compiler.process(element.element, **kw)
        return f"CASE WHEN LENGTH({value}) > {MOST_SORTED} THEN {TOO_LONG} END"
    if _collated(element.element):
        # Without one, Python compares text as SQLite does.
        raise ScatterUnsupportedError(
            f"{element.element} has its own collation, whose order only the "
            "server can compute; compare func.lower() of it",
            construct="COLLATE",
        )
    return str(compiler.process(element.element, **kw))


def _collated(element: Any) -> bool:
    return any(
        isinstance(part, CollationClause)
        or getattr(getattr(part, "type", None), "collation", None) is not None
        for part in iterate(element)
    )


@compiles(OfText, "mysql", "mariadb")
def _of_text_mysql(element: OfText, compiler: Any, **kw: Any) -> str:
    value = compiler.process(element.element, **kw)
    mariadb = getattr(compiler.dialect, "is_mariadb", False)
    weights = (_MariaDB if mariadb else _MySQL)(value)
    if element.part == "unsorted":
        return weights.unsorted(element.length)
    return _PARTS[element.part](weights)


class _MySQL:
    """SQL about a text.

    ``WEIGHT_STRING()`` of MySQL separates levels itself, and only collations
    of one level pad.

    :param value: the text in SQL.
    """

    inexact = _INEXACT_MYSQL

    def __init__(self, value: str) -> None:
        self.value = value
        # IF() has the collation of the text, which is not evaluated.
        self.space = f"IF(1, ' ', {value})"
        self.empty = f"IF(1, '', {value})"
        self.pads = f"{self.space} = {self.empty}"
        self.unless_inexact = (
            f"IF(COLLATION({value}) RLIKE '{self.inexact}', "
            f"CAST(COLLATION({value}) AS BINARY), {{}})"
        )

    def weights(self, size: int) -> str:
        # REPEAT() is never evaluated; it only declares a length.  Of a text
        # that is not binary, IF() would return one, if the value mixes two
        # collations.
        return (
            f"LEFT(IF(0, REPEAT(_binary' ', {size}), "
            f"WEIGHT_STRING({self.value})), {size})"
        )

    def same(self, size: int) -> str:
        """Return weights without those of spaces at the end."""
        padding = self.extreme_padding()
        return f"TRIM(TRAILING {padding} FROM {self.weights(size)})"

    def sorted_padding(self) -> str:
        return f"IF({self.pads}, WEIGHT_STRING({self.empty} AS CHAR(1)), '')"

    def extreme_padding(self) -> str:
        return f"IF({self.pads}, WEIGHT_STRING({self.space} AS CHAR(1)), '')"

    def identity(self) -> str:
        value = self.value
        digest = f"UNHEX(SHA2({self.same(_WHOLE)}, 256))"
        return self.unless_inexact.format(
            f"CASE WHEN LENGTH({value}) > {_LONGEST_GROUPED} "
            f"THEN 0x{TOO_LONG_TO_GROUP.hex()} "
            # A value without weights is not a text.
            f"ELSE IFNULL({digest}, IF({value} IS NULL, NULL, "
            f"0x{NO_TEXT.hex()})) END"
        )

    def unsorted(self, length: int | None) -> str:
        value = self.value
        return (
            f"CASE WHEN CHAR_LENGTH({value}) > {MOST_SORTED} "
            f"OR LENGTH({self.weights(2 * _SORTED)}) > {_SORTED} THEN 1 END"
        )


class _MariaDB(_MySQL):
    inexact = _INEXACT_MARIADB

    def __init__(self, value: str) -> None:
        super().__init__(value)
        self.padding = f"WEIGHT_STRING({self.empty} AS CHAR(1))"
        self.by_levels = f"COLLATION({value}) RLIKE '{_LEVELS}'"

    def level(self, number: int, size: int) -> str:
        flag = 1 << (number - 1)
        return f"WEIGHT_STRING({self.value}, {size}, {size}, {flag})"

    def weights(self, size: int) -> str:
        levels = [self.level(number, size) for number in (1, 2, 3)]
        return self._either(levels)

    def _either(self, levels: list[str]) -> str:
        # No weight of a collation that has levels is 0.
        every = ", 0x0000, ".join(levels)
        return f"IF({self.by_levels}, CONCAT({every}), {levels[0]})"

    def same(self, size: int) -> str:
        paddings = (
            f"IF({self.pads}, WEIGHT_STRING({self.space}, 8, 8, 1), '')",
            f"SUBSTR({self.padding}, 3, 2)",
            f"RIGHT({self.padding}, 2)",
        )
        return self._either(
            [
                f"TRIM(TRAILING {padding} FROM {self.level(number, size)})"
                for number, padding in enumerate(paddings, 1)
            ]
        )

    def sorted_padding(self) -> str:
        return self.padding

    def extreme_padding(self) -> str:
        return (
            f"IF({self.by_levels}, CONCAT(IF({self.pads}, "
            f"LEFT({self.padding}, 2), 0x0000), SUBSTR({self.padding}, 3)), "
            f"IF({self.pads}, WEIGHT_STRING({self.space}, 8, 8, 1), ''))"
        )

    def unsorted(self, length: int | None) -> str:
        value = self.value
        # Levels are sorted one after another, each in the length of the
        # column, as far as that goes.
        level = 8 * (MOST_SORTED if length is None else length)
        return (
            f"CASE WHEN CHAR_LENGTH({value}) > {MOST_SORTED} "
            f"OR LENGTH({self.level(1, 2 * _SORTED)}) > {_SORTED} THEN 1 "
            f"WHEN {self.by_levels} AND "
            f"{level} * LENGTH({self.padding}) > {_SORTED} THEN 2 "
            # Such a text is sorted as if it ended before that character.
            f"WHEN {self.space} <> {self.empty} AND {self.padding} = "
            f"WEIGHT_STRING(RIGHT({value}, 1), 8, 8, 1) THEN 3 END"
        )


TOO_LONG = 1
#: Why a server may not sort exactly by a text, and the remedy.
UNSORTED: Mapping[int, str] = {
    TOO_LONG: "is longer than the part that servers sort by, "
    f"{MOST_SORTED} characters or {_SORTED // 2} weights of its collation; "
    "order by func.left() of the column",
    2: "has a collation that compares accents or case after all letters, "
    "and servers do not sort by all of a column of this length; collate() "
    "it to one that compares letters only",
    3: "ends in a character that sorts like the end of the text in its "
    "collation; order by another column, or collate() it to one that pads",
}


_PARTS: Mapping[str, Callable[[_MySQL], str]] = {
    "sorted": lambda text: text.weights(_SORTED),
    "same": lambda text: text.same(_SORTED),
    "extreme": lambda text: text.weights(_EXTREME),
    "sorted_padding": lambda text: text.unless_inexact.format(text.sorted_padding()),
    "extreme_padding": lambda text: text.unless_inexact.format(text.extreme_padding()),
    "identity": lambda text: text.identity(),
}


_BINARY = (BINARY, LargeBinary, VARBINARY)
_PLAIN = (Integer, Numeric, Boolean, Date, DateTime, Time, Interval)

_LIKE_ARGUMENT = frozenset(["max", "min", "nullif"])
_ARITHMETIC = frozenset(
    [
        *(operators.add, operators.sub, operators.mul, operators.mod),
        *(operators.truediv, operators.floordiv),
    ]
)
#: The kind of the result of arithmetic, by the kinds of its operands.
_NUMERIC: dict[frozenset[str | None], str] = {
    frozenset(["plain"]): "plain",
    frozenset(["float", "plain"]): "float",
}
#: Index of the first possible result of functions that return an argument.
_ONE_OF = {"coalesce": 0, "greatest": 0, "if": 1, "ifnull": 0, "least": 0}
_ONE_OF["iif"] = 1


def kind_of(element: Any) -> str | None:
    """Return the kind of comparison of an expression.

    :returns: ``plain``, ``float``, ``enum``, ``uuid``, ``text``; None for
        types that Python cannot compare.
    """
    type_ = encoded_type(element) or element.type
    if isinstance(type_, NullType):
        return _kind_of_untyped(_origin(element))
    kind = _kind_of_type(type_)
    origin = _origin(element)
    if (
        kind == "text"
        and isinstance(origin, TypeCoerce)
        and isinstance(plain_type(origin.clause.type), _BINARY)
    ):
        return None  # the server compares and returns bytes
    if kind == "enum" and not _is_stored(element):
        # CASE, coalesce() and the like convert an ENUM to a text.
        return "text"
    return kind


def _is_stored(element: Any) -> bool:
    """Return whether an expression is a column of a table."""
    return any(
        isinstance(column, Column) for column in getattr(element, "base_columns", ())
    )


def _origin(element: Any) -> Any:
    """Return the expression of a column of a subquery, or the element."""
    origin, *others = getattr(element, "base_columns", (element,))
    if others:
        return element
    return origin.element if isinstance(origin, Label) else origin


def _kind_of_untyped(element: Any) -> str | None:
    """Return the kind of an expression without a type."""
    if isinstance(element, (Grouping, Label)):
        return kind_of(element.element)
    if isinstance(element, UnaryExpression) and (element.operator is operators.neg):
        return _kind_of_numbers([element.element])
    if isinstance(element, BinaryExpression) and (element.operator in _ARITHMETIC):
        return _kind_of_numbers([element.left, element.right])
    return _kind_of_function(element)


def _kind_of_numbers(elements: Iterable[Any]) -> str | None:
    """Return the kind of the result of arithmetic."""
    kinds = set(map(kind_of, elements))
    if "float" in kinds:
        kinds.add("plain")
    return _NUMERIC.get(frozenset(kinds))


def _kind_of_function(element: Any) -> str | None:
    if not isinstance(element, FunctionElement):
        return None
    name = name_of(element)
    arguments = list(element.clauses)
    if name in _LIKE_ARGUMENT and arguments:
        return kind_of(arguments[0])
    if name in _ONE_OF:
        return _kind_of_one(arguments[_ONE_OF[name] :])
    if name in TEXTS:
        return "text"
    return "plain" if name in NUMBERS or name in TIMES else None


def value_of_function(element: Any) -> str | None:
    """Return the kind of value that a function without a type returns.

    :returns: ``number``, ``time`` or ``text``; None if it is unknown.
    """
    origin = _origin(element)
    if not isinstance(origin, FunctionElement):
        return None
    name = name_of(origin)
    for kind, names in ("number", NUMBERS), ("time", TIMES), ("text", TEXTS):
        if name in names:
            return kind
    return None


def _kind_of_one(elements: Iterable[Any]) -> str | None:
    """Return the common kind of several expressions."""
    kinds = {kind_of(element) for element in elements if not isinstance(element, Null)}
    if kinds == {"float", "plain"}:
        return "float"
    if len(kinds) > 1:
        return None
    kind = next(iter(kinds), None)
    return "text" if kind == "enum" else kind


def _kind_of_type(type_: Any) -> str | None:
    type_ = plain_type(type_)
    if isinstance(type_, Enum):
        return "enum" if type_.native_enum else "text"
    if isinstance(type_, _BINARY):
        # Of longer ones a server may sort by the beginning alone.
        return "plain" if 0 < (type_.length or 0) <= _SORTED_BYTES else None
    if isinstance(type_, (BIT, SET)):
        return "enum"
    if isinstance(type_, YEAR):
        return "plain"
    if isinstance(type_, Uuid):
        return "uuid"
    if isinstance(type_, String):
        return "text"
    if isinstance(type_, Float):
        return "float"
    return "plain" if isinstance(type_, _PLAIN) else None


#: The default of max_sort_length.
_SORTED_BYTES = 1024


class SortKey(ColumnElement[Any]):
    """A value that compares in Python as an expression does on the server.

    :param element: an expression that is not a text.
    :param kind: see :func:`kind_of`.
    """

    __visit_name__ = "sqla_shard_sort_key"
    inherit_cache: bool | None = True
    _traverse_internals = [  # noqa: RUF012  # SQLAlchemy's own protocol
        ("element", InternalTraversal.dp_clauseelement),
        ("kind", InternalTraversal.dp_string),
    ]

    def __init__(self, element: Any, kind: str) -> None:
        self.element = element
        self.kind = kind
        self.type: Any = NullType()

    @property
    def _from_objects(self) -> Any:
        return private.from_objects(self.element)


@compiles(SortKey)
def _sort_key(element: SortKey, compiler: Any, **kw: Any) -> str:
    return str(compiler.process(element.element, **kw))


@compiles(SortKey, "mysql", "mariadb")
def _sort_key_mysql(element: SortKey, compiler: Any, **kw: Any) -> str:
    value = compiler.process(element.element, **kw)
    if element.kind == "uuid":
        # Bytes: Python must not compare texts, and these have one case.
        return f"CAST({value} AS BINARY)"
    if element.kind == "sorted_uuid":
        native = getattr(element.element.type, "native_uuid", False)
        if native and getattr(compiler.dialect, "is_mariadb", False):
            raise ScatterUnsupportedError(
                f"ORDER BY {element.element} over several shards: MariaDB "
                "sorts its UUIDs by their parts, not by their text; order by "
                "cast(column, String(36))",
                construct="ORDER BY",
            )
        return f"CAST({value} AS BINARY)"
    # A FLOAT is returned with six digits, and sorted by all of them; an ENUM
    # is sorted by the position of its value in the list, a SET by the bits of
    # all of its values.
    zero = {"float": "0E0", "enum": "0"}.get(element.kind)
    return value if zero is None else f"({value} + {zero})"


class ShownId(ColumnElement[Any]):
    """A column with local ids, in ORDER BY of a SELECT DISTINCT.

    MySQL sorts distinct rows only by what the SELECT returns, which is the
    full id.

    :param column: the column.
    :param shown: the expression of the full id.
    """

    __visit_name__ = "sqla_shard_shown_id"
    inherit_cache: bool | None = True
    _traverse_internals = [  # noqa: RUF012  # SQLAlchemy's own protocol
        ("column", InternalTraversal.dp_clauseelement),
        ("shown", InternalTraversal.dp_clauseelement),
    ]

    def __init__(self, column: Any, shown: Any) -> None:
        self.column = column
        self.shown = shown
        self.type: Any = column.type

    @property
    def _from_objects(self) -> Any:
        return private.from_objects(self.column)


@compiles(ShownId)
def _shown_id(element: ShownId, compiler: Any, **kw: Any) -> str:
    return str(compiler.process(element.column, **kw))


@compiles(ShownId, "mysql", "mariadb")
def _shown_id_mysql(element: ShownId, compiler: Any, **kw: Any) -> str:
    if getattr(compiler.dialect, "is_mariadb", False):
        # An index sorts by the column.
        return _shown_id(element, compiler, **kw)
    return str(compiler.process(element.shown, **kw))


class Hidden(roles.StatementOptionRole, ClauseElement):
    """Columns before those of a SELECT, added as a prefix.

    Only the merge reads them: the columns that SQLAlchemy has compiled, and
    the objects that it loads, do not change.

    :param elements: at least one.
    :param distinct: whether the SELECT is DISTINCT: the keyword must precede
        the columns, and SQLAlchemy writes it after prefixes.
    :param sorts: whether the server groups rows by sorting, instead of storing
        groups in a temporary table.
    """

    __visit_name__ = "sqla_shard_hidden"
    inherit_cache: bool | None = True
    _traverse_internals = [  # noqa: RUF012  # SQLAlchemy's own protocol
        ("elements", InternalTraversal.dp_clauseelement_list),
        ("distinct", InternalTraversal.dp_boolean),
        ("sorts", InternalTraversal.dp_boolean),
    ]

    def __init__(
        self, elements: list[Any], *, distinct: bool, sorts: bool = False
    ) -> None:
        self.elements = elements
        self.distinct = distinct
        self.sorts = sorts

    @staticmethod
    def name(index: int) -> str:
        """Return the name of a hidden column in SQL."""
        return f"sqla_shard_k{index}"


@compiles(Hidden)
def _hidden(element: Hidden, compiler: Any, **kw: Any) -> str:
    columns = ", ".join(
        f"{compiler.process(part, **kw)} AS {Hidden.name(index)}"
        for index, part in enumerate(element.elements)
    )
    return f"{'DISTINCT ' if element.distinct else ''}{columns},"


@compiles(Hidden, "mysql", "mariadb")
def _hidden_mysql(element: Hidden, compiler: Any, **kw: Any) -> str:
    shown = _hidden(element, compiler, **kw)
    return f"SQL_BIG_RESULT {shown}" if element.sorts else shown
