"""``Cluster.run``: a transaction, repeated when, and only when, that is safe.

Safe means that the failed attempt has definitely committed nothing: it was the
victim of a deadlock, waited too long for a lock, met a busy SQLite file, saw
its object changed by another writer, was refused by a read-only server, even
at COMMIT, looked for a shard that has moved, needed a server that has left the
topology, or lost its connection before COMMIT was sent.  A COMMIT whose
outcome is unknown is not repeated, unless the outcome can be looked up.

Pauses grow from 10 ms to a second, each with a jitter of one half, and end
when there is a newer topology.  A shard that is missing may be being moved to
another server: where topologies can change, that is repeated for three
seconds.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Generator
from functools import partial
from inspect import iscoroutine
from time import monotonic
from typing import Any, Generic, TYPE_CHECKING, TypeVar

from sqlalchemy.exc import DBAPIError, SQLAlchemyError, TimeoutError  # noqa: A004 - that of the pool

from sqla_shard.cluster.event_loops import AsyncSessionContext, AsyncShardSession
from sqla_shard.dialects import Backend, Failure
from sqla_shard.exc import (
    CommitUnknownError,
    OptionError,
    PartialCommitError,
    RetriesExhaustedError,
    ServerFencedError,
    ServerRetiredError,
    ShardMissingError,
    ShardMovedError,
    StaleDataError,
)
from sqla_shard.exc.base import summary
from sqla_shard.outbox.transaction_keys import Token
from sqla_shard.session import ShardSession
from sqla_shard.session.session import SessionContext
from sqla_shard.util.logs import careful_log
from sqla_shard.util.pace import jittered

if TYPE_CHECKING:
    from sqla_shard.topology.follow import Fixed, Follower


T = TypeVar("T")

_log = careful_log(__name__)

_REPEATABLE = (Failure.CONFLICT, Failure.BUSY, Failure.LOST, Failure.FENCED)
_REPEATABLE_ERRORS = (
    ServerFencedError,
    ServerRetiredError,
    ShardMovedError,
    StaleDataError,
)
_FIRST_PAUSE = 0.01
_LONGEST_PAUSE = 1.0
#: Seconds for which a missing shard is repeated without a newer topology.
_MISSING_SHARD_SECONDS = 3.0
#: Seconds between two checks of the epoch in an event loop.
_SLICE = 0.02
_MOST_FAILURES = 50
_LONGEST_FAILURE = 300

B = TypeVar("B", SessionContext, AsyncSessionContext)


class Retries:
    """Counts the attempts of a transaction, and times the next one.

    :param backends: returns the kinds of server in use, which classify
        errors.
    :param attempts: maximum number of attempts; None for no limit except
        ``timeout``.
    :param timeout: seconds after which no further attempt begins.
    :param follower: follower that finds newer topologies; None if there is
        none.
    :param repeats: function that is called before each repetition, with the
        error and the number of the attempt.
    """

    def __init__(
        self,
        backends: Callable[[], set[Backend]],
        *,
        attempts: int | None,
        timeout: float,
        follower: Fixed | Follower | None = None,
        repeats: Callable[[Exception, int], None] | None = None,
    ) -> None:
        self._repeats = repeats
        self._backends = backends
        self._attempts = attempts
        self._follower = follower
        self._deadline = monotonic() + timeout
        self._pause = _FIRST_PAUSE
        self._count = 0
        self._failures: deque[str] = deque(maxlen=_MOST_FAILURES)
        self._counts: Counter[str] = Counter()
        self._missing: tuple[int, float] | None = None
        #: The epoch at the start of the attempt.
        self.epoch: int = 0

    def begin(self) -> None:
        """Begin an attempt."""
        epoch = 0 if self._follower is None else self._follower.epoch
        if epoch != self.epoch:
            self._pause = _FIRST_PAUSE
        self.epoch = epoch

    def pause_after(self, error: Exception, *, is_void: bool = False) -> float:
        """Return the seconds to wait; called while handling the error.

        :param is_void: whether the attempt has definitely committed nothing.
        :raises RetriesExhaustedError: if no attempt is left.
        """
        self._count += 1
        self._counts[type(error).__name__] += 1
        self._failures.append(summary(error)[:_LONGEST_FAILURE])
        if not is_void and not self._is_repeatable(error):
            raise error
        seconds = self._deadline - monotonic()
        enough = self._attempts is not None and self._count >= self._attempts
        if enough or seconds <= 0:
            raise RetriesExhaustedError(
                attempts=self._count,
                last=error,
                failures=list(self._failures),
                counts=self._counts,
            ) from error
        _log.info(
            "attempt %d failed and is repeated: %s",
            self._count,
            self._failures[-1],
            extra={"action": "repeat", "attempt": self._count},
        )
        if self._repeats is not None:
            self._repeats(error, self._count)
        return self._next_pause(seconds)

    def pause_in_doubt(self, error: Exception) -> float | None:
        """Return the seconds to wait before the outcome is looked up again.

        :returns: None if no time is left, or the error is permanent.
        """
        waits = isinstance(error, TimeoutError)  # the pool was exhausted
        if not waits and not self._is_repeatable(error):
            return None
        seconds = self._deadline - monotonic()
        return self._next_pause(seconds) if seconds > 0 else None

    def wait(self, seconds: float) -> None:
        """Block for this many seconds, or until there is a newer topology."""
        if self._follower is None:
            threading.Event().wait(seconds)
        else:
            self._follower.wait(self.epoch, seconds)

    async def sleep(self, seconds: float) -> None:
        """Sleep for this many seconds, or until there is a newer topology."""
        if self._follower is None:
            await asyncio.sleep(seconds)
            return
        end = monotonic() + seconds
        while self._follower.epoch == self.epoch:
            remaining = end - monotonic()
            if remaining <= 0:
                break
            await asyncio.sleep(min(remaining, _SLICE))

    def _next_pause(self, seconds: float) -> float:
        # Two transactions in a deadlock must not repeat at the same time.
        pause = jittered(self._pause, 0.5)
        self._pause = min(self._pause * 2, _LONGEST_PAUSE)
        return min(pause, seconds)

    def _is_repeatable(self, error: Exception) -> bool:
        if isinstance(error, (CommitUnknownError, PartialCommitError)):
            return False
        if isinstance(error, _REPEATABLE_ERRORS):
            return True
        if not isinstance(error, DBAPIError) or error.orig is None:
            return False
        if isinstance(error, ShardMissingError):
            return self._may_be_moving()
        original: Any = error.orig
        failures = {b.classify(original) for b in self._backends()}
        if error.connection_invalidated:
            failures.add(Failure.LOST)
        if self._follower is not None and failures & {Failure.LOST, Failure.FENCED}:
            self._follower.refresh()
        return not failures.isdisjoint(_REPEATABLE)

    def _may_be_moving(self) -> bool:
        """Return whether a newer topology may have a missing shard."""
        if self._follower is None or not self._follower.is_live:
            return False
        now = monotonic()
        if self._missing is None or self._missing[0] != self.epoch:
            self._missing = self.epoch, now
        self._follower.refresh()
        return now - self._missing[1] < _MISSING_SHARD_SECONDS


#: Yields a function to call, or a pause in seconds; is sent the result.
_Steps = Generator[Callable[[], Any] | float, Any, T]


def _steps(
    attempt: Callable[[], Any],
    retries: Retries,
    look: Callable[[], Any] | None,
    is_last: Callable[[Exception], bool],
) -> _Steps[Any]:
    """Yield calls and pauses, and return the result of the transaction.

    The errors of a call are thrown into the generator.
    """
    while True:
        retries.begin()
        try:
            return (yield attempt)
        except CommitUnknownError as error:
            if look is None or is_last(error):
                raise
            unknown = error
        except (DBAPIError, ServerRetiredError, StaleDataError) as error:
            if is_last(error):
                raise
            pause = retries.pause_after(error)
            yield pause
            continue
        found = yield from _look(look, retries, unknown)
        if found:
            return found[0]
        pause = retries.pause_after(unknown, is_void=True)
        yield pause


def _look(
    look: Callable[[], Any], retries: Retries, unknown: CommitUnknownError
) -> _Steps[Any]:
    """Look up the outcome of a COMMIT.

    :raises CommitUnknownError: if the outcome cannot be looked up in time.
    """
    while True:
        retries.begin()
        try:
            return (yield look)
        except SQLAlchemyError as error:
            pause = retries.pause_in_doubt(error)
            if pause is None:
                raise unknown from error
        yield pause


def _is_not_last(error: Exception) -> bool:
    return False


def repeat(
    attempt: Callable[[], T],
    retries: Retries,
    *,
    look: Callable[[], tuple[T] | None] | None = None,
    is_last: Callable[[Exception], bool] = _is_not_last,
) -> T:
    """Call ``attempt`` until it succeeds or repeating is not safe.

    :param retries: the retries of this transaction only.
    :param look: looks up a COMMIT whose outcome is unknown: returns a tuple
        with the result of the attempt, or None if it was not committed.
    :param is_last: returns whether an error is raised as it is, because
        parts of the attempt have been committed.
    :raises RetriesExhaustedError: if no attempt is left.
    :raises CommitUnknownError: if the outcome of COMMIT remains unknown.
    """
    run = _Run(_steps(attempt, retries, look, is_last))
    while not run.ended:
        step = run.step
        if not callable(step):
            retries.wait(step)
            run.send()
            continue
        try:
            result = step()
        except SQLAlchemyError as error:
            run.throw(error)
        else:
            run.send(result)
    returned: T = run.result
    return returned


async def repeat_awaited(
    attempt: Callable[[], Awaitable[T]],
    retries: Retries,
    *,
    look: Callable[[], Awaitable[tuple[T] | None]] | None = None,
    is_last: Callable[[Exception], bool] = _is_not_last,
) -> T:
    """Await ``attempt()`` until it succeeds; see :func:`repeat`."""
    run = _Run(_steps(attempt, retries, look, is_last))
    while not run.ended:
        step = run.step
        if not callable(step):
            await retries.sleep(step)
            run.send()
            continue
        try:
            result = await step()
        except SQLAlchemyError as error:
            run.throw(error)
        else:
            run.send(result)
    returned: T = run.result
    return returned


class _Run:
    """A generator of steps, advanced by its caller.

    :ivar step: the next step.
    :ivar ended: whether there is no further step.
    :ivar result: the result at the end.
    """

    def __init__(self, steps: _Steps[Any]) -> None:
        self._steps = steps
        self.ended = False
        self.result: Any = None
        self.step: Callable[[], Any] | float = next(steps)

    def send(self, result: Any = None) -> None:
        self._advance(partial(self._steps.send, result))

    def throw(self, error: SQLAlchemyError) -> None:
        self._advance(partial(self._steps.throw, error))

    def _advance(self, advance: Callable[[], Callable[[], Any] | float]) -> None:
        try:
            self.step = advance()
        except StopIteration as end:
            self.ended, self.result = True, end.value


class _KeyedRun(Generic[T]):
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
    state: _KeyedRun[T] = _KeyedRun(key)

    def attempt() -> T:
        with state.begin(begin()) as opened:
            state.follow(opened)
            result = fn(opened)
            if iscoroutine(result):
                result.close()  # otherwise Python warns, too
                raise OptionError(
                    "is async def, and its code has not run; "
                    "await cluster.async_run(fn)",
                    option="fn",
                    value=result.__qualname__,
                )
            state.results.append(result)
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
    state: _KeyedRun[T] = _KeyedRun(key)

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
