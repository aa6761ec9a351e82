"""A store on memcached nodes, 1.6 or later.

Each key has one node, whatever becomes of that: a node that does not answer
has no stand-in, for what the stand-in did not hear of would be served again
when the node is back.

Leases are those of memcached's meta commands: ``mg`` with ``N`` makes an
empty item where there is none and tells one caller that it has won, ``ms``
with ``C`` puts a value there if nobody else has put anything.  A node that
was started without numbers of items (``-C``) is of no use.

A node that was started or flushed has forgotten tombstones.  Therefore each
node has an item, the *guard*, that is put there when it is missing; as long
as the guard is younger than the longest tombstone, the node gives no leases.
A node that was started counts its items anew, so that a lease of its earlier
life may have the number of another's: a lease is used on connections only
that were open when it was given.

A node without memory forgets the items that were not asked for, tombstones
too.  What is filled then is removed by who wrote, after its COMMIT, unless
the process dies in between: give nodes the memory that they need.
"""

from __future__ import annotations

import weakref
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from functools import partial
from hashlib import blake2b
from typing import Any
from zlib import crc32

from sqla_shard import exc
from sqla_shard.cache.changing import change
from sqla_shard.cache.changing import Decide
from sqla_shard.cache.changing import Item
from sqla_shard.cache.changing import LEASE
from sqla_shard.cache.changing import Lease
from sqla_shard.cache.changing import put_command
from sqla_shard.cache.changing import take
from sqla_shard.cache.changing import TOMBSTONE
from sqla_shard.cache.changing import VALUE
from sqla_shard.cache.node import Node
from sqla_shard.cache.statistics import node_stats
from sqla_shard.cache.statistics import NodeStats
from sqla_shard.cache.store import check_keys
from sqla_shard.cache.store import check_lease
from sqla_shard.cache.store import check_seconds
from sqla_shard.cache.store import check_size
from sqla_shard.cache.store import check_token
from sqla_shard.cache.store import check_wait
from sqla_shard.cache.store import Found
from sqla_shard.cache.store import LONGEST
from sqla_shard.cache.store import State
from sqla_shard.cache.tombstones import is_tombstone
from sqla_shard.cache.tombstones import with_token
from sqla_shard.cache.tombstones import without_token
from sqla_shard.cache.wire import Answer
from sqla_shard.cache.wire import Connection

__all__ = ["MemcachedStore"]

_ASK_GUARD = b"mg sqla_shard:guard t\r\n"
_PUT_GUARD = f"ms sqla_shard:guard 0 ME T{LONGEST}\r\n\r\n".encode()
#: Places of the table of nodes: so many that each node has its share.
_SLOTS = 4096

_BLOCKED = Found(State.BLOCKED)
_BUSY = Found(State.BUSY)
_LOST = Found(State.LOST)
#: Of nobody who follows the protocol: a value that cannot be read is removed.
_STRANGE = Found(State.VALUE)


class MemcachedStore:
    """A store on memcached nodes; see :class:`~.store.Store`.

    All processes must name the same nodes in the same words: the key of an
    item and the name of a node decide where it is.

    :param servers: ``host:port`` of each, see :func:`~.wire.parse_server`.
    :param longest: seconds of the longest tombstone, see above; the same for
        all processes.
    :param largest: bytes of the largest value; memcached's own limit, with
        the key and the rest, is 1 MiB.
    :param timeout: seconds to wait for a node to connect, and to answer.
    :param retry: seconds after which a node that has failed is asked again.
    :param connections: that are kept open to each node, at most.
    :raises sqla_shard.exc.CacheOptionError: if an argument makes no sense.
    """

    def __init__(
        self,
        servers: Iterable[str],
        *,
        longest: int = 60,
        largest: int = 1_000_000,
        timeout: float = 0.05,
        retry: float = 1.0,
        connections: int = 32,
    ) -> None:
        names = _names(servers)
        check_wait("timeout", timeout)
        check_wait("retry", retry)
        check_size("largest", largest)
        check_size("connections", connections)
        self.longest = check_seconds("longest", longest)
        self._largest = largest
        self._nodes = [
            Node(name, timeout=timeout, retry=retry, connections=connections)
            for name in names
        ]
        self._slots = _slots(self._nodes)
        # Regions of dogpile.cache are forgotten, and not closed.
        weakref.finalize(self, _close, self._nodes)

    def close(self) -> None:
        """Close idle connections; they are opened again when needed."""
        _close(self._nodes)

    def node_of(self, key: str) -> str:
        """Return the name of the node of a key."""
        return self._slots[crc32(key.encode()) % len(self._slots)].name

    def stats(self) -> list[NodeStats]:
        """Return what the nodes say of themselves, in order."""
        return [node_stats(node) for node in self._nodes]

    # -- reading ----------------------------------------------------------

    def fetch(self, keys: Sequence[str], lease: int) -> dict[str, Found]:
        """Return what is under each key; see :class:`~.store.Store`."""
        check_lease(lease)
        parts = self._parts(check_keys(keys))
        # All are asked before one is waited for.
        begun = {
            node: node.begin(b"get %s\r\n" % " ".join(its).encode())
            for node, its in parts.items()
        }
        found: dict[str, Found] = {}
        try:
            for node, its in parts.items():
                found.update(_read(node, begun.pop(node), its))
        finally:
            # Of what was interrupted; their answers are nobody's.
            for connection in begun.values():
                if connection is not None:
                    connection.close()
        for node, its in parts.items():
            absent = [key for key in its if key not in found]
            if absent and lease:
                found.update(self._lease(node, absent, lease))
            elif absent:
                found.update(dict.fromkeys(absent, _BLOCKED))
        return found

    def _lease(
        self, node: Node, keys: list[str], lease: int
    ) -> dict[str, Found]:
        if node.is_young:
            return dict.fromkeys(keys, _BLOCKED)
        tail = b" v f c k N%d\r\n" % lease
        commands = [b"mg " + key.encode() + tail for key in keys]
        # Last: a node that is flushed before it has no guard then, and one
        # that is flushed later loses our leases too.
        commands.append(_ASK_GUARD)
        opened = node.opened

        def work(connection: Connection) -> dict[str, Found]:
            upto = max(opened, connection.serial)
            *answers, guard = connection.exchange(commands)
            is_old = self._is_old(node, connection, guard)
            return {
                key: _leased(key, answer, upto, is_old)
                for key, answer in zip(keys, answers, strict=True)
            }

        return node.run(work) or dict.fromkeys(keys, _LOST)

    def _is_old(
        self, node: Node, connection: Connection, guard: Answer
    ) -> bool:
        age = 0
        if guard.code == b"HD":
            age = LONGEST - guard.number(b"t")
        else:
            connection.exchange([_PUT_GUARD])
        # In full seconds, so that it may be one more.
        node.is_young_for(self.longest + 1 - age)
        return not node.is_young

    # -- filling ----------------------------------------------------------

    def fill(
        self, values: Mapping[str, tuple[Lease, bytes]], expire: int
    ) -> set[str]:
        """Put values in the place of leases; see :class:`~.store.Store`."""
        check_seconds("expire", expire)
        done: set[str] = set()
        for node, its in self._parts(check_keys(values)).items():
            upto = min(values[key][0].upto for key in its)
            commands = [self._fill(key, *values[key], expire) for key in its]
            answers = node.run(
                partial(_exchange, commands=commands), upto=upto
            )
            done.update(
                key
                for key, answer in zip(its, answers or (), strict=False)
                if answer.code == b"HD" and self._fits(values[key][1])
            )
        return done

    def _fits(self, value: bytes) -> bool:
        return len(value) <= self._largest

    def _fill(
        self, key: str, lease: Lease, value: bytes, expire: int
    ) -> bytes:
        name = key.encode()
        if not self._fits(value):
            # Or others would wait for it as long as the lease lasts.
            return b"md %s C%s\r\n" % (name, lease.cas)
        return b"ms %s %d F%s C%s T%d\r\n%s\r\n" % (
            *(name, len(value), VALUE, lease.cas, expire),
            value,
        )

    # -- tombstones -------------------------------------------------------

    def block(
        self, keys: Collection[str], token: bytes, expire: int
    ) -> set[str]:
        """Put tombstones there; see :class:`~.store.Store`."""
        # A node that has forgotten it would not wait for longer.
        check_seconds("expire", expire, self.longest)
        check_token(token)

        def decide(key: bytes, item: Item | None) -> bytes | None:
            old = b""
            how = b"ME"
            if item is not None:
                how = b"C" + item.cas
                if item.kind == TOMBSTONE:
                    old = item.data or b""
            new = with_token(old, token, expire)
            return put_command(key, new, how, expire)

        return self._change(keys, decide, values=False)

    def take(
        self, keys: Collection[str], token: bytes, expire: int
    ) -> dict[str, tuple[Lease, bytes]]:
        """Put tombstones there, return values; see :class:`~.store.Store`."""
        check_seconds("expire", expire, self.longest)
        check_token(token)
        tombstone = with_token(b"", token, expire)
        taken: dict[str, tuple[Lease, bytes]] = {}
        for node, its in self._parts(check_keys(keys)).items():
            opened = node.opened

            def work(
                connection: Connection,
                its: list[str] = its,
                opened: int = opened,
            ) -> dict[str, tuple[Lease, bytes]]:
                upto = max(opened, connection.serial)
                return take(connection, its, tombstone, expire, upto)

            taken.update(node.run(work) or {})
        return taken

    def unblock(self, keys: Collection[str], token: bytes) -> set[str]:
        """Remove what is not of others; see :class:`~.store.Store`."""

        def decide(key: bytes, item: Item | None) -> bytes | None:
            if item is None:
                return None
            old = new = b""
            if item.kind == TOMBSTONE:
                old = item.data or b""
                new = without_token(old, token)
            if not new:
                return b"md %s C%s\r\n" % (key, item.cas)
            if new == old:
                return None
            return put_command(key, new, b"C" + item.cas, max(item.left, 1))

        return self._change(keys, decide, values=True)

    def _change(
        self, keys: Collection[str], decide: Decide, *, values: bool
    ) -> set[str]:
        failed: set[str] = set()
        for node, its in self._parts(check_keys(keys)).items():

            def work(connection: Connection, its: list[str] = its) -> set[str]:
                return change(connection, its, decide, values)

            on_node = node.run(work)
            failed |= set(its) if on_node is None else on_node
        return failed

    # -- other items on the same nodes ------------------------------------

    def ask(
        self, commands: Mapping[str, tuple[bytes, bytes]]
    ) -> dict[str, Answer]:
        """Say a meta command to the node of each key.

        :param commands: what stands before the key, and after it.
        :returns: the answers, without those of nodes that do not answer.
        """
        found: dict[str, Answer] = {}
        for node, its in self._parts(check_keys(commands)).items():
            asked = [
                b"%s %s %s\r\n" % (word, key.encode(), rest)
                for key, (word, rest) in ((key, commands[key]) for key in its)
            ]
            answers = node.run(partial(_exchange, commands=asked))
            found.update(zip(its, answers or (), strict=False))
        return found

    # -- inside -----------------------------------------------------------

    def _parts(self, keys: list[str]) -> dict[Node, list[str]]:
        if not keys:
            return {}
        slots = self._slots
        if len(slots) == 1:
            return {slots[0]: keys}
        parts: dict[Node, list[str]] = {}
        for key in keys:
            node = slots[crc32(key.encode()) % _SLOTS]
            its = parts.get(node)
            if its is None:
                parts[node] = [key]
            else:
                its.append(key)
        return parts


def _close(nodes: list[Node]) -> None:
    for node in nodes:
        node.close()


def _slots(nodes: list[Node]) -> list[Node]:
    """Return the table of nodes.

    By the highest hash, so that a node more or less moves its own share of
    the keys, and no other.
    """
    if len(nodes) == 1:
        return nodes

    def weight(slot: int, node: Node) -> bytes:
        return blake2b(f"{slot} {node.name}".encode(), digest_size=8).digest()

    return [max(nodes, key=partial(weight, slot)) for slot in range(_SLOTS)]


def _exchange(connection: Connection, commands: list[bytes]) -> list[Answer]:
    return connection.exchange(commands)


def _read(
    node: Node, connection: Connection | None, keys: list[str]
) -> dict[str, Found]:
    """Return what is there; all keys when the node does not answer."""

    def work(connection: Connection) -> dict[str, Found]:
        return {
            key: _found(kind, data, node.is_young)
            for key, kind, data in connection.values(set(keys))
        }

    found = None if connection is None else node.finish(connection, work)
    return dict.fromkeys(keys, _LOST) if found is None else found


def _found(kind: bytes, data: bytes, is_young: bool) -> Found:
    if kind == VALUE:
        return Found(State.VALUE, data)
    if kind == TOMBSTONE and is_tombstone(data):
        return _BLOCKED
    if kind == LEASE and not data:
        # Who has the lease of a young node may not fill it.
        return _BLOCKED if is_young else _BUSY
    return _STRANGE


def _leased(key: str, answer: Answer, upto: int, is_old: bool) -> Found:
    if answer.data is None:
        # There was no memory for it.
        return _BLOCKED
    answer.check_key(key)
    kind, cas = answer.flag(b"f"), answer.flag(b"c")
    # The zeros of a node without such numbers (-C) would fit all items.
    is_empty = kind not in (VALUE, TOMBSTONE) and cas != b"0"
    if is_empty and is_old and b"W" in answer.flags:
        return Found(State.LEASED, b"", Lease(cas, upto))
    return _found(kind, answer.data, not is_old or cas == b"0")


def _names(servers: Any) -> list[str]:
    # The letters of one text are names of hosts, too.
    is_list = isinstance(servers, Iterable) and not isinstance(servers, str)
    names = list(servers) if is_list else []
    if not names or len(names) != len(set(map(repr, names))):
        raise exc.CacheOptionError(
            "is no list of different memcached nodes: name each as host:port",
            option="servers",
            value=names if is_list else servers,
        )
    return names
