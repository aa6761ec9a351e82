"""Calls in a child process, right after a fork; greenlets of a thread.

A child has a copy of each descriptor of its parent, and none of its threads.
Copies of sockets that it leaves open keep the parent's sessions alive on the
servers after the parent has ended; locks that a thread held are never
released.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, ExitStack, suppress
from itertools import count
from typing import Any, NoReturn, Protocol
from weakref import WeakValueDictionary


class Forked(Protocol):
    """An object with threads, locks or connections."""

    def after_fork(self) -> None:
        """Drop the state of the parent without sending anything.

        The method must not wait for a lock: a thread of the parent may hold
        it.
        """
        ...


_numbers = count()
_known: WeakValueDictionary[int, Forked] = WeakValueDictionary()


def in_children(one: Forked) -> None:
    """Call ``after_fork()`` of an object in each child, while it exists."""
    _known[next(_numbers)] = one


def _after_fork() -> None:
    # In the order of registration; all are called even if one fails.
    with ExitStack() as stack:
        for one in reversed(list(_known.values())):
            stack.callback(one.after_fork)


os.register_at_fork(after_in_child=_after_fork)


@contextmanager
def in_this_process() -> Iterator[None]:
    """End a child that the block has forked, where the block ends.

    It would go on as its parent, such as a worker, with its connections.
    """
    parent = os.getpid()
    try:
        yield
    except BaseException as error:
        if os.getpid() != parent:
            _end_child(error)
        raise
    if os.getpid() != parent:
        _end_child(SystemExit(0))


def ended_by(function: Callable[..., object], *args: object) -> NoReturn:
    """Call a function, and end the process, a child of this one.

    The end of a process of ``multiprocessing`` waits for the threads of
    executors, for ever where one was just ending in the parent.
    """
    try:
        function(*args)
    except BaseException as error:
        _end_child(error)
    _end_child(SystemExit(0))


def _end_child(error: BaseException) -> NoReturn:
    """End a process as Python does, but without the threads of its parent."""
    code = error.code if isinstance(error, SystemExit) else error
    with suppress(Exception):  # its streams may be closed
        if not isinstance(code, int | None):
            traceback.print_exception(error)
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit((code if isinstance(code, int) else int(code is not None)) & 255)


# -- Signals that end a wait, whenever they arrive.


ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""The signals of Ctrl-C, of service managers and of a terminal that is closed."""


def handle_ending(handler: Callable[..., object]) -> dict[int, Any]:
    """Let a function handle :data:`ENDING`; return the former handlers.

    SIGHUP remains ignored where it is, as below ``nohup``.
    """
    return {
        number: signal.signal(number, handler)
        for number in ENDING
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN
    }


@contextmanager
def ending(handler: Callable[..., object]) -> Iterator[None]:
    """Return a context manager in which a function handles :data:`ENDING`."""
    before = handle_ending(handler)
    try:
        yield
    finally:
        for number, former in before.items():
            signal.signal(number, former)


@contextmanager
def waking(writer: int, handler: Callable[..., object]) -> Iterator[None]:
    """Write the numbers of signals to a pipe, and call a handler for Ctrl-C.

    The interpreter itself writes to the pipe.  A handler in Python is called
    too late: if the signal arrives between the interpreter's last look at
    signals and the system call that waits, that call is not interrupted, and
    the program never ends.

    For the main thread.  Any other signal with a handler is written, too.

    :param writer: end of the pipe that is written, which must not block.
    :param handler: handler of :data:`ENDING`; without one the process would
        end at once.
    """
    fd_before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    try:
        with ending(handler):
            yield
    finally:
        signal.set_wakeup_fd(fd_before)


class _Thread(threading.local):
    """Whether the current thread runs greenlets of this library.

    greenlet creates a state for each thread that asks for its current greenlet.
    It destroys the state at the native end of the thread, for which
    ``Thread.join()`` does not always wait, and holds a mutex of the process
    meanwhile.  A child that is forked at this moment waits for the mutex for
    ever.  So threads that only send statements must not ask.  Those of sessions
    do, as sessions tell tasks apart by their greenlets.

    :ivar has_greenlets: whether it has created greenlets of this library; if
        not, none of them is the current one.
    """

    has_greenlets = False


THREAD = _Thread()
