"""What a session does at the events of SQLAlchemy's own."""

from __future__ import annotations

from typing import Any

from sqlalchemy import event
from sqlalchemy.orm import SessionTransaction

from sqla_shard.session.stale import note_flush
from sqla_shard.session.stale import settle
from sqla_shard.session.statements import prepare
from sqla_shard.session.transactions import note_commit
from sqla_shard.session.transactions import refuse_lost
from sqla_shard.session.unit_of_work import place_objects

__all__ = ["listen"]


def _before_flush(session: Any, context: Any, objects: Any) -> None:
    session.check_process()
    place_objects(session)


def _before_commit(session: Any) -> None:
    refuse_lost(session._begun, session)
    settle(session)


def _after_begin(
    session: Any, transaction: SessionTransaction, connection: Any
) -> None:
    session.begun(transaction, connection)


def _after_create(session: Any, transaction: SessionTransaction) -> None:
    if transaction.nested:
        session.log.savepoint(transaction)


def _after_rollback(session: Any, previous: SessionTransaction) -> None:
    if session._log is not None:  # reset already, where all has ended
        session._log.rolled_back(previous)
    session.placed.clear()


def _after_end(session: Any, transaction: SessionTransaction) -> None:
    if transaction.parent is None:
        log = session._log
        session._reset_transaction()
        session.pending = ()
        if log is not None:
            log.finish(session)


_LISTENERS: dict[str, Any] = {
    "do_orm_execute": prepare,
    "before_flush": _before_flush,
    "after_flush": note_flush,
    "before_commit": _before_commit,
    "after_commit": note_commit,
    "after_begin": _after_begin,
    "after_transaction_create": _after_create,
    "after_soft_rollback": _after_rollback,
    "after_transaction_end": _after_end,
}


def listen(cls: type[Any]) -> None:
    """Have a class of sessions do it."""
    for name, listener in _LISTENERS.items():
        event.listen(cls, name, listener)
