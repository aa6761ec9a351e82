"""``sqla-shard fleet replica`` and ``fleet retire``: standbys come and go."""

from __future__ import annotations

from typing import Any

import click

from sqla_shard.cli.fleet_plans import plan_and_run, plan_options
from sqla_shard.cli.options import pass_settings, Settings
from sqla_shard.cli.output import examples, with_options
from sqla_shard.fleet.copies import WAYS
from sqla_shard.fleet.replica import Replica
from sqla_shard.fleet.retire import Retire

_copy_options = with_options(
    click.option(
        "--way",
        type=click.Choice(WAYS),
        default=None,
        help="How to copy; rows by default, command with --command.",
    ),
    click.option(
        "--command",
        metavar="COMMAND",
        help="Shell command that copies the server and prints its position "
        "last; it is written into the journal, without a password.",
    ),
)


@click.command(
    "build",
    epilog=examples(
        "sqla-shard fleet replica build sharddb001 mysql001c --plan-only",
        "sqla-shard fleet replica build sharddb001 mysql001c:3307",
    ),
)
@click.argument("server")
@click.argument("target")
@click.option(
    "--publish/--no-publish",
    default=True,
    help="Whether it becomes the standby in the topology; without, it only "
    "replicates, for a split.",
)
@_copy_options
@plan_options
@pass_settings
def build_command(settings: Settings, /, **options: Any) -> None:
    """Make the empty server TARGET, a host:port, a standby of SERVER."""
    _run(settings, action="build", **options)


@click.command(
    "rebuild", epilog=examples("sqla-shard fleet replica rebuild sharddb001")
)
@click.argument("server")
@click.option(
    "--discard-errant",
    is_flag=True,
    help="Drop transactions that the primary does not have.",
)
@_copy_options
@plan_options
@pass_settings
def rebuild_command(settings: Settings, /, **options: Any) -> None:
    """Drop the content of the standby of SERVER and copy it again."""
    _run(settings, action="rebuild", **options)


@click.command(
    "replace", epilog=examples("sqla-shard fleet replica replace sharddb001 mysql001c")
)
@click.argument("server")
@click.argument("target")
@_copy_options
@plan_options
@pass_settings
def replace_command(settings: Settings, /, **options: Any) -> None:
    """Make the empty server TARGET the standby of SERVER in place of another.

    TARGET is host:port; the port is 3306 by default.
    """
    _run(settings, action="replace", **options)


@click.command("retire", epilog=examples("sqla-shard fleet retire mysql001b"))
@click.argument("target")
@plan_options
@pass_settings
def retire_command(settings: Settings, /, **options: Any) -> None:
    """Take TARGET, which the topology does not name, out of service.

    TARGET is host:port; the port is 3306 by default.  It is
    made read-only and forgets its primary; it is not stopped.
    """
    plan_and_run(settings, Retire.planned, **options)


def _run(
    settings: Settings, *, way: str | None, command: str | None, **options: Any
) -> None:
    plan_and_run(
        settings,
        Replica.planned,
        way=way or ("rows" if command is None else "command"),
        command=command,
        **options,
    )
