"""The table of session listeners, in the order of their calls.

The modules of :mod:`sqla_shard.models`, which the session does not import,
register more on the class.  ``before_flush`` and ``after_flush_postexec`` of
blob fields are called after these.  Of ``do_orm_execute`` the check of an
UPDATE of blob fields is called before :func:`.execute.prepare`; the condition
that hides inactive objects is added after it.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import event
from sqlalchemy.orm import SessionTransaction

from sqla_shard.session.execute import prepare
from sqla_shard.session.flush import place_objects
from sqla_shard.session.invalidation import ensure_begun, invalidate_flushed
from sqla_shard.session.transaction import record_commit, refuse_lost


def _before_flush(session: Any, context: Any, objects: Any) -> None:
    session._check_process()
    place_objects(session)


def _before_commit(session: Any) -> None:
    refuse_lost(session._connections, session)
    ensure_begun(session)


def _after_begin(
    session: Any, transaction: SessionTransaction, connection: Any
) -> None:
    session._follow(transaction, connection)


def _after_create(session: Any, transaction: SessionTransaction) -> None:
    if transaction.nested:
        session.log.savepoint(transaction)


def _after_rollback(session: Any, previous: SessionTransaction) -> None:
    if session._log is not None:  # None after the end of the transaction
        session._log.rolled_back(previous)
    session._placed.clear()


def _after_end(session: Any, transaction: SessionTransaction) -> None:
    if transaction.parent is None:
        log = session._log
        session._reset_transaction()
        session.pending = ()
        if log is not None:
            log.run_after_commit(session)


_LISTENERS: dict[str, Any] = {
    "do_orm_execute": prepare,
    "before_flush": _before_flush,
    "after_flush": invalidate_flushed,
    "before_commit": _before_commit,
    "after_commit": record_commit,
    "after_begin": _after_begin,
    "after_transaction_create": _after_create,
    "after_soft_rollback": _after_rollback,
    "after_transaction_end": _after_end,
}


def listen(cls: type[Any]) -> None:
    """Register the listeners of a class of sessions."""
    for name, listener in _LISTENERS.items():
        event.listen(cls, name, listener)
