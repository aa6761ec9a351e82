"""The node with which a process shows which epoch it uses.

Below the path of the topology, ``/clients/ID`` has host, process, program and
epoch of one process as JSON; it ends with the session of that process.
``sqla-shard fleet status`` and ``fleet doctor`` read these nodes, and find the
processes that still use an old topology.

Following comes first: nothing here waits.  Requests use the session of the
source, and their answers arrive in the thread of kazoo.  A request that fails
is repeated after the next read of the topology.  A process without permission
goes on without a node, and tries again after some minutes.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import sys
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import PurePath
from time import monotonic
from typing import Any, TYPE_CHECKING

from kazoo.exceptions import NoAuthError, NodeExistsError, NoNodeError

from sqla_shard.topology import Topology
from sqla_shard.topology.zookeeper.publications import CLIENTS

if TYPE_CHECKING:
    from kazoo.client import KazooClient

    from sqla_shard.topology.zookeeper.source import ZooKeeperConnection

_log = logging.getLogger(__name__)

#: Seconds until a process without permission tries again.
_RETRY = 600.0


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
