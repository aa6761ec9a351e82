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
open.  What browsers export besides links to web pages (``javascript:``,
``place:``) is noted as skipped.  A file that is something else, or not
whole, is refused with the line and the reason.  That may be its last line:
take all folders before you use the first.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from dataclasses import dataclass
from dataclasses import field
from html.parser import HTMLParser
from typing import BinaryIO

from examples.quickstart.links import Link
from examples.quickstart.links import read_link
from examples.quickstart.links import Skipped

__all__ = ["BookmarkError", "Folder", "Link", "Skipped", "read_folders"]

MAX_DEPTH = 100
"""Lists inside each other."""
MAX_TEXT = 500_000
"""Characters of a title or a description: a pin can hold both."""

_CHUNK = 1 << 18
_MAX_TAG = 1 << 22
_MAX_REST = 1 << 14
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
    :ivar path: titles from the outermost folder to this one; empty for what
        is outside of all folders.
    """

    line: int
    path: tuple[str, ...]
    details: str = ""
    links: list[Link] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)


def read_folders(file: BinaryIO) -> Iterator[Folder]:
    """Yield every folder of an export, empty ones too.

    A folder comes after those inside it; what is outside of all folders
    comes last.

    :param file: opened for reading bytes.
    :raises BookmarkError: when the file is not a whole export.
    """
    parser = _Parser()
    try:
        for text in _decoded(file):
            parser.feed(text)
            # An unfinished tag is looked at again with each chunk: after a
            # quote that is never closed, a large file would take for ever.
            if len(parser.rawdata) > _MAX_TAG:
                raise parser.error("a tag begins here that is far too long")
            yield from parser.take()
        # At the end html.parser looks for the end of each tag once more, up
        # to the end of the file: "<?" a million times would take hours.
        if "<" in parser.rawdata and len(parser.rawdata) > _MAX_REST:
            raise parser.error("a tag begins here that is not closed")
        parser.close()
    except AssertionError as error:
        # So html.parser says that "<![" begins nothing it knows.
        raise parser.error(f"no HTML: {error}") from None
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


class _Parser(HTMLParser):
    """Follows the lists; a ``<DL>`` is the content of the ``<H3>`` before it.

    Only lists have to be closed: ``</DT>`` and ``</DD>`` are rarely there,
    ``</A>`` and ``</H3>`` may be missing.  Other tags mean nothing.
    """

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self._complete: list[Folder] = []
        self._root = Folder(line=1, path=())
        # Open lists: the line of each, and the folder that it belongs to.
        self._lists: list[tuple[int, Folder]] = []
        self._has_doctype = self._has_list = False
        # A folder whose list has not begun yet.
        self._heading: Folder | None = None
        # What text belongs to; None where it belongs to nothing.
        self._entry: Link | Folder | None = None
        self._text: list[str] | None = None
        self._size = 0
        self._is_title = False

    def take(self) -> list[Folder]:
        """Return, once, the folders that are complete."""
        complete, self._complete = self._complete, []
        return complete

    def error(self, reason: str, line: int | None = None) -> BookmarkError:
        """Return an error at the present line."""
        return BookmarkError(line or self.getpos()[0], reason)

    @property
    def _folder(self) -> Folder:
        return self._lists[-1][1] if self._lists else self._root

    # -- what HTMLParser calls

    def handle_decl(self, decl: str) -> None:
        self._has_doctype |= decl.lower().split() == _DOCTYPE
        self._require_doctype()

    def handle_data(self, data: str) -> None:
        if not data.isspace():
            self._require_doctype()
        if self._text is not None:
            self._text.append(data)
            self._size += len(data)
            if self._size > MAX_TEXT:
                raise self.error(f"more than {MAX_TEXT:,} characters of text")

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self._require_doctype()
        if tag in ("br", "p"):
            self.handle_data("\n")
        begin = _TAGS.get(tag)
        if begin is not None:
            self._end_text()
            begin(self)

    def handle_endtag(self, tag: str) -> None:
        self._require_doctype()
        if tag in _TAGS:
            self._end_text()
        if tag == "dl":
            self._end_list()

    def close(self) -> None:
        super().close()
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

    def _begin_list(self) -> None:
        if len(self._lists) == MAX_DEPTH:
            raise self.error(f"more than {MAX_DEPTH} lists inside each other")
        self._has_list = True
        # A list without a heading is part of the folder around it.
        folder = self._heading or self._folder
        self._heading = self._entry = None
        self._lists.append((self.getpos()[0], folder))

    def _end_list(self) -> None:
        self._end_heading()
        if not self._lists:
            raise self.error("</DL> closes a list that has not begun")
        _, folder = self._lists.pop()
        if folder is not self._folder:
            self._complete.append(folder)

    def _begin_heading(self) -> None:
        self._end_heading()
        line, _ = self.getpos()
        self._heading = Folder(line=line, path=self._folder.path)
        self._begin_text(self._heading, is_title=True)

    def _end_heading(self) -> None:
        """Complete a folder that was given no list."""
        if self._heading is not None:
            self._complete.append(self._heading)
        self._heading = self._entry = None

    def _begin_link(self) -> None:
        self._end_heading()
        try:
            link = read_link(self.get_starttag_text() or "", self.getpos()[0])
        except ValueError as error:
            raise self.error(str(error)) from None
        if isinstance(link, Skipped):
            self._folder.skipped.append(link)
            return
        self._folder.links.append(link)
        self._begin_text(link, is_title=True)

    def _begin_details(self) -> None:
        if self._entry is not None:
            self._begin_text(self._entry, is_title=False)
            # Many short ones make a long one, and are added to it in turn.
            self._size += len(self._entry.details)

    # -- text

    def _begin_text(self, entry: Link | Folder, *, is_title: bool) -> None:
        self._entry = entry
        self._text = []
        # A title of a folder is part of the titles of those inside it.
        outer = entry.path if isinstance(entry, Folder) else ()
        self._size = sum(map(len, outer))
        self._is_title = is_title

    def _end_text(self) -> None:
        entry, text = self._entry, self._text
        self._text = None
        if entry is None or text is None:
            return
        lines = [" ".join(s.split()) for s in "".join(text).splitlines()]
        if not self._is_title:
            entry.details = "\n".join(filter(None, [entry.details, *lines]))
        elif isinstance(entry, Folder):
            entry.path += (" ".join(filter(None, lines)),)
        else:
            entry.title = " ".join(filter(None, lines))


_TAGS = {
    "a": _Parser._begin_link,
    "dd": _Parser._begin_details,
    "dl": _Parser._begin_list,
    "dt": _Parser._end_heading,
    "h1": _Parser._end_heading,
    "h3": _Parser._begin_heading,
    "hr": _Parser._end_heading,
}
