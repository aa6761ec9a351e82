"""Errors of the cache.

A node that does not answer is none: what it has not is read from the
database.
"""

from __future__ import annotations

from sqla_shard.exc.base import ShardError
from sqla_shard.masking import shown

__all__ = [
    "CacheClassError",
    "CacheConfigError",
    "CacheKeyError",
    "CacheOptionError",
    "CachedFunctionError",
    "CachedWriteError",
]


class CacheOptionError(ShardError, ValueError):
    """Raised when a setting of the cache makes no sense.

    :ivar option: its name.
    :ivar value: what was given.
    """

    def __init__(self, message: str, *, option: str, value: object) -> None:
        super().__init__(f"{option}={shown(value)} {message}")
        self.option = option
        self.value = value


class CacheKeyError(ShardError, ValueError):
    """Raised when a key cannot be one of memcached.

    :ivar key: what was given.
    """

    def __init__(self, *, key: object) -> None:
        super().__init__(
            f"{key!r:.300} cannot be a key of the cache: use 1 to 250 ASCII "
            "characters, without blanks and control characters"
        )
        self.key = key


class CacheClassError(ShardError, TypeError):
    """Raised when rows of a class cannot be cached.

    :ivar class_name: its name.
    """

    def __init__(self, message: str, *, class_name: object) -> None:
        super().__init__(f"{class_name} cannot be cached: it {message}")
        self.class_name = class_name


class CachedFunctionError(ShardError, TypeError):
    """Raised when what a function takes or returns cannot be cached.

    :ivar function: its name.
    """

    def __init__(self, message: str, *, function: str) -> None:
        super().__init__(f"{function}() {message}")
        self.function = function


class CachedWriteError(ShardError):
    """Raised by a write to cached rows of which nobody could be told.

    :ivar table: name of the table.
    """

    def __init__(self, message: str, *, table: str) -> None:
        super().__init__(f"rows of {table!r} are cached, and {message}")
        self.table = table


class CacheConfigError(ShardError, ValueError):
    """Raised when a file that configures a cache cannot be used.

    :ivar path: the file.
    :ivar key: what of it, such as ``regions.pins.backend``; ``file`` where
        that is not one key.
    """

    def __init__(self, message: str, *, path: str, key: str) -> None:
        super().__init__(f"{path}: {key}: {message}")
        self.path = path
        self.key = key
