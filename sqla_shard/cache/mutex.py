"""A lock of all processes, on a memcached node.

It is an item with a token of who has it, which ends by itself: the process
may have died.  So it is a way to save work, and no proof of being alone: who
takes longer than the lock lasts is joined by another, and so is everybody
when the node was started or has no memory.  Who had it then takes nothing
from who has it now.
"""

from __future__ import annotations

import threading
from secrets import token_hex

from sqla_shard.cache.memcached import MemcachedStore

__all__ = ["NodeMutex"]

_FLAG = b"4"
_PUT, _TAKEN = b"HD", b"NS"
_LONGEST_PAUSE = 0.05


class NodeMutex:
    """A lock under a key.

    One object serves several threads, as dogpile.cache has it.

    :param store: has the nodes.
    :param key: one that nothing else has.
    :param timeout: full seconds after which the lock ends.
    """

    def __init__(self, store: MemcachedStore, key: str, timeout: int) -> None:
        self._store = store
        self._key = key
        self._timeout = timeout
        self._tokens: dict[int, bytes] = {}
        self._lock = threading.Lock()

    def acquire(self, wait: bool = True) -> bool:
        """Take the lock.

        :param wait: until it is free, which it is after its timeout.
        :returns: whether we have it.  Where the node does not answer nobody
            has it, and nobody waits.
        """
        pause = threading.Event()
        step = 0.001
        token = token_hex(16).encode()
        while (code := self._put(token)) == _TAKEN and wait:
            pause.wait(step)
            step = min(step * 2, _LONGEST_PAUSE)
        if code == _PUT or wait:
            # Who has waited will release it, whatever we answer: what may be
            # there of this try, and not the lock of another thread.
            with self._lock:
                self._tokens[threading.get_ident()] = token
        return code == _PUT

    def _put(self, token: bytes) -> bytes:
        rest = b"%d F%s ME T%d\r\n%s" % (
            *(len(token), _FLAG, self._timeout),
            token,
        )
        answer = self._store.ask({self._key: (b"ms", rest)}).get(self._key)
        return b"" if answer is None else answer.code

    def release(self) -> None:
        """Give the lock back, if it is ours still."""
        token = self._taken()
        if token is None:
            return
        found = self._store.ask({self._key: (b"mg", b"v c")}).get(self._key)
        if found is None or found.data != token:
            return
        # Not if it is another's by now.
        cas = found.flags.get(b"c", b"")
        self._store.ask({self._key: (b"md", b"C" + cas)})

    def _taken(self) -> bytes | None:
        """Return the token that is given back.

        Of this thread; or else that of another, which has handed the lock
        on, as dogpile.cache does with an ``async_creation_runner``.
        """
        with self._lock:
            ours = threading.get_ident()
            if ours not in self._tokens:
                ours = next(iter(self._tokens), ours)
            return self._tokens.pop(ours, None)

    def locked(self) -> bool:
        """Whether anybody has it, as far as is known."""
        answer = self._store.ask({self._key: (b"mg", b"")}).get(self._key)
        return answer is not None and answer.code == b"HD"
