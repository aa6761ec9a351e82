"""``sqla-shard topology``: push, history, rollback, in a ZooKeeper."""

from __future__ import annotations

import sys
from collections.abc import Callable
from collections.abc import Sequence
from dataclasses import asdict
from dataclasses import replace
from functools import partial
from typing import Any
from typing import TypeVar

import click

from sqla_shard.cli.printing import echo
from sqla_shard.cli.printing import examples
from sqla_shard.cli.printing import json_option
from sqla_shard.cli.printing import print_json
from sqla_shard.cli.settings import LOCATION
from sqla_shard.cli.settings import pass_settings
from sqla_shard.cli.settings import Settings
from sqla_shard.following import NOT_PUBLISHED
from sqla_shard.following import Publication
from sqla_shard.following import Publisher
from sqla_shard.topology import describe
from sqla_shard.topology import Topology
from sqla_shard.topology.generations import cautions

__all__ = [
    "history_command",
    "protect_command",
    "push_command",
    "reset_command",
    "rollback_command",
]

F = TypeVar("F", bound=Callable[..., Any])

#: Publishes, or with ``dry_run=True`` tells what would be published.
_Publish = Callable[..., Publication]


_acl_option = click.option(
    "--acl",
    metavar="SCHEME:ID:PERMISSIONS",
    multiple=True,
    help="Who may do what with nodes that are made, as world:anyone:r; "
    "repeatable.  By default they are as protected as the topology that is "
    "there.",
)


def _writes(command: F) -> F:
    """Give a command the options of those that publish."""
    for option in (
        click.option(
            "--dry-run",
            is_flag=True,
            help="Check everything and show the difference; write nothing.",
        ),
        click.option(
            "--yes", is_flag=True, help="Do not ask before publishing."
        ),
        click.option(
            "--renamed",
            is_flag=True,
            help="Primaries that change are the same machines by other "
            "names: their generations stay.",
        ),
        _acl_option,
    ):
        command = option(command)
    return command


@click.command(
    "push",
    epilog=examples(
        "sqla-shard -t zookeeper://zk1,zk2,zk3/prod topology push next.toml",
        "sqla-shard topology push next.toml --to zookeeper://zk1/prod "
        "--dry-run",
    ),
)
@click.argument("file", type=LOCATION)
@click.option(
    "--to",
    metavar="URL",
    type=LOCATION,
    help="The ZooKeeper, when it is not that of --topology.",
)
@click.option(
    "--expect-epoch",
    "expected",
    metavar="N",
    type=click.IntRange(min=0),
    help="Publish only in place of this epoch, from which FILE was made.",
)
@click.option(
    "--next-epoch",
    is_flag=True,
    help="Give it the next epoch, whatever the file says.",
)
@_writes
@json_option
@pass_settings
def push_command(
    settings: Settings,
    file: str,
    to: str | None,
    expected: int | None,
    next_epoch: bool,
    dry_run: bool,
    yes: bool,
    renamed: bool,
    acl: tuple[str, ...],
    as_json: bool,
) -> None:
    """Publish the topology of a FILE in a ZooKeeper.

    It is compared with what is published, and refused when it would drop
    shards, rename databases, or give shards a second primary, when its epoch
    is not higher, and when a password is typed into it.  What is there
    already is not published again; that is no error.  No data is moved.
    """
    location = settings.zookeeper(to)
    topology = settings.topology(file)
    with Publisher(
        location, acl=acl, placeholders=settings.placeholders
    ) as publisher:
        if next_epoch:
            topology = _with_next_epoch(publisher, topology)
        _published(
            publisher,
            partial(publisher.publish, topology, renamed=renamed),
            expected=expected,
            dry_run=dry_run,
            yes=yes,
            as_json=as_json,
        )


@click.command(
    "rollback",
    epilog=examples(
        "sqla-shard -t zookeeper://zk1,zk2/prod topology rollback --to 41",
        "sqla-shard topology rollback --to 41 --dry-run",
    ),
)
@click.option(
    "--to",
    "epoch",
    metavar="EPOCH",
    type=click.IntRange(min=0),
    required=True,
    help="The epoch of the history whose content is wanted.",
)
@_writes
@json_option
@pass_settings
def rollback_command(
    settings: Settings,
    epoch: int,
    dry_run: bool,
    yes: bool,
    renamed: bool,
    acl: tuple[str, ...],
    as_json: bool,
) -> None:
    """Publish an older topology again, with a new epoch.

    All is checked as by push; shards that were opened since are not closed.
    The map is changed and no data is moved: where shards or primaries would
    change, what was written since is on the newer ones.
    """
    with Publisher(
        settings.zookeeper(), acl=acl, placeholders=settings.placeholders
    ) as publisher:
        _published(
            publisher,
            partial(publisher.rollback, to=epoch, renamed=renamed),
            expected=None,
            dry_run=dry_run,
            yes=yes,
            as_json=as_json,
        )


@click.command(
    "reset",
    epilog=examples(
        "sqla-shard topology reset good.toml --dry-run",
        "sqla-shard -t zookeeper://zk1,zk2/prod topology reset good.toml",
    ),
)
@click.argument("file", type=LOCATION)
@_writes
@json_option
@pass_settings
def reset_command(
    settings: Settings,
    file: str,
    dry_run: bool,
    yes: bool,
    renamed: bool,
    acl: tuple[str, ...],
    as_json: bool,
) -> None:
    """Publish the topology of a FILE with any epoch, also a lower one.

    For when an epoch was published that leaves none above it.  Running
    processes and snapshots take it as the newest, by the number of resets
    that it gets, and go on from its epoch.  All else is checked as by push.
    Topologies of the history with this epoch or a higher one are removed.
    """
    topology = settings.topology(file)
    with Publisher(
        settings.zookeeper(), acl=acl, placeholders=settings.placeholders
    ) as publisher:
        _published(
            publisher,
            partial(publisher.reset, topology, renamed=renamed),
            expected=None,
            dry_run=dry_run,
            yes=yes,
            as_json=as_json,
        )


@click.command(
    "protect",
    epilog=examples(
        "sqla-shard topology protect --dry-run",
        "sqla-shard topology protect --acl auth::cdrwa --acl "
        "digest:reader:HASH:r",
    ),
)
@click.option(
    "--dry-run", is_flag=True, help="Show what would change; write nothing."
)
@_acl_option
@json_option
@pass_settings
def protect_command(
    settings: Settings, dry_run: bool, acl: tuple[str, ...], as_json: bool
) -> None:
    """Let nobody else change the topology and its history.

    Who may change them has the passwords of the databases.  The topology gets
    the ACL that is given; without one, where everybody may change it, the
    credentials of this command may do everything, and all may read.  The
    history gets that of the topology, and so does the folder of both, where
    everybody may change it.
    """
    with Publisher(
        settings.zookeeper(), acl=acl, placeholders=settings.placeholders
    ) as publisher:
        done = publisher.protect(dry_run=dry_run)
        # The root, say, which is not ours to close.
        left = [] if dry_run else publisher.open_nodes()
    if as_json:
        print_json(
            {
                "dry_run": dry_run,
                "nodes": [asdict(one) for one in done],
                "open": left,
            }
        )
    else:
        for one in done:
            new = "would be protected" if one.new is None else one.new
            echo(f"{one.path}: {one.old} -> {new}")
        if not done:
            echo("all nodes are protected already")
    if left:
        raise click.ClickException(
            f"everybody may still change {_listed(left)}: publish at a path "
            "of your own, such as /prod, or protect it by hand"
        )


@click.command(
    "history",
    epilog=examples(
        "sqla-shard -t zookeeper://zk1,zk2,zk3/prod topology history",
        "sqla-shard topology history --json",
    ),
)
@json_option
@pass_settings
def history_command(settings: Settings, as_json: bool) -> None:
    """List the topologies that were published, newest first."""
    with Publisher(
        settings.zookeeper(), placeholders=settings.placeholders
    ) as publisher:
        found = publisher.history()
    if as_json:
        print_json(
            [
                {
                    "epoch": one.epoch,
                    "published": one.published.isoformat(),
                    "bytes": one.size,
                }
                for one in found
            ]
        )
        return
    for one in found:
        when = one.published.isoformat(" ", "seconds")
        echo(f"epoch {one.epoch}: {when}, {one.size} bytes")


def _with_next_epoch(publisher: Publisher, topology: Topology) -> Topology:
    """Give a topology the epoch that it can be published with."""
    last = publisher.last_epoch()
    same = replace(topology, epoch=max(last, 0))
    if publisher.has(same):
        return same
    # An epoch of 0 reads like none at all.
    return replace(topology, epoch=max(last + 1, 1))


def _published(
    publisher: Publisher,
    publish: _Publish,
    *,
    expected: int | None,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Show what would be published, ask, publish, and tell."""
    planned = publish(expected_epoch=expected, dry_run=True)
    if not as_json:
        echo(_shown(publisher, planned))
        for one in planned.generations:
            echo(one)
    _warn(planned)
    if dry_run or planned.new == planned.old:
        done = planned
    else:
        if not yes:
            _ask(publisher, planned, as_json)
        # What was shown is what is replaced, or nothing.
        was = NOT_PUBLISHED if planned.old is None else planned.old.epoch
        done = publish(expected_epoch=was)
    _warn_of_open_nodes(publisher)
    if as_json:
        print_json(_document(publisher, done, dry_run))
    elif done.is_published:
        echo(f"published epoch {done.new.epoch} at {publisher.name}")
    elif dry_run:
        echo("dry run: nothing was published")
    else:
        echo(f"epoch {done.new.epoch} is there already")


def _shown(publisher: Publisher, planned: Publication) -> str:
    if planned.diff is None:
        return (
            f"the first topology at {publisher.name}\n{describe(planned.new)}"
        )
    return str(planned.diff)


def _warn(planned: Publication) -> None:
    found = planned.diff
    if found is None:
        return
    primaries = any(one.role == "primary" for one in found.urls)
    if found.moved or primaries:
        what = " and ".join(
            name
            for name, is_so in (
                ("shards move", bool(found.moved)),
                ("primaries change", primaries),
            )
            if is_so
        )
        echo(
            f"warning: {what}, and publishing moves no data: it has to be "
            "there, and nobody may write to where it was",
            err=True,
        )
    if planned.old is not None:
        for caution in cautions(planned.old, planned.new):
            echo(f"warning: {caution}", err=True)


def _warn_of_open_nodes(publisher: Publisher) -> None:
    found = publisher.open_nodes()
    if found:
        echo(
            f"warning: everybody may change {_listed(found)}, and so have "
            "the passwords of the databases sent to another server; "
            "sqla-shard topology protect closes them",
            err=True,
        )


def _listed(paths: Sequence[str]) -> str:
    more = f" and {len(paths) - 3} more" if paths[3:] else ""
    return ", ".join(paths[:3]) + more


def _ask(publisher: Publisher, planned: Publication, as_json: bool) -> None:
    if not sys.stdin.isatty():
        raise click.UsageError(
            "there is no terminal to ask on; say --yes to publish, or "
            "--dry-run to look"
        )
    if as_json:
        echo(_shown(publisher, planned), err=True)
        for one in planned.generations:
            echo(one, err=True)
    click.confirm(
        f"publish epoch {planned.new.epoch} at {publisher.name}?",
        abort=True,
        err=True,
    )


def _document(
    publisher: Publisher, done: Publication, dry_run: bool
) -> dict[str, Any]:
    return {
        "location": publisher.name,
        "old_epoch": None if done.old is None else done.old.epoch,
        "new_epoch": done.new.epoch,
        "dry_run": dry_run,
        "published": done.is_published,
        "diff": None if done.diff is None else done.diff.to_mapping(),
        "generations": [asdict(one) for one in done.generations],
    }
