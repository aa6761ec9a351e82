"""What commands print: JSON, errors in one line, examples in their help."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any
from typing import TypeVar

import click

from sqla_shard.exc import TopologyError

__all__ = ["examples", "json_option", "one_line", "print_json"]


F = TypeVar("F", bound=Callable[..., Any])

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


def examples(*lines: str) -> str:
    """Return the end of a command's help.

    :param lines: command lines, which are shown as they are.
    """
    # After \b click wraps nothing.
    return "\n".join(["\b", "Examples:", *(f"  {line}" for line in lines)])


def one_line(error: Exception) -> str:
    """Return the message of an error, without line breaks."""
    if isinstance(error, TopologyError) and len(error.problems) > 1:
        return _joined(
            f"{error.source}: {len(error.problems)} problems, which "
            f"'sqla-shard topology validate' lists; the first is "
            f"{error.problems[0]}"
        )
    return _joined(_BELOW.sub("", str(error)) or type(error).__name__)


def _joined(text: str) -> str:
    return " ".join(
        line for part in text.splitlines() if (line := part.strip())
    )
