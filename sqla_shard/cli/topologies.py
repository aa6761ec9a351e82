"""``sqla-shard topology``: show, validate, diff; the rest is added to it."""

from __future__ import annotations

import sys

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from sqla_shard.cli.printing import echo
from sqla_shard.cli.printing import examples
from sqla_shard.cli.printing import json_option
from sqla_shard.cli.printing import print_json
from sqla_shard.cli.settings import LOCATION
from sqla_shard.cli.settings import pass_settings
from sqla_shard.cli.settings import Settings
from sqla_shard.exc import TopologyError
from sqla_shard.topology import describe
from sqla_shard.topology import diff
from sqla_shard.topology import Keyspace
from sqla_shard.topology import Server
from sqla_shard.topology import Topology
from sqla_shard.topology.generations import cautions

__all__ = ["topology_group"]

_COLUMNS = (
    "server",
    "shards",
    "weight",
    "generation",
    "primary",
    "standby",
)


@click.group("topology")
def topology_group() -> None:
    """Show, check and compare topologies; publish and follow them.

    A topology is a file, or what is published in a ZooKeeper, as
    zookeeper://host:port,host:port/path.  No server of the topology is
    connected to, and no password of one is needed.
    """


@topology_group.command(
    "show",
    epilog=examples(
        "sqla-shard topology show",
        "sqla-shard -t production.toml topology show --json",
    ),
)
@json_option
@pass_settings
def show_command(settings: Settings, as_json: bool) -> None:
    """Show keyspaces, servers and the shards on them.

    A table on a terminal, plain lines elsewhere.  The JSON document has the
    form of a topology file.  Passwords that were typed into URLs are ***.
    """
    topology = settings.topology()
    if as_json:
        print_json(topology.redacted().to_mapping())
    elif sys.stdout.isatty():
        _print_tables(topology.redacted())
    else:
        echo(describe(topology))


@topology_group.command(
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
    help="Every ${NAME} must have a value in the environment, too.",
)
@json_option
@pass_settings
def validate_command(
    settings: Settings,
    file: str | None,
    environment: bool,
    as_json: bool,
) -> None:
    """Check a topology, and list all of its problems.

    One line for each problem; the status is 1 when there is one.  FILE is
    the topology of the other commands unless it is named.
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


@topology_group.command(
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
    help="End with status 1 when anything, even the epoch, is different.",
)
@json_option
@pass_settings
def diff_command(
    settings: Settings, old: str, new: str, exit_code: bool, as_json: bool
) -> None:
    """Tell what changes from the topology OLD to NEW.

    It warns where a primary changes and its generation does not.
    """
    before, after = settings.topology(old), settings.topology(new)
    found = diff(before, after)
    if as_json:
        print_json(found.to_mapping())
    else:
        echo(str(found))
    for caution in cautions(before, after):
        echo(f"warning: {caution}", err=True)
    changed = not found.is_empty or found.old_epoch != found.new_epoch
    if exit_code and changed:
        sys.exit(1)


def _print_tables(topology: Topology) -> None:
    console = Console(highlight=False)
    # The line of the epoch.
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
        # As Text, for rich would take what stands in brackets for a style.
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
