"""Reading a bookmark file to its end, before anything is written.

So a refused file changes nothing; :mod:`.import_jobs` writes the boards and
pins of the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import BinaryIO, cast, IO

from examples.pinboard.errors import InvalidInputError
from examples.pinboard.inputs import (
    BoardInput,
    host_of,
    MAX_DETAILS,
    MAX_TITLE,
    PinInput,
    read_link,
    shorten,
)
from examples.quickstart.bookmarks import BookmarkError, Folder, Link, read_folders

MAX_PINS = 10_000
MAX_BOARDS = 500
_UNSORTED = "Unsorted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Upload:
    """The boards and pins that an import will write.

    :ivar boards: in the order of the file, each with its pins.
    :ivar skipped: the reason for each link that was left out, a line each.
    """

    boards: Sequence[tuple[BoardInput, Sequence[PinInput]]]
    skipped: Sequence[str] = ()

    @property
    def total(self) -> int:
        """Number of pins."""
        return sum(len(pins) for _, pins in self.boards)


def read_upload(file: IO[bytes]) -> Upload:
    """Read a bookmark file to its end.

    :param file: opened for reading bytes.
    :raises InvalidInputError: when it is not a whole bookmark file, holds
        no link, or too many.
    """
    found: list[tuple[int, BoardInput, list[PinInput]]] = []
    skipped: list[tuple[int, str]] = []
    total = 0
    try:
        for folder in read_folders(cast("BinaryIO", file)):
            pins, left_out = read_folder(folder)
            skipped += left_out
            if pins:
                found.append((folder.line, _board(folder), pins))
                total += len(pins)
            # Checked at once: the rest may take long to read.
            if total > MAX_PINS or len(found) > MAX_BOARDS:
                raise _bad_file(
                    f"This file has too many links. At most {MAX_PINS:,} "
                    f"links in {MAX_BOARDS:,} folders can be imported at "
                    "once."
                )
    except BookmarkError as error:
        reason = f"Line {error.line}: {error.reason}"
        raise _bad_file(f"This file cannot be imported. {reason}.") from error
    if not found:
        raise _bad_file("There is no link to a web page in this file.")
    found.sort(key=itemgetter(0))
    return Upload(
        boards=[(board, pins) for _, board, pins in found],
        skipped=[f"line {line}: {reason}" for line, reason in sorted(skipped)],
    )


def _bad_file(message: str) -> InvalidInputError:
    return InvalidInputError(message, field="file")


def _board(folder: Folder) -> BoardInput:
    title = shorten(" / ".join(folder.path), MAX_TITLE).strip()
    return BoardInput(
        title=title or _UNSORTED, details=shorten(folder.details, MAX_DETAILS)
    )


def read_folder(folder: Folder) -> tuple[list[PinInput], list[tuple[int, str]]]:
    """Return the pins of a folder, and line and reason of invalid ones."""
    pins = []
    skipped = [(one.line, one.reason) for one in folder.skipped]
    for link in folder.links:
        try:
            pins.append(_pin(link))
        except InvalidInputError as error:
            skipped.append((link.line, error.message))
    return pins, skipped


def _pin(link: Link) -> PinInput:
    url = read_link(link.url)
    return PinInput(
        link=url,
        title=shorten(link.title, MAX_TITLE).strip() or host_of(url),
        details=shorten(link.details, MAX_DETAILS),
    )
