"""The column type of positions in an ordered list.

A position has up to 38 digits and must stay exact: ``Decimal`` arithmetic
rounds to 28 digits, and SQLite's NUMERIC to 15.  In Python it is an ``int``;
on MySQL and MariaDB DECIMAL(38); on SQLite text with leading zeros, whose
order is that of the numbers.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import CHAR
from sqlalchemy import Numeric
from sqlalchemy.engine import Dialect
from sqlalchemy.sql import operators
from sqlalchemy.sql.elements import ColumnElement
from sqlalchemy.sql.operators import OperatorType
from sqlalchemy.types import TypeDecorator
from sqlalchemy.types import TypeEngine

from sqla_shard.exc import InvalidSequenceError
from sqla_shard.exc import UnsupportedStatementError

__all__ = ["MAX_SEQUENCE", "Sequence38"]

DIGITS = 38
MAX_SEQUENCE: int = 10**DIGITS - 1

_ARITHMETIC = frozenset(
    {
        operators.add,
        operators.sub,
        operators.mul,
        operators.truediv,
        operators.floordiv,
        operators.mod,
        operators.neg,
    }
)


class Sequence38(TypeDecorator[int]):
    """A whole number from 0 to ``10**38 - 1``, exact everywhere."""

    impl = Numeric
    cache_ok = True

    def __init__(self) -> None:
        super().__init__(DIGITS, 0)

    @property
    def python_type(self) -> type[int]:
        """Positions are int."""
        return int

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """Return DECIMAL(38); on SQLite CHAR(38), in binary order."""
        if dialect.name == "sqlite":
            return dialect.type_descriptor(CHAR(DIGITS))
        return dialect.type_descriptor(Numeric(DIGITS, 0))

    def process_bind_param(self, value: int | None, dialect: Dialect) -> Any:
        """Check a position.

        :raises InvalidSequenceError: when it is none.
        """
        if value is None:
            return None
        if type(value) is not int or not 0 <= value <= MAX_SEQUENCE:
            raise InvalidSequenceError(value=value)
        return f"{value:0{DIGITS}d}" if dialect.name == "sqlite" else value

    def process_result_value(self, value: Any, dialect: Dialect) -> Any:
        """Return an int, exact also where the driver has a Decimal."""
        return None if value is None else int(value)

    def process_literal_param(self, value: Any, dialect: Dialect) -> str:
        """Show the position where a statement is printed."""
        # The type underneath adds the quotes that SQLite needs.
        return str(self.process_bind_param(value, dialect))

    class Comparator(TypeDecorator.Comparator[int]):
        """Compares positions."""

        def operate(
            self, op: OperatorType, *other: Any, **kwargs: Any
        ) -> ColumnElement[Any]:
            """Refuse arithmetic.

            :raises UnsupportedStatementError: for it.
            """
            if op in _ARITHMETIC:
                raise UnsupportedStatementError(
                    f"{getattr(op, '__name__', op)!r} of a sequence is not "
                    "exact on every server; compute in Python, where it is "
                    "an int",
                    construct=getattr(op, "__name__", str(op)),
                )
            return super().operate(op, *other, **kwargs)

        reverse_operate = operate

    comparator_factory = Comparator
