"""Tags and text of HTML, in pieces of a file as they come.

:mod:`html.parser` looks at an unfinished tag again with each piece, and makes
a list of all attributes of all tags: a file of a few megabytes may take it
minutes, or a gigabyte.  This parser takes time in proportion to the length of
a file, and no more memory than its longest tag.
"""

from __future__ import annotations

import html
import re

MAX_TAG = 1 << 20
"""Maximum size of a tag or a comment; some contain an icon."""

#: Characters of an incomplete reference at the end of a piece.
_MAX_REFERENCE = 40
#: A character that does not exist; Python refuses numbers of 4,301 digits.
_NO_CHARACTER = re.compile(r"&#(?:[0-9]{8,}|[xX][0-9A-Fa-f]{7,});?")
_STOP = re.compile(r"[=>]")
_SPACE = re.compile(r"\s*")
_UNQUOTED = re.compile(r"[^\s>]*")
_NAME = re.compile(r"[A-Za-z][^\s/>]*")


def unescape(text: str) -> str:
    """Return a text with its character references replaced."""
    if "&" not in text:
        return text
    return html.unescape(_NO_CHARACTER.sub("\N{REPLACEMENT CHARACTER}", text))


class TagParser:
    """Calls a method for each tag and each text.

    :ivar line: of what the method is called for, counted from 1.
    """

    def __init__(self) -> None:
        self.line = 1
        self._pieces: list[str] = []
        self._length = 0
        # Before there is so much, it is not looked at: an unfinished tag
        # that is looked at when it is twice as long takes twice the time.
        self._enough = 0

    # -- methods of a subclass

    def error(self, reason: str) -> Exception:
        """Return the error for a tag that cannot be parsed."""
        raise NotImplementedError

    def declaration(self, text: str) -> None:
        """Handle the text between ``<!`` and ``>``."""
        raise NotImplementedError

    def start(self, name: str, tag: str) -> None:
        """Handle a start tag.

        :param name: in lower case.
        :param tag: all of it, from ``<`` to ``>``.
        """
        raise NotImplementedError

    def end(self, name: str) -> None:
        """Handle an end tag."""
        raise NotImplementedError

    def text(self, text: str) -> None:
        """Handle text, which may come in several parts."""
        raise NotImplementedError

    # -- reading

    def feed(self, piece: str, *, is_last: bool = False) -> None:
        """Read on.

        :param is_last: whether nothing follows.
        """
        self._pieces.append(piece)
        self._length += len(piece)
        if self._length < self._enough and not is_last:
            return
        buffer = "".join(self._pieces)
        rest = buffer[self._read(buffer, is_last) :]
        if len(rest) > MAX_TAG:
            raise self.error("a tag begins here that is far too long")
        self._pieces = [rest]
        self._length = len(rest)
        self._enough = min(2 * len(rest), MAX_TAG + 1)

    def _read(self, buffer: str, is_last: bool) -> int:
        """Parse complete tags and texts; return the start of the rest."""
        at, length = 0, len(buffer)
        while at < length:
            if buffer[at] == "<":
                end = self._tag(buffer, at)
                if end < 0 and not is_last:
                    return at
                if end < 0:
                    end = length
                    self.text(buffer[at:])
            else:
                end = buffer.find("<", at)
                if end < 0:
                    end = length if is_last else _whole(buffer, at)
                if end == at:
                    return at
                self.text(unescape(buffer[at:end]))
            self.line += buffer.count("\n", at, end)
            at = end
        return at

    def _tag(self, buffer: str, at: int) -> int:
        """Parse a tag, or a ``<`` that begins none; return its end.

        :returns: -1 where it is not whole.
        """
        kind = buffer[at + 1 : at + 2]
        if kind.isascii() and kind.isalpha():
            end = _end(buffer, at + 2)
            if end >= 0:
                tag = buffer[at:end]
                self.start(_name(tag, 1), tag)
            return end
        if kind == "!":
            return self._declaration(buffer, at)
        if kind not in ("", "/", "?"):
            self.text("<")
            return at + 1
        end = buffer.find(">", at + 2) + 1
        if kind and end:
            name = _name(buffer[at:end], 2)
            if kind == "/" and name:
                self.end(name)
            return end
        return -1

    def _declaration(self, buffer: str, at: int) -> int:
        if buffer[at + 2 : at + 3] == "[":
            raise self.error("no HTML: no browser writes <![")
        if buffer.startswith("<!--", at):
            end = buffer.find("-->", at + 4)
            return end + 3 if end >= 0 else -1
        if buffer[at:] in ("<!", "<!-"):
            return -1
        end = buffer.find(">", at + 2)
        if end < 0:
            return -1
        self.declaration(buffer[at + 2 : end])
        return end + 1


def _end(buffer: str, at: int) -> int:
    """Return the end of a tag; -1 if it is incomplete."""
    while (stop := _STOP.search(buffer, at)) is not None:
        at = stop.end()
        if stop[0] == ">":
            return at
        at = _SPACE.match(buffer, at).end()  # type: ignore[union-attr]  # may be empty
        quote = buffer[at : at + 1]
        if quote in ("'", '"'):
            at = buffer.find(quote, at + 1) + 1
            if not at:
                return -1
        else:
            at = _UNQUOTED.match(buffer, at).end()  # type: ignore[union-attr]  # may be empty
    return -1


def _name(tag: str, at: int) -> str:
    found = _NAME.match(tag, at)
    return "" if found is None else found[0].lower()


def _whole(buffer: str, at: int) -> int:
    """Return the end of the text before an incomplete reference."""
    reference = buffer.rfind("&", max(at, len(buffer) - _MAX_REFERENCE))
    if reference < 0 or ";" in buffer[reference:]:
        return len(buffer)
    return reference
