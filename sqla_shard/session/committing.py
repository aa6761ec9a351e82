"""The COMMITs of a transaction, one server after another.

SQLAlchemy commits the servers of a session in the order of a set, that is in
none.  :class:`Commits` puts a :class:`_Part` in the place of the transaction
of each server.  The first of them that SQLAlchemy comes to commits all, in
order; the others find that done.  Everything was flushed before.

Servers that were only read come last: their locks must hold until what was
written because of them is there.  One of them that is lost then takes nothing
along, so that is not an error of the transaction.  What was written past
SQLAlchemy, with a cursor of the driver, counts as read.
"""

from __future__ import annotations

import logging
from typing import Any
from typing import Protocol

from sqlalchemy import Connection
from sqlalchemy import Engine
from sqlalchemy import Transaction
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import SessionTransaction

from sqla_shard.exc import PartialCommitError
from sqla_shard.exc import ServerFencedError
from sqla_shard.session.contract import Announced
from sqla_shard.session.transactions import ReadingLost
from sqla_shard.session.transactions import refuse_lost
from sqla_shard.session.transactions import TransactionLog

__all__ = ["Commits"]

_log = logging.getLogger(__name__)


class _Owner(Protocol):
    """The session, as this module sees it."""

    @property
    def log(self) -> TransactionLog:
        """What the transaction has written."""
        ...

    def announce(self) -> Announced | None:
        """Tell a cache, if there is one, what is about to be committed."""
        ...


class Commits:
    """The COMMITs of one transaction of a session."""

    def __init__(self, owner: _Owner) -> None:
        self._owner = owner
        self._parts: dict[Engine, _Part] = {}
        self._is_done = False

    def take(
        self, transaction: SessionTransaction, connection: Connection
    ) -> None:
        """Have the transaction of one server committed in its turn.

        :param transaction: the session's, that has begun it.
        """
        known = transaction._connections
        own, inner, *rest = known[connection]
        part = _Part(self, connection, inner)
        self._parts[connection.engine] = part
        entry: Any = (own, part, *rest)
        known[connection] = known[connection.engine] = entry

    def forget(self) -> None:
        """Let go of the parts, or nothing but gc would free the session."""
        self._parts.clear()

    def commit(self) -> None:
        """Commit on every server, unless that was done.

        :raises ServerUnreachableError: before any server was told, when the
            transaction is gone on one.
        :raises CommitUnknownError: when the outcome of the only one that
            was written is unknown.
        :raises PartialCommitError: when some have committed, or may have.
        """
        if self._is_done:
            return
        refuse_lost((p.connection for p in self._parts.values()), self._owner)
        announced = self._owner.announce()
        try:
            self._commit_or_tell()
        except BaseException as error:
            if announced is not None and _is_undone(error):
                announced.undone()
            elif announced is not None:
                announced.unknown()
            raise
        self._is_done = True
        if announced is not None:
            announced.committed()

    def _commit_or_tell(self) -> None:
        try:
            self._commit_all()
        except PartialCommitError:
            raise
        except Exception as error:
            # Of a listener of the application, say, at the second COMMIT.
            partial = self._owner.log.cut_short()
            if partial is None:
                raise
            raise partial from error
        except BaseException:
            # Ctrl-C goes on being that.
            partial = self._owner.log.cut_short()
            if partial is not None:
                _log.error(
                    "COMMIT was interrupted: %s",
                    partial,
                    extra={"action": "commit"},
                )
            raise

    def _commit_all(self) -> None:
        read = dict(self._parts)
        for engine in self._owner.log.in_order():
            # What was not sent after all has begun nothing.
            part = read.pop(engine, None)
            if part is not None:
                part.inner.commit()
        for part in read.values():
            part.end()


class _Part:
    """The transaction of one server, for SQLAlchemy's session.

    :ivar connection: of the session.
    :ivar inner: what SQLAlchemy has begun on it.
    """

    def __init__(
        self, commits: Commits, connection: Connection, inner: Transaction
    ) -> None:
        self._commits = commits
        self.connection = connection
        self.inner = inner

    def end(self) -> None:
        """Commit where nothing was written."""
        try:
            self.inner.commit()
        except ReadingLost as lost:
            _log.warning(
                "the connection to %s was lost after COMMIT; the transaction "
                "has only read there, and what it wrote elsewhere is "
                "committed",
                lost.server,
                extra={"action": "commit", "server": lost.server},
            )
            if not self.connection.invalidated:
                self.connection.invalidate()

    # What SQLAlchemy's session asks of a transaction.

    @property
    def is_active(self) -> bool:
        return self.inner.is_active

    def prepare(self) -> None:
        self.inner.prepare()  # type: ignore[attr-defined]  # of twophase=True

    def commit(self) -> None:
        self._commits.commit()

    def rollback(self) -> None:
        self.inner.rollback()

    def close(self) -> None:
        self.inner.close()


def _is_undone(error: BaseException) -> bool:
    """Tell whether a COMMIT has failed, and nothing is committed.

    Where nobody knows, it may still be done later.
    """
    if isinstance(error, DBAPIError):
        return not error.connection_invalidated
    return isinstance(error, ServerFencedError)
