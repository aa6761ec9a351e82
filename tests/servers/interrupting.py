"""Ctrl-C that reaches the main thread wherever it is, or at each line."""

from __future__ import annotations

import gc
import signal
import sys
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any


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


class _Interrupts:
    """Raises KeyboardInterrupt at one of the lines of some modules."""

    def __init__(self, names: Collection[str], at: int) -> None:
        self._names = names
        self._left = at
        self.raised = False

    def __call__(self, frame: Any, event: str, value: Any) -> Any:
        if frame.f_globals.get("__name__") not in self._names:
            return None
        if event == "line" and not self.raised:
            self._left -= 1
            if self._left < 0:
                self.raised = True
                raise KeyboardInterrupt
        return self


def interrupt_each_line(
    modules: Collection[Any], act: Callable[[Callable[[], None]], None]
) -> Iterator[None]:
    """Interrupt a function at each line of some modules that it executes.

    :param act: the function, which is passed one that ends the interrupts.
    """
    names = {module.__name__ for module in modules}
    number = 0
    before = sys.gettrace()
    stop = partial(sys.settrace, before)
    while True:
        interrupts = _Interrupts(names, number)
        try:
            sys.settrace(interrupts)
            act(stop)
        except KeyboardInterrupt:
            pass
        finally:
            stop()
        yield
        if not interrupts.raised:
            break
        number += 1
    assert number
