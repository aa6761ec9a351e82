"""The SQL types of blob fields, by what they hold."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

from sqlalchemy import BigInteger
from sqlalchemy import Boolean
from sqlalchemy import Float
from sqlalchemy import Numeric
from sqlalchemy import String
from sqlalchemy.engine import Dialect
from sqlalchemy.types import TypeDecorator
from sqlalchemy.types import TypeEngine

from sqla_shard.orm.kinds import Codec
from sqla_shard.orm.kinds import Kind

__all__ = ["Coded", "ExactNumber", "sql_type_of"]


def sql_type_of(codec: Codec) -> tuple[str, TypeEngine[Any]]:
    """Return how the server shows a field, and its SQL type."""
    plain = _PLAIN.get(codec.kind)
    if plain is not None:
        return plain
    return _FORMS[codec.stored_kind], Coded(codec)


class Coded(TypeDecorator[Any]):
    """A field whose JSON value is a code of its Python value."""

    impl = String
    cache_ok = True

    def __init__(self, codec: Codec) -> None:
        super().__init__()
        self.codec = codec

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """Return a number's type for codes that are numbers."""
        kind = _PLAIN.get(self.codec.stored_kind)
        return dialect.type_descriptor(String() if kind is None else kind[1])

    def process_bind_param(self, value: Any, dialect: Dialect) -> Any:
        """Return the code.

        :raises BlobValueError: when the field cannot hold the value.
        """
        return None if value is None else self.codec.encode(value)

    def process_result_value(self, value: Any, dialect: Dialect) -> Any:
        """Return the value of a code."""
        if value is None:
            return None
        if self.codec.kind is Kind.JSON:
            value = json.loads(value)
            if value is None:
                return None
        return self.codec.decode(value)


class ExactNumber(TypeDecorator[Any]):
    """A decimal field as a number, so that it compares and sorts as one.

    SQLite has no exact decimals: there it is a float while it is compared.
    """

    impl = Numeric(65, 30)
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """Return DECIMAL, or a float on SQLite."""
        if dialect.name == "sqlite":
            return dialect.type_descriptor(Float())
        return dialect.type_descriptor(Numeric(65, 30))

    def process_bind_param(self, value: Any, dialect: Dialect) -> Any:
        """Return a float for SQLite."""
        if value is None or dialect.name != "sqlite":
            return value
        return float(value)

    def process_result_value(self, value: Any, dialect: Dialect) -> Any:
        """Return a Decimal."""
        return Decimal(repr(value)) if isinstance(value, float) else value


_PLAIN: dict[Kind, tuple[str, TypeEngine[Any]]] = {
    Kind.TEXT: ("text", String()),
    Kind.INTEGER: ("integer", BigInteger()),
    Kind.FLOAT: ("float", Float(53)),
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
