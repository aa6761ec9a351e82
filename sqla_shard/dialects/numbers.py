"""How MariaDB and MySQL compute numbers, and what they show of them.

A quotient of decimals has more digits inside of the server than it shows: a
sum of quotients adds all of them and is rounded at its end.  A temporary
table, and with it UNION, stores what is shown; of numbers that are rounded
when they are shown, such as ``FLOAT(7, 2)`` or ``ROUND()`` of a double, it
changes the type, and cuts off what is longer than the type says.
"""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal
from enum import IntEnum
from typing import Any

from sqlalchemy import Boolean
from sqlalchemy import Column
from sqlalchemy import Double
from sqlalchemy import Float
from sqlalchemy import Integer
from sqlalchemy import Numeric
from sqlalchemy.sql import operators
from sqlalchemy.sql.elements import BinaryExpression
from sqlalchemy.sql.elements import BindParameter
from sqlalchemy.sql.elements import Case
from sqlalchemy.sql.elements import Cast
from sqlalchemy.sql.elements import ColumnElement
from sqlalchemy.sql.elements import ExpressionClauseList
from sqlalchemy.sql.elements import Extract
from sqlalchemy.sql.elements import Grouping
from sqlalchemy.sql.elements import Label
from sqlalchemy.sql.elements import Null
from sqlalchemy.sql.elements import TypeCoerce
from sqlalchemy.sql.elements import UnaryExpression
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.sql.selectable import ScalarSelect
from sqlalchemy.sql.visitors import iterate

from sqla_shard.dialects.digits import AllDigits
from sqla_shard.dialects.digits import CHOOSING
from sqla_shard.dialects.digits import DIVISIONS
from sqla_shard.dialects.digits import MOST_DIGITS
from sqla_shard.dialects.digits import MOST_PLACES
from sqla_shard.dialects.digits import name_of
from sqla_shard.dialects.digits import places_of
from sqla_shard.dialects.digits import plain_type
from sqla_shard.dialects.digits import ROUNDING
from sqla_shard.dialects.digits import scale_of
from sqla_shard.dialects.digits import size_of
from sqla_shard.dialects.digits import size_of_product
from sqla_shard.dialects.digits import SUMS
from sqla_shard.dialects.sorting import SortKey
from sqla_shard.dialects.sql import BlobValue

__all__ = [
    "Form",
    "form_of",
    "is_grouped_whole",
    "is_rounded",
    "is_single",
    "is_storable",
]


class Form(IntEnum):
    """What is known of the numbers of an expression.

    The greater one wins where numbers are added.
    """

    #: Decimals, all with the decimal places that are shown.
    EXACT = 0
    #: Decimals, some with fewer places than are shown.
    MIXED = 1
    #: A quotient of decimals: nine digits more at a time, never fewer.
    QUOTIENT = 2
    #: Decimals with as many places as are shown or more.
    COMPUTED = 3
    #: Decimals, some with more places than are shown, some with fewer.
    VARYING = 4
    #: Doubles that are shown with all of their digits.
    DOUBLE = 5
    #: No number; what it is as a number is not known.
    NONE = 6
    #: Perhaps a double that is shown with fewer digits.
    ROUNDED = 7


_ADDITIONS = frozenset([operators.add, operators.sub])
_AGGREGATES = frozenset(["avg", "max", "min", "sum"])
_WHOLE = frozenset(
    [
        *("ascii", "bit_length", "char_length", "count", "crc32", "datediff"),
        *("day", "dayofmonth", "dayofweek", "dayofyear", "field", "hour"),
        *("find_in_set", "instr", "isnull", "json_length", "length"),
        *("locate", "microsecond", "minute", "month", "octet_length"),
        *("quarter", "second", "sign", "strcmp", "to_days", "to_seconds"),
        *("unix_timestamp", "week", "weekday", "weekofyear", "year"),
        "yearweek",
    ]
)
_DOUBLES = frozenset(
    [
        *("acos", "asin", "atan", "cos", "exp", "ln", "log", "log10", "log2"),
        *("pow", "power", "rand", "sin", "sqrt", "tan"),
    ]
)


def form_of(element: Any, *, any_value: bool = False) -> Form:
    """Return what is known of the numbers of an expression.

    :param any_value: whether parameters may have other values when the
        statement is executed than they have now.
    """
    found = _Reader(any_value=any_value).form(element)
    if found is Form.MIXED and _is_one_or_constant(element):
        return Form.EXACT
    return found


def is_storable(element: Any) -> bool:
    """Tell whether UNION returns the values of a column as they are.

    :param element: an expression among the columns of a SELECT.
    """
    while isinstance(element, (AllDigits, Label, Grouping, SortKey)):
        element = element.element
    if isinstance(element, FunctionElement):
        name, arguments = name_of(element), list(element.clauses)
        if name == "count":
            return True
        if name in _AGGREGATES and len(arguments) == 1:
            return is_storable(arguments[0])
    if _stored(element) is not None:
        return True
    if form_of(element, any_value=True) is Form.ROUNDED:
        return False
    if _divides_by_quotient(element):
        return False
    # A text may have been made of a part.
    for part in iterate(element):
        size = size_of(part, any_value=True)
        if size is not None and sum(size) > MOST_DIGITS:
            return False
    return True


def is_grouped_whole(element: Any) -> bool:
    """Tell whether GROUP BY in a temporary table changes nothing of a column.

    What the least or greatest quotient has beyond its type is lost there.

    :param element: an expression among the columns of a SELECT.
    """
    return is_storable(element) and not any(
        isinstance(part, FunctionElement)
        and name_of(part) in ("max", "min")
        and any(map(_is_division, iterate(part)))
        for part in iterate(element)
    )


def _divides_by_quotient(element: Any) -> bool:
    """Tell whether an expression divides by what was divided before.

    A quotient is smaller inside of the server than its type says, so what is
    divided by it is larger than the type of the result.
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


class _Reader:
    """Reads expressions; see :func:`form_of`."""

    def __init__(self, *, any_value: bool) -> None:
        self._any_value = any_value

    def form(self, element: Any) -> Form:
        if isinstance(element, (Label, Grouping)):
            return self.form(element.element)
        if isinstance(element, TypeCoerce):
            return self.form(element.clause)
        if isinstance(element, AllDigits):
            inner = self.form(element.element)
            return Form.COMPUTED if inner < Form.DOUBLE else inner
        if isinstance(element, SortKey):
            double = element.kind == "float"
            return Form.DOUBLE if double else self.form(element.element)
        if isinstance(element, BindParameter):
            return self._parameter(element)
        if isinstance(element, BlobValue):
            return _BLOBS.get(element.form, Form.NONE)
        if isinstance(element, ScalarSelect):
            return self._all(element.element.selected_columns)
        if element.__visit_name__ == "column":
            return self._column(element)
        if not isinstance(element, ColumnElement):
            return self._function("", element.get_children())
        return self._expression(element)

    def _expression(self, element: Any) -> Form:
        if isinstance(element, Case):
            chosen = [result for _, result in element.whens]
            if element.else_ is not None:
                chosen.append(element.else_)
            return self._one_of(chosen)
        if isinstance(element, Cast):
            form = _form_of_type(element.type)
            if form is Form.NONE:
                return _as_text(self.form(element.clause))
            return form
        if isinstance(element, (Extract, Null)):
            return Form.EXACT
        if isinstance(element, ExpressionClauseList):
            if element.operator in SUMS:
                return self._added(element.clauses, element.operator)
        elif isinstance(element, UnaryExpression):
            if element.operator is operators.neg:
                return self._added([element.element])
            if element.operator is operators.distinct_op:
                return self.form(element.element)
        elif isinstance(element, BinaryExpression):
            return self._binary(element)
        elif isinstance(element, FunctionElement):
            return self._function(name_of(element), list(element.clauses))
        if isinstance(plain_type(element.type), Boolean):
            return Form.EXACT
        return self._function("", element.get_children())

    def _all(self, elements: Iterable[Any]) -> Form:
        return max(map(self.form, elements), default=Form.NONE)

    def _parameter(self, element: Any) -> Form:
        value = element.effective_value
        form = _form_of_type(element.type)
        if isinstance(value, float):
            return Form.DOUBLE
        if isinstance(value, int):
            return Form.EXACT
        if form is Form.EXACT and not isinstance(element.type, Integer):
            # A float is a double to the server, whatever the type says.
            known = isinstance(value, Decimal) and not self._any_value
            return Form.EXACT if known else Form.DOUBLE
        return form

    def _column(self, element: Any) -> Form:
        if not isinstance(element, Column):
            inner = [e for e in element._proxies if e is not element]
            if inner:
                return self._all(inner)
        return _form_of_type(element.type)

    def _added(
        self, elements: Iterable[Any], operator: Any = operators.add
    ) -> Form:
        """Return the form of what arithmetic makes of some values."""
        elements = list(elements)
        forms = [self.form(element) for element in elements]
        if operator in _ADDITIONS and _is_widest_difference(elements):
            forms.append(Form.MIXED)
        found = max(forms)
        if found >= Form.NONE:
            return Form.ROUNDED
        if operator is operators.mul and found < Form.DOUBLE:
            _, places = size_of_product(elements) or (0, 0)
            if places > MOST_PLACES:
                found = max(found, Form.COMPUTED)
        if Form.MIXED in forms and found < Form.DOUBLE:
            return Form.MIXED if found is Form.MIXED else Form.VARYING
        if found is Form.QUOTIENT and len(forms) > 1:
            return Form.COMPUTED
        # What is left of zero has no places.
        mixed = operator is operators.mod and found is Form.EXACT
        return Form.MIXED if mixed else found

    def _binary(self, element: Any) -> Form:
        operator = element.operator
        sides = [element.left, element.right]
        if operator in SUMS:
            return self._added(sides, operator)
        if operator in DIVISIONS:
            found = self._added(sides)
            if found < Form.DOUBLE:
                whole = operator is operators.floordiv
                return Form.EXACT if whole else self._quotient(element.left)
            return found if operator is operators.truediv else Form.ROUNDED
        if isinstance(plain_type(element.type), Boolean):
            return Form.EXACT
        return self._function("", sides)

    def _quotient(self, divided: Any) -> Form:
        """Return the form of what something is divided to."""
        _, places = size_of(divided) or (0, 0)
        fewer = self.form(divided) in (Form.MIXED, Form.VARYING)
        # Four places more are shown, and a quotient has nine at least.
        return Form.VARYING if fewer and places > 5 else Form.QUOTIENT

    def _one_of(self, elements: list[Any]) -> Form:
        """Return the form of what chooses among some values."""
        elements = [e for e in elements if not isinstance(e, Null)]
        found = self._all(elements)
        if found is Form.EXACT:
            places = set(map(places_of, elements))
            alike = len(places) == 1 and None not in places
            return Form.EXACT if alike else Form.MIXED
        if found < Form.DOUBLE and len(elements) > 1:
            return Form.VARYING
        if found is Form.NONE:
            return max(_as_text(self.form(e)) for e in elements)
        return found

    def _function(self, name: str, arguments: Iterable[Any]) -> Form:
        arguments = list(arguments)
        if name in _WHOLE:
            return Form.EXACT
        if name in _DOUBLES:
            return Form.DOUBLE
        if name in CHOOSING:
            return self._one_of(arguments)
        if name == "if":
            return self._one_of(arguments[1:])
        if name in ("abs", "nullif", "max", "min", "sum") and arguments:
            found = self.form(arguments[0])
            return Form.ROUNDED if found is Form.NONE else found
        if name == "mod" and arguments:
            return self._added(arguments, operators.mod)
        found = self._all(arguments)
        if name == "avg":
            return Form.QUOTIENT if found < Form.DOUBLE else found
        if name in ROUNDING and arguments:
            exact = self.form(arguments[0]) < Form.DOUBLE
            return Form.EXACT if exact else Form.ROUNDED
        return _as_text(found)


def _is_widest_difference(elements: list[Any]) -> bool:
    """Tell whether a difference has more places than what it is added to.

    Of numbers that are equal it is a zero without places.
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


def _as_text(form: Form) -> Form:
    """Return the form of a text, or the like, that is made of a number."""
    # A small double has more digits than the type of the text has room for.
    doubles = (Form.DOUBLE, Form.ROUNDED)
    return Form.ROUNDED if form in doubles else Form.NONE


_BLOBS = {
    "boolean": Form.EXACT,
    "decimal": Form.EXACT,
    "float": Form.DOUBLE,
    "id": Form.EXACT,
    "integer": Form.EXACT,
}


def _form_of_type(type_: Any) -> Form:
    type_ = plain_type(type_)
    variants = getattr(type_, "_variant_mapping", {}).values()
    return max([_form_of_one(type_), *map(_form_of_one, variants)])


def _form_of_one(type_: Any) -> Form:
    type_ = plain_type(type_)
    if isinstance(type_, Float):
        whole = isinstance(type_, Double) and scale_of(type_) is None
        return Form.DOUBLE if whole else Form.ROUNDED
    exact = isinstance(type_, (Boolean, Integer, Numeric))
    return Form.EXACT if exact else Form.NONE


def _is_one_or_constant(element: Any) -> bool:
    """Tell whether an expression is a value or, for NULL, a constant.

    A sum of the constant alone can be divided without a remainder, so its
    decimal places make no difference.
    """
    while isinstance(element, (Label, Grouping)):
        element = element.element
    if not isinstance(element, FunctionElement):
        return False
    arguments = list(element.clauses)
    if name_of(element) not in ("coalesce", "ifnull") or len(arguments) != 2:
        return False
    one, other = arguments
    if not isinstance(other, BindParameter) or form_of(one) is not Form.EXACT:
        return False
    places = places_of(other)
    return places is not None and places <= (places_of(one) or 0)


def _stored(element: Any) -> Any:
    """Return the column of a table that an expression is; None for others."""
    while element.__visit_name__ == "column":
        if isinstance(element, Column):
            return element
        inner = [e for e in element._proxies if e is not element]
        if len(inner) != 1:
            return None
        element = inner[0]
        while isinstance(element, (Label, Grouping)):
            element = element.element
    return None


def is_rounded(element: Any) -> bool:
    """Tell whether an expression may be a double that is shown rounded.

    A column of a table is none: it is shown as it is stored.
    """
    return _stored(element) is None and form_of(element) is Form.ROUNDED


def is_single(element: Any) -> bool:
    """Tell whether an expression is a FLOAT column without a scale.

    Its sums are doubles that are shown with all of their digits.
    """
    column = _stored(element)
    if column is None:
        return False
    type_ = plain_type(column.type)
    variants = getattr(type_, "_variant_mapping", {})
    return (
        isinstance(type_, Float) and scale_of(type_) is None and not variants
    )
