"""Calls of drivers that wait for several servers in one thread.

Each call runs in a greenlet.  Where its socket would block, the greenlet
hands over to the others; when all of them wait, all sockets are polled at
once.  So every statement is sent before the first response is awaited, and
responses are read in the order in which they arrive, a part at a time:
neither a statement larger than the buffer of a socket nor a long response
holds up another server.

:class:`PolledSocket` and :class:`PolledSSLSocket` are such sockets.  Outside
of a :class:`PolledCall` they block as any other socket does.

A call must not hold a lock while it waits if another call of the same thread
needs it.
"""

from __future__ import annotations

import contextvars
import select
import socket
import ssl
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from time import monotonic
from typing import Any, NamedTuple

from greenlet import getcurrent, greenlet, GreenletExit

from sqla_shard.dialects.base import interrupt
from sqla_shard.util.processes import THREAD

#: Whether the system can poll; Windows cannot.
CAN_POLL = hasattr(select, "poll")
_READABLE = getattr(select, "POLLIN", 1)
_WRITABLE = getattr(select, "POLLOUT", 4)
# Do not block, even if the socket has no timeout.
_AT_ONCE = getattr(socket, "MSG_DONTWAIT", 0)
#: Seconds of one poll at most: the system limits the argument.
_MAX_POLL_SECONDS = 3600.0
# The client error of a connection that is lost.
_LOST = 2013
_SELECTS = (b"SELECT ", b"(SELECT ")
_LOCKS = (b"FOR UPDATE", b"FOR SHARE", b"SHARE MODE")
#: Longer statements, in bytes, are not searched.
_MAX_SEARCHED_BYTES = 100_000
#: The largest record of TLS, in bytes.
_RECORD = 16384


class PolledCall(greenlet):
    """A function that runs until its socket would block.

    :ivar done: whether the function has returned.
    :ivar result: its result.
    :ivar failure: the exception that it has raised.
    :ivar fd: descriptor of the socket that it waits for; -1 if none.
    :ivar deadline: end of the wait, on the monotonic clock.
    """

    def __init__(self, job: Callable[[], Any]) -> None:
        super().__init__(self._go)
        # In a new greenlet all context variables are empty.
        self.gr_context = contextvars.copy_context()
        self._job = job
        self.done: bool = False
        self.result: Any = None
        self.failure: BaseException | None = None
        self.fd: int = -1
        self.events: int = 0
        self.deadline: float | None = None

    def _go(self) -> None:
        try:
            self.result = self._job()
            self.done = True
        except BaseException as error:
            self.failure = error

    def wait(self, fd: int, events: int, timeout: float | None) -> None:
        """Let the other calls continue until a socket is ready.

        :param timeout: seconds; None for no limit.
        :raises TimeoutError: if it is not ready in time.
        """
        self.fd = fd
        self.events = events
        self.deadline = None if timeout is None else monotonic() + timeout
        parent: Any = self.parent  # the greenlet of the poller
        parent.switch()


def polled_call() -> PolledCall | None:
    """Return the call that is running in this thread; None outside of one."""
    # Do not ask greenlet first: see the module of THREAD.
    if not THREAD.has_greenlets:
        return None
    call = getcurrent()
    return call if type(call) is PolledCall else None


class Poller:
    """Runs calls of its thread, whose greenlet is the parent of the calls.

    :ivar waiting: the calls that wait, by descriptor.
    """

    def __init__(self) -> None:
        THREAD.has_greenlets = True
        self._poll = select.poll()
        self.waiting: dict[int, PolledCall] = {}

    def resume(self, call: PolledCall, error: BaseException | None = None) -> None:
        """Run a call until it waits or has ended.

        :param error: an exception that is raised where it waits.
        :raises BaseException: an interrupt, such as Ctrl-C, that has ended
            the call; an ``Exception`` is stored in it.
        """
        before = call.fd
        call.fd = -1
        try:
            if error is None:
                call.switch()
            else:
                call.throw(error)
        finally:
            if before >= 0 and call.fd != before:
                # A closed descriptor, too: the next socket has its number.
                del self.waiting[before]
                self._poll.unregister(before)
            if call.fd >= 0:
                self.waiting[call.fd] = call
                self._poll.register(call.fd, call.events)
        if not (call.failure is None or isinstance(call.failure, Exception)):
            raise call.failure

    def step(self, seconds: float | None = None) -> None:
        """Wait until a call can continue; resume each that can.

        :param seconds: time to wait at most; None for no limit.
        """
        waiting = self.waiting
        ends = [c.deadline for c in waiting.values() if c.deadline is not None]
        pause = (
            _MAX_POLL_SECONDS if seconds is None else min(seconds, _MAX_POLL_SECONDS)
        )
        if ends:
            pause = min(pause, min(ends) - monotonic())
        # Round up: after a shorter wait the deadline would not be over.
        for fd, _ in self._poll.poll(int(max(pause, 0) * 1000) + 1):
            call = waiting.get(fd)
            if call is not None:
                self.resume(call)
        if ends and min(ends) <= (now := monotonic()):
            for call in list(waiting.values()):
                if call.deadline is not None and call.deadline <= now:
                    self.resume(call, TimeoutError("timed out"))

    def end(self, calls: Sequence[PolledCall]) -> None:
        """End calls; drivers close the connections of those that wait.

        :raises BaseException: another interrupt; then call it again.
        """
        for call in calls:
            while not call.dead:
                try:
                    self.resume(call, GreenletExit())
                except GreenletExit:
                    continue


class Pipelining(NamedTuple):
    """The way in which connections wait for responses.

    :ivar polls: whether one thread waits for several servers.
    :ivar defers: whether the response to a ROLLBACK is read later.
    """

    polls: bool = True
    defers: bool = True


PIPELINING = Pipelining()
"""The default."""


class PolledConnection:
    """Base of the connections of drivers that have these sockets.

    The response to the ROLLBACK of a transaction that has only read, without
    locks, is read before the next statement: the end of a session takes no
    round trip.  Other connections could have to wait for the locks of any
    other transaction after its ROLLBACK has been sent.

    An exception that is not the driver's, such as that of the handler of a
    signal, can leave a response unread, which the next statement would read
    as its own.  Such a connection is torn: it cannot be used any more.

    Subclasses call :meth:`before_command` and :meth:`complete`, and implement
    two methods.

    :ivar defers: whether responses to ROLLBACK are read later.
    :ivar pending: whether one has not been read.
    :ivar awaits_response: whether a command has been sent, or a part of it,
        whose response has not been read.
    """

    Error: type[Exception]
    OperationalError: type[Exception]
    defers = False
    pending: bool = False
    awaits_response: bool = False
    _has_locks = True

    @property
    def is_torn(self) -> bool:
        """Whether an exception has left a response unread."""
        return self.awaits_response and not self.pending

    @property
    def ends_at_once(self) -> bool:
        """Whether ROLLBACK would not wait for its response."""
        return self.defers and not self._has_locks

    def wait_for_rollback(self) -> None:
        """Read the response to the next ROLLBACK at once."""
        self._has_locks = True

    def before_command(self, statement: bytes | None = None) -> None:
        """Read a pending response, and look for locks in a statement.

        :param statement: None for a command that is not a statement.
        :raises Exception: the driver's error of a lost connection.
        """
        if self.awaits_response:
            self.settle()
        if self.defers and statement is not None and not self._has_locks:
            self._has_locks = not _only_reads(statement)

    def settle(self) -> None:
        """Read a pending response; no other one may be left.

        :raises Exception: the driver's error of a lost connection.
        """
        if self.pending:
            self.pending = False
            self._read_rollback()
        elif self.awaits_response:
            raise self.OperationalError(
                _LOST,
                "Lost connection to server during query (an exception ended "
                "an earlier call before its response was read)",
            )

    def complete(self, act: Callable[..., Any], *args: Any) -> Any:
        """Call a method of the driver that reads the response to its end."""
        try:
            result = act(*args)
        except self.Error:
            # The server's response, or the connection is lost.
            self.awaits_response = False
            raise
        self.awaits_response = False
        return result

    def end_transaction(self, act: Callable[[], None]) -> None:
        """Run the driver's own ``commit()`` or ``rollback()``."""
        act()
        self._has_locks = False

    def roll_back(self, act: Callable[[], None]) -> None:
        """Send ROLLBACK, or run the driver's own ``rollback()``."""
        if self.is_torn:
            # The server rolls back.  The exception that has torn the
            # connection must not be replaced by another one.
            interrupt(self)
        elif self.ends_at_once:
            self._send_rollback()
            self.pending = True
            self._has_locks = False
        else:
            self.end_transaction(act)

    def _send_rollback(self) -> None:
        raise NotImplementedError

    def _read_rollback(self) -> None:
        raise NotImplementedError


def _only_reads(statement: bytes) -> bool:
    """Return whether a statement is certainly a SELECT without locks."""
    if len(statement) > _MAX_SEARCHED_BYTES or not statement.startswith(_SELECTS):
        return False
    upper = statement.upper()
    return not any(lock in upper for lock in _LOCKS)


class PolledSocket(socket.socket):
    """A socket that lets other calls continue while a call waits for it."""

    def recv_into(self, *args: Any, **kwargs: Any) -> int:
        """Receive; see ``socket.recv_into``."""
        call = polled_call()
        if call is not None:
            call.wait(self.fileno(), _READABLE, self.gettimeout())
        return super().recv_into(*args, **kwargs)

    def sendall(self, data: Any, flags: int = 0) -> None:
        """Send all data; see ``socket.sendall``."""
        call = polled_call()
        if call is None:
            super().sendall(data, flags)
            return
        timeout = self.gettimeout()
        end = None if timeout is None else monotonic() + timeout
        view = memoryview(data)
        sent = self.send(view, flags | _AT_ONCE)
        while sent < len(view):
            seconds = None if end is None else max(end - monotonic(), 0)
            call.wait(self.fileno(), _WRITABLE, seconds)
            sent += self.send(view[sent:], flags | _AT_ONCE)


@contextmanager
def _at_once(sock: socket.socket) -> Iterator[float | None]:
    """Let a socket raise exceptions instead of waiting; yield its timeout."""
    timeout = sock.gettimeout()
    sock.settimeout(0)
    try:
        yield timeout
    finally:
        sock.settimeout(timeout)


class PolledSSLSocket(ssl.SSLSocket):
    """The counterpart of :class:`PolledSocket` for TLS."""

    def _polled(self, call: PolledCall, act: Callable[[], Any]) -> Any:
        with _at_once(self) as timeout:
            while True:
                try:
                    return act()
                except ssl.SSLWantReadError:
                    call.wait(self.fileno(), _READABLE, timeout)
                except ssl.SSLWantWriteError:
                    call.wait(self.fileno(), _WRITABLE, timeout)

    def recv_into(self, *args: Any, **kwargs: Any) -> int:
        """Receive; see ``SSLSocket.recv_into``."""
        plain = super().recv_into
        call = polled_call()
        if call is None:
            return plain(*args, **kwargs)
        size: int = self._polled(call, partial(plain, *args, **kwargs))
        return size

    def sendall(self, data: Any, flags: int = 0) -> None:
        """Send all data; see ``SSLSocket.sendall``."""
        call = polled_call()
        if call is None:
            super().sendall(data, flags)
            return
        plain = super().send
        view = memoryview(data)
        while view:
            # A record that could not be sent must be sent again unchanged.
            part = view[:_RECORD]
            view = view[self._polled(call, partial(plain, part, flags)) :]
