"""``sqla-shard fleet failover``: change the primary of a pair."""

from __future__ import annotations

from typing import Any

import click

from sqla_shard.cli.fleet_plans import plan_and_run, plan_options
from sqla_shard.cli.options import FiniteRange, pass_settings, Settings
from sqla_shard.cli.output import examples
from sqla_shard.fleet.dead_failover import DeadFailover, DRAIN
from sqla_shard.fleet.failover import COMPARE_LIMIT, Failover
from sqla_shard.fleet.reopen import Reopen


@click.command(
    "failover",
    epilog=examples(
        "sqla-shard fleet failover sharddb001 --plan-only",
        "sqla-shard fleet failover sharddb001",
        "sqla-shard fleet failover sharddb001 --dead",
    ),
)
@click.argument("server")
@click.option(
    "--dead",
    is_flag=True,
    help="The primary is lost: promote the standby after it has applied "
    "what it has received.  Refused if the primary responds.",
)
@click.option(
    "--fenced",
    is_flag=True,
    help="With --dead: you have switched the primary off, although the "
    "standby does not notice yet.",
)
@click.option(
    "--drain-timeout",
    type=click.FloatRange(min=0, min_open=True),
    metavar="S",
    help="With --dead: undo everything if the standby has applied nothing "
    "of what it has received for S seconds.  [default: 600]",
)
@click.option(
    "--compare-limit",
    metavar="SECONDS",
    type=FiniteRange(least=1),
    help="Time for the comparison of all rows, before the failover and "
    f"after it.  [default: {COMPARE_LIMIT:g}]",
)
@click.option("--skip-compare", is_flag=True, help="Compare no rows.")
@plan_options
@pass_settings
def failover_command(
    settings: Settings,
    /,
    dead: bool,
    fenced: bool,
    drain_timeout: float | None,
    compare_limit: float | None,
    skip_compare: bool,
    **options: Any,
) -> None:
    """Make the standby of SERVER its primary, and the primary its standby.

    No acknowledged write is lost.  SERVER is a name in the topology, or
    keyspace/name.  Rows of both servers that differ before it refuse it.

    With --dead the primary is lost, and acknowledged writes that the standby
    has not received, too; the plan prints what is known about them.
    """
    if fenced and not dead:
        raise click.UsageError("--fenced needs --dead")
    if drain_timeout is not None and not dead:
        raise click.UsageError("--drain-timeout needs --dead")
    if dead and (skip_compare or compare_limit is not None):
        raise click.UsageError("--dead compares no rows: there is one server only")
    if dead:
        plan_and_run(
            settings,
            DeadFailover.planned,
            fenced=fenced,
            drain_timeout=drain_timeout or DRAIN,
            **options,
        )
    else:
        limit = COMPARE_LIMIT if compare_limit is None else compare_limit
        plan_and_run(
            settings,
            Failover.planned,
            compare_limit=None if skip_compare else limit,
            **options,
        )


@click.command("reopen", epilog=examples("sqla-shard fleet reopen sharddb001"))
@click.argument("server")
@plan_options
@pass_settings
def reopen_command(settings: Settings, /, **options: Any) -> None:
    """Open the primary of SERVER, which was restarted.

    It is refused if its standby has writes that the primary lacks.
    """
    plan_and_run(settings, Reopen.planned, **options)
