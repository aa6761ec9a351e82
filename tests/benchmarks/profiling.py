"""A breakdown of the time that one way of doing something takes.

Three clocks tell waiting from working: the time that passes, the time that
the session's thread works, and the work of other threads of the process.  Then
the work of the session's thread is divided among packages.  A profile slows
down code with many calls; so it gives shares, which are applied to the time
that was measured without one.  At the end are shares of the elapsed time, by
package.
"""

from __future__ import annotations

import cProfile
import gc
import pstats
import statistics
from collections import Counter
from collections.abc import Callable
from time import perf_counter, process_time, thread_time
from typing import Any

_TURNS = 500

# The parts of the cost, in the order in which a statement passes them.
_SERVER = "server and sockets"
_DRIVER = "driver, or memcached client"
_CORE = "SQLAlchemy Core"
_ORM = "SQLAlchemy ORM"
_JSON = "JSON"
_OURS = "sqla_shard"
_PARTIES = (_SERVER, _DRIVER, _CORE, _ORM, _JSON, _OURS)

# The first that is part of a file's path, or of what a built-in is called.
_GROUPS: dict[str, tuple[str, tuple[str, ...]]] = {
    "sockets": (
        _SERVER,
        ("_socket.socket", "PolledSocket", "select.poll", "BufferedReader"),
    ),
    "driver: PyMySQL, and its results": (_DRIVER, ("pymysql", "/socket.py", "_struct")),
    "memcached client": (_DRIVER, ("pymemcache", "sqla_shard/cache/stores")),
    "JSON": (_JSON, ("/json/", "json.", "orjson", "sqla_shard/util/json_values")),
    "union text and parameters": (
        _OURS,
        (
            "sqla_shard/engine/rendering",
            "sqla_shard/engine/plans",
            "sqla_shard/types/shard_bound",
        ),
    ),
    "lanes: handing over and waiting": (
        _OURS,
        (
            "sqla_shard/engine",
            "sqla_shard/dialects/polling",
            "/concurrent/futures",
            "/threading.py",
            "_thread",
            "/queue.py",
            "_queue",
        ),
    ),
    "routing and merging": (_OURS, ("sqla_shard/planning",)),
    "blob fields and ids of the rows": (
        _OURS,
        (
            "sqla_shard/models",
            "sqla_shard/types",
            "sqla_shard/ids",
            "sqlalchemy/ext/mutable",
        ),
    ),
    "cache: keys, checks and protocol": (_OURS, ("sqla_shard/cache",)),
    "sqla_shard, the rest": (_OURS, ("sqla_shard",)),
    "loading and flushing (sqlalchemy.orm)": (
        _ORM,
        (
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
    ),
    "sessions and statements (sqlalchemy.orm)": (_ORM, ("sqlalchemy/orm",)),
    "rows and results (sqlalchemy.engine)": (
        _CORE,
        (
            "sqlalchemy/engine/result",
            "sqlalchemy/engine/_result",
            "sqlalchemy/engine/row",
            "sqlalchemy/engine/cursor",
        ),
    ),
    "statement and execution (sqlalchemy)": (_CORE, ("sqlalchemy",)),
}
_OTHER = "built-ins and the rest"


def show(title: str, way: Callable[[], object], *, turns: int = _TURNS) -> None:
    """Print the cost of a call, and its parts."""
    for _ in range(turns // 10):
        way()
    gc.collect()
    passed, own, others = _clocks(way, turns)
    print(f"\nprofile: {title}, medians of {turns} calls")
    print(f"  {'time that passes':<48}{passed:>8.0f} us")
    print(f"  {'work of the session thread':<48}{own:>8.0f} us")
    print(f"  {'work of the threads of other servers':<48}{others:>8.0f} us")
    shares = _shares(way, turns)
    for name, share in shares:
        print(f"    {name:<46}{share * own:>8.0f} us {share:>6.0%}")
    print("  shares of the time that passes")
    work = own / passed
    for party in (*_PARTIES, _OTHER):
        part = work * sum(s for name, s in shares if _party_of(name) == party)
        # For the rest of the time the server is awaited.
        part += 1 - work if party == _SERVER else 0
        print(f"    {party:<46}{part:>18.0%}")


def _clocks(way: Callable[[], object], turns: int) -> tuple[float, float, float]:
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
        # A built-in function counts for its caller.
        for (caller, _, name), (_, _, part, _) in callers.items():
            times[_group_of(name if caller == "~" else caller)] += part
    total = sum(times.values())
    return [(name, time / total) for name, time in times.most_common()]


def _party_of(group: str) -> str:
    return _OTHER if group == _OTHER else _GROUPS[group][0]


def _group_of(path: str) -> str:
    for name, (_, parts) in _GROUPS.items():
        if any(part in path for part in parts):
            return name
    return _OTHER
