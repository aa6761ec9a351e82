"""Numbers as MariaDB and MySQL compute and return them.

A quotient of decimals has more digits inside the server than it returns: a
sum of quotients adds all of them and is rounded at the end.  A temporary
table, and with it UNION, stores the returned digits.  It changes the type of
numbers that are rounded when they are returned, such as ``FLOAT(7, 2)`` or
``ROUND()`` of a double, and truncates values that are longer than their type.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from decimal import Decimal
from enum import IntEnum
from typing import Any

from sqlalchemy import Boolean, Column, Double, Float, Integer, Numeric
from sqlalchemy.sql import operators
from sqlalchemy.sql.elements import (
    BinaryExpression,
    BindParameter,
    Case,
    Cast,
    ColumnElement,
    ExpressionClauseList,
    Extract,
    Grouping,
    Label,
    Null,
    TypeCoerce,
    UnaryExpression,
)
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.sql.selectable import ScalarSelect
from sqlalchemy.sql.visitors import iterate

from sqla_shard.dialects.result_types import (
    AGGREGATES,
    AllDigits,
    CHOOSING,
    DIVISIONS,
    DOUBLES,
    MOST_DIGITS,
    MOST_PLACES,
    name_of,
    NARROW,
    places_of,
    plain_type,
    ROUNDING,
    scale_of,
    size_of,
    size_of_product,
    SUMS,
    TIMES,
    WHOLE_NUMBERS,
)
from sqla_shard.dialects.sorting import SortKey
from sqla_shard.dialects.sql import BlobValue
from sqla_shard.util import sqlalchemy_private as private


class Precision(IntEnum):
    """The precision of the numbers of an expression.

    The sum of two numbers has the greater one.
    """

    #: Decimals, all with the decimal places that are returned.
    EXACT = 0
    #: Decimals, some with fewer places than are returned.
    MIXED = 1
    #: A quotient of decimals: further digits in groups of nine, never fewer.
    QUOTIENT = 2
    #: Decimals with as many places as are returned or more.
    COMPUTED = 3
    #: Decimals with more places than are returned, or with fewer.
    VARYING = 4
    #: Doubles that are returned with all of their digits.
    DOUBLE = 5
    #: Not a number; its value as a number is not known.
    NONE = 6
    #: May be a double that is returned with fewer digits.
    ROUNDED = 7


_ADDITIONS = frozenset([operators.add, operators.sub])


def precision_of(element: Any, *, any_value: bool = False) -> Precision:
    """Return the precision of the numbers of an expression.

    :param any_value: whether parameters may have other values when the
        statement is executed than they have now.
    """
    precision = _PrecisionReader(any_value=any_value).precision(element)
    if precision is Precision.MIXED and _is_one_or_constant(element):
        return Precision.EXACT
    return precision


def is_storable(element: Any, *, on_mysql: bool = False) -> bool:
    """Return whether UNION returns the values of a column unchanged.

    :param element: an expression among the columns of a SELECT.
    :param on_mysql: whether the server is MySQL, not MariaDB.
    """
    while isinstance(element, (AllDigits, Label, Grouping, SortKey)):
        element = element.element
    if isinstance(element, FunctionElement):
        name, arguments = name_of(element), list(element.clauses)
        if name == "count":
            return True
        if name in AGGREGATES and len(arguments) == 1:
            if name == "avg" and _has_function(arguments[0], NARROW):
                return False
            return is_storable(arguments[0], on_mysql=on_mysql)
    if _stored(element) is not None:
        return True
    # A YEAR has four digits, of years from 1901 to 2155.
    mistyped = "year" if on_mysql else "ord"
    if _has_function(element, {mistyped}):
        return False
    if name_of(element) not in NARROW and _has_function(element, NARROW):
        return False
    if precision_of(element, any_value=True) is Precision.ROUNDED:
        return False
    if _divides_by_quotient(element):
        return False
    # A part may have been converted to a text.
    for part in iterate(element):
        size = size_of(part, any_value=True)
        if size is not None and sum(size) > MOST_DIGITS:
            return False
    return True


def _has_function(element: Any, names: Collection[str]) -> bool:
    """Return whether an expression calls one of the functions."""
    for part in iterate(element):
        if isinstance(part, FunctionElement) and name_of(part) in names:
            return True
        if part.__visit_name__ == "column" and not isinstance(part, Column):
            inner = [e for e in private.proxies(part) if e is not part]
            if any(_has_function(each, names) for each in inner):
                return True
    return False


def is_grouped_whole(element: Any) -> bool:
    """Return whether GROUP BY in a temporary table does not change a column.

    The least or greatest quotient loses its further digits there.

    :param element: an expression among the columns of a SELECT.
    """
    return is_storable(element) and not any(
        isinstance(part, FunctionElement)
        and name_of(part) in ("max", "min")
        and any(map(_is_division, iterate(part)))
        for part in iterate(element)
    )


def _divides_by_quotient(element: Any) -> bool:
    """Return whether an expression divides by a quotient.

    A quotient may be smaller inside the server than in its type, so that
    the result may be larger than its type.
    """
    return any(
        isinstance(part, BinaryExpression)
        and part.operator in DIVISIONS
        and any(map(_is_division, iterate(part.right)))
        for part in iterate(element)
    )


def _is_division(element: Any) -> bool:
    if isinstance(element, BinaryExpression):
        return element.operator in DIVISIONS
    return isinstance(element, FunctionElement) and name_of(element) == "avg"


class _PrecisionReader:
    """Reads expressions; see :func:`precision_of`."""

    def __init__(self, *, any_value: bool) -> None:
        self._any_value = any_value

    def precision(self, element: Any) -> Precision:
        if isinstance(element, (Label, Grouping)):
            return self.precision(element.element)
        if isinstance(element, TypeCoerce):
            return self.precision(element.clause)
        if isinstance(element, AllDigits):
            inner = self.precision(element.element)
            return Precision.COMPUTED if inner < Precision.DOUBLE else inner
        if isinstance(element, SortKey):
            double = element.kind == "float"
            return Precision.DOUBLE if double else self.precision(element.element)
        if isinstance(element, BindParameter):
            return self._parameter(element)
        if isinstance(element, BlobValue):
            return _BLOBS.get(element.form, Precision.NONE)
        if isinstance(element, ScalarSelect):
            return self._all(element.element.selected_columns)
        if element.__visit_name__ == "column":
            return self._column(element)
        if not isinstance(element, ColumnElement):
            return self._function("", element.get_children())
        return self._expression(element)

    def _expression(self, element: Any) -> Precision:
        if isinstance(element, Case):
            chosen = [result for _, result in element.whens]
            if element.else_ is not None:
                chosen.append(element.else_)
            return self._one_of(chosen)
        if isinstance(element, Cast):
            form = _precision_of_type(element.type)
            if form is Precision.NONE:
                return _as_text(self.precision(element.clause))
            return form
        if isinstance(element, (Extract, Null)):
            return Precision.EXACT
        if isinstance(element, ExpressionClauseList):
            if element.operator in SUMS:
                return self._added(element.clauses, element.operator)
        elif isinstance(element, UnaryExpression):
            if element.operator is operators.neg:
                return self._added([element.element])
            if element.operator is operators.distinct_op:
                return self.precision(element.element)
        elif isinstance(element, BinaryExpression):
            return self._binary(element)
        elif isinstance(element, FunctionElement):
            return self._function(name_of(element), list(element.clauses))
        if isinstance(plain_type(element.type), Boolean):
            return Precision.EXACT
        return self._function("", element.get_children())

    def _all(self, elements: Iterable[Any]) -> Precision:
        return max(map(self.precision, elements), default=Precision.NONE)

    def _parameter(self, element: Any) -> Precision:
        value = element.effective_value
        form = _precision_of_type(element.type)
        if isinstance(value, float):
            return Precision.DOUBLE
        if isinstance(value, int):
            return Precision.EXACT
        if form is Precision.EXACT and not isinstance(element.type, Integer):
            # A float is a double on the server, for any declared type.
            known = isinstance(value, Decimal) and not self._any_value
            return Precision.EXACT if known else Precision.DOUBLE
        return form

    def _column(self, element: Any) -> Precision:
        if not isinstance(element, Column):
            inner = [e for e in private.proxies(element) if e is not element]
            if inner:
                return self._all(inner)
        return _precision_of_type(element.type)

    def _added(
        self, elements: Iterable[Any], operator: Any = operators.add
    ) -> Precision:
        """Return the precision of the result of arithmetic."""
        elements = list(elements)
        forms = [self.precision(element) for element in elements]
        if operator in _ADDITIONS and _is_widest_difference(elements):
            forms.append(Precision.MIXED)
        precision = max(forms)
        if precision >= Precision.NONE:
            return Precision.ROUNDED
        if operator is operators.mul and precision < Precision.DOUBLE:
            _, places = size_of_product(elements) or (0, 0)
            if places > MOST_PLACES:
                precision = max(precision, Precision.COMPUTED)
        if Precision.MIXED in forms and precision < Precision.DOUBLE:
            return (
                Precision.MIXED if precision is Precision.MIXED else Precision.VARYING
            )
        if precision is Precision.QUOTIENT and len(forms) > 1:
            return Precision.COMPUTED
        # The remainder of zero has no places.
        mixed = operator is operators.mod and precision is Precision.EXACT
        return Precision.MIXED if mixed else precision

    def _binary(self, element: Any) -> Precision:
        operator = element.operator
        sides = [element.left, element.right]
        if operator in SUMS:
            return self._added(sides, operator)
        if operator in DIVISIONS:
            precision = self._added(sides)
            if precision < Precision.DOUBLE:
                whole = operator is operators.floordiv
                return Precision.EXACT if whole else self._quotient(element.left)
            return precision if operator is operators.truediv else Precision.ROUNDED
        if isinstance(plain_type(element.type), Boolean):
            return Precision.EXACT
        return self._function("", sides)

    def _quotient(self, divided: Any) -> Precision:
        """Return the precision of a quotient."""
        _, places = size_of(divided) or (0, 0)
        fewer = self.precision(divided) in (Precision.MIXED, Precision.VARYING)
        # Four places more are returned, and a quotient has at least nine.
        return Precision.VARYING if fewer and places > 5 else Precision.QUOTIENT

    def _one_of(self, elements: list[Any]) -> Precision:
        """Return the precision of one of several values."""
        elements = [e for e in elements if not isinstance(e, Null)]
        precision = self._all(elements)
        if precision is Precision.EXACT:
            places = set(map(places_of, elements))
            alike = len(places) == 1 and None not in places
            return Precision.EXACT if alike else Precision.MIXED
        if precision < Precision.DOUBLE and len(elements) > 1:
            return Precision.VARYING
        if precision is Precision.NONE:
            return max(_as_text(self.precision(e)) for e in elements)
        return precision

    def _function(self, name: str, arguments: Iterable[Any]) -> Precision:
        arguments = list(arguments)
        if name in WHOLE_NUMBERS:
            return Precision.EXACT
        if name in DOUBLES:
            return Precision.DOUBLE
        if name in CHOOSING:
            return self._one_of(arguments)
        if name == "if":
            return self._one_of(arguments[1:])
        if name in TIMES:
            return Precision.NONE
        if name in ("nullif", "max", "min") and arguments:
            return self.precision(arguments[0])
        if name in ("abs", "sum") and arguments:
            precision = self.precision(arguments[0])
            return Precision.ROUNDED if precision is Precision.NONE else precision
        if name == "mod" and arguments:
            return self._added(arguments, operators.mod)
        precision = self._all(arguments)
        if name == "avg":
            return Precision.QUOTIENT if precision < Precision.DOUBLE else precision
        if name in ROUNDING and arguments:
            exact = self.precision(arguments[0]) < Precision.DOUBLE
            return Precision.EXACT if exact else Precision.ROUNDED
        return _as_text(precision)


def _is_widest_difference(elements: list[Any]) -> bool:
    """Return whether a difference has more places than the other operands.

    The difference of equal numbers is a zero without places.
    """
    sizes = [size_of(element) or (0, 0) for element in elements]
    _, most = max(sizes, key=lambda size: size[1])
    wide = [
        element
        for element, (_, places) in zip(elements, sizes, strict=True)
        if places == most
    ]
    return most > 0 and all(map(_is_difference, wide))


def _is_difference(element: Any) -> bool:
    while True:
        if isinstance(element, (Label, Grouping, UnaryExpression)):
            element = element.element
        elif name_of(element) in ("abs", "nullif", "truncate"):
            element = next(iter(element.clauses))
        else:
            break
    return isinstance(element, (BinaryExpression, ExpressionClauseList)) and (
        element.operator in _ADDITIONS
    )


def _as_text(form: Precision) -> Precision:
    """Return the precision of a number that is converted to a text."""
    # A small double has more digits than the type of the text.
    doubles = (Precision.DOUBLE, Precision.ROUNDED)
    return Precision.ROUNDED if form in doubles else Precision.NONE


_BLOBS = {
    "boolean": Precision.EXACT,
    "decimal": Precision.EXACT,
    "float": Precision.DOUBLE,
    "id": Precision.EXACT,
    "integer": Precision.EXACT,
}


def _precision_of_type(type_: Any) -> Precision:
    type_ = plain_type(type_)
    variants = private.type_variants(type_).values()
    return max([_precision_of_one(type_), *map(_precision_of_one, variants)])


def _precision_of_one(type_: Any) -> Precision:
    type_ = plain_type(type_)
    if isinstance(type_, Float):
        whole = isinstance(type_, Double) and scale_of(type_) is None
        return Precision.DOUBLE if whole else Precision.ROUNDED
    exact = isinstance(type_, (Boolean, Integer, Numeric))
    return Precision.EXACT if exact else Precision.NONE


def _is_one_or_constant(element: Any) -> bool:
    """Return whether an expression is a value or, for NULL, a constant.

    If every value is NULL, only the constant is summed.  Its average is exact,
    so the number of its decimal places does not matter.
    """
    while isinstance(element, (Label, Grouping)):
        element = element.element
    if not isinstance(element, FunctionElement):
        return False
    arguments = list(element.clauses)
    if name_of(element) not in ("coalesce", "ifnull") or len(arguments) != 2:
        return False
    one, other = arguments
    if not isinstance(other, BindParameter) or precision_of(one) is not Precision.EXACT:
        return False
    places = places_of(other)
    return places is not None and places <= (places_of(one) or 0)


def _stored(element: Any) -> Any:
    """Return the column of a table, even of one in a subquery, or None."""
    while element.__visit_name__ == "column":
        if isinstance(element, Column):
            return element
        inner = [e for e in private.proxies(element) if e is not element]
        if len(inner) != 1:
            return None
        element = inner[0]
        while isinstance(element, (Label, Grouping)):
            element = element.element
    return None


def is_rounded(element: Any) -> bool:
    """Return whether an expression may be a double that is returned rounded.

    The column of a table is not rounded: it is returned as it is stored.
    """
    return _stored(element) is None and precision_of(element) is Precision.ROUNDED


def is_single(element: Any) -> bool:
    """Return whether an expression is a FLOAT column without a scale.

    Its sums are doubles that are returned with all of their digits.
    """
    column = _stored(element)
    if column is None:
        return False
    type_ = plain_type(column.type)
    variants = private.type_variants(type_)
    return isinstance(type_, Float) and scale_of(type_) is None and not variants
