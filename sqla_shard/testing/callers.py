"""The line of an application that has caused what is happening now."""

from __future__ import annotations

import linecache
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import greenlet

__all__ = ["SourceLine", "calling_line"]

# Never the application's code.
_LIBRARIES = frozenset({"greenlet", "sqlalchemy", "sqla_shard"})
# These call on behalf of others; their line is named if there is no better.
_CARRIERS = frozenset(
    {
        "asyncio",
        "concurrent",
        "contextlib",
        "functools",
        "jinja2",
        "threading",
    }
)


@dataclass(frozen=True, kw_only=True)
class SourceLine:
    """A line of source code.

    :ivar file: path of the file.
    :ivar number: the line's number, from 1.
    :ivar function: the function that it is part of.
    :ivar text: the line itself; empty where the file cannot be read.
    """

    file: str
    number: int
    function: str
    text: str

    def __str__(self) -> str:
        return f"{_short(self.file)}:{self.number}"


def calling_line() -> SourceLine:
    """Return the innermost line that is not SQLAlchemy's nor ours.

    Of a template of Jinja, the line of the template.
    """
    carrier = None
    for frame in _frames():
        package = str(frame.f_globals.get("__name__")).partition(".")[0]
        if package in _LIBRARIES:
            continue
        if package not in _CARRIERS:
            return _line_of(frame)
        carrier = carrier or frame
    if carrier is not None:
        return _line_of(carrier)
    return SourceLine(file="<unknown>", number=0, function="", text="")


def _frames() -> Iterator[FrameType]:
    """Yield the frames of this thread, from the inside to the outside.

    Under asyncio SQLAlchemy runs in a greenlet, whose frames end where it
    was started: those of the coroutine that waits for it are its parent's.
    """
    frame: FrameType | None = sys._getframe(1)
    current: greenlet.greenlet | None = greenlet.getcurrent()
    while current is not None:
        while frame is not None:
            yield frame
            frame = frame.f_back
        current = current.parent
        frame = None if current is None else current.gr_frame


def _line_of(frame: FrameType) -> SourceLine:
    file, number = frame.f_code.co_filename, frame.f_lineno
    template = frame.f_globals.get("__jinja_template__")
    if template is not None:
        # The code that runs is Python made of the template.
        number = template.get_corresponding_lineno(number)
    text = linecache.getline(file, number, frame.f_globals)
    return SourceLine(
        file=file,
        number=number,
        function=frame.f_code.co_name,
        text=text.strip(),
    )


def _short(file: str) -> str:
    """Return a path as one would type it."""
    try:
        return str(Path(file).relative_to(os.getcwd()))
    except ValueError:
        return file
