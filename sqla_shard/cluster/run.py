"""``Cluster.run``: a transaction, its attempts, and its key."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Generic, TypeVar

from sqla_shard.cluster.async_session import AsyncSessionContext, AsyncShardSession
from sqla_shard.cluster.retries import repeat, repeat_awaited, Retries
from sqla_shard.exc import CommitUnknownError
from sqla_shard.outbox.transaction_keys import Token
from sqla_shard.session import ShardSession
from sqla_shard.session.session import SessionContext

T = TypeVar("T")
B = TypeVar("B", SessionContext, AsyncSessionContext)


class _Run(Generic[T]):
    """The attempts of one transaction.

    :ivar token: key of the transaction; None if it has none.
    :ivar context: the last attempt.
    :ivar session: the session of that attempt.
    :ivar results: the result of its function, once it has returned.
    """

    def __init__(self, key: str | None) -> None:
        self.token = None if key is None else Token(key)
        self.context: SessionContext | AsyncSessionContext | None = None
        self.session: ShardSession | None = None
        self.results: list[T] = []

    def begin(self, context: B) -> B:
        """Record the context of an attempt."""
        self.results.clear()
        self.context, self.session = context, None
        return context

    def follow(self, session: ShardSession) -> None:
        """Record the session of the attempt, which writes the key."""
        self.session = session
        if self.token is not None:
            self.token.follow(session)

    def is_last(self, error: Exception) -> bool:
        """Return whether the attempt must not be repeated after an error."""
        if self.session is not None and self.session.has_committed:
            # Committed by the function; or a listener of the COMMIT has raised
            # this.
            return True
        if isinstance(self.context, AsyncSessionContext) and self.context.cancelled:
            return True
        # The error may belong to another transaction in the function; then the
        # outcome of this one cannot be looked up.
        return isinstance(error, CommitUnknownError) and not (
            self.token is not None and self.token.is_written
        )

    def found(self, is_there: bool) -> tuple[T] | None:
        """Return the result of the last attempt, if it was committed.

        :raises ValueError: if the function has not returned.
        """
        if not is_there:
            return None
        if not self.results:
            raise ValueError(
                "the function has committed the transaction itself; that took "
                "effect, but the response was lost, and what follows it was "
                "not executed. With a key, leave COMMIT to cluster.run"
            )
        return (self.results[0],)


def run(
    fn: Callable[[ShardSession], T],
    begin: Callable[[], SessionContext],
    session: Callable[[], ShardSession],
    retries: Retries,
    key: str | None,
) -> T:
    """Run ``fn`` in a transaction; see ``Cluster.run``.

    :param begin: begins a transaction in a new session.
    :param session: opens a session, to look up the outcome of a transaction.
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
        retries,
        look=None if state.token is None else partial(look, state.token),
        is_last=state.is_last,
    )


async def run_awaited(
    fn: Callable[[AsyncShardSession], Awaitable[T]],
    begin: Callable[[], AsyncSessionContext],
    session: Callable[[], AsyncShardSession],
    retries: Retries,
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
        retries,
        look=None if state.token is None else partial(look, state.token),
        is_last=state.is_last,
    )
