"""What is done in a child process, right after a fork.

A child has a copy of each descriptor of its parent, and none of its threads.
Copies of sockets that it leaves open keep the parent's sessions alive on the
servers when the parent is gone; locks that a thread had are never freed.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from itertools import count
from typing import Protocol
from weakref import WeakValueDictionary

__all__ = ["Forked", "in_children"]


class Forked(Protocol):
    """What does not survive a fork as it is."""

    def after_fork(self) -> None:
        """Become one of the child process, without a word to a server.

        It must not wait for a lock, which a thread of the parent may have.
        """
        ...


_numbers = count()
_known: WeakValueDictionary[int, Forked] = WeakValueDictionary()


def in_children(one: Forked) -> None:
    """Call ``after_fork()`` of something in each child, while it lives."""
    _known[next(_numbers)] = one


def _after_fork() -> None:
    # In order of making; an error of one does not keep the others from it.
    with ExitStack() as stack:
        for one in reversed(list(_known.values())):
            stack.callback(one.after_fork)


os.register_at_fork(after_in_child=_after_fork)
