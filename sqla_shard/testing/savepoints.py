"""Tests whose rows are rolled back: one transaction around all sessions.

::

    @pytest.fixture
    def cluster(tables):
        with rolled_back(tables) as cluster:
            yield cluster

It is SQLAlchemy's recipe to join a session into an external transaction, for
every session of a cluster.  Each server has one connection and transaction; a
session that begins on it sets a savepoint, which its COMMIT releases, and its
ROLLBACK returns to.  So later sessions see what was committed, on all shards, and
the end of the test takes one ROLLBACK per server.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, ExitStack
from functools import partial
from typing import Any
from weakref import WeakSet

from sqlalchemy import Connection, Engine, event, NestedTransaction
from sqlalchemy.orm import Session

from sqla_shard.cluster.cluster import Cluster
from sqla_shard.engine.hooks import TRANSACTION_LOG
from sqla_shard.engine.plans import OPTION
from sqla_shard.exc import ConcurrentUseError
from sqla_shard.session.get import ANSWERS
from sqla_shard.session.session import ShardSession
from sqla_shard.session.transaction import TransactionLog
from sqla_shard.util import sqlalchemy_private as private

#: Those that are rolled back.
_clusters: WeakSet[Cluster] = WeakSet()


@contextmanager
def rolled_back(cluster: Cluster) -> Iterator[Cluster]:
    """Roll back at the end what the sessions of a cluster have committed.

    Sessions may be open at the same time, and see what the others have flushed.
    They end in any order, but one cannot roll back on a server where another has
    written after its first write.  Close them all: what one has written that is
    only dropped is not rolled back before the end.

    Sessions of other clusters and processes see none of it, and wait for its
    locks.  AUTO_INCREMENT goes on, and the cache keeps what was read.

    Use :meth:`.ServerFleet.empty` for asynchronous sessions, for threads that
    use the cluster at the same time, such as those of a
    :class:`~sqla_shard.jobs.Worker`, and after a change of tables, a deadlock or
    ``session.invalidate()``, which end the transaction.

    :param cluster: its tables exist.
    :raises TypeError: when an asynchronous session begins.
    :raises ConcurrentUseError: if the cluster is rolled back by an outer call; at
        statements of a session whose transaction began earlier; at a ROLLBACK or
        ``close()`` that would undo what another session has written.
    """
    if cluster in _clusters:
        raise ConcurrentUseError(
            f"rolled_back({cluster!r}) is not over: one call serves all sessions; "
            "let only one fixture call it"
        )
    joined = _Joined()
    # Of all sessions: the package opens some of its own.
    bind: Any = ShardSession._connection_for_bind
    close: Any = ShardSession._close

    def bind_joined(session: Any, engine: Any, *args: Any, **kw: Any) -> Any:
        if session.cluster is cluster and not getattr(engine, ANSWERS, False):
            joined.join(session, engine)
        return bind(session, engine, *args, **kw)

    def close_joined(session: Any) -> None:
        if session.cluster is cluster and session._process == os.getpid():
            # The other would roll back the outer transactions, of several servers.
            joined.close(session)
        else:
            close(session)

    cls: Any = ShardSession
    cls._connection_for_bind, cls._close = bind_joined, close_joined
    _clusters.add(cluster)
    try:
        yield cluster
    finally:
        _clusters.discard(cluster)
        cls._connection_for_bind, cls._close = bind, close
        joined.end()


class _Joined:
    """A connection to each server, in a transaction that nothing commits."""

    def __init__(self) -> None:
        self.servers: dict[Engine, _ServerTransaction] = {}
        #: Of the session that sends a statement.
        self.log: TransactionLog

    def join(self, session: Any, engine: Engine) -> None:
        """Let the transaction of a session begin with a savepoint."""
        self.log = session.log
        server = self.servers.get(engine)
        for one in session._connections:
            if one.engine is engine:
                if server is None or one is not server.connection:
                    raise ConcurrentUseError(
                        f"the transaction of {session!r} on {engine.url!r} began "
                        "before rolled_back(), which could not undo it: end it first"
                    )
                return
        if engine.dialect.is_async:
            raise TypeError(
                f"{session!r} is asynchronous: rolled_back() cannot join it; empty "
                "the tables with fleet.empty()"
            )
        server = server or self._begin(engine)
        session.join_transaction_mode = "create_savepoint"
        Session._connection_for_bind(session, server.connection)

    def _begin(self, engine: Engine) -> _ServerTransaction:
        connection: Any = engine.connect()
        server = self.servers[engine] = _ServerTransaction(connection)
        connection.begin()
        event.listen(connection, "before_cursor_execute", self._on_execute)
        # Of sessions that begin, and of their begin_nested().
        connection.begin_nested = partial(_Savepoint, server, self)
        return server

    def _on_execute(
        self,
        connection: Connection,
        cursor: Any,
        statement: str,
        parameters: Any,
        context: Any,
        executemany: bool,
    ) -> None:
        if context.compiled is None or getattr(context, "is_text", False):
            writes = not statement.lstrip(" \n\t(").upper().startswith(_READS)
        else:
            writes = context.isinsert or context.isupdate or context.isdelete
        if writes:
            # On a connection that a session has kept: not of the last session.
            plan = context.execution_options.get(OPTION)
            owner: Any = getattr(plan and plan.wrote, "__self__", None)
            log = getattr(owner, "log", owner) or self.log
            self.servers[connection.engine].record(log)

    def close(self, session: Any) -> None:
        """Close a session, on all servers."""
        try:
            Session.close(session)
        except ConcurrentUseError:
            # It stops at the first server.
            Session.close(session)
            session._reset_transaction()
            raise
        finally:
            # Errors of statements, and savepoints, are of a session that is open.
            for server in self.servers.values():
                if server.savepoints:
                    self.log = server.savepoints[-1].log
                    server.connection.info[TRANSACTION_LOG] = self.log

    def end(self) -> None:
        """Roll back on every server."""
        with ExitStack() as stack:
            for server in self.servers.values():
                stack.callback(server.connection.close)
                for one in [*server.savepoints]:
                    one.end()


_READS = ("SELECT", "SHOW")


class _ServerTransaction:
    """Parts of the transaction of a server."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        #: Those that have not ended, in order.
        self.savepoints: list[_Savepoint] = []
        #: For each write that was not rolled back, the log of its session.
        self.writes: list[TransactionLog] = []

    def record(self, log: TransactionLog) -> None:
        """Record a write before it is sent."""
        for one in [*self.savepoints]:
            if one.log is log and one.is_crossed and log not in one.writes:
                # So that it can be rolled back without those of other sessions.
                one.move()
        self.writes.append(log)


class _Savepoint(NestedTransaction):
    """A savepoint whose end undoes nothing that another session has written.

    SQLAlchemy's must end in the reverse order, which sessions need not.
    """

    __slots__ = ("_joined", "_server", "_start", "log")

    def __init__(self, server: _ServerTransaction, joined: _Joined) -> None:
        super().__init__(server.connection)
        self.log = joined.log
        self._joined, self._server = joined, server
        self._start = len(server.writes)
        server.savepoints.append(self)

    @property
    def writes(self) -> list[TransactionLog]:
        """The writes since."""
        return self._server.writes[self._start :]

    @property
    def is_crossed(self) -> bool:
        """Whether another session has written since."""
        return any(log is not self.log for log in self.writes)

    def move(self) -> None:
        """Set it again, after what others have written."""
        self._savepoint = private.set_savepoint(self.connection)
        self._start = len(self._server.writes)
        self._server.savepoints.remove(self)
        self._server.savepoints.append(self)

    def _do_commit(self) -> None:
        savepoints = self._server.savepoints
        if [one for one in savepoints if one.log is self.log] == [self]:
            self._joined.log = self.log
            try:
                # As before a COMMIT: it sends the last statements.
                self.log.committing(self.connection)
            except BaseException:
                self._do_close()
                raise
        if not self.is_active or savepoints[-1] is self:
            super()._do_commit()
        else:
            # RELEASE would end later savepoints, too.
            self.end()

    def _close_impl(self, *args: Any) -> None:
        if not self.is_active:
            super()._close_impl(*args)
        elif not self.is_crossed:
            savepoints = self._server.savepoints
            later = savepoints[savepoints.index(self) + 1 :]
            super()._close_impl(*args)
            del self._server.writes[self._start :]
            for one in () if self.connection.invalidated else later:
                # ROLLBACK has ended it.
                one.move()
        elif self.log in self.writes:
            # Those of all servers: SQLAlchemy stops at the first that fails.
            for each in self._joined.servers.values():
                for one in [*each.savepoints]:
                    if one.log is self.log:
                        one.end()
            raise ConcurrentUseError(
                "this ROLLBACK would undo what another session has written since on "
                f"{self.connection.engine.url!r}: in rolled_back() end a session "
                "that has written before another writes, or use fleet.empty()"
            )
        else:
            self.end()

    def end(self) -> None:
        """Send nothing."""
        self.is_active = False
        self._deactivate_from_connection()

    def _deactivate_from_connection(self, warn: bool = True) -> None:
        savepoints = self._server.savepoints
        if self in savepoints:
            savepoints.remove(self)
        self.connection._nested_transaction = savepoints[-1] if savepoints else None
