"""``sqla-shard migrate``: from one database to virtual shards."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click
from sqlalchemy import MetaData

from sqla_shard.cli.application_options import imported
from sqla_shard.cli.output import (
    data_option,
    echo,
    end,
    examples,
    print_data,
    print_report,
)
from sqla_shard.migrate import load, merge, suggest, Suggestion


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


@click.command(
    "shadow",
    epilog=examples(
        "sqla-shard migrate shadow reports/",
        "sqla-shard migrate shadow web.json batch.json --json",
        "sqla-shard migrate shadow reports/ --fail-under 90",
    ),
)
@click.argument(
    "reports",
    metavar="REPORT...",
    nargs=-1,
    required=True,
    type=click.Path(exists=True),
)
@click.option(
    "--fail-under",
    type=click.FloatRange(0, 100),
    metavar="PERCENT",
    help="Exit with status 1 if fewer statements would be executed as they are.",
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


@click.command(
    "suggest",
    epilog=examples(
        "sqla-shard migrate suggest shop.models:Base",
        "sqla-shard migrate suggest shop.models:Base reports/",
        "sqla-shard migrate suggest shop.models:Base reports/ --toml \\",
        "    > declaration.toml",
    ),
)
@click.argument("metadata", metavar="MODULE:NAME")
@click.argument(
    "reports", metavar="[REPORT]...", nargs=-1, type=click.Path(exists=True)
)
@click.option(
    "--toml", "as_toml", is_flag=True, help="Print the best declaration, as a file."
)
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
    found = suggest(_metadata(metadata), report.traffic)
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
