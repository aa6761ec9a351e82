"""Repeating a transaction when, and only when, that is safe.

Safe means that the failed attempt has certainly left nothing behind: it was
the victim of a deadlock, waited too long for a lock, met a busy SQLite file,
saw its object changed by another writer, or lost its connection before COMMIT
was sent.  A COMMIT whose outcome is unknown is never repeated.
"""

from __future__ import annotations

import logging
import random
import threading
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
from sqla_shard.exc import StaleDataError

__all__ = ["repeat"]

T = TypeVar("T")

_log = logging.getLogger(__name__)

_REPEATABLE = (Failure.CONFLICT, Failure.LOST)
_FIRST_PAUSE = 0.01
_LONGEST_PAUSE = 1.0


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
    deadline = monotonic() + timeout
    pause = _FIRST_PAUSE
    count = 0
    while True:
        count += 1
        try:
            return attempt()
        except (DBAPIError, StaleDataError) as error:
            if not _is_safe(error, backends()):
                raise
            left = deadline - monotonic()
            if count >= attempts or left <= 0:
                raise RetriesExhaustedError(
                    attempts=count, last=error
                ) from error
            _log.info(
                "attempt %d failed and is repeated: %s",
                count,
                error,
                extra={"action": "repeat", "attempt": count},
            )
        # Of two transactions that met, the pause must differ, or they
        # would meet again.
        delay = min(pause * random.uniform(0.5, 1.5), left)  # noqa: S311  # jitter is no secret
        threading.Event().wait(delay)
        pause = min(pause * 2, _LONGEST_PAUSE)


def _is_safe(error: BaseException, backends: set[Backend]) -> bool:
    if isinstance(error, (CommitUnknownError, PartialCommitError)):
        return False
    if isinstance(error, StaleDataError):
        return True
    if not isinstance(error, DBAPIError) or error.orig is None:
        return False
    if error.connection_invalidated:
        return True
    original: Any = error.orig
    return any(b.classify(original) in _REPEATABLE for b in backends)
