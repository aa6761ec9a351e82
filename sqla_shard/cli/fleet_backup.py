"""``sqla-shard fleet backup`` and ``fleet restore``."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import datetime, UTC
from typing import Any, TYPE_CHECKING

import click

from sqla_shard.cli.fleet_operations import fleet_of, plan_and_run, plan_options
from sqla_shard.cli.options import (
    completed,
    keyspace_option,
    LazyChoice,
    pass_settings,
    Settings,
)
from sqla_shard.cli.output import (
    command,
    CommandT,
    data_option,
    echo,
    end,
    option,
    print_data,
    print_report,
)

if TYPE_CHECKING:
    from sqla_shard.exc import Problem
    from sqla_shard.fleet.backup import Source
    from sqla_shard.fleet.storage import Backup

_folder = click.argument("folder")
_dry_run_option = option(
    "--dry-run", "Print what would be copied, and where to; write nothing."
)


def _source_option(default: Source) -> Callable[[CommandT], CommandT]:
    return option(
        "--from",
        "Server of each pair to read.",
        LazyChoice("sqla_shard.fleet.backup:Source"),
        to="source",
        default=default,
    )


def _server_option(text: str) -> Callable[[CommandT], CommandT]:
    return option("--server NAME", text, shell_complete=completed("server"))


@command(
    "create",
    "sqla-shard fleet backup create /backups --server sharddb001",
    "sqla-shard fleet backup create /backups --keyspace objects --shard 7",
)
@_folder
@_server_option("Only shards of this server.")
@keyspace_option("Only this keyspace.")
@option("--shard ID", "Only this shard.", int, shell_complete=completed("shard"))
@_source_option("standby")
@option(
    "--workers N",
    "Number of sessions that read at a time.",
    click.IntRange(min=1),
    default=2,
)
@_dry_run_option
@data_option
@pass_settings
def create_command(
    settings: Settings,
    /,
    folder: str,
    server: str | None,
    keyspace: str | None,
    shard: int | None,
    source: Source,
    workers: int,
    dry_run: bool,
    as_data: bool,
) -> None:
    """Back up shards into FOLDER: one backup for each server.

    Without options, all shards of all servers.
    """
    from sqla_shard.fleet.backup import create_backups, plan_backups, Scope
    from sqla_shard.fleet.storage import Storage

    fleet, storage = fleet_of(settings), Storage(folder)
    scope = Scope(server=server, keyspace=keyspace, shard=shard)
    if dry_run:
        plan = plan_backups(fleet, storage, scope, source=source)
        print_report(plan, as_data)
        end(is_good=not plan.problems, is_read=True)
        return
    found = create_backups(
        fleet,
        storage,
        scope,
        source=source,
        workers=workers,
        progress=lambda event: echo(event, err=True),
    )
    _show(found, as_data)


@command("binlogs", "sqla-shard fleet backup binlogs /backups sharddb001")
@_folder
@click.argument("server", shell_complete=completed("server"))
@_source_option("primary")
@_dry_run_option
@data_option
@pass_settings
def binlogs_command(
    settings: Settings,
    /,
    folder: str,
    server: str,
    source: Source,
    dry_run: bool,
    as_data: bool,
) -> None:
    """Copy the binary logs of SERVER that FOLDER does not have.

    With them, a shard can be restored to a moment after a backup.  The server
    begins a new log; mariadb-binlog, or mysqlbinlog of MySQL, must be
    installed.
    """
    from sqla_shard.fleet.binlog_archive import copy_binlogs, plan_binlogs
    from sqla_shard.fleet.storage import Storage

    fleet, storage = fleet_of(settings), Storage(folder)
    if dry_run:
        plan = plan_binlogs(fleet, storage, server, source=source)
        print_report(plan, as_data)
        return
    archive, new = copy_binlogs(fleet, storage, server, source=source)
    if as_data:
        print_data({**archive.as_dict(), "new": new})
    else:
        echo(f"{archive}; copied now: {', '.join(new) or 'none'}")


@command("list", "sqla-shard fleet backup list /backups")
@_folder
@data_option
def list_command(folder: str, as_data: bool) -> None:
    """List the finished backups in FOLDER, the oldest first.

    The exit status is 3 if one of them cannot be read.
    """
    from sqla_shard.fleet.storage import Storage

    listing = Storage(folder).listing()
    _show(listing.backups, as_data)
    _end_read(listing.problems)


@command("verify", "sqla-shard fleet backup verify /backups")
@_folder
@click.argument("name", required=False)
@data_option
def verify_command(folder: str, name: str | None, as_data: bool) -> None:
    """Compare the files in FOLDER with their checksums.

    NAME is a backup; by default, all of them and the binary logs.  The exit
    status is 1 if a file is missing or was changed.
    """
    from sqla_shard.fleet.binlog_archive import archives_of
    from sqla_shard.fleet.storage import Storage

    storage = Storage(folder)
    problems: list[Problem] = []
    if name is None:
        listing = storage.listing()
        backups = listing.backups
        archives, damaged = archives_of(storage)
        problems += [*listing.problems, *damaged]
    else:
        backups, archives = [storage.get(name)], []
    for backup in backups:
        problems += storage.problems(backup)
    for archive in archives:
        problems += archive.problems()
    if as_data:
        print_data(
            {
                "backups": [backup.name for backup in backups],
                "problems": [
                    {"place": one.place, "message": one.message} for one in problems
                ],
            }
        )
    else:
        for problem in problems:
            echo(problem)
        echo(f"{len(backups)} backups, {len(problems)} problems")
    end(is_good=not problems, is_read=True)


@command("prune", "sqla-shard fleet backup prune /backups --keep-last 7 --keep-days 30")
@_folder
@option(
    "--keep-last N",
    "Number of backups of each set of shards that stay.",
    click.IntRange(min=1),
    required=True,
)
@option(
    "--keep-days D",
    "Days for which each backup stays.",
    click.FloatRange(min=0),
    default=0.0,
    show_default=False,
)
@option("--dry-run", "Only list what would go.")
@data_option
def prune_command(
    folder: str, keep_last: int, keep_days: float, dry_run: bool, as_data: bool
) -> None:
    """Remove old backups from FOLDER, and unfinished ones after a day.

    The last intact backup of a set of shards is never removed; binary logs
    are not, either.  The exit status is 3 if a backup cannot be read.
    """
    from sqla_shard.fleet.storage import Storage

    storage = Storage(folder)
    removed = storage.prune(
        keep_last=keep_last, keep_days=keep_days, now=time.time(), dry_run=dry_run
    )
    if as_data:
        print_data({"removed": removed, "dry_run": dry_run})
    else:
        for name in removed:
            echo(f"{'would remove' if dry_run else 'removed'} {name}")
    _end_read(storage.listing().problems)


@command(
    "restore",
    "sqla-shard fleet restore /backups objects 7",
    "sqla-shard fleet restore /backups objects 7 --to-gtid 0-1-4711",
    "sqla-shard fleet restore /backups objects 7 "
    "--to-time '2026-11-23 19:15:00' --as before_the_mistake",
)
@_folder
@click.argument("keyspace", shell_complete=completed("keyspace"))
@click.argument("shard", type=int, shell_complete=completed("shard"))
@option("--backup NAME", "By default the latest one.")
@option("--to-gtid GTID", "Last change to restore.")
@option(
    "--to-time TIME",
    "Time, in UTC, before which changes are restored.",
    click.DateTime(["%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M:%S"]),
)
@_server_option("By default that of the shard.")
@option(
    "--as DATABASE",
    "Name of the new database; by default restored_ and the live one.",
    to="database",
)
@plan_options
@pass_settings
def restore_command(
    settings: Settings, /, to_gtid: str | None, to_time: datetime | None, **options: Any
) -> None:
    """Restore SHARD of KEYSPACE from FOLDER into a new database.

    The live database is not changed.  A moment after the backup needs the
    binary logs: copy them first with fleet backup binlogs.
    """
    from sqla_shard.fleet.replay import Moment
    from sqla_shard.fleet.restore import Restore

    if to_gtid is not None and to_time is not None:
        raise click.UsageError("give --to-gtid or --to-time, not both")
    moment = None
    if to_gtid is not None:
        moment = Moment(gtid=to_gtid)
    elif to_time is not None:
        moment = Moment(time=to_time.replace(tzinfo=UTC).timestamp())
    plan_and_run(settings, Restore.planned, moment=moment, **options)


def _end_read(problems: Sequence[Problem]) -> None:
    """Name the backups that cannot be read, and exit with status 3."""
    for problem in problems:
        echo(problem, err=True)
    end(is_good=True, is_read=not problems)


def _show(backups: list[Backup], as_data: bool) -> None:
    if as_data:
        print_data([one.as_dict() for one in backups])
        return
    for one in backups:
        echo(one)
