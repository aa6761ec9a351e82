"""What commands print: JSON, errors in one line, examples in their help."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from typing import Any
from typing import TypeVar

import click

from sqla_shard.engines.troubles import reason
from sqla_shard.exc import TopologyError

__all__ = [
    "FAILED",
    "NOT_READ",
    "echo",
    "end",
    "examples",
    "json_option",
    "one_line",
    "print_json",
    "printable",
]

FAILED = 1
"""The status when something is wrong, or was not done."""

NOT_READ = 3
"""The status when a server or a database could not be read.

What was printed is of the others, and is not known of these.
"""


F = TypeVar("F", bound=Callable[..., Any])

# Control characters of ASCII and Latin-1; what ends lines or turns the
# direction of the text round.
_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]"
)
# What SQLAlchemy adds below the message of a driver.
_BELOW = re.compile(r"\n(?:\[SQL: |\[parameters: |\(Background on ).*", re.S)


def json_option(command: F) -> F:
    """Give a command the option ``--json``, as its argument ``as_json``."""
    return click.option(
        "--json", "as_json", is_flag=True, help="Print one JSON document."
    )(command)


def print_json(document: Any) -> None:
    """Print a document; ASCII, so that any terminal and pipe takes it."""
    click.echo(json.dumps(document, indent=2))


def echo(text: object, *, err: bool = False) -> None:
    """Print a text in which nothing controls the terminal.

    :param err: to the standard error.
    """
    click.echo(printable(str(text)), err=err)


def examples(*lines: str) -> str:
    """Return the end of a command's help.

    :param lines: command lines, which are shown as they are.
    """
    # After \b click wraps nothing.
    return "\n".join(["\b", "Examples:", *(f"  {line}" for line in lines)])


def end(*, is_good: bool, is_read: bool) -> None:
    """End with the status that is due; return where that is 0.

    :param is_good: whether nothing is wrong with what was read.
    :param is_read: whether everything was.
    """
    if not is_read:
        sys.exit(NOT_READ)
    if not is_good:
        sys.exit(FAILED)


def status_of(error: BaseException) -> int:
    """Return the status for an error that ends a command."""
    return FAILED if reason(error) is None else NOT_READ


def one_line(error: Exception) -> str:
    """Return the message of an error, without line breaks."""
    if isinstance(error, TopologyError) and len(error.problems) > 1:
        return _joined(
            f"{error.source}: {len(error.problems)} problems, which "
            f"'sqla-shard topology validate' lists; the first is "
            f"{error.problems[0]}"
        )
    return _joined(_BELOW.sub("", str(error)) or type(error).__name__)


def printable(text: str) -> str:
    """Return a text in which nothing controls the terminal.

    Line breaks and tabs stay.  Values of users come to the terminals of
    operators in what servers report and in what is verified.
    """
    return _CONTROL.sub(lambda found: ascii(found[0])[1:-1], text)


def _joined(text: str) -> str:
    return " ".join(
        line for part in text.splitlines() if (line := part.strip())
    )
