"""What became of a statement: on which servers, how long, how many rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from dataclasses import field
from typing import Any

__all__ = ["ServerReport", "StatementReport", "Watch"]


@dataclass(frozen=True, kw_only=True)
class ServerReport:
    """What one server did for a statement.

    :ivar server: its name in the topology.
    :ivar shards: the virtual shards that it was asked about.
    :ivar statements: how many statements were sent to it.
    :ivar rows: how many rows it returned; None where the driver does not
        tell.
    :ivar seconds: from sending the first statement to the last row.
    :ivar error: what it raised.
    """

    server: str
    shards: tuple[int, ...]
    statements: int
    rows: int | None
    seconds: float
    error: Exception | None = None


@dataclass(frozen=True, kw_only=True)
class StatementReport:
    """What became of one statement.

    :ivar statement: its SQL, with a mark in place of the database and
        without values: the same for all shards.
    :ivar keyspace: name of the keyspace.
    :ivar servers: what each of them did.
    :ivar scattered: whether it went to all shards, by ``scatter()``.
    :ivar writes: whether it is an INSERT, UPDATE or DELETE.
    :ivar rows: how many rows the answer has, after the merge; None where
        the driver does not tell.
    :ivar seconds: what all of it took.
    :ivar error: what was raised.
    :ivar session: the session that sent it.
    :ivar loads: what the ORM loads of its own accord: ``"Pin.comments"`` for
        a lazy load, ``"Pin"`` for attributes of an object that had expired
        or were deferred; None where it was asked to.
    """

    statement: str
    keyspace: str
    servers: tuple[ServerReport, ...]
    scattered: bool
    writes: bool
    rows: int | None
    seconds: float
    error: BaseException | None = None
    session: Any = field(default=None, repr=False, compare=False)
    loads: str | None = None

    @property
    def shards(self) -> tuple[int, ...]:
        """All virtual shards, in order."""
        return tuple(sorted(i for s in self.servers for i in s.shards))

    @property
    def fan_out(self) -> int:
        """The number of servers."""
        return len(self.servers)


@dataclass(frozen=True)
class Watch:
    """What else is done with the statements of a cluster.

    :ivar report: called with the report of each; None for nobody.
    :ivar comments: whether their SQL says where it goes.
    :ivar session: the session whose statements they are.
    """

    report: Callable[[StatementReport], Any] | None = None
    comments: bool = False
    session: Any = None
