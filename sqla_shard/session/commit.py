"""The COMMITs of a transaction, one server after another.

SQLAlchemy commits the servers of a session in the arbitrary order of a set.
:class:`Commits` replaces the transaction of each server with a :class:`_Part`:
the first one that SQLAlchemy commits sends all COMMITs in order, and the
others do nothing.  The session has been flushed before.

Servers that were only read commit last: their locks must be held until the
writes that depend on them are committed.  A connection that is lost on one of
them is not an error of the transaction.  Writes with a cursor of the driver,
which SQLAlchemy does not see, count as reads.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from time import perf_counter
from typing import Any, TYPE_CHECKING

from sqlalchemy import Connection, Engine, Transaction
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import SessionTransaction

from sqla_shard.exc import PartialCommitError, ServerFencedError
from sqla_shard.session.invalidation import announce
from sqla_shard.session.transaction import ReadingLost, refuse_lost
from sqla_shard.util import sqlalchemy_private as private

if TYPE_CHECKING:
    from sqla_shard import ShardSession

__all__ = ["OUTCOMES", "CommitReport", "Commits"]

_log = logging.getLogger(__name__)


OUTCOMES = ("committed", "read", "failed", "unknown", "partial")
"""The outcomes of a :class:`CommitReport`."""


@dataclass(frozen=True, kw_only=True)
class CommitReport:
    """The end of a transaction, for listeners of ``commit_ended``.

    :ivar outcome: ``"committed"``; ``"read"``: committed, but nothing was
        written; ``"failed"``: nothing was committed; ``"unknown"``: COMMIT
        was sent, and its response lost; ``"partial"``: some servers have
        committed, or may have.
    :ivar servers: number of servers.
    :ivar seconds: duration of all COMMITs.
    :ivar error: the error, if any.
    """

    outcome: str
    servers: int
    seconds: float
    error: BaseException | None = None


class Commits:
    """The COMMITs of one transaction of a session."""

    def __init__(self, session: ShardSession) -> None:
        self._session = session
        self._parts: dict[Engine, _Part] = {}
        self._is_done = False

    def take(self, transaction: SessionTransaction, connection: Connection) -> None:
        """Register the transaction of one server, to commit it in order.

        :param transaction: the transaction of the session.
        :param connection: the connection to the server.
        """
        known = private.connections_of(transaction)
        own, inner, *rest = known[connection]
        part = _Part(self, connection, inner)
        self._parts[connection.engine] = part
        entry: Any = (own, part, *rest)
        known[connection] = known[connection.engine] = entry

    def forget(self) -> None:
        """Drop the parts, whose reference cycle keeps the session alive."""
        self._parts.clear()

    def commit(self) -> None:
        """Commit on every server; do nothing the second time.

        :raises ServerUnreachableError: before any COMMIT, if a connection
            was lost.
        :raises CommitUnknownError: if the outcome on the only written
            server is unknown.
        :raises PartialCommitError: if some servers have committed, or may
            have.
        """
        if self._is_done:
            return
        refuse_lost((p.connection for p in self._parts.values()), self._session)
        announced = announce(self._session)
        writes = any(True for _ in self._session.log.in_order())
        start = perf_counter()
        try:
            self._commit_or_report()
        except BaseException as error:
            self._report(_outcome(error), start, error)
            if announced is not None and _is_undone(error):
                announced.after_rollback()
            elif announced is not None:
                announced.commit_unknown()
            raise
        self._is_done = True
        if announced is not None:
            announced.after_commit()
        self._report("committed" if writes else "read", start)

    def _report(
        self, outcome: str, start: float, error: BaseException | None = None
    ) -> None:
        cluster = self._session.cluster
        if cluster.listens("commit_ended"):
            report = CommitReport(
                outcome=outcome,
                servers=len(self._parts),
                seconds=perf_counter() - start,
                error=error,
            )
            cluster.notify("commit_ended", report)

    def _commit_or_report(self) -> None:
        try:
            self._commit_all()
        except PartialCommitError:
            raise
        except Exception as error:
            # For example, an application's listener failed between COMMITs.
            partial = self._session.log.interrupted_error()
            if partial is None:
                raise
            raise partial from error
        except BaseException:
            # Raise Ctrl-C unchanged.
            partial = self._session.log.interrupted_error()
            if partial is not None:
                _log.error(
                    "COMMIT was interrupted: %s", partial, extra={"action": "commit"}
                )
            raise

    def _commit_all(self) -> None:
        read = dict(self._parts)
        for engine in self._session.log.in_order():
            # None if no statement was sent after the write was recorded
            part = read.pop(engine, None)
            if part is not None:
                part.inner.commit()
        for part in read.values():
            part.end()


class _Part:
    """The transaction of one server, with the interface of SQLAlchemy's.

    :ivar connection: the connection of the session.
    :ivar inner: SQLAlchemy's transaction.
    """

    def __init__(
        self, commits: Commits, connection: Connection, inner: Transaction
    ) -> None:
        self._commits = commits
        self.connection = connection
        self.inner = inner

    def end(self) -> None:
        """Commit on a server that was only read."""
        try:
            self.inner.commit()
        except ReadingLost as lost:
            _log.warning(
                "the connection to %s was lost at COMMIT; the transaction "
                "has only read there, and its writes on other servers are "
                "committed",
                lost.server,
                extra={"action": "commit", "server": lost.server},
            )
            if not self.connection.invalidated:
                self.connection.invalidate()

    # Methods that SQLAlchemy's session calls

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


def _outcome(error: BaseException) -> str:
    """Return the outcome of a transaction whose COMMIT has failed."""
    if isinstance(error, PartialCommitError):
        return "partial"
    return "failed" if _is_undone(error) else "unknown"


def _is_undone(error: BaseException) -> bool:
    """Return whether definitely nothing was committed."""
    if isinstance(error, DBAPIError):
        return not error.connection_invalidated
    return isinstance(error, ServerFencedError)
