"""A store whose values are in dogpile.cache's backend ``memory``.

Leases and tombstones are of this process, which is all that the backend is
of.  A value is one of the store's only as long as the backend has it, and
nobody else has put something in its place.  It is there under a name of its
own, as a value of dogpile.cache: who reads the names of ours in the region
gets bytes.
"""

from __future__ import annotations

from dataclasses import replace
from time import time

from sqla_shard import exc
from sqla_shard.cache.memory import Item
from sqla_shard.cache.memory import MemoryStore

try:
    from dogpile.cache.api import CacheBackend
    from dogpile.cache.api import CachedValue
    from dogpile.cache.api import NO_VALUE
    from dogpile.cache.backends.memory import MemoryBackend
    from dogpile.cache.region import value_version
except ImportError as error:
    raise exc.MissingExtraError(
        package="dogpile.cache", extra="cache", reason=str(error)
    ) from None

__all__ = ["NAMES", "DogpileMemoryStore"]

NAMES = "sqla_shard:"
"""What the names of our values begin with."""

_NUMBER = "sqla_shard"
_ELSEWHERE = b""


class DogpileMemoryStore(MemoryStore):
    """A store in the memory of one process; see :class:`~.store.Store`.

    Two of one backend would not hear of each other's tombstones: there is to
    be one only, see :func:`~.regions.store_of`.

    :param backend: what keeps the values.
    """

    def __init__(self, backend: MemoryBackend) -> None:
        super().__init__()
        self._backend: CacheBackend = backend

    def _item(self, key: str) -> Item | None:
        item = super()._item(key)
        if item is None or item.value is None:
            return item
        found = self._backend.get(NAMES + key)
        if (
            found is NO_VALUE
            or not isinstance(found, CachedValue)
            or found.metadata.get(_NUMBER) != item.number
        ):
            self._drop(key)
            return None
        return replace(item, value=found.payload)

    def _keep(self, key: str, item: Item, value: bytes) -> None:
        item.value = _ELSEWHERE
        metadata = {"ct": time(), "v": value_version, _NUMBER: item.number}
        self._backend.set(NAMES + key, CachedValue(value, metadata))

    def _drop(self, key: str) -> None:
        item = self._items.pop(key, None)
        if item is not None and item.value is not None:
            self._backend.delete(NAMES + key)
