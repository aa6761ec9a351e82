"""The keys of lookups: text that is compared byte by byte."""

from __future__ import annotations

from typing import Any
from typing import ClassVar

from sqlalchemy import LargeBinary
from sqlalchemy.dialects import mysql
from sqlalchemy.engine import Dialect
from sqlalchemy.types import TypeDecorator
from sqlalchemy.types import TypeEngine

from sqla_shard.exc import InvalidKeyError
from sqla_shard.types.binds import ShardBound

__all__ = ["LookupKey"]


class LookupKey(TypeDecorator[str]):
    """Text in Python, its UTF-8 in the table: VARBINARY(255), or BLOB.

    Two keys are equal where their bytes are.  A text column would take "a"
    and "a " for one on some servers, or "a" and "á".
    """

    impl = LargeBinary
    cache_ok = True

    #: Bytes of the longest key.
    MOST_BYTES: ClassVar[int] = 255

    @property
    def python_type(self) -> type[str]:
        """Keys are str."""
        return str

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """Return VARBINARY(255); on SQLite BLOB."""
        if dialect.name in ("mysql", "mariadb"):
            return dialect.type_descriptor(mysql.VARBINARY(self.MOST_BYTES))
        return dialect.type_descriptor(LargeBinary(self.MOST_BYTES))

    # Not process_bind_param(): what it returns goes on to the driver's
    # Binary(), which takes no value that is resolved later.
    def bind_processor(self, dialect: Dialect) -> Any:
        """Turn a key into bytes."""
        return self._bytes

    def _bytes(self, value: Any) -> Any:
        if value is None or isinstance(value, ShardBound):
            return value
        return self.encoded(value)

    @classmethod
    def encoded(cls, key: object) -> bytes:
        """Return the bytes of a key.

        :raises InvalidKeyError: when it is not text, or too long.
        """
        if not isinstance(key, str):
            raise InvalidKeyError(key=key, reason="it is not text")
        try:
            found = key.encode()
        except UnicodeEncodeError as error:
            raise InvalidKeyError(
                key=key,
                reason="it holds half of a surrogate pair, which is no "
                "character; decode what it came from as UTF-8",
            ) from error
        if len(found) > cls.MOST_BYTES:
            raise InvalidKeyError(
                key=key,
                reason=f"it has {len(found)} bytes of UTF-8, and at most "
                f"{cls.MOST_BYTES} are kept; take a digest of it",
            )
        return found

    def process_result_value(self, value: Any, dialect: Dialect) -> Any:
        """Return text."""
        return None if value is None else bytes(value).decode()

    def literal_processor(self, dialect: Dialect) -> Any:
        """Show the bytes where a statement is printed."""

        def process(value: Any) -> str:
            return f"X'{self.encoded(value).hex()}'"

        return process
