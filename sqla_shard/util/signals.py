"""Signals that end a wait, whenever they arrive."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

ENDING = (signal.SIGINT, signal.SIGTERM)
"""The signals of Ctrl-C and of service managers."""


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
    before = {number: signal.signal(number, handler) for number in ENDING}
    try:
        yield
    finally:
        for number, former in before.items():
            signal.signal(number, former)
        signal.set_wakeup_fd(fd_before)
