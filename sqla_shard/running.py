"""What ``Cluster.run`` does: a transaction, its attempts, and its key."""

from __future__ import annotations

from collections.abc import Awaitable
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any
from typing import Generic
from typing import TypeVar

from sqla_shard.async_session import AsyncBegun
from sqla_shard.async_session import AsyncShardSession
from sqla_shard.dialects import Backend
from sqla_shard.exc import CommitUnknownError
from sqla_shard.retrying import Feed
from sqla_shard.retrying import repeat
from sqla_shard.retrying import repeat_awaited
from sqla_shard.session import ShardSession
from sqla_shard.session.begun import Begun
from sqla_shard.tokens import Token

__all__ = ["Limits", "run", "run_awaited"]

T = TypeVar("T")
B = TypeVar("B", Begun, AsyncBegun)


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


class _Run(Generic[T]):
    """What the attempts of one transaction have come to.

    :ivar token: the key; None for none.
    :ivar begun: the attempt that was made last.
    :ivar session: of that attempt.
    :ivar results: what its function has returned, if it has.
    """

    def __init__(self, key: str | None) -> None:
        self.token = None if key is None else Token(key)
        self.begun: Begun | AsyncBegun | None = None
        self.session: ShardSession | None = None
        self.results: list[T] = []

    def begin(self, begun: B) -> B:
        """Take note of an attempt."""
        self.results.clear()
        self.begun, self.session = begun, None
        return begun

    def follow(self, session: ShardSession) -> None:
        """Take note of its session, and let it write the key."""
        self.session = session
        if self.token is not None:
            self.token.follow(session)

    def is_last(self, error: Exception) -> bool:
        """Tell whether the attempt may not be repeated, whatever it met."""
        if self.session is not None and self.session.has_committed:
            # By the function itself; or it was one that hears of COMMIT
            # that has raised this.
            return True
        if isinstance(self.begun, AsyncBegun) and self.begun.cancelled:
            return True
        # That of another transaction within the function tells nothing of
        # this one, and nobody knows whether it may be repeated.
        return isinstance(error, CommitUnknownError) and not (
            self.token is not None and self.token.is_written
        )

    def found(self, is_there: bool) -> tuple[T] | None:
        """Return the result of the last attempt, if it is there.

        :raises ValueError: when the function has not come to its end.
        """
        if not is_there:
            return None
        if not self.results:
            raise ValueError(
                "the function has committed itself, and that took effect, "
                "though its answer was lost; what comes after it was not "
                "done. With a key, let cluster.run commit"
            )
        return (self.results[0],)


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
    state: _Run[T] = _Run(key)

    def attempt() -> T:
        with state.begin(begin()) as opened:
            state.follow(opened)
            state.results.append(fn(opened))
        return state.results[0]

    def look(token: Token) -> tuple[T] | None:
        with session() as opened:
            return state.found(token.is_there(opened))

    return repeat(
        attempt,
        limits.backends,
        attempts=limits.attempts,
        timeout=limits.timeout,
        feed=limits.feed,
        look=None if state.token is None else partial(look, state.token),
        is_last=state.is_last,
    )


async def run_awaited(
    fn: Callable[[AsyncShardSession], Awaitable[T]],
    begin: Callable[[], AsyncBegun],
    session: Callable[[], AsyncShardSession],
    limits: Limits,
    key: str | None,
) -> T:
    """Await ``fn`` in a transaction; see :func:`run`."""
    state: _Run[T] = _Run(key)

    async def attempt() -> T:
        async with state.begin(begin()) as opened:
            state.follow(opened.sync_session)
            state.results.append(await fn(opened))
        return state.results[0]

    async def look(token: Token) -> tuple[T] | None:
        def is_there(inner: Any) -> bool:
            return token.is_there(inner)

        async with session() as opened:
            return state.found(await opened.run_sync(is_there))

    return await repeat_awaited(
        attempt,
        limits.backends,
        attempts=limits.attempts,
        timeout=limits.timeout,
        feed=limits.feed,
        look=None if state.token is None else partial(look, state.token),
        is_last=state.is_last,
    )
