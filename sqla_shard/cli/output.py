"""Output of commands: text and colours, JSON, exit statuses.

Text is for people: it has colours on a terminal, and tables where they fit.
A pipe gets plain lines.  ``--output json`` prints data.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from time import monotonic
from typing import Any, Generic, Protocol, TYPE_CHECKING, TypeVar

import click

from sqla_shard.util.masking import printable

if TYPE_CHECKING:
    from sqla_shard.engine.unreachable import UnreachableServer

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


class Decorator(Protocol):
    """Adds options to a command."""

    def __call__(self, function: CommandT, /) -> CommandT:
        """Return the command."""


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


def command(
    name: str, *lines: str, cls: type[click.Command] = click.Command
) -> Callable[[Callable[..., Any]], click.Command]:
    """Return a decorator that makes a function a command.

    :param name: name of the command.
    :param lines: examples at the end of its help, shown verbatim.
    :param cls: class of the command.
    """
    return click.command(name, cls=cls, epilog=examples(*lines) if lines else None)


def examples(*lines: str) -> str:
    """Return the examples at the end of a command's help.

    :param lines: command lines, shown verbatim.
    """
    # \b keeps click from wrapping the lines.
    return "\n".join(["\b", "Examples:", *(f"  {line}" for line in lines)])


def option(
    usage: str, text: str, kind: Any = None, *, to: str | None = None, **settings: Any
) -> Callable[[CommandT], CommandT]:
    """Return an option of a command.

    :param usage: its names, and the word for its value in the help, such as
        ``-c --config FILE``.  Without such a word and a type it is a flag.
    :param text: its help.
    :param kind: type of the value, as for click.
    :param to: parameter of the function; by default the name of the option.
    :param settings: other arguments of :func:`click.option`.
    """
    names = [word for word in usage.split() if word.startswith("-")]
    value = usage.removeprefix(" ".join(names)).strip() or None
    # click finds out itself that --do/--no-do is one.
    is_flag = True if value is kind is None and "/" not in usage else None
    names += filter(None, [to])
    return click.option(
        *names, metavar=value, type=kind, is_flag=is_flag, help=text, **settings
    )


#: Where the value of ``--output`` is, in the context of a command.
_FORMAT = "sqla_shard.output"


def _store_format(
    ctx: click.Context, param: click.Parameter, value: str | None
) -> None:
    if value is not None:
        ctx.meta[_FORMAT] = value


def _is_data(ctx: click.Context, param: click.Parameter, is_json: bool) -> bool:
    chosen = ctx.meta.get(_FORMAT)
    if is_json and chosen not in (None, "json"):
        raise click.UsageError(f"--json excludes --output {chosen}", ctx)
    return is_json or chosen == "json"


def _data_option(text: str) -> Callable[[CommandT], CommandT]:
    return with_options(
        option(
            "--output",
            "Format of the output; table is text, with tables on a terminal.",
            click.Choice(["table", "json"]),
            expose_value=False,
            # Before --json, which depends on it.
            is_eager=True,
            callback=_store_format,
        ),
        option("--json", text, to="as_data", callback=_is_data),
    )


data_option: Decorator = _data_option("Print one JSON document, as --output json.")
"""Options of commands that print one document instead of text.

The command gets ``as_data``: whether to call :func:`print_data`.
"""

lines_option: Decorator = _data_option(
    "Print JSON: one document, or one per line, as --output json."
)
"""The same for commands that may print several documents."""


def print_data(document: Any, *, is_line: bool = False) -> None:
    """Print a document as JSON.

    It is in ASCII, which any terminal and pipe supports.

    :param document: JSON values, and objects with ``as_dict()``.
    :param is_line: print it on one line, for commands that print several
        documents.
    """
    import json

    click.echo(
        json.dumps(
            document, indent=None if is_line else 2, default=lambda one: one.as_dict()
        )
    )


def print_report(report: Any, as_data: bool) -> None:
    """Print a report in readable form, or as data with its ``as_dict()``."""
    if as_data:
        print_data(report.as_dict())
    else:
        echo(str(report))


def print_found(
    document: dict[str, Any],
    lines: Iterable[object],
    unreachable: Sequence[UnreachableServer],
    as_data: bool,
    *,
    is_good: bool,
    last: str = "",
) -> None:
    """Print what was found on all shards, and exit with the status for it.

    :param document: what it is as data, without the servers.
    :param lines: the same in readable form.
    :param unreachable: servers that were not read; they follow.
    :param is_good: whether no problem was found.
    :param last: a last line in readable form.
    """
    from sqla_shard.engine.unreachable import unreachable_lines, unreachable_values

    if as_data:
        print_data({**document, "unreachable": unreachable_values(unreachable)})
    else:
        for line in (*lines, *unreachable_lines(unreachable), *filter(None, [last])):
            echo(line)
    end(is_good=is_good, is_read=not unreachable)


# Words at the beginning of a line, and what they are shown in.  Commands
# write a failure, a warning or a difference in this form, and nothing else.
_COLOURED = (
    (
        "red",
        re.compile(
            r"\s*(?:sqla-shard: error|error|critical|failed|refused)(?=[:,])"
            r"|\s*\S+ (?:\(standby\) )?(?:unreachable|not read)"
            r"(?: \(\d+\))?(?=:)"
            r"|(?=.*: DOWN$)\S+ \S+"
            r"|\s*\d+ (?:failed|in doubt|server not reached|no such database)"
            r"|\s+-(?= )"
        ),
    ),
    (
        "yellow",
        re.compile(r"\s*(?:warning|unknown|not read)(?=:)|\s*\d+ not attempted"),
    ),
    ("green", re.compile(r"\s+\+(?= )")),
)
_CHANGED = re.compile(r"(?<!\S)(\S+) -> (\S+)")


def has_colours(*, err: bool = False) -> bool:
    """Return whether output has colours: on a terminal, without NO_COLOR."""
    stream = sys.stderr if err else sys.stdout
    return (
        stream.isatty()
        and not os.environ.get("NO_COLOR")
        and os.environ.get("TERM") != "dumb"
    )


def coloured(line: str) -> str:
    """Return a line with its failure, warning or difference in colour."""
    for colour, words in _COLOURED:
        if found := words.match(line):
            head = click.style(found[0], fg=colour, bold=True)
            return f"{head}{line[found.end() :]}"
    return _CHANGED.sub(
        lambda found: (
            f"{click.style(found[1], fg='red')} -> {click.style(found[2], fg='green')}"
        ),
        line,
    )


def echo(text: object, *, err: bool = False) -> None:
    """Print an object as a string with escaped control characters.

    On a terminal, lines that begin with a failure or a warning are coloured.

    :param err: print to standard error.
    """
    shown = printable(str(text))
    if has_colours(err=err):
        shown = "\n".join(map(coloured, shown.split("\n")))
    click.echo(shown, err=err)


def print_table(
    titles: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    failed: Collection[int] = (),
) -> bool:
    """Print a table, and return True, if the terminal is wide enough for it.

    The caller prints lines otherwise, as for a pipe: cells that are broken
    into pieces cannot be read or copied.

    :param titles: titles of the columns; columns without a value are left out.
    :param rows: the cells of each row.
    :param failed: numbers of the rows that are shown in red.
    """
    if not sys.stdout.isatty() or not rows:
        return False
    # Imported here: they take longer than `sqla-shard id` may take.
    from shutil import get_terminal_size

    from rich.cells import cell_len, set_cell_size

    shown = [n for n in range(len(titles)) if any(row[n] for row in rows)]
    table = [[printable(row[n]) for n in shown] for row in (titles, *rows)]
    widths = [max(map(cell_len, column)) for column in zip(*table, strict=True)]
    if sum(widths) + 2 * len(widths) > get_terminal_size().columns:
        return False
    for number, row in enumerate(table, -1):
        cells = map(set_cell_size, row, widths)
        line = "  ".join(cells).rstrip()
        if has_colours() and number in failed:
            line = click.style(line, fg="red")
        elif has_colours() and number < 0:
            line = click.style(line, bold=True)
        click.echo(line)
    return True


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


def end(*, is_good: bool, is_read: bool) -> None:
    """Exit with status 1 or 3; return if the status is 0.

    :param is_good: whether no problem was found.
    :param is_read: whether all shards could be read.
    """
    if not is_read:
        sys.exit(NOT_READ)
    if not is_good:
        sys.exit(FAILED)
