"""The SQL types of blob fields, by what they hold.

A result has the type of the field.  Lists, dicts and dataclasses are JSON
text to the server, whose spelling it does not keep, so that they can be
selected and tested for NULL, and not compared.

On SQLite, which computes with 64 bits, decimals are floats, an integer of
more than 64 bits is refused, and text ends at a NUL character.
"""

from __future__ import annotations

import json
import math
from decimal import Decimal
from typing import Any

from sqlalchemy import BigInteger
from sqlalchemy import Boolean
from sqlalchemy import Float
from sqlalchemy import Numeric
from sqlalchemy import String
from sqlalchemy.engine import Dialect
from sqlalchemy.sql import operators
from sqlalchemy.sql.elements import ColumnElement
from sqlalchemy.sql.elements import Null
from sqlalchemy.sql.operators import OperatorType
from sqlalchemy.types import TypeDecorator
from sqlalchemy.types import TypeEngine

from sqla_shard.exc import BlobValueError
from sqla_shard.exc import UnsupportedStatementError
from sqla_shard.orm.kinds import Codec
from sqla_shard.orm.kinds import Kind
from sqla_shard.types.blob import decode_json
from sqla_shard.types.places import shown

__all__ = ["Coded", "ExactInteger", "ExactNumber", "Structure", "sql_type_of"]

_TOO_BIG = 1 << 63
_MOST_DECIMAL = 10**65


def sql_type_of(codec: Codec) -> tuple[str, TypeEngine[Any]]:
    """Return how the server shows a field, and its SQL type."""
    plain = _PLAIN.get(codec.kind)
    if plain is not None:
        return plain
    if codec.kind is Kind.JSON:
        return "json", Structure(codec)
    return _FORMS[codec.stored_kind], Coded(codec)


class Coded(TypeDecorator[Any]):
    """A field whose JSON value is a code of its Python value."""

    impl: TypeEngine[Any] | type[TypeEngine[Any]] = String
    cache_ok = True

    def __init__(self, codec: Codec) -> None:
        super().__init__()
        self.codec = codec
        # What codes are sorted and computed as; of an enum they may be
        # numbers.
        plain = _PLAIN.get(codec.stored_kind)
        if plain is not None:
            self.impl = plain[1]

    @property
    def python_type(self) -> type[Any]:
        """The type of the field's values."""
        return self.codec.python_type

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """Return a number's type for codes that are numbers."""
        kind = _PLAIN.get(self.codec.stored_kind)
        return dialect.type_descriptor(String() if kind is None else kind[1])

    def process_bind_param(self, value: Any, dialect: Dialect) -> Any:
        """Return the code.

        :raises BlobValueError: when the field cannot hold the value.
        """
        if value is None:
            return None
        code = self.codec.encode(value)
        return json.dumps(code, ensure_ascii=False) if self._is_json else code

    def process_result_value(self, value: Any, dialect: Dialect) -> Any:
        """Return the value of a code."""
        if value is None:
            return None
        return self.codec.decode(
            decode_json(value) if self._is_json else value
        )

    @property
    def _is_json(self) -> bool:
        return self.codec.stored_kind is Kind.JSON


class Structure(Coded):
    """A field that holds a list, a dict, a dataclass or free JSON."""

    cache_ok = True

    class Comparator(TypeDecorator.Comparator[Any]):
        """Tells whether there is a value, nothing else."""

        def operate(
            self, op: OperatorType, *other: Any, **kwargs: Any
        ) -> ColumnElement[Any]:
            """Refuse what would compare the spelling of JSON.

            :raises UnsupportedStatementError: for every operator but
                ``is_(None)`` and ``is_not(None)``.
            """
            kind: Any = self.type
            if op not in _ABSENCE or not (
                other[0] is None or isinstance(other[0], Null)
            ):
                name = getattr(op, "__name__", str(op))
                raise UnsupportedStatementError(
                    f"{name}: {kind.codec.field} is JSON with a structure, "
                    "which servers spell each in their own way. Use the "
                    "server's JSON functions, such as "
                    "func.json_contains(), or compare in Python",
                    construct=name,
                )
            return super().operate(op, *other, **kwargs)

    comparator_factory = Comparator


_ABSENCE = frozenset(
    {operators.is_, operators.is_not, operators.eq, operators.ne}
)


class FiniteFloat(Float[Any]):
    """A double; SQLite makes infinity of a number that is too large."""

    def result_processor(self, dialect: Dialect, coltype: object) -> Any:
        """Refuse infinity, which is no number of JSON."""
        if dialect.name != "sqlite":
            return super().result_processor(dialect, coltype)  # type: ignore[no-untyped-call]  # SQLAlchemy's
        return lambda value: None if value is None else _as_float(value)


def _as_float(value: Any) -> float:
    try:
        number = float(value)
    except (OverflowError, ValueError):
        number = math.inf
    if not math.isfinite(number):
        raise BlobValueError(
            f"{shown(value)} is not a finite float", field="float", value=value
        )
    return number


class ExactInteger(BigInteger):
    """An integer of any size."""

    def bind_processor(self, dialect: Dialect) -> Any:
        """Refuse what the server cannot compare."""
        return _fits_sqlite if dialect.name == "sqlite" else _fits_mysql

    def result_processor(self, dialect: Dialect, coltype: object) -> Any:
        """Return int where the server computes with decimals."""
        return _as_integer


def _fits_sqlite(value: Any) -> Any:
    if isinstance(value, int) and not -_TOO_BIG <= value < _TOO_BIG:
        raise BlobValueError(
            f"{shown(value)} has more than 64 bits, which SQLite cannot "
            "compare; "
            "MySQL and MariaDB can",
            field="integer",
            value=value,
        )
    return value


def _fits_mysql(value: Any) -> Any:
    if isinstance(value, int) and abs(value) >= _MOST_DECIMAL:
        raise BlobValueError(
            f"{shown(value)} has more than 65 digits, which the server cannot "
            "compare",
            field="integer",
            value=value,
        )
    return value


def _as_integer(value: Any) -> Any:
    if isinstance(value, Decimal):
        whole = int(value)
        return whole if whole == value else value
    if isinstance(value, float) and abs(value) >= _TOO_BIG:
        raise BlobValueError(
            f"SQLite shows an integer of more than 64 bits as {value!r}; "
            "load the object instead, whose field is exact",
            field="integer",
            value=value,
        )
    return value


class ExactNumber(TypeDecorator[Any]):
    """A decimal field as a number, so that it compares and sorts as one.

    MySQL and MariaDB keep 35 digits before and 30 after the point.  SQLite
    has no exact decimals: there it is a float.
    """

    impl = Numeric(65, 30)
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """Return DECIMAL, or a float on SQLite."""
        if dialect.name == "sqlite":
            return dialect.type_descriptor(Float())
        return dialect.type_descriptor(Numeric(65, 30))

    def process_bind_param(self, value: Any, dialect: Dialect) -> Any:
        """Return a float for SQLite.

        :raises BlobValueError: for what no server takes for a number.
        """
        if dialect.name == "sqlite":
            return None if value is None else _as_float(value)
        if isinstance(value, (int, float, Decimal)):
            _as_float(value)
        return value

    def process_result_value(self, value: Any, dialect: Dialect) -> Any:
        """Return a Decimal without the zeros that fill up the scale."""
        if isinstance(value, float):
            return Decimal(repr(_as_float(value)))
        if not isinstance(value, Decimal):
            return value
        text = format(value, "f")
        return Decimal(text.rstrip("0").rstrip(".") if "." in text else text)


_PLAIN: dict[Kind, tuple[str, TypeEngine[Any]]] = {
    Kind.TEXT: ("text", String()),
    Kind.INTEGER: ("integer", ExactInteger()),
    Kind.FLOAT: ("float", FiniteFloat(53)),
    Kind.BOOLEAN: ("boolean", Boolean()),
    Kind.DECIMAL: ("decimal", ExactNumber()),
}
_FORMS = {
    Kind.TEXT: "text",
    Kind.INTEGER: "integer",
    Kind.FLOAT: "float",
    Kind.BOOLEAN: "boolean",
    Kind.DATETIME: "text",
    Kind.DATE: "text",
    Kind.UUID: "text",
    Kind.JSON: "json",
}
