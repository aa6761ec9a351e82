"""Column types that hold object ids.

:class:`ShardedId`
    the 36-bit local id is stored, the 64-bit id is what Python sees.  For
    the primary key of an object table, and for foreign keys to a row of
    the same shard.
:class:`ObjectRef`
    the whole id is stored: a reference to an object on any shard.

Comparing a ``ShardedId`` column with a column that stores whole ids would
compare unlike numbers, so such a statement is refused when it is routed;
write ``full_id(Board.id) == Pin.board_id`` instead.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from sqlalchemy import BigInteger
from sqlalchemy import Integer
from sqlalchemy import type_coerce
from sqlalchemy.engine import Dialect
from sqlalchemy.sql import operators
from sqlalchemy.sql.elements import BindParameter
from sqlalchemy.sql.elements import ClauseElement
from sqlalchemy.sql.elements import ColumnElement
from sqlalchemy.sql.operators import ColumnOperators
from sqlalchemy.sql.operators import OperatorType
from sqlalchemy.types import TypeDecorator
from sqlalchemy.types import TypeEngine

from sqla_shard.exc import InvalidIdError
from sqla_shard.exc import UnsupportedStatementError
from sqla_shard.ids import MAX_LOCAL_ID
from sqla_shard.ids import SHARD_SHIFT
from sqla_shard.ids import TYPE_SHIFT
from sqla_shard.ids import unpack
from sqla_shard.types.binds import Address
from sqla_shard.types.binds import IdSlot
from sqla_shard.types.binds import Prefix
from sqla_shard.types.binds import ShardBound

__all__ = [
    "COMPARISONS",
    "IdType",
    "ObjectRef",
    "ShardedId",
    "full_id",
    "inserting_on",
]

# A server without RETURNING answers an INSERT with the bare local id in
# lastrowid, which passes through the result processor of the type alone.
_inserting: ContextVar[int | None] = ContextVar("sqla_shard", default=None)

#: Operators that compare ids.
COMPARISONS = frozenset(
    {
        operators.eq,
        operators.ne,
        operators.lt,
        operators.le,
        operators.gt,
        operators.ge,
        operators.in_op,
        operators.not_in_op,
        operators.is_,
        operators.is_not,
        operators.is_distinct_from,
        operators.is_not_distinct_from,
        operators.between_op,
        operators.not_between_op,
    }
)
#: The last is a variable inside lambda_stmt(), which is iterable, too.
_NO_LIST = (str, bytes, ClauseElement, ColumnOperators)
_ORDERINGS = frozenset(
    {
        operators.asc_op,
        operators.desc_op,
        operators.nulls_first_op,
        operators.nulls_last_op,
        operators.comma_op,
        operators.distinct_op,
    }
)


@contextmanager
def inserting_on(shard_id: int) -> Iterator[None]:
    """Compose the ids of rows inserted inside the block with this shard."""
    token = _inserting.set(shard_id)
    try:
        yield
    finally:
        _inserting.reset(token)


class IdType(TypeDecorator[int]):
    """Base of the types whose values are whole object ids in Python.

    ``routes`` tells whether the id in such a column names the shard that
    the row itself is on; ``whole`` whether the column stores the whole id;
    ``type_id`` is None where any type may stand.
    """

    impl = BigInteger
    cache_ok = True
    type_id: int | None
    routes: bool
    whole: bool

    @property
    def python_type(self) -> type[int]:
        """Ids are int."""
        return int

    def process_literal_param(self, value: Any, dialect: Dialect) -> str:
        """Show the whole id where a statement is printed."""
        return str(value)

    class Comparator(TypeDecorator.Comparator[int]):
        """Compares ids; an ``IN`` list becomes one slot per statement."""

        def operate(
            self, op: OperatorType, *other: Any, **kwargs: Any
        ) -> ColumnElement[Any]:
            """Refuse what has no meaning for ids, such as arithmetic.

            :raises UnsupportedStatementError: for such an operator.
            :raises InvalidIdError: for a list that holds other than ids.
            """
            if op not in COMPARISONS and op not in _ORDERINGS:
                raise UnsupportedStatementError(
                    f"{getattr(op, '__name__', op)!r} has no meaning for "
                    "object ids, which are addresses: the table holds only "
                    "a part of them. Compare ids, or compute in Python",
                    construct=getattr(op, "__name__", str(op)),
                )
            kind: Any = self.type
            if (
                op in (operators.in_op, operators.not_in_op)
                and isinstance(other[0], Iterable)
                and not isinstance(other[0], _NO_LIST)
                and not hasattr(other[0], "__clause_element__")
            ):
                # Every iterable, of which SQLAlchemy takes any: it caches a
                # list as a value and a slot as one statement, and would use
                # the one for the other.
                values = list(other[0])
                if kind.routes and not any(
                    isinstance(v, ColumnElement) for v in values
                ):
                    other = (kind.slot_parameter(values), *other[1:])
                else:
                    other = (values, *other[1:])
            return super().operate(op, *other, **kwargs)

    comparator_factory = Comparator

    def slot(self, values: Any) -> IdSlot:
        """Return the slot of an ``IN`` list.

        :raises InvalidIdError: when a value is not an id.
        """
        return IdSlot(values, self.type_id, whole=self.whole)

    def slot_parameter(self, values: Any) -> BindParameter[Any]:
        """Return the one parameter that stands for an ``IN`` list."""
        # As its value: with a callable, the criteria of an eager load that
        # SQLAlchemy has in its cache would get None.
        return BindParameter(
            None,
            self.slot(values)(),
            expanding=True,
            unique=True,
            type_=self,
        )


def _check(value: Any) -> Any:
    """Return an id that is bound; None, and what is resolved later, pass."""
    if value is None or isinstance(value, ShardBound):
        return value
    unpack(value)
    # Drivers write a member of an enumeration as its name.
    return int(value)


class ShardedId(IdType):
    """A whole id in Python, its local part in the table.

    :param type_id: the type of the objects, 1 to 1023.

    A value bound to such a column is checked to be an id
    (:exc:`~sqla_shard.exc.InvalidIdError`); that it is of the right type
    and shard is checked where a statement is routed.
    """

    cache_ok = True
    routes = True
    whole = False

    def __init__(self, type_id: int) -> None:
        super().__init__()
        self.type_id: int = type_id

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """Return BIGINT; on SQLite INTEGER, which alone auto-increments."""
        if dialect.name == "sqlite":
            return dialect.type_descriptor(Integer())
        return dialect.type_descriptor(BigInteger())

    def bind_processor(self, dialect: Dialect) -> Any:
        """Turn an id into an address that each shard resolves."""
        type_id = self.type_id

        def process(value: Any) -> Any:
            value = _check(value)
            if value is None or isinstance(value, ShardBound):
                return value
            return Address(value, type_id)

        return process

    def column_expression(self, column: Any) -> ColumnElement[int]:
        """Let the server compose the whole id."""
        return full_id(column)

    def result_processor(self, dialect: Dialect, coltype: object) -> Any:
        """Pass composed ids; compose those of lastrowid."""
        type_bits = self.type_id << TYPE_SHIFT

        def process(value: int | None) -> int | None:
            if value is None or value > MAX_LOCAL_ID:
                return value
            shard_id = _inserting.get()
            if shard_id is None:
                # select() composes ids on the server; textual SQL cannot,
                # and its local ids would be taken for ids.
                raise InvalidIdError(
                    f"{value} is a local id, not an object id: textual SQL "
                    "must select pack(shard_id, type_id, 0) + local_id, or "
                    "be written with select()",
                    value=value,
                )
            return shard_id << SHARD_SHIFT | type_bits | value

        return process


class ObjectRef(IdType):
    """A whole object id, stored as it is.

    :param type_id: the type of the objects referred to; None for any.
    :param colocated: True where the row lives on the shard of the object
        that it refers to, so that the reference routes.
    """

    cache_ok = True
    whole = True

    def __init__(
        self, type_id: int | None = None, *, colocated: bool = False
    ) -> None:
        super().__init__()
        self.type_id = type_id
        self.colocated = colocated

    @property
    def routes(self) -> bool:  # type: ignore[override]  # read-only here
        """Whether the reference tells the row's own shard."""
        return self.colocated

    def process_bind_param(self, value: Any, dialect: Dialect) -> Any:
        """Check that the value is an id."""
        return _check(value)


def full_id(column: Any) -> ColumnElement[int]:
    """Return the whole id of a ``ShardedId`` column as an expression.

    Compare it with columns that store whole ids::

        select(Pin).join(Board, full_id(Board.id) == Pin.board_id)

    :param column: a column or attribute of type :class:`ShardedId`.
    :raises InvalidIdError: when it is of another type.
    """
    kind = getattr(column, "type", None)
    if not isinstance(kind, ShardedId):
        raise InvalidIdError(
            f"{column} is of type {kind!r}; full_id() takes a ShardedId "
            "column, such as the id of an object class",
            value=column,
        )
    return type_coerce(column, BigInteger()) + BindParameter(
        "sqla_shard_prefix",
        Prefix(kind.type_id),
        type_=BigInteger(),
        unique=True,
    )
