"""Values beside a field, in the format of the field.

SQLAlchemy gives a value the type of the expression that it is compared with.
In a function, a CASE and the like it gives it the type of the value alone: a
datetime beside a field that stores texts would be sent as a DATETIME, which
equals none of them, and a member of an enum as its name.  The compiler of the
statements finds such values; results get the type of the field as well.

The dialect of SQLAlchemy is given this compiler in addition to its own, so
that SQLAlchemy caches what it has found.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import date, datetime
from functools import cache
from typing import Any
from uuid import UUID

from sqlalchemy import (
    Boolean,
    DateTime,
    Engine,
    Integer,
    literal,
    Numeric,
    String,
    Time,
    Uuid,
)
from sqlalchemy.engine import Dialect
from sqlalchemy.engine.default import DefaultDialect
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql import operators
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.elements import (
    BinaryExpression,
    BindParameter,
    Case,
    ClauseList,
    ColumnClause,
    ColumnElement,
    ExpressionClauseList,
    FunctionFilter,
    Grouping,
    Label,
    Null,
    Over,
    Tuple,
    WithinGroup,
)
from sqlalchemy.sql.functions import Function, FunctionElement
from sqlalchemy.sql.selectable import ScalarSelect, SelectBase
from sqlalchemy.sql.visitors import iterate
from sqlalchemy.types import Enum, TupleType, UserDefinedType

from sqla_shard.dialects.result_types import name_of, plain_type
from sqla_shard.exc import UnsupportedStatementError
from sqla_shard.types.columns import Encoded
from sqla_shard.util import sqlalchemy_private as private
from sqla_shard.util.sqlalchemy_helpers import is_mysql

# The arguments of functions that are values of one kind.
_ALL = slice(None)
_FIRST = slice(1)
_RETURNED = {
    **dict.fromkeys(("coalesce", "greatest", "ifnull", "least", "nvl"), _ALL),
    **dict.fromkeys(("max", "min", "nullif"), _ALL),
    **dict.fromkeys(("if", "iif", "elt", "nvl2"), slice(1, None)),
    **dict.fromkeys(("lag", "lead"), slice(None, None, 2)),
    **dict.fromkeys(("any_value", "first_value", "last_value"), _FIRST),
    **dict.fromkeys(("nth_value",), _FIRST),
}
_COMPARED = {"field": _ALL, "strcmp": _ALL}
#: Functions that compare their arguments.
_COMPARING = frozenset(["field", "greatest", "least", "max", "min", "nullif", "strcmp"])
#: Functions that read a text as a time of day: MySQL finds "20:24" in that of a
#: moment with its offset, and both servers in that of a date; some only MariaDB.
_READING_TIMES = frozenset(
    [
        *("addtime", "hour", "microsecond", "minute", "second", "subtime", "time"),
        *("time_format", "time_to_sec", "timediff"),
    ]
)
_COMPARISONS = frozenset(
    [
        *(operators.eq, operators.ne, operators.lt, operators.le),
        *(operators.gt, operators.ge, operators.is_, operators.is_not),
        *(operators.in_op, operators.not_in_op),
        *(operators.between_op, operators.not_between_op),
        *(operators.is_distinct_from, operators.is_not_distinct_from),
    ]
)


def code_values(engine: Engine) -> None:
    """Let an engine send values beside a field in the field's format."""
    dialect: Any = engine.dialect
    dialect.statement_compiler = _coding(dialect.statement_compiler)


@cache
def _coding(compiler: Any) -> Any:
    return type(compiler.__name__, (_Compiler, compiler), {})


def encoded_type(element: Any) -> Any:
    """Return the type of an expression if all of its values are a field's.

    :returns: None for all other expressions.
    """
    if isinstance(element.type, Encoded):
        return element.type
    values = list(_values(element))
    found = _encoded(values)
    if found is None or not all(_may_be(value, found) for value in values):
        return None
    return found


def _may_be(value: Any, encoded: Any) -> bool:
    """Return whether a value is one of a field, or None."""
    if isinstance(value, BindParameter):
        return not _may_be_stored(value, encoded)
    if isinstance(value, Null) or isinstance(value.type, Encoded):
        return True
    if _has_moments(encoded) and isinstance(value.type, DateTime):
        return True
    return _field_text(value, encoded) is not None


def _has_moments(encoded: Any) -> bool:
    """Return whether a field stores moments as texts."""
    # Columns of another type need not have a type of Python.
    return isinstance(encoded.impl, String) and encoded.python_type is datetime


class _MomentText(ColumnElement[Any]):
    """A time of the server as the text of a field.

    :param element: an expression of DATETIME or TIMESTAMP, in UTC.
    """

    __visit_name__ = "sqla_shard_moment_text"
    inherit_cache = True
    type = String()

    def __init__(self, element: Any) -> None:
        self.element = element


@compiles(_MomentText, "mysql", "mariadb")
def _moment_text(element: _MomentText, compiler: Any, **kw: Any) -> str:
    form = compiler.render_literal_value("%Y-%m-%dT%H:%i:%s.%f+00:00", String())
    return f"date_format({compiler.process(element.element, **kw)}, {form})"


@compiles(_MomentText, "sqlite")
def _moment_text_sqlite(element: _MomentText, compiler: Any, **kw: Any) -> str:
    value = compiler.process(element.element, **kw)
    # Those of the server's clock have whole seconds.
    return f"substr(replace({value}, ' ', 'T') || '.000000', 1, 26) || '+00:00'"


class _FieldText(ColumnElement[Any]):
    """A value of a column as a field stores it.

    :param element: an expression of a UUID or of an enum.
    :param stored: of an enum, what the field stores by what the column does.
    """

    __visit_name__ = "sqla_shard_field_text"
    inherit_cache = True
    type = String()

    def __init__(self, element: Any, stored: Mapping[str, Any] | None = None) -> None:
        self.element = element
        self.stored = stored


@compiles(_FieldText)
def _compiled_text(element: _FieldText, compiler: Any, **kw: Any) -> str:
    value = compiler.process(element.element, **kw)
    if element.stored is not None:
        cases = " WHEN ".join(
            " THEN ".join(
                compiler.render_literal_value(one, literal(one).type) for one in pair
            )
            for pair in element.stored.items()
        )
        return f"CASE {value} WHEN {cases} END"
    dialect = compiler.dialect
    if plain_type(element.element.type).native_uuid and dialect.supports_native_uuid:
        return f"CAST({value} AS CHAR)"
    parts = [f"substr({value}, {first}, {length})" for first, length in _PARTS_OF_UUID]
    if not is_mysql(dialect):
        return " || '-' || ".join(parts)
    # Of two collations of utf8mb4 MariaDB compares no texts.
    joined = ", '-', ".join(parts)
    return f"convert(concat({joined}) USING ascii)"


#: Where the parts between hyphens begin in 32 digits, and their lengths.
_PARTS_OF_UUID = ((1, 8), (9, 4), (13, 4), (17, 4), (21, 12))


def _field_text(value: Any, encoded: Any) -> _FieldText | None:
    """Return a value of a column as a field stores it; None if it is that.

    :raises UnsupportedStatementError: if there are several.
    """
    type_ = plain_type(getattr(value, "type", None))
    if isinstance(value, BindParameter) or not isinstance(type_, (Enum, Uuid)):
        return None
    stored = None
    if isinstance(type_, Enum):
        if type_.enum_class is None or type_.enum_class is not encoded.python_type:
            return None
        dialect = DefaultDialect()
        read: Any = type_.result_processor(dialect, None)  # type: ignore[no-untyped-call]  # SQLAlchemy's
        stored = {
            text: encoded.process_bind_param(read(text), dialect)
            for text in type_.enums
        }
        if all(text == code for text, code in stored.items()):
            return None
    elif encoded.python_type is not UUID:
        return None
    if isinstance(value, (ScalarSelect, SelectBase)):
        raise UnsupportedStatementError(
            f"a subquery beside {encoded.label} has a column of another format "
            "than the field's; join its table instead",
            construct="subquery",
        )
    return _FieldText(value, stored)


def _may_be_stored(value: Any, encoded: Any) -> bool:
    """Return whether a parameter may be in the format of a field already."""
    return (
        encoded.takes_plain
        and isinstance(value.type, (Boolean, Integer, Numeric, String))
        and not isinstance(value.type, Enum)
    )


def _values(element: Any) -> Iterator[Any]:
    """Yield the expressions of whose values an expression has one."""
    if isinstance(getattr(element, "type", None), Encoded):
        yield element
    elif isinstance(element, (FunctionFilter, Grouping, Label, Over, WithinGroup)):
        yield from _values(element.element)
    elif isinstance(element, (ClauseList, ExpressionClauseList)):
        yield from _each(element.clauses)
    elif isinstance(element, Case):
        yield from _each(_results(element))
    elif isinstance(element, ScalarSelect):
        yield from _inside(element, _values(element.element))
    elif isinstance(element, SelectBase):
        yield from _selected(element.selected_columns)
    elif isinstance(element, FunctionElement) and (name_of(element) in _RETURNED):
        yield from _each(list(element.clauses)[_RETURNED[name_of(element)]])
    elif isinstance(element, ColumnClause) and private.proxies(element):
        yield from _inside(element, _selected(private.proxies(element)))
    else:
        yield element


def _inside(element: Any, values: Iterable[Any]) -> Iterator[Any]:
    """Yield the values of a subquery, or itself if none has a field's format.

    Times of the server that stand beside a field there are in its format.
    """
    found = list(values)
    encoded = _encoded(found)
    if encoded is None and not any(isinstance(one, BindParameter) for one in found):
        yield element
        return
    for value in found:
        if encoded is None or not _is_server_time(value, encoded):
            yield value


def _each(elements: Iterable[Any]) -> Iterator[Any]:
    for element in elements:
        yield from _values(element)


def _selected(columns: Iterable[Any]) -> Iterator[Any]:
    """Yield the values of columns of a subquery.

    Those beside a field there are in its format: the subquery is compiled.
    """
    for column in columns:
        values = list(_values(column))
        found = _encoded(values)
        for value in values:
            if (
                found is None
                or not isinstance(value, BindParameter)
                or _may_be_stored(value, found)
            ):
                yield value
            else:
                yield _retyped(value, Beside(value.type, found, True))


def _results(case: Any) -> list[Any]:
    found = [result for _, result in case.whens]
    return found if case.else_ is None else [*found, case.else_]


def _encoded(values: Iterable[Any]) -> Any:
    """Return the type of the first of some expressions that has one."""
    types = (getattr(value, "type", None) for value in values)
    return next((t for t in types if isinstance(t, Encoded)), None)


class _Compiler(SQLCompiler):
    """Compiles the values beside a field."""

    def visit_function(self, func: Any, *args: Any, **kw: Any) -> str:
        """Compile a function."""
        visit: Any = super().visit_function
        found = _coded_function(func)
        if name_of(found) in _READING_TIMES:
            found = self._with_time(found, found.clauses)
        return str(visit(found, *args, **kw))

    def visit_cast(self, cast: Any, **kw: Any) -> str:
        """Compile CAST."""
        visit: Any = super().visit_cast
        if isinstance(cast.type, Time):
            cast = self._with_time(cast, [cast.clause])
        return str(visit(cast, **kw))

    def _with_time(self, element: Any, parts: Iterable[Any]) -> Any:
        """Return what reads a time, with the moments of fields as DATETIME."""
        if not is_mysql(self.dialect):
            return element
        swaps = {
            id(part): Function("timestamp", part)
            for part in parts
            if getattr(encoded_type(part), "python_type", None) in (date, datetime)
        }
        return _swapped(element, swaps, set()) if swaps else element

    def visit_case(self, clause: Any, **kw: Any) -> str:
        """Compile CASE."""
        visit: Any = super().visit_case
        found = _coded(clause, _results(clause), chosen=True)
        if clause.value is not None:
            conditions = [clause.value, *(one for one, _ in clause.whens)]
            found = _coded(found, conditions, compares="CASE")
        return str(visit(found, **kw))

    def visit_binary(self, binary: Any, *args: Any, **kw: Any) -> str:
        """Compile an operator."""
        visit: Any = super().visit_binary
        # A server compares the text with a time; SQLite compares two texts.
        converts = self.dialect.name == "sqlite"
        return str(visit(_coded_binary(binary, converts=converts), *args, **kw))

    def visit_compound_select(self, cs: Any, *args: Any, **kw: Any) -> str:
        """Compile UNION and the like.

        :raises UnsupportedStatementError: for a value beside a field.
        """
        for column in zip(
            *(select.selected_columns for select in cs.selects), strict=False
        ):
            _check_union(column, cs.keyword)
        visit: Any = super().visit_compound_select
        return str(visit(cs, *args, **kw))

    def _label_select_column(
        self, select: Any, column: Any, *args: Any, **kw: Any
    ) -> Any:
        label: Any = super()._label_select_column
        known = len(self._result_columns)
        text = label(select, column, *args, **kw)
        if len(self._result_columns) == known + 1:
            found = encoded_type(column)
            if found is not None:
                last = self._result_columns[-1]
                self._result_columns[-1] = last._replace(type=found)
        return text


def _coded_function(func: Any) -> Any:
    """Return a function with its values in the format of their field."""
    name, arguments = name_of(func), list(func.clauses)
    part = _RETURNED.get(name, _COMPARED.get(name))
    if part is None:
        return _coded(func, arguments, is_own=False)
    compares = name if name in _COMPARING and len(arguments) > 1 else None
    chosen = name in _RETURNED
    return _coded(func, arguments[part], compares=compares, chosen=chosen)


def _coded_binary(binary: Any, *, converts: bool) -> Any:
    """Return an operator with its values in the format of their field.

    :param converts: whether to convert times of the server, too.
    """
    left, right = map(_ungrouped, (binary.left, binary.right))
    is_own = binary.operator in _COMPARISONS
    name = getattr(binary.operator, "__name__", str(binary.operator))
    if isinstance(left, Tuple) and isinstance(right, BindParameter):
        return _with_tuples(binary, left, right)
    if isinstance(left, Tuple) and isinstance(right, Tuple):
        for pair in zip(left.clauses, right.clauses, strict=False):
            binary = _coded(binary, pair, compares=name)
        return binary
    return _coded(
        binary,
        (left, right),
        is_own=is_own,
        compares=name if is_own else None,
        chosen=converts and is_own,
    )


def _ungrouped(element: Any) -> Any:
    while isinstance(element, Grouping):
        element = element.element
    return element


def _coded(
    element: Any,
    parts: Iterable[Any],
    *,
    is_own: bool = True,
    compares: str | None = None,
    chosen: bool = False,
) -> Any:
    """Return an expression with values in the format of the field beside them.

    :param parts: parts of the expression that are compared, or of which it
        returns one.
    :param is_own: see :meth:`Encoded.encodes`.
    :param compares: the name of what compares them.
    :param chosen: whether times of the server are converted, too, because it
        returns one of the parts.
    :raises UnsupportedStatementError: if they cannot be compared.
    """
    values = list(_each(parts))
    found = _encoded(values)
    if found is None and any(map(_is_unknown, values)):
        # ``func.lower(Pin.color) == Color.RED``
        is_own, found = False, _encoded_inside(values)
    if found is None:
        return element
    swaps: dict[int, Any] = {
        id(value): _retyped(value, Beside(value.type, found, is_own))
        for value in values
        if isinstance(value, BindParameter)
        and not isinstance(value.type, (Beside, Encoded))
    }
    if chosen:
        swaps |= _moment_texts(element, values, found)
    if chosen or compares is not None:
        texts = {id(value): _field_text(value, found) for value in values}
        swaps |= {key: text for key, text in texts.items() if text is not None}
    if not swaps:
        return element
    if compares is not None and not found.is_compared:
        raise found.refusal(compares)
    done: set[int] = set()
    element = _swapped(element, swaps, done)
    for value in values:
        if id(value) in swaps.keys() - done and not _may_be_stored(value, found):
            raise _unreachable("subquery", found)
    return element


def _moment_texts(
    element: Any, values: list[Any], found: Any
) -> dict[int, _MomentText]:
    """Return texts for the times of the server that stand beside a moment.

    Texts of two formats would be compared, and could not be read.

    :param found: the type of the first of the values that has such a type.
    :raises UnsupportedStatementError: if an element would return another type.
    """
    types = [getattr(value, "type", None) for value in values]
    fields = [t for t in types if isinstance(t, Encoded) and _has_moments(t)]
    is_comparison = isinstance(element, BinaryExpression)
    if fields and found not in fields and not is_comparison:
        raise UnsupportedStatementError(
            f"{fields[0].label} stands behind a column of another format, which "
            "the server would return for both; name the field first",
            construct="coalesce()",
        )
    return {
        id(value): _MomentText(value)
        for value in values
        if fields and _is_server_time(value, fields[0])
    }


def _is_server_time(value: Any, encoded: Any) -> bool:
    """Return whether a value is a time that a field stores as a text."""
    type_ = getattr(value, "type", None)
    return (
        _has_moments(encoded)
        and isinstance(plain_type(type_), DateTime)
        and not isinstance(value, BindParameter)
    )


def _is_unknown(value: Any) -> bool:
    """Return whether SQLAlchemy has no type for a value, as for an enum."""
    return isinstance(value, BindParameter) and private.is_null_type(value.type)


def _encoded_inside(values: Iterable[Any]) -> Any:
    """Return the type of a field in arguments of functions, or None."""
    found = _encoded(part for value in values for part in iterate(value))
    return found if found is not None and found.is_compared else None


def _unreachable(construct: str, encoded: Any) -> UnsupportedStatementError:
    return UnsupportedStatementError(
        f"a value in a {construct} that stands beside {encoded.label} would "
        "be sent in another format than the field's; give it the type of the "
        f"field, literal(value, {encoded.label}.type)",
        construct=construct,
    )


def _with_tuples(binary: Any, left: Any, right: Any) -> Any:
    """Return an IN of tuples with values in the format of their fields."""
    if not isinstance(right.type, TupleType):
        return binary
    types = [
        own if isinstance(own, Encoded) or found is None else Beside(own, found, True)
        for own, found in zip(
            right.type.types,
            (_encoded(_values(clause)) for clause in left.clauses),
            strict=False,
        )
    ]
    if not any(isinstance(one, Beside) for one in types):
        return binary
    swaps = {id(right): _retyped(right, TupleType(*types))}
    return _swapped(binary, swaps, set())


def _retyped(value: Any, type_: Any) -> Any:
    # With a new name: the value may stand beside other columns, too.
    found = private.renamed(value)
    found.type = type_
    return found


def _swapped(element: Any, swaps: Mapping[int, Any], done: set[int]) -> Any:
    """Return a copy of an expression with other values in it.

    :param swaps: the new values, by the id of the old one.
    :param done: receives the ids of those that were found.
    """

    def swap(part: Any, **kw: Any) -> Any:
        if id(part) in swaps:
            done.add(id(part))
            return swaps[id(part)]
        return private.copied(part, swap) if isinstance(part, _COPIED) else part

    return private.copied(element, swap)


_COPIED = (
    Case,
    ClauseList,
    ExpressionClauseList,
    FunctionElement,
    Grouping,
    Label,
    Over,
)


class Beside(UserDefinedType[Any]):
    """The type of a value beside a field.

    :param own: the type that SQLAlchemy has given the value.
    :param encoded: the type of the field.
    :param is_own: see :meth:`Encoded.encodes`.
    """

    cache_ok: bool | None = True

    def __init__(self, own: Any, encoded: Any, is_own: bool) -> None:
        self.own = own
        self.encoded = encoded
        self.is_own = is_own

    def bind_processor(self, dialect: Dialect) -> Any:
        """Convert a value as its own type or that of the field does."""
        return self._either(
            *(
                one.dialect_impl(dialect).bind_processor(dialect)
                for one in (self.own, self.encoded)
            )
        )

    def literal_processor(self, dialect: Dialect) -> Any:
        """Return the value for a statement that is printed."""
        return self._either(
            *(
                one.dialect_impl(dialect).literal_processor(dialect)
                for one in (self.own, self.encoded)
            )
        )

    def _either(self, own: Any, encode: Any) -> Any:
        def process(value: Any) -> Any:
            if self.encoded.encodes(value, is_own=self.is_own):
                return encode(value)
            return value if own is None else own(value)

        return process


def _check_union(columns: Iterable[Any], keyword: Any) -> None:
    """Refuse a value that stands below or above a field in a UNION.

    :raises UnsupportedStatementError: if there is one.
    """
    values = list(_selected(columns))
    found = _encoded(values)
    for value in values if found is not None else ():
        if isinstance(value, BindParameter) and not (
            isinstance(value.type, (Beside, Encoded)) or _may_be_stored(value, found)
        ):
            raise _unreachable(keyword.value, found)
