"""What ``Cluster.run`` does: a transaction, its attempts, and its key."""

from __future__ import annotations

from collections.abc import Awaitable
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any
from typing import TypeVar

from sqla_shard.async_session import AsyncBegun
from sqla_shard.async_session import AsyncShardSession
from sqla_shard.dialects import Backend
from sqla_shard.retrying import Feed
from sqla_shard.retrying import repeat
from sqla_shard.retrying import repeat_awaited
from sqla_shard.session import ShardSession
from sqla_shard.session.begun import Begun
from sqla_shard.tokens import Token

__all__ = ["Limits", "run", "run_awaited"]

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How long a transaction is repeated.

    :ivar backends: returns the kinds of server in use.
    :ivar attempts: how often at most; None for as often as time allows.
    :ivar timeout: seconds after which no further attempt begins.
    :ivar feed: where newer topologies come from; None where they do not.
    """

    backends: Callable[[], set[Backend]]
    attempts: int | None
    timeout: float
    feed: Feed | None


def run(
    fn: Callable[[ShardSession], T],
    begin: Callable[[], Begun],
    session: Callable[[], ShardSession],
    limits: Limits,
    key: str | None,
) -> T:
    """Run ``fn`` in a transaction; see ``Cluster.run``.

    :param begin: begins a transaction in a new session.
    :param session: opens a session, to look what became of a transaction.
    """
    token = None if key is None else Token(key)
    results: list[T] = []

    def attempt() -> T:
        results.clear()
        with begin() as opened:
            if token is not None:
                token.follow(opened)
            results.append(fn(opened))
        return results[0]

    def look(token: Token) -> tuple[T] | None:
        with session() as opened:
            return (results[0],) if token.is_there(opened) else None

    return repeat(
        attempt,
        limits.backends,
        attempts=limits.attempts,
        timeout=limits.timeout,
        feed=limits.feed,
        look=None if token is None else partial(look, token),
    )


async def run_awaited(
    fn: Callable[[AsyncShardSession], Awaitable[T]],
    begin: Callable[[], AsyncBegun],
    session: Callable[[], AsyncShardSession],
    limits: Limits,
    key: str | None,
) -> T:
    """Await ``fn`` in a transaction; see :func:`run`."""
    token = None if key is None else Token(key)
    results: list[T] = []

    async def attempt() -> T:
        results.clear()
        async with begin() as opened:
            if token is not None:
                token.follow(opened.sync_session)
            results.append(await fn(opened))
        return results[0]

    async def look(token: Token) -> tuple[T] | None:
        def is_there(inner: Any) -> bool:
            return token.is_there(inner)

        async with session() as opened:
            there = await opened.run_sync(is_there)
            return (results[0],) if there else None

    return await repeat_awaited(
        attempt,
        limits.backends,
        attempts=limits.attempts,
        timeout=limits.timeout,
        feed=limits.feed,
        look=None if token is None else partial(look, token),
    )
