"""What a cluster keeps of its rows outside of the database."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any
from typing import TYPE_CHECKING

from sqla_shard.exc import CacheOptionError

if TYPE_CHECKING:
    from sqla_shard.cache import Cache
    from sqla_shard.cache import Cached
    from sqla_shard.cache.outbox import DrainReport

__all__ = ["Keeping", "all_caches"]

#: Those that have a cache, for what watches all of a process.
_clusters: weakref.WeakSet[Keeping] = weakref.WeakSet()


def all_caches() -> list[Cache]:
    """Return the caches of all clusters of this process."""
    return [one.cache for one in list(_clusters) if one.cache is not None]


class Keeping:
    """The part of :class:`~sqla_shard.Cluster` for its cache."""

    #: The cache; None before :meth:`configure_cache`.
    cache: Cache | None = None

    def configure_cache(
        self: Any,
        regions: Mapping[str, Any],
        *,
        classes: Mapping[Any, str | Cached],
        prefix: str,
    ) -> Cache:
        """Keep rows in caches, from now on; see :doc:`/howto/cache`.

        Every process that writes has to do so, with the same arguments:
        others would read what it has made old.  One file can have them,
        see :func:`~sqla_shard.cache.load_cache`.

        :param regions: by name, what ``CacheRegion.configure()`` of
            dogpile.cache takes; or such a region.
        :param classes: the object and mapping classes whose rows are kept:
            the name of a region, or a :class:`~sqla_shard.cache.Cached`.
        :param prefix: what the keys begin with; the same for all processes
            of an application.
        :returns: the cache, which is ``cluster.cache`` from now on.
        :raises CacheOptionError: when that makes no sense, or the cluster
            has a cache already.
        :raises CacheClassError: when rows of a class cannot be kept.
        :raises MissingExtraError: when a package is missing.
        """
        # Who has no cache does not load it.
        from sqla_shard.cache import Cache

        if self.cache is not None:
            # What its transactions have noted is of the one that it has.
            raise CacheOptionError(
                "is there already: a cluster has one cache; make another "
                "cluster",
                option="cluster.cache",
                value=self.cache,
            )
        self.cache = cache = Cache(regions, classes, prefix)
        _clusters.add(self)
        return cache

    @property
    def caching(self: Any) -> Cache | None:
        """The cache, as sessions see it."""
        cache: Cache | None = self.cache
        return cache

    def _close_cache(self: Any) -> None:
        cache: Cache | None = self.cache
        if cache is not None:
            cache.close()

    def repair_cache(self: Any) -> DrainReport:
        """Take keys out of the cache that transactions could not take out.

        That is what ``sqla-shard cache repair`` does again and again.

        :raises CacheOptionError: when the cluster has no cache.
        """
        from sqla_shard.cache.outbox import drain

        cache: Cache | None = self.cache
        if cache is None:
            raise CacheOptionError(
                "is no cache; call configure_cache() first",
                option="cluster.cache",
                value=None,
            )
        stores = {name: one.store for name, one in cache.regions.items()}
        return drain(self, stores)
