"""Column types that hold object ids.

:class:`ShardedId`
    stores the local id; the value in Python is the 64-bit id.  For
    the primary key of an object table, and for foreign keys to a row of
    the same shard.
:class:`ObjectRef`
    stores the full id: a reference to an object on any shard.

A statement that compares a ``ShardedId`` column with a column that stores
full ids is rejected when it is routed, because it would compare local ids
with full ids; write ``full_id(Board.id) == Pin.board_id``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from sqlalchemy import BigInteger, Integer, type_coerce
from sqlalchemy.engine import Dialect
from sqlalchemy.sql import operators
from sqlalchemy.sql.elements import BindParameter, ClauseElement, ColumnElement
from sqlalchemy.sql.operators import ColumnOperators, OperatorType
from sqlalchemy.types import TypeDecorator, TypeEngine

from sqla_shard.exc import (
    InvalidIdError,
    LocalIdsExhaustedError,
    UnsupportedStatementError,
)
from sqla_shard.ids import DEFAULT_LAYOUT, IdLayout
from sqla_shard.types.shard_bound import ComparedId, IdSlot, Prefix, ShardBound

# A server without RETURNING returns the local id as lastrowid, which reaches
# the result processor of the type only.
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
#: ColumnOperators: a variable inside lambda_stmt(), which is iterable as well.
_NOT_A_LIST = (str, bytes, ClauseElement, ColumnOperators)
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
def inserting_on(shard_id: int | None) -> Iterator[None]:
    """Compose the ids of rows inserted inside the block with this shard.

    :param shard_id: None for rows of any shard, whose ids servers compose.
    """
    # A token would be lost by an interrupt right after set().
    before = _inserting.get()
    try:
        _inserting.set(shard_id)
        yield
    finally:
        _inserting.set(before)


class IdType(TypeDecorator[int]):
    """Base of the types whose values are full object ids in Python.

    :ivar routes: whether the id determines the shard of the row itself.
    :ivar whole: whether the column stores the full id.
    :ivar type_id: type id of the objects; None for any type.
    :ivar layout: layout of the ids.
    """

    impl: TypeEngine[Any] | type[TypeEngine[Any]] = BigInteger
    cache_ok: bool | None = True
    type_id: int | None
    layout: IdLayout
    _is_settled: bool
    routes: bool
    whole: bool

    @property
    def python_type(self) -> type[int]:
        """``int``."""
        return int

    def process_literal_param(self, value: Any, dialect: Dialect) -> str:
        """Return the full id for a statement that is printed."""
        return str(value)

    class Comparator(TypeDecorator.Comparator[int]):
        """Compares ids; an ``IN`` list becomes one bind parameter."""

        def operate(
            self, op: OperatorType, *other: Any, **kwargs: Any
        ) -> ColumnElement[Any]:
            """Reject operators that ids do not support, such as arithmetic.

            :raises UnsupportedStatementError: for such an operator.
            :raises InvalidIdError: for an ``IN`` list with other values.
            """
            if op not in COMPARISONS and op not in _ORDERINGS:
                name = getattr(op, "__name__", str(op))
                raise UnsupportedStatementError(
                    f"object ids do not support {name!r}: the column stores "
                    "only a part of the id. Compare ids, or compute in "
                    "Python",
                    construct=name,
                )
            kind: Any = self.type
            if (
                op in (operators.in_op, operators.not_in_op)
                and isinstance(other[0], Iterable)
                and not isinstance(other[0], _NOT_A_LIST)
                and not hasattr(other[0], "__clause_element__")
            ):
                # Accept any iterable, as SQLAlchemy does.  Its compiled cache
                # must not use the statement of a list for the statement of a
                # slot.
                values = list(other[0])
                if kind.routes and not any(
                    isinstance(v, ColumnElement) for v in values
                ):
                    other = (kind.slot_parameter(values), *other[1:])
                else:
                    other = (values, *other[1:])
            return super().operate(op, *other, **kwargs)

    comparator_factory = Comparator

    def adopt(self, layout: IdLayout) -> None:
        """Use the layout of a class, unless the type has one already."""
        # Classes that have the column from a mixin have copies of its type.
        if not self._is_settled:
            self.layout, self._is_settled = layout, True

    def shard_of(self, value: Any, name: str) -> int:
        """Return the shard of an id; check that the column can contain it.

        :param name: name of the column, for the message.
        :raises InvalidIdError: if it is not an id.
        :raises WrongTypeError: if it is an id of another type.
        """
        return self.layout.shard_of(value, self.type_id, name)

    def _checked(self, value: Any) -> Any:
        """Check an id that is bound; None and shard-bound parameters pass."""
        if value is None or isinstance(value, ShardBound):
            return value
        # Drivers write a member of an IntEnum as its name.
        return self.layout.check(value)

    def slot(self, values: Any) -> IdSlot:
        """Return the slot of an ``IN`` list.

        :raises InvalidIdError: if a value is not an id.
        """
        return IdSlot(values, self.type_id, self.layout, whole=self.whole)

    def slot_parameter(self, values: Any) -> BindParameter[Any]:
        """Return the bind parameter of an ``IN`` list."""
        # Pass a value, not a callable: the cached criteria of an eager load
        # would get None from a callable.
        return BindParameter(
            None, self.slot(values)(), expanding=True, unique=True, type_=self
        )


class ShardedId(IdType):
    """The full id in Python, its local part in the table.

    :param type_id: the type of the objects, 1 to 1023.
    :param layout: the layout of their ids; None for that of the object class
        with the column, or for the default layout in other tables.

    A bound value must be an id (:exc:`~sqla_shard.exc.InvalidIdError`); its
    type and shard are checked when the statement is routed.
    """

    cache_ok: bool | None = True
    routes = True
    whole = False

    def __init__(self, type_id: int, layout: IdLayout | None = None) -> None:
        super().__init__()
        self.type_id: int = type_id
        self._is_settled = layout is not None
        self.layout: IdLayout = layout or DEFAULT_LAYOUT

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """Return BIGINT; INTEGER on SQLite, the only type with rowids."""
        if dialect.name == "sqlite" and not self.layout.is_whole:
            return dialect.type_descriptor(Integer())
        # A whole id is never a rowid, which SQLite would give to a row
        # without id.
        return dialect.type_descriptor(BigInteger())

    def bind_processor(self, dialect: Dialect) -> Any:
        """Convert an id to a parameter that is resolved for each shard."""
        check, type_id, layout = self.layout.check, self.type_id, self.layout

        def process(value: Any) -> Any:
            if value is None or isinstance(value, ShardBound):
                return value
            return ComparedId(check(value), type_id, layout)

        return process

    def column_expression(self, column: Any) -> ColumnElement[int]:
        """Let the server compose the full id."""
        # The rows of RETURNING have the type of this expression.
        return type_coerce(full_id(column), self)

    def result_processor(self, dialect: Dialect, coltype: object) -> Any:
        """Return full ids; compose the full id for a lastrowid."""
        layout, type_id = self.layout, self.type_id
        if layout.is_whole:
            return None
        type_bits = type_id << layout.type_shift
        type_shift, max_type = layout.type_shift, layout.max_type_id
        second_shard = 1 << layout.shard_shift

        def process(value: int | None) -> int | None:
            if value is None:
                return None
            try:
                above = value >> type_shift
            except TypeError as error:
                # A UNION has the types of its first SELECT: a text, a Decimal.
                raise InvalidIdError(
                    f"{value!r} is not an object id: each SELECT of a UNION "
                    "must have the same types of columns, in the same order",
                    value=value,
                ) from error
            if above > 0:
                if above & max_type != type_id or (
                    value < second_shard and _inserting.get()
                ):
                    # A local id with too many bits has changed the type, or
                    # it is a lastrowid, which has no shard: the id would be
                    # that of another object.
                    raise LocalIdsExhaustedError(
                        object_id=value, type_id=type_id, bits=layout.local_bits
                    )
                return value
            shard_id = _inserting.get()
            if shard_id is None:
                # select() composes ids on the server.  The local ids of
                # textual SQL must not be mistaken for object ids.
                raise InvalidIdError(
                    f"{value} is a local id, not an object id: in textual "
                    "SQL select pack(shard_id, type_id, 0) + local_id, or "
                    "use select()",
                    value=value,
                )
            return shard_id << layout.shard_shift | type_bits | value

        return process


class ObjectRef(IdType):
    """A reference to an object: its full id is stored.

    :param type_id: the type of the referenced objects; None for any type.
    :param colocated: whether the row is on the shard of the referenced
        object, so that the column is used for routing.
    :param layout: the layout of the ids; None for that of the object class
        with the column, or for the default layout in other tables.
    """

    cache_ok: bool | None = True
    whole = True

    def __init__(
        self,
        type_id: int | None = None,
        *,
        colocated: bool = False,
        layout: IdLayout | None = None,
    ) -> None:
        super().__init__()
        self.type_id = type_id
        self.colocated = colocated
        self._is_settled = layout is not None
        self.layout: IdLayout = layout or DEFAULT_LAYOUT

    @property
    def routes(self) -> bool:  # type: ignore[override]  # read-only here
        """Whether the id determines the shard of the row itself."""
        return self.colocated

    def process_bind_param(self, value: Any, dialect: Dialect) -> Any:
        """Check that the value is an id."""
        return self._checked(value)

    def bind_processor(self, dialect: Dialect) -> Any:
        """Return the check, without two more calls for each value."""
        if type(self).process_bind_param is ObjectRef.process_bind_param:
            return self._checked
        return super().bind_processor(dialect)


def full_id(column: Any) -> ColumnElement[int]:
    """Return the full id of a ``ShardedId`` column as an SQL expression.

    Compare it with columns that store full ids::

        select(Pin).join(Board, full_id(Board.id) == Pin.board_id)

    :param column: a column or attribute of type :class:`ShardedId`.
    :raises InvalidIdError: if the column is of another type.
    """
    kind = getattr(column, "type", None)
    if not isinstance(kind, ShardedId):
        raise InvalidIdError(
            f"full_id() takes a ShardedId column, such as the id of an "
            f"object class; {column} is of type {kind!r}",
            value=column,
        )
    return type_coerce(column, BigInteger()) + BindParameter(
        "sqla_shard_prefix",
        Prefix(kind.type_id, kind.layout),
        type_=BigInteger(),
        unique=True,
    )
