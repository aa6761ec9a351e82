"""``sqla-shard topology``: topologies in files, and in ZooKeeper."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from typing import Any, TYPE_CHECKING, TypeAlias

import click

from sqla_shard.cli.options import completed, LOCATION, pass_settings, Settings
from sqla_shard.cli.output import (
    command,
    data_option,
    echo,
    end,
    option,
    print_data,
    print_report,
    print_table,
    with_options,
)

if TYPE_CHECKING:
    from sqla_shard.topology import Keyspace, Server, Topology
    from sqla_shard.topology.history import HistoryEntry
    from sqla_shard.topology.zookeeper.publications import Publication
    from sqla_shard.topology.zookeeper.publisher import Publisher

_COLUMNS = ("server", "shards", "weight", "generation", "primary", "standby")

_HISTORY = ("epoch", "published", "bytes", "author", "message")


@command(
    "show",
    "sqla-shard topology show",
    "sqla-shard -t production.toml topology show --json",
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


@command(
    "validate",
    "sqla-shard topology validate",
    "sqla-shard topology validate next.toml --environment",
)
@click.argument("file", metavar="[FILE]", required=False, type=LOCATION)
@option(
    "--environment", "Also check that the environment has a value for each ${NAME}."
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
    from sqla_shard.exc import TopologyError

    source = file or settings.location
    problems = []
    try:
        topology = settings.topology(source, connects=environment)
    except TopologyError as error:
        source = error.source
        problems = [
            {"place": one.place, "message": " ".join(one.message.splitlines())}
            for one in error.problems
        ]
    if as_data:
        print_data({"source": source, "problems": problems})
    elif not problems:
        echo(f"{source}: no problems in {topology!r}")
    else:
        for one in problems:
            echo(f"{source}: {one['place']}: {one['message']}")
    end(is_good=not problems, is_read=True)


@command(
    "diff",
    "sqla-shard topology diff topology.toml next.toml",
    "sqla-shard topology diff topology.toml next.toml --exit-code",
)
@click.argument("old", type=LOCATION)
@click.argument("new", type=LOCATION)
@option("--exit-code", "Exit with status 1 if anything differs, even only the epoch.")
@data_option
@pass_settings
def diff_command(
    settings: Settings, old: str, new: str, exit_code: bool, as_data: bool
) -> None:
    """Show the changes from the topology OLD to NEW.

    Print a warning if a primary changes and its generation does not.
    """
    from sqla_shard.topology import diff
    from sqla_shard.topology.generations import cautions

    before, after = settings.topology(old), settings.topology(new)
    found = diff(before, after)
    print_report(found, as_data)
    for caution in cautions(before, after):
        echo(f"warning: {caution}", err=True)
    is_same = found.is_empty and found.old_epoch == found.new_epoch
    end(is_good=is_same or not exit_code, is_read=True)


@command(
    "history",
    "sqla-shard -t zookeeper://zk1,zk2,zk3/prod topology history",
    "sqla-shard topology history --json",
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
    from sqla_shard.topology.follow import is_zookeeper

    if not is_zookeeper(settings.location):
        # Publishing in ZooKeeper needs none of the fleet operations.
        from sqla_shard.fleet.journal import FileJournal

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
    from sqla_shard.topology import describe

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


# -- Publishing in ZooKeeper


def _checked_note(
    ctx: click.Context, param: click.Parameter, value: str | None
) -> str | None:
    if value is None:
        return None
    from sqla_shard.topology.history import LONGEST_NOTE

    if len(value) > LONGEST_NOTE:
        raise click.BadParameter(
            f"must have at most {LONGEST_NOTE} characters, not {len(value)}"
        )
    return value


_acl_option = option(
    "--acl SCHEME:ID:PERMISSIONS",
    "ACL of the nodes that are created, such as world:anyone:r; "
    "repeatable.  By default, that of the published topology.",
    multiple=True,
)
_publish_options = with_options(
    _acl_option,
    option(
        "--renamed",
        "Primaries with a new address are the same machines: do not "
        "raise their generations.",
    ),
    option(
        "--force",
        "Publish although a fleet operation is pending, which may then "
        "have to be undone.",
    ),
    option(
        "-m --message TEXT",
        "Why it is published, for the history.",
        callback=_checked_note,
    ),
    option(
        "--author NAME",
        "Who publishes it, for the history.  [default: user@host]",
        callback=_checked_note,
    ),
    option("--yes", "Publish without confirmation; required without a terminal."),
    option("--dry-run", "Check everything and show the changes; write nothing."),
    option(
        "--check-servers",
        "Publish only if each server responds, has its databases at the revision of "
        "the others, and is writable, or read-only if it is a standby.",
        to="checks",
    ),
    data_option,
)

#: Seconds for each server with --check-servers.
_TIMEOUT = 10.0


#: A method of the publisher, which is first called with ``dry_run=True``.
_Publish: TypeAlias = "Callable[..., Publication]"


@command(
    "push",
    "sqla-shard -t zookeeper://zk1,zk2,zk3/prod topology push next.toml",
    "sqla-shard topology push next.toml --to zookeeper://zk1/prod --dry-run",
    "sqla-shard topology push next.toml --check-servers -m 'server 3'",
)
@click.argument("file", type=LOCATION)
@option("--to URL", "ZooKeeper to publish in, if not that of --topology.", LOCATION)
@option(
    "--expect-epoch N",
    "Publish only if this epoch is the published one.",
    click.IntRange(min=0),
    to="expected",
    shell_complete=completed("epoch"),
)
@option("--next-epoch", "Publish with the next epoch, ignoring that of the file.")
@_publish_options
@pass_settings
def push_command(
    settings: Settings, /, file: str, to: str | None, next_epoch: bool, **options: Any
) -> None:
    """Publish the topology in FILE in ZooKeeper.

    It is refused if it would drop shards, rename databases or give shards a
    second primary, if its epoch is not higher than the published one, and if
    it contains a password.  Publishing the same topology again does nothing
    and succeeds.  No data is moved.
    """
    location = settings.zookeeper(to)
    topology = settings.topology(file)

    def publish(publisher: Publisher) -> _Publish:
        given = topology
        if next_epoch:
            given = _with_next_epoch(publisher, topology)
        return partial(publisher.publish, given)

    _publish(settings, publish, location=location, **options)


@command(
    "rollback",
    "sqla-shard -t zookeeper://zk1,zk2/prod topology rollback --to 41",
    "sqla-shard topology rollback --to 41 --dry-run",
)
@option(
    "--to EPOCH",
    "Epoch to publish again, from the history.",
    click.IntRange(min=0),
    to="epoch",
    required=True,
    shell_complete=completed("epoch"),
)
@_publish_options
@pass_settings
def rollback_command(settings: Settings, /, epoch: int, **options: Any) -> None:
    """Publish an older topology again, with a new epoch.

    It is checked as by push; so it cannot close shards that were opened
    since.  No data is moved: if shards or primaries change, rows written
    since remain on the newer servers.
    """
    _publish(
        settings, lambda publisher: partial(publisher.rollback, to=epoch), **options
    )


@command(
    "reset",
    "sqla-shard topology reset good.toml --dry-run",
    "sqla-shard -t zookeeper://zk1,zk2/prod topology reset good.toml",
)
@click.argument("file", type=LOCATION)
@_publish_options
@pass_settings
def reset_command(settings: Settings, /, file: str, **options: Any) -> None:
    """Publish the topology in FILE with any epoch, even a lower one.

    Use it if the published epoch is too high to be followed by another one.
    The number of resets is raised, so that running processes and snapshots
    accept the lower epoch.  Otherwise it is checked as by push.  Topologies
    with this epoch or a higher one are deleted from the history.
    """
    topology = settings.topology(file)
    _publish(settings, lambda publisher: partial(publisher.reset, topology), **options)


@command(
    "protect",
    "sqla-shard topology protect --dry-run",
    "sqla-shard topology protect --acl auth::cdrwa --acl digest:reader:HASH:r",
)
@option("--dry-run", "Show the changes; write nothing.")
@_acl_option
@data_option
@pass_settings
def protect_command(
    settings: Settings, dry_run: bool, acl: tuple[str, ...], as_data: bool
) -> None:
    """Restrict who can change the topology and its history.

    Anyone who can change them can obtain the passwords of the databases.
    The topology gets the ACL of --acl.  Without --acl, if anyone can change
    it, only the credentials of this command get all permissions, and anyone
    can read it.  The history gets the ACL of the topology, and so does their
    parent node if anyone can change it.
    """
    from sqla_shard.exc.base import shortened_list
    from sqla_shard.topology.zookeeper.publisher import Publisher

    with Publisher(
        settings.zookeeper(), acl=acl, placeholders=settings.placeholders
    ) as publisher:
        done = publisher.protect(dry_run=dry_run)
        # These can include the root, which other applications use.
        left = [] if dry_run else publisher.open_nodes()
    if as_data:
        print_data(
            {"dry_run": dry_run, "nodes": [asdict(one) for one in done], "open": left}
        )
    else:
        for one in done:
            new = "would be protected" if one.new is None else one.new
            echo(f"{one.path}: {one.old} -> {new}")
        if not done:
            echo("all nodes are already protected")
    if left:
        raise click.ClickException(
            f"anyone can still change {shortened_list(left, 3)}; publish at "
            "another path, such as /prod, or set the ACL of the node yourself"
        )


def _with_next_epoch(publisher: Publisher, topology: Topology) -> Topology:
    """Return the topology with the next epoch."""
    last = publisher.last_epoch()
    same = replace(topology, epoch=max(last, 0))
    if publisher.has(same):
        return same
    # 0 would be confused with a missing epoch.
    return replace(topology, epoch=max(last + 1, 1))


def _publish(
    settings: Settings,
    method: Callable[[Publisher], _Publish],
    *,
    location: str | None = None,
    expected: int | None = None,
    acl: tuple[str, ...],
    renamed: bool,
    force: bool,
    checks: bool,
    message: str | None,
    author: str | None,
    yes: bool,
    dry_run: bool,
    as_data: bool,
) -> None:
    """Show the changes, ask for confirmation, publish, print the result.

    :param method: returns a method of the publisher, bound to its topology.
    """
    from sqla_shard.topology.history import current_author, PublicationNote
    from sqla_shard.topology.zookeeper.publications import NOT_PUBLISHED
    from sqla_shard.topology.zookeeper.publisher import Publisher

    with Publisher(
        location or settings.zookeeper(), acl=acl, placeholders=settings.placeholders
    ) as publisher:
        publish = partial(
            method(publisher),
            renamed=renamed,
            force=force,
            note=PublicationNote(author=author or current_author(), message=message),
        )
        planned = publish(expected_epoch=expected, dry_run=True)
        if not as_data:
            echo(_changes_text(publisher, planned))
        _warn(planned)
        if checks:
            _check_servers(planned.new, as_data)
        if dry_run or planned.new == planned.old:
            done = planned
        else:
            if not yes:
                _confirm(publisher, planned, as_data)
            # Fails if another topology was published after the one shown.
            was = NOT_PUBLISHED if planned.old is None else planned.old.epoch
            done = publish(expected_epoch=was)
        _warn_of_open_nodes(publisher)
        if as_data:
            print_data(_document(publisher, done, dry_run))
        elif done.is_published:
            echo(f"published epoch {done.new.epoch} at {publisher.name}")
        elif dry_run:
            echo("dry run: nothing was published")
        else:
            echo(f"epoch {done.new.epoch} is already published")


def _check_servers(topology: Topology, as_data: bool) -> None:
    """End the command if a server is not ready for a topology."""
    # Publishing itself needs no driver.
    from sqla_shard import Cluster
    from sqla_shard.fleet.publish_checks import server_faults
    from sqla_shard.monitor.fleet_metrics import FleetMetrics

    options = FleetMetrics.options(topology, _TIMEOUT)
    with Cluster(topology, engine_options=options) as cluster:
        found = server_faults(cluster, os.environ, timeout=_TIMEOUT)
    if not found:
        return
    if as_data:
        print_data({"published": False, "faults": found})
    for one in found:
        echo(f"refused: {one}", err=True)
    end(is_good=False, is_read=all(one.is_read for one in found))


def _changes_text(publisher: Publisher, planned: Publication) -> str:
    """Return the changes, and a line for each raised generation."""
    from sqla_shard.topology import describe

    changes = str(planned.diff)
    if planned.diff is None:
        changes = f"first topology at {publisher.name}\n{describe(planned.new)}"
    return "\n".join([changes, *map(str, planned.generations)])


def _warn(planned: Publication) -> None:
    from sqla_shard.topology.generations import cautions

    found = planned.diff
    if found is None:
        return
    primaries = any(one.role == "primary" for one in found.urls)
    changes = ["shards move"] if found.moved else []
    if primaries:
        changes.append("primaries change")
    if changes:
        echo(
            f"warning: {' and '.join(changes)}, but publishing moves no "
            "data: move it first, and stop writes to the old servers",
            err=True,
        )
    if planned.old is not None:
        for caution in cautions(planned.old, planned.new):
            echo(f"warning: {caution}", err=True)


def _warn_of_open_nodes(publisher: Publisher) -> None:
    from sqla_shard.exc.base import shortened_list

    if found := publisher.open_nodes():
        echo(
            f"warning: anyone can change {shortened_list(found, 3)} and so "
            "redirect the passwords of the databases to another server; "
            "protect them with: sqla-shard topology protect",
            err=True,
        )


def _confirm(publisher: Publisher, planned: Publication, as_data: bool) -> None:
    if not sys.stdin.isatty():
        raise click.UsageError(
            "cannot ask for confirmation without a terminal; add --yes, or "
            "--dry-run to show the changes only"
        )
    if as_data:
        echo(_changes_text(publisher, planned), err=True)
    click.confirm(
        f"publish epoch {planned.new.epoch} at {publisher.name}?", abort=True, err=True
    )


def _document(publisher: Publisher, done: Publication, dry_run: bool) -> dict[str, Any]:
    return {
        "location": publisher.name,
        "old_epoch": None if done.old is None else done.old.epoch,
        "new_epoch": done.new.epoch,
        "dry_run": dry_run,
        "published": done.is_published,
        "diff": None if done.diff is None else done.diff.as_dict(),
        "generations": [asdict(one) for one in done.generations],
    }
