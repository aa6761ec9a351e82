"""Row caches in memcached, Redis or memory, and their invalidation.

``protocol``   how values are read, filled and invalidated
``stores/``    what memcached and Redis have to do for it
``regions``    opens stores as regions of dogpile.cache; their file
``cache``      the cache of a cluster, with one object for each class:
``rows``       objects by their ids
``lists``      the first rows of each list
``columns``    the columns of cached classes
``functions``  results of functions of the application

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
from sqla_shard.cache.stores import Found, KeyState, MemoryStore, Store
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
    "KeyState",
    "MemcachedStore",
    "MemoryStore",
    "RedisStore",
    "Region",
    "RegionStats",
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
