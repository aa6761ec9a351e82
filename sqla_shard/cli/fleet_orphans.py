"""``sqla-shard fleet orphans``: databases that a split leaves behind."""

from __future__ import annotations

from typing import Any

import click

from sqla_shard.cli.fleet_plans import (
    allow_user_option,
    fleet_of,
    plan_and_run,
    plan_options,
)
from sqla_shard.cli.options import FiniteRange, pass_settings, Settings
from sqla_shard.cli.output import data_option, echo, examples, print_data, with_options
from sqla_shard.fleet.orphans import OrphanChange, orphans_of

_DAY = 86400.0

_accept_option = click.option(
    "--accept-differences",
    is_flag=True,
    help="Do not ask for a proof that the servers of the shards have all of "
    "their rows.",
)

_arguments = with_options(
    click.argument("server"),
    click.argument("databases", nargs=-1),
    allow_user_option,
    plan_options,
)


@click.command("list", epilog=examples("sqla-shard fleet orphans list sharddb001"))
@click.argument("server", required=False)
@data_option
@pass_settings
def list_command(settings: Settings, /, server: str | None, as_data: bool) -> None:
    """List the orphans of SERVER, or of all servers."""
    found = orphans_of(fleet_of(settings), server)
    if as_data:
        print_data([orphan.as_dict() for orphan in found])
        return
    for orphan in found:
        echo(orphan)


@click.command("fence", epilog=examples("sqla-shard fleet orphans fence sharddb001"))
@_arguments
@pass_settings
def fence_command(settings: Settings, /, **options: Any) -> None:
    """Fence DATABASES of SERVER, by default all orphans, again.

    Applications can neither read nor write them afterwards.  Sessions on both
    servers of the pair end where a fence was missing.
    """
    plan_and_run(settings, OrphanChange.planned, action="fence", **options)


@click.command("rename", epilog=examples("sqla-shard fleet orphans rename sharddb001"))
@_accept_option
@_arguments
@pass_settings
def rename_command(settings: Settings, /, **options: Any) -> None:
    """Rename DATABASES of SERVER, by default all orphans, to moved_NAME."""
    plan_and_run(settings, OrphanChange.planned, action="rename", **options)


@click.command(
    "restore", epilog=examples("sqla-shard fleet orphans restore sharddb001")
)
@_arguments
@pass_settings
def restore_command(settings: Settings, /, **options: Any) -> None:
    """Undo the renaming of DATABASES of SERVER, by default of all."""
    plan_and_run(settings, OrphanChange.planned, action="restore", **options)


@click.command("drop", epilog=examples("sqla-shard fleet orphans drop sharddb001"))
@click.option(
    "--older-than",
    "days",
    metavar="DAYS",
    type=FiniteRange(least=0),
    default=7.0,
    help="Drop only what was renamed before.",
)
@_accept_option
@_arguments
@pass_settings
def drop_command(settings: Settings, /, days: float, **options: Any) -> None:
    """Drop renamed DATABASES of SERVER, by default all old enough."""
    plan_and_run(
        settings, OrphanChange.planned, action="drop", older_than=days * _DAY, **options
    )
