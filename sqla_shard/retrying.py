"""Repeating a transaction when, and only when, that is safe.

Safe means that the failed attempt has certainly left nothing behind: it was
the victim of a deadlock, waited too long for a lock, met a busy SQLite file,
saw its object changed by another writer, needed a server that has left the
topology meanwhile, or lost its connection before COMMIT was sent.  A COMMIT
whose outcome is unknown is never repeated.
"""

from __future__ import annotations

import asyncio
import logging
import random
import threading
from collections.abc import Awaitable
from collections.abc import Callable
from time import monotonic
from typing import Any
from typing import TypeVar

from sqlalchemy.exc import DBAPIError

from sqla_shard.dialects import Backend
from sqla_shard.dialects import Failure
from sqla_shard.exc import CommitUnknownError
from sqla_shard.exc import PartialCommitError
from sqla_shard.exc import RetriesExhaustedError
from sqla_shard.exc import ServerRetiredError
from sqla_shard.exc import StaleDataError

__all__ = ["repeat", "repeat_awaited"]

T = TypeVar("T")

_log = logging.getLogger(__name__)

_REPEATABLE = (Failure.CONFLICT, Failure.BUSY, Failure.LOST)
_FIRST_PAUSE = 0.01
_LONGEST_PAUSE = 1.0


class _Policy:
    """Says after each failure how long to wait, or that it was the last.

    :param backends: returns the kinds of server in use, which know what
        an error means.
    :param attempts: how often at most.
    :param timeout: seconds after which no further attempt begins.
    """

    def __init__(
        self,
        backends: Callable[[], set[Backend]],
        *,
        attempts: int,
        timeout: float,
    ) -> None:
        self._backends = backends
        self._attempts = attempts
        self._deadline = monotonic() + timeout
        self._pause = _FIRST_PAUSE
        self._count = 0

    def pause_after(self, error: Exception) -> float:
        """Return the seconds to wait; called while handling the error.

        :raises RetriesExhaustedError: when there is no attempt left.
        """
        self._count += 1
        if not _is_safe(error, self._backends()):
            raise error
        left = self._deadline - monotonic()
        if self._count >= self._attempts or left <= 0:
            raise RetriesExhaustedError(
                attempts=self._count, last=error
            ) from error
        _log.info(
            "attempt %d failed and is repeated: %s",
            self._count,
            error,
            extra={"action": "repeat", "attempt": self._count},
        )
        # Of two transactions that met, the pause must differ, or they
        # would meet again.
        pause = self._pause * random.uniform(0.5, 1.5)  # noqa: S311  # jitter is no secret
        self._pause = min(self._pause * 2, _LONGEST_PAUSE)
        return min(pause, left)


def repeat(
    attempt: Callable[[], T],
    backends: Callable[[], set[Backend]],
    *,
    attempts: int,
    timeout: float,
) -> T:
    """Call ``attempt`` until it succeeds or repeating is not safe.

    :param backends: returns the kinds of server in use, which know what
        an error means.
    :param attempts: how often at most.
    :param timeout: seconds after which no further attempt begins.
    :raises RetriesExhaustedError: when that is used up.
    """
    policy = _Policy(backends, attempts=attempts, timeout=timeout)
    while True:
        try:
            return attempt()
        except (DBAPIError, StaleDataError, ServerRetiredError) as error:
            pause = policy.pause_after(error)
        threading.Event().wait(pause)


async def repeat_awaited(
    attempt: Callable[[], Awaitable[T]],
    backends: Callable[[], set[Backend]],
    *,
    attempts: int,
    timeout: float,
) -> T:
    """Await ``attempt()`` until it succeeds; see :func:`repeat`.

    :raises RetriesExhaustedError: when no attempt is left.
    """
    policy = _Policy(backends, attempts=attempts, timeout=timeout)
    while True:
        try:
            return await attempt()
        except (DBAPIError, StaleDataError, ServerRetiredError) as error:
            pause = policy.pause_after(error)
        await asyncio.sleep(pause)


def _is_safe(error: BaseException, backends: set[Backend]) -> bool:
    if isinstance(error, (CommitUnknownError, PartialCommitError)):
        return False
    if isinstance(error, (StaleDataError, ServerRetiredError)):
        return True
    if not isinstance(error, DBAPIError) or error.orig is None:
        return False
    if error.connection_invalidated:
        return True
    original: Any = error.orig
    return any(b.classify(original) in _REPEATABLE for b in backends)
