"""The states that greenlet keeps for threads."""

from __future__ import annotations

import gc
from collections.abc import Sequence

from greenlet import greenlet


def thread_greenlets() -> list[greenlet]:
    """Return the greenlet of each thread that has asked for one."""
    return [one for one in gc.get_objects() if type(one) is greenlet]


def others(before: Sequence[greenlet]) -> list[greenlet]:
    """Return those that threads have asked for since."""
    return [
        one for one in thread_greenlets() if not any(one is known for known in before)
    ]
