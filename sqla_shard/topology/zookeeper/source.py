"""Topologies in ZooKeeper, read and watched through kazoo.

Below the path of a connection string, such as ``/prod`` of
``zk1:2181,zk2:2181/prod``, the node ``topology`` contains the topology in use
as JSON, and ``history`` has one node for each of the most recent epochs.

kazoo calls a watch once, in its own thread, and loses it with the connection.
Here a watch only triggers another read, which sets the watch again.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import sys
import threading
import uuid
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import PurePath
from time import monotonic
from typing import Any

from sqla_shard.exc import MissingExtraError, TopologyUnavailableError
from sqla_shard.topology import DEFAULT_PLACEHOLDERS, read_document, Topology
from sqla_shard.util.logs import careful_log
from sqla_shard.util.processes import in_children

try:
    from kazoo.client import KazooClient, KazooState
    from kazoo.exceptions import (
        AuthFailedError,
        KazooException,
        NoAuthError,
        NodeExistsError,
        NoNodeError,
        WriterNotClosedException,
    )
    from kazoo.handlers.threading import KazooTimeoutError
    from kazoo.protocol.states import KeeperState
    from kazoo.security import make_acl, READ_ACL_UNSAFE
except ImportError as _error:
    raise MissingExtraError(
        package="kazoo", extra="zookeeper", reason=str(_error)
    ) from _error

#: The node with the topology in use, below the path of the connection.
TOPOLOGY_NODE = "/topology"

#: Anyone can read a node, and only these credentials can change it.
OWN_ACL: list[Any] = [make_acl("auth", "", all=True), *READ_ACL_UNSAFE]

#: Session timeouts after which a client without a connection is replaced.
#: Its session has expired, and a server that has lost its data would reject
#: it forever, because the client has seen later transactions.
_REPLACE_AFTER = 2.0

#: Seconds to wait for the resolution of host names, for messages.
_RESOLVING = 2.0

#: Seconds to wait until a client without a connection has stopped.
_CLOSING = 1.0

#: Parent node of the nodes of processes that follow the topology.
CLIENTS = "/clients"

#: Options with paths of files.
_FILES = ("ca", "certfile", "keyfile")

_log = careful_log(__name__)

# kazoo logs every attempt to connect; the follower logs relevant errors.
_kazoo_log = logging.getLogger("sqla_shard.kazoo")
_kazoo_log.setLevel(logging.ERROR)

#: Seconds until a process without permission tries again.
_RETRY = 600.0


class ZooKeeperConnection:
    """A kazoo client that is opened on first use, and replaced if necessary.

    :param hosts: ``host:port,host:port/path``.
    :param timeout: seconds to wait for a response.
    :param options: further arguments of :class:`kazoo.client.KazooClient`,
        such as ``auth_data``, ``use_ssl`` and ``ca``.
    :param name: name of the source, for messages; by default the URL of the
        hosts.
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
        self.name: str = name or f"zookeeper://{hosts}"
        self._timeout = timeout
        self._options = {
            "timeout": 10.0,
            "connection_retry": {"max_tries": -1, "delay": 0.1, "max_delay": 5.0},
            **(options or {}),
        }
        self._client: KazooClient | None = None
        self._notify: Callable[[], None] | None = None
        self._disconnected_at = 0.0
        in_children(self)

    @property
    def default_acl(self) -> Any:
        """The ACL of new nodes; None for the default of kazoo."""
        return self._options.get("default_acl")

    @property
    def acl_of_new(self) -> Any:
        """The ACL of nodes that only these credentials may change.

        None, for the default of kazoo, if there are no credentials.
        """
        if self.default_acl or not self._options.get("auth_data"):
            return self.default_acl
        return OWN_ACL

    def connected(self) -> KazooClient | None:
        """Return the client if it is connected now; opens nothing."""
        client = self._client
        return client if client is not None and client.connected else None

    def listen(self, notify: Callable[[], None]) -> None:
        """Call ``notify()`` when a connection is lost or opened."""
        self._notify = notify

    def client(self) -> KazooClient:
        """Return a connected client.

        :raises TopologyUnavailableError: if no server responds in time.
        """
        client = self._client
        if client is not None and self._is_unusable(client):
            self.close()
            client = None
        if client is None:
            client = self._client = KazooClient(
                hosts=self.hosts, logger=_kazoo_log, **self._options
            )
            client.add_listener(self._on_state_change)
            self._disconnected_at = monotonic()
            live = client.start_async()
        else:
            live = client._live
        live.wait(self._timeout)
        if not client.connected:
            reason = "authentication failed"
            if client.client_state != KeeperState.AUTH_FAILED:
                reason = self._why_unreachable()
            raise self.unavailable(reason)
        return client

    def _why_unreachable(self) -> str:
        """Return the reason why the source cannot be read, for messages."""
        for name in _FILES:
            path = self._options.get(name)
            # kazoo retries silently.
            if path and not os.access(path, os.R_OK):
                return f"{name}: {path!r} cannot be read"
        unknown = _unresolved(self.hosts)
        named = "; ".join(f"{host} {why}" for host, why in unknown.items())
        if len(unknown) == len(_names(self.hosts)):
            return f"{named}; check the host names"
        reason = (
            f"no server answered within {self._timeout:g} seconds; check "
            "that ZooKeeper is running at this address"
        )
        return f"{reason}; {named}" if named else reason

    def ask(self, call: Callable[[KazooClient], Any]) -> Any:
        """Return the result of an asynchronous call of the client.

        :param call: the call, such as ``lambda c: c.get_async("/a")``.
        :raises TopologyUnavailableError: if there is no response in time.
        :raises kazoo.exceptions.KazooException: if the response is an error,
            such as ``NoNodeError``.
        """
        client = self.client()
        try:
            return call(client).get(timeout=self._timeout)
        except KazooTimeoutError:
            reason = f"no answer in {self._timeout:g} seconds"
        except AuthFailedError:
            reason = "authentication failed"
        except KazooException as error:
            if not _is_of_connection(error):
                raise
            reason = f"the connection was lost ({type(error).__name__})"
        raise self.unavailable(reason)

    def unavailable(self, reason: str) -> TopologyUnavailableError:
        """Return the error for a reason."""
        return TopologyUnavailableError(source=self.name, reason=reason)

    def close(self) -> None:
        """Close the session; wait for a limited time."""
        client, self._client = self._client, None
        if client is None:
            return
        client.remove_listener(self._on_state_change)
        # kazoo waits ten seconds, and longer, for a response.
        ending = threading.Thread(
            target=_end, args=(client,), name="sqla-shard-zookeeper-end", daemon=True
        )
        ending.start()
        ending.join(self._timeout if client.connected else _CLOSING)

    def after_fork(self) -> None:
        """Close the inherited sockets, not the session of the parent."""
        client, self._client = self._client, None
        if client is None:
            return
        # The client must not be garbage collected: its finalizer could close
        # the session.
        _abandoned.append(client)
        connection = client._connection
        for name in ("_socket", "_read_sock", "_write_sock"):
            sock = getattr(connection, name, None)
            if sock is not None:
                # This sends nothing to the server.
                sock.close()

    def _on_state_change(self, state: Any) -> None:
        """Called by kazoo, in its thread."""
        if state != KazooState.CONNECTED and not self._disconnected_at:
            self._disconnected_at = monotonic()
        if self._notify is not None:
            # Lost connections are reported; new ones need new watches.
            self._notify()

    def _is_unusable(self, client: KazooClient) -> bool:
        if client.connected:
            self._disconnected_at = 0.0
            return False
        if client.client_state == KeeperState.AUTH_FAILED:
            return True
        patience = _REPLACE_AFTER * float(self._options["timeout"])
        return bool(
            self._disconnected_at and monotonic() - self._disconnected_at > patience
        )


def _end(client: KazooClient) -> None:
    """Close a client; this may take long."""
    try:
        client.stop()
    except WriterNotClosedException:
        _log.warning(
            "ZooKeeper does not respond; the session will expire",
            extra={"action": "close zookeeper"},
        )
    else:
        client.close()


class ZooKeeperSource:
    """The topology of a ZooKeeper.

    :param hosts: ``host:port,host:port/path``.
    :param timeout: seconds to wait for a response.
    :param options: further arguments of :class:`kazoo.client.KazooClient`.
    :param placeholders: see :meth:`Topology.from_mapping`.
    :param environ: see :meth:`Topology.from_mapping`; None reads
        ``os.environ`` at each load.
    :param register: what a node of this process says about it besides its
        epoch; None for no node.  See
        :class:`.Registration`.
    """

    interval: float | None = None

    def __init__(
        self,
        hosts: str,
        *,
        timeout: float = 5.0,
        options: Mapping[str, Any] | None = None,
        placeholders: Collection[str] = DEFAULT_PLACEHOLDERS,
        environ: Mapping[str, str] | None = None,
        register: Mapping[str, str] | None = None,
    ) -> None:
        self._connection = ZooKeeperConnection(hosts, timeout=timeout, options=options)
        self._registration = (
            None if register is None else Registration(self._connection, register)
        )
        self._placeholders = placeholders
        self._environ = environ
        self._notify: Callable[[], None] = _ignore

    def __repr__(self) -> str:
        return f"ZooKeeperSource({self._connection.hosts!r})"

    @property
    def name(self) -> str:
        """The connection string, without credentials."""
        return self._connection.name

    def start(self, notify: Callable[[], None]) -> None:
        """Call ``notify()`` when the topology may have changed."""
        self._notify = notify
        self._connection.listen(notify)

    def load(self) -> Topology:
        """Read the topology, and watch it.

        :raises TopologyUnavailableError: if no server responds, or nothing
            is published.
        :raises TopologyError: if the published document is not valid.
        """
        data = self._read()
        while data is None:
            if not self._await_node():
                raise self._connection.unavailable(
                    "nothing is published there; publish one with: "
                    "sqla-shard topology push"
                )
            # The node was created between the two requests: no watch will
            # fire.
            data = self._read()
        return read_document(
            data,
            "json",
            source=self.name,
            placeholders=self._placeholders,
            environ=self._environ,
        )

    def _read(self) -> bytes | None:
        """Read and watch the node; return None if it does not exist."""
        try:
            data: bytes
            data, _ = self._connection.ask(
                lambda client: client.get_async(
                    TOPOLOGY_NODE, watch=self._on_node_change
                )
            )
        except NoNodeError:
            return None
        except KazooException as error:
            raise self._connection.unavailable(
                "NoAuthError: permission denied to these credentials, or no "
                "credentials given"
                if isinstance(error, NoAuthError)
                else f"it cannot be read ({type(error).__name__}: {error})"
            ) from error
        return data

    def _await_node(self) -> bool:
        """Watch for the node; return whether it exists."""
        try:
            status = self._connection.ask(
                lambda client: client.exists_async(
                    TOPOLOGY_NODE, watch=self._on_node_change
                )
            )
        except KazooException as error:
            raise self._connection.unavailable(
                f"it cannot be watched ({type(error).__name__}: {error})"
            ) from error
        return status is not None

    def announce(self, topology: Topology) -> None:
        """Show that this process uses a topology; does not wait."""
        if self._registration is not None:
            self._registration.announce(topology)

    def look(self) -> bool:
        """Return False: ZooKeeper sends notifications."""
        return False

    def stop(self) -> None:
        """Close the session."""
        self._notify = _ignore
        self._connection.close()

    def forked(self) -> None:
        """Do nothing: the connection has its own handler."""

    def _on_node_change(self, event: object) -> None:
        """Called by kazoo, in its thread."""
        self._notify()


def _names(hosts: str) -> list[str]:
    """Return the host names and addresses of a connection string."""
    address, _, _ = hosts.partition("/")
    return [part.strip().partition(":")[0] for part in address.split(",")]


def _unresolved(hosts: str) -> dict[str, str]:
    """Return unresolved host names, and the messages of the resolver."""
    errors: dict[str, str] = {}

    def ask(name: str) -> None:
        try:
            socket.getaddrinfo(name, None)
        except OSError as error:
            errors[name] = f"does not resolve ({error.strerror or error})"

    # In threads: if no name server responds, this may take long.
    threads = [
        threading.Thread(target=ask, args=(name,), daemon=True)
        for name in _names(hosts)
    ]
    deadline = monotonic() + _RESOLVING
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(deadline - monotonic(), 0.0))
    return dict(errors)


def _ignore() -> None:
    """Do nothing."""


def _is_of_connection(error: KazooException) -> bool:
    names = {"ConnectionLoss", "SessionExpiredError", "ConnectionClosedError"}
    return type(error).__name__ in names


_abandoned: list[Any] = []


@dataclass(kw_only=True)
class _Node:
    """The node of one session with ZooKeeper.

    :ivar data: its content, as it shall be.
    :ivar is_there: whether ZooKeeper has confirmed that it exists.
    """

    client: KazooClient
    session: int
    path: str
    data: bytes = b""
    is_there: bool = False


class Registration:
    """Announces the epoch that this process uses.

    :param connection: the session of the source.
    :param about: further values of the node, such as ``role``.
    """

    def __init__(
        self, connection: ZooKeeperConnection, about: Mapping[str, str]
    ) -> None:
        self._connection = connection
        self._about = dict(about)
        self._node: _Node | None = None
        self._refused_until = 0.0

    def announce(self, topology: Topology) -> None:
        """Send the epoch of a topology, if ZooKeeper does not have it."""
        node = self._current()
        if node is None:
            return
        data = self._data(topology)
        is_new, node.data = data != node.data, data
        if not node.is_there:
            if monotonic() >= self._refused_until:
                self._create(node)
        elif is_new:
            self._replace(node)
        else:
            # Someone may have deleted it.
            node.client.exists_async(node.path).rawlink(partial(self._looked, node))

    def _current(self) -> _Node | None:
        """Return the node of the present session; None if there is none."""
        client = self._connection.connected()
        identity = None if client is None else client.client_id
        if client is None or identity is None:
            return None
        node = self._node
        # A child process has another client; a session that has expired has
        # another number.
        if node is None or node.client is not client or node.session != identity[0]:
            # Another name: the node of the former session may still exist.
            path = f"{CLIENTS}/{uuid.uuid4().hex}"
            node = _Node(client=client, session=identity[0], path=path)
            self._node = node
        return node

    def _data(self, topology: Topology) -> bytes:
        return json.dumps(
            {
                **self._about,
                "host": socket.gethostname(),
                "pid": os.getpid(),
                # An embedded interpreter has no arguments.
                "program": PurePath(sys.argv[0]).name or "python",
                "epoch": topology.epoch,
                "resets": topology.resets,
            }
        ).encode()

    def _create(self, node: _Node) -> None:
        node.client.create_async(
            node.path,
            node.data,
            acl=self._connection.acl_of_new,
            ephemeral=True,
            makepath=True,
        ).rawlink(partial(self._created, node))

    def _replace(self, node: _Node) -> None:
        node.client.set_async(node.path, node.data).rawlink(
            partial(self._replaced, node)
        )

    # -- answers, in the thread of kazoo ----------------------------------

    def _created(self, node: _Node, answer: Any) -> None:
        error = answer.exception
        if error is None:
            node.is_there = True
        elif isinstance(error, NodeExistsError):
            # The answer to an earlier request was lost, or is on its way.
            node.is_there = True
            self._replace(node)
        elif isinstance(error, NoAuthError):
            self._refused_until = monotonic() + _RETRY
            _log.info(
                "%s: this process may not create a node below %s, so the "
                "doctor of the fleet does not see its epoch",
                self._connection.name,
                CLIENTS,
                extra={"action": "register client"},
            )

    def _replaced(self, node: _Node, answer: Any) -> None:
        if isinstance(answer.exception, NoNodeError):
            node.is_there = False
        elif answer.exception is not None:
            # It may have the former content: the next time it is sent again.
            node.data = b""

    def _looked(self, node: _Node, answer: Any) -> None:
        if answer.exception is None and answer.value is None:
            node.is_there = False
            self._create(node)
