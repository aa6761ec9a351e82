"""Column types of lookup keys, positions in a list, and times."""

from __future__ import annotations

from datetime import datetime, UTC
from typing import Any, ClassVar

from sqlalchemy import CHAR, DateTime, LargeBinary, Numeric
from sqlalchemy.dialects import mysql
from sqlalchemy.engine import Dialect
from sqlalchemy.sql import operators
from sqlalchemy.sql.elements import ColumnElement
from sqlalchemy.sql.operators import OperatorType
from sqlalchemy.types import TypeDecorator, TypeEngine

from sqla_shard.exc import (
    BlobValueError,
    InvalidKeyError,
    InvalidSequenceError,
    UnsupportedStatementError,
)
from sqla_shard.types.shard_bound import ShardBound
from sqla_shard.util.sqlalchemy_helpers import is_mysql

# -- Types whose values have another format than SQLAlchemy gives them.


class Encoded:
    """A type whose values are stored in another format than SQLAlchemy's.

    :ivar label: the field or column as ``Class.field``, for messages.
    :ivar takes_plain: whether a text or number may be in that format already.
    :ivar is_compared: whether equal values are equal texts.
    """

    label = "Class.column"
    takes_plain: bool
    is_compared = True

    def encodes(self, value: Any, *, is_own: bool) -> bool:
        """Return whether to store a value in the format of the type.

        :param is_own: whether it stands for a value of the field, as in
            ``coalesce()``; otherwise it may be any argument of a function.
        """
        raise NotImplementedError

    def refusal(self, construct: str) -> UnsupportedStatementError:
        """Return the error for a comparison of values that have no order."""
        return UnsupportedStatementError(
            f"{construct}: {self.label} is structured JSON, which every "
            "server formats differently. Use the server's JSON functions, "
            "such as func.json_contains(), or compare in Python",
            construct=construct,
        )


class _Whole(Encoded):
    """A type that converts every value, which SQLite would not find."""

    takes_plain = False

    def encodes(self, value: Any, *, is_own: bool) -> bool:
        """Return whether a value is one of the column."""
        return is_own and value is not None


class LookupKey(_Whole, TypeDecorator[str]):
    """Text in Python, its UTF-8 in the table: VARBINARY(255), or BLOB.

    Two keys are equal if their bytes are equal.  In a text column "a" and
    "a ", or "a" and "á", may be equal, depending on the collation.
    """

    impl: TypeEngine[Any] | type[TypeEngine[Any]] = LargeBinary
    cache_ok: bool | None = True

    #: Maximum length of a key in bytes.
    MOST_BYTES: ClassVar[int] = 255

    def __init__(self) -> None:
        super().__init__(self.MOST_BYTES)

    @property
    def python_type(self) -> type[str]:
        """``str``."""
        return str

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """Return VARBINARY(255); BLOB on SQLite."""
        if is_mysql(dialect):
            return dialect.type_descriptor(mysql.VARBINARY(self.MOST_BYTES))
        return dialect.type_descriptor(LargeBinary(self.MOST_BYTES))

    # Do not use process_bind_param(): its result is passed to the driver's
    # Binary(), which rejects shard-bound parameters.
    def bind_processor(self, dialect: Dialect) -> Any:
        """Encode a key."""
        return self._bytes

    def _bytes(self, value: Any) -> Any:
        if value is None or isinstance(value, ShardBound):
            return value
        return self.encoded(value)

    @classmethod
    def encoded(cls, key: object) -> bytes:
        """Return a key as UTF-8.

        :raises InvalidKeyError: if the key is not a str, or too long.
        """
        if not isinstance(key, str):
            raise InvalidKeyError(key=key, reason="it must be a str")
        try:
            encoded = key.encode()
        except UnicodeEncodeError as error:
            raise InvalidKeyError(
                key=key,
                reason="it has a lone surrogate, which UTF-8 cannot encode; "
                "decode the original bytes as UTF-8",
            ) from error
        if len(encoded) > cls.MOST_BYTES:
            raise InvalidKeyError(
                key=key,
                reason=f"it has {len(encoded)} bytes in UTF-8; the maximum is "
                f"{cls.MOST_BYTES}. Use a digest of it as the key",
            )
        return encoded

    def process_result_value(self, value: Any, dialect: Dialect) -> Any:
        """Decode a key."""
        return None if value is None else bytes(value).decode()

    def literal_processor(self, dialect: Dialect) -> Any:
        """Return the bytes for a statement that is printed."""

        def process(value: Any) -> str:
            return f"X'{self.encoded(value).hex()}'"

        return process


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


class Sequence38(_Whole, TypeDecorator[int]):
    """An integer from 0 to ``10**38 - 1``, exact on every server.

    ``Decimal`` arithmetic rounds to 28 digits, and SQLite's NUMERIC to 15:
    therefore it is an ``int`` in Python, DECIMAL(38) on MySQL and MariaDB, and
    text with leading zeros on SQLite, which sorts like the numbers.
    """

    impl: TypeEngine[Any] | type[TypeEngine[Any]] = Numeric
    cache_ok: bool | None = True

    def __init__(self) -> None:
        super().__init__(DIGITS, 0)

    @property
    def python_type(self) -> type[int]:
        """``int``."""
        return int

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """Return DECIMAL(38); CHAR(38) on SQLite, sorted by bytes."""
        if dialect.name == "sqlite":
            return dialect.type_descriptor(CHAR(DIGITS))
        return dialect.type_descriptor(Numeric(DIGITS, 0))

    def process_bind_param(self, value: int | None, dialect: Dialect) -> Any:
        """Check a position.

        :raises InvalidSequenceError: if the position is not an int, or out of
            range.
        """
        if value is None:
            return None
        if type(value) is not int or not 0 <= value <= MAX_SEQUENCE:
            raise InvalidSequenceError(value=value)
        return f"{value:0{DIGITS}d}" if dialect.name == "sqlite" else value

    def process_result_value(self, value: Any, dialect: Dialect) -> Any:
        """Return an int; drivers return a Decimal or a str."""
        return None if value is None else int(value)

    def process_literal_param(self, value: Any, dialect: Dialect) -> str:
        """Return the position for a statement that is printed."""
        # The underlying type adds the quotes that SQLite needs.
        return str(self.process_bind_param(value, dialect))

    class Comparator(TypeDecorator.Comparator[int]):
        """Compares positions."""

        def operate(
            self, op: OperatorType, *other: Any, **kwargs: Any
        ) -> ColumnElement[Any]:
            """Reject arithmetic.

            :raises UnsupportedStatementError: for an arithmetic operator.
            """
            if op in _ARITHMETIC:
                name = getattr(op, "__name__", str(op))
                raise UnsupportedStatementError(
                    f"{name!r} of a sequence is not exact on every server; "
                    "compute in Python, where it is an int",
                    construct=name,
                )
            return super().operate(op, *other, **kwargs)

        reverse_operate = operate

    comparator_factory = Comparator


class UTCTimestamp(Encoded, TypeDecorator[datetime]):
    """A time with microseconds; an aware datetime in UTC in Python.

    TIMESTAMP on MySQL and MariaDB, whose connections use UTC; its range
    ends in 2038 (2106 from MariaDB 11.5).  A naive datetime is rejected,
    because its time zone is unknown.
    """

    impl: TypeEngine[Any] | type[TypeEngine[Any]] = DateTime
    cache_ok: bool | None = True
    takes_plain = True

    def encodes(self, value: Any, *, is_own: bool) -> bool:
        """Return whether a value beside the column is a time."""
        return isinstance(value, datetime) and (is_own or value.tzinfo is not None)

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """Return TIMESTAMP(6), or text on SQLite."""
        if is_mysql(dialect):
            return dialect.type_descriptor(mysql.TIMESTAMP(fsp=6))
        return dialect.type_descriptor(DateTime())

    def process_bind_param(self, value: Any, dialect: Dialect) -> Any:
        """Convert to UTC.

        :raises BlobValueError: for a naive datetime, or one outside the years 1 to
            9999 in UTC.
        """
        if value is None:
            return None
        if not isinstance(value, datetime) or value.tzinfo is None:
            raise BlobValueError(
                f"{value!r} is not a datetime with a time zone; use "
                "datetime.now(timezone.utc)",
                field="timestamp",
                value=value,
            )
        try:
            return value.astimezone(UTC).replace(tzinfo=None)
        except OverflowError:
            raise BlobValueError(
                f"{value!r} is outside the years 1 to 9999 in UTC",
                field="timestamp",
                value=value,
            ) from None

    def result_processor(self, dialect: Dialect, coltype: object) -> Any:
        """Return aware datetimes; the server's time zone is UTC."""
        return _in_utc


def _in_utc(value: datetime | str | None) -> datetime | None:
    if isinstance(value, str):
        # SQLite returns text, and servers do from a function of a time and a
        # parameter.
        value = datetime.fromisoformat(value)
    return None if value is None else value.replace(tzinfo=UTC)
