"""Row caches in memcached, Redis or memory, and their invalidation.

:mod:`.protocol` defines how values are read, filled and invalidated; it uses
the :mod:`.stores`.  :mod:`.regions` opens stores as regions of dogpile.cache,
whose configuration may be in a file.  :mod:`.cache` is the cache of a cluster,
with an instance of :mod:`.rows` or :mod:`.lists` for each class;
:mod:`.functions` caches results of functions.

Keys that a store could not invalidate are in
:mod:`sqla_shard.outbox.invalidations`.
"""

from __future__ import annotations

from typing import Any, TYPE_CHECKING

from sqla_shard.cache.cache import Announcement, Cache
from sqla_shard.cache.columns import Cached
from sqla_shard.cache.functions import cached_list, cached_objects, CachedFunction
from sqla_shard.cache.protocol import (
    ClassStats,
    counting,
    Counts,
    read_through,
    RegionStats,
    Times,
    Tombstones,
)
from sqla_shard.cache.regions import (
    load_cache,
    load_regions,
    open_region,
    Region,
    store_of,
)
from sqla_shard.cache.stores import Found, MemoryStore, State, Store
from sqla_shard.cache.stores.redis import RedisStore

if TYPE_CHECKING:
    from sqla_shard.cache.stores.memcached import MemcachedStore

__all__ = [
    "Announcement",
    "Cache",
    "Cached",
    "CachedFunction",
    "ClassStats",
    "Counts",
    "Found",
    "MemcachedStore",
    "MemoryStore",
    "RedisStore",
    "Region",
    "RegionStats",
    "State",
    "Store",
    "Times",
    "Tombstones",
    "cached_list",
    "cached_objects",
    "counting",
    "load_cache",
    "load_regions",
    "open_region",
    "read_through",
    "store_of",
]


def __getattr__(name: str) -> Any:
    # Import it only when it is used: pymemcache may not be installed.
    if name != "MemcachedStore":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from sqla_shard.cache.stores.memcached import MemcachedStore

    return MemcachedStore
