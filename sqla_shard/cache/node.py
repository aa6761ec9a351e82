"""One memcached of several, and whether it is worth asking.

A node that fails is left alone for a while, after which one caller at a time
tries it again.  Connections are kept for the next who needs one: there are
as many as callers at once.  A forked process opens its own.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from itertools import count
from time import monotonic
from typing import TypeVar

from sqla_shard.cache.wire import Connection
from sqla_shard.cache.wire import parse_server
from sqla_shard.forking import in_children

__all__ = ["Node"]

T = TypeVar("T")

_log = logging.getLogger(__name__)


class Node:
    """A memcached.  Safe to use from several threads, without locks.

    :param name: see :func:`~.wire.parse_server`.
    :param timeout: seconds that a question and its answers may take.
    :param retry: seconds after which one that has failed is asked again.
    :param connections: that are kept open, at most.
    """

    def __init__(
        self, name: str, *, timeout: float, retry: float, connections: int
    ) -> None:
        self.name = name
        self.failures = 0
        """How often it has not answered, or not as it should."""
        self._address = parse_server(name)
        self._timeout = timeout
        self._retry = retry
        self._idle: deque[Connection] = deque()
        self._connections = connections
        self._serials = count(1)
        in_children(self)
        self._dead_until = 0.0
        self._young_until = 0.0
        self._opened = 0

    @property
    def opened(self) -> int:
        """The serial number of the connection that was opened last."""
        return self._opened

    @property
    def is_young(self) -> bool:
        """Whether it may have forgotten tombstones."""
        return monotonic() < self._young_until

    def is_young_for(self, seconds: float) -> None:
        """Ask it for no leases for some time."""
        self._young_until = monotonic() + max(seconds, 0.0)

    def begin(self, commands: bytes) -> Connection | None:
        """Ask; the answer is read by :meth:`finish`.

        :returns: None when the node does not answer.
        """
        connection = self._take()
        if connection is None:
            return None
        try:
            connection.send(commands)
        except OSError as error:
            connection.close()
            self._failed(error)
            return None
        except BaseException:
            connection.close()
            raise
        return connection

    def finish(
        self, connection: Connection, work: Callable[[Connection], T]
    ) -> T | None:
        """Do something with a connection, which is given back.

        :returns: None when the node does not answer.
        """
        try:
            result = work(connection)
        except OSError as error:
            connection.close()
            self._failed(error)
            return None
        except BaseException:
            # The rest of the answer would be taken for another's.
            connection.close()
            raise
        self._dead_until = 0.0
        self._idle.append(connection)
        # Counted after that: several may give theirs back at the same time,
        # and each would find that there is room for one more.
        if len(self._idle) > self._connections:
            more = self._pop()
            if more is not None:
                more.close()
        return result

    def run(
        self, work: Callable[[Connection], T], *, upto: int | None = None
    ) -> T | None:
        """Do something with a connection.

        :param upto: the serial number of the last connection that will do.
        :returns: None when the node does not answer, or has no connection
            that will do.
        """
        connection = self._take(upto)
        if connection is None:
            return None
        return self.finish(connection, work)

    def close(self) -> None:
        """Close the connections that nobody uses at the moment."""
        while (connection := self._pop()) is not None:
            connection.close()

    def after_fork(self) -> None:
        """Forget the parent's connections, which close themselves."""
        # Questions of the child would be mixed with those of the parent.
        self._idle.clear()

    # -- inside -----------------------------------------------------------

    def _take(self, upto: int | None = None) -> Connection | None:
        now = monotonic()
        if now < self._dead_until:
            return None
        if self._dead_until:
            if upto is not None:
                return None
            # The others wait for what becomes of this one.
            self._dead_until = now + self._retry
        newer: list[Connection] = []
        try:
            while (connection := self._pop()) is not None:
                if not connection.is_idle:
                    # The node has been restarted, or says what nobody asked.
                    connection.close()
                elif upto is None or connection.serial <= upto:
                    return connection
                else:
                    newer.append(connection)
        finally:
            self._idle.extend(newer)
        return self._open() if upto is None else None

    def _pop(self) -> Connection | None:
        try:
            return self._idle.pop()
        except IndexError:
            return None

    def _open(self) -> Connection | None:
        try:
            connection = Connection(self._address, self._timeout)
        except OSError as error:
            self._failed(error)
            return None
        # Not before: one with a lower number has been open for longer.
        connection.serial = next(self._serials)
        self._opened = connection.serial
        return connection

    def _failed(self, error: OSError) -> None:
        self.failures += 1
        self._dead_until = monotonic() + self._retry
        self.close()
        _log.warning(
            "memcached at %s does not answer, and is left alone for %g s: %s",
            self.name,
            self._retry,
            str(error) or type(error).__name__,
            extra={"action": "cache", "server": self.name},
        )
