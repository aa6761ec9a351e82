"""The channels through which processes send hints to each other.

A channel of Redis, or a node of ZooKeeper, whose content is the last message:
of two that come within some milliseconds the first may be lost, as any hint may.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any, Protocol

from sqla_shard.exc import JobOptionError, MissingExtraError, TopologyError
from sqla_shard.topology.follow import is_zookeeper, zookeeper_options
from sqla_shard.util.masking import redact

#: Seconds to wait for a response.
TIMEOUT = 1.0
#: Seconds between two looks whether a worker still listens.
_LOOK = 0.5


class Channel(Protocol):
    """Sends messages to other processes, from one thread, and receives theirs.

    :ivar pause: seconds between two messages of a process.
    """

    pause: float

    def send(self, message: str) -> None:
        """Send a message; raises any error of the client."""
        ...

    def messages(self, end: threading.Event) -> Iterator[bytes | None]:
        """Yield the messages of all processes, and None now and then.

        Raises any error of the client.

        :param end: ends it.
        """
        ...

    def close(self) -> None:
        """Close the connections."""
        ...


def channel_at(url: str, name: str) -> Channel:
    """Return the channel of a URL, without opening it.

    :param name: name of the channel.
    :raises JobOptionError: if the URL is not valid.
    :raises MissingExtraError: if the package of the client is not installed.
    """
    try:
        if not is_zookeeper(url):
            return _Redis(url, name)
        hosts, options = zookeeper_options(url)
        from sqla_shard.topology.zookeeper.message_node import MessageNode

        return MessageNode(hosts, f"/hints/{name}", timeout=TIMEOUT, options=options)
    except (TypeError, ValueError, TopologyError):
        # Their messages may show a part of the password.
        raise JobOptionError(
            "must be the URL of a Redis server, with options of the package "
            "redis, such as redis://cache1:6379/0, or of a ZooKeeper, such as "
            "zookeeper://zk1:2181/prod",
            option="url",
            value=redact(url),
        ) from None


class _Redis:
    pause = 0.005

    def __init__(self, url: str, name: str) -> None:
        try:
            import redis
        except ImportError as error:
            raise MissingExtraError(
                package="redis", extra="redis", reason=str(error)
            ) from None
        self._name = name
        self._client = redis.Redis.from_url(
            url,
            socket_timeout=TIMEOUT,
            socket_connect_timeout=TIMEOUT,
            health_check_interval=10,
        )
        # It is not opened: this refuses options of which redis knows nothing.
        self._client.connection_pool.make_connection()

    def send(self, message: str) -> None:
        self._client.publish(self._name, message)

    def messages(self, end: threading.Event) -> Iterator[bytes | None]:
        client: Any = self._client  # pubsub() has no types
        with client.pubsub(ignore_subscribe_messages=True) as pubsub:
            pubsub.subscribe(self._name)
            while not end.is_set():
                found = pubsub.get_message(timeout=_LOOK)
                yield None if found is None else found["data"]

    def close(self) -> None:
        self._client.close()
