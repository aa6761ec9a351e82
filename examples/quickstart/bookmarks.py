"""A browser's bookmark export, read as a stream.

Every browser exports the format that Netscape had::

    <!DOCTYPE NETSCAPE-Bookmark-file-1>
    <DL><p>
        <DT><H3>Boats</H3>
        <DL><p>
            <DT><A HREF="https://example.com" ADD_DATE="1700000037">Knots</A>
            <DD>With drawings.
        </DL><p>
    </DL><p>

:func:`read_folders` holds no more of it in memory than the folders that are
open.  Entries that are not links to web pages (``javascript:``,
``place:``) are reported as skipped.  Another kind of file, or a truncated
one, is refused with the line and the reason.  That may be its last line:
take all folders before you use the first.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import BinaryIO

from examples.quickstart.links import Link, read_link, Skipped
from examples.quickstart.tags import TagParser

__all__ = ["BookmarkError", "Folder", "Link", "Skipped", "read_folders"]

MAX_DEPTH = 100
"""Maximum depth of nested lists."""
MAX_TEXT = 500_000
"""Characters of a title or a description: a pin can hold both."""
MAX_PATH = 10_000
"""Characters of the titles of folders inside each other: each of them is
named by all of these, so that long ones would be written again and again."""
MAX_ENTRIES = 200_000
"""Maximum number of links and folders of a file."""

_CHUNK = 1 << 18
_DOCTYPE = ["doctype", "netscape-bookmark-file-1"]


class BookmarkError(ValueError):
    """Raised when a file is not a whole bookmark export.

    :ivar line: where, counted from 1.
    :ivar reason: what is wrong there.
    """

    def __init__(self, line: int, reason: str) -> None:
        super().__init__(line, reason)
        self.line = line
        self.reason = reason

    def __str__(self) -> str:
        return f"line {self.line}: {self.reason}"


@dataclass(slots=True, kw_only=True)
class Folder:
    """A folder, without the folders in it.

    :ivar line: of the file, counted from 1.
    :ivar path: titles from the outermost folder to this one; empty for links
        outside of all folders.
    """

    line: int
    path: tuple[str, ...]
    details: str = ""
    links: list[Link] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)


def read_folders(file: BinaryIO) -> Iterator[Folder]:
    """Yield every folder of an export, empty ones too.

    A folder comes after those inside it; links outside of all folders come
    last.

    :param file: opened for reading bytes.
    :raises BookmarkError: when the file is not a whole export.
    """
    parser = _Parser()
    for text in _decoded(file):
        parser.feed(text)
        yield from parser.take()
    parser.finish()
    yield from parser.take()


def _decoded(file: BinaryIO) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    line = 1
    chunk = None
    while chunk != b"":
        chunk = file.read(_CHUNK)
        try:
            text = decoder.decode(chunk, final=not chunk)
        except UnicodeDecodeError as error:
            line += error.object.count(b"\n", 0, error.start)
            reason = "not UTF-8, in which browsers write bookmarks"
            raise BookmarkError(line, reason) from None
        if "\0" in text:
            line += text.count("\n", 0, text.index("\0"))
            raise BookmarkError(line, "binary data, not text")
        line += text.count("\n")
        yield text


class _Parser(TagParser):
    """Follows the lists; a ``<DL>`` is the content of the ``<H3>`` before it.

    Only lists have to be closed: ``</DT>`` and ``</DD>`` are rarely there,
    ``</A>`` and ``</H3>`` may be missing.  Other tags mean nothing.
    """

    def __init__(self) -> None:
        super().__init__()
        self._complete: list[Folder] = []
        self._root = Folder(line=1, path=())
        # Open lists: the line of each, and the folder that it belongs to.
        self._lists: list[tuple[int, Folder]] = []
        self._has_doctype = self._has_list = False
        # A folder whose list has not started yet.
        self._heading: Folder | None = None
        # The element that text belongs to; None outside of all elements.
        self._entry: Link | Folder | None = None
        self._text: list[str] | None = None
        self._size = 0
        self._limit = MAX_TEXT
        self._is_title = False
        # Text of that element; joined once, when it is complete.
        self._details: list[str] = []
        self._details_size = 0
        self._entries = 0

    def take(self) -> list[Folder]:
        """Return, once, the folders that are complete."""
        complete, self._complete = self._complete, []
        return complete

    def error(self, reason: str, line: int | None = None) -> BookmarkError:
        """Return an error at the present line."""
        return BookmarkError(line or self.line, reason)

    @property
    def _folder(self) -> Folder:
        return self._lists[-1][1] if self._lists else self._root

    # -- methods that TagParser calls

    def declaration(self, text: str) -> None:
        self._has_doctype |= text[:100].lower().split() == _DOCTYPE
        self._require_doctype()

    def text(self, text: str) -> None:
        if not self._has_doctype and not text.isspace():
            self._require_doctype()
        if self._text is not None:
            self._text.append(text)
            self._size += len(text)
            if self._size > self._limit:
                raise self.error(f"more than {self._limit:,} characters of text")

    def start(self, name: str, tag: str) -> None:
        self._require_doctype()
        if name in ("br", "p"):
            self.text("\n")
        begin = _TAGS.get(name)
        if begin is not None:
            self._end_text()
            begin(self, tag)

    def end(self, name: str) -> None:
        self._require_doctype()
        if name in _TAGS:
            self._end_text()
        if name == "dl":
            self._end_list()

    def finish(self) -> None:
        """Read what is left, at the end of the file."""
        self.feed("", is_last=True)
        self._require_doctype()
        if self._lists:
            line, _ = self._lists[-1]
            reason = "the list <DL> that begins here is not closed"
            raise self.error(reason, line)
        if not self._has_list:
            raise self.error("the file ends without a list <DL>")
        self._end_text()
        self._end_heading()
        self._complete.append(self._root)

    def _require_doctype(self) -> None:
        if not self._has_doctype:
            raise self.error(
                "no bookmark file, which would begin with "
                "<!DOCTYPE NETSCAPE-Bookmark-file-1>"
            )

    # -- tags

    def _begin_list(self, tag: str) -> None:
        if len(self._lists) == MAX_DEPTH:
            raise self.error(f"more than {MAX_DEPTH} lists inside each other")
        self._has_list = True
        # A list without a heading is part of the folder around it.
        folder = self._heading or self._folder
        self._leave()
        self._lists.append((self.line, folder))

    def _end_list(self) -> None:
        self._end_heading()
        if not self._lists:
            raise self.error("</DL> closes a list that has not begun")
        _, folder = self._lists.pop()
        if folder is not self._folder:
            self._complete.append(folder)

    def _begin_heading(self, tag: str) -> None:
        self._end_heading()
        self._count()
        self._heading = Folder(line=self.line, path=self._folder.path)
        self._begin_text(self._heading, is_title=True)

    def _end_heading(self, tag: str = "") -> None:
        """Complete a folder that was given no list."""
        if self._heading is not None:
            self._complete.append(self._heading)
        self._leave()

    def _begin_link(self, tag: str) -> None:
        self._end_heading()
        self._count()
        try:
            link = read_link(tag, self.line)
        except ValueError as error:
            raise self.error(str(error)) from None
        if isinstance(link, Skipped):
            self._folder.skipped.append(link)
            return
        self._folder.links.append(link)
        self._begin_text(link, is_title=True)

    def _begin_details(self, tag: str) -> None:
        if self._entry is not None:
            self._begin_text(self._entry, is_title=False)

    def _count(self) -> None:
        self._entries += 1
        if self._entries > MAX_ENTRIES:
            raise self.error(f"more than {MAX_ENTRIES:,} links and folders")

    # -- text

    def _begin_text(self, entry: Link | Folder, *, is_title: bool) -> None:
        self._entry = entry
        self._text = []
        self._is_title = is_title
        self._limit = MAX_TEXT
        # Many short ones make a long one.
        self._size = 0 if is_title else self._details_size
        if is_title and isinstance(entry, Folder):
            # A title of a folder is part of the titles of those inside it.
            self._limit = MAX_PATH
            self._size = sum(map(len, entry.path))

    def _end_text(self) -> None:
        entry, text = self._entry, self._text
        self._text = None
        if entry is None or text is None:
            return
        lines = [" ".join(s.split()) for s in "".join(text).splitlines()]
        if not self._is_title:
            self._details += filter(None, lines)
            # Including the ends of lines.
            self._details_size = self._size + len(lines)
        elif isinstance(entry, Folder):
            entry.path += (" ".join(filter(None, lines)),)
        else:
            entry.title = " ".join(filter(None, lines))

    def _leave(self) -> None:
        """Complete the element that text belongs to."""
        if self._entry is not None and self._details:
            self._entry.details = "\n".join(self._details)
        self._details = []
        self._details_size = 0
        self._heading = self._entry = None


_TAGS = {
    "a": _Parser._begin_link,
    "dd": _Parser._begin_details,
    "dl": _Parser._begin_list,
    "dt": _Parser._end_heading,
    "h1": _Parser._end_heading,
    "h3": _Parser._begin_heading,
    "hr": _Parser._end_heading,
}
