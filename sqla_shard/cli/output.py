"""Output of commands: JSON, examples, exit statuses."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from time import monotonic
from typing import Any
from typing import Generic
from typing import TypeVar

import click

__all__ = [
    "FAILED",
    "NOT_READ",
    "CommandT",
    "ProgressLines",
    "echo",
    "end",
    "examples",
    "json_option",
    "lines_option",
    "print_json",
    "print_report",
    "printable",
    "with_options",
]

FAILED = 1
"""Exit status if the command failed or found a problem."""

NOT_READ = 3
"""Exit status if a server or a database could not be read.

The output covers the other servers and databases only.
"""

#: Seconds between two lines of progress.
_EVERY = 5.0

T = TypeVar("T")
CommandT = TypeVar("CommandT", bound=Callable[..., Any])
"""Function of a command, the argument and result of option decorators."""

# Control characters of ASCII and Latin-1, Unicode line separators, and
# characters that change the direction of the text.
_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]"
)


def with_options(
    *options: Callable[[CommandT], CommandT],
) -> Callable[[CommandT], CommandT]:
    """Return a decorator that adds options to a command, in order."""

    def decorate(function: CommandT) -> CommandT:
        """Add the options to a command."""
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


json_option = with_options(
    click.option(
        "--json", "as_json", is_flag=True, help="Print one JSON document."
    )
)
lines_option = with_options(
    click.option(
        "--json",
        "as_json",
        is_flag=True,
        help="Print JSON: one document, or one per line.",
    )
)


def print_json(document: Any) -> None:
    """Print a JSON document in ASCII, which any terminal and pipe supports.

    :param document: JSON values, and objects with ``as_dict()``.
    """
    text = json.dumps(document, indent=2, default=lambda one: one.as_dict())
    click.echo(text)


def print_report(report: Any, as_json: bool) -> None:
    """Print a report in readable form, or as JSON with its ``as_dict()``."""
    if as_json:
        print_json(report.as_dict())
    else:
        echo(str(report))


def echo(text: object, *, err: bool = False) -> None:
    """Print an object as a string with escaped control characters.

    :param err: print to standard error.
    """
    click.echo(printable(str(text)), err=err)


class ProgressLines(Generic[T]):
    """Prints the progress of a run to standard error every few seconds.

    :param describe: returns the line of a progress.
    """

    def __init__(self, describe: Callable[[T], str]) -> None:
        self._describe = describe
        self._shown = monotonic()

    def __call__(self, progress: T) -> None:
        """Print a line, unless the last one is new."""
        now = monotonic()
        if now - self._shown < _EVERY:
            return
        self._shown = now
        echo(self._describe(progress), err=True)


def examples(*lines: str) -> str:
    """Return the examples at the end of a command's help.

    :param lines: command lines, shown verbatim.
    """
    # \b keeps click from wrapping the lines.
    return "\n".join(["\b", "Examples:", *(f"  {line}" for line in lines)])


def end(*, is_good: bool, is_read: bool) -> None:
    """Exit with status 1 or 3; return if the status is 0.

    :param is_good: whether no problem was found.
    :param is_read: whether all shards could be read.
    """
    if not is_read:
        sys.exit(NOT_READ)
    if not is_good:
        sys.exit(FAILED)


def printable(text: str) -> str:
    """Return a string with escaped control characters, except tab and newline.

    Errors of servers and findings contain values of end users, which must
    not control the terminal of an operator.
    """
    return _CONTROL.sub(lambda found: ascii(found[0])[1:-1], text)
