"""``sqla-shard fleet failover``: change the primary of a pair."""

from __future__ import annotations

from typing import Any

import click

from sqla_shard.cli.fleet_plans import fleet_of
from sqla_shard.cli.fleet_plans import plan_options
from sqla_shard.cli.fleet_plans import run_plan
from sqla_shard.cli.options import pass_settings
from sqla_shard.cli.options import Settings
from sqla_shard.cli.output import examples
from sqla_shard.fleet.failover import Failover

__all__ = ["failover_command"]


@click.command(
    "failover",
    epilog=examples(
        "sqla-shard fleet failover sharddb001 --plan-only",
        "sqla-shard fleet failover sharddb001",
    ),
)
@click.argument("server")
@plan_options
@pass_settings
def failover_command(
    settings: Settings,
    /,
    server: str,
    **options: Any,
) -> None:
    """Make the standby of SERVER its primary, and the primary its standby.

    No acknowledged write is lost.  SERVER is a name in the topology, or
    keyspace/name.
    """
    fleet = fleet_of(settings)
    run_plan(fleet, Failover.planned(fleet, server), **options)
