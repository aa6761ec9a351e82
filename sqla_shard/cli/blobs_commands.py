"""``sqla-shard blobs``: dictionaries of compressed blobs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from sqla_shard.cli.application_options import models_option, names
from sqla_shard.cli.options import (
    FiniteRange,
    pass_settings,
    rate_option,
    resume_option,
    Settings,
)
from sqla_shard.cli.output import (
    command,
    data_option,
    end,
    option,
    print_report,
    ProgressLines,
    with_options,
)
from sqla_shard.exc import ClassDefinitionError
from sqla_shard.upkeep.blobs import (
    activate,
    check,
    deactivate,
    rewrite,
    RewriteProgress,
    status,
    train,
)

_class_option = with_options(
    models_option,
    option(
        "--class NAME",
        'Class of these modules with compression="zstd".',
        to="name",
        required=True,
    ),
)


def _run(
    settings: Settings,
    models: tuple[str, ...],
    name: str,
    work: Callable[..., Any],
    as_data: bool,
    **options: Any,
) -> Any:
    """Call a function for a class, and print its report.

    :returns: the report.
    :raises click.BadParameter: for another class.
    """
    cls = names(models).get(name)
    if cls is None:
        raise click.BadParameter(
            f"{name!r} is not defined; name its module with --models MODULE",
            param_hint="--class",
        )
    with settings.cluster() as cluster:
        try:
            report = work(cluster, cls, **options)
        except ClassDefinitionError as error:
            raise click.BadParameter(str(error), param_hint="--class") from error
    print_report(report, as_data)
    return report


@command(
    "train",
    "sqla-shard blobs train --models shop.models --class Pin --dry-run",
    "sqla-shard blobs train --models shop.models --class Pin",
)
@_class_option
@option(
    "--rows N",
    "Maximum number of rows to read.",
    click.IntRange(min=100),
    default=20_000,
)
@option(
    "--seconds S",
    "Time in which rows are read.",
    FiniteRange(0, is_open=True),
    default=60.0,
)
@option("--dry-run", "Print the expected ratio; do not store the dictionary.")
@data_option
@pass_settings
def train_command(
    settings: Settings,
    /,
    models: tuple[str, ...],
    name: str,
    as_data: bool,
    **options: Any,
) -> None:
    """Train a dictionary from random rows, and store it on all shards.

    One fifth of the rows is not used for training, and gives the expected
    ratio.  The dictionary is not used for writing before "activate".
    """
    report = _run(settings, models, name, train, as_data, **options)
    end(is_good=True, is_read=report.ok)


@command(
    "activate",
    "sqla-shard blobs activate --models shop.models --class Pin",
    "sqla-shard blobs activate --models shop.models --class Pin \\",
    "    --version 1",
)
@_class_option
@option(
    "--version N",
    "Version of the dictionary; the newest by default.",
    click.IntRange(min=1),
)
@data_option
@pass_settings
def activate_command(
    settings: Settings,
    models: tuple[str, ...],
    name: str,
    as_data: bool,
    version: int | None,
) -> None:
    """Let processes write blobs with a dictionary.

    All processes must run code that declares compression="zstd".  Repeat the
    command after shards were opened, which do not have the dictionary.
    """
    report = _run(settings, models, name, activate, as_data, version=version)
    end(is_good=True, is_read=report.ok)


@command("deactivate", "sqla-shard blobs deactivate --models shop.models --class Pin")
@_class_option
@data_option
@pass_settings
def deactivate_command(
    settings: Settings, models: tuple[str, ...], name: str, as_data: bool
) -> None:
    """Let processes write blobs as JSON.

    Compressed rows can still be read; "rewrite" makes them JSON.
    """
    report = _run(settings, models, name, deactivate, as_data)
    end(is_good=True, is_read=report.ok)


@command(
    "rewrite",
    "sqla-shard blobs rewrite --models shop.models --class Pin \\",
    "    --rate 2000 --resume pins.json",
)
@_class_option
@rate_option
@option(
    "--batch N",
    "Maximum number of rows of a transaction.",
    click.IntRange(min=1),
    default=200,
)
@resume_option
@data_option
@pass_settings
def rewrite_command(
    settings: Settings,
    /,
    models: tuple[str, ...],
    name: str,
    as_data: bool,
    **options: Any,
) -> None:
    """Rewrite rows with the active dictionary, or as JSON without one.

    A row that the application changes meanwhile is not overwritten.  The
    status is 1 if a row cannot be read.
    """
    options["on_progress"] = ProgressLines(_line)
    report = _run(settings, models, name, rewrite, as_data, **options)
    end(is_good=not report.unreadable_rows, is_read=not report.unreachable)


@command("check", "sqla-shard blobs check --models shop.models --class Pin --rate 5000")
@_class_option
@rate_option
@data_option
@pass_settings
def check_command(
    settings: Settings,
    /,
    models: tuple[str, ...],
    name: str,
    as_data: bool,
    **options: Any,
) -> None:
    """Read all rows, and list those whose blob cannot be read.

    The status is 1 if there is such a row.
    """
    options["on_progress"] = ProgressLines(_line)
    report = _run(settings, models, name, check, as_data, **options)
    end(is_good=not report.unreadable_rows, is_read=not report.unreachable)


@command(
    "status",
    "sqla-shard blobs status --models shop.models --class Pin",
    "sqla-shard blobs status --models shop.models --class Pin --rows",
)
@_class_option
@option("--rows", "Count rows and bytes; reads all rows.")
@data_option
@pass_settings
def status_command(
    settings: Settings, models: tuple[str, ...], name: str, as_data: bool, rows: bool
) -> None:
    """Show the dictionaries of a class, and where they are active."""
    report = _run(settings, models, name, status, as_data, rows=rows)
    end(is_good=True, is_read=not report.unreachable)


def _line(progress: RewriteProgress) -> str:
    return (
        f"shard {progress.shard_id} of {progress.shards}, "
        f"{progress.rows:,} rows read, {progress.rewritten:,} rewritten"
    )
