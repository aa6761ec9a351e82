"""``sqla-shard cache``: keys that are to be taken out, and the nodes."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from collections.abc import Mapping
from contextlib import contextmanager
from contextlib import ExitStack
from functools import partial
from typing import Any

import click

from sqla_shard.cache.config import load_regions
from sqla_shard.cache.outbox import drain
from sqla_shard.cache.outbox import DrainReport
from sqla_shard.cache.outbox import outbox_size
from sqla_shard.cache.regions import open_region
from sqla_shard.cache.statistics import NodeStats
from sqla_shard.cache.store import Store
from sqla_shard.cache.waiting import by_region
from sqla_shard.cache.waiting import Waiting
from sqla_shard.cli.ending import End
from sqla_shard.cli.ending import log_to_stderr
from sqla_shard.cli.passes import interval_option
from sqla_shard.cli.passes import lines_option
from sqla_shard.cli.passes import make_passes
from sqla_shard.cli.passes import once_option
from sqla_shard.cli.passes import Passes
from sqla_shard.cli.printing import echo
from sqla_shard.cli.printing import end
from sqla_shard.cli.printing import examples
from sqla_shard.cli.printing import json_option
from sqla_shard.cli.printing import print_json
from sqla_shard.cli.settings import pass_settings
from sqla_shard.cli.settings import Settings
from sqla_shard.cli.told import IN_MEMORY
from sqla_shard.cli.told import regions_option
from sqla_shard.engines.troubles import listed
from sqla_shard.exc import CacheConfigError
from sqla_shard.exc import CacheOptionError

__all__ = ["cache_group"]


@click.group("cache")
def cache_group() -> None:
    """Look at the cache, and finish what it has missed."""


@cache_group.command(
    "repair",
    epilog=examples(
        "sqla-shard cache repair --cache cache.toml",
        "sqla-shard cache repair --cache cache.toml --once --json",
    ),
)
@regions_option
@interval_option
@once_option
@lines_option
@pass_settings
def repair_command(
    settings: Settings, cache: str, interval: float, once: bool, as_json: bool
) -> None:
    """Take keys out of the cache that transactions could not take out.

    That is what they have left where a node did not answer.  It goes on
    until SIGTERM or Ctrl-C, and finishes the pass that it is in.  Several
    may run at the same time.  A pass that has done something is told in a
    line, and what it could not do when that begins or changes.

    With --once the status is 1 when something was left: keys of a node that
    does not answer, or of a region that FILE does not have.
    """
    with (
        # What the store has to say is told here.
        log_to_stderr(logging.WARNING, without="sqla_shard.cache"),
        End() as until,
        _stores(cache, only_shared=True) as stores,
        settings.cluster() as cluster,
    ):
        passes = Passes(
            make=partial(drain, cluster, stores),
            goes_on=_has_removed,
            has_done=_has_removed,
            wrong=_wrong,
            trouble=_trouble,
        )
        make_passes(passes, until, None if once else interval, as_json)


def _has_removed(report: DrainReport) -> bool:
    return report.removed > 0


def _wrong(report: DrainReport) -> list[str]:
    return [
        *(
            f"{one.region}: {_waits(one)}; a node does not answer"
            for one in report.left
        ),
        *(
            f"{one.region}: {_waits(one)}; it is not configured here"
            for one in report.unknown
        ),
        *report.troubles,
    ]


def _trouble(report: DrainReport) -> list[str]:
    # Without numbers, which are others in each pass.
    left = [f"left {one.region}" for one in report.left]
    unknown = [f"unknown {one.region}" for one in report.unknown]
    return [*left, *unknown, *report.troubles]


@cache_group.command(
    "stats",
    epilog=examples(
        "sqla-shard cache stats --cache cache.toml",
        "sqla-shard cache stats --cache cache.toml --json",
    ),
)
@regions_option
@json_option
@pass_settings
def stats_command(settings: Settings, cache: str, as_json: bool) -> None:
    """Show the nodes of each region, and how many keys wait for them.

    Those are the keys that "sqla-shard cache repair" takes out.  The status
    is 1 when a node does not answer.
    """
    with (
        # What the store has to say is told here.
        log_to_stderr(logging.WARNING, without="sqla_shard.cache"),
        _stores(cache) as stores,
        settings.cluster() as cluster,
    ):
        sizes, troubles = outbox_size(cluster)
        nodes = {name: _nodes(store) for name, store in stores.items()}
    waiting = by_region(sizes)
    wrong = listed(troubles)
    if as_json:
        print_json(_document(nodes, waiting, wrong))
    else:
        _show(nodes, waiting, wrong)
    silent = [
        node
        for its in nodes.values()
        for node in its or ()
        if not node.answers
    ]
    end(is_good=not silent, is_read=not wrong)


@contextmanager
def _stores(
    path: str, *, only_shared: bool = False
) -> Iterator[dict[str, Store]]:
    """Open the stores of the regions of a file.

    :param only_shared: leave out those in the memory of this process: rows
        would be deleted, and what another process has would stay.
    :raises CacheConfigError: when it cannot be used.
    """
    stores: dict[str, Store] = {}
    with ExitStack() as stack:
        for name, config in load_regions(path).items():
            if only_shared and config["backend"].startswith(IN_MEMORY):
                continue
            try:
                store = open_region(name, config).store
            except CacheOptionError as error:
                raise CacheConfigError(
                    str(error), path=path, key=f"regions.{name}"
                ) from error
            if (close := getattr(store, "close", None)) is not None:
                stack.callback(close)
            stores[name] = store
        yield stores


def _nodes(store: Store) -> list[NodeStats] | None:
    """Return what the nodes of a store say; None where it has none."""
    stats = getattr(store, "stats", None)
    return None if stats is None else stats()


def _document(
    nodes: Mapping[str, list[NodeStats] | None],
    waiting: Mapping[str, Waiting],
    wrong: list[str],
) -> dict[str, Any]:
    regions = []
    for name in [*nodes, *(one for one in waiting if one not in nodes)]:
        its, waits = nodes.get(name), waiting.get(name)
        regions.append(
            {
                "region": name,
                "is_known": name in nodes,
                "nodes": None if its is None else [n.as_dict() for n in its],
                "waiting": waits.rows if waits else 0,
                "oldest": waits.oldest.total_seconds() if waits else None,
            }
        )
    return {"regions": regions, "troubles": wrong}


def _show(
    nodes: Mapping[str, list[NodeStats] | None],
    waiting: Mapping[str, Waiting],
    wrong: list[str],
) -> None:
    for name, its in nodes.items():
        echo(f"{name}: {_waits(waiting.get(name))}")
        if its is None:
            echo("  its backend tells nothing of nodes")
        for node in its or ():
            for line in _told(node):
                echo(line)
    for name, one in waiting.items():
        if name not in nodes:
            echo(f"{name}, which is not configured: {_waits(one)}")
    for line in wrong:
        echo(line)


def _waits(waiting: Waiting | None) -> str:
    if waiting is None:
        return "no keys wait"
    age = int(waiting.oldest.total_seconds())
    keys = "key waits" if waiting.rows == 1 else "keys wait"
    return f"{waiting.rows:,} {keys}, the oldest for {age} s"


def _told(node: NodeStats) -> list[str]:
    if not node.answers:
        return [f"  {node.node}: does not answer"]
    filled = f"{_number(node.bytes)} of {_number(node.limit)} bytes"
    asked = f"{_number(node.hits)} hits, {_number(node.misses)} misses"
    uptime = f"up for {_number(node.uptime)} s"
    return [
        f"  {node.node}: {_number(node.items)} items, {filled}",
        f"    {_number(node.evictions)} evictions, {asked}, {uptime}",
    ]


def _number(number: int | None) -> str:
    return "?" if number is None else f"{number:,}"
