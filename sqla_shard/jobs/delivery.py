"""Delivery of pending operations and cache invalidations.

A worker does it in addition to its jobs, with ``Worker(delivers=True)``: one
daemon to deploy, not three.  One statement for a server looks for all of
them; only where something is found do the passes of ``sqla-shard repair`` and
``sqla-shard cache repair`` follow.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sqlalchemy import literal_column, Select, union_all

from sqla_shard.engine.unreachable import unreachable_lines
from sqla_shard.outbox.invalidations import WHICH
from sqla_shard.outbox.pending_operations import KEEP, since, WHICH_DUE, WHICH_OLD
from sqla_shard.outbox.scan import read_all

if TYPE_CHECKING:
    from sqla_shard import Cluster


@dataclass(kw_only=True)
class DeliveryReport:
    """The result of one pass.

    :ivar applied: number of operations that were applied.
    :ivar invalidated: number of keys of caches that were invalidated.
    :ivar problems: a line for each failed or unknown operation, each region
        whose node does not respond or that is not configured, and each server
        that could not be read or written.
    """

    applied: int = 0
    invalidated: int = 0
    problems: list[str] = field(default_factory=list)


_OPERATIONS, _INVALIDATIONS = 1, 2


def _kind(statement: Select[int], kind: int) -> Select[int]:
    return statement.add_columns(literal_column(str(kind)).label("kind"))


#: The shards with due operations, old tokens or pending invalidations.
_WHICH = union_all(
    _kind(WHICH_DUE, _OPERATIONS),
    _kind(WHICH_OLD, _OPERATIONS),
    _kind(WHICH, _INVALIDATIONS),
)


def deliver(cluster: Cluster) -> DeliveryReport:
    """Apply due operations and pending invalidations, on all shards, once.

    Invalidations are left to others, and reported, if the cluster has no
    cache.
    """
    found, unreachable = read_all(cluster, _WHICH, _WHICH, since(KEEP))
    report = DeliveryReport(problems=unreachable_lines(unreachable))
    kinds = {row.kind for _, row in found}
    if _OPERATIONS in kinds:
        done = cluster.repair()
        report.applied = done.applied
        report.problems = [
            *unreachable_lines(done.unreachable),
            *done.failed,
            *(
                f"operation {name!r} is not defined in this process"
                for name in sorted({one.operation for one in done.unknown})
            ),
        ]
    if _INVALIDATIONS in kinds and cluster.cache is None:
        report.problems.append(
            "invalidations of a cache are pending, and the cluster of this "
            "process has none: configure it, or run sqla-shard cache repair"
        )
    elif _INVALIDATIONS in kinds:
        drained = cluster.repair_cache()
        report.invalidated = drained.removed
        report.problems += [
            *(
                f"region {one.region!r}: a node of the cache does not respond"
                for one in drained.left
            ),
            *(
                f"region {one.region!r} of the cache is not configured"
                for one in drained.unknown
            ),
            *(
                one
                for one in unreachable_lines(drained.unreachable)
                if one not in report.problems
            ),
        ]
    return report
