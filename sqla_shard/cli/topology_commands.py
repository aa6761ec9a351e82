"""``sqla-shard topology``: show, validate and diff."""

from __future__ import annotations

import sys

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from sqla_shard.cli.options import LOCATION
from sqla_shard.cli.options import pass_settings
from sqla_shard.cli.options import Settings
from sqla_shard.cli.output import echo
from sqla_shard.cli.output import examples
from sqla_shard.cli.output import json_option
from sqla_shard.cli.output import print_json
from sqla_shard.cli.output import print_report
from sqla_shard.exc import TopologyError
from sqla_shard.topology import describe
from sqla_shard.topology import diff
from sqla_shard.topology import Keyspace
from sqla_shard.topology import Server
from sqla_shard.topology import Topology
from sqla_shard.topology.generations import cautions

__all__ = [
    "diff_command",
    "show_command",
    "validate_command",
]

_COLUMNS = (
    "server",
    "shards",
    "weight",
    "generation",
    "primary",
    "standby",
)


@click.command(
    "show",
    epilog=examples(
        "sqla-shard topology show",
        "sqla-shard -t production.toml topology show --json",
    ),
)
@json_option
@pass_settings
def show_command(settings: Settings, as_json: bool) -> None:
    """Show keyspaces, servers and their shards.

    The output is a table on a terminal, else plain lines.  The JSON document
    has the format of a topology file.  Passwords in URLs are shown as ***.
    """
    topology = settings.topology()
    if as_json:
        print_json(topology.redacted().to_mapping())
    elif sys.stdout.isatty():
        _print_tables(topology.redacted())
    else:
        echo(describe(topology))


@click.command(
    "validate",
    epilog=examples(
        "sqla-shard topology validate",
        "sqla-shard topology validate next.toml --environment",
    ),
)
@click.argument("file", metavar="[FILE]", required=False, type=LOCATION)
@click.option(
    "--environment",
    is_flag=True,
    help="Also check that the environment has a value for each ${NAME}.",
)
@json_option
@pass_settings
def validate_command(
    settings: Settings,
    file: str | None,
    environment: bool,
    as_json: bool,
) -> None:
    """List all problems of a topology, one per line.

    The default FILE is that of --topology.  The status is 1 if there are any
    problems.
    """
    path = file or settings.location
    try:
        topology = settings.topology(path, connects=environment)
    except TopologyError as error:
        found = error
    else:
        if as_json:
            print_json({"source": path, "problems": []})
        else:
            echo(f"{path}: no problems in {topology!r}")
        return
    problems = [
        {"place": one.place, "message": " ".join(one.message.splitlines())}
        for one in found.problems
    ]
    if as_json:
        print_json({"source": found.source, "problems": problems})
    else:
        for one in problems:
            echo(f"{found.source}: {one['place']}: {one['message']}")
    sys.exit(1)


@click.command(
    "diff",
    epilog=examples(
        "sqla-shard topology diff topology.toml next.toml",
        "sqla-shard topology diff topology.toml next.toml --exit-code",
    ),
)
@click.argument("old", type=LOCATION)
@click.argument("new", type=LOCATION)
@click.option(
    "--exit-code",
    is_flag=True,
    help="Exit with status 1 if anything differs, even only the epoch.",
)
@json_option
@pass_settings
def diff_command(
    settings: Settings, old: str, new: str, exit_code: bool, as_json: bool
) -> None:
    """Show the changes from the topology OLD to NEW.

    Print a warning if a primary changes and its generation does not.
    """
    before, after = settings.topology(old), settings.topology(new)
    found = diff(before, after)
    print_report(found, as_json)
    for caution in cautions(before, after):
        echo(f"warning: {caution}", err=True)
    changed = not found.is_empty or found.old_epoch != found.new_epoch
    if exit_code and changed:
        sys.exit(1)


def _print_tables(topology: Topology) -> None:
    console = Console(highlight=False)
    # Print the first line, which contains the epoch.
    console.print(Text(describe(topology).partition("\n")[0]))
    for keyspace in topology.keyspaces.values():
        console.print(_table(keyspace))


def _table(keyspace: Keyspace) -> Table:
    servers = keyspace.servers
    title = f"{keyspace.name}: kind {keyspace.kind}"
    shown = ["server", "primary"]
    if keyspace.kind == "global":
        title += f", database {keyspace.database}"
    else:
        title += f", {keyspace.shards} shards, databases {keyspace.database}"
        shown.append("shards")
    if any(server.weight != 1.0 for server in servers):
        shown.append("weight")
    if any(server.generation is not None for server in servers):
        shown.append("generation")
    if any(server.standby for server in servers):
        shown.append("standby")
    table = Table(title=Text(title), title_justify="left")
    for column in _COLUMNS:
        if column in shown:
            table.add_column(Text(column), overflow="fold")
    for server in servers:
        cells = _cells(server)
        # Use Text, since rich treats brackets in a str as a style.
        table.add_row(*(Text(cells[c]) for c in _COLUMNS if c in shown))
    return table


def _cells(server: Server) -> dict[str, str]:
    ranges = (
        str(one.first) if len(one) == 1 else f"{one.first} to {one.last}"
        for one in server.shards
    )
    return {
        "server": server.name,
        "shards": ", ".join(ranges),
        "weight": f"{server.weight:g}",
        "generation": ""
        if server.generation is None
        else str(server.generation),
        "primary": server.primary,
        "standby": server.standby or "",
    }
