"""What the parts of the session ask of it, and it of its cluster.

The parts are functions that are handed the session; these Protocols let
them be checked without importing it.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import Protocol

from sqlalchemy import Connection

from sqla_shard.engines import Places
from sqla_shard.paging import Seal
from sqla_shard.rendering import Place
from sqla_shard.scattering import Watch
from sqla_shard.session.placement import PlacementPolicy
from sqla_shard.session.transactions import TransactionLog
from sqla_shard.session.usage import Usage

__all__ = [
    "ANSWERS",
    "INCLUDE_INACTIVE",
    "OUR_OWN",
    "Announced",
    "Caching",
    "Home",
    "Scope",
    "Unlike",
    "cache_begun",
    "cache_of",
    "open_cache",
]

#: Attribute of an engine without a server, that answers with rows we have.
ANSWERS = "sqla_shard_answers"

#: Execution option: reads show inactive objects too.
INCLUDE_INACTIVE = "include_inactive"

#: Execution options of what this package writes to tables with a guard.
OUR_OWN = {"sqla_shard_own": True}


class Unlike(Exception):  # noqa: N818 - no error
    """Raised where rows that are kept are not what a read asks for.

    Somebody listens to the reads of the session, and has changed this one.
    Never leaves here: the database is asked.
    """


class Announced(Protocol):
    """What was told to a cache of a COMMIT; one of the three ends it."""

    def committed(self) -> None:
        """Handle its success."""
        ...

    def undone(self) -> None:
        """Handle its failure."""
        ...

    def unknown(self) -> None:
        """Handle that nobody knows what became of it."""
        ...


class Caching(Protocol):
    """What keeps rows outside of the database, as a session sees it."""

    def keeps(self, table: Any) -> bool:
        """Tell whether rows of a table are kept."""
        ...

    def reads(self, table: Any) -> bool:
        """Tell whether reads of a table are to look there."""
        ...

    def read(
        self, scope: Scope, table: Any, places: Mapping[int, Place]
    ) -> Mapping[int, Any]:
        """Return objects, or the first rows of lists, newest first.

        :param places: where they are, by the ids of objects or sources.
        :returns: by id; objects, and None where there is none, but nothing
            for what cannot be loaded; of a list what has ``rows``, ``keys``
            (sequence and target of each), ``sequences`` (by target) and
            ``is_whole``.
        :raises Unlike: when listeners ask for something else.
        """
        ...

    def count(
        self,
        scope: Scope,
        table: Any,
        place: Place,
        source_id: int,
        ask: Callable[[Scope], int],
    ) -> int:
        """Return the length of a list.

        :param ask: asks the database, in a session.
        """
        ...

    def rows(
        self,
        scope: Scope,
        table: Any,
        place: Place,
        source_id: int,
        rows: Sequence[Any],
    ) -> list[Any] | None:
        """Return objects of the session for rows of a list.

        :returns: None when they cannot be loaded.
        :raises Unlike: when listeners ask for something else.
        """
        ...

    def written(self, scope: Scope, table: Any, row_id: int) -> None:
        """Take note of rows that a transaction writes.

        :param row_id: the id that names their shard.
        """
        ...

    def appended(
        self,
        scope: Scope,
        table: Any,
        source_id: int,
        rows: Sequence[tuple[int, int]],
    ) -> None:
        """Take note of rows that a transaction has put on top of a list.

        It holds the lock that all changes of the list take.

        :param rows: target and sequence of each, ascending.
        """
        ...

    def inserted(
        self,
        scope: Scope,
        table: Any,
        place: Place,
        ids: Iterable[Any] = (),
    ) -> None:
        """Take note of objects that a transaction inserts on a shard.

        :param ids: of the rows, None where it is not known.
        """
        ...

    def announce(self, scope: Scope) -> Announced:
        """Announce the COMMIT of what was noted, before it is sent."""
        ...


class Home(Protocol):
    """What a session asks of the cluster that it belongs to."""

    @property
    def places(self) -> Places:
        """Where the shards are now."""
        ...

    @property
    def watch(self) -> Watch | None:
        """What else is done with the statements of its sessions."""
        ...

    @property
    def scatters(self) -> bool:
        """Whether statements may go to all shards, by ``scatter()``."""
        ...

    @property
    def placement(self) -> PlacementPolicy:
        """The policy for new roots."""
        ...

    @property
    def caching(self) -> Caching | None:
        """What keeps rows outside of the database."""
        ...

    @property
    def seal(self) -> Seal:
        """What makes and opens bookmarks."""
        ...


class Scope(Protocol):
    """A session, as its parts see it."""

    cluster: Home
    root_shard_id: int | None
    placed: dict[Any, Place]
    bulk: Place | None
    shows_hidden: bool
    uses_cache: bool
    usage: Usage

    @property
    def identity_map(self) -> Any:
        """The objects of the session, by identity key."""
        ...

    @property
    def new(self) -> Any:
        """Objects to be inserted."""
        ...

    @property
    def dirty(self) -> Any:
        """Objects that may have to be updated."""
        ...

    @property
    def deleted(self) -> Any:
        """Objects to be deleted."""
        ...

    @property
    def places(self) -> Places:
        """Where the shards are, unchanged until the transaction ends."""
        ...

    @property
    def log(self) -> TransactionLog:
        """What the transaction has written."""
        ...

    @property
    def watch(self) -> Watch | None:
        """What else is done with its statements."""
        ...

    def _autoflush(self) -> None: ...

    def _autobegin_t(self, begin: bool = False) -> Any: ...

    def root_connection(self, place: Place) -> Connection:
        """Return the session's connection to the server of a shard."""
        ...

    def is_connected(self, place: Place) -> bool:
        """Tell whether :meth:`root_connection` has one already."""
        ...

    def sees_the_present(self, place: Place | None = None) -> bool:
        """Tell whether what it reads there next is as new as can be.

        :param place: where; None for all servers.
        """
        ...

    def begun_view(self, place: Place) -> Connection:
        """Return the connection to a shard whose server it is connected to.

        :raises LookupError: when it is not.
        """
        ...

    def check_process(self) -> None:
        """Refuse a transaction that the parent process has begun."""
        ...

    def is_modified(
        self, instance: object, include_collections: bool = True
    ) -> bool:
        """Tell whether an object was changed since the last flush."""
        ...

    def expire(
        self, instance: object, attribute_names: Iterable[str] | None = None
    ) -> None:
        """Have an object read anew; see ``Session.expire``."""
        ...

    def invalidate(self) -> None:
        """Close it with its connections; see ``Session.invalidate``."""
        ...

    def execute(self, statement: Any, *args: Any, **kwargs: Any) -> Any:
        """Execute a statement; see ``Session.execute``."""
        ...

    def scalars(self, statement: Any, *args: Any, **kwargs: Any) -> Any:
        """Execute a statement; see ``Session.scalars``."""
        ...


def open_cache(scope: Scope) -> Caching | None:
    """Return the cache, where reads may use it now.

    What a transaction has written is not there yet.
    """
    caching = scope.cluster.caching
    if caching is None or not scope.uses_cache:
        return None
    return caching if scope.log.first is None else None


def cache_of(scope: Scope, table: Any) -> Caching | None:
    """Return the cache, where reads of a table may use it now."""
    caching = open_cache(scope)
    if caching is not None and caching.reads(table):
        return caching
    return None


def cache_begun(
    scope: Scope, table: Any, *, flush: bool = True
) -> Caching | None:
    """Return :func:`cache_of`, with all done that a statement would do.

    The places, and the way in which several shards may be written, are those
    of a transaction: one that never begins would never end, and a session
    that finds nothing in a cache would have those of its first read for ever.
    """
    if cache_of(scope, table) is None:
        return None
    scope.check_process()
    scope._autobegin_t()
    if flush:
        # What it writes is not in the cache.
        scope._autoflush()
    return cache_of(scope, table)
