"""Statements as text, of Python and of SQL, read without executing any.

A browser must not be able to run code in this process, so Python is not
passed to ``eval()``: its syntax tree is walked, and only the names, methods
and operators listed here are followed.  Nothing here connects to a server.

::

    reader = StatementReader([Board, Pin])
    reader.read("select(Pin).where(Pin.board_id == 241294492511762325)")
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from difflib import get_close_matches
from typing import Any

import sqlalchemy
from sqlalchemy import Executable, func, inspect, text as sql_text
from sqlalchemy.exc import NoInspectionAvailable
from sqlalchemy.orm import Mapper
from sqlalchemy.sql import ClauseElement

from sqla_shard.cluster.cluster import Cluster
from sqla_shard.cluster.explain import Explanation, target_of
from sqla_shard.engine import scatter
from sqla_shard.engine.rendering import Place
from sqla_shard.engine.unreachable import short
from sqla_shard.exc import StatementTextError
from sqla_shard.fleet.binlog_statements import qualifiers
from sqla_shard.ids import pack
from sqla_shard.topology.keyspaces import Template

LONGEST = 8000

"""Maximum number of characters of a statement."""

#: Parsing and walking are recursive.
_DEEPEST = 100

#: The class of ``func``, and of names with dots below it.
_SQLFunctions = type(func)

_FUNCTIONS: Mapping[str, Any] = {
    **{
        name: getattr(sqlalchemy, name)
        for name in (
            *("select", "update", "delete", "func", "and_", "or_", "not_"),
            *("asc", "desc", "case", "cast", "distinct", "exists", "literal"),
            *("null", "true", "false", "tuple_", "BigInteger", "Integer"),
            *("String",),
        )
    },
    "pack": pack,
    "scatter": scatter,
}

_METHODS = frozenset(
    [
        *("where", "filter", "filter_by", "join", "outerjoin", "join_from"),
        *("select_from", "order_by", "group_by", "having", "distinct"),
        *("limit", "offset", "options", "values", "with_for_update"),
        *("in_", "not_in", "is_", "is_not", "between", "like", "not_like"),
        *("ilike", "startswith", "endswith", "contains", "any", "has"),
        *("asc", "desc", "label", "subquery", "scalar_subquery", "correlate"),
        *("exists", "union_all", "add_columns", "with_only_columns", "cast"),
    ]
)

_BINARY: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Mod: operator.mod,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
}

_UNARY: Mapping[type[ast.unaryop], Callable[[Any], Any]] = {
    ast.USub: operator.neg,
    ast.Invert: operator.invert,
}

_COMPARE: Mapping[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}

_CONSTANTS = (bool, int, float, str, bytes, type(None))


def object_id_of(text: str) -> int | None:
    """Return the number of a text that is one, decimal or after ``0x``.

    :returns: None if the text is not a number of at most 100 digits.
    """
    digits = text.strip().lower()
    base = 10
    if digits.startswith("0x"):
        digits, base = digits[2:], 16
    if not digits.isascii() or not digits.isalnum() or len(digits) > 100:
        return None
    try:
        return int(digits, base)
    except ValueError:
        return None


def invalid(text: str, error: Exception) -> StatementTextError:
    """Return the error of a statement that SQLAlchemy does not accept.

    :param error: what it raises: of any class, such as AttributeError for
        ``update(Pin).join()``, or IndexError.
    """
    return StatementTextError(f"is not valid: {short(error)}", statement=text[:LONGEST])


class StatementReader:
    """Reads statements over mapped classes.

    :param models: the mapped classes, or their declarative bases.
    :raises StatementTextError: if two classes have the same name.
    """

    def __init__(self, models: Iterable[type]) -> None:
        self.models: dict[str, type] = {}
        for given in models:
            for cls in _mapped(given):
                other = self.models.setdefault(cls.__name__, cls)
                if other is not cls:
                    raise StatementTextError(
                        f"two classes have the name {cls.__name__}; pass "
                        "the classes that you need instead of their bases",
                        statement=cls.__name__,
                    )

    def read(self, text: str) -> Executable:
        """Return the statement of a text.

        :raises StatementTextError: if it is not a statement that this class
            can read.
        """
        walk = _Walk(text, {**_FUNCTIONS, **self.models})
        if len(text) > LONGEST:
            raise walk.error(f"has more than {LONGEST:,} characters")
        try:
            tree = ast.parse(text.strip(), mode="eval")
            statement = walk.value(tree.body)
        except (SyntaxError, RecursionError, MemoryError) as error:
            raise walk.error(
                f"cannot be parsed ({error}); write an id, or an expression "
                "such as select(Pin).where(Pin.id == 241294492511762325)"
            ) from error
        except StatementTextError:
            raise
        except Exception as error:
            raise invalid(text, error) from error
        if not isinstance(statement, Executable):
            raise walk.error(
                "is not a statement; begin with select(), update() or delete()"
            )
        return statement


def _mapped(given: type) -> list[type]:
    try:
        mapper: Any = inspect(given)
    except NoInspectionAvailable:
        registry = getattr(given, "registry", None)
        if registry is None:
            raise
        return sorted(
            (one.class_ for one in registry.mappers), key=lambda cls: cls.__name__
        )
    return [mapper.class_]


class _Walk:
    """Evaluates one syntax tree."""

    def __init__(self, text: str, names: Mapping[str, Any]) -> None:
        self._text = text
        self._names = names
        self._depth = 0

    def error(self, reason: str) -> StatementTextError:
        """Return the error of this text."""
        return StatementTextError(reason, statement=self._text[:LONGEST])

    def value(self, node: ast.expr) -> Any:
        """Return the value of a node."""
        read = _READERS.get(type(node))
        if read is None:
            raise self.error(
                f"contains {type(node).__name__}, which cannot be used here"
            )
        self._depth += 1
        if self._depth > _DEEPEST:
            raise self.error("is nested too deeply")
        try:
            return read(self, node)
        finally:
            self._depth -= 1

    def constant(self, node: ast.Constant) -> Any:
        """Return a number, a string or None."""
        if not isinstance(node.value, _CONSTANTS):
            raise self.error(f"contains {node.value!r}")
        return node.value

    def sequence(self, node: ast.List | ast.Tuple) -> Any:
        """Return a list or a tuple."""
        values = [self.value(one) for one in node.elts]
        return tuple(values) if isinstance(node, ast.Tuple) else values

    def name(self, node: ast.Name) -> Any:
        """Return a mapped class or a function."""
        try:
            return self._names[node.id]
        except KeyError:
            near = get_close_matches(node.id, self._names)
            advice = "import the application's classes with --models MODULE"
            if near:
                advice = f"did you mean {', '.join(near)}?"
            raise self.error(
                f"has the name {node.id!r}, which is not known; {advice}"
            ) from None

    def attribute(self, node: ast.Attribute) -> Any:
        """Return an attribute of a mapped class, or a function of SQL."""
        owner = self.value(node.value)
        name = node.attr
        if not name.startswith("_"):
            if isinstance(owner, _SQLFunctions):
                return getattr(owner, name)
            if isinstance(owner, type) and owner in self._names.values():
                mapper: Any = inspect(owner, raiseerr=False)
                if isinstance(mapper, Mapper) and (name in mapper.all_orm_descriptors):
                    return getattr(owner, name)
        raise self.error(f"has .{name}, which cannot be used here")

    def call(self, node: ast.Call) -> Any:
        """Return the result of a listed function or method."""
        arguments = [self.value(one) for one in node.args]
        options = {}
        for keyword in node.keywords:
            if keyword.arg is None:
                raise self.error("contains **, which cannot be used here")
            options[keyword.arg] = self.value(keyword.value)
        target = node.func
        if isinstance(target, ast.Attribute) and target.attr in _METHODS:
            owner = self.value(target.value)
            if _is_sql(owner):
                return getattr(owner, target.attr)(*arguments, **options)
        called = self.value(target)
        is_function = isinstance(target, ast.Attribute) and isinstance(
            called, _SQLFunctions
        )
        is_named = isinstance(target, ast.Name) and target.id in _FUNCTIONS
        if not is_function and not is_named:
            raise self.error("calls something that is not a function of SQL")
        return called(*arguments, **options)

    def binary(self, node: ast.BinOp) -> Any:
        """Return the result of an operator."""
        left, right = self.value(node.left), self.value(node.right)
        apply = _BINARY.get(type(node.op))
        # "a" * 10**9 would take all memory, and "%" formats strings.
        is_plain = not (_is_sql(left) or _is_sql(right))
        if apply is None or (
            is_plain and not all(isinstance(v, int) for v in (left, right))
        ):
            raise self.error(
                f"has the operator {type(node.op).__name__} where it cannot be used"
            )
        return apply(left, right)

    def unary(self, node: ast.UnaryOp) -> Any:
        """Return the result of ``-`` or ``~``."""
        apply = _UNARY.get(type(node.op))
        if apply is None:
            raise self.error("has 'not'; write not_(...)")
        return apply(self.value(node.operand))

    def comparison(self, node: ast.Compare) -> Any:
        """Return the result of a comparison."""
        apply = _COMPARE.get(type(node.ops[0]))
        if apply is None or node.ops[1:]:
            raise self.error(
                "has a comparison that is not one of SQL; write .in_(...), "
                ".is_(...) or .between(...)"
            )
        return apply(self.value(node.left), self.value(node.comparators[0]))


def _is_sql(value: Any) -> bool:
    """Return whether a value is a part of a statement."""
    return isinstance(value, ClauseElement) or hasattr(value, "__clause_element__")


# -- SQL as text, as servers log it: where it runs, by the databases it names.
#
# The package does not parse SQL: a session refuses `text()` without a shard,
# because only the application knows it.  A statement of a server's log or
# process list has the name of a database before each table, and each database is
# a virtual shard:
#
#     SELECT ... FROM db03429.pins WHERE pins.local_id = 7075733
#
# Nothing is sent to a server, and no class has to be known.

_READERS: Mapping[type[ast.expr], Callable[[_Walk, Any], Any]] = {
    ast.Constant: _Walk.constant,
    ast.List: _Walk.sequence,
    ast.Tuple: _Walk.sequence,
    ast.Name: _Walk.name,
    ast.Attribute: _Walk.attribute,
    ast.Call: _Walk.call,
    ast.BinOp: _Walk.binary,
    ast.UnaryOp: _Walk.unary,
    ast.Compare: _Walk.comparison,
}

# A Python expression has a bracket after the name of a function.  Comments are
# possessive: their parts would be tried in all ways, for hours.
_SQL = re.compile(
    r"\s*+(?:/\*.*?\*/\s*)*+(?:SELECT|INSERT|UPDATE|DELETE|REPLACE|WITH)"
    r"\s+[^\s(]",
    re.I | re.S,
)


def is_sql(statement: str) -> bool:
    """Return whether a text is SQL, and not an expression of SQLAlchemy."""
    return _SQL.match(statement) is not None


def explain_sql(cluster: Cluster, statement: str) -> Explanation:
    """Return where a statement runs; runs nothing.

    :returns: the shards whose databases it names; without any, what a session
        does with it: its refusal, with the remedy.
    :raises StatementTextError: if it names databases of several keyspaces.
    :raises UnknownShardError: if it names the database of a shard that is not
        open.
    """
    places = list(dict.fromkeys(_places(cluster, statement)))
    if not places:
        # A colon would be a parameter.
        return cluster.explain(sql_text(statement.replace(":", r"\:")))
    keyspaces = sorted({place.keyspace for place in places})
    if len(keyspaces) > 1:
        raise StatementTextError(
            f"names databases of the keyspaces {', '.join(keyspaces)}, and "
            "is not one that a session sends; paste a part of it",
            statement=statement,
        )
    why = "the databases that it names"
    return Explanation(
        object_id=None,
        keyspace=keyspaces[0],
        targets=tuple(
            target_of(place, why)
            for place in sorted(places, key=lambda place: place.shard_id)
        ),
        why=why,
        refusal=None,
    )


def _places(cluster: Cluster, statement: str) -> Iterator[Place]:
    names = set(qualifiers(statement))
    places = cluster.places
    for keyspace in cluster.topology.keyspaces.values():
        template = Template.parse(keyspace.database, sharded=keyspace.kind != "global")
        # The topology was checked when it was read.
        assert isinstance(template, Template)  # noqa: S101
        for name in names:
            shard_id = template.shard_of(name)
            if shard_id is not None:
                yield places.place(keyspace, shard_id)
