"""``sqla-shard repair``: operations that transactions have left to be done."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from datetime import datetime
from datetime import timedelta
from datetime import timezone
from functools import partial
from typing import Any

import click

from sqla_shard.cli.ending import End
from sqla_shard.cli.ending import log_to_stderr
from sqla_shard.cli.expressions import models_option
from sqla_shard.cli.expressions import names
from sqla_shard.cli.passes import interval_option
from sqla_shard.cli.passes import lines_option
from sqla_shard.cli.passes import make_passes
from sqla_shard.cli.passes import once_option
from sqla_shard.cli.passes import Passes
from sqla_shard.cli.printing import echo
from sqla_shard.cli.printing import end
from sqla_shard.cli.printing import examples
from sqla_shard.cli.printing import print_json
from sqla_shard.cli.settings import FiniteRange
from sqla_shard.cli.settings import pass_settings
from sqla_shard.cli.settings import Settings
from sqla_shard.cli.told import cache_option
from sqla_shard.cli.told import told_cache
from sqla_shard.cluster import Cluster
from sqla_shard.engines.troubles import listed
from sqla_shard.intents import discard
from sqla_shard.intents import Pending
from sqla_shard.intents import RepairReport
from sqla_shard.intents.pending import counts
from sqla_shard.intents.pending import everything
from sqla_shard.intents.repairing import KEEP

__all__ = ["repair_command"]

_HOUR = timedelta(hours=1)


@click.command(
    "repair",
    epilog=examples(
        "sqla-shard repair --models shop.models",
        "sqla-shard repair --models shop.models --once",
        "sqla-shard repair --models shop.models --cache cache.toml",
        "sqla-shard repair --models shop.models --dry-run --json",
        "sqla-shard repair --count",
        "sqla-shard repair --discard 5f0c2b7e9a314d1e8c6f7a0b1d2e3f40",
    ),
)
@models_option
@cache_option
@interval_option
@once_option
@click.option(
    "--now",
    is_flag=True,
    help="With --once: also what is not due yet.",
)
@click.option(
    "--keep",
    metavar="HOURS",
    default=KEEP / _HOUR,
    show_default=True,
    type=FiniteRange(least=0, most=24 * 3650),
    help="Hours for which it is remembered what was done.",
)
@click.option(
    "--dry-run",
    is_flag=True,
    help="List what was left to be done; write nothing.",
)
@click.option(
    "--count",
    is_flag=True,
    help="Print how many calls of each operation wait; write nothing.",
)
@click.option(
    "--discard",
    "tokens",
    metavar="TOKEN",
    multiple=True,
    help="Never do this one, and end; repeatable.  Prints its arguments.",
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
    as_json: bool,
) -> None:
    """Do the operations that transactions have left and not done.

    Transactions do them right after COMMIT; this is for what a crash has
    left, or a server that was down.  It goes on until SIGTERM or Ctrl-C, and
    finishes the pass that it is in.  Several may run at the same time.  A
    pass that has done something is told in a line, what has failed below it.

    The modules in --models are those that define the operations, and the
    mappings that have an inverse.  Where rows are kept in a cache, name its
    file with --cache, or readers get what was there before.

    With --once and --dry-run the status is 1 when something has failed, or is
    not defined in these modules.  --dry-run lists 200 calls of each shard;
    --count needs no --models, and counts them all.  Its status is 1 when some
    have failed.
    """
    if sum((once, dry_run, count, bool(tokens))) > 1:
        raise click.UsageError(
            "--once, --dry-run, --count and --discard are four things; say one"
        )
    if now and not once:
        raise click.UsageError("--now goes with --once")
    names(models)
    told = told_cache(cache)
    with (
        # What the intents have to say is told here.
        log_to_stderr(logging.WARNING, without="sqla_shard.intents"),
        End() as until,
        Cluster.from_location(
            settings.location, placeholders=settings.placeholders
        ) as cluster,
    ):
        told.give(cluster)
        if tokens:
            _discard(cluster, tokens, as_json)
        elif count:
            _count(cluster, as_json)
        elif dry_run:
            _list(cluster, as_json)
        else:
            passes = Passes(
                make=partial(cluster.repair, keep=keep * _HOUR, now=now),
                goes_on=lambda report: bool(report.applied),
                has_done=_has_done,
                wrong=_wrong,
                trouble=_wrong,
            )
            make_passes(passes, until, None if once else interval, as_json)


def _has_done(report: RepairReport) -> bool:
    return bool(report.applied or report.failed or report.forgotten)


def _wrong(report: RepairReport) -> list[str]:
    return [*report.failed, *map(str, report.unknown), *report.troubles]


def _count(cluster: Cluster, as_json: bool) -> None:
    found, troubles = counts(cluster)
    wrong = listed(troubles)
    total = sum(one.count for one in found)
    if as_json:
        operations = [one.as_dict() for one in found]
        print_json(
            {"operations": operations, "total": total, "troubles": wrong}
        )
    else:
        for line in (*map(str, found), *wrong):
            echo(line)
        echo(f"{total:,} left to be done{_of(wrong)}")
    failed = any(one.failed for one in found)
    end(is_good=not failed, is_read=not wrong)


def _of(wrong: Sequence[str]) -> str:
    """Return of what a number is, where not everything was read."""
    return " on the shards that were read" if wrong else ""


def _list(cluster: Cluster, as_json: bool) -> None:
    found, troubles = everything(cluster)
    wrong = listed(troubles)
    # Those of a server that fails between the two may be missing here.
    counted = sum(one.count for one in counts(cluster)[0])
    total = max(counted, len(found))
    if as_json:
        print_json(
            {
                "pending": _documents(found),
                "total": total,
                "troubles": wrong,
            }
        )
    else:
        now = datetime.now(timezone.utc)
        for one in found:
            age = int((now - one.created_at).total_seconds())
            echo(f"{' '.join(str(one).split())} ({max(age, 0)} s old)")
        for line in wrong:
            echo(line)
        some = f", {len(found):,} of them listed"
        more = some if total > len(found) else ""
        echo(f"{total:,} left to be done{_of(wrong)}{more}")
    failed = any(one.error or not one.is_known for one in found)
    end(is_good=not failed, is_read=not wrong)


def _discard(cluster: Cluster, tokens: Sequence[str], as_json: bool) -> None:
    try:
        found = discard(cluster, tokens)
    except ValueError as error:
        raise click.BadParameter(
            "a token is 32 hexadecimal digits, as --dry-run prints it",
            param_hint="--discard",
        ) from error
    if as_json:
        print_json({"discarded": _documents(found)})
    else:
        for one in found:
            echo(f"discarded {' '.join(str(one).split())}")
            # Nobody can read them later, and somebody has to mend the rest.
            echo(f"  arguments: {json.dumps(one.arguments)}")
    # As they are told, whatever way they were spelled.
    wanted = {bytes.fromhex(token).hex() for token in tokens}
    missing = wanted - {one.token for one in found}
    for token in sorted(missing):
        echo(f"there is no {token}", err=True)
    end(is_good=not missing, is_read=True)


def _documents(found: Sequence[Pending]) -> list[dict[str, Any]]:
    return [{**one.as_dict(), "is_known": one.is_known} for one in found]
