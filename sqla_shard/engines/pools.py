"""The pool of one server: what it holds, and how it is filled."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Engine
from sqlalchemy.engine import URL
from sqlalchemy.pool import Pool
from sqlalchemy.pool import QueuePool

__all__ = ["ENDED", "EngineStats", "is_cold", "server_name", "warm"]

#: In the ``info`` of a connection: whether its transaction has ended, with
#: nothing after it.
ENDED = "sqla_shard.ended"


@dataclass(frozen=True, kw_only=True)
class EngineStats:
    """The pool of one server at one moment.

    :ivar server: its name in the topology, or its names.
    :ivar address: host and port, or the file; never a password.
    :ivar idle: open connections waiting in the pool.
    :ivar busy: connections in use.
    :ivar asynchronous: whether it is of asynchronous sessions, which have
        pools of their own.
    :ivar retired: whether the server has left the topology, and only what
        was in use by then is left of its pool.
    """

    server: str
    address: str
    idle: int
    busy: int
    asynchronous: bool = False
    retired: bool = False


def server_name(url: URL) -> str:
    """Return host and port, or the file; never a password."""
    if url.host is None:
        return str(url.database)
    return f"{url.host}:{url.port or 3306}"


def is_cold(pool: Pool) -> bool:
    """Tell whether the next session would have to wait for a connection."""
    return (
        isinstance(pool, QueuePool)
        and not pool.checkedin()
        and pool.overflow() < 0
    )


def warm(engine: Engine, count: int) -> None:
    """Open connections and leave them in the pool."""
    held = []
    try:
        for _ in range(count):
            held.append(engine.connect())
    finally:
        for connection in held:
            # Nothing was sent: a ROLLBACK would be one more round trip, and
            # on a server that hangs keep this thread.
            connection.info[ENDED] = True
            connection.close()
