"""Writes that are committed by themselves."""

from __future__ import annotations

from typing import Any

from sqla_shard.exc import CachedWriteError
from sqla_shard.rendering import Place
from sqla_shard.session.contract import Scope

__all__ = ["refuse_autocommit"]


def refuse_autocommit(scope: Scope, place: Place, table: Any) -> None:
    """Refuse a write that is committed by itself, and at once.

    Nothing could be announced before it, and a process that dies after it
    would leave what is old by then.

    :raises CachedWriteError: when rows of the table are kept, and the
        engine of the place has the isolation level AUTOCOMMIT.
    """
    caching = scope.cluster.caching
    if caching is None or not caching.keeps(table):
        return
    if scope.root_connection(place)._is_autocommit_isolation():
        raise CachedWriteError(
            f"{place.server} is used with the isolation level AUTOCOMMIT, "
            "where a write is committed before others can be told; let the "
            "engine have another one",
            table=table.name,
        )
