"""Errors of commands: one line, and an exit status."""

from __future__ import annotations

import re
from typing import Any, IO

import click
from sqlalchemy.exc import SQLAlchemyError

from sqla_shard.cli.output import echo, FAILED, NOT_READ
from sqla_shard.engine.unreachable import reason
from sqla_shard.exc import FleetServerError, TopologyError

REPORTED = (click.ClickException, OSError, SQLAlchemyError)
"""Errors that are shown on one line; others are defects, with a traceback."""

# Lines that SQLAlchemy appends to the message of a driver.
_APPENDED = re.compile(r"\n(?:\[SQL: |\[parameters: |\(Background on ).*", re.S)


class FailureLine(click.ClickException):
    """An error to show on one line, with the name of the program.

    :param error: one of :data:`REPORTED`.
    """

    def __init__(self, error: Exception) -> None:
        super().__init__(
            error.format_message()
            if isinstance(error, click.ClickException)
            else one_line(error)
        )
        self._status = _status_of(error)

    @property
    def exit_code(self) -> int:  # type: ignore[override]  # which click reads
        """Exit status of the program."""
        return self._status

    def show(self, file: IO[Any] | None = None) -> None:
        """Print the error."""
        echo(f"sqla-shard: error: {self.message}", err=True)


def one_line(error: Exception) -> str:
    """Return the message of an error on one line."""
    if isinstance(error, TopologyError) and len(error.problems) > 1:
        return _joined(
            f"{error.source}: {len(error.problems)} problems, listed by "
            f"'sqla-shard topology validate'; first: {error.problems[0]}"
        )
    return _joined(_APPENDED.sub("", str(error)) or type(error).__name__)


def _status_of(error: BaseException) -> int:
    """Return the exit status for an error."""
    if isinstance(error, FleetServerError) and error.is_unanswered:
        return NOT_READ
    return FAILED if reason(error) is None else NOT_READ


def _joined(text: str) -> str:
    return " ".join(line for part in text.splitlines() if (line := part.strip()))
