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
from typing import Any

from sqlalchemy import Connection, Engine, event
from sqlalchemy.orm import Session

from sqla_shard.cluster.cluster import Cluster
from sqla_shard.engine.hooks import TRANSACTION_LOG
from sqla_shard.exc import ConcurrentUseError
from sqla_shard.session.get import ANSWERS
from sqla_shard.session.session import ShardSession
from sqla_shard.util import sqlalchemy_private as private


@contextmanager
def rolled_back(cluster: Cluster) -> Iterator[Cluster]:
    """Roll back at the end what the sessions of a cluster have committed.

    Sessions of other clusters and processes see none of it, and wait for its
    locks.  AUTO_INCREMENT goes on, and the cache keeps what was read.

    Use :meth:`.ServerFleet.empty` for asynchronous sessions, for threads that
    use the cluster at the same time, such as those of a
    :class:`~sqla_shard.jobs.Worker`, and after a change of tables or a deadlock,
    which end the transaction.

    :param cluster: its tables exist.
    :raises TypeError: when an asynchronous session begins.
    :raises ConcurrentUseError: at the COMMIT of a session, if one that began
        later has not ended.
    """
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
            Session.close(session)
            joined.restore()
        else:
            close(session)

    cls: Any = ShardSession
    cls._connection_for_bind, cls._close = bind_joined, close_joined
    try:
        yield cluster
    finally:
        cls._connection_for_bind, cls._close = bind, close
        joined.end()


class _Joined:
    """A connection to each server, in a transaction that nothing commits."""

    def __init__(self) -> None:
        self._connections: dict[Engine, Connection] = {}
        #: The savepoints of sessions that have not ended, with their logs.
        self._logs: dict[Connection, dict[str, Any]] = {}

    def join(self, session: Any, engine: Engine) -> None:
        """Let the transaction of a session begin with a savepoint."""
        if any(one.engine is engine for one in session._connections):
            return
        if engine.dialect.is_async:
            raise TypeError(
                f"{session!r} is asynchronous: rolled_back() cannot join it; empty "
                "the tables with fleet.empty()"
            )
        connection = self._connections.get(engine) or self._begin(engine)
        session.join_transaction_mode = "create_savepoint"
        Session._connection_for_bind(session, connection)
        name = private.savepoint_name(connection)
        self._logs[connection][name] = connection.info[TRANSACTION_LOG]

    def _begin(self, engine: Engine) -> Connection:
        connection = self._connections[engine] = engine.connect()
        self._logs[connection] = {}
        connection.begin()
        event.listen(connection, "release_savepoint", self._on_release)
        event.listen(connection, "rollback_savepoint", self._on_rollback)
        return connection

    def _on_release(self, connection: Connection, name: str, context: None) -> None:
        logs = self._logs[connection]
        if name not in logs:
            return  # of begin_nested()
        if name != [*logs][-1]:
            raise ConcurrentUseError(
                "a session that began later has a transaction on "
                f"{connection.engine.url!r}: in rolled_back() end it before this "
                "COMMIT, which would end its savepoint"
            )
        # As before a COMMIT: it sends the last statements.
        logs.pop(name).committing(connection)

    def _on_rollback(self, connection: Connection, name: str, context: None) -> None:
        self._logs[connection].pop(name, None)

    def restore(self) -> None:
        """Let errors of statements be those of the sessions that are open."""
        for connection, logs in self._logs.items():
            if logs:
                connection.info[TRANSACTION_LOG] = [*logs.values()][-1]

    def end(self) -> None:
        """Roll back on every server."""
        with ExitStack() as stack:
            for connection in self._connections.values():
                stack.callback(connection.close)
