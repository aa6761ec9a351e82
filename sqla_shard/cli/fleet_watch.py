"""``sqla-shard fleet watch``: fail over automatically."""

from __future__ import annotations

import shlex
from operator import attrgetter
from typing import TYPE_CHECKING

import click

from sqla_shard.cli.fleet_plans import fleet_of
from sqla_shard.cli.options import FiniteRange, pass_settings, Settings
from sqla_shard.cli.output import data_option, examples
from sqla_shard.cli.service_loop import make_passes, Passes, StopFlag

if TYPE_CHECKING:
    from sqla_shard.fleet.watcher import WatchReport


@click.command(
    "watch",
    epilog=examples(
        "sqla-shard fleet watch --dry-run",
        "sqla-shard fleet watch --watchers 3 --hook 'page-operator --urgent'",
    ),
)
@click.option(
    "--watchers",
    metavar="N",
    default=3,
    type=click.IntRange(min=1),
    help="Number of watchers that you run; a majority must agree.",
)
@click.option(
    "--dead-after",
    metavar="S",
    default=3.0,
    type=FiniteRange(least=0.1),
    help="Seconds for which they must not have seen a primary.",
)
@click.option(
    "--interval",
    metavar="S",
    default=0.5,
    type=FiniteRange(least=0.1),
    help="Seconds between two looks.",
)
@click.option(
    "--hold-off",
    metavar="S",
    default=3600.0,
    type=FiniteRange(least=0.0),
    help="Seconds after a failover of a server before the next.",
)
@click.option(
    "--allow-loss", is_flag=True, help="Act even if acknowledged writes may be lost."
)
@click.option("--dry-run", is_flag=True, help="Report only; change nothing.")
@click.option(
    "--hook",
    metavar="COMMAND",
    default="",
    show_default=False,
    help="Run it for each new line, which SQLA_SHARD_WATCH has, without "
    "passwords, for 60 seconds at most.",
)
@data_option
@pass_settings
def watch_command(
    settings: Settings,
    /,
    watchers: int,
    dead_after: float,
    interval: float,
    hold_off: float,
    allow_loss: bool,
    dry_run: bool,
    hook: str,
    as_data: bool,
) -> None:
    """Promote the standby of a primary that is lost.

    Run three, on machines that fail independently.  It acts only if a
    majority does not see the primary and nothing acknowledged is lost.  The
    topology must be in ZooKeeper.
    """
    # kazoo is needed for this command alone.
    from sqla_shard.fleet.watcher import SESSION, Watcher, WatchPolicy

    policy = WatchPolicy(
        watchers=watchers,
        dead_after=dead_after,
        every=interval,
        hold_off=hold_off,
        allow_loss=allow_loss,
        dry_run=dry_run,
        hook=_words(hook),
    )
    fleet = fleet_of(settings, session_timeout=SESSION)
    with StopFlag() as until, Watcher(fleet, policy) as watcher:
        passes = Passes(
            make=watcher.look,
            has_more=lambda report: False,
            has_changes=lambda report: False,
            problems=_lines,
            state=attrgetter("state"),
        )
        make_passes(passes, until, interval, as_data)


def _words(hook: str) -> list[str]:
    try:
        return shlex.split(hook)
    except ValueError as error:
        raise click.BadParameter(
            f"{hook!r} cannot be split into words: {error}", param_hint="--hook"
        ) from error


def _lines(report: WatchReport) -> tuple[str, ...]:
    return (*report.lines, *report.troubles)
