"""Functions whose call runs nothing."""

from __future__ import annotations

import inspect
from typing import Any


def is_unrun(result: Any) -> bool:
    """Return whether a call has returned code that has not run.

    As one of a function with ``yield``, or of one that is ``async def``.
    """
    if inspect.iscoroutine(result):
        result.close()  # otherwise Python warns, too
    is_generator = inspect.isgenerator(result) or inspect.isasyncgen(result)
    return is_generator or inspect.isawaitable(result)
