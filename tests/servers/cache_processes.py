"""Processes that do some work until they are killed, and delays in it.

The work is done by children of processes that are forked, since imports take
long; children are killed (SIGKILL) and replaced at random times.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
from collections.abc import Callable
from time import monotonic
from typing import Any


class Delays:
    """Random delays, most of which are short."""

    def __init__(self, rng: random.Random, mean: float) -> None:
        self._rng = rng
        self._mean = mean
        self._never = threading.Event()

    def __call__(self) -> None:
        """Let something else happen."""
        if self._mean and self._rng.random() < 0.7:
            self._never.wait(self._rng.expovariate(1 / self._mean))


class Slow:
    """A store that takes a random time before and after each call."""

    def __init__(self, store: Any, delays: Delays) -> None:
        self._store = store
        self._delays = delays

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)

        def slowly(*arguments: Any) -> Any:
            self._delays()
            result = method(*arguments)
            self._delays()
            return result

        return slowly


def _in_a_child(work: Callable[[], int]) -> int:
    """Fork; return the number of the child."""
    pid = os.fork()
    if pid:
        return pid
    try:
        os._exit(work())
    except BaseException:
        sys.excepthook(*sys.exc_info())
        os._exit(1)


def at_once(jobs: list[Callable[[], int]]) -> int:
    """Do each in a process; return how many failed."""
    pids = [_in_a_child(job) for job in jobs]
    return sum(os.waitpid(pid, 0)[1] != 0 for pid in pids)


def lives(
    work: Callable[[str], int],
    seed: str,
    life: float,
    until: float,
    *,
    stopped: Callable[[], bool] = lambda: False,
) -> int:
    """Have children do the work, and kill them.

    :param work: takes the seed of one life.
    :param life: seconds, on average; 0 for until the end.
    :param stopped: whether it is the end already.
    :returns: how many failed.
    """
    rng = random.Random(seed)
    failed = number = 0
    while monotonic() < until and not stopped() and not failed:
        number += 1
        own = f"{seed} {number}"
        pid = _in_a_child(lambda own=own: work(own))
        end = until + 60
        if life:
            end = monotonic() + 0.2 + rng.expovariate(1 / life)
        failed += _end_of(pid, end) not in (0, signal.SIGKILL)
    return failed


def _end_of(pid: int, when: float) -> int:
    """Wait for a child, and kill it at some time; return its status."""
    pause = threading.Event()
    while monotonic() < when:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return status
        pause.wait(0.01)
    os.kill(pid, signal.SIGKILL)
    return os.waitpid(pid, 0)[1]
