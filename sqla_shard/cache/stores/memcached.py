"""A store on memcached nodes, 1.6 or later, through pymemcache.

Each key has one node.  A node that is down is not replaced by another one:
its items, which are not invalidated meanwhile, would be returned when it is up
again.  (``HashClient`` of pymemcache replaces nodes; so each node has a pool
of clients here.)

A lease is a random token, which is stored with ``add``.  A fill reads it with
``gets`` and replaces it with ``cas`` on the same connection.  After a restart
a node repeats the numbers of items (CAS values), but not the token.  A node
that was started without these numbers (``-C``) cannot be used.

A restarted or flushed node has lost tombstones.  So each node has an item, the
*guard*, which is stored when it is missing.  While the guard is younger than
the longest tombstone may be old, the node grants no leases.

A node without free memory evicts the least recently used items, including
tombstones.  A value that is filled then is removed by the writer after
its COMMIT, unless the process dies in between: give nodes the memory they
need.

Meta commands are used where other commands lack the feature: the remaining
seconds of an item, its number without its value, and ``delete`` for one number
only.
"""

from __future__ import annotations

import struct
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from secrets import token_bytes
from time import time
from typing import Any, NamedTuple
from zlib import crc32

from sqla_shard import exc
from sqla_shard.cache.stores import (
    check_lease,
    check_seconds,
    check_size,
    check_tombstone,
    check_wait,
    Found,
    KeyState,
    LONGEST,
)
from sqla_shard.cache.stores.memcached_node import (
    delete_command,
    flags_of,
    malformed_error,
    MemcachedClient,
    MemcachedNode,
    NodeItem,
    slots_of,
    store_command,
)
from sqla_shard.outbox.tables import check_keys, TOKEN_BYTES
from sqla_shard.util.json_values import JsonObject

#: Client flags of items, by kind.
VALUE, TOMBSTONE, LEASE = b"1", b"2", b"5"
#: Maximum number of attempts to change a key that other processes change at
#: the same time.
_TRIES = 50
#: The CAS value of all items of a node that was started with ``-C``.
_NO_NUMBER = b"0"
_ASK_GUARD = b"mg sqla_shard:guard t c\r\n"
_PUT_GUARD = f"ms sqla_shard:guard 0 ME T{LONGEST}\r\n\r\n".encode()

_NOTHING = NodeItem(b"", b"")
_BLOCKED = Found(KeyState.BLOCKED)
_BUSY = Found(KeyState.BUSY)
_LOST = Found(KeyState.LOST)
#: An item that this protocol has not written: the reader removes it.
_UNREADABLE = Found(KeyState.VALUE)


# -- tombstones

SLACK = 60
"""Seconds by which the clocks of two machines may differ.

Tombstones have the times of the machines that write them: a token remains
valid for this many additional seconds.
"""

_TOKEN = struct.Struct(f">{TOKEN_BYTES}sQ")


def is_tombstone(data: bytes) -> bool:
    """Return whether data is that of a tombstone.

    A tombstone has the tokens of its writers, each with the time at which it
    expires: each writer of the key renews the lifetime of the item, and the
    token of a process that has died must still expire.
    """
    return bool(data) and not len(data) % _TOKEN.size


def _tokens(data: bytes) -> dict[bytes, int]:
    if not is_tombstone(data):
        # This protocol has not written it: no writer will remove it.
        return {}
    now = time() - SLACK
    return {token: end for token, end in _TOKEN.iter_unpack(data) if end > now}


def _pack(tokens: dict[bytes, int]) -> bytes:
    return b"".join(_TOKEN.pack(*one) for one in tokens.items())


def with_token(data: bytes, token: bytes, expire: int) -> bytes:
    """Return a tombstone with one more token.

    :param data: the encoded tombstone; empty to create one.
    """
    return _pack({**_tokens(data), token: int(time()) + expire})


def without_token(data: bytes, token: bytes) -> bytes:
    """Return a tombstone without a token; empty if no token remains."""
    tokens = _tokens(data)
    tokens.pop(token, None)
    return _pack(tokens)


# -- items


class Lease(NamedTuple):
    """The item that a value may replace.

    :ivar data: the data of the item.
    :ivar cas: the CAS value of the item; empty if any is valid.
    """

    data: bytes
    cas: bytes = b""


def _heads(client: MemcachedClient, keys: Sequence[str]) -> dict[str, NodeItem]:
    """Return the items of keys, without their data."""
    heads: dict[str, NodeItem] = {}
    lines = client.lines(b"mg %s k f c\r\n" % key.encode() for key in keys)
    for key, line in zip(keys, lines, strict=True):
        flags = flags_of(line)
        if line.startswith(b"HD"):
            if flags[b"k"] != key.encode():
                raise malformed_error(line)
            heads[key] = NodeItem(flags[b"f"], b"", flags[b"c"])
    return heads


def _block(
    client: MemcachedClient, keys: list[str], token: bytes, expire: int
) -> set[str]:
    """Put tombstones; retry keys that other processes change.

    :returns: the keys for which this failed.
    """
    failed: set[str] = set()
    unblocked = keys
    for _ in range(_TRIES):
        heads = _heads(client, unblocked)
        marked = [key for key in heads if heads[key].kind == TOMBSTONE]
        whole = client.items(marked)
        commands: dict[str, bytes] = {}
        for key in unblocked:
            item = whole.get(key) or heads.get(key) or _NOTHING
            new = with_token(item.data, token, expire)
            if item.cas == _NO_NUMBER:
                failed.add(key)
            else:
                word = b"cas" if item.cas else b"add"
                commands[key] = store_command(
                    word, key, TOMBSTONE, new, expire, item.cas
                )
        unblocked = _send_changes(client, commands, failed)
        if not unblocked:
            break
    return failed | set(unblocked)


def _unblock(client: MemcachedClient, keys: list[str], token: bytes) -> set[str]:
    """Remove items, but not tombstones of other transactions.

    :returns: the keys for which this failed.
    """
    failed: set[str] = set()
    blocked = keys
    for _ in range(_TRIES):
        commands: dict[str, bytes] = {}
        shared: dict[str, tuple[bytes, bytes]] = {}
        for key, item in client.items(blocked).items():
            new = b""
            if item.kind == TOMBSTONE:
                new = without_token(item.data, token)
            if item.cas == _NO_NUMBER:
                failed.add(key)
            elif not new:
                commands[key] = delete_command(key, item.cas)
            elif new != item.data:
                shared[key] = new, item.cas
        again = _shorten(client, shared, commands)
        blocked = again + _send_changes(client, commands, failed)
        if not blocked:
            break
    return failed | set(blocked)


def _shorten(
    client: MemcachedClient,
    shared: Mapping[str, tuple[bytes, bytes]],
    commands: dict[str, bytes],
) -> list[str]:
    """Add commands that remove a token; the item expires at the same time.

    :param shared: tombstones with further tokens: the new data, and the CAS
        value of the item.
    :param commands: the dictionary to which the commands are added.
    :returns: the keys that other processes have changed meanwhile.
    """
    again = []
    reads = [b"mg %s t c\r\n" % key.encode() for key in shared]
    for key, line in zip(shared, client.lines(reads), strict=True):
        new, cas = shared[key]
        flags = flags_of(line)
        if flags.get(b"c") != cas:
            again.append(key)
        else:
            seconds = max(int(flags[b"t"]), 1)
            commands[key] = store_command(b"cas", key, TOMBSTONE, new, seconds, cas)
    return again


def _take(
    client: MemcachedClient, keys: list[str], tombstone: bytes, expire: int
) -> dict[str, tuple[Lease, bytes]]:
    """Replace values by tombstones; return the values."""
    values = {
        key: item
        for key, item in client.items(keys).items()
        if item.kind == VALUE and item.cas != _NO_NUMBER
    }
    # Request the CAS value of the new item: a tombstone to which another token
    # was added, and removed again, has the same data.
    lines = client.lines(
        b"ms %s %d F%s C%s T%d c\r\n%s\r\n"
        % (key.encode(), len(tombstone), TOMBSTONE, item.cas, expire, tombstone)
        for key, item in values.items()
    )
    return {
        key: (Lease(tombstone, flags_of(line)[b"c"]), item.data)
        for (key, item), line in zip(values.items(), lines, strict=True)
        if line.startswith(b"HD")
    }


def _send_changes(
    client: MemcachedClient, commands: Mapping[str, bytes], failed: set[str]
) -> list[str]:
    """Send commands; return the keys that were changed meanwhile.

    :param failed: the set to which keys are added whose commands the node
        refuses.
    """
    again = []
    lines = client.lines(commands.values())
    for key, line in zip(commands, lines, strict=True):
        if line.startswith(b"SERVER_ERROR"):
            failed.add(key)
        elif line not in (b"STORED", b"HD"):
            again.append(key)
    return again


def _fill(
    client: MemcachedClient,
    values: Mapping[str, tuple[Lease, bytes]],
    expire: int,
    largest: int,
) -> set[str]:
    """Replace leases by values; return the keys of stored values."""
    commands: dict[str, bytes] = {}
    for key, item in client.items(list(values)).items():
        (data, cas), value = values[key]
        if item.data != data or (cas and item.cas != cas):
            continue
        if len(value) <= largest:
            commands[key] = store_command(b"cas", key, VALUE, value, expire, item.cas)
        else:
            # Remove the lease; otherwise other readers wait until it expires.
            commands[key] = delete_command(key, item.cas)
    lines = client.lines(commands.values())
    return {key for key, line in zip(commands, lines, strict=True) if line == b"STORED"}


def _lease(
    client: MemcachedClient, node: MemcachedNode, keys: list[str], seconds: int
) -> dict[str, Found]:
    """Take leases of missing keys."""
    token = token_bytes(TOKEN_BYTES)
    commands = [store_command(b"add", key, LEASE, token, seconds) for key in keys]
    # Read the guard last: after an earlier flush it is missing; a later flush
    # removes the leases, too.
    commands.append(_ASK_GUARD)
    *responses, guard = client.lines(commands)
    is_old = _is_old(client, node, guard)
    found = {}
    leased = Found(KeyState.LEASED, b"", Lease(token))
    for key, response in zip(keys, responses, strict=True):
        if response == b"STORED":
            found[key] = leased if is_old else _BLOCKED
        elif response == b"NOT_STORED":
            # Another process has stored an item meanwhile.
            found[key] = _BUSY if is_old else _BLOCKED
        elif response.startswith(b"SERVER_ERROR"):
            # The node is out of memory.
            found[key] = _BLOCKED
        else:
            raise malformed_error(response)
    return found


def _is_old(client: MemcachedClient, node: MemcachedNode, guard: bytes) -> bool:
    """Return whether a node grants leases.

    :param guard: the response to the read of its guard.
    """
    age, flags = 0, flags_of(guard)
    if guard.startswith(b"HD"):
        age = LONGEST - int(flags[b"t"])
    else:
        client.lines([_PUT_GUARD])
    # Ages are whole seconds: add one.
    node.is_young_for(node.longest + 1 - age)
    return not node.is_young and flags.get(b"c") != _NO_NUMBER


# -- the store


class MemcachedStore:
    """A store on memcached nodes; see :class:`.Store`.

    All processes must give nodes the same names: the key of an item and the
    names of nodes select its node.

    :param servers: ``host:port`` of each node; see :func:`parse_server`.
    :param longest: maximum lifetime of a tombstone in seconds, see above; the
        same for all processes.
    :param largest: maximum size of a value in bytes; the limit of memcached
        for an item is 1 MiB.
    :param timeout: timeout in seconds for connecting to a node, and for a
        response.
    :param retry: seconds after which a failed node is tried again.
    :param connections: maximum number of idle connections to each node.
    :raises sqla_shard.exc.OptionError: if an argument is not valid.
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
        self.longest: int = check_seconds("longest", longest)
        self._largest = largest
        self._nodes = [
            MemcachedNode(
                name,
                longest=longest,
                timeout=timeout,
                retry=retry,
                connections=connections,
            )
            for name in names
        ]
        self._slots = slots_of(self._nodes)
        # Regions of dogpile.cache are not closed.
        weakref.finalize(self, _close, self._nodes)

    def close(self) -> None:
        """Close idle connections; they are opened again when needed."""
        _close(self._nodes)

    def node_of(self, key: str) -> str:
        """Return the name of the node of a key."""
        return self._slots[crc32(key.encode()) % len(self._slots)].name

    def stats(self) -> list[NodeStats]:
        """Return the statistics of the nodes, in order."""
        return [_node_stats(node) for node in self._nodes]

    def fetch(self, keys: Sequence[str], lease: int) -> dict[str, Found]:
        """Return the state of each key; see :class:`.Store`."""
        check_lease(lease)
        parts = self._parts(check_keys(keys))
        # Send the commands to all nodes before a response is read.
        clients = {node: node.begin(node_keys) for node, node_keys in parts.items()}
        found: dict[str, Found] = {}
        try:
            for node, node_keys in parts.items():
                found.update(_read(node, clients.pop(node), node_keys))
        finally:
            # After an interrupt the responses of the other nodes are not read.
            for node, client in clients.items():
                if client is not None:
                    node.drop(client)
        for node, node_keys in parts.items():
            absent = [key for key in node_keys if key not in found]
            if absent and lease and not node.is_young:
                leased = node.run(_lease, node, absent, lease)
                found.update(leased or dict.fromkeys(absent, _LOST))
            elif absent:
                found.update(dict.fromkeys(absent, _BLOCKED))
        return found

    def fill(self, values: Mapping[str, tuple[Lease, bytes]], expire: int) -> set[str]:
        """Replace leases by values; see :class:`.Store`."""
        check_seconds("expire", expire)
        done: set[str] = set()
        for node, node_keys in self._parts(check_keys(values)).items():
            part = {key: values[key] for key in node_keys}
            done |= node.run(_fill, part, expire, self._largest) or set()
        return done

    def block(self, keys: Collection[str], token: bytes, expire: int) -> set[str]:
        """Replace items by tombstones; see :class:`.Store`."""
        # A tombstone must not outlive the time without leases after a restart.
        check_tombstone(token, expire, self.longest)
        return self._change(keys, _block, token, expire)

    def take(
        self, keys: Collection[str], token: bytes, expire: int
    ) -> dict[str, tuple[Lease, bytes]]:
        """Replace values by tombstones; see :class:`.Store`."""
        check_tombstone(token, expire, self.longest)
        tombstone = with_token(b"", token, expire)
        taken: dict[str, tuple[Lease, bytes]] = {}
        for node, node_keys in self._parts(check_keys(keys)).items():
            taken.update(node.run(_take, node_keys, tombstone, expire) or {})
        return taken

    def unblock(self, keys: Collection[str], token: bytes) -> set[str]:
        """Remove items, but not other tombstones; see :class:`.Store`."""
        return self._change(keys, _unblock, token)

    def _change(
        self, keys: Collection[str], change: Callable[..., set[str]], *arguments: Any
    ) -> set[str]:
        failed: set[str] = set()
        for node, node_keys in self._parts(check_keys(keys)).items():
            on_node = node.run(change, node_keys, *arguments)
            failed |= set(node_keys) if on_node is None else on_node
        return failed

    # -- other items on the same nodes

    def items(self, keys: Iterable[str]) -> dict[str, NodeItem]:
        """Return items of any kind, without those of failed nodes."""
        items: dict[str, NodeItem] = {}
        for node, node_keys in self._parts(check_keys(keys)).items():
            items.update(node.run(MemcachedClient.items, node_keys) or {})
        return items

    def command(self, commands: Mapping[str, bytes]) -> dict[str, bytes]:
        """Send a command to the node of each key.

        :param commands: commands, by key, each with a response of one line.
        :returns: the responses by key, without those of failed nodes.
        """
        found: dict[str, bytes] = {}
        for node, node_keys in self._parts(check_keys(commands)).items():
            sent = [commands[key] for key in node_keys]
            responses = node.run(MemcachedClient.lines, sent) or ()
            found.update(zip(node_keys, responses, strict=False))
        return found

    # -- inside

    def _parts(self, keys: list[str]) -> dict[MemcachedNode, list[str]]:
        if not keys:
            return {}
        slots = self._slots
        if len(slots) == 1:
            return {slots[0]: keys}
        parts: dict[MemcachedNode, list[str]] = {}
        for key in keys:
            node = slots[crc32(key.encode()) % len(slots)]
            node_keys = parts.get(node)
            if node_keys is None:
                parts[node] = [key]
            else:
                node_keys.append(key)
        return parts


def _close(nodes: list[MemcachedNode]) -> None:
    for node in nodes:
        node.close()


def _read(
    node: MemcachedNode, client: MemcachedClient | None, keys: list[str]
) -> dict[str, Found]:
    """Return the states of existing keys; of all if the node has failed."""
    items = (
        None if client is None else node.finish(client, MemcachedClient.read_get, keys)
    )
    if items is None:
        return dict.fromkeys(keys, _LOST)
    # Leases of a young node are not filled.
    leased = _BLOCKED if node.is_young else _BUSY
    return {
        key: Found(KeyState.VALUE, data)
        if kind == VALUE
        else _found(leased, kind, data)
        for key, (kind, data) in items.items()
    }


def _found(leased: Found, kind: bytes, data: bytes) -> Found:
    if kind == TOMBSTONE and is_tombstone(data):
        return _BLOCKED
    return leased if kind == LEASE else _UNREADABLE


def _names(servers: Any) -> list[str]:
    # The characters of a string would be valid host names.
    is_list = isinstance(servers, Iterable) and not isinstance(servers, str)
    names = list(servers) if is_list else []
    if not names or len(names) != len(set(map(repr, names))):
        raise exc.OptionError(
            "must be a list of different memcached nodes, each as host:port",
            option="servers",
            value=names if is_list else servers,
        )
    return names


@dataclass(frozen=True, kw_only=True)
class NodeStats(JsonObject):
    """The statistics of a node; None if the node does not have one.

    Evictions, hits and misses are counted since the start of the node.

    :ivar node: name of the node.
    :ivar answers: whether it responds.
    :ivar items: the number of its items, including expired ones that were not
        read since.
    :ivar bytes: size of these items in bytes.
    :ivar limit: maximum size of all items in bytes.
    :ivar evictions: the number of evicted items, including tombstones: a full
        node makes the cache less safe.
    :ivar hits: the number of keys that were found.
    :ivar misses: the number of keys that were not found.
    :ivar uptime: seconds since the node was started.
    """

    node: str
    answers: bool
    items: int | None = None
    bytes: int | None = None
    limit: int | None = None
    evictions: int | None = None
    hits: int | None = None
    misses: int | None = None
    uptime: int | None = None


#: The names of statistics in memcached.
_STATS = {
    "items": b"curr_items",
    "bytes": b"bytes",
    "limit": b"limit_maxbytes",
    "evictions": b"evictions",
    "hits": b"get_hits",
    "misses": b"get_misses",
    "uptime": b"uptime",
}


def _node_stats(node: MemcachedNode) -> NodeStats:
    statistics = node.run(MemcachedClient.statistics)
    if statistics is None:
        return NodeStats(node=node.name, answers=False)
    numbers = {ours: _number(statistics.get(theirs)) for ours, theirs in _STATS.items()}
    return NodeStats(node=node.name, answers=True, **numbers)


def _number(value: Any) -> int | None:
    return value if type(value) is int and value >= 0 else None
