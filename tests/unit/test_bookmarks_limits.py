"""Bookmark files that would take the parser for ever."""

from __future__ import annotations

import io
import time

import pytest

from examples.quickstart.bookmarks import BookmarkError
from examples.quickstart.bookmarks import Folder
from examples.quickstart.bookmarks import read_folders

DOCTYPE = "<!DOCTYPE NETSCAPE-Bookmark-file-1>\n"


def read(text: str) -> list[Folder]:
    return list(read_folders(io.BytesIO(text.encode())))


@pytest.mark.parametrize("piece", ["<!--", "<?", "<! ", "<a ", "</", "<!["])
def test_tags_without_an_end_are_refused_in_time(piece: str) -> None:
    text = f"{DOCTYPE}<DL>\n" + piece * (4_000_000 // len(piece))
    begun = time.monotonic()
    with pytest.raises(BookmarkError):
        read(text)
    assert time.monotonic() - begun < 30


def test_descriptions_of_one_link_have_a_limit_together() -> None:
    text = '<DL><A HREF="https://a.example">A</A>' + "<DD>aaaa" * 101_000
    with pytest.raises(BookmarkError, match="500,000 characters"):
        read(f"{DOCTYPE}{text}</DL>")
