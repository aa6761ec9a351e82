"""Statements that are not sent."""

from __future__ import annotations

from collections.abc import Sequence

from sqla_shard.exc.base import ShardError
from sqla_shard.exc.base import shown

__all__ = [
    "KeyspaceMismatchError",
    "NoShardKeyError",
    "ParameterValueError",
    "RoutingError",
    "ScatterUnsupportedError",
    "UnsupportedStatementError",
]


class RoutingError(ShardError):
    """Base of the errors of statements that are not sent."""


class ParameterValueError(ShardError, ValueError):
    """Raised for a value in a statement that no server can hold.

    :ivar value: the value.
    """

    def __init__(self, value: object, has: str) -> None:
        super().__init__(f"{shown(value)} cannot be sent: it has {has}")
        self.value = value


class NoShardKeyError(RoutingError):
    """Raised when nothing in a statement tells the shards it is for.

    :ivar tables: names of the sharded tables of the statement.
    """

    def __init__(self, message: str, *, tables: Sequence[str]) -> None:
        super().__init__(message)
        self.tables = tuple(tables)


class KeyspaceMismatchError(RoutingError):
    """Raised when one statement is about two keyspaces.

    :ivar tables: table names by keyspace.
    :ivar named: the keyspace in ``bind_arguments``, where that is another.
    """

    def __init__(
        self, tables: dict[str, tuple[str, ...]], *, named: str | None = None
    ) -> None:
        listed = "; ".join(
            f"{', '.join(names)} in {keyspace!r}"
            for keyspace, names in sorted(tables.items())
        )
        super().__init__(
            f"one statement cannot read several keyspaces: {listed}. Their "
            "tables may be on different servers; use one statement for each"
            if named is None
            else f"bind_arguments name the keyspace {named!r}, and the "
            f"statement is about {listed}; leave out the keyspace"
        )
        self.tables = tables
        self.named = named


class ScatterUnsupportedError(RoutingError):
    """Raised when the rows of several shards cannot be merged correctly.

    :ivar construct: the part of the statement, such as ``ORDER BY``.
    """

    def __init__(self, message: str, *, construct: str) -> None:
        super().__init__(message)
        self.construct = construct


class UnsupportedStatementError(RoutingError):
    """Raised when a statement or call would give a wrong answer.

    :ivar construct: the part that is refused.
    """

    def __init__(self, message: str, *, construct: str) -> None:
        super().__init__(message)
        self.construct = construct
