"""Vectors, such as the embeddings of texts and pictures."""

from __future__ import annotations

import math
import operator
import struct
from collections.abc import Callable, Mapping, Set
from typing import Any

from sqlalchemy import BindParameter, Double, func, literal, Null, type_coerce
from sqlalchemy.dialects.mysql import base as mysql
from sqlalchemy.dialects.sqlite import base as sqlite
from sqlalchemy.engine import Dialect
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql import operators
from sqlalchemy.sql.elements import ColumnElement, SQLCoreOperations
from sqlalchemy.sql.functions import GenericFunction
from sqlalchemy.types import NullType, UserDefinedType

from sqla_shard.exc import BlobValueError, UnsupportedStatementError
from sqla_shard.exc.base import shown

#: What MySQL compares with a bound vector as text only.
_EQUAL = (operators.eq, operators.ne)
_DISTINCT = (operators.is_distinct_from, operators.is_not_distinct_from)
#: What compares no bound vector.
_UNBOUND = (operators.is_, operators.is_not, operators.distinct_op)


class _Comparator(UserDefinedType.Comparator[tuple[float, ...]]):
    """The operators of a vector: whether it is equal, or NULL."""

    def operate(self, op: Any, *other: Any, **kwargs: Any) -> Any:
        is_none = bool(other) and (other[0] is None or isinstance(other[0], Null))
        if op in _UNBOUND or (op in _EQUAL and is_none):
            return super().operate(op, *other, **kwargs)
        if op in (*_EQUAL, *_DISTINCT):
            # hex() of NULL is an empty text on SQLite.
            both = self.expr, _bound(self.expr, other[0])
            return op(*(func.nullif(func.hex(one), "") for one in both))
        name = getattr(op, "__name__", op)
        raise UnsupportedStatementError(
            f"{name}: a vector has no such operator. Order by Vector.euclidean() or "
            "Vector.cosine(), compare with == and !=, and join several with or_()",
            construct=str(name),
        )


class Vector(UserDefinedType[tuple[float, ...]]):
    """Numbers of single precision; a tuple in Python.

    VECTOR on MySQL 9 and on MariaDB 11.7 and later, bytes on SQLite.

    :param dimensions: how many numbers each vector has.
    :raises ValueError: if it is no number of 1 or more.
    """

    cache_ok: bool | None = True
    comparator_factory: Any = _Comparator

    def __init__(self, dimensions: int) -> None:
        if type(dimensions) is not int or dimensions < 1:
            raise ValueError(f"Vector({dimensions!r}): give a number of dimensions")
        self.dimensions = dimensions

    @staticmethod
    def euclidean(column: Any, vector: Any) -> ColumnElement[float]:
        """Return the length of the difference of two vectors.

        :param column: a column of this type.
        :param vector: numbers, or another column.
        """
        return func.vec_distance_euclidean(column, _bound(column, vector))

    @staticmethod
    def cosine(column: Any, vector: Any) -> ColumnElement[float]:
        """Return 1 less the cosine of the angle between two vectors: 0 to 2.

        :param column: a column of this type.
        :param vector: numbers, or another column.
        """
        return func.vec_distance_cosine(column, _bound(column, vector))

    def get_col_spec(self, **kw: Any) -> str:
        """Return the type in DDL."""
        return f"VECTOR({self.dimensions})"

    # PyMySQL takes the VECTOR of MySQL for a text.
    def column_expression(self, colexpr: ColumnElement[Any]) -> ColumnElement[Any]:
        """Return what a SELECT reads."""
        return func.hex(colexpr, type_=colexpr.type)

    def bind_processor(self, dialect: Dialect) -> Callable[[Any], Any]:
        """Return a function that checks and encodes a vector."""
        binary = dialect.loaded_dbapi.Binary
        return lambda value: None if value is None else binary(self._encoded(value))

    def _encoded(self, value: Any) -> bytes:
        # The numbers of bytes, and the order of a set, would be taken.
        if not isinstance(value, bytes | bytearray | Mapping | Set):
            try:
                numbers = tuple(value)
                encoded = struct.pack(f"<{self.dimensions}f", *numbers)
                if all(map(math.isfinite, numbers)):
                    return encoded
            except (struct.error, OverflowError, TypeError):
                pass
        raise self._refusal(value)

    def _refusal(self, value: Any, remedy: str = "") -> BlobValueError:
        return BlobValueError(
            f"{shown(value)} is not a vector of {self.dimensions} finite numbers of "
            f"single precision{remedy}",
            field="vector",
            value=value,
        )

    def compare_values(self, x: Any, y: Any) -> bool:
        """Return whether two values are stored as the same numbers."""
        # A generator would be read here, and is empty when it is stored.
        if hasattr(x, "__len__") and hasattr(y, "__len__"):
            try:
                return self._encoded(x) == self._encoded(y)
            except BlobValueError:
                return False
        return x is y

    def result_processor(
        self, dialect: Dialect, coltype: object
    ) -> Callable[[Any], tuple[float, ...] | None]:
        """Return a function that decodes a vector."""

        def decoded(value: Any) -> tuple[float, ...] | None:
            # hex() of NULL is an empty text on SQLite.
            if not value:
                return None
            numbers = _decoded(bytes.fromhex(value))
            if len(numbers) == self.dimensions:
                return numbers
            raise self._refusal(
                numbers, ", and is stored: give Vector() the dimensions of the column"
            )

        return decoded


def _bound(column: Any, vector: Any) -> Any:
    if isinstance(vector, BindParameter) and isinstance(vector.type, NullType):
        return type_coerce(vector, column.type)
    is_sql = isinstance(vector, SQLCoreOperations)
    return vector if is_sql else literal(vector, column.type)


# SQLAlchemy cannot read a table with a type of a length that it does not know.
mysql.ischema_names.setdefault("vector", Vector)
sqlite.ischema_names.setdefault("VECTOR", Vector)


class _Distance(GenericFunction[float]):
    type = Double()
    inherit_cache: bool = True


class _Euclidean(_Distance):
    name = identifier = "vec_distance_euclidean"
    inherit_cache: bool = True


class _Cosine(_Distance):
    name = identifier = "vec_distance_cosine"
    inherit_cache: bool = True


@compiles(_Distance, "mysql")
def _of_mysql(element: _Distance, compiler: Any, **kw: Any) -> str:
    dialect = compiler.dialect
    # Before its first connection a dialect does not know.
    if dialect.server_version_info and not dialect.is_mariadb:
        # The server would look for a stored function.
        raise UnsupportedStatementError(
            f"{element.name}(): MySQL has no distance of vectors. Use MariaDB 11.7 "
            "or later; or read the vectors of one owner, and compare in Python",
            construct=f"{element.name}()",
        )
    text: str = compiler.visit_function(element, **kw)
    return text


def _decoded(data: bytes) -> tuple[float, ...]:
    return struct.unpack(f"<{len(data) // 4}f", data)


def _cosine(one: tuple[float, ...], other: tuple[float, ...]) -> float | None:
    size = math.hypot(*one) * math.hypot(*other)
    return 1 - sum(map(operator.mul, one, other)) / size if size else None


def _of_stored(distance: Callable[..., float | None]) -> Callable[..., float | None]:
    """Return a distance of stored vectors; None for NULL and other lengths."""

    def distance_of(one: bytes | None, other: bytes | None) -> float | None:
        if one is None or other is None or len(one) != len(other):
            return None
        return distance(_decoded(one), _decoded(other))

    return distance_of


#: The functions of MariaDB, for SQLite.
DISTANCES = {
    "vec_distance_euclidean": _of_stored(math.dist),
    "vec_distance_cosine": _of_stored(_cosine),
}
