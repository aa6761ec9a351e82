"""One memcached node: its connections, through pymemcache.

pymemcache has the client of one connection and the pool of a node.  Its
``HashClient`` is not used, which replaces a node that is down by another; nor
its sockets, whose timeout starts again with each packet.

The connection is closed after a malformed response, or one to another command:
the rest of it would be read as the response to the next command.  The timeout
does not include the resolution of a host name: prefer addresses.
"""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import blake2b
from time import monotonic
from typing import Any, NamedTuple, TypeVar

from sqla_shard import exc
from sqla_shard.cache.stores import Breaker, split
from sqla_shard.util.logs import careful_log
from sqla_shard.util.processes import in_children

try:
    from pymemcache.client.base import Client
    from pymemcache.client.rendezvous import RendezvousHash
    from pymemcache.exceptions import MemcacheError
    from pymemcache.pool import ObjectPool
except ImportError as _error:
    raise exc.MissingExtraError(
        package="pymemcache", extra="cache", reason=str(_error)
    ) from None

T = TypeVar("T")

_PORT = 11_211
_RECEIVED = 65_536
#: Maximum number of commands and bytes in one batch.  They must fit into the
#: buffers of both sides; otherwise both would wait to send.
_COMMANDS, _BYTES = 100, 262_144
#: The first words of responses of one line.
_CODES = frozenset(
    b"STORED NOT_STORED EXISTS NOT_FOUND HD EN NS EX NF SERVER_ERROR".split()
)
#: Errors of the client: no response, or a malformed one.
_ERRORS = (OSError, MemcacheError, LookupError, ValueError)

#: Slots of the table of nodes: enough to give each node an equal share.
_SLOTS = 4096

_log = careful_log(__name__)


def parse_server(server: str) -> tuple[str, int] | str:
    """Return the address of a node: host and port, or the path of its socket.

    :param server: ``host``, ``host:port``, ``[address]:port``, for IPv6 also
        a bare address, or the path of a Unix socket.
    :raises sqla_shard.exc.OptionError: if it is none of these.
    """
    if not isinstance(server, str):
        raise _not_a_server(server)
    if server.startswith("/"):
        return server
    host, port = server, ""
    if server.startswith("["):
        host, closing, port = server[1:].partition("]")
        if not closing or (port and not port.startswith(":")):
            host = ""
        port = port[1:] if port else str(_PORT)
    elif server.count(":") == 1:
        host, _, port = server.partition(":")
    else:
        port = str(_PORT)
    is_port = port.isascii() and port.isdecimal()
    if not host or not is_port or not 1 <= int(port) <= 65_535:
        raise _not_a_server(server)
    return host, int(port)


def _not_a_server(server: object) -> exc.OptionError:
    return exc.OptionError(
        "is not the address of a memcached; write host:port, "
        "[address]:port for IPv6, or the path of a Unix socket",
        option="servers",
        value=server,
    )


def malformed_error(response: object) -> OSError:
    """Return the error of a malformed response."""
    return ConnectionAbortedError(f"malformed response: {response!r:.200}")


class Stream:
    """The socket of a client of pymemcache.

    The timeout applies to a command and its whole response; the timeout of a
    plain socket starts again with each packet.  All addresses of a name are
    tried.  The client gets one line at a time: data that is left after a
    response shows that the connection is out of step.
    """

    def __init__(self, *kind: int) -> None:
        self._socket: Any = None
        self._poll = select.poll()
        self._timeout = 0.0
        self._deadline = 0.0
        self._data = b""
        self._at = 0
        self._values = 0

    def settimeout(self, seconds: float) -> None:
        """Set the timeout for connecting, and for a command with response."""
        self._timeout = seconds

    def connect(self, address: tuple[str, int] | str) -> None:
        """Connect to a host and port, or to the path of a Unix socket."""
        if isinstance(address, tuple):
            connection = socket.create_connection(address, self._timeout)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        else:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            connection.settimeout(self._timeout)
            self._socket = connection
            connection.connect(address)
        self._socket = connection
        self._poll.register(connection, select.POLLIN)
        in_children(self)

    def close(self) -> None:
        """Close the socket; a forked process may still use its own copy."""
        if self._socket is not None:
            self._socket.close()

    def after_fork(self) -> None:
        """Close the child's copy; the parent may still use its own."""
        self.close()

    @property
    def is_idle(self) -> bool:
        """Whether the socket is open, and all responses have been read."""
        return self._at == len(self._data) and not self._poll.poll(0)

    def check_end(self) -> None:
        """Check that a response has been read to its end.

        :raises OSError: if more has been received.
        """
        if self._at != len(self._data):
            raise malformed_error(self._data[self._at :])

    def extend(self, part: float) -> None:
        """Extend the deadline to a part of the timeout from now."""
        least = monotonic() + self._timeout * part
        self._deadline = max(self._deadline, least)

    def sendall(self, command: bytes) -> None:
        """Send a command; start the timeout of its response."""
        self._deadline = monotonic() + self._timeout
        self._values = 0
        self._socket.settimeout(self._timeout)
        self._socket.sendall(command)

    def recv(self, size: int) -> bytes:
        """Return one line, with CRLF."""
        return self.line() + b"\r\n"

    def line(self) -> bytes:
        """Return one line."""
        end = self._data.find(b"\r\n", self._at)
        while end < 0:
            self._receive(0)
            end = self._data.find(b"\r\n")
        start, self._at = self._at, end + 2
        return self._data[start:end]

    def value(self, size: int) -> bytes:
        """Return a value of the given length.

        :raises OSError: if the node does not send it, followed by CRLF.
        """
        if size < 0:
            raise malformed_error(size)
        start, stop = self._at, self._at + size
        if stop + 2 > len(self._data):
            self._receive(size + 2)
            start, stop = 0, size
        self._at = stop + 2
        if self._data[stop : self._at] != b"\r\n":
            raise malformed_error(self._data[stop : self._at])
        self._values += 1
        if self._values % _COMMANDS == 0:
            # Many values take as long as the responses to as many commands: a
            # read of ten thousand values must not time out.
            self.extend(1.0)
        return self._data[start:stop]

    def _receive(self, least: int) -> None:
        """Receive one part, and further ones until enough bytes are unread."""
        parts = [self._data[self._at :]]
        length = len(parts[0])
        while length < least or len(parts) == 1:
            seconds = self._deadline - monotonic()
            if seconds <= 0:
                raise TimeoutError("timed out")
            self._socket.settimeout(seconds)
            # Limit it to _BYTES: a malformed length may exceed the memory.
            want = min(max(_RECEIVED, least - length), _BYTES)
            got = self._socket.recv(want)
            if not got:
                raise ConnectionResetError("closed by the node")
            parts.append(got)
            length += len(got)
        self._data, self._at = b"".join(parts), 0


class _Sockets:
    """Replaces the module :mod:`socket` for a client."""

    AF_UNIX = AF_UNSPEC = SOCK_STREAM = IPPROTO_TCP = 0
    socket = Stream

    @staticmethod
    def getaddrinfo(host: str, port: int, *hints: int) -> list[Any]:
        """Return one address, which :class:`Stream` resolves."""
        return [(0, 0, 0, "", (host, port))]


class NodeItem(NamedTuple):
    """An item of a node: its client flags, value and number."""

    kind: bytes
    data: bytes
    cas: bytes = b""


#: It has no annotations.
_Client: Any = Client


class MemcachedClient(_Client):  # type: ignore[misc]  # of any type
    """One connection."""

    sock: Any

    def check_key(self, key: str, key_prefix: bytes) -> bytes:
        """Return a key as bytes; check_keys() has checked it before."""
        return key.encode()

    def items(self, keys: Sequence[str]) -> dict[str, NodeItem]:
        """Return the items of keys, with their CAS values."""
        return self._whole(self.gets_many(keys)) if keys else {}

    def send_get(self, keys: Sequence[str]) -> None:
        """Send a ``get``; :meth:`read_get` reads the response."""
        self.sock.sendall(b"get %s\r\n" % " ".join(keys).encode())

    def read_get(self, keys: Sequence[str]) -> dict[str, tuple[bytes, bytes]]:
        """Return the response to :meth:`send_get`: kind and value of each item.

        ``get_many()`` would send and wait, node by node.
        """
        # Responses of other nodes were read meanwhile, but this one may have
        # arrived in time.
        self.sock.extend(0.2)
        line, value, names = self.sock.line, self.sock.value, set(keys)
        values = {}
        while (head := line()) != b"END":
            word, name, kind, size = head.split(b" ")
            key = name.decode("ascii")
            if word != b"VALUE" or key not in names:
                raise malformed_error(head)
            values[key] = kind, value(int(size))
        return self._whole(values)

    def lines(self, commands: Iterable[bytes]) -> list[bytes]:
        """Send commands in batches; return the line with which each responds.

        Methods of pymemcache send one command and wait.
        """
        responses: list[bytes] = []
        receive = self.sock.line
        for part in split(commands, len, _COMMANDS, _BYTES):
            self.sock.sendall(b"".join(part))
            responses += self._whole([receive() for _ in part])
        for line in responses:
            if line.partition(b" ")[0] not in _CODES:
                raise malformed_error(line)
        return responses

    def statistics(self) -> dict[bytes, Any]:
        """Return the statistics of the node, by name."""
        statistics: dict[bytes, Any] = self.stats()
        return self._whole(statistics)

    def _whole(self, response: T) -> T:
        self.sock.check_end()
        return response

    def _extract_value(
        self,
        expect_cas: bool,
        line: bytes,
        buf: bytes,
        remapped_keys: Mapping[bytes, str],
        prefixed_keys: Sequence[bytes],
    ) -> tuple[str, NodeItem, bytes]:
        _, name, kind, size, *cas = line.split(b" ")
        data = self.sock.value(int(size))
        return remapped_keys[name], NodeItem(kind, data, *cas), buf


def store_command(
    word: bytes, key: str, kind: bytes, data: bytes, expire: int, cas: bytes = b""
) -> bytes:
    """Return the command that stores an item.

    :param word: ``set``; ``add``: only if the key is missing; ``cas``: only if
        the item has the given CAS value.
    """
    size = len(data)
    head = b"%s %s %s %d %d" % (word, key.encode(), kind, expire, size)
    return b"%s%s\r\n%s\r\n" % (head, b" " + cas if cas else b"", data)


def delete_command(key: str, cas: bytes = b"") -> bytes:
    """Return the command that removes an item.

    :param cas: remove it only if it has this CAS value; empty: any.
    """
    return b"md %s%s\r\n" % (key.encode(), b" C" + cas if cas else b"")


def flags_of(line: bytes) -> dict[bytes, bytes]:
    """Return the flags of the response to a meta command, by letter."""
    return {flag[:1]: flag[1:] for flag in line.split(b" ")[1:]}


class MemcachedNode:
    """A memcached node.  Safe to use from several threads.

    After a failure it is skipped for some time, see :class:`.Breaker`.  There
    is a connection for each concurrent caller.  A forked process opens its
    own connections.

    :param name: address of the node; see :func:`parse_server`.
    :param longest: maximum lifetime of a tombstone in seconds.
    :param timeout: timeout in seconds of a command and its response.
    :param retry: seconds after which a failed node is tried again.
    :param connections: maximum number of idle connections.
    """

    def __init__(
        self, name: str, *, longest: int, timeout: float, retry: float, connections: int
    ) -> None:
        self.name = name
        self.longest = longest
        self.breaker: Breaker = Breaker(_log, "memcached", name, retry)
        self._timeout = timeout
        self._connections = connections
        self._address = parse_server(name)
        self._pool = self._new_pool()
        in_children(self)
        self._young_until = 0.0

    def _new_pool(self) -> Any:
        return ObjectPool(
            self._new_client,
            after_remove=MemcachedClient.close,
            # A signal handler may use the cache, too.
            lock_generator=threading.RLock,
        )

    def _new_client(self) -> MemcachedClient:
        return MemcachedClient(
            self._address,
            connect_timeout=self._timeout,
            timeout=self._timeout,
            socket_module=_Sockets,
        )

    @property
    def is_young(self) -> bool:
        """Whether the node may have lost tombstones."""
        return monotonic() < self._young_until

    def is_young_for(self, seconds: float) -> None:
        """Take no leases for the given number of seconds."""
        self._young_until = monotonic() + max(seconds, 0.0)

    def begin(self, keys: Sequence[str]) -> MemcachedClient | None:
        """Send a ``get``, whose response is read in :meth:`finish`.

        :returns: None if the node does not respond.
        """
        client = self._take()
        if client is None:
            return None
        sent = self._try(OSError, client, MemcachedClient.send_get, keys)
        return None if sent is None else client

    def finish(
        self, client: MemcachedClient, work: Callable[..., T], *arguments: Any
    ) -> T | None:
        """Call a function with a connection, and release the connection.

        :param work: a function of the connection and the arguments.
        :returns: None if the node does not respond.
        """
        result = self._try(_ERRORS, client, work, *arguments)
        if result is None:
            return None
        self.breaker.record_success()
        self._pool.release(client)
        # Count after the release: otherwise each of several concurrent
        # callers would find room for one more.
        if len(self._pool.free) > self._connections:
            self.drop(self._pool.get())
        return result[0]

    def _try(
        self,
        errors: type[Exception] | tuple[type[Exception], ...],
        client: MemcachedClient,
        work: Callable[..., T],
        *arguments: Any,
    ) -> tuple[T] | None:
        """Call a function; drop the connection if it fails.

        :param errors: what shows that the node has failed; other errors are
            raised.
        :returns: the result in a tuple; None if the node has failed.
        """
        try:
            return (work(client, *arguments),)
        except errors as error:
            self._record_failure(client, error)
            return None
        except BaseException:
            # The rest of the response would be read by another caller.
            self.drop(client)
            raise

    def run(self, work: Callable[..., T], *arguments: Any) -> T | None:
        """Call a function with a free connection; see :meth:`finish`."""
        client = self._take()
        return None if client is None else self.finish(client, work, *arguments)

    def drop(self, client: MemcachedClient) -> None:
        """Close a connection that is in use."""
        self._pool.destroy(client)

    def close(self) -> None:
        """Close idle connections."""
        # clear() would also close connections in use.
        while self._pool.free:
            self.drop(self._pool.get())

    def after_fork(self) -> None:
        """Replace the pool of the parent; its connections close themselves."""
        # A thread of the parent may have had the lock of its pool.
        self._pool = self._new_pool()

    def _take(self) -> MemcachedClient | None:
        if not self.breaker.may_try():
            return None
        while True:
            client: MemcachedClient = self._pool.get()
            if client.sock is None:
                opened = self._try(OSError, client, MemcachedClient._connect)
                return None if opened is None else client
            if client.sock.is_idle:
                return client
            # The node was restarted, or has sent more than the response.
            self.drop(client)

    def _record_failure(self, client: MemcachedClient, error: Exception) -> None:
        self.drop(client)
        self.close()
        if not isinstance(error, OSError):
            error = malformed_error(error)
        self.breaker.record_failure(error)


def slots_of(nodes: list[MemcachedNode]) -> list[MemcachedNode]:
    """Return the table of nodes.

    Rendezvous hashing: a node that is added or removed moves only its own
    share of the keys.  Without the table each key would need a hash for each
    node.
    """
    if len(nodes) == 1:
        return nodes
    named = {node.name: node for node in nodes}
    ring = RendezvousHash(list(named), hash_function=_weight)
    return [named[ring.get_node(slot)] for slot in range(_SLOTS)]


def _weight(text: str, seed: int) -> int:
    """Return the hash of a node and a slot.

    It must not change between releases: otherwise keys would move to other
    nodes.
    """
    name, _, slot = text.rpartition("-")
    digest = blake2b(f"{slot} {name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big")
