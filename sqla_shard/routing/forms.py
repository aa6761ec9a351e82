"""Local ids and whole ids are not to be mixed up.

A table stores the local part of an id in some columns and the whole id in
others.  SQL would compare them, or compute with them, without a word; what
would go wrong is found here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sqlalchemy.sql.elements import BinaryExpression
from sqlalchemy.sql.elements import BindParameter
from sqlalchemy.sql.elements import Case
from sqlalchemy.sql.elements import Cast
from sqlalchemy.sql.elements import ClauseList
from sqlalchemy.sql.elements import CollectionAggregate
from sqlalchemy.sql.elements import ExpressionClauseList
from sqlalchemy.sql.elements import Null
from sqlalchemy.sql.elements import Tuple
from sqlalchemy.sql.elements import TypeCoerce
from sqlalchemy.sql.functions import FunctionElement

from sqla_shard.routing.clauses import composed
from sqla_shard.routing.clauses import nested
from sqla_shard.routing.clauses import ungrouped
from sqla_shard.types import IdType
from sqla_shard.types import ShardedId
from sqla_shard.types.ids import COMPARISONS

__all__ = ["Problem", "check", "check_columns", "form_of", "mixed"]

#: Functions of a local id that mean the same for whole ids.
_ID_FUNCTIONS = frozenset({"count", "max", "min"})


@dataclass(frozen=True, slots=True)
class Problem:
    """A construct whose answer would be wrong, and what to write instead.

    :ivar unread: whether it hides no more than the shard, so that it may
        stand in a statement that is told one.
    """

    construct: str
    message: str
    unread: bool = False


def form_of(element: Any) -> str | None:
    """Name what an expression holds; None for NULL, which fits them all."""
    element = ungrouped(element)
    if composed(element) is not None:
        return "whole"
    if isinstance(element, Null):
        return None
    kind = getattr(element, "type", None)
    if isinstance(kind, ShardedId):
        return f"local {kind.type_id}"
    return "whole" if isinstance(kind, IdType) else "other"


def mixed(one: str | None, other: str | None) -> bool:
    """Tell whether two forms are not to be compared."""
    if one is None or other is None or one == other:
        return False
    return _is_local(one) or _is_local(other)


def check(element: Any) -> Problem | None:
    """Return what is wrong with one node of an expression, if anything."""
    if isinstance(element, BinaryExpression):
        return _comparison(element)
    if isinstance(element, FunctionElement):
        return _function(element)
    if isinstance(element, (Cast, TypeCoerce)):
        if _is_local(form_of(element.clause)):
            return _alone(type(element).__name__.lower(), element.clause)
    elif isinstance(element, Case):
        return _case(element)
    return None


def check_columns(columns: Iterator[Any]) -> Problem | None:
    """Return what is wrong with the columns that a SELECT shows."""
    for column in columns:
        if isinstance(column, BindParameter) and _is_local(form_of(column)):
            return Problem(
                str(column),
                "an id given as a value cannot be shown as a column of type "
                f"{column.type!r}: on other shards it has no local id; select "
                "literal(value, BigInteger())",
            )
    return None


def _comparison(clause: BinaryExpression[Any]) -> Problem | None:
    if composed(clause) is not None:
        return None
    for left, right in _pairs(clause):
        one, other = form_of(left), form_of(right)
        if mixed(one, other):
            return _unlike(left, right, one, other)
        if clause.operator not in COMPARISONS and (
            _is_local(one) or _is_local(other)
        ):
            name = getattr(clause.operator, "__name__", "operator")
            return _alone(name, left if _is_local(one) else right)
    return None


def _pairs(clause: BinaryExpression[Any]) -> Iterator[tuple[Any, Any]]:
    """Yield what is compared with what."""
    lefts = _parts(clause.left)
    right = ungrouped(clause.right)
    if isinstance(right, CollectionAggregate):
        right = ungrouped(right.element)
    if isinstance(right, BindParameter) and len(lefts) > 1:
        types = getattr(right.type, "types", ())
        for left, kind in zip(lefts, types, strict=False):
            yield left, BindParameter(None, type_=kind)
        return
    if isinstance(right, ExpressionClauseList) and len(lefts) == 1:
        # BETWEEN a AND b
        for bound in right.clauses:
            yield lefts[0], bound
        return
    rights = _parts(right)
    if len(rights) != len(lefts):
        yield clause.left, clause.right
        return
    yield from zip(lefts, rights, strict=True)


def _parts(element: Any) -> list[Any]:
    element = ungrouped(element)
    if isinstance(element, (Tuple, ClauseList)):
        return list(element.clauses)
    select = nested(element)
    if select is not None and hasattr(select, "selected_columns"):
        return list(select.selected_columns)
    return [element]


def _function(element: Any) -> Problem | None:
    name = str(getattr(element, "name", "a function"))
    arguments = list(element.clauses)
    given = [one for one in arguments if _is_local(form_of(one))]
    # max(a, b) of SQLite compares, and may be handed two kinds of id.
    if not given or (len(arguments) == 1 and name.lower() in _ID_FUNCTIONS):
        return None
    return _alone(name, given[0])


def _case(element: Case[Any]) -> Problem | None:
    results = [result for _, result in element.whens]
    if element.else_ is not None:
        results.append(element.else_)
    own = form_of(element)
    for result in results:
        form = form_of(result)
        if form is not None and (mixed(form, own) or _is_given(result, form)):
            return Problem(
                "case()",
                f"case() shows {result} beside others; write full_id() for "
                "each that is an id",
            )
    if element.value is not None:
        for when, _ in element.whens:
            if mixed(form_of(element.value), form_of(when)):
                return _unlike(
                    element.value,
                    when,
                    form_of(element.value),
                    form_of(when),
                )
    return None


def _is_given(element: Any, form: str) -> bool:
    return isinstance(ungrouped(element), BindParameter) and _is_local(form)


def _is_local(form: str | None) -> bool:
    return form is not None and form.startswith("local")


def _unlike(
    left: Any, right: Any, one: str | None, other: str | None
) -> Problem:
    if not _is_local(one):
        left, right, one, other = right, left, other, one
    if _is_local(other):
        how = "their ids are of two types"
    elif isinstance(right, BindParameter):
        # As tuple_(a, id) > tuple_(1, 2), whose values have no type yet.
        how = (
            "the value is not given as an id. Compare with the values "
            "themselves, as in tuple_(Class.n, Class.id) > (n, id)"
        )
    else:
        how = (
            f"write full_id({left}) to compare whole ids of one shard; "
            "objects on other shards are loaded by selectinload(), by "
            "session.get_many(), or with the rows of a mapping class, by "
            "page(session, source_id, targets=True)"
        )
    return Problem(
        f"{left} and {right}",
        f"{left} holds local ids and cannot be compared with {right}: {how}",
    )


def _alone(name: str, column: Any) -> Problem:
    return Problem(
        f"{name}()",
        f"{name}({column}) would see the local id alone; use "
        f"full_id({column})",
    )
