"""A backend of dogpile.cache on memcached nodes: ``sqla_shard.memcached``.

::

    from dogpile.cache import make_region

    region = make_region().configure(
        "sqla_shard.memcached",
        arguments={"servers": ["10.0.0.1:11211", "10.0.0.2:11211"]},
    )

It uses the nodes, connections and timeouts of its ``store``, a
:class:`~.memcached.MemcachedStore`: a node that does not respond is a miss
after the ``timeout``, and no error.  Values are JSON unless the region has a
serializer; with pickles, a program that can write to memcached could run code
in readers.

Any string can be a key.  On the nodes, values of the region have another
prefix than those of the store.

``servers``
    List of nodes, or a string of nodes separated by spaces or commas.
``timeout``, ``retry``, ``longest``, ``largest``, ``connections``
    See :class:`~.memcached.MemcachedStore`.
``memcached_expire_time``
    Seconds after which a value expires on its node; 0 (the default): never,
    as in other backends.
``distributed_lock``
    Whether one of all processes creates a missing value, while the others wait
    for it (False: one thread of each process).
``lock_timeout``
    Seconds after which such a lock expires (30), even if its process is still
    running; see :class:`NodeMutex`.

Unknown arguments are ignored, as in other backends of dogpile.cache;
:func:`~sqla_shard.cache.open_region` refuses them.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from secrets import token_hex
from time import time
from typing import Any, cast

from sqla_shard import exc
from sqla_shard.cache.stores import check_seconds, MemoryItem, MemoryStore
from sqla_shard.cache.stores.memcached import MemcachedStore
from sqla_shard.cache.stores.memcached_node import (
    delete_command,
    NodeItem,
    store_command,
)
from sqla_shard.util.json_values import parsed_json

# -- A store with its values in the backend ``memory`` of dogpile.cache.
#
# Leases and tombstones are in this process, like the backend.  A value is
# valid while the backend has it with the number of the item; its key has a
# prefix, and its type is that of values of dogpile.cache.


try:
    from dogpile.cache.api import (
        BytesBackend,
        CacheBackend,
        CachedValue,
        CacheMutex,
        CantDeserializeException,
        NO_VALUE,
        SerializedReturnType,
    )
    from dogpile.cache.backends.memory import MemoryBackend
    from dogpile.cache.region import value_version
except ImportError as _error:
    raise exc.MissingExtraError(
        package="dogpile.cache", extra="cache", reason=str(_error)
    ) from None


NAMES = "sqla_shard:"
"""The prefix of the keys of stored rows in the region."""

_NUMBER = "sqla_shard"
_ELSEWHERE = b""


class DogpileMemoryStore(MemoryStore):
    """A store in the memory of one process; see :class:`.Store`.

    Two stores of one backend would not share tombstones: create it with
    :func:`~sqla_shard.cache.store_of`.

    :param backend: the backend with the values.
    """

    def __init__(self, backend: MemoryBackend) -> None:
        super().__init__()
        self._backend: CacheBackend = backend

    def _item(self, key: str) -> MemoryItem | None:
        item = super()._item(key)
        if item is None or item.value is None:
            return item
        stored = self._backend.get(NAMES + key)
        if (
            stored is NO_VALUE
            or not isinstance(stored, CachedValue)
            or stored.metadata.get(_NUMBER) != item.number
        ):
            self._drop(key)
            return None
        return replace(item, value=stored.payload)

    def _keep(self, key: str, item: MemoryItem, value: bytes) -> None:
        item.value = _ELSEWHERE
        metadata = {"ct": time(), "v": value_version, _NUMBER: item.number}
        self._backend.set(NAMES + key, CachedValue(value, metadata))

    def _drop(self, key: str) -> None:
        item = self._items.pop(key, None)
        if item is not None and item.value is not None:
            self._backend.delete(NAMES + key)


# -- A distributed lock, on a memcached node.
#
# It is an item with the token of its holder, and expires, as the process may
# die.  So it saves work, but does not guarantee mutual exclusion: there may be
# a second holder if the lock has expired, or if the node was restarted or has
# evicted the item.  The first holder does not release the lock of the second.


_MUTEX_FLAG = b"4"
_PUT, _TAKEN = b"STORED", b"NOT_STORED"
_LONGEST_PAUSE = 0.05


class NodeMutex:
    """A lock under a key.

    Several threads share one object, as in dogpile.cache.

    :param store: the store on the nodes.
    :param key: the key of the lock; nothing else may use it.
    :param timeout: seconds after which the lock expires; an integer.
    """

    def __init__(self, store: MemcachedStore, key: str, timeout: int) -> None:
        self._store = store
        self._key = key
        self._timeout = timeout
        self._tokens: dict[int, bytes] = {}
        self._lock = threading.Lock()

    def acquire(self, wait: bool = True) -> bool:
        """Acquire the lock.

        :param wait: whether to wait until it is released or expires.
        :returns: whether the lock was acquired; False immediately if the node
            does not respond.
        """
        pause = threading.Event()
        step = 0.001
        token = token_hex(16).encode()
        command = store_command(b"add", self._key, _MUTEX_FLAG, token, self._timeout)
        while True:
            code = self._store.command({self._key: command}).get(self._key, b"")
            if code != _TAKEN or not wait:
                break
            pause.wait(step)
            step = min(step * 2, _LONGEST_PAUSE)
        if code == _PUT or wait:
            # A caller that has waited calls release() in any case: it must
            # find this token, and not the lock of another thread.
            with self._lock:
                self._tokens[threading.get_ident()] = token
        return code == _PUT

    def release(self) -> None:
        """Release the lock, unless it has expired."""
        token = self._pop_token()
        if token is None:
            return
        item = self._store.items([self._key]).get(self._key)
        if item is not None and item.data == token:
            # Delete only this item: another holder may have the lock by now.
            command = delete_command(self._key, item.cas)
            self._store.command({self._key: command})

    def _pop_token(self) -> bytes | None:
        """Return the token to release.

        It is the token of this thread; if it has none, that of another one:
        dogpile.cache releases the lock in an ``async_creation_runner``.
        """
        with self._lock:
            ours = threading.get_ident()
            if ours not in self._tokens:
                ours = next(iter(self._tokens), ours)
            return self._tokens.pop(ours, None)

    def locked(self) -> bool:
        """Return whether the lock is held; False if the node has failed."""
        return bool(self._store.items([self._key]))


#: Client flags of a value; items of the store have other flags.
_VALUE_FLAG = b"3"
#: Keys that fit into 250 bytes with their prefix; "#" begins the hashed ones.
_FITS = re.compile(r"(?!#)[!-~]{1,200}")
_STORE_ARGUMENTS = ("longest", "largest", "timeout", "retry", "connections")


def _dumps(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode("ascii")


def _loads(data: bytes) -> Any:
    try:
        return parsed_json(data)
    except ValueError:
        # A region with a serializer has written it: a miss replaces it.
        raise CantDeserializeException from None


class MemcachedBackend(BytesBackend):
    """A backend on memcached nodes.

    :param arguments: see the documentation of this module.
    :ivar store: the store on the same nodes, with the same connections.
    :raises sqla_shard.exc.OptionError: if an argument is not valid.
    """

    arguments: tuple[str, ...] = (
        "servers",
        *_STORE_ARGUMENTS,
        "memcached_expire_time",
        "distributed_lock",
        "lock_timeout",
    )
    """The names of all arguments."""

    serializer: Any = staticmethod(_dumps)
    deserializer: Any = staticmethod(_loads)

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        servers = arguments.get("servers", ())
        if isinstance(servers, str):
            # As in configuration files.
            servers = re.split(r"[,\s]+", servers.strip(", \n\t"))
        self.store: MemcachedStore = MemcachedStore(
            servers, **{k: arguments[k] for k in _STORE_ARGUMENTS if k in arguments}
        )
        self._largest = arguments.get("largest", 1_000_000)
        self._expire = arguments.get("memcached_expire_time", 0)
        if self._expire != 0:
            check_seconds("memcached_expire_time", self._expire)
        self._is_distributed = bool(arguments.get("distributed_lock", False))
        self._lock_timeout = check_seconds(
            "lock_timeout", arguments.get("lock_timeout", 30)
        )

    def close(self) -> None:
        """Close idle connections; they are opened again when needed."""
        self.store.close()

    # -- values -----------------------------------------------------------

    def get_serialized(self, key: str) -> SerializedReturnType:
        """Return a value; ``NO_VALUE`` if the node does not respond."""
        return self.get_serialized_multi([key])[0]

    def get_serialized_multi(
        self, keys: Iterable[str]
    ) -> Sequence[SerializedReturnType]:
        """Return the values of keys, in order."""
        names = [_name("v", key) for key in keys]
        items = self.store.items(names)
        return [_value(items.get(name)) for name in names]

    def set_serialized(self, key: str, value: bytes) -> None:
        """Store a value."""
        self.set_serialized_multi({key: value})

    def set_serialized_multi(self, mapping: Mapping[str, bytes]) -> None:
        """Store values; one that is too large only removes the old one."""
        commands = {}
        for key, value in mapping.items():
            name = _name("v", key)
            if len(value) > self._largest:
                commands[name] = delete_command(name)
            else:
                commands[name] = store_command(
                    b"set", name, _VALUE_FLAG, value, self._expire
                )
        self.store.command(commands)

    def delete(self, key: str) -> None:
        """Remove a value."""
        self.delete_multi([key])

    def delete_multi(self, keys: Iterable[str]) -> None:
        """Remove values."""
        names = [_name("v", key) for key in keys]
        self.store.command({name: delete_command(name) for name in names})

    # -- locks ------------------------------------------------------------

    def has_lock_timeout(self) -> bool:
        """Return whether locks expire."""
        return self._is_distributed

    def get_mutex(self, key: str) -> CacheMutex | None:
        """Return the lock of a key; None for a lock in this process."""
        if not self._is_distributed:
            return None
        mutex = NodeMutex(self.store, _name("l", key), self._lock_timeout)
        return cast("CacheMutex", mutex)


def _name(kind: str, key: str) -> str:
    if not _FITS.fullmatch(key):
        key = "#" + sha256(key.encode("utf-8", "surrogatepass")).hexdigest()
    return f"sqla_shard:dogpile:{kind}:{key}"


def _value(item: NodeItem | None) -> SerializedReturnType:
    if item is None or item.kind != _VALUE_FLAG:
        return NO_VALUE
    return item.data
