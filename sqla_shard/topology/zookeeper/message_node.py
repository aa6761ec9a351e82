"""A node with the last message of some processes, which others hear of.

Of two messages within some milliseconds the first may be lost.
"""

from __future__ import annotations

# Import this first: it raises MissingExtraError if kazoo is not installed.
from sqla_shard.topology.zookeeper.source import ZooKeeperConnection  # isort: skip

import threading
from collections.abc import Iterator, Mapping
from typing import Any

from kazoo.exceptions import NodeExistsError, NoNodeError

#: Seconds between two looks whether the caller still listens.
_LOOK = 0.5


class MessageNode:
    """Sends messages from one thread, and receives those of all in another.

    :param hosts: ``host:port,host:port/path``.
    :param node: path of the node, which the first message creates.
    :param timeout: seconds to wait for a response.
    :param options: further arguments of :class:`kazoo.client.KazooClient`.
    :ivar pause: seconds between two messages of a process; each is written to
        the disks of the servers.
    """

    pause: float = 0.05

    def __init__(
        self, hosts: str, node: str, *, timeout: float, options: Mapping[str, Any]
    ) -> None:
        self._node = node
        self._sending, self._receiving = (
            ZooKeeperConnection(hosts, timeout=timeout, options=options)
            for _ in range(2)
        )

    def send(self, message: str) -> None:
        """Replace the content of the node.

        :raises TopologyUnavailableError: if no server responds.
        :raises kazoo.exceptions.KazooException: if it is refused.
        """
        data = message.encode()
        try:
            self._sending.ask(lambda client: client.set_async(self._node, data))
        except NoNodeError:
            acl = self._sending.acl_of_new
            try:
                self._sending.ask(
                    lambda client: client.create_async(
                        self._node, data, acl=acl, makepath=True
                    )
                )
            except NodeExistsError:  # of another process, in between
                self.send(message)

    def messages(self, end: threading.Event) -> Iterator[bytes | None]:
        """Yield what is written to the node from now on, and None now and then.

        :param end: ends it.
        :raises TopologyUnavailableError: if no server responds.
        :raises kazoo.exceptions.KazooException: if the node may not be read.
        """
        changed = threading.Event()
        # Another connection has no watches.
        self._receiving.listen(changed.set)
        _, last = self._look(changed)
        while not end.is_set():
            yield None
            if changed.wait(_LOOK):
                changed.clear()
                data, number = self._look(changed)
                if number != last:
                    last = number
                    yield data

    def _look(self, changed: threading.Event) -> tuple[bytes | None, int | None]:
        """Watch the node; return its content, and the number of its last write."""

        def notify(_: object) -> None:
            changed.set()

        while True:
            try:
                data, stat = self._receiving.ask(
                    lambda client: client.get_async(self._node, watch=notify)
                )
            except NoNodeError:
                if self._receiving.ask(
                    lambda client: client.exists_async(self._node, watch=notify)
                ):
                    continue  # It was created between the two requests.
                return None, None
            return data, stat.mzxid

    def close(self) -> None:
        """Close the sessions."""
        self._sending.close()
        self._receiving.close()
