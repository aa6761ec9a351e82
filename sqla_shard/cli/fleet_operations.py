"""``sqla-shard fleet``: the operations, and what is common to them.

A command that changes something makes a plan and passes it on::

    @click.command("retire")
    @click.argument("target")
    @plan_options
    @pass_settings
    def retire_command(settings, **options):
        plan_and_run(settings, Retire.planned, **options)
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TYPE_CHECKING

import click

from sqla_shard.cli.options import (
    completed,
    FiniteRange,
    LazyChoice,
    pass_settings,
    Settings,
)
from sqla_shard.cli.output import (
    command,
    data_option,
    Decorator,
    echo,
    FAILED,
    option,
    print_data,
    print_report,
    with_options,
)

if TYPE_CHECKING:
    from sqla_shard.fleet import Fleet, FleetPlan, Result
    from sqla_shard.fleet.operation import Progress, StepEvent

_DAY = 86400.0

yes_option: Decorator = option(
    "--yes", "Do not ask for confirmation; required without a terminal."
)
allow_user_option: Decorator = option(
    "--allow-user USER",
    "A user whose privileges bypass the fence, and who does not "
    "write. May be repeated.",
    to="allowed_users",
    multiple=True,
)
_accept_option = option(
    "--accept-differences",
    "Do not ask for a proof that the servers of the shards have all of their rows.",
)
server_argument: Decorator = click.argument(
    "server", shell_complete=completed("server")
)
#: Options of every command that plans an operation; see :func:`run_plan`.
plan_options: Decorator = with_options(
    option("--plan-only --dry-run", "Print the plan; change nothing.", to="plan_only"),
    yes_option,
    data_option,
)


def fleet_of(settings: Settings, **options: Any) -> Fleet:
    """Return the fleet, with the accounts of the environment.

    :param options: further arguments of the fleet.
    :raises FleetSetupError: if an account is missing, or the topology is a
        TOML file.
    """
    from sqla_shard.fleet import Accounts, Fleet

    return Fleet(
        settings.location,
        accounts=Accounts.from_environ(os.environ),
        placeholders=settings.placeholders,
        environ=os.environ,
        **options,
    )


def blank_fleet_of(settings: Settings) -> Fleet:
    """Return the fleet for commands that connect to no database."""
    from sqla_shard.fleet import Account, Accounts, Fleet

    return Fleet(
        settings.location,
        accounts=Accounts(operator=Account(user="", password="")),
        placeholders=settings.placeholders,
    )


def plan_and_run(
    settings: Settings,
    planned: Callable[..., FleetPlan],
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
    fleet: Fleet, plan: FleetPlan, *, plan_only: bool, yes: bool, as_data: bool
) -> None:
    """Print a plan, ask for confirmation, apply it, and print the result.

    Exits with status 1 if the plan has problems.

    :param plan_only: only print the plan.
    :param yes: do not ask.
    :param as_data: print one JSON document: the plan if it is not applied,
        otherwise the result; progress goes to standard error.
    """
    from sqla_shard.fleet import apply

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


def read_json(path: Path, remedy: str) -> Any:
    """Return the document of a file that an earlier command has printed.

    :raises FleetSetupError: if it is not JSON.
    """
    from sqla_shard.exc import FleetSetupError
    from sqla_shard.util.json_values import parsed_json

    try:
        return parsed_json(path.read_bytes())
    except ValueError as error:
        raise FleetSetupError(f"{path} is not JSON ({error}); {remedy}") from error


# -- The pending operation, and the history


@command(
    "status",
    "sqla-shard fleet status",
    "sqla-shard -t zookeeper://zk1,zk2,zk3/prod fleet status --json",
)
@data_option
@pass_settings
def status_command(settings: Settings, as_data: bool) -> None:
    """Show the pending operation, its lock, and what to do now.

    The exit status is 1 if an operation was interrupted.
    """
    from sqla_shard.fleet import status

    found = status(blank_fleet_of(settings))
    print_report(found, as_data)
    if found.is_interrupted:
        sys.exit(FAILED)


@command("history", "sqla-shard fleet history --most 5")
@option("--most N", "Number of operations.", click.IntRange(min=1), default=20)
@data_option
@pass_settings
def history_command(settings: Settings, most: int, as_data: bool) -> None:
    """List finished and undone operations, the latest first."""
    from sqla_shard.fleet.journal import paused

    found = blank_fleet_of(settings).journal.history(most)
    if as_data:
        print_data([record.as_dict() for record in found])
        return
    for record in found:
        echo(
            f"{record.id}: {record.title}: {record.state}"
            f"{paused(record.pause)}, {record.holder}"
        )


@command("apply", "sqla-shard fleet apply plan.json")
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@plan_options
@pass_settings
def apply_command(
    settings: Settings, file: str, plan_only: bool, yes: bool, as_data: bool
) -> None:
    """Apply the plan in FILE, the output of --plan-only --json.

    It is checked again, and refused if the topology has changed since.
    """
    from sqla_shard.fleet import FleetPlan

    document = read_json(Path(file), "make a plan with --plan-only --json")
    run_plan(
        fleet_of(settings),
        FleetPlan.from_dict(document),
        plan_only=plan_only,
        yes=yes,
        as_data=as_data,
    )


@command("resume", "sqla-shard fleet resume")
@plan_options
@pass_settings
def resume_command(settings: Settings, /, **options: Any) -> None:
    """Finish an operation whose process has died or failed."""
    from sqla_shard.fleet import resume

    _end_pending(settings, resume, "the rest of", **options)


@command("undo", "sqla-shard fleet undo")
@plan_options
@pass_settings
def undo_command(settings: Settings, /, **options: Any) -> None:
    """Undo an operation whose process has died or failed.

    It is refused after the operation has published its topology.
    """
    from sqla_shard.fleet import undo

    _end_pending(settings, undo, "the undoing of", **options)


def _end_pending(
    settings: Settings,
    finish: Callable[..., Result],
    what: str,
    *,
    plan_only: bool,
    yes: bool,
    as_data: bool,
) -> None:
    """Show the pending operation, ask for confirmation, and finish or undo it.

    Exits with status 1 if only shown, and ``finish`` would refuse it.

    :param what: what ``finish`` does, for the question.
    """
    from sqla_shard.fleet import status, undo

    fleet = fleet_of(settings)
    found = status(fleet)
    if plan_only:
        print_report(found, as_data)
        if not found.is_interrupted or (finish is undo and found.is_published):
            sys.exit(FAILED)
        return
    # Other states are refused below.
    if found.is_interrupted and found.pending is not None and not yes:
        confirm(f"{what} {found.pending.record.title}", shown=found)
    with interruptible():
        result = finish(fleet, progress=progress_of(as_data))
    print_result(result, as_data)


# -- Primary and standby


@command(
    "failover",
    "sqla-shard fleet failover sharddb001 --plan-only",
    "sqla-shard fleet failover sharddb001",
    "sqla-shard fleet failover sharddb001 --dead",
)
@server_argument
@option(
    "--dead",
    "The primary is lost: promote the standby after it has applied "
    "what it has received.  Refused if the primary responds.",
)
@option(
    "--fenced",
    "With --dead: you have switched the primary off, although the "
    "standby does not notice yet.",
)
@option(
    "--drain-timeout S",
    "With --dead: undo everything if the standby has applied nothing "
    "of what it has received for S seconds.  [default: 600]",
    click.FloatRange(min=0, min_open=True),
)
@option(
    "--compare-limit SECONDS",
    "Time for the comparison of all rows, before the failover and "
    "after it.  [default: 60]",
    FiniteRange(1),
)
@option("--skip-compare", "Compare no rows.")
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
    from sqla_shard.fleet.dead_failover import DeadFailover, DRAIN
    from sqla_shard.fleet.failover import COMPARE_LIMIT, Failover

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


@command("reopen", "sqla-shard fleet reopen sharddb001")
@server_argument
@plan_options
@pass_settings
def reopen_command(settings: Settings, /, **options: Any) -> None:
    """Open the primary of SERVER, which was restarted.

    It is refused if its standby has writes that the primary lacks.
    """
    from sqla_shard.fleet.write_access import Reopen

    plan_and_run(settings, Reopen.planned, **options)


_copy_options = with_options(
    option(
        "--way",
        "How to copy; rows by default, command with --command.",
        LazyChoice("sqla_shard.fleet.copies:WAYS"),
        default=None,
    ),
    option(
        "--command COMMAND",
        "Shell command that copies the server and prints its position "
        "last; it is written into the journal, without a password.",
    ),
)


@command(
    "build",
    "sqla-shard fleet replica build sharddb001 mysql001c --plan-only",
    "sqla-shard fleet replica build sharddb001 mysql001c:3307",
)
@server_argument
@click.argument("target")
@option(
    "--publish/--no-publish",
    "Whether it becomes the standby in the topology; without, it only "
    "replicates, for a split.",
    default=True,
)
@_copy_options
@plan_options
@pass_settings
def build_command(settings: Settings, /, **options: Any) -> None:
    """Make the empty server TARGET, a host:port, a standby of SERVER."""
    _run_copy(settings, action="build", **options)


@command("rebuild", "sqla-shard fleet replica rebuild sharddb001")
@server_argument
@option("--discard-errant", "Drop transactions that the primary does not have.")
@_copy_options
@plan_options
@pass_settings
def rebuild_command(settings: Settings, /, **options: Any) -> None:
    """Drop the content of the standby of SERVER and copy it again."""
    _run_copy(settings, action="rebuild", **options)


@command("replace", "sqla-shard fleet replica replace sharddb001 mysql001c")
@server_argument
@click.argument("target")
@_copy_options
@plan_options
@pass_settings
def replace_command(settings: Settings, /, **options: Any) -> None:
    """Make the empty server TARGET the standby of SERVER in place of another.

    TARGET is host:port; the port is 3306 by default.
    """
    _run_copy(settings, action="replace", **options)


@command("retire", "sqla-shard fleet retire mysql001b")
@click.argument("target")
@plan_options
@pass_settings
def retire_command(settings: Settings, /, **options: Any) -> None:
    """Take TARGET, which the topology does not name, out of service.

    TARGET is host:port; the port is 3306 by default.  It is
    made read-only and forgets its primary; it is not stopped.
    """
    from sqla_shard.fleet.write_access import Retire

    plan_and_run(settings, Retire.planned, **options)


def _run_copy(
    settings: Settings, *, way: str | None, command: str | None, **options: Any
) -> None:
    from sqla_shard.fleet.replica import Replica

    plan_and_run(
        settings,
        Replica.planned,
        way=way or ("rows" if command is None else "command"),
        command=command,
        **options,
    )


# -- Shards

_target_options = with_options(
    option(
        "--to NAME",
        "Name of the new server in the topology.",
        to="target",
        required=True,
    ),
    option(
        "--primary HOST:PORT",
        "Its primary. Users and passwords are those of SERVER.",
        required=True,
    ),
    option("--standby HOST:PORT", "Its standby."),
    option(
        "--weight", "Its share of new roots.  [default: that of SERVER]", FiniteRange(0)
    ),
    allow_user_option,
    option(
        "--patience SECONDS",
        "Time for the last writes while writes are stopped; after it, "
        "everything is undone.",
        FiniteRange(0.1),
        default=3.0,
    ),
    option(
        "--compare-limit SECONDS",
        "Time for the comparison of all rows that move, before the cutover and after "
        "it; before it, everything is undone if the time is over.",
        FiniteRange(1),
        default=3600.0,
    ),
    option("--skip-compare", "Compare no rows, only definitions."),
)


@command(
    "split",
    "sqla-shard fleet split sharddb001 --shards 256-511"
    " --to sharddb009 --primary mysql009a --standby mysql009b --plan-only",
)
@server_argument
@option(
    "--shards RANGE",
    "Shards that move, such as 8-15, 8, or objects:8-15. May be repeated.",
    shell_complete=completed("ranges"),
    multiple=True,
    required=True,
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
    _run_split(settings, shards=shards, **options)


@command(
    "move",
    "sqla-shard fleet move sharddb001"
    " --to sharddb009 --primary mysql009a --standby mysql009b",
)
@server_argument
@_target_options
@plan_options
@pass_settings
def move_command(settings: Settings, /, **options: Any) -> None:
    """Move all shards of SERVER to a new pair.

    SERVER is not in the topology afterwards.
    """
    _run_split(settings, shards=None, **options)


def _run_split(
    settings: Settings, *, compare_limit: float, skip_compare: bool, **options: Any
) -> None:
    from sqla_shard.fleet.split import Split

    limit = None if skip_compare else compare_limit
    plan_and_run(settings, Split.planned, compare_limit=limit, **options)


# -- Databases that a split leaves behind

_orphan_arguments = with_options(
    server_argument,
    click.argument("databases", nargs=-1),
    allow_user_option,
    plan_options,
)


@command("list", "sqla-shard fleet orphans list sharddb001")
@click.argument("server", required=False, shell_complete=completed("server"))
@data_option
@pass_settings
def list_command(settings: Settings, /, server: str | None, as_data: bool) -> None:
    """List the orphans of SERVER, or of all servers."""
    from sqla_shard.fleet.orphans import orphans_of

    found = orphans_of(fleet_of(settings), server)
    if as_data:
        print_data([orphan.as_dict() for orphan in found])
        return
    for orphan in found:
        echo(orphan)


@command("fence", "sqla-shard fleet orphans fence sharddb001")
@_orphan_arguments
@pass_settings
def fence_command(settings: Settings, /, **options: Any) -> None:
    """Fence DATABASES of SERVER, by default all orphans, again.

    Applications can neither read nor write them afterwards.  Sessions on both
    servers of the pair end where a fence was missing.
    """
    _change_orphans(settings, action="fence", **options)


@command("rename", "sqla-shard fleet orphans rename sharddb001")
@_accept_option
@_orphan_arguments
@pass_settings
def rename_command(settings: Settings, /, **options: Any) -> None:
    """Rename DATABASES of SERVER, by default all orphans, to moved_NAME."""
    _change_orphans(settings, action="rename", **options)


@command("restore", "sqla-shard fleet orphans restore sharddb001")
@_orphan_arguments
@pass_settings
def restore_command(settings: Settings, /, **options: Any) -> None:
    """Undo the renaming of DATABASES of SERVER, by default of all."""
    _change_orphans(settings, action="restore", **options)


@command("drop", "sqla-shard fleet orphans drop sharddb001")
@option(
    "--older-than DAYS",
    "Drop only what was renamed before.",
    FiniteRange(0),
    to="days",
    default=7.0,
)
@_accept_option
@_orphan_arguments
@pass_settings
def drop_command(settings: Settings, /, days: float, **options: Any) -> None:
    """Drop renamed DATABASES of SERVER, by default all old enough."""
    _change_orphans(settings, action="drop", older_than=days * _DAY, **options)


def _change_orphans(settings: Settings, **options: Any) -> None:
    from sqla_shard.fleet.orphans import OrphanChange

    plan_and_run(settings, OrphanChange.planned, **options)
