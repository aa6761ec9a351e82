"""The line of the application that has executed a statement."""

from __future__ import annotations

import inspect
import linecache
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import greenlet

# Packages that are not the code of an application.
_LIBRARIES = frozenset({"greenlet", "sqlalchemy", "sqla_shard"})
# Packages that call functions of applications: their line is the last resort.
_INDIRECT = frozenset(
    {"asyncio", "concurrent", "contextlib", "functools", "jinja2", "threading"}
)


@dataclass(frozen=True, kw_only=True)
class SourceLine:
    """A line of source code.

    :ivar file: path of the file.
    :ivar number: number of the line, from 1.
    :ivar function: name of the function that contains the line.
    :ivar text: source code of the line; empty if the file cannot be read.
    """

    file: str
    number: int
    function: str
    text: str

    def __str__(self) -> str:
        return f"{_short(self.file)}:{self.number}"


def _is_library(frame: FrameType) -> bool:
    package = str(frame.f_globals.get("__name__")).partition(".")[0]
    return package in _LIBRARIES


def calling_frame(
    is_library: Callable[[FrameType], bool] = _is_library,
) -> FrameType | None:
    """Return the innermost frame of the application, or None.

    :param is_library: returns whether a frame is not of the application.
    """
    indirect = None
    for frame in _frames():
        if is_library(frame):
            continue
        package = str(frame.f_globals.get("__name__")).partition(".")[0]
        if package not in _INDIRECT:
            return frame
        indirect = indirect or frame
    return indirect


def calling_line() -> SourceLine:
    """Return the innermost line of the application.

    In a Jinja template it is the line of the template.
    """
    frame = calling_frame()
    if frame is not None:
        return _line_of(frame)
    return SourceLine(file="<unknown>", number=0, function="", text="")


def _frames() -> Iterator[FrameType]:
    """Yield the frames of this thread, innermost first.

    Under asyncio SQLAlchemy runs in a greenlet; the frames of the coroutine
    that awaits it belong to the parent greenlet.
    """
    frame: FrameType | None = sys._getframe(1)
    current: greenlet.greenlet | None = greenlet.getcurrent()
    while current is not None:
        while frame is not None:
            yield frame
            frame = frame.f_back
        current = current.parent
        frame = None if current is None else current.gr_frame


def position_of(frame: FrameType) -> tuple[str, int, str]:
    """Return the file, the line and the function that a frame executes."""
    file, number = frame.f_code.co_filename, frame.f_lineno
    template = frame.f_globals.get("__jinja_template__")
    if template is not None:
        # The frame has the line number of the Python code of the template.
        number = template.get_corresponding_lineno(number)
    return file, number, frame.f_code.co_name


def _line_of(frame: FrameType) -> SourceLine:
    file, number, function = position_of(frame)
    # All programs that are strings have this file name: since Python 3.13 the
    # lines would be those of the argument of `python -c`.
    text = ""
    if file != "<string>":
        text = linecache.getline(file, number, frame.f_globals)
    return SourceLine(file=file, number=number, function=function, text=text.strip())


def _short(file: str) -> str:
    """Return a path relative to the working directory, if it is in it."""
    try:
        return str(Path(file).relative_to(os.getcwd()))
    except ValueError:
        return file


# -- The place where a function is defined, to distinguish two of one name.


def definition_of(function: Any) -> str:
    """Return the module and qualified name of a function.

    For a method of an object the object is named, too: two objects of a class
    are two definitions.  A module that is loaded again defines the same.
    """
    path = f"{function.__module__}.{function.__qualname__}"
    if not inspect.ismethod(function):
        return path
    return f"{path} of {function.__self__!r}"
