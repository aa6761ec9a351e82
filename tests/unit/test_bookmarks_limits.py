"""Bookmark files that would take the parser for ever, or all memory."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from examples.pinboard.errors import InvalidInputError
from examples.pinboard.importing import read_upload
from examples.pinboard.security import MAX_UPLOAD
from examples.quickstart.bookmarks import (
    BookmarkError,
    Folder,
    MAX_ENTRIES,
    read_folders,
)
from examples.quickstart.tags import MAX_TAG
from tests.workers.bookmark_files import attack, ATTACKS, DOCTYPE

SOAK = os.environ.get("SQLA_SHARD_SOAK") == "1"
#: Seconds of a processor for a byte: ten times what a slow one takes.
MOST = 5e-6
ROOT = Path(__file__).parents[2]


def read(text: str) -> list[Folder]:
    return list(read_folders(io.BytesIO(text.encode())))


def child(seed: str, count: int, size: int) -> dict:
    """Read files in a process that has little memory."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "tests.workers.bookmark_files"),
            *(seed, str(count), str(size)),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=7000 if SOAK else 500,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict = json.loads(done.stdout)
    return found


def test_no_attack_takes_long_or_much_memory() -> None:
    found = child("", 0, MAX_UPLOAD)
    assert found["outcomes"].keys() == ATTACKS.keys()
    # Each is refused, with a reason for the user.
    assert all(one.endswith(".") for one in found["outcomes"].values())
    seconds, name = found["worst"]
    assert seconds < MOST, name


def test_pieces_of_attacks(rng) -> None:
    """Pieces in any order; files that are not refused are imported."""
    seed = f"{rng.random()}"
    count, size = (3000, MAX_UPLOAD) if SOAK else (60, 300_000)
    found = child(seed, count, size)
    assert len(found["outcomes"]) == count
    seconds, name = found["worst"]
    assert seconds < MOST, name


def test_a_process_without_memory_ends() -> None:
    """The limit of the others is one that can be reached."""
    code = (
        "from tests.workers.bookmark_files import _limit\n"
        "_limit()\n"
        "bytearray(300 << 20)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "MemoryError" in done.stderr


@pytest.mark.parametrize("name", ATTACKS)
def test_small_ones(name: str) -> None:
    """Within the limits: read, or refused with a reason for the user."""
    for size in (1, 100, 5_000, 9_000):
        refused = None
        try:
            read_upload(io.BytesIO(attack(name, size)))
        except InvalidInputError as error:
            refused = error
        assert refused is None or refused.field == "file"
        assert refused is None or str(refused).endswith(".")


@pytest.mark.parametrize("piece", ["<!--", "<?", "<! ", "<a ", "</", "<!["])
def test_tags_without_an_end_are_refused(piece: str) -> None:
    text = f"{DOCTYPE}<DL>\n" + piece * (4_000_000 // len(piece))
    with pytest.raises(BookmarkError):
        read(text)


def test_a_tag_in_small_pieces() -> None:
    """It is looked at when it is twice as long, not with each piece."""

    class Slow(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            return super().read(16)

    text = f'{DOCTYPE}<A HREF="' + "x" * (MAX_TAG + 100)
    with pytest.raises(BookmarkError, match="far too long"):
        list(read_folders(Slow(text.encode())))


def test_descriptions_of_one_link_have_a_limit_together() -> None:
    text = '<DL><A HREF="https://a.example">A</A>' + "<DD>aaaa" * 101_000
    with pytest.raises(BookmarkError, match="500,000 characters"):
        read(f"{DOCTYPE}{text}</DL>")


def test_links_have_a_limit() -> None:
    text = '<DL><A HREF="https://a.example">A</A>' * (MAX_ENTRIES // 100)
    text = f"{DOCTYPE}{text}" + "<H3>" * MAX_ENTRIES
    with pytest.raises(BookmarkError):
        read(text)


def test_long_character_numbers_are_invalid() -> None:
    text = f"&#{'9' * 5_000}; &#65; &#x41; &#x{'f' * 5_000}; &amp;"
    url = f"https://a.example/?&#{'9' * 5_000};&#65;"
    (root,) = read(f'{DOCTYPE}<A HREF="{url}">{text}</DL>')
    (link,) = root.links
    assert link.title == "\ufffd A A \ufffd &"
    assert link.url == "https://a.example/?\ufffdA"
