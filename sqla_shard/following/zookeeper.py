"""Topologies in ZooKeeper, read and watched through kazoo.

Below the path of a connection string, such as ``/prod`` of
``zk1:2181,zk2:2181/prod``, the node ``topology`` holds the topology in use,
as JSON, and ``history`` one node for each of the last ones, by epoch.

kazoo calls watches in a thread of its own, once for each change, and loses
them with the connection.  They say here no more than "look again": what
counts is what a read returns, and each read sets the watch anew.

This module, ``zookeeper_store`` and ``zookeeper_acls`` are the only ones that
load kazoo.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Mapping
from time import monotonic
from typing import Any

from sqla_shard.exc import MissingExtraError
from sqla_shard.exc import TopologyUnavailableError
from sqla_shard.forking import in_children
from sqla_shard.topology import DEFAULT_PLACEHOLDERS
from sqla_shard.topology import read_document
from sqla_shard.topology import Topology

try:
    from kazoo.client import KazooClient
    from kazoo.client import KazooState
    from kazoo.exceptions import AuthFailedError
    from kazoo.exceptions import KazooException
    from kazoo.exceptions import NoAuthError
    from kazoo.exceptions import NoNodeError
    from kazoo.exceptions import WriterNotClosedException
    from kazoo.handlers.threading import KazooTimeoutError
    from kazoo.protocol.states import KeeperState
except ImportError as error:
    raise MissingExtraError(
        package="kazoo", extra="zookeeper", reason=str(error)
    ) from error

__all__ = ["TOPOLOGY_NODE", "ZooKeeperConnection", "ZooKeeperSource"]

#: The node with the topology in use, below the path of the connection.
TOPOLOGY_NODE = "/topology"

#: A client that has had no connection for so many times what a session may
#: take is replaced.  Its session has ended by then, and a server that has lost
#: its data would turn it away for ever: it has seen later transactions.
_REPLACE_AFTER = 2.0

#: Seconds to wait for the addresses of hosts, after none has answered.
_RESOLVING = 2.0

#: Seconds to wait for the end of a client that has no connection.
_CLOSING = 1.0

#: Options that name files.
_FILES = ("ca", "certfile", "keyfile")

_log = logging.getLogger(__name__)

# kazoo reports each attempt to connect, for days if need be; what matters of
# that is told by whoever follows the source.
_kazoo_log = logging.getLogger("sqla_shard.kazoo")
_kazoo_log.setLevel(logging.ERROR)


class ZooKeeperConnection:
    """A kazoo client that is opened on use, and replaced where need be.

    :param hosts: ``host:port,host:port/path``.
    :param timeout: seconds to wait for an answer.
    :param options: further arguments of :class:`kazoo.client.KazooClient`,
        such as ``auth_data``, ``use_ssl`` and ``ca``.
    :param name: for messages; that of the hosts by default.
    """

    def __init__(
        self,
        hosts: str,
        *,
        timeout: float = 5.0,
        options: Mapping[str, Any] | None = None,
        name: str | None = None,
    ) -> None:
        self.hosts = hosts
        #: Where it leads, for messages.
        self.name = name or f"zookeeper://{hosts}"
        self._timeout = timeout
        self._options = {
            "timeout": 10.0,
            "connection_retry": {
                "max_tries": -1,
                "delay": 0.1,
                "max_delay": 5.0,
            },
            **(options or {}),
        }
        self._client: KazooClient | None = None
        self._notify: Callable[[], None] | None = None
        self._without = 0.0
        in_children(self)

    @property
    def default_acl(self) -> Any:
        """The ACL of nodes that are made; None for that of kazoo."""
        return self._options.get("default_acl")

    def listen(self, notify: Callable[[], None]) -> None:
        """Have ``notify()`` called when a connection is lost or made."""
        self._notify = notify

    def client(self) -> KazooClient:
        """Return a client that is connected.

        :raises TopologyUnavailableError: when none is in time.
        """
        client = self._client
        if client is not None and self._is_done_for(client):
            self.close()
            client = None
        if client is None:
            client = self._client = KazooClient(
                hosts=self.hosts, logger=_kazoo_log, **self._options
            )
            client.add_listener(self._state_changed)
            self._without = monotonic()
            live = client.start_async()
        else:
            live = client._live
        live.wait(self._timeout)
        if not client.connected:
            reason = "refuses to authenticate this client"
            if client.client_state != KeeperState.AUTH_FAILED:
                reason = self._silence()
            raise self.unavailable(reason)
        return client

    def _silence(self) -> str:
        """Return why there is no connection, as far as that is known."""
        for name in _FILES:
            path = self._options.get(name)
            # kazoo tries on, and says so nowhere.
            if path and not os.access(path, os.R_OK):
                return f"{name}: {path!r} cannot be read"
        unknown = _unresolved(self.hosts)
        named = "; ".join(f"{host} {why}" for host, why in unknown.items())
        if len(unknown) == len(_names(self.hosts)):
            return f"{named}; look whether the names are right"
        silence = (
            f"no server has answered in {self._timeout:g} seconds; look "
            "whether ZooKeeper runs there, and with this address"
        )
        return f"{silence}; {named}" if named else silence

    def ask(self, call: Callable[[KazooClient], Any]) -> Any:
        """Return what an asynchronous call of the client results in.

        :param call: makes it, such as ``lambda c: c.get_async("/a")``.
        :raises TopologyUnavailableError: when there is no answer in time.
        :raises kazoo.exceptions.NoNodeError: and others that are answers.
        """
        client = self.client()
        try:
            return call(client).get(timeout=self._timeout)
        except KazooTimeoutError:
            reason = f"no answer in {self._timeout:g} seconds"
        except AuthFailedError:
            reason = "refuses to authenticate this client"
        except KazooException as error:
            if not _is_of_connection(error):
                raise
            reason = f"the connection was lost ({type(error).__name__})"
        raise self.unavailable(reason)

    def unavailable(self, reason: str) -> TopologyUnavailableError:
        """Return the error for a reason."""
        return TopologyUnavailableError(source=self.name, reason=reason)

    def close(self) -> None:
        """End the session; a ZooKeeper that hangs is not waited for long."""
        client, self._client = self._client, None
        if client is None:
            return
        client.remove_listener(self._state_changed)
        # kazoo waits ten seconds, and longer, for an answer.
        ending = threading.Thread(
            target=_end,
            args=(client,),
            name="sqla-shard-zookeeper-end",
            daemon=True,
        )
        ending.start()
        ending.join(self._timeout if client.connected else _CLOSING)

    def after_fork(self) -> None:
        """Leave the parent's session alone."""
        client, self._client = self._client, None
        if client is None:
            return
        # Kept for ever: a finalizer could close the session.
        _abandoned.append(client)
        connection = client._connection
        for name in ("_socket", "_read_sock", "_write_sock"):
            sock = getattr(connection, name, None)
            if sock is not None:
                # Only the child's copies, without a word to the server.
                sock.close()

    def _state_changed(self, state: Any) -> None:
        """Called by kazoo, in its thread."""
        if state != KazooState.CONNECTED and not self._without:
            self._without = monotonic()
        if self._notify is not None:
            # Lost, it is to be told; there again, what was watched before
            # is not watched any more.
            self._notify()

    def _is_done_for(self, client: KazooClient) -> bool:
        if client.connected:
            self._without = 0.0
            return False
        if client.client_state == KeeperState.AUTH_FAILED:
            return True
        patience = _REPLACE_AFTER * float(self._options["timeout"])
        return bool(self._without and monotonic() - self._without > patience)


def _end(client: KazooClient) -> None:
    """Close a client, whatever time it takes."""
    try:
        client.stop()
    except WriterNotClosedException:
        _log.warning(
            "a ZooKeeper does not answer; its session ends by itself",
            extra={"action": "close zookeeper"},
        )
    else:
        client.close()


class ZooKeeperSource:
    """The topology of a ZooKeeper.

    :param hosts: ``host:port,host:port/path``.
    :param timeout: seconds to wait for an answer.
    :param options: further arguments of :class:`kazoo.client.KazooClient`.
    :param placeholders: see :meth:`Topology.from_mapping`.
    :param environ: likewise; None reads ``os.environ`` at each load.
    """

    #: It tells of changes by itself.
    interval: float | None = None

    def __init__(
        self,
        hosts: str,
        *,
        timeout: float = 5.0,
        options: Mapping[str, Any] | None = None,
        placeholders: Collection[str] = DEFAULT_PLACEHOLDERS,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self._connection = ZooKeeperConnection(
            hosts, timeout=timeout, options=options
        )
        self._placeholders = placeholders
        self._environ = environ
        self._notify: Callable[[], None] = _nobody

    def __repr__(self) -> str:
        return f"ZooKeeperSource({self._connection.hosts!r})"

    @property
    def name(self) -> str:
        """The connection string, which has no password."""
        return self._connection.name

    def start(self, notify: Callable[[], None]) -> None:
        """Have ``notify()`` called when the topology may be another."""
        self._notify = notify
        self._connection.listen(notify)

    def load(self) -> Topology:
        """Read the topology, and watch it from then on.

        :raises TopologyUnavailableError: when no server answers, or nothing
            was published.
        :raises TopologyError: when what is there is not a topology.
        """
        data = self._read()
        while data is None:
            if not self._await_node():
                raise self._connection.unavailable(
                    "nothing was published there; publish one with: "
                    "sqla-shard topology push"
                )
            # Made between the two questions: nobody will tell of it.
            data = self._read()
        return read_document(
            data,
            "json",
            source=self.name,
            placeholders=self._placeholders,
            environ=self._environ,
        )

    def _read(self) -> bytes | None:
        """Return what is there, and watch it; None where nothing is."""
        try:
            data: bytes
            data, _ = self._connection.ask(
                lambda client: client.get_async(
                    TOPOLOGY_NODE, watch=self._changed
                )
            )
        except NoNodeError:
            return None
        except KazooException as error:
            raise self._connection.unavailable(
                "NoAuthError: these credentials may not read it, or none are "
                "given"
                if isinstance(error, NoAuthError)
                else f"it cannot be read ({type(error).__name__}: {error})"
            ) from error
        return data

    def _await_node(self) -> bool:
        """Be told when it is there; tell whether it is."""
        try:
            found = self._connection.ask(
                lambda client: client.exists_async(
                    TOPOLOGY_NODE, watch=self._changed
                )
            )
        except KazooException as error:
            raise self._connection.unavailable(
                f"it cannot be watched ({type(error).__name__}: {error})"
            ) from error
        return found is not None

    def look(self) -> bool:
        """Return False: it tells by itself."""
        return False

    def stop(self) -> None:
        """End the session."""
        self._notify = _nobody
        self._connection.close()

    def forked(self) -> None:
        """Leave the rest to the connection; the next load opens one."""

    def _changed(self, event: object) -> None:
        """Called by kazoo, in its thread."""
        self._notify()


def _names(hosts: str) -> list[str]:
    """Return the names or addresses of a connection string."""
    address, _, _ = hosts.partition("/")
    return [part.strip().partition(":")[0] for part in address.split(",")]


def _unresolved(hosts: str) -> dict[str, str]:
    """Return which names have no address, and what the resolver says.

    kazoo tries on, and says so nowhere.
    """
    found: dict[str, str] = {}

    def ask(name: str) -> None:
        try:
            socket.getaddrinfo(name, None)
        except OSError as error:
            found[name] = f"does not resolve ({error.strerror or error})"

    # Where no server of names answers this would take as long as it likes.
    threads = [
        threading.Thread(target=ask, args=(name,), daemon=True)
        for name in _names(hosts)
    ]
    deadline = monotonic() + _RESOLVING
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(deadline - monotonic(), 0.0))
    return dict(found)


def _nobody() -> None:
    """Receive what nobody waits for."""


def _is_of_connection(error: KazooException) -> bool:
    names = {"ConnectionLoss", "SessionExpiredError", "ConnectionClosedError"}
    return type(error).__name__ in names


_abandoned: list[Any] = []
