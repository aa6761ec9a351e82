"""Options of the fleet commands that change something, and how they end.

Such a command makes a plan and passes it on::

    @click.command("failover")
    @click.argument("server")
    @plan_options
    @pass_settings
    def failover_command(settings, **options):
        plan_and_run(settings, Failover.planned, **options)
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click

from sqla_shard.cli.options import Settings
from sqla_shard.cli.output import (
    data_option,
    echo,
    FAILED,
    print_data,
    print_report,
    with_options,
)
from sqla_shard.fleet import Account, Accounts, apply, Fleet, Plan, Result
from sqla_shard.fleet.operation import Progress, StepEvent

yes_option = with_options(
    click.option(
        "--yes",
        is_flag=True,
        help="Do not ask for confirmation; required without a terminal.",
    )
)
allow_user_option = with_options(
    click.option(
        "--allow-user",
        "allowed_users",
        metavar="USER",
        multiple=True,
        help="A user whose privileges bypass the fence, and who does not "
        "write. May be repeated.",
    )
)
#: Options of every command that plans an operation; see :func:`run_plan`.
plan_options = with_options(
    click.option(
        "--plan-only",
        "--dry-run",
        "plan_only",
        is_flag=True,
        help="Print the plan; change nothing.",
    ),
    yes_option,
    data_option,
)


def fleet_of(settings: Settings, **options: Any) -> Fleet:
    """Return the fleet, with the accounts of the environment.

    :param options: further arguments of the fleet.
    :raises FleetSetupError: if an account is missing, or the topology is a
        TOML file.
    """
    return Fleet(
        settings.location,
        accounts=Accounts.from_environ(os.environ),
        placeholders=settings.placeholders,
        environ=os.environ,
        **options,
    )


def blank_fleet_of(settings: Settings) -> Fleet:
    """Return the fleet for commands that connect to no database."""
    return Fleet(
        settings.location,
        accounts=Accounts(operator=Account(user="", password="")),
        placeholders=settings.placeholders,
    )


def plan_and_run(
    settings: Settings,
    planned: Callable[..., Plan],
    *,
    plan_only: bool,
    yes: bool,
    as_data: bool,
    **arguments: Any,
) -> None:
    """Plan an operation, and go on as :func:`run_plan` does.

    :param planned: returns the plan for a fleet and the other arguments.
    """
    fleet = fleet_of(settings)
    plan = planned(fleet, **arguments)
    run_plan(fleet, plan, plan_only=plan_only, yes=yes, as_data=as_data)


def run_plan(
    fleet: Fleet, plan: Plan, *, plan_only: bool, yes: bool, as_data: bool
) -> None:
    """Print a plan, ask for confirmation, apply it, and print the result.

    Exits with status 1 if the plan has problems.

    :param plan_only: only print the plan.
    :param yes: do not ask.
    :param as_data: print one JSON document: the plan if it is not applied,
        otherwise the result; progress goes to standard error.
    """
    is_applied = not plan_only and not plan.problems
    if as_data and not is_applied:
        print_data(plan)
    elif not as_data:
        echo(plan)
    if plan.problems:
        sys.exit(FAILED)
    if plan_only:
        return
    if not yes:
        confirm(plan.title, shown=plan if as_data else None)
    with interruptible():
        result = apply(fleet, plan, progress=progress_of(as_data))
    print_result(result, as_data)


def print_result(result: Result, as_data: bool) -> None:
    """Print the end of an operation; exit with 1 if it has left a problem."""
    print_report(result, as_data)
    if result.problems:
        sys.exit(FAILED)


def confirm(title: str, *, shown: object = None) -> None:
    """Ask whether an operation shall be applied.

    :param title: what is asked for.
    :param shown: what to print on standard error before.
    :raises click.UsageError: if there is no terminal.
    :raises click.Abort: if the answer is no.
    """
    if not sys.stdin.isatty():
        raise click.UsageError(
            "cannot ask for confirmation without a terminal; add --yes, or "
            "--plan-only to print the plan only"
        )
    if shown is not None:
        echo(shown, err=True)
    click.confirm(f"apply {title}?", abort=True, err=True)


def progress_of(as_data: bool) -> Progress:
    """Return a function that prints a line for each event of a step.

    :param as_data: print to standard error.
    """

    def show(event: StepEvent) -> None:
        """Print the time, the step, and what it does."""
        text = "done" if event.state == "done" else event.text
        milliseconds = 1000 * event.seconds
        echo(f"{milliseconds:9.0f} ms  {event.step}: {text}", err=as_data)

    return show


@contextmanager
def interruptible() -> Iterator[None]:
    """Print what to do after Ctrl-C or a signal in an operation."""
    try:
        with terminable():
            yield
    except (KeyboardInterrupt, SystemExit):
        echo("interrupted; what is left: sqla-shard fleet status", err=True)
        raise


@contextmanager
def terminable() -> Iterator[None]:
    """Let SIGTERM and SIGHUP raise SystemExit, which is cleaned up after.

    By default they end the process at once, with the applier of a standby
    stopped, or a server closed.  Only the first one raises: a second one
    would interrupt the cleaning up.
    """

    def leave(number: int, frame: object) -> None:
        """End the program with the status that a shell expects."""
        for one in before:
            signal.signal(one, signal.SIG_IGN)
        raise SystemExit(128 + number)

    before = {
        one: handler
        for one in (signal.SIGTERM, signal.SIGHUP)
        # Under nohup it goes on.
        if (handler := signal.getsignal(one)) is not signal.SIG_IGN
    }
    for one in before:
        signal.signal(one, leave)
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
