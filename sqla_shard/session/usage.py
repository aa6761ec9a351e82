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


#: The only key of ``_users``.
_USER = "user"


class Usage:
    """Refuses a second user while there is one; a context manager.

    What a user begins inside is part of it: a flush, a loader.

    :raises ConcurrentUseError: by ``with``.
    """

    __slots__ = ("_depth", "_process", "_thread", "_users")

    def __init__(self) -> None:
        # Taken in one step: Ctrl-C between two, such as those of a lock and
        # of its owner, would leave a session that refuses its own user.
        self._users: dict[str, Any] = {}
        self._depth = 0
        self._process = os.getpid()
        #: Whose greenlets take part, where the session overlaps its own.
        self._thread: int | None = None

    def __enter__(self) -> None:
        # Each thread has one, and each task that awaits a statement.
        user = getcurrent()
        # Nobody else makes it us, nor takes it away from us.
        if self._users.get(_USER) is user or self._is_part():
            self._depth += 1
            return
        if self._process != os.getpid():
            # A thread that the parent has, and we have not, may use it.
            self.__init__()  # type: ignore[misc]  # all anew
        if self._users.setdefault(_USER, user) is not user:
            raise ConcurrentUseError(
                "another thread or task uses this session at this moment; a "
                "session is for one at a time: open one for each"
            )

    def __exit__(self, *error: object) -> None:
        if self._depth:
            self._depth -= 1
        elif self._users.get(_USER) is getcurrent():
            del self._users[_USER]

    def end(self) -> None:
        """Forget what was interrupted before it could leave; for the user."""
        self._depth = 0

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
        with self.usage:
            try:
                self._close()
            finally:
                self.usage.end()

    def _close(self) -> None:
        raise NotImplementedError
