"""Options of the commands that change many virtual shards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from typing import TypeVar

import click

from sqla_shard import schema
from sqla_shard.cli.settings import FiniteRange

__all__ = ["HOW", "NEW", "WHICH", "run_options", "with_options"]

F = TypeVar("F", bound=Callable[..., Any])


def _shards(text: str) -> tuple[int, ...]:
    return tuple(schema.parse_shards(text))


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _joined(
    context: click.Context,
    parameter: click.Parameter,
    given: tuple[tuple[Any, ...], ...],
) -> tuple[Any, ...] | None:
    """Make one of what was given in parts; None where nothing was."""
    return tuple(one for part in given for one in part) or None


WHICH = (
    click.option(
        "--shards",
        metavar="RANGES",
        type=_shards,
        multiple=True,
        callback=_joined,
        help="Only these virtual shards, such as 0-511,600.",
    ),
    click.option(
        "--servers",
        metavar="NAMES",
        type=_names,
        multiple=True,
        callback=_joined,
        help="Only those on these physical servers, with commas between.",
    ),
)
NEW = (
    click.option(
        "--new",
        metavar="RANGES",
        type=_shards,
        multiple=True,
        callback=_joined,
        help="These virtual shards were never in use: fill their databases, "
        "though they have no revision and others have one.",
    ),
)
HOW = (
    click.option(
        "--jobs",
        metavar="N",
        type=int,
        help="Change so many shards of one server at a time; 4 by default.",
    ),
    click.option(
        "--wave",
        metavar="N",
        type=int,
        help="After the first shard, change so many and then so many again. "
        "By default one for each process, and then all others.",
    ),
    click.option(
        "--pause",
        metavar="SECONDS",
        type=FiniteRange(least=0),
        help="Wait between the first shard and the waves.",
    ),
    click.option(
        "--lock-wait",
        metavar="SECONDS",
        type=FiniteRange(least=0),
        help="Wait so long for a table that somebody else uses; 5 by default.",
    ),
    click.option(
        "--runner-wait",
        metavar="SECONDS",
        type=FiniteRange(least=0),
        help="Wait so long for a shard that another runner has; 10 by "
        "default.",
    ),
    click.option(
        "--continue-on-error/--stop-on-error",
        default=None,
        help="Go on with other shards when one fails; by default none is "
        "begun after it.",
    ),
    click.option(
        "--replay/--no-replay",
        default=None,
        help="Repeat the statements of revisions that are proven to be "
        "static, or run every revision on every shard.",
    ),
    click.option(
        "--report",
        metavar="PATH",
        help="Write what became of every shard to a file, as JSON.",
    ),
)


def with_options(*options: Callable[[F], F]) -> Callable[[F], F]:
    """Return a decorator that adds options to a command, in order."""

    def decorate(function: F) -> F:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


def run_options(given: dict[str, Any]) -> schema.RunOptions:
    """Return the options that were given; others have their defaults."""
    return schema.RunOptions(
        **{name: value for name, value in given.items() if value is not None}
    )
