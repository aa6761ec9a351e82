"""``sqla-shard cache``: pending invalidations, and statistics of nodes."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, ExitStack
from functools import partial
from typing import Any

from sqla_shard.cache.regions import load_regions, open_region
from sqla_shard.cache.stores import Store
from sqla_shard.cache.stores.memcached import NodeStats
from sqla_shard.cli.options import IN_MEMORY, pass_settings, regions_option, Settings
from sqla_shard.cli.output import (
    command,
    data_option,
    echo,
    end,
    lines_option,
    print_data,
)
from sqla_shard.cli.service_loop import (
    interval_option,
    log_to_stderr,
    make_passes,
    once_option,
    Passes,
    StopFlag,
)
from sqla_shard.engine.unreachable import (
    unreachable_lines,
    unreachable_values,
    UnreachableServer,
)
from sqla_shard.exc import CacheConfigError, OptionError
from sqla_shard.outbox.invalidations import (
    by_region,
    drain,
    DrainReport,
    outbox_size,
    Waiting,
)


@command(
    "repair",
    "sqla-shard cache repair --cache cache.toml",
    "sqla-shard cache repair --cache cache.toml --once --json",
)
@regions_option
@interval_option
@once_option
@lines_option
@pass_settings
def repair_command(
    settings: Settings, cache: str, interval: float, once: bool, as_data: bool
) -> None:
    """Run pending invalidations of the cache.

    Transactions leave them when a cache node does not respond.  The command
    runs until SIGTERM or Ctrl-C, then finishes the current pass.  Several can
    run at the same time.  A pass that deleted keys prints one line; errors
    are printed when they first occur or change.

    With --once, the status is 1 if invalidations remain: a node does not
    respond, or FILE does not define the region.
    """
    with (
        # The report of each pass includes the errors that the store logs.
        log_to_stderr(logging.WARNING, without="sqla_shard.cache"),
        StopFlag() as until,
        _stores(cache, only_shared=True) as stores,
        settings.cluster() as cluster,
    ):
        passes = Passes(
            make=partial(drain, cluster, stores),
            has_more=_has_removed,
            has_changes=_has_removed,
            is_read=lambda report: not report.unreachable,
            problems=_problems,
            state=_state,
        )
        make_passes(passes, until, None if once else interval, as_data)


def _has_removed(report: DrainReport) -> bool:
    return report.removed > 0


def _problems(report: DrainReport) -> list[str]:
    return [
        *(
            f"{one.region}: {_pending(one)}; a node does not respond"
            for one in report.left
        ),
        *(
            f"{one.region}: {_pending(one)}; the region is not configured"
            for one in report.unknown
        ),
        *map(str, report.unreachable),
    ]


def _state(report: DrainReport) -> list[str]:
    # Omit the numbers, which change in each pass.
    left = [f"left {one.region}" for one in report.left]
    unknown = [f"unknown {one.region}" for one in report.unknown]
    return [*left, *unknown, *map(str, report.unreachable)]


@command(
    "stats",
    "sqla-shard cache stats --cache cache.toml",
    "sqla-shard cache stats --cache cache.toml --json",
)
@regions_option
@data_option
@pass_settings
def stats_command(settings: Settings, cache: str, as_data: bool) -> None:
    """Show the nodes and the pending invalidations of each region.

    "sqla-shard cache repair" runs the pending invalidations.  The status is
    1 if a node does not respond.
    """
    with (
        # The output includes the errors that the store logs.
        log_to_stderr(logging.WARNING, without="sqla_shard.cache"),
        _stores(cache) as stores,
        settings.cluster() as cluster,
    ):
        sizes, unreachable = outbox_size(cluster)
        nodes = {name: _nodes(store) for name, store in stores.items()}
    waiting = by_region(sizes)
    if as_data:
        print_data(_document(nodes, waiting, unreachable))
    else:
        _show(nodes, waiting, unreachable)
    is_good = all(node.answers for found in nodes.values() for node in found or ())
    end(is_good=is_good, is_read=not unreachable)


@contextmanager
def _stores(path: str, *, only_shared: bool = False) -> Iterator[dict[str, Store]]:
    """Open the stores of the regions of a file.

    :param only_shared: whether to omit regions in the memory of this process,
        whose pending invalidations would be deleted without any effect on
        other processes.
    :raises CacheConfigError: if the file is not valid.
    """
    stores: dict[str, Store] = {}
    with ExitStack() as stack:
        for name, config in load_regions(path).items():
            if only_shared and config["backend"].startswith(IN_MEMORY):
                continue
            try:
                store = open_region(name, config).store
            except OptionError as error:
                raise CacheConfigError(
                    str(error), path=path, key=f"regions.{name}"
                ) from error
            if (close := getattr(store, "close", None)) is not None:
                stack.callback(close)
            stores[name] = store
        yield stores


def _nodes(store: Store) -> list[NodeStats] | None:
    """Return the statistics of a store's nodes; None if it has no nodes."""
    stats = getattr(store, "stats", None)
    return None if stats is None else stats()


def _document(
    nodes: Mapping[str, list[NodeStats] | None],
    waiting: Mapping[str, Waiting],
    unreachable: list[UnreachableServer],
) -> dict[str, Any]:
    regions = []
    for name in [*nodes, *(one for one in waiting if one not in nodes)]:
        stats, pending = nodes.get(name), waiting.get(name)
        regions.append(
            {
                "region": name,
                "is_known": name in nodes,
                "nodes": stats,
                "waiting": pending.rows if pending else 0,
                "oldest": pending.oldest.total_seconds() if pending else None,
            }
        )
    return {"regions": regions, "unreachable": unreachable_values(unreachable)}


def _show(
    nodes: Mapping[str, list[NodeStats] | None],
    waiting: Mapping[str, Waiting],
    unreachable: list[UnreachableServer],
) -> None:
    for name, stats in nodes.items():
        echo(f"{name}: {_pending(waiting.get(name))}")
        if stats is None:
            echo("  no statistics: the backend has no nodes")
        for node in stats or ():
            for line in _node_lines(node):
                echo(line)
    for name, one in waiting.items():
        if name not in nodes:
            echo(f"{name} (not configured): {_pending(one)}")
    for line in unreachable_lines(unreachable):
        echo(line)


def _pending(waiting: Waiting | None) -> str:
    if waiting is None:
        return "no pending invalidations"
    age = int(waiting.oldest.total_seconds())
    plural = "" if waiting.rows == 1 else "s"
    return f"{waiting.rows:,} pending invalidation{plural}, oldest {age} s ago"


def _node_lines(node: NodeStats) -> list[str]:
    if not node.answers:
        return [f"  {node.node}: does not respond"]
    memory = f"{_number(node.bytes)} of {_number(node.limit)} bytes"
    reads = f"{_number(node.hits)} hits, {_number(node.misses)} misses"
    uptime = f"up for {_number(node.uptime)} s"
    return [
        f"  {node.node}: {_number(node.items)} items, {memory}",
        f"    {_number(node.evictions)} evictions, {reads}, {uptime}",
    ]


def _number(number: int | None) -> str:
    return "?" if number is None else f"{number:,}"
