"""``sqla-shard migrate``: from one database to virtual shards."""

from __future__ import annotations

import gc
import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from sqlalchemy import MetaData

from sqla_shard.cli.options import FiniteRange, imported, rate_option, resume_option
from sqla_shard.cli.output import (
    command,
    data_option,
    echo,
    end,
    option,
    print_data,
    print_report,
    ProgressLines,
)
from sqla_shard.cli.service_loop import log_to_stderr, StopFlag
from sqla_shard.migrate import load, merge, suggest, Suggestion
from sqla_shard.migrate.marks import KeyPart
from sqla_shard.migrate.move import Move
from sqla_shard.migrate.passes import backfill, reconcile, verify
from sqla_shard.migrate.stage_changes import copy_waiting, plan, status, Switch
from sqla_shard.migrate.stages import STAGES


def _files(paths: tuple[str, ...]) -> Iterator[Path]:
    """Yield the given files, and the reports in the given directories.

    :raises click.BadParameter: if a directory has no report.
    """
    for path in map(Path, paths):
        if not path.is_dir():
            yield path
            continue
        found = sorted(path.glob("shadow-*.json"))
        if not found:
            raise click.BadParameter(
                f"there is no report of shadow mode in {path}", param_hint="REPORT"
            )
        yield from found


@command(
    "shadow",
    "sqla-shard migrate shadow reports/",
    "sqla-shard migrate shadow web.json batch.json --json",
    "sqla-shard migrate shadow reports/ --fail-under 90",
)
@click.argument(
    "reports",
    metavar="REPORT...",
    nargs=-1,
    required=True,
    type=click.Path(exists=True),
)
@option(
    "--fail-under PERCENT",
    "Exit with status 1 if fewer statements would be executed as they are.",
    click.FloatRange(0, 100),
)
@data_option
def shadow_command(
    reports: tuple[str, ...], fail_under: float | None, as_data: bool
) -> None:
    """Show the reports of shadow mode as one.

    REPORT is a file, or a directory with the reports of all processes.  No
    server is contacted.
    """
    report = merge(load(path) for path in _files(reports))
    print_report(report, as_data)
    total = report.total.statements
    accepted = total - report.refused.statements
    is_good = fail_under is None or 100 * accepted >= fail_under * total
    end(is_good=is_good, is_read=True)


@command(
    "suggest",
    "sqla-shard migrate suggest shop.models:Base",
    "sqla-shard migrate suggest shop.models:Base reports/",
    "sqla-shard migrate suggest shop.models:Base reports/ --toml \\",
    "    > declaration.toml",
)
@click.argument("metadata", metavar="MODULE:NAME")
@click.argument(
    "reports", metavar="[REPORT]...", nargs=-1, type=click.Path(exists=True)
)
@option("--toml", "Print the best declaration, as a file.", to="as_toml")
@data_option
def suggest_command(
    metadata: str, reports: tuple[str, ...], as_toml: bool, as_data: bool
) -> None:
    """Suggest owners for the tables of an application.

    MODULE:NAME is a declarative base, or a MetaData.  The score is the share
    of the statements in the reports that one shard answers; without reports,
    of one statement for each primary and foreign key.
    """
    report = merge(load(path) for path in _files(reports))
    known = _metadata(metadata)
    found = suggest(known, report.traffic)
    recorded = {name for one in report.traffic for name in one.tables}
    # Alembic's own table is in no metadata.
    recorded.discard("alembic_version")
    if unknown := sorted(recorded.difference(known.tables)):
        # Otherwise the shares would seem to be those of all statements.
        echo(
            f"left out: statements of {', '.join(unknown)}, which {metadata} does "
            "not have; name a module that imports all models",
            err=True,
        )
    if as_toml:
        for one in found[:1]:
            click.echo(one.declaration.as_toml(), nl=False)
    elif as_data:
        print_data(found)
    else:
        for one in found:
            _show(one)
    if not found and not as_data:
        echo("no table is referred to by another one", err=True)
    end(is_good=bool(found), is_read=True)


def _metadata(name: str) -> MetaData:
    """Return the metadata of ``module:name``.

    :raises click.BadParameter: if there is none.
    """
    found = imported(name, "Base", param_hint="MODULE:NAME")
    found = getattr(found, "metadata", found)
    if not isinstance(found, MetaData):
        raise click.BadParameter(
            f"{name!r} is neither a declarative base nor a MetaData",
            param_hint="MODULE:NAME",
        )
    return found


def _show(one: Suggestion) -> None:
    what = "statements" if one.is_recorded else "keys (no traffic recorded)"
    echo(f"{', '.join(one.owners)}: one shard for {one.score:.1%} of {what}")
    for name, share in sorted(one.outcomes.items(), key=lambda o: -o[1]):
        echo(f"  {name.replace('_', ' ')}: {share:.1%}")
    for reason in one.reasons:
        echo(f"  - {reason}")
    echo("")


# -- Moving the rows

#: Seconds between two looks at what waits.
_PAUSE = 1.0

_move_argument = click.argument("name", metavar="MOVE")
_timeout_option = option(
    "--timeout S",
    "Seconds to copy the last rows while writes wait; then the "
    "stage before is restored.",
    FiniteRange(0, is_open=True),
    default=60.0,
    show_default=True,
)

_lag_option = option(
    "--max-lag S",
    "Wait while a replica of the database, or a standby of the "
    "shards, is more than S seconds behind.",
    FiniteRange(1),
)


@contextmanager
def _opened(name: str) -> Iterator[Move]:
    """Import a move, and close its cluster at the end.

    :raises click.BadParameter: if it is not one.
    """
    found = imported(name, "move", param_hint="MOVE")
    if not isinstance(found, Move):
        raise click.BadParameter(
            f"{name!r} is not a sqla_shard.migrate.Move", param_hint="MOVE"
        )
    with found.cluster:
        # To look for cycles among what was imported takes a fifth of a pass.
        gc.freeze()
        try:
            yield found
        finally:
            gc.unfreeze()
            found.close()
            found.engine.dispose()


class _Rows:
    """Prints the number of rows of each table, every few seconds."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._rows: Counter[str] = Counter()
        self._lines: ProgressLines[Any] = ProgressLines(self._describe)

    def _describe(self, _: object) -> str:
        counts = [f"{name} {n:,}" for name, n in self._rows.items()]
        return f"{self._what}: {', '.join(counts)}"

    def __call__(self, table: str, rows: int) -> None:
        self._rows[table] += rows
        self._lines(None)


@command(
    "plan",
    "sqla-shard migrate plan shop.moving",
    "sqla-shard migrate plan shop.moving --create",
)
@_move_argument
@option("--create", "Create the tables of the move, in the database and on all shards.")
@data_option
def plan_command(name: str, create: bool, as_data: bool) -> None:
    """Show what a move will do, and create its tables.

    MOVE is the sqla_shard.migrate.Move of the application, as MODULE:NAME,
    or MODULE if its name is move.  Create the tables before the application
    calls Move.watch().  The exit status is 1 if there are problems.
    """
    with _opened(name) as move:
        found = plan(move)
        if create:
            Switch(move).prepare()
    print_report(found, as_data)
    end(is_good=not found.problems, is_read=True)


@command("status", "sqla-shard migrate status shop.moving --json")
@_move_argument
@data_option
def status_command(name: str, as_data: bool) -> None:
    """Show the stage of a move, and what is left to do."""
    with _opened(name) as move:
        print_report(status(move), as_data)


def _part(_: object, __: object, text: str | None) -> KeyPart | None:
    if text is None:
        return None
    number, _, count = text.partition("/")
    try:
        return KeyPart(int(number), int(count))
    except ValueError as error:
        raise click.BadParameter(
            f"{text!r} must be K/N, such as 1/4 for the first of four parts"
        ) from error


def _share(text: str) -> tuple[str, int]:
    table, _, percent = text.partition("=")
    if not percent.isdecimal() or int(percent) > 100:
        raise click.BadParameter(
            f"{text!r} must be TABLE=PERCENT, from 0 to 100", param_hint="--share"
        )
    return table, int(percent)


@command(
    "switch",
    "sqla-shard migrate switch shop.moving copying",
    "sqla-shard migrate switch shop.moving reading --share posts=10",
    "sqla-shard migrate switch shop.moving switched --timeout 10",
)
@_move_argument
@click.argument("stage", metavar="STAGE", type=click.Choice(list(STAGES)))
@option(
    "--share TABLE=PERCENT",
    "Share of the reads of TABLE from the shards, in the stage reading; repeatable.",
    to="shares",
    multiple=True,
)
@_timeout_option
def switch_command(
    name: str, stage: str, shares: tuple[str, ...], timeout: float
) -> None:
    """Go forward to STAGE, by way of those in between.

    The stages are marking, copying, reading, closing, switched and detached.
    From switched on the shards are written; there is no way back from
    detached.
    """
    given = dict(map(_share, shares))
    with _opened(name) as move:
        unknown = sorted(given.keys() - move.tables)
        if unknown:
            raise click.BadParameter(
                f"{', '.join(unknown)} does not move", param_hint="--share"
            )
        switch = Switch(move, echo)
        now = switch.go(stage, timeout=timeout)
        if given:
            now = switch.share(given)
        echo(f"the stage is {now.stage}")


@command("rollback", "sqla-shard migrate rollback shop.moving")
@_move_argument
@_timeout_option
def rollback_command(name: str, timeout: float) -> None:
    """Go back to the stage before.

    From switched the way is to reading: the rows that were written on the
    shards are in the database then.
    """
    with _opened(name) as move:
        now = Switch(move, echo).back(timeout=timeout)
        echo(f"the stage is {now.stage}")


@command(
    "backfill",
    "sqla-shard migrate backfill shop.moving --rate 5000 --jobs 8",
    "sqla-shard migrate backfill shop.moving --max-lag 5 --part 1/4",
)
@_move_argument
@rate_option
@_lag_option
@option(
    "--jobs N",
    "Number of threads that copy.",
    click.IntRange(1, 64),
    default=4,
    show_default=True,
)
@option(
    "--part K/N",
    "Copy the K-th of N equal parts, beside a process for each other part.",
    callback=_part,
)
@option(
    "--follow",
    "Go on with rows that wait, in the direction of the stage, until "
    "Ctrl-C or SIGTERM.",
)
def backfill_command(
    name: str,
    rate: float | None,
    max_lag: float | None,
    jobs: int,
    part: KeyPart | None,
    follow: bool,
) -> None:
    """Copy the rows that no session has copied.

    The exit status is 1 if rows could not be copied.
    """
    if follow and (rate, max_lag, part) != (None, None, None):
        raise click.UsageError("--follow has none of --rate, --max-lag and --part")
    with _opened(name) as move:
        if follow:
            _follow(move)
            return
        failed = backfill(
            move,
            rate=rate,
            max_lag=max_lag,
            jobs=jobs,
            part=part,
            on_progress=_Rows("rows"),
        )
    echo(f"{failed:,} rows could not be copied")
    end(is_good=not failed, is_read=True)


def _follow(move: Move) -> None:
    """Copy rows that wait, in the direction of the stage, until a signal."""
    with log_to_stderr(logging.WARNING), StopFlag() as until:
        while not until.wait(_PAUSE):
            now = move.progress(now=True)
            if now.stage == "detached":
                break
            copy_waiting(move, now)


@command("reconcile", "sqla-shard migrate reconcile shop.moving --resume pass.json")
@_move_argument
@rate_option
@_lag_option
@option(
    "--passes N",
    "Maximum number of passes.",
    click.IntRange(1),
    default=10,
    show_default=True,
)
@resume_option
def reconcile_command(name: str, **options: Any) -> None:
    """Compare all rows, and repair them, until none differs.

    The side that is not written is changed.  The exit status is 1 if the last
    pass has found differences.
    """
    with _opened(name) as move:
        found = reconcile(move, on_progress=_Rows("compared"), on_pass=echo, **options)
    end(is_good=found.is_equal, is_read=True)


@command("verify", "sqla-shard migrate verify shop.moving --json")
@_move_argument
@rate_option
@resume_option
@data_option
def verify_command(name: str, as_data: bool, **options: Any) -> None:
    """Compare all rows of both sides; change none.

    The exit status is 1 if rows differ.
    """
    with _opened(name) as move:
        found = verify(move, on_progress=_Rows("compared"), **options)
    print_report(found, as_data)
    end(is_good=found.is_equal, is_read=True)
