"""``sqla-shard fleet status|history|apply|resume|undo``.

The commands of the operations are in modules of their own; they share
:mod:`sqla_shard.cli.fleet_plans`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import click

from sqla_shard.cli.fleet_plans import (
    blank_fleet_of,
    confirm,
    fleet_of,
    interruptible,
    plan_options,
    print_result,
    progress_of,
    run_plan,
)
from sqla_shard.cli.options import pass_settings, Settings
from sqla_shard.cli.output import (
    data_option,
    echo,
    examples,
    FAILED,
    print_data,
    print_report,
)
from sqla_shard.exc import FleetSetupError
from sqla_shard.fleet import FleetStatus, Plan, resume, status, undo
from sqla_shard.fleet.journal import paused
from sqla_shard.util.json_values import parsed_json


@click.command(
    "status",
    epilog=examples(
        "sqla-shard fleet status",
        "sqla-shard -t zookeeper://zk1,zk2,zk3/prod fleet status --json",
    ),
)
@data_option
@pass_settings
def status_command(settings: Settings, as_data: bool) -> None:
    """Show the pending operation, its lock, and what to do now.

    The exit status is 1 if an operation was interrupted.
    """
    found = status(blank_fleet_of(settings))
    print_report(found, as_data)
    if found.is_interrupted:
        sys.exit(FAILED)


@click.command("history", epilog=examples("sqla-shard fleet history --most 5"))
@click.option(
    "--most",
    metavar="N",
    type=click.IntRange(min=1),
    default=20,
    help="Number of operations.",
)
@data_option
@pass_settings
def history_command(settings: Settings, most: int, as_data: bool) -> None:
    """List finished and undone operations, the latest first."""
    found = blank_fleet_of(settings).journal.history(most)
    if as_data:
        print_data([record.as_dict() for record in found])
        return
    for record in found:
        echo(
            f"{record.id}: {record.title}: {record.state}"
            f"{paused(record.pause)}, {record.holder}"
        )


@click.command("apply", epilog=examples("sqla-shard fleet apply plan.json"))
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@plan_options
@pass_settings
def apply_command(
    settings: Settings, file: str, plan_only: bool, yes: bool, as_data: bool
) -> None:
    """Apply the plan in FILE, the output of --plan-only --json.

    It is checked again, and refused if the topology has changed since.
    """
    try:
        document = parsed_json(Path(file).read_bytes())
    except ValueError as error:
        raise FleetSetupError(
            f"{file} is not JSON ({error}); make a plan with --plan-only --json"
        ) from error
    run_plan(
        fleet_of(settings),
        Plan.from_dict(document),
        plan_only=plan_only,
        yes=yes,
        as_data=as_data,
    )


@click.command("resume", epilog=examples("sqla-shard fleet resume"))
@plan_options
@pass_settings
def resume_command(
    settings: Settings, plan_only: bool, yes: bool, as_data: bool
) -> None:
    """Finish an operation whose process has died or failed."""
    fleet = fleet_of(settings)
    found = status(fleet)
    if plan_only:
        _show_only(found, as_data, possible=found.is_interrupted)
        return
    _ask("the rest of", found, yes=yes)
    with interruptible():
        result = resume(fleet, progress=progress_of(as_data))
    print_result(result, as_data)


@click.command("undo", epilog=examples("sqla-shard fleet undo"))
@plan_options
@pass_settings
def undo_command(settings: Settings, plan_only: bool, yes: bool, as_data: bool) -> None:
    """Undo an operation whose process has died or failed.

    It is refused after the operation has published its topology.
    """
    fleet = fleet_of(settings)
    found = status(fleet)
    if plan_only:
        possible = found.is_interrupted and not found.is_published
        _show_only(found, as_data, possible=possible)
        return
    _ask("the undoing of", found, yes=yes)
    with interruptible():
        result = undo(fleet, progress=progress_of(as_data))
    print_result(result, as_data)


def _show_only(found: FleetStatus, as_data: bool, *, possible: bool) -> None:
    """Show the pending operation; exit with 1 if the command is refused."""
    print_report(found, as_data)
    if not possible:
        sys.exit(FAILED)


def _ask(what: str, found: FleetStatus, *, yes: bool) -> None:
    """Show the pending operation, and ask; other states are refused later."""
    if found.is_interrupted and found.pending is not None and not yes:
        confirm(f"{what} {found.pending.record.title}", shown=found)
