"""``sqla-shard topology``: watch and agent, which go on until they are ended.

An agent is for machines with many processes: it has one session with
ZooKeeper and keeps a file, which the processes follow with
``Cluster.from_file()``.
"""

from __future__ import annotations

import json
import logging
import queue
import sys
from datetime import datetime
from datetime import timezone
from pathlib import Path
from typing import Any

import click

from sqla_shard.cli.ending import End
from sqla_shard.cli.ending import log_to_stderr
from sqla_shard.cli.printing import echo
from sqla_shard.cli.printing import examples
from sqla_shard.cli.printing import one_line
from sqla_shard.cli.settings import FiniteRange
from sqla_shard.cli.settings import pass_settings
from sqla_shard.cli.settings import Settings
from sqla_shard.exc import ShardError
from sqla_shard.following import Follower
from sqla_shard.following import Snapshot
from sqla_shard.following import source_at
from sqla_shard.following import SourceReport
from sqla_shard.jitter import jittered
from sqla_shard.topology import diff
from sqla_shard.topology import Topology

__all__ = ["agent_command", "watch_command"]

_log = logging.getLogger("sqla_shard.agent")

#: Seconds between two looks at the state of the source.
_LOOK = 0.25
#: Seconds until an agent without any topology asks again: first, at most.
_FIRST_PAUSE = 1.0
_LONGEST_PAUSE = 30.0


@click.command(
    "watch",
    epilog=examples(
        "sqla-shard -t zookeeper://zk1,zk2,zk3/prod topology watch",
        "sqla-shard topology watch --json --count 1",
    ),
)
@click.option(
    "--count",
    metavar="N",
    type=click.IntRange(min=1),
    help="End after so many changes.",
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print one JSON document on each line.",
)
@pass_settings
def watch_command(
    settings: Settings, count: int | None, as_json: bool
) -> None:
    """Print each change of the topology as it comes.

    Also when the source cannot be asked any more, or has what may not be
    used, and when it is good again.  Ctrl-C ends it.
    """
    # What the follower says to the log is told here.
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
        _watch(follower, changes, count, as_json)
    finally:
        follower.close()


def _watch(
    follower: Follower,
    changes: queue.SimpleQueue[tuple[Topology, Topology]],
    count: int | None,
    as_json: bool,
) -> None:
    seen: tuple[str, str | None] = ("current", None)
    _say("begin", follower.report(), as_json)
    while count is None or count > 0:
        try:
            old, new = changes.get(timeout=_LOOK)
        except queue.Empty:
            report = follower.report()
            stale = report.state == "stale"
            now = (report.state, report.last_error if stale else None)
            if now != seen:
                seen = now
                event = report.state if stale else "confirmed"
                _say(event, report, as_json)
            continue
        if count is not None:
            count -= 1
        _say("changed", follower.report(), as_json, (old, new))


def _say(
    event: str,
    report: SourceReport,
    as_json: bool,
    change: tuple[Topology, Topology] | None = None,
) -> None:
    """Print an event; at once, for it may go into a pipe."""
    now = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
    epoch = report.epoch if change is None else change[1].epoch
    error = report.last_error if event == "stale" else None
    if as_json:
        document: dict[str, Any] = {
            "time": now,
            "event": event,
            "source": report.source,
            "epoch": epoch,
            "error": error,
            "diff": None if change is None else diff(*change).to_mapping(),
        }
        echo(json.dumps(document))
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
            f"{value!r} must let this user read the file, and nobody else "
            "write it: who may write it sends the processes, with their "
            "passwords, to another server"
        )
    return mode


@click.command(
    "agent",
    epilog=examples(
        "sqla-shard -t zookeeper://zk1,zk2,zk3/prod topology agent --out "
        "/run/sqla-shard/topology.json",
    ),
)
@click.option(
    "--out",
    metavar="FILE",
    required=True,
    type=click.Path(path_type=Path, dir_okay=False),
    help="The file to keep; its name ends in .json.",
)
@click.option(
    "--mode",
    metavar="MODE",
    default="0640",
    show_default=True,
    callback=_mode,
    help="Who may read it, in octal.",
)
@click.option(
    "--reread",
    metavar="S",
    default=60.0,
    show_default=True,
    type=FiniteRange(least=0.1),
    help="Seconds after which ZooKeeper is asked again in any case.",
)
@pass_settings
def agent_command(
    settings: Settings, out: Path, mode: int, reread: float
) -> None:
    """Keep a file that has the topology of a ZooKeeper.

    The processes of the machine use the file.  It is replaced as a whole
    when there is a newer topology that may be used, and stays as it is while
    ZooKeeper cannot be asked.  Where there is no file yet either, the
    agent goes on asking.  It prints READY when the file is there, writes its
    log to the standard error, and ends with status 0 on SIGTERM and Ctrl-C.
    """
    location = settings.zookeeper()
    snapshot = Snapshot(
        out,
        mode=mode,
        placeholders=settings.placeholders,
        environ=settings.blank,
    )
    with log_to_stderr(), End() as end:
        follower = _begun(settings, location, snapshot, reread, end)
        if follower is None:
            return
        try:
            if not out.exists():
                # The first one could not be written.
                raise click.ClickException(
                    follower.report().last_error or f"{out} is not there"
                )
            follower.start()
            echo(f"READY epoch {follower.epoch} in {out}")
            sys.stdout.flush()
            end.wait()
        finally:
            follower.close()


def _begun(
    settings: Settings,
    location: str,
    snapshot: Snapshot,
    reread: float,
    end: End,
) -> Follower | None:
    """Return what follows; None where it is to end before there is one."""
    pause = _FIRST_PAUSE
    source = source_at(
        location,
        placeholders=settings.placeholders,
        environ=settings.blank,
    )
    follower = Follower(source, snapshot=snapshot, reread=reread)
    while not end.wait(0):
        try:
            follower.begin()
        except ShardError as error:
            _log.warning("there is no topology yet: %s", one_line(error))
        else:
            return follower
        # Many machines that start at once must not ask at once.
        end.wait(jittered(min(pause, reread), 0.2))
        pause = min(pause * 2, _LONGEST_PAUSE)
    follower.close()
    return None
