"""``sqla-shard fleet doctor`` and ``capacity``: reports over all servers."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from sqla_shard.cli.fleet_plans import fleet_of
from sqla_shard.cli.options import FiniteRange, pass_settings, Settings
from sqla_shard.cli.output import (
    data_option,
    echo,
    end,
    examples,
    FAILED,
    NOT_READ,
    print_data,
    print_report,
)
from sqla_shard.exc import FleetSetupError
from sqla_shard.fleet.capacity import measure, suggest
from sqla_shard.fleet.doctor import check_names, examine
from sqla_shard.util.json_values import parsed_json


@click.command(
    "doctor",
    epilog=examples(
        "sqla-shard fleet doctor",
        "sqla-shard fleet doctor --fail-on critical --json",
        "sqla-shard fleet doctor --other mysql001a:3306",
    ),
)
@click.option(
    "--fail-on",
    "least",
    type=click.Choice(["critical", "warning"]),
    default="warning",
    help="Severity from which the exit status is 1.",
)
@click.option(
    "--other",
    "others",
    metavar="HOST:PORT",
    multiple=True,
    help="A server outside of the topology, such as a former primary; repeatable.",
)
@click.option(
    "--timeout",
    metavar="S",
    type=FiniteRange(least=1, most=3600),
    default=15.0,
    help="Seconds after which a server that has not responded is unknown.",
)
@click.option(
    "--ignore",
    "ignored",
    metavar="CHECK",
    type=click.Choice(check_names()),
    multiple=True,
    help="Do not do this check, such as silent-disks; repeatable.",
)
@data_option
@pass_settings
def doctor_command(
    settings: Settings,
    least: str,
    others: tuple[str, ...],
    timeout: float,
    ignored: tuple[str, ...],
    as_data: bool,
) -> None:
    """Check all servers of the fleet; change nothing.

    The worst findings are first, each with what to do.  The exit status is 1
    if there is a critical finding or a warning, and 3 if something could not
    be read.
    """
    report = examine(
        fleet_of(settings),
        others=others,
        environ=os.environ,
        timeout=timeout,
        ignored=ignored,
    )
    print_report(report, as_data)
    if not report.complete:
        sys.exit(NOT_READ)
    found = {finding.severity for finding in report.findings}
    if "critical" in found or least in found:
        sys.exit(FAILED)


@click.command(
    "capacity",
    epilog=examples(
        "sqla-shard fleet capacity",
        "sqla-shard fleet capacity --json > capacity.json",
        "sqla-shard fleet capacity --since capacity.json",
        "sqla-shard fleet capacity --servers 8",
    ),
)
@click.option(
    "--since",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="An earlier output of --json: show the growth since then.",
)
@click.option(
    "--servers",
    metavar="N",
    type=click.IntRange(min=1),
    help="Print the commands that divide a keyspace among N servers.",
)
@click.option(
    "--keyspace",
    metavar="NAME",
    help="The keyspace of --servers.  [default: the only one of objects]",
)
@click.option(
    "--window",
    metavar="S",
    type=FiniteRange(least=0, most=3600),
    default=5.0,
    help="Seconds for which activity is measured; 0 for none.",
)
@click.option(
    "--top",
    metavar="N",
    type=click.IntRange(min=0),
    default=10,
    help="Number of shards in each list.",
)
@click.option(
    "--timeout",
    metavar="S",
    type=FiniteRange(least=1, most=3600),
    default=60.0,
    help="Seconds after which a server is not read.",
)
@data_option
@pass_settings
def capacity_command(
    settings: Settings,
    since: Path | None,
    servers: int | None,
    keyspace: str | None,
    window: float,
    top: int,
    timeout: float,
    as_data: bool,
) -> None:
    """Show sizes, growth and activity of servers and shards.

    The top shards are those with the most bytes, statements and rows.  Bytes
    and rows are estimates of the servers.
    """
    fleet = fleet_of(settings)
    report = measure(fleet, window=window, top=top, timeout=timeout)
    if since is not None:
        report = report.since(_document(since))
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
    end(is_good=True, is_read=not report.unread)


def _document(path: Path) -> object:
    try:
        return parsed_json(path.read_bytes())
    except ValueError as error:
        raise FleetSetupError(
            f"{path} is not JSON ({error}); make it with: sqla-shard fleet "
            "capacity --json"
        ) from error
