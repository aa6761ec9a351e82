"""One thread, or one task, uses a session at a time.

What two of them send over one connection is answered in the wrong order: a
read returns the rows of another.  SQLAlchemy refuses some of that
(``IllegalStateChangeError``), and not two statements at the same time.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from greenlet import getcurrent
from sqlalchemy.ext.horizontal_shard import ShardedSession

from sqla_shard.exc import ConcurrentUseError

__all__ = ["Usage", "UsedByOne"]


class Usage:
    """Refuses a second user while there is one; a context manager.

    What a user begins inside is part of it: a flush, a loader.

    :raises ConcurrentUseError: by ``with``.
    """

    __slots__ = ("_depth", "_lock", "_thread", "_user")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._user: Any = None
        self._depth = 0
        #: Whose greenlets take part, where the session overlaps its own.
        self._thread: int | None = None

    def __enter__(self) -> None:
        # Each thread has one, and each task that awaits a statement.
        user = getcurrent()
        # Nobody else makes it us, nor takes it away from us.
        if self._user is user or self._is_part():
            self._depth += 1
            return
        if not self._lock.acquire(blocking=False):
            raise ConcurrentUseError(
                "another thread or task uses this session at this moment; a "
                "session is for one at a time: open one for each"
            )
        self._user = user

    def __exit__(self, *error: object) -> None:
        if self._depth:
            self._depth -= 1
            return
        self._user = None
        self._lock.release()

    @contextmanager
    def overlapping(self) -> Iterator[None]:
        """Let statements of the user overlap, each in its own greenlet."""
        before, self._thread = self._thread, threading.get_ident()
        try:
            yield
        finally:
            self._thread = before

    def _is_part(self) -> bool:
        thread = self._thread
        return thread is not None and thread == threading.get_ident()


class UsedByOne(ShardedSession):
    """A session whose statements do not overlap."""

    usage: Usage  #: who uses it at the moment
    _process: int

    def _begin_usage(self) -> None:
        self._process = os.getpid()
        self.usage = Usage()

    def _execute_internal(self, *args: Any, **kwargs: Any) -> Any:
        with self.usage:
            return super()._execute_internal(*args, **kwargs)

    def flush(self, objects: Any = None) -> None:
        """Flush; see :meth:`sqlalchemy.orm.Session.flush`."""
        with self.usage:
            super().flush(objects)

    def commit(self) -> None:
        """Commit; see :meth:`sqlalchemy.orm.Session.commit`."""
        with self.usage:
            super().commit()

    def rollback(self) -> None:
        """Roll back; see :meth:`sqlalchemy.orm.Session.rollback`."""
        with self.usage:
            super().rollback()

    def close(self) -> None:
        """Roll back and close; see :meth:`sqlalchemy.orm.Session.close`.

        All servers are told at once.  When one cannot be told, the
        connections to the others are closed.

        :raises sqlalchemy.exc.SQLAlchemyError: what that one has raised.
        :raises ConcurrentUseError: while another thread or task uses it.
        """
        if self._process != os.getpid():
            # A thread that the parent has, and we have not, may use it.
            self.usage = Usage()
        with self.usage:
            self._close()

    def _close(self) -> None:
        raise NotImplementedError
