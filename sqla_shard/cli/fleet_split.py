"""``sqla-shard fleet split`` and ``move``: shards go to another pair."""

from __future__ import annotations

from typing import Any

import click

from sqla_shard.cli.fleet_plans import allow_user_option, plan_and_run, plan_options
from sqla_shard.cli.options import FiniteRange, pass_settings, Settings
from sqla_shard.cli.output import examples, with_options
from sqla_shard.fleet.split import Split

_target_options = with_options(
    click.option(
        "--to",
        "target",
        metavar="NAME",
        required=True,
        help="Name of the new server in the topology.",
    ),
    click.option(
        "--primary",
        metavar="HOST:PORT",
        required=True,
        help="Its primary. Users and passwords are those of SERVER.",
    ),
    click.option("--standby", metavar="HOST:PORT", help="Its standby."),
    click.option(
        "--weight",
        type=FiniteRange(least=0),
        help="Its share of new roots.  [default: that of SERVER]",
    ),
    allow_user_option,
    click.option(
        "--patience",
        metavar="SECONDS",
        type=FiniteRange(least=0.1),
        default=3.0,
        help="Time for the last writes while writes are stopped; after it, "
        "everything is undone.",
    ),
    click.option(
        "--compare-limit",
        metavar="SECONDS",
        type=FiniteRange(least=1),
        default=3600.0,
        help="Time for the comparison of all rows that move, before the "
        "cutover and after it; before it, everything is undone if the time "
        "is over.",
    ),
    click.option(
        "--skip-compare", is_flag=True, help="Compare no rows, only definitions."
    ),
)


@click.command(
    "split",
    epilog=examples(
        "sqla-shard fleet split sharddb001 --shards 256-511"
        " --to sharddb009 --primary mysql009a --standby mysql009b --plan-only"
    ),
)
@click.argument("server")
@click.option(
    "--shards",
    metavar="RANGE",
    multiple=True,
    required=True,
    help="Shards that move, such as 8-15, 8, or objects:8-15. May be repeated.",
)
@_target_options
@plan_options
@pass_settings
def split_command(
    settings: Settings, /, shards: tuple[str, ...], **options: Any
) -> None:
    """Move some shards of SERVER to a new pair.

    Writes to SERVER stop for some tenths of a second.  Its copies of what has
    moved, and the copies of what has not on the new pair, are removed later:
    sqla-shard fleet orphans.
    """
    _run(settings, shards=shards, **options)


@click.command(
    "move",
    epilog=examples(
        "sqla-shard fleet move sharddb001"
        " --to sharddb009 --primary mysql009a --standby mysql009b"
    ),
)
@click.argument("server")
@_target_options
@plan_options
@pass_settings
def move_command(settings: Settings, /, **options: Any) -> None:
    """Move all shards of SERVER to a new pair.

    SERVER is not in the topology afterwards.
    """
    _run(settings, shards=None, **options)


def _run(
    settings: Settings, *, compare_limit: float, skip_compare: bool, **options: Any
) -> None:
    limit = None if skip_compare else compare_limit
    plan_and_run(settings, Split.planned, compare_limit=limit, **options)
