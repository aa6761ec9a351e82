"""Functions of an application whose results are kept, and under which key.

A function is told by its format: the key of a result is the prefix of the
cache, ``f``, and the format with the id in it.  Which function it was, which
version of it, and which life of the server of the id, stands in the value, as
it does for rows; see :mod:`.classes`.

Modules are imported before a cluster has a cache, and there may be several
clusters: what the decorators make is found here by the class of its ids.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence
from typing import Any
from weakref import ref
from weakref import WeakKeyDictionary

from sqlalchemy.ext.asyncio import async_scoped_session
from sqlalchemy.orm import scoped_session

from sqla_shard.cache.classes import check_id
from sqla_shard.cache.classes import digest
from sqla_shard.cache.classes import is_mapping
from sqla_shard.cache.classes import mapper_of
from sqla_shard.cache.classes import place_of
from sqla_shard.cache.generations import generation_of
from sqla_shard.cache.store import check_keys
from sqla_shard.cache.store import check_seconds
from sqla_shard.exc import CachedFunctionError
from sqla_shard.exc import CacheKeyError
from sqla_shard.exc import CacheOptionError
from sqla_shard.rendering import Place
from sqla_shard.session import ShardSession
from sqla_shard.session.contract import Scope

__all__ = ["KeptFunction", "begun", "functions_of", "register", "scope_of"]

#: What an id stands for, and all that keys may have but for it.
_FORMAT = re.compile(r"[!-$&-~]*%([ds])[!-$&-~]*")
_LONGEST_FORMAT = 100
#: Another one makes what all functions have left unreadable.
_LAYOUT = 1


class KeptFunction:
    """A function of an application, and how its results are kept.

    :param function: the function itself.
    :param region: name of the region.
    :param format: of keys.
    :param version: another one makes what was kept before unreadable.
    :param expire: seconds that a result is kept; None for the region's.
    :param of: the class that the ids are of.
    :param parts: what else tells results apart.
    :raises CacheOptionError: when an option makes no sense.
    :raises CacheClassError: when ``of`` is no class that rows are kept of.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        region: str,
        *,
        format: str,  # noqa: A002  # as in Pinterest's
        version: int,
        expire: int | None,
        of: Any,
        parts: Sequence[Any],
    ) -> None:
        self.function = function
        self.identity = function.__module__, function.__qualname__
        self.name = ".".join(self.identity)
        self.region = _checked_region(region)
        self.format = format
        self.takes = _taken(format)
        if type(version) is not int:
            raise CacheOptionError(
                "is no full number", option="version", value=version
            )
        if expire is not None:
            check_seconds("expire", expire)
        self.expire = expire
        self.table: Any = None
        if of is not None:
            is_mapping(of)
            if self.takes is not int:
                raise CacheOptionError(
                    f"does not take ids of {of.__name__}, which are numbers: "
                    "use %d, or leave of= away",
                    option="format",
                    value=format,
                )
            self.table = mapper_of(of).local_table
            self._of = of.__name__
        self._digest = digest(
            _LAYOUT, self.identity, format, version, *parts
        ).encode("ascii")

    def check(self, ids: Iterable[Any]) -> None:
        """Look at ids, whether there is a cache or not.

        :raises CachedFunctionError: when one is not of the type that the
            format takes.
        :raises CacheKeyError: when one has what no key may have.
        :raises InvalidIdError: when it is no id of the class.
        """
        for one in ids:
            # Not only what %d and %s take: 1.5, True and None are not what
            # the function means.
            if type(one) is not self.takes:
                raise CachedFunctionError(
                    f"was given {one!r:.100}, and its format {self.format!r} "
                    f"takes an id of type {self.takes.__name__}",
                    function=self.name,
                )
            if self.table is not None:
                check_id(self.table, self._of, one)
            elif self.takes is str:
                if not one:
                    raise CacheKeyError(key=one)
                check_keys([self.format % one])

    def key(self, caching: Any, one: Any) -> str:
        """Return the key of an id."""
        return f"{caching.prefix}:f:{self.format % one}"

    def place(self, scope: Scope, one: Any) -> Place | None:
        """Return the shard of an id; None where it is of no class."""
        if self.table is None:
            return None
        return place_of(scope, self.table, self._of, one)

    def tag(self, scope: Scope, one: Any) -> bytes:
        """Return what a value begins with that we can read."""
        place = self.place(scope, one)
        if place is None:
            return self._digest + b"::"
        generation = generation_of(scope.places, place)
        return self._digest + f":{generation}:".encode("ascii")

    def invalidate(self, session: Any, ids: Any) -> None:
        """Have results invalidated with the COMMIT of a transaction.

        The transaction need not write anything itself.

        :param session: its transaction begins, if need be.
        :param ids: one, or several.
        :raises CachedFunctionError: when one is not what the format takes.
        :raises CacheOptionError: when the cache has no such region.
        """
        scope = begun(session)
        many = [ids] if isinstance(ids, (int, str)) else list(ids)
        self.check(many)
        caching: Any = scope.cluster.caching
        if caching is None:
            return
        caching.region(self.region)
        check_keys(self.key(caching, one) for one in many)
        for one in many:
            self.note(scope, caching, one, self.place(scope, one))

    def note(
        self, scope: Scope, caching: Any, one: Any, place: Place | None
    ) -> None:
        """Take note that a transaction makes the result of an id old.

        :param place: the shard of the id; None where it is of no class.
        """
        entry = self.region, self.key(caching, one)
        scope.log.note(entry, place, is_made=True)


def _checked_region(region: Any) -> str:
    if not isinstance(region, str):
        raise CacheOptionError(
            "is no name of a region", option="region", value=region
        )
    return region


def _taken(format_: Any) -> type[Any]:
    found = None
    if isinstance(format_, str) and len(format_) <= _LONGEST_FORMAT:
        found = _FORMAT.fullmatch(format_)
    if found is None:
        raise CacheOptionError(
            "is no format of keys: it has %d or %s once, for the id, and "
            f"else up to {_LONGEST_FORMAT - 2} ASCII characters without "
            "blanks and %",
            option="format",
            value=format_,
        )
    return int if found[1] == "d" else str


# -- finding them

#: Weak, as modules may be loaded anew; and never changed in place, as others
#: may be looking.
_known: list[tuple[ref[KeptFunction], ...]] = [()]
_by_table: WeakKeyDictionary[Any, tuple[ref[KeptFunction], ...]] = (
    WeakKeyDictionary()
)
_lock = threading.Lock()


def register(kept: KeptFunction) -> None:
    """Let a function be found.

    :raises CacheOptionError: when another one has its format.
    """
    with _lock:
        for known in _alive(_known[0]):
            if known.format == kept.format and not _is_reloaded(known, kept):
                raise CacheOptionError(
                    f"is that of {known.name}() already: each would take the "
                    "other's results away; give it another one, and define "
                    "it once, at the top of a module",
                    option="format",
                    value=kept.format,
                )
        _known[0] = _with(_known[0], kept)
        if kept.table is not None:
            others = _by_table.get(kept.table, ())
            _by_table[kept.table] = _with(others, kept)


def _with(
    some: Iterable[ref[KeptFunction]], kept: KeptFunction
) -> tuple[ref[KeptFunction], ...]:
    return (*map(ref, _alive(some)), ref(kept))


def _alive(some: Iterable[ref[KeptFunction]]) -> list[KeptFunction]:
    found = [one() for one in some]
    return [one for one in found if one is not None]


def _is_reloaded(known: KeptFunction, kept: KeptFunction) -> bool:
    """Tell a module that is loaded anew from a function made twice."""
    # Two that were made by one call each of the same code may have other
    # things to close over, and would read each other's results.
    same_code = known.function.__code__ is kept.function.__code__
    return known.identity == kept.identity and not same_code


def functions_of(table: Any, caching: Any) -> Sequence[KeptFunction]:
    """Return the functions of the ids of a class that a cache keeps.

    :param table: of the class.
    """
    some = _by_table.get(table)
    if not some:
        return ()
    return [one for one in _alive(some) if one.region in caching.regions]


# -- their sessions


def scope_of(session: Any) -> ShardSession:
    """Return the session that knows of shards.

    :raises TypeError: when there is none.
    """
    if isinstance(session, (scoped_session, async_scoped_session)):
        session = session()
    session = getattr(session, "sync_session", session)
    if not isinstance(session, ShardSession):
        raise TypeError(
            f"{session!r:.100} is neither a ShardSession nor an "
            "AsyncShardSession"
        )
    return session


def begun(session: Any) -> ShardSession:
    """Return :func:`scope_of` a session, with its transaction begun."""
    scope = scope_of(session)
    scope.check_process()
    # As a statement would: places, and what was noted, end with it.
    scope._autobegin_t()
    return scope
