"""A breakdown of the time that one way of doing something takes.

Three clocks tell waiting from working: the time that passes, the time that
the session's thread works, and what other threads of the process work.  Then
the work of the session's thread is divided among those who do it.  A profile
slows down what makes many calls; so it gives shares, which are applied to the
time that was measured without one.
"""

from __future__ import annotations

import cProfile
import gc
import pstats
import statistics
from collections import Counter
from collections.abc import Callable
from time import perf_counter
from time import process_time
from time import thread_time
from typing import Any

__all__ = ["show"]

_TURNS = 500

# The first that is part of a file's path, or of what a built-in is called.
_GROUPS = {
    "driver: PyMySQL and its sockets": ("pymysql", "socket", "_struct"),
    "memcached client": ("pymemcache", "sqla_shard/cache/stores"),
    "JSON": ("/json/", "json.", "orjson", "sqla_shard/util/json_values"),
    "union text and parameters": (
        "sqla_shard/engine/rendering",
        "sqla_shard/engine/preparation",
        "sqla_shard/types/shard_bound",
    ),
    "lanes: handing over and waiting": (
        "sqla_shard/engine",
        "/concurrent/futures",
        "/threading.py",
        "_thread",
        "/queue.py",
        "_queue",
    ),
    "routing and merging": ("sqla_shard/routing", "sqla_shard/merging"),
    "blob fields and ids of the rows": (
        "sqla_shard/models",
        "sqla_shard/types",
        "sqla_shard/ids",
        "sqlalchemy/ext/mutable",
    ),
    "cache: keys, checks and protocol": ("sqla_shard/cache",),
    "sqla_shard, the rest": ("sqla_shard",),
    "loading and flushing (sqlalchemy.orm)": (
        "sqlalchemy/orm/loading",
        "sqlalchemy/orm/identity",
        "sqlalchemy/orm/state",
        "sqlalchemy/orm/instrumentation",
        "sqlalchemy/orm/attributes",
        "sqlalchemy/orm/strategies",
        "sqlalchemy/orm/path_registry",
        "sqlalchemy/orm/persistence",
        "sqlalchemy/orm/unitofwork",
        "sqlalchemy/orm/mapper",
        "weakref",
    ),
    "rows and results (sqlalchemy.engine)": (
        "sqlalchemy/engine/result",
        "sqlalchemy/engine/_result",
        "sqlalchemy/engine/row",
        "sqlalchemy/engine/cursor",
    ),
    "statement and execution (sqlalchemy)": ("sqlalchemy",),
}
_OTHER = "built-ins and the rest"


def show(
    title: str, way: Callable[[], object], *, turns: int = _TURNS
) -> None:
    """Print what a call costs, and who has the cost."""
    for _ in range(turns // 10):
        way()
    gc.collect()
    passed, own, others = _clocks(way, turns)
    print(f"\nprofile: {title}, medians of {turns} calls")
    print(f"  {'time that passes':<48}{passed:>8.0f} us")
    print(f"  {'work of the session thread':<48}{own:>8.0f} us")
    print(f"  {'work of the threads of other servers':<48}{others:>8.0f} us")
    for name, share in _shares(way, turns):
        print(f"    {name:<46}{share * own:>8.0f} us {share:>6.0%}")


def _clocks(
    way: Callable[[], object], turns: int
) -> tuple[float, float, float]:
    clocks = perf_counter, thread_time, process_time
    taken: list[list[float]] = []
    for _ in range(turns):
        before = [clock() for clock in clocks]
        way()
        taken.append([c() - b for c, b in zip(clocks, before, strict=True)])
    passed, own, process = (
        statistics.median(column) * 1e6 for column in zip(*taken, strict=True)
    )
    return passed, own, process - own


def _shares(way: Callable[[], object], turns: int) -> list[tuple[str, float]]:
    # Work, not time: a lock that is waited for costs nothing.
    profile = cProfile.Profile(thread_time)
    profile.enable()
    for _ in range(turns):
        way()
    profile.disable()
    times: Counter[str] = Counter()
    stats: Any = pstats.Stats(profile)
    for (path, _, function), (_, _, own, _, callers) in stats.stats.items():
        if path != "~":
            times[_group_of(path)] += own
            continue
        found = _group_of(function)
        if found != _OTHER:
            times[found] += own
            continue
        # A built-in without a home works for whoever called it.
        for (caller, _, name), (_, _, part, _) in callers.items():
            times[_group_of(name if caller == "~" else caller)] += part
    total = sum(times.values())
    return [(name, time / total) for name, time in times.most_common()]


def _group_of(path: str) -> str:
    for name, parts in _GROUPS.items():
        if any(part in path for part in parts):
            return name
    return _OTHER
