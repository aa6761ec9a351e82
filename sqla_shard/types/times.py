"""Times that mean the same on every server and in every process."""

from __future__ import annotations

from datetime import datetime
from datetime import timezone
from typing import Any

from sqlalchemy import DateTime
from sqlalchemy.dialects import mysql
from sqlalchemy.engine import Dialect
from sqlalchemy.types import TypeDecorator
from sqlalchemy.types import TypeEngine

from sqla_shard.exc import BlobValueError

__all__ = ["UTCTimestamp"]


class UTCTimestamp(TypeDecorator[datetime]):
    """A moment in microseconds; in Python an aware datetime in UTC.

    TIMESTAMP on MySQL and MariaDB, whose sessions run in UTC here; its range
    ends in 2038 (2106 from MariaDB 11.5).  A naive datetime is refused,
    because it is somebody's local time.
    """

    impl = DateTime
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """Return TIMESTAMP(6), or text on SQLite."""
        if dialect.name in ("mysql", "mariadb"):
            return dialect.type_descriptor(mysql.TIMESTAMP(fsp=6))
        return dialect.type_descriptor(DateTime())

    def process_bind_param(self, value: Any, dialect: Dialect) -> Any:
        """Convert to UTC.

        :raises BlobValueError: for a naive datetime.
        """
        if value is None:
            return None
        if not isinstance(value, datetime) or value.tzinfo is None:
            raise BlobValueError(
                f"{value!r} is not an aware datetime; say "
                "datetime.now(timezone.utc)",
                field="timestamp",
                value=value,
            )
        return value.astimezone(timezone.utc).replace(tzinfo=None)

    def process_result_value(self, value: Any, dialect: Dialect) -> Any:
        """Say that the server's time is UTC."""
        return None if value is None else value.replace(tzinfo=timezone.utc)
