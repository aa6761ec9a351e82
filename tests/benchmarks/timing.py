"""Comparing ways of doing the same thing, in one run.

Machines are noisy and differ; so the ways take turns, and what is reported
in addition to the time is the median of the ratios within each turn.
"""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter


@dataclass(frozen=True)
class Row:
    """One way: median microseconds, and the ratio to the first way."""

    name: str
    microseconds: float
    ratio: float


def compare(
    ways: dict[str, Callable[[], object]],
    *,
    turns: int = 200,
    warm_up: int = 20,
    calls: int = 1,
    clock: Callable[[], float] = perf_counter,
) -> list[Row]:
    """Time each way in turn.

    :param calls: how often a way is called in a turn; for what is too
        short to be timed alone.
    :param clock: what the time is read from, such as ``process_time`` for
        what is computed by this process alone.
    """
    for way in ways.values():
        for _ in range(warm_up):
            way()
    gc.collect()
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(turns):
        for name, way in ways.items():
            start = clock()
            for _ in range(calls):
                way()
            times[name].append((clock() - start) / calls * 1e6)
    first = next(iter(times.values()))
    return [
        Row(
            name,
            statistics.median(taken),
            statistics.median(b / a for a, b in zip(first, taken, strict=True)),
        )
        for name, taken in times.items()
    ]


def show(title: str, rows: list[Row]) -> None:
    """Print a table of some ways."""
    print(f"\n{title}")
    for row in rows:
        print(f"  {row.name:<62}{row.microseconds:>11.2f} us{row.ratio:>9.2f}x")
