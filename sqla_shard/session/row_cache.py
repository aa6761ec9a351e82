"""The row cache, as a session uses it."""

from __future__ import annotations

from typing import Any, TYPE_CHECKING

from sqlalchemy.orm import UserDefinedOption

from sqla_shard.engine.rendering import Place
from sqla_shard.exc import CachedWriteError
from sqla_shard.util import sqlalchemy_private as private

if TYPE_CHECKING:
    from sqla_shard import ShardSession
    from sqla_shard.cache import Cache

#: Attribute of the engine that returns rows of the cache.
ANSWERS = "sqla_shard_answers"


class CacheMismatch(Exception):  # noqa: N818 - no error
    """Raised if cached rows do not match the columns of the statement.

    A listener of the session has changed the statement.  The session catches
    the error and reads the database.
    """


def usable_cache(session: ShardSession) -> Cache | None:
    """Return the cache; None if reads must not use it.

    After a write in the transaction, reads must not use it: the cache does
    not contain the written values.
    """
    caching = session.cluster.caching
    if caching is None or not session.uses_cache:
        return None
    return caching if session.log.first is None else None


def cache_for(session: ShardSession, table: Any) -> Cache | None:
    """Return the cache; None if reads of a table must not use it."""
    caching = usable_cache(session)
    if caching is not None and caching.reads(table):
        return caching
    return None


def cache_in_transaction(
    session: ShardSession, table: Any, *, flush: bool = True
) -> Cache | None:
    """Begin the transaction, as a statement would; return the cache.

    The topology and the ``cross_shard`` option belong to a transaction:
    otherwise a session that only reads from the cache would use those of its
    first read forever.
    """
    if cache_for(session, table) is None:
        return None
    session._check_process()
    private.autobegin(session)
    if flush:
        # Flush before cache_for(): the written rows are not in the cache.
        private.autoflush(session)
    return cache_for(session, table)


class NoCache(UserDefinedOption):
    """The option that :func:`no_cache` returns."""

    propagate_to_loaders = False


def no_cache() -> NoCache:
    """Return an option with which one read by id bypasses the cache.

    ::

        session.get(User, user_id, options=[no_cache()])
        session.get_many(User, user_ids, options=[no_cache()])

    The rows are not written to the cache either.  An object that is already
    in the session is returned unchanged, as without a cache; pass
    ``populate_existing=True`` to read it again.  ``select()`` never uses the
    cache; it accepts the option for code that shares its options with
    ``get()``.  For lists, which take no options, use
    ``cluster.session(cache=False)``.
    """
    return NoCache()


def refuse_cached_autocommit(session: ShardSession, place: Place, table: Any) -> None:
    """Refuse a write in autocommit mode to a table that is cached.

    The write is committed before keys can be invalidated: if the process
    dies right after it, old rows stay in the cache.

    :raises CachedWriteError: if rows of the table are cached, and the
        engine has the isolation level AUTOCOMMIT.
    """
    caching = session.cluster.caching
    if caching is None or not caching.is_cached(table):
        return
    if private.is_autocommit(session.root_connection(place)):
        raise CachedWriteError(
            f"the engine of {place.server} has the isolation level "
            "AUTOCOMMIT, which commits a write before the row cache can be "
            "invalidated; set another isolation level",
            table=table.name,
        )
