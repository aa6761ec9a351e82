"""Pauses that differ: many who wait must not all come back at once."""

from __future__ import annotations

import random

__all__ = ["jittered"]

# Its own, and without a state: that of the module is for programs, and a
# thread that changed it would be seen in whatever they do at that moment; and
# a forked process would repeat what its parent has drawn.
_random = random.SystemRandom()


def jittered(seconds: float, spread: float) -> float:
    """Return a time at random around another.

    :param spread: what part of it is added or taken away at most.
    """
    return seconds * _random.uniform(1 - spread, 1 + spread)
