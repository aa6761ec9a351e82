"""What happens to connections: lost, used, ended, back in the pool."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from sqlalchemy import Connection
from sqlalchemy import Engine
from sqlalchemy import event
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.pool import PoolResetState

from sqla_shard.dialects import Backend
from sqla_shard.dialects import Failure
from sqla_shard.exc import ServerUnreachableError

__all__ = ["PROCESS", "Reset", "unreachable"]

#: In the ``info`` of a connection: the process that has taken it.
PROCESS = "sqla_shard.process"
#: Whether the transaction of a connection has ended, with nothing after it.
_ENDED = "sqla_shard.ended"


def unreachable(
    names: Iterable[str], backend: Backend, context: ExceptionContext
) -> Exception | None:
    """Name the server that has gone away, or cannot be connected to."""
    error = context.sqlalchemy_exception
    if error is None or isinstance(error, ServerUnreachableError):
        return None
    original: Any = context.original_exception
    gone = context.is_disconnect
    if context.connection is None:
        gone = backend.classify(original) is Failure.LOST
    if not gone:
        return None
    return ServerUnreachableError(server=", ".join(names), error=error)


class Reset:
    """Rolls back what comes back to the pool, but in its own process.

    The pool's own reset would send ROLLBACK over a socket that the parent
    process is using, from the finalizer of a session that a child
    inherited; and once more where the session has just sent one.
    """

    def __init__(self, engine: Engine, backend: Backend) -> None:
        self._dialect = engine.dialect
        self._backend = backend
        event.listen(engine, "before_cursor_execute", self._used)
        event.listen(engine, "rollback", self._ended)
        event.listen(engine, "commit", self._ended)
        event.listen(engine, "handle_error", self._failed)
        event.listen(engine, "checkout", self._taken)
        event.listen(engine, "reset", self)

    def _used(
        self,
        connection: Connection,
        cursor: Any,
        statement: str,
        parameters: Any,
        context: Any,
        executemany: bool,
    ) -> None:
        connection.info[_ENDED] = False

    def _failed(self, context: ExceptionContext) -> None:
        connection = context.connection
        # It may have been COMMIT or ROLLBACK itself.
        if connection is not None and not (
            connection.closed or connection.invalidated
        ):
            connection.info[_ENDED] = False

    def _ended(self, connection: Connection) -> None:
        if not connection.invalidated:
            connection.info[_ENDED] = True

    def _taken(self, connection: Any, record: Any, fairy: Any) -> None:
        # Who takes it from the pool past SQLAlchemy is not seen above.
        record.info[_ENDED] = False

    def __call__(
        self, connection: Any, record: Any, state: PoolResetState
    ) -> None:
        """Handle ``reset``: roll back where a transaction may be open."""
        if state.transaction_was_reset or not state.asyncio_safe:
            return
        if record.info.get(_ENDED) and not (
            # Begun by a cursor of the driver, past SQLAlchemy.
            self._backend.in_transaction(connection)
        ):
            return
        if record.info.get(PROCESS) == os.getpid():
            self._dialect.do_rollback(connection)
