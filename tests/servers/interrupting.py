"""Ctrl-C that reaches the main thread wherever it is."""

from __future__ import annotations

import gc
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def interruptible() -> Iterator[Callable[[], None]]:
    """Return a function that interrupts the main thread, for other threads.

    A signal that arrives between the interpreter's last look at signals and
    the system call that waits does not interrupt this call, and
    KeyboardInterrupt is raised after it, which may be never.  Users press
    Ctrl-C again; here a signal whose handler does nothing follows, until the
    context ends.

    Nothing is collected meanwhile: an exception that is raised while an object
    is collected is printed, and lost.
    """
    collects = gc.isenabled()
    main = threading.main_thread().ident or 0
    sent, over = threading.Event(), threading.Event()

    def interrupt() -> None:
        signal.pthread_kill(main, signal.SIGINT)
        sent.set()

    def follow() -> None:
        sent.wait()
        while not over.wait(0.2):
            signal.pthread_kill(main, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, lambda number, frame: None)
    follower = threading.Thread(target=follow)
    follower.start()
    gc.disable()
    try:
        yield interrupt
    finally:
        if collects:
            gc.enable()
        over.set()
        sent.set()
        follower.join()
        signal.signal(signal.SIGUSR1, before)
