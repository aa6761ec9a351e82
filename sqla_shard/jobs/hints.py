"""Hints: workers are notified of a job when its transaction has committed.

A hint names a shard, a queue and a priority.  After COMMIT it goes to the
workers of the process at once, and to those of others through Redis or
ZooKeeper, if :func:`share_hints` has named one, from a thread: COMMIT does not
wait for it.  A hint may be lost, or come for nothing; workers also look for
jobs without it.

The channel is one of Redis, or a node of ZooKeeper, whose content is the last
message: of two that come within some milliseconds the first may be lost.
"""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TYPE_CHECKING
from weakref import finalize, WeakKeyDictionary

from sqla_shard.cluster.event_loops import Loops
from sqla_shard.exc import JobOptionError, MissingExtraError, TopologyError
from sqla_shard.jobs.claims import JobState
from sqla_shard.jobs.survey import DueGroup
from sqla_shard.topology.follow import is_zookeeper, zookeeper_options
from sqla_shard.util.json_values import parsed_json
from sqla_shard.util.logs import careful_log
from sqla_shard.util.masking import redact
from sqla_shard.util.processes import in_children

if TYPE_CHECKING:
    from sqla_shard import Cluster

_log = careful_log(__name__)

#: Called with groups that have a due job, by any thread.
Listener = Callable[[Collection[DueGroup]], None]
#: Hints that wait while nothing responds; others are dropped.
_MAX_WAITING = 1000
#: Seconds to wait for a response of Redis or ZooKeeper.
_TIMEOUT = 1.0
#: Seconds between two looks whether a worker still listens.
_LOOK = 0.5


def share_hints(
    cluster: Cluster, url: str | None, *, channel: str = "sqla_shard:jobs"
) -> None:
    """Send hints to the workers of other processes, through Redis or ZooKeeper.

    Call it in the programs that enqueue jobs, and in those of the workers::

        share_hints(cluster, "redis://cache1:6379/0")
        share_hints(cluster, "zookeeper://zk1:2181,zk2:2181/prod")

    The user of Redis needs ``PUBLISH`` and ``SUBSCRIBE``.  In ZooKeeper the node
    ``/hints/CHANNEL`` below the path has the last hints; the credentials are
    those of ``SQLA_SHARD_ZOOKEEPER_AUTH``, which the programs share.  Each
    message is written to disk there, 20 a second at most from each process, and
    the first of two at the same time may be lost: prefer Redis where there is
    one.

    The channel is closed with the cluster, or at the end of the process.

    :param url: URL of a Redis server, or of a ZooKeeper; None sends no more.
    :param channel: name of the channel; the same for all processes, and another
        one for another cluster.
    :raises JobOptionError: if the URL is not valid.
    :raises MissingExtraError: if the package redis, or kazoo, is not installed.
    """
    hints = hints_of(cluster)
    hints.use(
        None if url is None else _Exchange(channel_at(url, channel), hints.notify)
    )
    cluster.call_at_close(hints.close)


class Hints:
    """The hints of a cluster in this process.

    :ivar listeners: the workers of this process.
    :ivar channel: what reaches those of others; None without one.
    """

    def __init__(self) -> None:
        self.channel: _Exchange | None = None
        self.listeners: tuple[Listener, ...] = ()
        self.after_fork()
        in_children(self)

    def after_fork(self) -> None:
        """Start with a lock of the child."""
        self._lock = threading.Lock()

    def use(self, channel: _Exchange | None) -> None:
        """Use another channel from now on."""
        with self._lock:
            former, self.channel = self.channel, channel
            if channel is not None and self.listeners:
                channel.listen()
        if former is not None:
            former.close()

    def close(self) -> None:
        """Send what waits, and close the channel."""
        self.use(None)

    def notify(self, groups: Collection[DueGroup]) -> None:
        """Notify the workers of this process."""
        for listener in self.listeners:
            listener(groups)

    def publish(self, groups: Collection[DueGroup]) -> None:
        """Notify all workers; this neither waits nor fails."""
        self.notify(groups)
        channel = self.channel
        if channel is not None:
            channel.send(groups)

    @contextmanager
    def listening(self, listener: Listener) -> Iterator[None]:
        """Return a context manager in which a listener gets hints."""
        with self._lock:
            self.listeners = (*self.listeners, listener)
            if self.channel is not None:
                self.channel.listen()
        try:
            yield
        finally:
            with self._lock:
                self.listeners = tuple(one for one in self.listeners if one != listener)
                if self.channel is not None and not self.listeners:
                    self.channel.stop_listening()


_lock = threading.Lock()
_known: WeakKeyDictionary[Cluster, Hints] = WeakKeyDictionary()


def hints_of(cluster: Cluster | Loops) -> Hints:
    """Return the hints of a cluster in this process."""
    if isinstance(cluster, Loops):
        cluster = cluster.synchronous
    with _lock:
        hints = _known.get(cluster)
        if hints is None:
            hints = _known[cluster] = Hints()
            # A cluster that nobody closes ends with the process at the latest.
            finalize(cluster, hints.close)
        return hints


def publish_after_commit(session: Any, groups: Collection[DueGroup], _: bool) -> None:
    """Notify all workers of jobs that a transaction has enqueued."""
    hints_of(session.cluster).publish(frozenset(groups))


class _Exchange:
    """A channel, with a thread that sends, and one that listens."""

    def __init__(self, channel: Channel, notify: Listener) -> None:
        self._channel = channel
        self._notify = notify
        self.after_fork()
        in_children(self)

    def after_fork(self) -> None:
        """Start with threads, and connections, of the child."""
        self._lock = threading.Lock()
        self._waiting: queue.SimpleQueue[Collection[DueGroup] | None] = (
            queue.SimpleQueue()
        )
        self._sender: threading.Thread | None = None
        self._listener: threading.Thread | None = None
        self._end = threading.Event()
        self._is_closed = False
        #: What has failed, and was reported.
        self._failing: set[str] = set()

    def close(self) -> None:
        """Send what waits, end the threads, and close the connections.

        This waits for a second at most for each thread.
        """
        self.stop_listening()
        with self._lock:
            self._is_closed = True
            sender, self._sender = self._sender, None
        if sender is not None:
            self._waiting.put(None)
            sender.join(_TIMEOUT)
        self._channel.close()

    def send(self, groups: Collection[DueGroup]) -> None:
        """Let the thread send hints."""
        if self._waiting.qsize() < _MAX_WAITING:
            self._waiting.put(groups)
        with self._lock:
            if self._sender is None and not self._is_closed:
                self._sender = self._started("sqla-shard-hints", self._send)

    def _started(
        self, name: str, target: Callable[..., None], *arguments: Any
    ) -> threading.Thread | None:
        """Return a thread that was started; None if the system has no more."""
        thread = threading.Thread(target=target, args=arguments, name=name, daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            self._report("starting a thread", error)
            return None
        self._failing.discard("starting a thread")
        return thread

    def _send(self) -> None:
        pause = threading.Event()
        while True:
            waiting = [self._waiting.get()]
            while not self._waiting.empty():
                waiting.append(self._waiting.get())
            groups = {group for some in waiting if some is not None for group in some}
            try:
                if groups:
                    self._channel.send(_packed(groups))
                    self._failing.discard("sending")
            except Exception as error:  # The client raises others than its own.
                self._report("sending", error)
            if None in waiting:
                return
            pause.wait(self._channel.pause)

    def listen(self) -> None:
        """Start the thread that receives the hints of other processes."""
        if self._listener is None:
            self._end = threading.Event()
            self._listener = self._started(
                "sqla-shard-receiving", self._listen, self._end
            )

    def stop_listening(self) -> None:
        """End the thread that receives hints."""
        self._end.set()
        if self._listener is not None:
            self._listener.join(_TIMEOUT)
            self._listener = None

    def _listen(self, end: threading.Event) -> None:
        while not end.is_set():
            try:
                for message in self._channel.messages(end):
                    self._failing.discard("listening")
                    if message is not None:
                        self._notify(_unpacked(message))
            except Exception as error:  # as above
                self._report("listening", error)
                end.wait(_TIMEOUT)

    def _report(self, what: str, error: Exception) -> None:
        if what not in self._failing:
            _log.warning(
                "hints about jobs are lost, so these begin later: %s has failed: %s",
                *(what, error),
                extra={"action": "hint"},
            )
        self._failing.add(what)


def _packed(groups: Collection[DueGroup]) -> str:
    return json.dumps(
        [[one.keyspace, one.shard_id, one.queue, one.priority] for one in groups]
    )


_TYPES = [str, int, str, int]


def _unpacked(data: bytes) -> set[DueGroup]:
    """Return the groups of a message; others may have written it."""
    try:
        groups = parsed_json(data)
    except ValueError:
        return set()
    return {
        DueGroup(
            keyspace=one[0],
            shard_id=one[1],
            state=JobState.PENDING,
            queue=one[2],
            priority=one[3],
        )
        for one in (groups if isinstance(groups, list) else ())
        if isinstance(one, list) and list(map(type, one)) == _TYPES
    }


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

        return MessageNode(hosts, f"/hints/{name}", timeout=_TIMEOUT, options=options)
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
            socket_timeout=_TIMEOUT,
            socket_connect_timeout=_TIMEOUT,
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
                message = pubsub.get_message(timeout=_LOOK)
                yield None if message is None else message["data"]

    def close(self) -> None:
        self._client.close()
