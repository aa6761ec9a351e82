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

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime, time
from functools import cache
from itertools import chain
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import (
    Boolean,
    Date,
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
    Cast,
    ClauseList,
    CollectionAggregate,
    ColumnClause,
    ColumnElement,
    ExpressionClauseList,
    FunctionFilter,
    Grouping,
    Label,
    Null,
    Over,
    Tuple,
    TypeCoerce,
    WithinGroup,
)
from sqlalchemy.sql.functions import Function, FunctionElement
from sqlalchemy.sql.selectable import ScalarSelect, SelectBase
from sqlalchemy.sql.visitors import iterate
from sqlalchemy.types import Enum, TupleType, UserDefinedType

from sqla_shard.dialects.result_types import name_of, plain_type
from sqla_shard.dialects.sql import BlobValue
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
#: Functions that return a text, in the collation of their arguments.
_TEXTS = frozenset(
    [
        *("concat", "concat_ws", "lcase", "left", "lower", "lpad", "ltrim", "mid"),
        *("repeat", "replace", "reverse", "right", "rpad", "rtrim", "substr"),
        *("substring", "substring_index", "trim", "ucase", "upper"),
    ]
)
#: Functions that compare their arguments, and return none of them.
_COMPARED = frozenset(["field", "strcmp"])
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
#: Functions whose type SQLAlchemy does not know.
_KINDS_OF_TIMES = {
    **dict.fromkeys(("curdate", "date", "from_days", "last_day", "makedate"), date),
    **dict.fromkeys(("curtime", "maketime", "sec_to_time", "time", "timediff"), time),
    "utc_date": date,
    "utc_time": time,
}
_COMPARISONS = frozenset(
    [
        *(operators.eq, operators.ne, operators.lt, operators.le),
        *(operators.gt, operators.ge, operators.is_, operators.is_not),
        *(operators.in_op, operators.not_in_op),
        *(operators.between_op, operators.not_between_op),
        *(operators.is_distinct_from, operators.is_not_distinct_from),
    ]
)
_MEMBERSHIP = frozenset([operators.in_op, operators.not_in_op])
#: Comparisons by ``op()``.
_SIGNS = frozenset(["=", "<=>", "<>", "!=", "<", "<=", ">", ">="])


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
    return element.type if isinstance(element.type, Encoded) else _type_of([element])


def _type_of(elements: Iterable[Any]) -> Any:
    pairs = _pairs(elements)
    encoded = next((type_ for _, type_ in pairs if type_ is not None), None)
    if encoded is None or not all(_may_be(value, encoded) for value, _ in pairs):
        return None
    return encoded


def _may_be(value: Any, encoded: Any) -> bool:
    """Return whether a value is one of a field, or None."""
    if isinstance(value, BindParameter):
        return not _may_be_stored(value, encoded)
    if isinstance(value, Null) or isinstance(value.type, Encoded):
        return True
    if _format(value) is not None:
        return all(_may_be(one, encoded) for one in _each(_inner(value)))
    kind = _kind_of_time(value)
    if kind is not None and kind is _time_kept(encoded):
        return True
    return _is_member(value, encoded)


def _time_kept(encoded: Any) -> Any:
    """Return date or datetime if a field stores these as texts, or None."""
    # Columns of another type need not have a type of Python.
    is_text = encoded is not None and isinstance(encoded.impl, String)
    kept = encoded.python_type if is_text else None
    return kept if kept in (date, datetime) else None


def _kind_of_time(value: Any) -> Any:
    """Return date, datetime or time for a value of the server, or None."""
    type_ = plain_type(getattr(value, "type", None))
    if isinstance(type_, (Date, DateTime, Time)):
        return type_.python_type
    return _KINDS_OF_TIMES.get(name_of(value))


def _time_text(value: Any, own: Any, encoded: Any, *, is_strict: bool) -> Any:
    """Return a time of the server as the text of a field, or as a moment.

    :param own: the type of the field in whose format the value is, or None.
    :param is_strict: whether texts of two formats could be returned.
    :raises UnsupportedStatementError: for a value that has no such text.
    """
    text, kept = _time_kept(own), _time_kept(encoded)
    kind = text or _kind_of_time(value)
    if kind is None or text is kept:
        return value
    if kind is kept:
        return _MomentText(value) if kept is datetime or is_strict else value
    if is_strict:
        raise UnsupportedStatementError(
            f"{encoded.label} beside a column of {kind.__name__}: their texts differ; "
            "convert one of them, as by func.date() or func.timestamp()",
            construct=encoded.label,
        )
    return _moment(value, own, encoded)


def _moment(value: Any, own: Any, encoded: Any) -> Any:
    """Return a time as what a server compares with the text of a field.

    MySQL would read the text as a date, or as a time of day.
    """
    kind = _time_kept(own) or _kind_of_time(value)
    is_alike = kind in (None, _time_kept(encoded)) or (own is None and kind is datetime)
    return value if is_alike else _AsMoment(value)


def _mixes_times(elements: Sequence[Any]) -> bool:
    """Return whether the text of a field is beside another time."""
    pairs = _pairs(elements)
    kept = {
        _time_kept(own)
        for value, own in pairs
        if not isinstance(value, (BindParameter, Null))
    }
    return not kept <= {None} and len(kept) > 1


class _AsMoment(ColumnElement[Any]):
    """A date, or a time of day, as a DATETIME of the server."""

    __visit_name__ = "sqla_shard_moment"
    inherit_cache: bool | None = True
    type = DateTime()

    def __init__(self, element: Any) -> None:
        self.element = element


@compiles(_AsMoment)
def _compiled_moment(element: _AsMoment, compiler: Any, **kw: Any) -> str:
    value = str(compiler.process(element.element, **kw))
    return f"timestamp({value})" if is_mysql(compiler.dialect) else value


class _MomentText(ColumnElement[Any]):
    """A time of the server as the text of a field.

    :param element: an expression of DATE; or DATETIME or TIMESTAMP, in UTC.
    """

    __visit_name__ = "sqla_shard_moment_text"
    inherit_cache: bool | None = True
    type = String()

    def __init__(self, element: Any) -> None:
        self.element = element


@compiles(_MomentText, "mysql", "mariadb")
def _moment_text(element: _MomentText, compiler: Any, **kw: Any) -> str:
    is_date = _kind_of_time(element.element) is date
    form = "%Y-%m-%d" if is_date else "%Y-%m-%dT%H:%i:%s.%f+00:00"
    form = compiler.render_literal_value(form, String())
    return f"date_format({compiler.process(element.element, **kw)}, {form})"


@compiles(_MomentText, "sqlite")
def _moment_text_sqlite(element: _MomentText, compiler: Any, **kw: Any) -> str:
    value = compiler.process(element.element, **kw)
    if _kind_of_time(element.element) is date:
        return str(value)
    # Those of the server's clock have whole seconds.
    return f"substr(replace({value}, ' ', 'T') || '.000000', 1, 26) || '+00:00'"


class _FieldText(ColumnElement[Any]):
    """A value of a column as a field stores it.

    :param element: an expression of a UUID or of an enum.
    :param stored: of an enum, what the field stores by what the column does.
    """

    __visit_name__ = "sqla_shard_field_text"
    inherit_cache: bool | None = True
    type = String()

    def __init__(self, element: Any, stored: Mapping[str, Any] | None = None) -> None:
        self.element = element
        self.stored = stored


@compiles(_FieldText)
def _compiled_text(element: _FieldText, compiler: Any, **kw: Any) -> str:
    dialect = compiler.dialect
    value = compiler.process(element.element, **kw)
    if element.stored is not None:
        cases = " WHEN ".join(
            " THEN ".join(
                compiler.render_literal_value(one, literal(one).type) for one in pair
            )
            for pair in element.stored.items()
        )
        if is_mysql(dialect):
            # Names that differ in case are equal for most collations.
            value = f"CAST(CONVERT({value} USING utf8mb4) AS BINARY)"
        return f"CASE {value} WHEN {cases} END"
    if _is_native(element.element, dialect):
        return f"CAST({value} AS CHAR)"
    parts = [f"substr({value}, {first}, {length})" for first, length in _PARTS_OF_UUID]
    if not is_mysql(dialect):
        return " || '-' || ".join(parts)
    # Of two collations of utf8mb4 MariaDB compares no texts.
    joined = ", '-', ".join(parts)
    return f"convert(concat({joined}) USING ascii)"


def _is_native(value: Any, dialect: Any) -> bool:
    """Return whether a value is a UUID of a server that reads the text of a field."""
    has_type = getattr(plain_type(value.type), "native_uuid", False)
    return bool(has_type and dialect.supports_native_uuid)


#: Where the parts between hyphens begin in 32 digits, and their lengths.
_PARTS_OF_UUID = ((1, 8), (9, 4), (13, 4), (17, 4), (21, 12))


_BETWEEN = (operators.between_op, operators.not_between_op)
#: Keyword of the compiler within GROUP BY.
_GROUPED = "sqla_shard_grouped"


class _Collated(ColumnElement[Any]):
    """The text of a field, or a text beside one, in the collation of fields.

    MariaDB compares no columns of two collations, even if both are binary; the
    fields of MySQL have theirs.
    """

    __visit_name__ = "sqla_shard_collated"
    inherit_cache = True

    def __init__(self, element: Any) -> None:
        self.element = element
        self.type = element.type


@compiles(_Collated)
def _collated(element: _Collated, compiler: Any, **kw: Any) -> str:
    value = str(compiler.process(element.element, **kw))
    if not getattr(compiler.dialect, "is_mariadb", False):
        return value
    if kw.get(_GROUPED):
        raise UnsupportedStatementError(
            "GROUP BY of a text field and a text column, which MariaDB does not find "
            "among the columns again: select it as .label('x'), and group_by('x')",
            construct="GROUP BY",
        )
    return f"CONVERT({value} USING utf8mb4) COLLATE utf8mb4_nopad_bin"


def _is_field_text(value: Any) -> bool:
    """Return whether a value is the text of a field, or made of one."""
    if isinstance(value, (BindParameter, BlobValue)):
        return getattr(value, "form", None) == "text"
    type_ = getattr(value, "type", None)
    if isinstance(type_, Encoded):
        return isinstance(getattr(type_, "impl", None), String)
    inside = _inner(value) or _made_of(value)
    return bool(inside) and any(map(_is_field_text, _each(inside)))


def _is_mixed(values: Sequence[Any]) -> bool:
    """Return whether a value is the text of a field, and another is not."""
    return any(map(_is_field_text, values)) and any(map(_is_other_text, values))


def _made_of(value: Any) -> Iterable[Any]:
    """Return the values whose collation another text has."""
    if name_of(value) in _TEXTS:
        return list(value.clauses)
    if not isinstance(plain_type(getattr(value, "type", None)), String):
        return ()
    if isinstance(value, BinaryExpression):
        return [value.left, value.right]
    return [value.clause] if isinstance(value, (Cast, TypeCoerce)) else ()


def _is_other_text(value: Any) -> bool:
    """Return whether a value is a text with a collation of its own."""
    if (
        isinstance(value, (BindParameter, BlobValue))
        or getattr(value, "operator", None) is operators.collate
        or _is_field_text(value)
    ):
        return False
    if name_of(value) in _TEXTS:
        return any(map(_is_other_text, value.clauses))
    return isinstance(plain_type(getattr(value, "type", None)), String)


def _is_member(value: Any, encoded: Any) -> bool:
    """Return whether a column has an enum or a UUID of the field's class."""
    type_ = plain_type(getattr(value, "type", None))
    if isinstance(type_, Enum) and type_.enum_class is not None:
        return type_.enum_class is encoded.python_type
    return isinstance(type_, Uuid) and encoded.python_type is UUID


def _member_text(value: Any, encoded: Any) -> Any:
    """Return an enum or a UUID of a column as a field stores it."""
    type_ = plain_type(value.type)
    if isinstance(type_, Uuid):
        return _FieldText(value)
    dialect = DefaultDialect()
    read: Any = type_.result_processor(dialect, None)
    stored = {
        text: encoded.process_bind_param(read(text), dialect) for text in type_.enums
    }
    is_alike = all(text == code for text, code in stored.items())
    return value if is_alike else _FieldText(value, stored)


def _may_be_stored(value: Any, encoded: Any) -> bool:
    """Return whether a parameter may be in the format of a field already."""
    return (
        encoded.takes_plain
        and isinstance(value.type, (Boolean, Integer, Numeric, String))
        and not isinstance(value.type, Enum)
    )


# -- The parts of an expression.


def _parts(element: Any) -> list[Any] | None:
    """Return the parts of whose values an expression has one; None if it has none."""
    if isinstance(getattr(element, "type", None), Encoded):
        return None
    if isinstance(element, (FunctionFilter, Grouping, Label, Over, WithinGroup)):
        parts = [getattr(element, _name_of_part(element))]
    elif isinstance(element, (ClauseList, ExpressionClauseList)):
        parts = list(element.clauses)
    elif isinstance(element, Case):
        parts = _results(element)
    elif isinstance(element, FunctionElement) and name_of(element) in _RETURNED:
        parts = list(element.clauses)[_RETURNED[name_of(element)]]
    else:
        return None
    return parts


def _name_of_part(element: Any) -> str:
    return "func" if isinstance(element, FunctionFilter) else "element"


def _with_parts(element: Any, parts: list[Any]) -> Any:
    """Return a copy of an expression with other parts."""
    if isinstance(element, FunctionElement):
        arguments = list(element.clauses)
        arguments[_RETURNED[name_of(element)]] = parts
        return _with_arguments(element, arguments)
    if isinstance(element, Case):
        return _with_results(element, parts)
    if isinstance(element, (ClauseList, ExpressionClauseList)):
        return private.changed(element, clauses=parts)
    name = "_element" if isinstance(element, Label) else _name_of_part(element)
    return private.changed(element, **{name: parts[0]})


def _results(case: Any) -> list[Any]:
    results = [result for _, result in case.whens]
    return results if case.else_ is None else [*results, case.else_]


def _with_results(case: Any, results: list[Any]) -> Any:
    whens = [(one, new) for (one, _), new in zip(case.whens, results, strict=False)]
    else_ = None if case.else_ is None else results[-1]
    return private.changed(case, whens=whens, else_=else_)


def _with_arguments(function: Any, arguments: list[Any]) -> Any:
    clauses = private.changed(function.clause_expr.element, clauses=arguments)
    grouping = private.changed(function.clause_expr, element=clauses)
    return private.changed(function, clause_expr=grouping)


def _each(elements: Iterable[Any]) -> list[Any]:
    """Return the expressions of whose values expressions have one each."""
    return [value for value, _ in _pairs(elements)]


def _pairs(elements: Iterable[Any]) -> list[tuple[Any, Any]]:
    """Return the expressions of :func:`_each`, with their :func:`_format`.

    An expression that has no value but enums or UUIDs of columns is one: it is
    converted as a whole; ``max()`` finds another value among the converted.
    """
    pairs_of_all = []
    for element in elements:
        parts = _parts(element)
        if parts is None:
            pairs_of_all.append((element, _format(element)))
            continue
        pairs = _pairs(parts)
        is_whole = _has_members(element) and all(
            type_ is None and _has_members(value) for value, type_ in pairs
        )
        pairs_of_all += [(element, None)] if is_whole else pairs
    return pairs_of_all


def _has_members(element: Any) -> bool:
    """Return whether an expression is an enum or a UUID."""
    return isinstance(plain_type(getattr(element, "type", None)), (Enum, Uuid))


def _with_values(element: Any, values: Mapping[int, Any]) -> Any:
    """Return a copy of an expression with other values.

    :param values: the new ones by the ``id()`` of those of :func:`_each`.
    """
    if id(element) in values:
        return values[id(element)]
    parts: Any = _parts(element)
    return _with_parts(element, [_with_values(part, values) for part in parts])


def _inner(value: Any) -> Iterable[Any]:
    """Return the columns that a subquery, or a column of one, stands for."""
    if isinstance(value, ScalarSelect):
        return _inner(value.element)
    if isinstance(value, CollectionAggregate):
        return _inner(_ungrouped(value.element))
    if isinstance(value, SelectBase):
        return list(value.selected_columns)
    is_column = isinstance(value, ColumnClause)
    return list(private.proxies(value)) if is_column else ()


def _format(value: Any) -> Any:
    """Return the type of the field in whose format a value is, or None.

    The values beside a field in a subquery are in its format: it is compiled.
    """
    type_ = getattr(value, "type", None)
    if isinstance(type_, Encoded):
        return type_
    inner = _inner(value)
    return _encoded(inner) if inner else None


def _encoded(elements: Iterable[Any]) -> Any:
    """Return the type of the first value that is in a field's format, or None."""
    return next((type_ for _, type_ in _pairs(elements) if type_ is not None), None)


class _Compiler(SQLCompiler):
    """Compiles the values beside a field."""

    def visit_function(self, func: Any, *args: Any, **kw: Any) -> str:
        """Compile a function."""
        visit: Any = super().visit_function
        coded = _coded_function(func)
        if name_of(coded) in _READING_TIMES and is_mysql(self.dialect):
            arguments = [_as_moment(part) for part in coded.clauses]
            coded = _with_arguments(coded, arguments)
        return str(visit(coded, *args, **kw))

    def visit_cast(self, cast: Any, **kw: Any) -> str:
        """Compile CAST."""
        visit: Any = super().visit_cast
        if isinstance(cast.type, Time) and is_mysql(self.dialect):
            cast = private.changed(cast, clause=_as_moment(cast.clause))
        return str(visit(cast, **kw))

    def visit_case(self, clause: Any, **kw: Any) -> str:
        """Compile CASE."""
        visit: Any = super().visit_case
        results = _coded(_results(clause), chosen=True)
        if results is not None:
            clause = _with_results(clause, results)
        if clause.value is not None:
            compared = [clause.value, *(one for one, _ in clause.whens)]
            coded = _coded(compared, compares="CASE", converts=True)
            value, *conditions = self._read(coded or compared)
            whens = list(zip(conditions, (one for _, one in clause.whens), strict=True))
            clause = private.changed(clause, value=value, whens=whens)
        return str(visit(clause, **kw))

    def visit_binary(self, binary: Any, *args: Any, **kw: Any) -> str:
        """Compile an operator."""
        visit: Any = super().visit_binary
        # A server compares the text with a time; SQLite compares two texts.
        converts = self.dialect.name == "sqlite"
        binary = _coded_binary(binary, converts=converts)
        if binary.operator in _BETWEEN:
            left, right = self._read([binary.left, binary.right])
            binary = private.changed(binary, left=left, right=right)
        return str(visit(binary, *args, **kw))

    def _read(self, compared: list[Any]) -> list[Any]:
        """Return what CASE or BETWEEN compares, as MySQL compares it elsewhere.

        There it would compare the text of a time with that of a DATETIME.
        """
        is_mariadb = getattr(self.dialect, "is_mariadb", False)
        if not is_mysql(self.dialect) or is_mariadb or not _mixes_times(compared):
            return compared
        new = {id(value): _AsMoment(value) for value in _each(compared)}
        return [_with_values(part, new) for part in compared]

    def visit_insert(self, insert_stmt: Any, *args: Any, **kw: Any) -> str:
        """Compile INSERT."""
        visit: Any = super().visit_insert
        self._check_assigned(insert_stmt)
        return str(visit(insert_stmt, *args, **kw))

    def visit_update(self, update_stmt: Any, *args: Any, **kw: Any) -> str:
        """Compile UPDATE."""
        visit: Any = super().visit_update
        self._check_assigned(update_stmt)
        return str(visit(update_stmt, *args, **kw))

    def _check_assigned(self, statement: Any) -> None:
        """Refuse fields in columns that store another format.

        :raises UnsupportedStatementError: for such a field.
        """
        is_mariadb = getattr(self.dialect, "is_mariadb", False)
        reads_moments = is_mysql(self.dialect) and not is_mariadb
        for column, value in _assigned(statement):
            encoded = _encoded([value])
            if encoded is None:
                continue
            kind, kept = _kind_of_time(column), _time_kept(encoded)
            if _is_member(column, encoded):
                is_read = _is_native(column, self.dialect)
                is_alike = is_read or _member_text(column, encoded) is column
            else:
                is_read = kind is None or (reads_moments and kind is not time)
                is_alike = is_read or kept is None or kind is kept is date
            if not is_alike:
                raise UnsupportedStatementError(
                    f"{column} stores another format than {encoded.label}: read the "
                    "objects, and assign their values in Python",
                    construct=f"SET {column.name}",
                )

    def group_by_clause(self, select: Any, **kw: Any) -> str:
        """Compile GROUP BY."""
        grouped: Any = super().group_by_clause
        return str(grouped(select, **kw, **{_GROUPED: True}))

    def visit_compound_select(self, cs: Any, *args: Any, **kw: Any) -> str:
        """Compile UNION and the like.

        :raises UnsupportedStatementError: for another format beside a field.
        """
        selected = (select.selected_columns for select in cs.selects)
        column_groups = list(zip(*selected, strict=False))
        for columns in column_groups:
            _coded((), fixed=columns, construct=cs.keyword.value, chosen=True)
            if getattr(self.dialect, "is_mariadb", False) and _is_mixed(_each(columns)):
                raise UnsupportedStatementError(
                    f"a {cs.keyword.value} of a text field and a text column, whose "
                    "collations differ: use column.collate('utf8mb4_nopad_bin')",
                    construct=cs.keyword.value,
                )
        visit: Any = super().visit_compound_select
        known = len(self._result_columns)
        text = str(visit(cs, *args, **kw))
        if len(self._result_columns) == known + len(column_groups):
            for place, columns in enumerate(column_groups, known):
                self._give_type(place, columns)
        return text

    def _give_type(self, place: int, columns: Iterable[Any]) -> None:
        """Give a result the type of a field that all of its values have."""
        encoded = _type_of(columns)
        if encoded is not None:
            self._result_columns[place] = self._result_columns[place]._replace(
                type=encoded
            )

    def _label_select_column(
        self, select: Any, column: Any, *args: Any, **kw: Any
    ) -> Any:
        label: Any = super()._label_select_column
        known = len(self._result_columns)
        text = label(select, column, *args, **kw)
        if len(self._result_columns) == known + 1:
            self._give_type(known, [column])
        return text


def _assigned(statement: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the columns that an INSERT or UPDATE sets, with the expressions."""
    subject = private.propagate_attrs(statement).get("plugin_subject")
    columns = statement.table.c if subject is None else subject.mapper.columns
    pairs = [
        *dict(private.values(statement) or ()).items(),
        *(private.ordered_values(statement) or ()),
    ]
    for one in chain.from_iterable(private.multi_values(statement)):
        # A row is a tuple with the values of all columns, or of the first ones.
        is_mapping = isinstance(one, Mapping)
        pairs += (
            one.items() if is_mapping else zip(statement.table.c, one, strict=False)
        )
    if getattr(statement, "select", None) is not None:
        selected = statement.select.selected_columns
        pairs += zip(private.select_names(statement), selected, strict=False)
    for key, value in pairs:
        column = columns.get(key) if isinstance(key, str) else key
        value = getattr(value, "__clause_element__", lambda value=value: value)()
        if isinstance(column, ColumnClause) and isinstance(value, ColumnElement):
            yield column, value


def _as_moment(part: Any) -> Any:
    """Return what reads a time, with the moments of a field as DATETIME."""
    kind = getattr(encoded_type(part), "python_type", None)
    return Function("timestamp", part) if kind in (date, datetime) else part


def _coded_function(func: Any) -> Any:
    """Return a function with its values in the format of their field."""
    name, arguments = name_of(func), list(func.clauses)
    options: dict[str, Any] = {}
    if name in _COMPARING and len(arguments) > 1:
        options["compares"] = name
    if name in _RETURNED:
        options["chosen"] = True
    elif name in _COMPARED:
        options["converts"] = True
    else:
        options["is_own"] = False
    part = _RETURNED.get(name, slice(None))
    coded = _coded(arguments[part], **options)
    if coded is None:
        return func
    arguments[part] = coded
    return _with_arguments(func, arguments)


def _coded_binary(binary: Any, *, converts: bool) -> Any:
    """Return an operator with its values in the format of their field.

    :param converts: whether to convert times of the server, too.
    """
    sign = getattr(binary.operator, "opstring", None)
    is_own = binary.operator in _COMPARISONS or sign in _SIGNS
    name = sign or getattr(binary.operator, "__name__", str(binary.operator))
    options: dict[str, Any] = {"is_own": is_own, "converts": converts and is_own}
    options["compares"] = name if is_own else None
    left, right = map(_ungrouped, (binary.left, binary.right))
    is_tuple = isinstance(left, Tuple)
    if is_tuple and isinstance(right, BindParameter):
        return _with_tuples(binary, left, right)
    if isinstance(right, (CollectionAggregate, SelectBase)) or (
        isinstance(right, ScalarSelect) and (is_tuple or binary.operator in _MEMBERSHIP)
    ):
        lefts = list(left.clauses) if is_tuple else [binary.left]
        for place, column in enumerate(_inner(right)):
            coded = _coded(lefts[place : place + 1], fixed=[column], **options)
            lefts[place : place + 1] = coded or lefts[place : place + 1]
        new = private.changed(left, clauses=lefts) if is_tuple else lefts[0]
        return private.changed(binary, left=new)
    if is_tuple:
        is_list = not isinstance(right, Tuple)
        rows = [left, *(map(_ungrouped, right.clauses) if is_list else [right])]
        columns = [
            _coded(column, **options) or column
            for column in zip(*(row.clauses for row in rows), strict=False)
        ]
        left, *others = (
            private.changed(row, clauses=list(clauses))
            for row, *clauses in zip(rows, *columns, strict=True)
        )
        right = (
            ClauseList(*others).self_group(binary.operator) if is_list else others[0]
        )
        return private.changed(binary, left=left, right=right)
    coded = _coded([binary.left, binary.right], **options)
    if coded is None:
        return binary
    return private.changed(binary, left=coded[0], right=coded[1])


def _ungrouped(element: Any) -> Any:
    while isinstance(element, Grouping):
        element = element.element
    return element


def _coded(
    parts: Sequence[Any],
    *,
    fixed: Iterable[Any] = (),
    construct: str = "subquery",
    is_own: bool = True,
    compares: str | None = None,
    chosen: bool = False,
    converts: bool = False,
) -> list[Any] | None:
    """Return expressions with values in the format of the field beside them.

    :param parts: what is compared, or of which an expression returns one.
    :param fixed: columns of other SELECTs beside them, which cannot be changed.
    :param construct: what has these SELECTs.
    :param is_own: see :meth:`Encoded.encodes`.
    :param compares: the name of what compares them.
    :param chosen: whether an expression returns one of them.
    :param converts: whether times of the server are converted, too, as they are
        where one is returned.
    :returns: None if nothing has to be changed.
    :raises UnsupportedStatementError: if a value cannot be in that format.
    """
    values = _pairs(parts)
    columns = [_pairs([column]) for column in fixed]
    pairs = [*values, *chain.from_iterable(columns)]
    beside = [value for value, _ in pairs]
    formats = [type_ for _, type_ in pairs if type_ is not None]
    times = next(filter(_time_kept, formats), None)
    encoded = formats[0] if formats else None
    if encoded is None and any(map(_is_unknown, beside)):
        # ``func.lower(Pin.color) == Color.RED``
        is_own, encoded = False, _encoded_inside(beside)
    new = {id(value): value for value, _ in values}
    if encoded is not None:
        if chosen and values and times is not None and not _time_kept(encoded):
            raise UnsupportedStatementError(
                f"{times.label} stands behind a column of another format, which "
                "the server would return for both; name the field first",
                construct="coalesce()",
            )
        # Not for a column alone, whose index is used; a function of it and of a
        # text returns a text.
        converts = converts or chosen or len(values) > len(parts)
        form = _FieldFormat(
            encoded, times, construct, is_own, compares, chosen, converts
        )
        new = {id(value): form.converted(value, own) for value, own in values}
        if form.has_dates(columns):
            new |= {id(value): _AsMoment(value) for value, own in values if own}
    if _is_mixed(beside):
        _collate(values, new)
    if all(new[id(value)] is value for value, _ in values):
        return None
    if encoded is not None and compares is not None and not encoded.is_compared:
        raise encoded.refusal(compares)
    return [_with_values(part, new) for part in parts]


class _FieldFormat(NamedTuple):
    """The format of the values beside a field.

    :ivar encoded: the type of the field.
    :ivar times: that of the first field with texts of times; None if there is none.
    """

    encoded: Any
    times: Any
    construct: str
    is_own: bool
    compares: str | None
    chosen: bool
    converts: bool

    def converted(self, value: Any, own: Any) -> Any:
        """Return a value in this format.

        :param own: the type of the field in whose format it is, or None.
        :raises UnsupportedStatementError: if it cannot be in that format.
        """
        if isinstance(value, BindParameter):
            if isinstance(value.type, (Beside, Encoded)):
                return value
            return _retyped(value, Beside(value.type, self.encoded, self.is_own))
        is_member = own is None and _is_member(value, self.encoded)
        if own is None and not is_member and _binds(value, self.encoded):
            raise self._unreachable(self.encoded)
        if self.times is not None and self.converts:
            return _time_text(value, own, self.times, is_strict=self.chosen)
        if self.times is not None and self.compares is not None:
            return _moment(value, own, self.times)
        if is_member and (self.chosen or self.compares is not None):
            return _member_text(value, self.encoded)
        return value

    def has_dates(self, columns: Iterable[Sequence[tuple[Any, Any]]]) -> bool:
        """Return whether columns of other SELECTs are dates beside moments.

        :param columns: the values of each column, with the types of their fields.
        :raises UnsupportedStatementError: if a value is not in this format.
        """
        are_dates = False
        for column in columns:
            own = next((type_ for _, type_ in column if type_ is not None), None)
            # What stands beside a field there is compiled with that SELECT.
            if own is not None and _time_kept(self.times) in (None, _time_kept(own)):
                continue
            for value, type_ in column:
                is_date = self.times is not None and _kind_of_time(value) is date
                is_same = self.converted(value, type_) is value or _is_stored(
                    value, self.encoded
                )
                if not is_same and not is_date:
                    raise self._unreachable(self.times or self.encoded)
                are_dates = are_dates or (
                    is_date and _time_kept(self.times) is datetime
                )
        return are_dates

    def _unreachable(self, encoded: Any) -> UnsupportedStatementError:
        return UnsupportedStatementError(
            f"a {self.construct} beside {encoded.label} has a column or a value of "
            "another format than the field's: join the table of the column instead; "
            f"give a value the type of the field, literal(value, {encoded.label}.type)",
            construct=self.construct,
        )


def _collate(values: Sequence[tuple[Any, Any]], new: dict[int, Any]) -> None:
    """Give texts that are not converted the collation of those beside them."""
    is_field = any(_is_field_text(value) for value, _ in values)
    collates = _is_field_text if is_field else _is_other_text
    for value, _ in values:
        if new[id(value)] is value and collates(value):
            new[id(value)] = _Collated(value)


def _is_unknown(value: Any) -> bool:
    """Return whether SQLAlchemy has no type for a value, as for an enum."""
    return isinstance(value, BindParameter) and private.is_null_type(value.type)


def _encoded_inside(values: Iterable[Any]) -> Any:
    """Return the type of a field in arguments of functions, or None."""
    encoded = _encoded(part for value in values for part in iterate(value))
    return encoded if encoded is not None and encoded.is_compared else None


def _binds(value: Any, encoded: Any) -> bool:
    """Return whether a subquery has a parameter that is not in a field's format."""
    return any(
        (isinstance(one, BindParameter) and not _is_stored(one, encoded))
        or _binds(one, encoded)
        for one in _each(_inner(value))
    )


def _is_stored(value: Any, encoded: Any) -> bool:
    """Return whether a value of another SELECT may be in a field's format."""
    return isinstance(value, BindParameter) and (
        isinstance(value.type, (Beside, Encoded)) or _may_be_stored(value, encoded)
    )


def _with_tuples(binary: Any, left: Any, right: Any) -> Any:
    """Return an IN of tuples with values in the format of their fields."""
    if not isinstance(right.type, TupleType):
        return binary
    types = [
        own if isinstance(own, Encoded) or found is None else Beside(own, found, True)
        for own, found in zip(
            right.type.types,
            (_encoded([clause]) for clause in left.clauses),
            strict=False,
        )
    ]
    if not any(isinstance(one, Beside) for one in types):
        return binary
    return private.changed(binary, right=_retyped(right, TupleType(*types)))


def _retyped(value: Any, type_: Any) -> Any:
    # With a new name: the value may stand beside other columns, too.
    parameter = private.renamed(value)
    parameter.type = type_
    return parameter


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
        return self._either(dialect, "bind_processor")

    def literal_processor(self, dialect: Dialect) -> Any:
        """Return the value for a statement that is printed."""
        return self._either(dialect, "literal_processor")

    def _either(self, dialect: Dialect, name: str) -> Any:
        own, encode = (
            getattr(one.dialect_impl(dialect), name)(dialect)
            for one in (self.own, self.encoded)
        )

        def process(value: Any) -> Any:
            if self.encoded.encodes(value, is_own=self.is_own):
                return encode(value)
            return value if own is None else own(value)

        return process
