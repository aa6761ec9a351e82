"""Importing a bookmark file while the user watches.

The file is read to its end before anything is written, so one that is
refused changes nothing.  Then a thread writes its folders as boards: the last
one first and its last link first, because what is new goes on top, and in
the end everything is in the order of the file.

A board's first pins are one transaction with it, the others follow a hundred
at a time.  Progress is stored in this process, for a while: an application
with several processes would store it in a table.  When the process ends,
an import ends with what was written.
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Iterator
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace
from operator import itemgetter
from typing import Any
from typing import BinaryIO
from typing import cast
from typing import IO

from sqlalchemy.exc import SQLAlchemyError

from examples.pinboard.boards import add_board
from examples.pinboard.boards import add_pins
from examples.pinboard.errors import ConflictError
from examples.pinboard.errors import InvalidInputError
from examples.pinboard.errors import NotFoundError
from examples.pinboard.inputs import BoardInput
from examples.pinboard.inputs import host_of
from examples.pinboard.inputs import MAX_DETAILS
from examples.pinboard.inputs import MAX_TITLE
from examples.pinboard.inputs import PinInput
from examples.pinboard.inputs import read_link
from examples.pinboard.inputs import shorten
from examples.quickstart.bookmarks import BookmarkError
from examples.quickstart.bookmarks import Folder
from examples.quickstart.bookmarks import Link
from examples.quickstart.bookmarks import read_folders
from sqla_shard import Cluster
from sqla_shard import ShardSession

__all__ = ["Importer", "Progress", "Upload", "read_folder", "read_upload"]

MAX_PINS = 10_000
MAX_BOARDS = 500
_CHUNK = 100
_KEPT = 200
_SHOWN = 5
_UNSORTED = "Unsorted"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Upload:
    """What an import will write.

    :ivar boards: in the order of the file, each with its pins.
    :ivar skipped: why links were left out, a line for each.
    """

    boards: Sequence[tuple[BoardInput, Sequence[PinInput]]]
    skipped: Sequence[str] = ()

    @property
    def total(self) -> int:
        """How many pins."""
        return sum(len(pins) for _, pins in self.boards)


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far an import is.

    :ivar state: ``running``, ``done`` or ``failed``.
    :ivar done: pins that are stored.
    :ivar boards: boards that are stored, perhaps with some of their pins.
    :ivar skipped: how many links were left out.
    :ivar reasons: the first reasons for that.
    :ivar message: what went wrong, if it failed.
    """

    key: str
    user_id: int
    total: int
    total_boards: int
    skipped: int = 0
    reasons: tuple[str, ...] = ()
    state: str = "running"
    done: int = 0
    boards: int = 0
    message: str = ""

    def as_json(self) -> dict[str, Any]:
        """Return it for the API."""
        return {
            "id": self.key,
            "state": self.state,
            "done": self.done,
            "total": self.total,
            "boards": self.boards,
            "total_boards": self.total_boards,
            "skipped": self.skipped,
            "reasons": list(self.reasons),
            "message": self.message,
        }


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
            # As soon as it is known: the rest may take long to read.
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
        title=title or _UNSORTED,
        details=shorten(folder.details, MAX_DETAILS),
    )


def read_folder(
    folder: Folder,
) -> tuple[list[PinInput], list[tuple[int, str]]]:
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


@dataclass(slots=True)
class _Jobs:
    """Progress by key, oldest first; guarded by its lock."""

    by_key: dict[str, Progress] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, progress: Progress) -> None:
        with self.lock:
            running = [
                one
                for one in self.by_key.values()
                if one.state == "running" and one.user_id == progress.user_id
            ]
            if running:
                raise ConflictError(
                    "Your last import is still running; wait until it is done."
                )
            self.by_key[progress.key] = progress
            ended = [k for k, p in self.by_key.items() if p.state != "running"]
            for key in ended[: max(0, len(self.by_key) - _KEPT)]:
                del self.by_key[key]

    def update(self, key: str, **changes: Any) -> None:
        with self.lock:
            self.by_key[key] = replace(self.by_key[key], **changes)


class Importer:
    """Runs imports, two at a time.

    :param cluster: that boards and pins are written to.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._jobs = _Jobs()
        self._stopping = threading.Event()
        self._executor = ThreadPoolExecutor(2, "pinboard-import")

    def start(self, user_id: int, upload: Upload) -> Progress:
        """Begin an import and return at once.

        :raises ConflictError: when one of the user's is still running.
        """
        progress = Progress(
            key=secrets.token_urlsafe(12),
            user_id=user_id,
            total=upload.total,
            total_boards=len(upload.boards),
            skipped=len(upload.skipped),
            reasons=tuple(upload.skipped[:_SHOWN]),
        )
        self._jobs.add(progress)
        self._executor.submit(self._run, progress, upload)
        return progress

    def progress(self, key: str, user_id: int) -> Progress:
        """Return how far an import is.

        :raises NotFoundError: when the user has none of that key.
        """
        found = self._jobs.by_key.get(key)
        if found is None or found.user_id != user_id:
            raise NotFoundError("There is no such import.")
        return found

    def close(self) -> None:
        """Stop at the next transaction, and wait for that."""
        self._stopping.set()
        self._executor.shutdown(cancel_futures=True)

    def _run(self, progress: Progress, upload: Upload) -> None:
        done = boards = 0
        changes: dict[str, Any] = {
            "state": "failed",
            "message": "The import could not be finished.",
        }
        try:
            for board, pins in reversed(upload.boards):
                boards += 1
                for stored in self._write(progress.user_id, board, pins):
                    done += stored
                    self._jobs.update(progress.key, done=done, boards=boards)
                    if self._stopping.is_set():
                        changes["message"] = "The server is shutting down."
                        return
            changes = {"state": "done", "message": ""}
        except SQLAlchemyError:
            _log.exception("import %s", progress.key)
            changes["message"] = (
                "A database error. The counted pins are stored."
            )
        finally:
            # Also after an error: the page would wait forever for a thread
            # that has ended.
            self._jobs.update(progress.key, **changes)

    def _write(
        self, user_id: int, board: BoardInput, pins: Sequence[PinInput]
    ) -> Iterator[int]:
        rest = list(reversed(pins))
        first, rest = rest[:_CHUNK], rest[_CHUNK:]
        board_id = self._cluster.run(_add_filled, user_id, board, first)
        yield len(first)
        while rest:
            chunk, rest = rest[:_CHUNK], rest[_CHUNK:]
            self._cluster.run(add_pins, user_id, board_id, chunk)
            yield len(chunk)


def _add_filled(
    session: ShardSession,
    user_id: int,
    board: BoardInput,
    pins: Sequence[PinInput],
) -> int:
    board_id = add_board(session, user_id, board)
    add_pins(session, user_id, board_id, pins)
    return board_id
