"""Random pauses, so that waiting processes do not resume at the same time."""

from __future__ import annotations

import random

# Not the generator of the module: its use here would change the random
# numbers of a seeded program, and forked processes would repeat those of
# their parent.
_random = random.SystemRandom()


def jittered(seconds: float, spread: float) -> float:
    """Return a random time around another.

    :param spread: the largest part that is added or subtracted.
    """
    return seconds * _random.uniform(1 - spread, 1 + spread)
