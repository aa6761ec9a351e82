"""Statements for many shards, and servers that do not answer."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from sqlalchemy.exc import OperationalError

from sqla_shard.exc.base import ShardError
from sqla_shard.exc.statements import RoutingError
from sqla_shard.exc.summaries import summary

__all__ = [
    "ScatterDisabledError",
    "ScatterFailedError",
    "ScatterLimitError",
    "ScatterTimeoutError",
    "ServerUnreachableError",
]


class ScatterDisabledError(RoutingError):
    """Raised when ``scatter()`` is turned off for the cluster."""


class ScatterLimitError(RoutingError):
    """Raised when a statement goes beyond a limit of its ``scatter()``.

    :ivar limit: ``max_shards``, ``max_rows`` or ``max_offset``.
    :ivar allowed: the limit.
    :ivar found: how many shards it names, or rows it skips; of rows, as
        many as were read until there were too many.
    """

    def __init__(self, *, limit: str, allowed: int, found: int) -> None:
        instead = (
            "name fewer objects in WHERE, add a LIMIT, or raise the limit"
        )
        if limit == "max_shards":
            what = f"the statement is for {found} shards"
        elif limit == "max_offset":
            what = f"the statement skips {found} rows of several shards"
            instead = (
                "go from page to page with session.scatter_page(), or raise "
                "the limit"
            )
        else:
            what = f"the answer has more than {allowed} rows"
        super().__init__(
            f"{what}, and scatter() allows {limit}={allowed}; {instead}"
        )
        self.limit = limit
        self.allowed = allowed
        self.found = found


class ScatterTimeoutError(ShardError):
    """Raised when servers did not answer in the time of ``scatter()``.

    :ivar servers: the names of those that did not.
    :ivar timeout: seconds.
    """

    def __init__(self, *, servers: Sequence[str], timeout: float) -> None:
        super().__init__(
            f"no answer from {', '.join(servers)} in {timeout:g} seconds; "
            "the statement was ended there. Ask for less, allow more "
            'time, or take on_error="partial" for the rest of the rows'
        )
        self.servers = tuple(servers)
        self.timeout = timeout


class ScatterFailedError(ShardError):
    """Raised when no shard at all has answered.

    :ivar errors: what each of them raised, by number.
    """

    def __init__(self, errors: Mapping[int, Exception]) -> None:
        first = next(iter(errors.values()))
        super().__init__(
            f"none of {len(errors)} shards has answered; the first error: "
            f"{summary(first)}"
        )
        self.errors = dict(errors)


class ServerUnreachableError(ShardError, OperationalError):
    """Raised when a server cannot be connected to, or has gone away.

    Handlers of SQLAlchemy's ``OperationalError`` catch it as well; ``orig``
    is the driver's error.

    :ivar server: its name in the topology, or its names.
    """

    def __init__(self, *, server: str, error: Any) -> None:
        orig = getattr(error, "orig", None) or error
        OperationalError.__init__(
            self,
            getattr(error, "statement", None),
            getattr(error, "params", None),
            orig,
            hide_parameters=True,
            connection_invalidated=True,
        )
        self.args = (f"server {server} cannot be reached: {orig}",)
        self.server = server

    def __str__(self) -> str:
        return str(self.args[0])
