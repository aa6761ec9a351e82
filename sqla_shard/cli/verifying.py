"""``sqla-shard verify``."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any
from typing import TypeVar

import click

from sqla_shard.cli.expressions import models_option
from sqla_shard.cli.expressions import names
from sqla_shard.cli.printing import echo
from sqla_shard.cli.printing import end
from sqla_shard.cli.printing import examples
from sqla_shard.cli.printing import json_option
from sqla_shard.cli.printing import print_json
from sqla_shard.cli.settings import FiniteRange
from sqla_shard.cli.settings import pass_settings
from sqla_shard.cli.settings import Settings
from sqla_shard.cli.told import cache_option
from sqla_shard.cli.told import told_cache
from sqla_shard.engines.troubles import listed
from sqla_shard.lookup import LookupMixin
from sqla_shard.mappings import MappingMixin
from sqla_shard.orm.creation import is_abstract
from sqla_shard.reference import ReferenceMixin
from sqla_shard.reference import ReferencesReport
from sqla_shard.reference import verify_references
from sqla_shard.verifying import verify_lookups
from sqla_shard.verifying import verify_relations
from sqla_shard.verifying import VerifyProgress
from sqla_shard.verifying import VerifyReport
from sqla_shard.verifying.lookups import claims_on_all

__all__ = ["verify_group"]

F = TypeVar("F", bound=Callable[..., Any])

#: Seconds between two lines on how far it is.
_EVERY = 5.0


@click.group("verify")
def verify_group() -> None:
    """Find rows that do not fit others, and put them right.

    It runs beside a live application.  Nothing is changed unless an option
    says so.
    """


def _run_options(command: F) -> F:
    """Give a command the options of every run but those of repairs."""
    for option in (
        json_option,
        click.option(
            "--resume",
            "position",
            metavar="FILE",
            type=click.Path(dir_okay=False, path_type=Path),
            help="Keep in FILE how far it is, and go on from there when it "
            "was interrupted.",
        ),
        click.option(
            "--grace",
            metavar="S",
            type=FiniteRange(least=0),
            default=60.0,
            show_default=True,
            help="Seconds until what seems wrong is looked at again.",
        ),
        click.option(
            "--rate",
            metavar="N",
            type=FiniteRange(least=0, is_open=True),
            help="Read N rows a second at most.",
        ),
    ):
        command = option(command)
    return command


def _class_options(command: F) -> F:
    """Give a command ``--models``, ``--class`` and ``--cache``."""
    return _reading_options(cache_option(command))


def _reading_options(command: F) -> F:
    """Give a command ``--models`` and ``--class``."""
    return models_option(
        click.option(
            "--class",
            "wanted",
            metavar="NAME",
            multiple=True,
            help="A class of these modules; repeatable.  All by default.",
        )(command)
    )


@verify_group.command(
    "lookups",
    short_help="Whether keys and objects fit.",
    epilog=examples(
        "sqla-shard verify lookups --models shop.models",
        "sqla-shard verify lookups --models shop.models --class UserEmail \\",
        "    --repair --rate 1000 --resume emails.json",
    ),
)
@_class_options
@click.option(
    "--repair",
    is_flag=True,
    help="Put right what can be without asking anybody, and delete claims "
    "that ended more than a day ago.",
)
@click.option(
    "--rekey",
    is_flag=True,
    help="Write rows of previous policies anew, under the present one.",
)
@_run_options
@pass_settings
def lookups_command(settings: Settings, /, **options: Any) -> None:
    """Look whether keys lead to objects, and objects are found by keys.

    The status is 1 when something is wrong, and was not repaired.
    """
    verify = partial(verify_lookups, on_progress=_Lines())
    _run(settings, verify, LookupMixin, **options)


@verify_group.command(
    "claims",
    short_help="Which claims of keys are open.",
    epilog=examples(
        "sqla-shard verify claims --models shop.models",
        "sqla-shard verify claims --models shop.models --json",
    ),
)
@_reading_options
@json_option
@pass_settings
def claims_command(
    settings: Settings,
    models: tuple[str, ...],
    wanted: tuple[str, ...],
    as_json: bool,
) -> None:
    """List the claims that were neither confirmed nor released.

    Those of people who are just signing up are among them.  One that has
    ended can still be confirmed, until another one takes the key.
    """
    classes = _classes(LookupMixin, names(models), wanted)
    with settings.cluster() as cluster:
        found, troubles = claims_on_all(cluster, classes)
    wrong = listed(troubles)
    if as_json:
        claims = [one.as_dict() for one in found]
        print_json({"claims": claims, "troubles": wrong})
    else:
        for line in (*map(str, found), *wrong):
            echo(line)
        ended = sum(one.has_ended for one in found)
        which = " on the shards that were read" if wrong else ""
        echo(f"{len(found):,} open{which}, {ended:,} of them have ended")
    end(is_good=True, is_read=not wrong)


@verify_group.command(
    "relations",
    short_help="Whether lists and objects fit.",
    epilog=examples(
        "sqla-shard verify relations --models shop.models",
        "sqla-shard verify relations --models shop.models --repair \\",
        "    --rate 1000 --resume relations.json --cache cache.toml",
    ),
)
@_class_options
@click.option(
    "--repair",
    is_flag=True,
    help="Delete rows whose source or target is not there, and write "
    "inverses as their mappings have it.",
)
@_run_options
@pass_settings
def relations_command(settings: Settings, /, **options: Any) -> None:
    """Look whether the objects of mappings are there, and both directions.

    The status is 1 when something is wrong, and was not repaired.  Where
    lists are kept in a cache, --repair needs --cache, or readers get what
    was there before.
    """
    verify = partial(verify_relations, on_progress=_Lines())
    _run(settings, verify, MappingMixin, **options)


@verify_group.command(
    "references",
    short_help="Whether reference tables are alike.",
    epilog=examples(
        "sqla-shard verify references --models shop.models",
        "sqla-shard verify references --models shop.models --repair",
    ),
)
@_class_options
@click.option(
    "--repair",
    is_flag=True,
    help="Give shards that are different the rows of the lowest.",
)
@json_option
@pass_settings
def references_command(settings: Settings, /, **options: Any) -> None:
    """Look whether reference tables have the same rows on every shard.

    The status is 1 when they have not, and that was not repaired.
    """
    _run(settings, verify_references, ReferenceMixin, **options)


def _run(
    settings: Settings,
    verify: Callable[..., VerifyReport | ReferencesReport],
    mixin: type[Any],
    *,
    models: tuple[str, ...],
    wanted: tuple[str, ...],
    cache: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Verify the classes of a mixin, print the report, end as it says.

    :param options: of the command; those that are not ours are ``verify``'s.
    """
    classes = _classes(mixin, names(models), wanted)
    told = told_cache(cache)
    with settings.cluster() as cluster:
        told.give(cluster)
        report = verify(cluster, classes, **options)
    if as_json:
        print_json(report.as_dict())
    else:
        echo(str(report))
    end(is_good=report.ok, is_read=not report.unread)


def _classes(
    mixin: type[Any], scope: dict[str, Any], wanted: Sequence[str]
) -> list[type[Any]]:
    """Return the classes of a mixin among names, or those wanted of them.

    :raises click.UsageError: when there is none, or not the one wanted.
    """
    found = {
        value.__name__: value
        for value in scope.values()
        if isinstance(value, type)
        and issubclass(value, mixin)
        and value is not mixin
        and not is_abstract(value)
    }
    if not found:
        raise click.UsageError(
            f"there is no class with {mixin.__name__}; --models MODULE names "
            "the module that has them"
        )
    for name in wanted:
        if name not in found:
            raise click.BadParameter(
                f"there is no {mixin.__name__} {name!r}; the modules have "
                f"{', '.join(sorted(found))}",
                param_hint="--class",
            )
    return [found[name] for name in wanted or found]


class _Lines:
    """Says now and then how far it is, on the standard error."""

    def __init__(self) -> None:
        self._shown = monotonic()

    def __call__(self, progress: VerifyProgress) -> None:
        now = monotonic()
        if now - self._shown < _EVERY:
            return
        self._shown = now
        echo(
            f"{progress.subject}: shard {progress.shard_id} of "
            f"{progress.shards}, {progress.looked} {progress.unit}; "
            f"{progress.found} found, {progress.waiting} to look at again",
            err=True,
        )
