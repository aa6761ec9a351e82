"""``sqla-shard topology watch`` and ``agent``, which run until terminated.

An agent is for machines with many processes: it opens one ZooKeeper session
and writes a file, which the processes follow with ``Cluster.from_file()``.
"""

from __future__ import annotations

import logging
import queue
import sys
from datetime import datetime, UTC
from pathlib import Path
from typing import Any

import click

from sqla_shard.cli.failures import one_line
from sqla_shard.cli.options import FiniteRange, pass_settings, Settings
from sqla_shard.cli.output import command, echo, lines_option, option, print_data
from sqla_shard.cli.service_loop import log_to_stderr, StopFlag
from sqla_shard.exc import ShardError
from sqla_shard.topology import diff, Topology
from sqla_shard.topology.follow import (
    FollowedSource,
    Follower,
    Snapshot,
    source_at,
    SourceReport,
)
from sqla_shard.util.logs import careful_log
from sqla_shard.util.pace import jittered

_log = careful_log("sqla_shard.agent")

#: Seconds between two checks of the state of the source.
_CHECK_INTERVAL = 0.25
#: Seconds before an agent without a topology retries: minimum and maximum.
_FIRST_PAUSE = 1.0
_LONGEST_PAUSE = 30.0


@command(
    "watch",
    "sqla-shard -t zookeeper://zk1,zk2,zk3/prod topology watch",
    "sqla-shard topology watch --json --count 1",
)
@option("--count N", "Exit after N changes.", click.IntRange(min=1))
@lines_option
@pass_settings
def watch_command(settings: Settings, count: int | None, as_data: bool) -> None:
    """Print each change of the topology when it happens.

    Also print when the source becomes unavailable or contains a topology
    that cannot be used, and when it recovers.  Exit with Ctrl-C.
    """
    # The output includes the errors that the follower logs.
    logging.getLogger("sqla_shard").addHandler(logging.NullHandler())
    follower = Follower(
        source_at(
            settings.location,
            placeholders=settings.placeholders,
            environ=settings.blank,
        )
    )
    changes: queue.SimpleQueue[tuple[Topology, Topology]] = queue.SimpleQueue()
    follower.add_callback(lambda old, new: changes.put((old, new)))
    try:
        follower.begin()
        follower.start()
        _watch(follower, changes, count, as_data)
    finally:
        follower.close()


def _watch(
    follower: Follower,
    changes: queue.SimpleQueue[tuple[Topology, Topology]],
    count: int | None,
    as_data: bool,
) -> None:
    seen: tuple[str, str | None] = ("current", None)
    _print_event("begin", follower.report(), as_data)
    while count is None or count > 0:
        try:
            old, new = changes.get(timeout=_CHECK_INTERVAL)
        except queue.Empty:
            report = follower.report()
            stale = report.state == "stale"
            now = (report.state, report.last_error if stale else None)
            if now != seen:
                seen = now
                event = report.state if stale else "confirmed"
                _print_event(event, report, as_data)
            continue
        if count is not None:
            count -= 1
        _print_event("changed", follower.report(), as_data, (old, new))


def _print_event(
    event: str,
    report: SourceReport,
    as_data: bool,
    change: tuple[Topology, Topology] | None = None,
) -> None:
    """Print an event, and flush it for readers of a pipe."""
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    epoch = report.epoch if change is None else change[1].epoch
    error = report.last_error if event == "stale" else None
    if as_data:
        document: dict[str, Any] = {
            "time": now,
            "event": event,
            "source": report.source,
            "epoch": epoch,
            "error": error,
            "diff": None if change is None else diff(*change).as_dict(),
        }
        print_data(document, is_line=True)
    else:
        line = f"{now} {event}: epoch {epoch} of {report.source}"
        if error is not None:
            line = f"{line}: {' '.join(error.split())}"
        if change is not None:
            line = f"{line}\n{diff(*change)}".replace("\n", "\n  ")
        echo(line)
    sys.stdout.flush()


def _mode(ctx: click.Context, param: click.Parameter, value: str) -> int:
    try:
        mode = int(value, 8)
    except ValueError:
        raise click.BadParameter(
            f"{value!r} is not an octal number such as 0640"
        ) from None
    if mode & ~0o777 or mode & 0o022 or not mode & 0o400:
        raise click.BadParameter(
            f"{value!r} must permit reading by the owner, and no writing by other "
            "users, who could redirect processes and their passwords to another server"
        )
    return mode


@command(
    "agent",
    "sqla-shard -t zookeeper://zk1,zk2,zk3/prod topology agent --out "
    "/run/sqla-shard/topology.json",
)
@option(
    "--out FILE",
    "File to write; its name must end in .json.  A missing directory "
    "is created, for this user only.",
    click.Path(path_type=Path, dir_okay=False),
    required=True,
)
@option(
    "--mode MODE",
    "Permissions of the file, in octal; only its owner may write.",
    default="0640",
    callback=_mode,
)
@option(
    "--reread S",
    "Seconds between two reads of ZooKeeper without a notification.",
    FiniteRange(0.1),
    default=60.0,
)
@option(
    "--register/--no-register",
    "Show the epoch of the file in ZooKeeper, for fleet doctor.",
    default=True,
)
@pass_settings
def agent_command(
    settings: Settings, out: Path, mode: int, reread: float, register: bool
) -> None:
    """Copy the topology in ZooKeeper to a file, and keep it up to date.

    The processes of the machine follow the file.  It is replaced atomically
    when a newer valid topology is published, and left unchanged while
    ZooKeeper is unavailable.  If the file does not exist yet, the agent
    retries until ZooKeeper responds.  It prints READY when the file exists,
    logs to standard error, and exits with status 0 on SIGTERM and Ctrl-C.
    """
    location = settings.zookeeper()
    snapshot = Snapshot(
        out, mode=mode, placeholders=settings.placeholders, environ=settings.blank
    )
    source = source_at(
        location,
        placeholders=settings.placeholders,
        environ=settings.blank,
        register={"role": "agent", "file": str(out.absolute())} if register else None,
    )
    with log_to_stderr(), StopFlag() as end:
        follower = _open_follower(source, snapshot, reread, end)
        if follower is None:
            return
        try:
            if not out.exists():
                # Writing the first topology failed.
                raise click.ClickException(
                    follower.report().last_error or f"{out} not found"
                )
            follower.start()
            echo(f"READY epoch {follower.epoch} in {out}")
            sys.stdout.flush()
            end.wait()
        finally:
            follower.close()


def _open_follower(
    source: FollowedSource, snapshot: Snapshot, reread: float, end: StopFlag
) -> Follower | None:
    """Return a follower with a topology, or None if terminated before."""
    pause = _FIRST_PAUSE
    follower = Follower(source, snapshot=snapshot, reread=reread)
    announce = follower.announce

    def announce_file(used: Topology) -> None:
        """Announce what processes read, although it may be older."""
        if follower.saved is not None:
            announce(follower.saved)

    follower.announce = announce_file
    while not end.wait(0):
        try:
            follower.begin()
        except ShardError as error:
            _log.warning("no topology available yet: %s", one_line(error))
        else:
            return follower
        # Machines that start at the same time must not retry at the same time.
        end.wait(jittered(min(pause, reread), 0.2))
        pause = min(pause * 2, _LONGEST_PAUSE)
    follower.close()
    return None
