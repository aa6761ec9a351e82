"""``sqla-shard repair``, ``key`` and ``halves``: pending operations."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from datetime import datetime, timedelta, UTC
from functools import partial
from typing import Any

import click

from sqla_shard.cli.options import (
    cache_of_option,
    cache_option,
    FiniteRange,
    models_option,
    names,
    pass_settings,
    Settings,
)
from sqla_shard.cli.output import (
    command,
    data_option,
    echo,
    end,
    lines_option,
    option,
    print_data,
    print_found,
)
from sqla_shard.cli.service_loop import (
    interval_option,
    log_to_stderr,
    make_passes,
    once_option,
    Passes,
    StopFlag,
)
from sqla_shard.cluster.cluster import Cluster
from sqla_shard.engine.unreachable import UnreachableServer
from sqla_shard.outbox import discard, Pending, RepairReport
from sqla_shard.outbox.pending_operations import counts, everything, KEEP
from sqla_shard.outbox.transaction_keys import halves_on_all, key_on_all, MINUTE

_HOUR = timedelta(hours=1)


@command(
    "repair",
    "sqla-shard repair --models shop.models",
    "sqla-shard repair --models shop.models --once",
    "sqla-shard repair --models shop.models --cache cache.toml",
    "sqla-shard repair --models shop.models --dry-run --json",
    "sqla-shard repair --count",
    "sqla-shard repair --discard 5f0c2b7e9a314d1e8c6f7a0b1d2e3f40",
)
@models_option
@cache_option
@interval_option
@once_option
@option(
    "--now",
    "With --once: also run operations of the last 30 seconds, those "
    "that another worker has started, and those that wait for a retry.",
)
@option(
    "--keep HOURS",
    "Hours for which applied operations are remembered.",
    FiniteRange(0, 24 * 3650),
    default=KEEP / _HOUR,
)
@option("--dry-run", "List pending operations; write nothing.")
@option("--count", "Print the number of pending calls per operation; write nothing.")
@option(
    "--discard TOKEN",
    "Delete this pending operation without running it, print its arguments, and exit; "
    "the writes of its transaction remain.  Repeatable.",
    to="tokens",
    multiple=True,
)
@lines_option
@pass_settings
def repair_command(
    settings: Settings,
    models: tuple[str, ...],
    cache: str | None,
    interval: float,
    once: bool,
    now: bool,
    keep: float,
    dry_run: bool,
    count: bool,
    tokens: tuple[str, ...],
    as_data: bool,
) -> None:
    """Run pending operations of transactions.

    Transactions run their operations right after COMMIT.  Operations remain
    pending after a crash, or if a server was down.  The command runs until
    SIGTERM or Ctrl-C, then finishes the current pass.  Several can run at the
    same time.  A pass that ran operations prints one line, and one for each
    failure.

    The modules in --models must define the operations, and the mappings that
    have an inverse.  If rows are cached, pass the file of the cache with
    --cache, or readers get outdated rows.

    With --once and --dry-run, the status is 1 if an operation failed or is
    not defined in these modules.  --dry-run lists up to 200 calls per shard.
    --count needs no --models; its status is 1 if a call has failed.
    """
    if sum((once, dry_run, count, bool(tokens))) > 1:
        raise click.UsageError(
            "--once, --dry-run, --count and --discard exclude each other"
        )
    if now and not once:
        raise click.UsageError("--now requires --once")
    names(models)
    option = cache_of_option(cache)
    with (
        # The report of each pass includes the errors that the outbox logs.
        log_to_stderr(logging.WARNING, without="sqla_shard.outbox"),
        StopFlag() as until,
        Cluster.from_location(
            settings.location, placeholders=settings.placeholders
        ) as cluster,
    ):
        option.configure(cluster)
        if tokens:
            _discard(cluster, tokens, as_data)
        elif count:
            _count(cluster, as_data)
        elif dry_run:
            _list(cluster, as_data)
        else:
            passes = Passes(
                make=partial(cluster.repair, keep=keep * _HOUR, now=now),
                has_more=lambda report: bool(report.applied),
                has_changes=_has_changes,
                is_read=lambda report: not report.unreachable,
                problems=_problems,
                state=_problems,
            )
            make_passes(passes, until, None if once else interval, as_data)


def _has_changes(report: RepairReport) -> bool:
    return bool(report.applied or report.failed or report.forgotten)


def _problems(report: RepairReport) -> list[str]:
    return [*report.failed, *map(str, report.unknown), *map(str, report.unreachable)]


def _count(cluster: Cluster, as_data: bool) -> None:
    found, unreachable = counts(cluster)
    total = sum(one.count for one in found)
    failed = any(one.failed for one in found)
    document = {"operations": found, "total": total}
    last = f"{total:,} pending{_scope_text(unreachable)}"
    print_found(document, found, unreachable, as_data, is_good=not failed, last=last)


def _scope_text(unreachable: Sequence[UnreachableServer]) -> str:
    """Return 'on the shards that were read' if some could not be read."""
    return " on the shards that were read" if unreachable else ""


def _list(cluster: Cluster, as_data: bool) -> None:
    found, unreachable = everything(cluster)
    # If a server fails after everything(), counts() does not include it.
    counted = sum(one.count for one in counts(cluster)[0])
    total = max(counted, len(found))
    now = datetime.now(UTC)
    lines = []
    for one in found:
        age = int((now - one.created_at).total_seconds())
        lines.append(f"{' '.join(str(one).split())} ({max(age, 0)} s old)")
    more = f", {len(found):,} of them listed" if total > len(found) else ""
    last = f"{total:,} pending{_scope_text(unreachable)}{more}"
    failed = any(one.error or not one.is_known for one in found)
    document = {"pending": _documents(found), "total": total}
    print_found(document, lines, unreachable, as_data, is_good=not failed, last=last)


def _discard(cluster: Cluster, tokens: Sequence[str], as_data: bool) -> None:
    try:
        found = discard(cluster, tokens)
    except ValueError as error:
        raise click.BadParameter(
            "a token is 32 hexadecimal digits, as --dry-run prints it",
            param_hint="--discard",
        ) from error
    if as_data:
        print_data({"discarded": _documents(found)})
    else:
        for one in found:
            echo(f"discarded {' '.join(str(one).split())}")
            # An operator needs them to complete the operation manually.
            echo(f"  arguments: {json.dumps(one.arguments)}")
    # Normalize them to the form of Pending.token.
    wanted = {bytes.fromhex(token).hex() for token in tokens}
    missing = wanted - {one.token for one in found}
    for token in sorted(missing):
        echo(f"{token} not found", err=True)
    end(is_good=not missing, is_read=True)


def _documents(found: Sequence[Pending]) -> list[dict[str, Any]]:
    return [{**one.as_dict(), "is_known": one.is_known} for one in found]


@command("key", "sqla-shard key order-17", "sqla-shard key order-17 --json")
@click.argument("key")
@data_option
@pass_settings
def key_command(settings: Settings, key: str, as_data: bool) -> None:
    """Show where the transaction with a KEY has committed.

    KEY is the key of cluster.run(fn, key=KEY).  All shards are searched.
    Transactions that are committing right now and expired keys are not
    found.  The status is 1 if no shard has the key, and 3 if a shard that
    may have it could not be read.
    """
    with settings.cluster() as cluster:
        try:
            found, unreachable = key_on_all(cluster, key)
        except ValueError as error:
            raise click.BadParameter(str(error), param_hint="KEY") from error
    which = "any shard that was read" if unreachable else "any shard"
    lines: Sequence[object] = found or [f"{key}: not on {which}"]
    document = {"key": key, "committed": found}
    print_found(document, lines, unreachable, as_data, is_good=bool(found))


@command("halves", "sqla-shard halves", "sqla-shard halves --older-than 600 --json")
@option(
    "--older-than S",
    "Ignore transactions that began to commit less than S seconds ago.",
    FiniteRange(0),
    default=MINUTE.total_seconds(),
)
@data_option
@pass_settings
def halves_command(settings: Settings, older_than: float, as_data: bool) -> None:
    """List transactions that have committed on some of their servers only.

    They remain when a process is killed between two COMMITs of
    cluster.run(fn, key=KEY, cross_shard="ordered"), and are listed until
    their keys expire.  The status is 1 if there are any.  If a shard could
    not be read, the status is 3 and nothing is listed, since the missing
    COMMIT may be on that shard.
    """
    with settings.cluster() as cluster:
        age = timedelta(seconds=older_than)
        found, unreachable = halves_on_all(cluster, age)
    # The missing COMMIT may be on a shard that was not read.
    document = {"halves": None if unreachable else found}
    count = "unknown number of" if unreachable else f"{len(found):,}"
    last = f"{count} partially committed"
    print_found(document, found, unreachable, as_data, is_good=not found, last=last)
