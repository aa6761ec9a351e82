"""A backend of dogpile.cache on memcached nodes: ``sqla_shard.memcached``.

::

    from dogpile.cache import make_region

    region = make_region().configure(
        "sqla_shard.memcached",
        arguments={"servers": ["10.0.0.1:11211", "10.0.0.2:11211"]},
    )

It has the nodes, the connections and the patience of
:class:`~.memcached.MemcachedStore`, which is its :attr:`store`: one that does
not answer is a miss within its ``timeout``, and no error.  Values are JSON
unless the region has a serializer; who can write to a memcached could make
a program that reads pickles run whatever it likes.

Any text is a key.  What the region keeps has names of its own on the nodes,
so that it is never taken for what the store keeps there.

``servers``
    List of nodes, or a text with blanks or commas between them.
``timeout``, ``retry``, ``longest``, ``largest``, ``connections``
    See :class:`~.memcached.MemcachedStore`.
``memcached_expire_time``
    Seconds after which a value ends on its node; as in other backends 0, the
    default, is never.
``distributed_lock``
    Whether one process of all makes a value that is missing, and the others
    wait for it (False: one thread of each process).
``lock_timeout``
    Seconds after which such a lock ends (30): that of a process that has
    died, and that of one that takes longer, see :mod:`.mutex`.

Arguments that nobody knows are left alone, as dogpile.cache wants it;
:func:`~.regions.open_region` refuses them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from hashlib import sha256
from typing import Any
from typing import cast

from sqla_shard import exc
from sqla_shard.cache.memcached import MemcachedStore
from sqla_shard.cache.mutex import NodeMutex
from sqla_shard.cache.store import check_seconds
from sqla_shard.cache.wire import Answer

try:
    from dogpile.cache.api import BytesBackend
    from dogpile.cache.api import CacheMutex
    from dogpile.cache.api import CantDeserializeException
    from dogpile.cache.api import NO_VALUE
    from dogpile.cache.api import SerializedReturnType
except ImportError as error:
    raise exc.MissingExtraError(
        package="dogpile.cache", extra="cache", reason=str(error)
    ) from None

__all__ = ["MemcachedBackend"]

#: Client flags of a value; those of the store's items are 0 to 2.
_FLAG = b"3"
#: With what stands before it a key has 250 bytes; "#" is for the others.
_FITS = re.compile(r"(?!#)[!-~]{1,200}")
_STORE_ARGUMENTS = ("longest", "largest", "timeout", "retry", "connections")


def _dumps(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode("ascii")


def _loads(data: bytes) -> Any:
    try:
        return json.loads(data)
    except ValueError:
        # Of a region with a serializer: a miss, after which it is ours.
        raise CantDeserializeException from None


class MemcachedBackend(BytesBackend):
    """A backend on memcached nodes.

    :param arguments: see above.
    :ivar store: the store on the same nodes, by the same connections.
    :raises sqla_shard.exc.CacheOptionError: if an argument makes no sense.
    """

    arguments = (
        "servers",
        *_STORE_ARGUMENTS,
        "memcached_expire_time",
        "distributed_lock",
        "lock_timeout",
    )
    """The names of all arguments."""

    serializer = staticmethod(_dumps)
    deserializer = staticmethod(_loads)

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        servers = arguments.get("servers", ())
        if isinstance(servers, str):
            # As files of settings have it.
            servers = re.split(r"[,\s]+", servers.strip(", \n\t"))
        self.store = MemcachedStore(
            servers,
            **{k: arguments[k] for k in _STORE_ARGUMENTS if k in arguments},
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
        """Return a value; none where the node does not answer."""
        return self.get_serialized_multi([key])[0]

    def get_serialized_multi(
        self, keys: Iterable[str]
    ) -> Sequence[SerializedReturnType]:
        """Return the values of keys, in order."""
        names = [_name("v", key) for key in keys]
        answers = self.store.ask(dict.fromkeys(names, (b"mg", b"v f")))
        return [_value(answers.get(name)) for name in names]

    def set_serialized(self, key: str, value: bytes) -> None:
        """Put a value there."""
        self.set_serialized_multi({key: value})

    def set_serialized_multi(self, mapping: Mapping[str, bytes]) -> None:
        """Put values there; one that is too large only ends the old one."""
        self.store.ask(
            {_name("v", key): self._set(mapping[key]) for key in mapping}
        )

    def _set(self, value: bytes) -> tuple[bytes, bytes]:
        if len(value) > self._largest:
            return b"md", b""
        size = len(value)
        return b"ms", b"%d F%s T%d\r\n%s" % (size, _FLAG, self._expire, value)

    def delete(self, key: str) -> None:
        """Remove a value."""
        self.delete_multi([key])

    def delete_multi(self, keys: Iterable[str]) -> None:
        """Remove values."""
        self.store.ask({_name("v", key): (b"md", b"") for key in keys})

    # -- locks ------------------------------------------------------------

    def has_lock_timeout(self) -> bool:
        """Whether locks end by themselves."""
        return self._is_distributed

    def get_mutex(self, key: str) -> CacheMutex | None:
        """Return the lock of a key; None for one of this process."""
        if not self._is_distributed:
            return None
        mutex = NodeMutex(self.store, _name("l", key), self._lock_timeout)
        return cast("CacheMutex", mutex)


def _name(kind: str, key: str) -> str:
    if not _FITS.fullmatch(key):
        key = "#" + sha256(key.encode("utf-8", "surrogatepass")).hexdigest()
    return f"sqla_shard:dogpile:{kind}:{key}"


def _value(answer: Answer | None) -> SerializedReturnType:
    if answer is None or answer.data is None:
        return NO_VALUE
    return answer.data if answer.flags.get(b"f") == _FLAG else NO_VALUE
