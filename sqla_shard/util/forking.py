"""Calls in a child process, right after a fork.

A child has a copy of each descriptor of its parent, and none of its threads.
Copies of sockets that it leaves open keep the parent's sessions alive on the
servers after the parent has ended; locks that a thread held are never
released.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from itertools import count
from typing import Protocol
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
