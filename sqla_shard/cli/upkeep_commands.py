"""``sqla-shard verify``, ``spread`` and ``blobs``: all rows of a class."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
    rate_option,
    resume_option,
    Settings,
)
from sqla_shard.cli.output import (
    command,
    data_option,
    end,
    option,
    print_found,
    print_report,
    ProgressLines,
    with_options,
)
from sqla_shard.exc import ClassDefinitionError
from sqla_shard.models import LookupMixin, MappingMixin
from sqla_shard.models.reference import (
    ReferenceMixin,
    ReferencesReport,
    verify_references,
)
from sqla_shard.upkeep import (
    largest_lists,
    spread_rows,
    SpreadProgress,
    verify_lookups,
    verify_relations,
    VerifyProgress,
    VerifyReport,
)
from sqla_shard.upkeep.blobs import activate, check, deactivate, rewrite, status, train
from sqla_shard.upkeep.checks import mapped_classes
from sqla_shard.upkeep.lookups import claims_on_all

_run_options = with_options(
    rate_option,
    option(
        "--grace S",
        "Seconds before an inconsistency is checked again.",
        FiniteRange(0),
        default=60.0,
    ),
    resume_option,
    data_option,
)
_class_options = with_options(
    models_option,
    option(
        "--class NAME",
        "Class that these modules define or import; repeatable.  All by default.",
        to="wanted",
        multiple=True,
    ),
)


@command(
    "lookups",
    "sqla-shard verify lookups --models shop.models",
    "sqla-shard verify lookups --models shop.models --class UserEmail \\",
    "    --repair --rate 1000 --resume emails.json",
)
@_class_options
@cache_option
@option(
    "--repair",
    "Repair what can be repaired automatically, and delete claims "
    "that expired more than a day ago.",
)
@option("--rekey", "Rewrite rows of previous key policies with the current one.")
@_run_options
@pass_settings
def lookups_command(settings: Settings, /, **options: Any) -> None:
    """Check lookup keys against objects.

    Keys must point to objects, and objects must have their keys.  The status
    is 1 if an inconsistency remains.
    """
    verify = partial(verify_lookups, on_progress=ProgressLines(_line))
    _run(settings, verify, LookupMixin, **options)


@command(
    "claims",
    "sqla-shard verify claims --models shop.models",
    "sqla-shard verify claims --models shop.models --json",
)
@_class_options
@data_option
@pass_settings
def claims_command(
    settings: Settings, models: tuple[str, ...], wanted: tuple[str, ...], as_data: bool
) -> None:
    """List open claims of lookup keys.

    They were neither confirmed nor released.  This includes claims of
    sign-ups in progress.  An expired claim can still
    be confirmed until the key is claimed again.
    """
    classes = _classes(LookupMixin, names(models), wanted)
    with settings.cluster() as cluster:
        found, unreachable = claims_on_all(cluster, classes)
    ended = sum(one.has_ended for one in found)
    which = " on the shards that were read" if unreachable else ""
    last = f"{len(found):,} open{which}, {ended:,} of them expired"
    print_found({"claims": found}, found, unreachable, as_data, is_good=True, last=last)


@command(
    "relations",
    "sqla-shard verify relations --models shop.models",
    "sqla-shard verify relations --models shop.models --repair \\",
    "    --rate 1000 --resume relations.json --cache cache.toml",
)
@_class_options
@cache_option
@option(
    "--repair",
    "Delete rows whose source or target does not exist, and make "
    "inverses and stored counts match their mappings.",
)
@_run_options
@pass_settings
def relations_command(settings: Settings, /, **options: Any) -> None:
    """Check mapping rows against objects.

    The objects must exist, and inverses must match.  The status is 1 if an
    inconsistency remains.  If lists are cached, --repair needs --cache, or
    readers get outdated lists.
    """
    verify = partial(verify_relations, on_progress=ProgressLines(_line))
    _run(settings, verify, MappingMixin, **options)


@command(
    "references",
    "sqla-shard verify references --models shop.models",
    "sqla-shard verify references --models shop.models --repair",
)
@_class_options
@cache_option
@option("--repair", "Copy the rows of the lowest shard to shards that differ.")
@data_option
@pass_settings
def references_command(settings: Settings, /, **options: Any) -> None:
    """Compare reference tables.

    They must have the same rows on every shard.  The status is 1 if a
    difference remains.
    """
    _run(settings, verify_references, ReferenceMixin, **options)


@command(
    "sizes",
    "sqla-shard verify sizes --models shop.models",
    "sqla-shard verify sizes --models shop.models --top 50 --json",
)
@_class_options
@option("--top N", "Show N lists.", click.IntRange(min=1), default=10)
@option(
    "--window S",
    "Show lists with rows appended during the last S seconds, too.",
    FiniteRange(0),
    default=86_400.0,
)
@option(
    "--timeout S",
    "Seconds for the servers to read one class.",
    FiniteRange(0, is_open=True),
    default=60.0,
)
@data_option
@pass_settings
def sizes_command(
    settings: Settings,
    /,
    models: tuple[str, ...],
    wanted: tuple[str, ...],
    as_data: bool,
    **options: Any,
) -> None:
    """Show the largest lists.

    These are the lists with the most rows, and with the most new rows.  Such
    a list may need a class with spread=.  All rows of the mapping tables
    are read once.
    """
    classes = _classes(MappingMixin, names(models), wanted)
    with settings.cluster() as cluster:
        report = largest_lists(cluster, classes, **options)
    print_report(report, as_data)
    end(is_good=True, is_read=not report.unreachable)


@command(
    "spread",
    "sqla-shard spread --models shop.models --class BoardHasFans",
    "sqla-shard spread --models shop.models --class BoardHasFans \\",
    "    --rate 2000 --grace 60",
)
@models_option
@option(
    "--class NAME",
    "Mapping class of these modules with spread_from=.",
    to="name",
    required=True,
)
@rate_option
@option(
    "--batch N",
    "Maximum number of rows to read at once.",
    click.IntRange(min=1),
    default=1000,
)
@option(
    "--grace S",
    "Seconds from the copy of a row to its deletion, longer than "
    "transactions that read lists.",
    FiniteRange(0),
    default=10.0,
)
@data_option
@pass_settings
def spread_command(
    settings: Settings,
    /,
    models: tuple[str, ...],
    name: str,
    as_data: bool,
    **options: Any,
) -> None:
    """Move rows of lists to more pieces.

    All processes must run code that declares spread_from=.  The application
    can run at the same time; after an interruption, repeat the command.  The
    status is 1 if rows are on shards where they never belonged.
    """
    (cls,) = _classes(MappingMixin, names(models), [name])
    with settings.cluster() as cluster:
        try:
            report = spread_rows(
                cluster, cls, on_progress=ProgressLines(_moved), **options
            )
        except ClassDefinitionError as error:
            raise click.BadParameter(str(error), param_hint="--class") from error
    print_report(report, as_data)
    end(is_good=not report.misplaced, is_read=not report.unreachable)


def _moved(progress: SpreadProgress) -> str:
    return (
        f"shard {progress.shard_id} of {progress.shards}, "
        f"{progress.rows:,} rows read, {progress.moved:,} moved"
    )


def _run(
    settings: Settings,
    verify: Callable[..., VerifyReport | ReferencesReport],
    mixin: type[Any],
    *,
    models: tuple[str, ...],
    wanted: tuple[str, ...],
    cache: str | None,
    as_data: bool,
    **options: Any,
) -> None:
    """Verify the classes with a mixin, print the report, and exit.

    :param options: further options of the command, passed to ``verify``.
    """
    classes = _classes(mixin, names(models), wanted)
    option = cache_of_option(cache)
    with settings.cluster() as cluster:
        option.configure(cluster)
        report = verify(cluster, classes, **options)
    print_report(report, as_data)
    end(is_good=report.ok, is_read=not report.unreachable)


def _classes(
    mixin: type[Any], namespace: dict[str, Any], wanted: Sequence[str]
) -> list[type[Any]]:
    """Return the classes with a mixin that share a base with a namespace.

    :param wanted: names of classes; all if empty.
    :raises click.UsageError: if no class exists, or a name is not found.
    """
    metadata = {
        id(value.metadata)
        for value in namespace.values()
        if isinstance(value, type) and hasattr(value, "metadata")
    }
    # A module may import others, whose classes it does not name.
    found = {
        cls.__name__: cls
        for cls in mapped_classes(mixin)
        if id(cls.metadata) in metadata
    }
    if not found:
        raise click.UsageError(
            f"the modules of --models import no subclass of {mixin.__name__}; "
            "if the application has one, add its module"
        )
    for name in wanted:
        if name not in found:
            raise click.BadParameter(
                f"{mixin.__name__} {name!r} not found; the modules import "
                f"{', '.join(sorted(found))}",
                param_hint="--class",
            )
    return [found[name] for name in wanted or found]


def _line(progress: VerifyProgress) -> str:
    return (
        f"{progress.subject}: shard {progress.shard_id} of "
        f"{progress.shards}, {progress.looked} {progress.unit}; "
        f"{progress.found} found, {progress.waiting} to check again"
    )


# -- Dictionaries of compressed blobs


_blob_class_option = with_options(
    models_option,
    option(
        "--class NAME",
        'Class of these modules with compression="zstd".',
        to="name",
        required=True,
    ),
)


def _report_of(
    settings: Settings,
    function: Callable[..., Any],
    *,
    models: tuple[str, ...],
    name: str,
    as_data: bool,
    **options: Any,
) -> Any:
    """Call a function for a class, and print its report.

    :param options: further options of the command, passed to the function.
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
            report = function(cluster, cls, **options)
        except ClassDefinitionError as error:
            raise click.BadParameter(str(error), param_hint="--class") from error
    print_report(report, as_data)
    return report


@command(
    "train",
    "sqla-shard blobs train --models shop.models --class Pin --dry-run",
    "sqla-shard blobs train --models shop.models --class Pin",
)
@_blob_class_option
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
def train_command(settings: Settings, /, **options: Any) -> None:
    """Train a dictionary from random rows, and store it on all shards.

    One fifth of the rows is not used for training, and gives the expected
    ratio.  The dictionary is not used for writing before "activate".
    """
    report = _report_of(settings, train, **options)
    end(is_good=True, is_read=not report.unreachable)


@command(
    "activate",
    "sqla-shard blobs activate --models shop.models --class Pin",
    "sqla-shard blobs activate --models shop.models --class Pin \\",
    "    --version 1",
)
@_blob_class_option
@option(
    "--version N",
    "Version of the dictionary; the newest by default.",
    click.IntRange(min=1),
)
@data_option
@pass_settings
def activate_command(settings: Settings, /, **options: Any) -> None:
    """Let processes write blobs with a dictionary.

    All processes must run code that declares compression="zstd".  Repeat the
    command after shards were opened, which do not have the dictionary.
    """
    report = _report_of(settings, activate, **options)
    end(is_good=True, is_read=not report.unreachable)


@command("deactivate", "sqla-shard blobs deactivate --models shop.models --class Pin")
@_blob_class_option
@data_option
@pass_settings
def deactivate_command(settings: Settings, /, **options: Any) -> None:
    """Let processes write blobs as JSON.

    Compressed rows can still be read; "rewrite" makes them JSON.
    """
    report = _report_of(settings, deactivate, **options)
    end(is_good=True, is_read=not report.unreachable)


@command(
    "rewrite",
    "sqla-shard blobs rewrite --models shop.models --class Pin \\",
    "    --rate 2000 --resume pins.json",
)
@_blob_class_option
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
def rewrite_command(settings: Settings, /, **options: Any) -> None:
    """Rewrite rows with the active dictionary, or as JSON without one.

    A row that the application changes meanwhile is not overwritten.  The
    status is 1 if a row cannot be read.
    """
    run = partial(rewrite, on_progress=ProgressLines(_rewritten))
    report = _report_of(settings, run, **options)
    end(is_good=not report.unreadable_rows, is_read=not report.unreachable)


@command("check", "sqla-shard blobs check --models shop.models --class Pin --rate 5000")
@_blob_class_option
@rate_option
@data_option
@pass_settings
def check_command(settings: Settings, /, **options: Any) -> None:
    """Read all rows, and list those whose blob cannot be read.

    The status is 1 if there is such a row.
    """
    run = partial(check, on_progress=ProgressLines(_rewritten))
    report = _report_of(settings, run, **options)
    end(is_good=not report.unreadable_rows, is_read=not report.unreachable)


@command(
    "status",
    "sqla-shard blobs status --models shop.models --class Pin",
    "sqla-shard blobs status --models shop.models --class Pin --rows",
)
@_blob_class_option
@option("--rows", "Count rows and bytes; reads all rows.")
@data_option
@pass_settings
def status_command(settings: Settings, /, **options: Any) -> None:
    """Show the dictionaries of a class, and where they are active."""
    report = _report_of(settings, status, **options)
    end(is_good=True, is_read=not report.unreachable)


def _rewritten(progress: VerifyProgress) -> str:
    return (
        f"shard {progress.shard_id} of {progress.shards}, "
        f"{progress.looked:,} rows read, {progress.counts['rewritten']:,} rewritten"
    )
