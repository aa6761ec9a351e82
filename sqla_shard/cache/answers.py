"""Rows that we have, loaded by the ORM as if a server had answered.

An engine without a server: SQLAlchemy compiles the SELECT and loads the rows
as it always does, with all that belongs to loading: types, the identity map,
what is changed and not flushed, events.  Only where the driver would send the
statement is the answer put in its place.

Who listens to all engines or pools of the process hears nothing of it: what
he does to a connection or counts is meant for those of servers.
"""

from __future__ import annotations

import copy
import threading
import weakref
from collections.abc import Sequence
from typing import Any
from typing import TypeAlias

from sqlalchemy import Engine
from sqlalchemy import event
from sqlalchemy.engine import URL
from sqlalchemy.engine.cursor import FullyBufferedCursorFetchStrategy
from sqlalchemy.engine.interfaces import Dialect
from sqlalchemy.pool import NullPool

from sqla_shard.rendering import Place
from sqla_shard.session.contract import ANSWERS
from sqla_shard.session.contract import Unlike

__all__ = ["ROWS", "answering"]

#: Execution option: the statement, and the rows to answer it with, in the
#: order of its columns.
ROWS = "sqla_shard_cached_rows"


Answer: TypeAlias = tuple[Any, Sequence[Sequence[Any]]]


class _Cursor:
    """Of no driver: it is never asked for rows."""

    description = None
    rowcount = -1
    lastrowid = None
    arraysize = 1

    def close(self) -> None:
        """Do nothing."""


class _Connection:
    """Of no driver: nothing is ever sent."""

    def cursor(self, *arguments: Any, **options: Any) -> _Cursor:
        return _Cursor()

    def commit(self) -> None:
        """Do nothing."""

    rollback = close = terminate = commit


#: Classes that nobody listens to; SQLAlchemy keeps listeners by class.
_NOBODY: tuple[type[Any], ...] = tuple(
    type("Nobody", (), {}) for _ in range(3)
)

_lock = threading.Lock()
_kinds: dict[Any, Engine] = {}
_places: weakref.WeakKeyDictionary[Engine, Place] = weakref.WeakKeyDictionary()


def answering(place: Place) -> Place:
    """Return a place whose server answers with :data:`ROWS`.

    :param place: where rows of this kind are: its dialect knows how to read
        what its driver returns.
    """
    engine = place.engine
    found = _places.get(engine)
    if found is None:
        found = _places[engine] = Place(
            keyspace="cache",
            shard_id=0,
            server="cache",
            schema="cache",
            engine=_engine_for(engine.dialect),
            backend=place.backend,
        )
    return found


def _engine_for(real: Dialect) -> Engine:
    # By what it reads and writes: a cluster of a thousand files of SQLite has
    # as many dialects, and a session would have a connection for each.
    kind = (
        type(real),
        real.is_async,
        getattr(real, "_json_serializer", None),
        getattr(real, "_json_deserializer", None),
    )
    with _lock:
        found = _kinds.get(kind)
        if found is None:
            found = _kinds[kind] = _new_engine(real)
        return found


def _new_engine(real: Dialect) -> Engine:
    dialect = copy.copy(real)
    pool = NullPool(_Connection, dialect=dialect)  # type: ignore[arg-type]  # all that is asked of one
    engine = Engine(pool, dialect, URL.create("cache"))
    # Those of the real engine would be called, and ours for it; those of all
    # would send statements, or take this for one that is sent.
    for target, nobody in zip((dialect, pool, engine), _NOBODY, strict=True):
        events: Any = type(target).dispatch
        target.__dict__["dispatch"] = events._for_class(nobody)
    setattr(engine, ANSWERS, True)
    event.listen(engine, "do_execute", _answer)
    return engine


def _answer(
    cursor: Any, statement: str, parameters: Any, context: Any
) -> bool:
    answer: Answer = context.execution_options[ROWS]
    expected, rows = answer
    if context.invoked_statement is not expected:
        raise Unlike
    names = [entry.keyname for entry in context.compiled._result_columns]
    context.cursor_fetch_strategy = FullyBufferedCursorFetchStrategy(
        cursor, [(name,) + (None,) * 6 for name in names], rows
    )
    return True
