"""Repeating a transaction when, and only when, that is safe.

Safe means that the failed attempt has certainly left nothing behind: it was
the victim of a deadlock, waited too long for a lock, met a busy SQLite file,
saw its object changed by another writer, was refused by a server that is
read-only, also at COMMIT, looked for a shard where it is not any more, needed
a server that has left the topology, or lost its connection before COMMIT was
sent.  A COMMIT whose outcome is unknown is never repeated, unless somebody can
look what became of it.

Pauses grow from 10 ms to a second, each by chance half as long or as long
again, and end when a newer topology arrives.  A shard that is missing may be
on its way to another server: where topologies can change, that is repeated
for three seconds.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import Counter
from collections import deque
from collections.abc import Awaitable
from collections.abc import Callable
from collections.abc import Generator
from functools import partial
from time import monotonic
from typing import Any
from typing import Protocol
from typing import TypeVar

from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.exc import TimeoutError  # noqa: A004 - that of the pool

from sqla_shard.dialects import Backend
from sqla_shard.dialects import Failure
from sqla_shard.exc import CommitUnknownError
from sqla_shard.exc import PartialCommitError
from sqla_shard.exc import RetriesExhaustedError
from sqla_shard.exc import ServerFencedError
from sqla_shard.exc import ServerRetiredError
from sqla_shard.exc import ShardMissingError
from sqla_shard.exc import ShardMovedError
from sqla_shard.exc import StaleDataError
from sqla_shard.exc.summaries import summary
from sqla_shard.jitter import jittered

__all__ = ["Feed", "Policy", "repeat", "repeat_awaited"]

T = TypeVar("T")

_log = logging.getLogger(__name__)

_REPEATABLE = (
    Failure.CONFLICT,
    Failure.BUSY,
    Failure.LOST,
    Failure.FENCED,
)
_REPEATABLE_ERRORS = (
    ServerFencedError,
    ServerRetiredError,
    ShardMovedError,
    StaleDataError,
)
_FIRST_PAUSE = 0.01
_LONGEST_PAUSE = 1.0
#: Seconds that a shard may be missing before the topology says where it is.
_PATIENCE = 3.0
#: Seconds between looks at the epoch, where nobody can be waited for.
_SLICE = 0.02
_MOST_FAILURES = 50
_LONGEST_FAILURE = 300


class Feed(Protocol):
    """Where newer topologies come from."""

    @property
    def epoch(self) -> int:
        """The newest epoch that is known."""
        ...

    @property
    def is_live(self) -> bool:
        """Whether topologies can change at all."""
        ...

    def refresh(self) -> None:
        """Ask for a newer one soon; never blocks."""
        ...

    def wait(self, epoch: int, timeout: float) -> bool:
        """Block until there is a newer epoch, or the time is over.

        :returns: whether there is.
        """
        ...


class Policy:
    """Says after each failure how long to wait, or that it was the last.

    :param backends: returns the kinds of server in use, which know what
        an error means.
    :param attempts: how often at most; None for as often as time allows.
    :param timeout: seconds after which no further attempt begins.
    :param feed: where newer topologies come from; None where they do not.
    """

    def __init__(
        self,
        backends: Callable[[], set[Backend]],
        *,
        attempts: int | None,
        timeout: float,
        feed: Feed | None = None,
    ) -> None:
        self._backends = backends
        self._attempts = attempts
        self._feed = feed
        self._deadline = monotonic() + timeout
        self._pause = _FIRST_PAUSE
        self._count = 0
        self._failures: deque[str] = deque(maxlen=_MOST_FAILURES)
        self._counts: Counter[str] = Counter()
        self._missing: tuple[int, float] | None = None
        #: The epoch that the attempt has begun with.
        self.epoch = 0

    def begin(self) -> None:
        """Take note that an attempt begins."""
        epoch = 0 if self._feed is None else self._feed.epoch
        if epoch != self.epoch:
            self._pause = _FIRST_PAUSE
        self.epoch = epoch

    def pause_after(self, error: Exception, *, is_void: bool = False) -> float:
        """Return the seconds to wait; called while handling the error.

        :param is_void: whether it is known to have left nothing behind.
        :raises RetriesExhaustedError: when there is no attempt left.
        """
        self._note(error)
        # Looked up, a COMMIT that has left nothing is an attempt like others.
        if not is_void and not self._is_repeatable(error):
            raise error
        left = self._deadline - monotonic()
        enough = self._attempts is not None and self._count >= self._attempts
        if enough or left <= 0:
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
        return self._next_pause(left)

    def pause_in_doubt(self, error: Exception) -> float | None:
        """Return the seconds to wait before looking once more.

        :returns: None when there is no time left, or when looking again
            will not help.
        """
        waits = isinstance(error, TimeoutError)  # of the pool
        if not waits and not self._is_repeatable(error):
            return None
        left = self._deadline - monotonic()
        return self._next_pause(left) if left > 0 else None

    def wait(self, seconds: float) -> None:
        """Wait in this thread, or until a newer topology is there."""
        if self._feed is None:
            threading.Event().wait(seconds)
        else:
            self._feed.wait(self.epoch, seconds)

    async def sleep(self, seconds: float) -> None:
        """Wait in an event loop, or until a newer topology is there."""
        if self._feed is None:
            await asyncio.sleep(seconds)
            return
        end = monotonic() + seconds
        while self._feed.epoch == self.epoch:
            left = end - monotonic()
            if left <= 0:
                break
            await asyncio.sleep(min(left, _SLICE))

    def _note(self, error: Exception) -> None:
        self._count += 1
        self._counts[type(error).__name__] += 1
        self._failures.append(summary(error)[:_LONGEST_FAILURE])

    def _next_pause(self, left: float) -> float:
        # Of two transactions that met, the pause must differ, or they
        # would meet again.
        pause = jittered(self._pause, 0.5)
        self._pause = min(self._pause * 2, _LONGEST_PAUSE)
        return min(pause, left)

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
        if self._feed is not None and failures & {
            Failure.LOST,
            Failure.FENCED,
        }:
            self._feed.refresh()
        return not failures.isdisjoint(_REPEATABLE)

    def _may_be_moving(self) -> bool:
        """Tell whether a topology may come that says where a shard is."""
        if self._feed is None or not self._feed.is_live:
            return False
        now = monotonic()
        if self._missing is None or self._missing[0] != self.epoch:
            self._missing = self.epoch, now
        self._feed.refresh()
        return now - self._missing[1] < _PATIENCE


#: What is done next, and what comes of it: a call, or a pause in seconds.
_Course = Generator[Callable[[], Any] | float, Any, T]


def _course(
    attempt: Callable[[], Any],
    look: Callable[[], Any] | None,
    is_last: Callable[[Exception], bool],
    policy: Policy,
) -> _Course[Any]:
    """Yield what is to be done, and return what the transaction returns.

    Errors of a call are thrown in where it was yielded.
    """
    while True:
        policy.begin()
        try:
            return (yield attempt)
        except CommitUnknownError as error:
            if look is None or is_last(error):
                raise
            unknown = error
        except (DBAPIError, ServerRetiredError, StaleDataError) as error:
            if is_last(error):
                raise
            pause = policy.pause_after(error)
            yield pause
            continue
        found = yield from _look(look, policy, unknown)
        if found:
            return found[0]
        pause = policy.pause_after(unknown, is_void=True)
        yield pause


def _look(
    look: Callable[[], Any], policy: Policy, unknown: CommitUnknownError
) -> _Course[Any]:
    """Find out what became of a COMMIT.

    :raises CommitUnknownError: when that cannot be done in time.
    """
    while True:
        policy.begin()
        try:
            return (yield look)
        except SQLAlchemyError as error:
            pause = policy.pause_in_doubt(error)
            if pause is None:
                raise unknown from error
        yield pause


def _is_not_last(error: Exception) -> bool:
    return False


def repeat(
    attempt: Callable[[], T],
    backends: Callable[[], set[Backend]],
    *,
    attempts: int | None,
    timeout: float,
    feed: Feed | None = None,
    look: Callable[[], tuple[T] | None] | None = None,
    is_last: Callable[[Exception], bool] = _is_not_last,
) -> T:
    """Call ``attempt`` until it succeeds or repeating is not safe.

    :param backends: returns the kinds of server in use, which know what
        an error means.
    :param attempts: how often at most; None for as often as time allows.
    :param timeout: seconds after which no further attempt begins.
    :param feed: where newer topologies come from; None where they do not.
    :param look: finds out what became of a COMMIT whose outcome is unknown:
        returns what the attempt would have returned, alone in a tuple, or
        None where it has left nothing.
    :param is_last: tells of an error whether it is raised as it is, because
        the attempt has left something behind all the same.
    :raises RetriesExhaustedError: when that is used up.
    :raises CommitUnknownError: when the outcome of COMMIT stays unknown.
    """
    policy = Policy(backends, attempts=attempts, timeout=timeout, feed=feed)
    steps = _Steps(_course(attempt, look, is_last, policy))
    while not steps.ended:
        step = steps.step
        if not callable(step):
            policy.wait(step)
            steps.go_on()
            continue
        try:
            done = step()
        except SQLAlchemyError as error:
            steps.failed(error)
        else:
            steps.go_on(done)
    result: T = steps.result
    return result


async def repeat_awaited(
    attempt: Callable[[], Awaitable[T]],
    backends: Callable[[], set[Backend]],
    *,
    attempts: int | None,
    timeout: float,
    feed: Feed | None = None,
    look: Callable[[], Awaitable[tuple[T] | None]] | None = None,
    is_last: Callable[[Exception], bool] = _is_not_last,
) -> T:
    """Await ``attempt()`` until it succeeds; see :func:`repeat`.

    :raises RetriesExhaustedError: when no attempt is left.
    :raises CommitUnknownError: when the outcome of COMMIT stays unknown.
    """
    policy = Policy(backends, attempts=attempts, timeout=timeout, feed=feed)
    steps = _Steps(_course(attempt, look, is_last, policy))
    while not steps.ended:
        step = steps.step
        if not callable(step):
            await policy.sleep(step)
            steps.go_on()
            continue
        try:
            done = await step()
        except SQLAlchemyError as error:
            steps.failed(error)
        else:
            steps.go_on(done)
    result: T = steps.result
    return result


class _Steps:
    """A course, step by step.

    :ivar step: what is to be done next.
    :ivar ended: whether there is nothing more to do.
    :ivar result: then, what it has returned.
    """

    def __init__(self, course: _Course[Any]) -> None:
        self._course = course
        self.ended = False
        self.result: Any = None
        self.step: Callable[[], Any] | float = next(course)

    def go_on(self, done: Any = None) -> None:
        self._take(partial(self._course.send, done))

    def failed(self, error: SQLAlchemyError) -> None:
        self._take(partial(self._course.throw, error))

    def _take(self, advance: Callable[[], Callable[[], Any] | float]) -> None:
        try:
            self.step = advance()
        except StopIteration as end:
            self.ended, self.result = True, end.value
