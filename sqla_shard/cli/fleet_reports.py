"""``sqla-shard fleet``: what looks at all servers, and the watchers of them."""

from __future__ import annotations

import os
import shlex
import sys
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any, TYPE_CHECKING

import click
from click.core import ParameterSource

from sqla_shard.cli.fleet_operations import fleet_of, read_json, terminable
from sqla_shard.cli.options import (
    completed,
    FiniteRange,
    keyspace_option,
    LazyChoice,
    pass_settings,
    Settings,
)
from sqla_shard.cli.output import (
    command,
    data_option,
    Decorator,
    echo,
    end,
    NOT_READ,
    option,
    print_data,
    print_report,
    ProgressLines,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sqla_shard.fleet.differences import Difference
    from sqla_shard.fleet.doctor import DoctorReport
    from sqla_shard.fleet.fleet import Fleet


fail_on_option: Decorator = option(
    "--fail-on",
    "Severity from which the exit status is 1.",
    click.Choice(["critical", "warning"]),
    to="least",
    default="warning",
)
"""Option of commands that print findings."""


@command(
    "doctor",
    "sqla-shard fleet doctor",
    "sqla-shard fleet doctor --fail-on critical --json",
    "sqla-shard fleet doctor --other mysql001a:3306",
)
@fail_on_option
@option(
    "--other HOST:PORT",
    "A server outside of the topology, such as a former primary; repeatable.",
    to="others",
    multiple=True,
)
@option(
    "--timeout S",
    "Seconds after which a server that has not responded is unknown.",
    FiniteRange(1, 3600),
    default=15.0,
)
@option(
    "--ignore CHECK",
    "Do not do this check, such as silent-disks; repeatable.",
    LazyChoice("sqla_shard.fleet.doctor:check_names"),
    to="ignored",
    multiple=True,
)
@data_option
@pass_settings
def doctor_command(
    settings: Settings, /, least: str, as_data: bool, **options: Any
) -> None:
    """Check all servers of the fleet; change nothing.

    The worst findings are first, each with what to do.  The exit status is 1
    if there is a critical finding or a warning, and 3 if something could not
    be read.
    """
    from sqla_shard.fleet.doctor import examine

    report = examine(fleet_of(settings), environ=os.environ, **options)
    end_of_report(report, least, as_data)


def end_of_report(report: DoctorReport, least: str, as_data: bool) -> None:
    """Print the findings, and exit with status 1 or 3 if they say so.

    :param least: see :data:`fail_on_option`.
    """
    print_report(report, as_data)
    found = {finding.severity for finding in report.findings}
    end(is_good=found.isdisjoint(["critical", least]), is_read=report.complete)


@command(
    "capacity",
    "sqla-shard fleet capacity",
    "sqla-shard fleet capacity --json > capacity.json",
    "sqla-shard fleet capacity --since capacity.json",
    "sqla-shard fleet capacity --servers 8",
)
@option(
    "--since FILE",
    "An earlier output of --json: show the growth since then.",
    click.Path(exists=True, dir_okay=False, path_type=Path),
)
@option(
    "--servers N",
    "Print the commands that divide a keyspace among N servers.",
    click.IntRange(min=1),
)
@keyspace_option("The keyspace of --servers.  [default: the only one of objects]")
@option(
    "--window S",
    "Seconds for which activity is measured; 0 for none.",
    FiniteRange(0, 3600),
    default=5.0,
)
@option("--top N", "Number of shards in each list.", click.IntRange(min=0), default=10)
@option(
    "--timeout S",
    "Seconds after which a server is not read.",
    FiniteRange(1, 3600),
    default=60.0,
)
@data_option
@pass_settings
def capacity_command(
    settings: Settings,
    /,
    since: Path | None,
    servers: int | None,
    keyspace: str | None,
    as_data: bool,
    **options: Any,
) -> None:
    """Show sizes, growth and activity of servers and shards.

    The top shards are those with the most bytes, statements and rows.  Bytes
    and rows are estimates of the servers.
    """
    from sqla_shard.fleet.capacity import measure, suggest

    fleet = fleet_of(settings)
    report = measure(fleet, **options)
    if since is not None:
        remedy = "make it with: sqla-shard fleet capacity --json"
        report = report.since(read_json(since, remedy))
    lines = []
    if servers is not None:
        name = keyspace or fleet.topology().sole("objects").name
        lines = suggest(report, name, servers=servers)
    if as_data:
        print_data({**report.as_dict(), "splits": lines})
    else:
        echo(report)
        for line in lines:
            echo(line)
    end(is_good=True, is_read=not report.unreachable)


@command(
    "verify",
    "sqla-shard fleet verify sharddb001",
    "sqla-shard fleet verify sharddb001 --shards 0-511 \\",
    "    --against mysql://10.0.0.7:3306 --json",
)
@click.argument("server", shell_complete=completed("server"))
@option(
    "--against URL",
    "Compare with this server, such as mysql://10.0.0.7:3306, instead of the standby.",
)
@option(
    "--no-replication",
    "Compare each server at a point of its own; neither should be "
    "written.  Default for a server that does not replicate from SERVER.",
)
@option("--databases NAMES", "Only these databases, comma-separated.")
@option(
    "--shards RANGES",
    "Only these virtual shards, such as 0-511,600.",
    shell_complete=completed("ranges"),
)
@option("--threads N", "Sessions on each server.", click.IntRange(1, 64), default=2)
@option(
    "--rate N",
    "Read at most N rows per second on each server.",
    FiniteRange(0, is_open=True),
)
@option(
    "--snapshot S",
    "Seconds after which the rest is compared at another point.",
    FiniteRange(1),
    to="seconds",
    default=600.0,
)
@option(
    "--most N",
    "Differences in the JSON document, and rows to compare again; "
    "otherwise all differences are printed.",
    click.IntRange(min=0),
    default=1000,
)
@option(
    "--limit S",
    "Seconds after which it ends, and prints which shards are left.",
    FiniteRange(1),
)
@option("--values", "Print the values of rows that differ.")
@option("--no-counters", "Do not compare AUTO_INCREMENT.")
@data_option
@pass_settings
def verify_command(
    settings: Settings,
    /,
    server: str,
    against: str | None,
    no_replication: bool,
    databases: str | None,
    shards: str | None,
    no_counters: bool,
    as_data: bool,
    **options: Any,
) -> None:
    """Compare the content of SERVER with its standby, while both serve.

    Every row of every table is read.  The exit status is 0 if all is equal, 1
    if something differs, and 3 if something could not be read.
    """
    from sqla_shard.cli.failures import one_line
    from sqla_shard.exc import (
        ApplierStoppedError,
        FleetLockedError,
        FleetServerError,
        OperationRefusedError,
    )
    from sqla_shard.fleet.compare import CompareOptions, verify_data

    if databases is not None and shards is not None:
        raise click.UsageError("--databases and --shards exclude each other")
    fleet = fleet_of(settings)
    chosen = None
    if shards is not None:
        chosen = _databases_of(fleet, server, shards)
    elif databases is not None:
        chosen = [name.strip() for name in databases.split(",")]
    name = "the other server" if against else "the standby"
    compare = CompareOptions(
        counters=not no_counters,
        on_difference=None if as_data else partial(_show_difference, name),
        on_progress=ProgressLines(str),
        **options,
    )
    try:
        with terminable():
            report = verify_data(
                fleet,
                server,
                against=against,
                databases=chosen,
                replicates=False if no_replication else None,
                options=compare,
            )
    except (
        ApplierStoppedError,
        FleetLockedError,
        FleetServerError,
        OperationRefusedError,
    ) as error:
        echo(f"sqla-shard: error: {one_line(error)}", err=True)
        sys.exit(NOT_READ)
    if as_data:
        print_data(report)
    else:
        echo(report.summary())
        if report.late:
            echo(_left(fleet, server, report.late))
    end(is_good=not report.found, is_read=not report.unread)


def _databases_of(fleet: Fleet, server: str, shards: str) -> list[str]:
    from sqla_shard.fleet.fleet import pair_named
    from sqla_shard.schema.selection import parse_shards

    wanted = set(parse_shards(shards))
    found = [
        keyspace.database_for(shard_id)
        for keyspace, entry in pair_named(fleet.topology(), server).members
        for part in entry.shards
        for shard_id in part
        if shard_id in wanted
    ]
    if not found:
        raise click.BadParameter(
            f"{server} has none of the shards {shards}", param_hint="--shards"
        )
    return found


def _left(fleet: Fleet, server: str, late: Sequence[str]) -> str:
    """Return how to compare what there was no time for."""
    from sqla_shard.fleet.fleet import pair_named, shard_of
    from sqla_shard.topology.keyspaces import as_ranges

    topology = fleet.topology()
    rest = ["--databases", ",".join(late)]
    # Of an orphan the option --shards would choose nothing.
    if {*late} <= {*pair_named(topology, server).databases()}:
        places = (shard_of(topology, name) for name in late)
        shards = sorted({place[1] for place in places if place is not None})
        rest = ["--shards", as_ranges(shards, len(shards)).replace(" ", "")]
    words = ["sqla-shard", "fleet", "verify", server, *rest, *_given()]
    return f"{len(late):,} databases are left; compare them with: {shlex.join(words)}"


def _given() -> Iterator[str]:
    """Yield the options of this command, but those that choose databases."""
    from sqla_shard.fleet.fleet import bare_url

    context = click.get_current_context()
    for parameter in context.command.params:
        name = str(parameter.name)
        if (
            isinstance(parameter, click.Option)
            and name in context.params.keys() - {"databases", "shards"}
            and context.get_parameter_source(name) == ParameterSource.COMMANDLINE
        ):
            yield parameter.opts[-1]
            if not parameter.is_flag:
                value = context.params[name]
                text = f"{value:.15g}" if isinstance(value, float) else str(value)
                yield bare_url(text)


def _show_difference(second: str, difference: Difference) -> None:
    echo(difference.described(second))


@command(
    "watch",
    "sqla-shard fleet watch --dry-run",
    "sqla-shard fleet watch --watchers 3 --hook 'page-operator --urgent'",
)
@option(
    "--watchers N",
    "Number of watchers that you run; a majority must agree.",
    click.IntRange(min=1),
    default=3,
)
@option(
    "--dead-after S",
    "Seconds for which they must not have seen a primary.",
    FiniteRange(0.1),
    default=3.0,
)
@option(
    "--interval S",
    "Seconds between two looks.",
    FiniteRange(0.1),
    to="every",
    default=0.5,
)
@option(
    "--hold-off S",
    "Seconds after a failover of a server before the next.",
    FiniteRange(0.0),
    default=3600.0,
)
@option("--allow-loss", "Act even if acknowledged writes may be lost.")
@option("--dry-run", "Report only; change nothing.")
@option(
    "--hook COMMAND",
    "Run it for each new line, which SQLA_SHARD_WATCH has, without "
    "passwords, for 60 seconds at most.",
    default="",
    show_default=False,
)
@data_option
@pass_settings
def watch_command(
    settings: Settings, /, hook: str, as_data: bool, **conditions: Any
) -> None:
    """Promote the standby of a primary that is lost.

    Run three, on machines that fail independently.  It acts only if a
    majority does not see the primary and nothing acknowledged is lost.  The
    topology must be in ZooKeeper.
    """
    from sqla_shard.cli.service_loop import make_passes, Passes, StopFlag
    from sqla_shard.fleet.watcher import SESSION, Watcher, WatchPolicy

    try:
        words = shlex.split(hook)
    except ValueError as error:
        raise click.BadParameter(
            f"{hook!r} cannot be split into words: {error}", param_hint="--hook"
        ) from error
    policy = WatchPolicy(hook=words, **conditions)
    fleet = fleet_of(settings, session_timeout=SESSION)
    with StopFlag() as until, Watcher(fleet, policy) as watcher:
        passes = Passes(
            make=watcher.look,
            has_more=lambda report: False,
            has_changes=lambda report: False,
            is_read=lambda report: not report.troubles,
            problems=lambda report: (*report.lines, *report.troubles),
            state=attrgetter("state"),
        )
        make_passes(passes, until, policy.every, as_data)
