"""The connection of a session to what answers with rows of the cache.

It is no part of the transaction: who listens to ``after_begin`` sends
statements to servers, and the execution options of a session are for these.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection
from sqlalchemy.engine.util import TransactionalContext
from sqlalchemy.ext.horizontal_shard import ShardedSession

from sqla_shard.session.contract import ANSWERS

__all__ = ["Answered"]


class Answered(ShardedSession):
    """A session that has rows which no server sends."""

    _answering: Connection | None = None

    def _connection_for_bind(
        self, engine: Any, execution_options: Any = None, **kw: Any
    ) -> Connection:
        if not getattr(engine, ANSWERS, False):
            return super()._connection_for_bind(
                engine, execution_options, **kw
            )
        # As SQLAlchemy does where it connects to a server.
        TransactionalContext._trans_ctx_check(self)
        transaction: Any = self._autobegin_t()
        if not transaction.is_active:
            transaction._raise_for_prerequisite_state(
                "execute", transaction._state
            )
        found = self._answering
        if found is None or found.engine is not engine:
            self.forget_answers()
            found = self._answering = engine.connect()
        return found

    def forget_answers(self) -> None:
        """Close the connection."""
        if self._answering is not None:
            self._answering.close()
            self._answering = None
