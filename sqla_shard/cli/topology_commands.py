"""``sqla-shard topology``: show, validate, diff and history."""

from __future__ import annotations

import sys

import click

from sqla_shard.cli.options import LOCATION, pass_settings, Settings
from sqla_shard.cli.output import (
    data_option,
    echo,
    examples,
    print_data,
    print_report,
    print_table,
)
from sqla_shard.exc import TopologyError
from sqla_shard.topology import describe, diff, Keyspace, Server, Topology
from sqla_shard.topology.follow import is_zookeeper
from sqla_shard.topology.generations import cautions
from sqla_shard.topology.publication_notes import HistoryEntry

_COLUMNS = ("server", "shards", "weight", "generation", "primary", "standby")

_HISTORY = ("epoch", "published", "bytes", "author", "message")


@click.command(
    "show",
    epilog=examples(
        "sqla-shard topology show", "sqla-shard -t production.toml topology show --json"
    ),
)
@data_option
@pass_settings
def show_command(settings: Settings, as_data: bool) -> None:
    """Show keyspaces, servers and their shards.

    The output is a table on a terminal, else plain lines.  The JSON document
    has the format of a topology file.  Passwords in URLs are shown as ***.
    """
    topology = settings.topology()
    if as_data:
        print_data(topology.redacted().to_mapping())
    else:
        _print_topology(topology.redacted())


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
@data_option
@pass_settings
def validate_command(
    settings: Settings, file: str | None, environment: bool, as_data: bool
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
        if as_data:
            print_data({"source": path, "problems": []})
        else:
            echo(f"{path}: no problems in {topology!r}")
        return
    problems = [
        {"place": one.place, "message": " ".join(one.message.splitlines())}
        for one in found.problems
    ]
    if as_data:
        print_data({"source": found.source, "problems": problems})
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
@data_option
@pass_settings
def diff_command(
    settings: Settings, old: str, new: str, exit_code: bool, as_data: bool
) -> None:
    """Show the changes from the topology OLD to NEW.

    Print a warning if a primary changes and its generation does not.
    """
    before, after = settings.topology(old), settings.topology(new)
    found = diff(before, after)
    print_report(found, as_data)
    for caution in cautions(before, after):
        echo(f"warning: {caution}", err=True)
    changed = not found.is_empty or found.old_epoch != found.new_epoch
    if exit_code and changed:
        sys.exit(1)


@click.command(
    "history",
    epilog=examples(
        "sqla-shard -t zookeeper://zk1,zk2,zk3/prod topology history",
        "sqla-shard topology history --json",
    ),
)
@data_option
@pass_settings
def history_command(settings: Settings, as_data: bool) -> None:
    """List the published topologies, newest first.

    If the topology is a file, these are the publications of fleet operations.
    """
    found = _history(settings)
    if as_data:
        print_data(
            [
                {
                    "epoch": one.epoch,
                    "published": one.published.isoformat(),
                    "bytes": one.size,
                    "author": one.author,
                    "message": one.message,
                }
                for one in found
            ]
        )
        return
    rows = [
        (
            str(one.epoch),
            one.published.isoformat(" ", "seconds"),
            f"{one.size:,}",
            one.author or "",
            " ".join((one.message or "").split()),
        )
        for one in found
    ]
    if print_table(_HISTORY, rows):
        return
    for one, (*_, author, message) in zip(found, rows, strict=True):
        when = one.published.isoformat(" ", "seconds")
        note = ": ".join(filter(None, (author, message)))
        line = f"epoch {one.epoch}: {when}, {one.size} bytes"
        echo(f"{line}, {note}" if note else line)


def _history(settings: Settings) -> list[HistoryEntry]:
    if not is_zookeeper(settings.location):
        # Publishing in ZooKeeper needs none of the fleet operations.
        from sqla_shard.fleet.file_journal import FileJournal

        return FileJournal(
            settings.location, placeholders=settings.placeholders
        ).publications()
    from sqla_shard.topology.zookeeper.publisher import Publisher

    with Publisher(
        settings.zookeeper(), placeholders=settings.placeholders
    ) as publisher:
        return publisher.history()


def _print_topology(topology: Topology) -> None:
    """Print a table of the servers of each keyspace, or lines."""
    epoch, *lines = describe(topology).split("\n")
    echo(epoch)
    for keyspace in topology.keyspaces.values():
        count = len(keyspace.servers)
        echo(lines[0])
        rows = [_cells(server, keyspace) for server in keyspace.servers]
        if not print_table(_COLUMNS, rows):
            echo("\n".join(lines[1 : 1 + count]))
        lines = lines[1 + count :]


def _cells(server: Server, keyspace: Keyspace) -> list[str]:
    """Return the cells of a server; columns without a value are left out."""
    ranges = () if keyspace.kind == "global" else server.shards
    weighs = any(one.weight != 1.0 for one in keyspace.servers)
    generation = server.generation
    return [
        server.name,
        ", ".join(one.numbers for one in ranges),
        f"{server.weight:g}" if weighs else "",
        "" if generation is None else str(generation),
        server.primary,
        server.standby or "",
    ]
