"""What is kept of rows outside of the database, and when it may not be.

:mod:`.protocol` is how rows are read and written; :mod:`.store` what it asks
of a store, of which there are :mod:`.memcached`, :mod:`.redis` and
:mod:`.memory`.  :mod:`.regions` opens them by what an application says in the
words of dogpile.cache, for which :mod:`.dogpile_backend` is a backend.
:mod:`.outbox` is for what a store could not be told.
"""

from __future__ import annotations

from sqla_shard.cache.caches import Cache
from sqla_shard.cache.classes import Cached
from sqla_shard.cache.config import load_regions
from sqla_shard.cache.decorators import cached_list
from sqla_shard.cache.decorators import cached_objects
from sqla_shard.cache.decorators import CachedFunction
from sqla_shard.cache.memcached import MemcachedStore
from sqla_shard.cache.memory import MemoryStore
from sqla_shard.cache.protocol import read_through
from sqla_shard.cache.protocol import Times
from sqla_shard.cache.protocol import Tombstones
from sqla_shard.cache.redis import RedisStore
from sqla_shard.cache.regions import open_region
from sqla_shard.cache.regions import Region
from sqla_shard.cache.regions import store_of
from sqla_shard.cache.settings import load_cache
from sqla_shard.cache.store import Found
from sqla_shard.cache.store import State
from sqla_shard.cache.store import Store
from sqla_shard.cache.tally import ClassStats
from sqla_shard.cache.tally import Counts
from sqla_shard.cache.tally import RegionStats

__all__ = [
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
    "load_cache",
    "load_regions",
    "open_region",
    "read_through",
    "store_of",
]
