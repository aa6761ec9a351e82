"""Which threads a test has begun."""

from __future__ import annotations

import threading

__all__ = ["begun_since", "running"]


def running() -> set[threading.Thread]:
    """Return the threads of this moment."""
    return set(threading.enumerate())


def begun_since(before: set[threading.Thread]) -> list[str]:
    """Return the names of threads that run now and did not before.

    Numbers of threads would not do: those of an earlier test may end while
    this one counts.
    """
    return sorted(thread.name for thread in running() - before)
