"""The option of reads that go past the cache."""

from __future__ import annotations

from sqlalchemy.orm import UserDefinedOption

__all__ = ["NoCache", "no_cache"]


class NoCache(UserDefinedOption):
    """The option that :func:`no_cache` returns."""

    propagate_to_loaders = False


def no_cache() -> NoCache:
    """Let one read by id ask the database, and not the cache.

    ::

        session.get(User, user_id, options=[no_cache()])
        session.get_many(User, user_ids, options=[no_cache()])

    What it reads is not put into the cache either.  An object that the
    session holds already is returned as it is, as without a cache; to read
    it again say ``populate_existing=True``.  ``select()`` never asks the
    cache, and takes the option for code that has options for both.  Lists
    have no options: use ``cluster.session(cache=False)``.
    """
    return NoCache()
