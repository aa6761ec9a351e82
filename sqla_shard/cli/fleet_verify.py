"""``sqla-shard fleet verify``: compare the content of two servers."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from time import monotonic

import click

from sqla_shard.cli.failures import one_line
from sqla_shard.cli.fleet_plans import fleet_of, terminable
from sqla_shard.cli.options import FiniteRange, pass_settings, Settings
from sqla_shard.cli.output import (
    data_option,
    echo,
    end,
    examples,
    NOT_READ,
    print_data,
    ProgressLines,
)
from sqla_shard.exc import (
    ApplierStoppedError,
    FleetLockedError,
    FleetServerError,
    OperationRefusedError,
)
from sqla_shard.fleet.compare import CompareOptions, verify_data
from sqla_shard.fleet.differences import Difference
from sqla_shard.fleet.fleet import Fleet, pair_named


@click.command(
    "verify",
    epilog=examples(
        "sqla-shard fleet verify sharddb001",
        "sqla-shard fleet verify sharddb001 --shards 0-511 \\",
        "    --against mysql://10.0.0.7:3306 --json",
    ),
)
@click.argument("server")
@click.option(
    "--against",
    metavar="URL",
    help="Compare with this server, such as mysql://10.0.0.7:3306, instead "
    "of the standby.",
)
@click.option(
    "--no-replication",
    is_flag=True,
    help="Compare each server at a point of its own; neither should be "
    "written.  Default for a server that does not replicate from SERVER.",
)
@click.option(
    "--databases", metavar="NAMES", help="Only these databases, comma-separated."
)
@click.option(
    "--shards", metavar="RANGES", help="Only these virtual shards, such as 0-511,600."
)
@click.option(
    "--threads",
    metavar="N",
    type=click.IntRange(1, 64),
    default=2,
    help="Sessions on each server.",
)
@click.option(
    "--rate",
    metavar="N",
    type=FiniteRange(least=0, is_open=True),
    help="Read at most N rows per second on each server.",
)
@click.option(
    "--snapshot",
    "seconds",
    metavar="S",
    type=FiniteRange(least=1),
    default=600.0,
    help="Seconds after which the rest is compared at another point.",
)
@click.option(
    "--most",
    metavar="N",
    type=click.IntRange(min=0),
    default=1000,
    help="Differences in the JSON document, and rows to compare again; "
    "otherwise all differences are printed.",
)
@click.option("--values", is_flag=True, help="Print the values of rows that differ.")
@click.option("--no-counters", is_flag=True, help="Do not compare AUTO_INCREMENT.")
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
    threads: int,
    rate: float | None,
    seconds: float,
    most: int,
    values: bool,
    no_counters: bool,
    as_data: bool,
) -> None:
    """Compare the content of SERVER with its standby, while both serve.

    Every row of every table is read.  The exit status is 0 if all is equal, 1
    if something differs, and 3 if something could not be read.
    """
    if databases is not None and shards is not None:
        raise click.UsageError("--databases and --shards exclude each other")
    fleet = fleet_of(settings)
    chosen = None
    if shards is not None:
        chosen = _databases_of(fleet, server, shards)
    elif databases is not None:
        chosen = [name.strip() for name in databases.split(",")]
    name = "the other server" if against else "the standby"
    options = CompareOptions(
        threads=threads,
        rate=rate,
        seconds=seconds,
        most=most,
        values=values,
        counters=not no_counters,
        on_difference=None if as_data else _lines_of(name),
        on_progress=ProgressLines(partial(_line, monotonic())),
    )
    try:
        with terminable():
            report = verify_data(
                fleet,
                server,
                against=against,
                databases=chosen,
                replicates=False if no_replication else None,
                options=options,
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
    end(is_good=not report.found, is_read=not report.unread)


def _databases_of(fleet: Fleet, server: str, shards: str) -> list[str]:
    # Importing alembic doubles the startup time.
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


def _lines_of(second: str) -> Callable[[Difference], object]:
    def show(difference: Difference) -> None:
        """Print a difference."""
        echo(difference.described(second))

    return show


def _line(began: float, rows: int) -> str:
    speed = rows / (monotonic() - began)
    return f"{rows:,} rows compared, {speed:,.0f} rows/s"
