"""Bookmark files that are designed to take long, or much memory.

``python -m tests.workers.bookmark_files SEED COUNT BYTES`` reads so many
random
ones, or for 0 all attacks, in one process, whose memory is limited.  It prints
a line of JSON: what became of each file, and the most that one of them took of
the processor for a byte.
"""

from __future__ import annotations

import io
import json
import random
import resource
import sys
from time import thread_time
from typing import Any

from examples.pinboard.errors import InvalidInputError
from examples.pinboard.importing import read_upload

DOCTYPE = "<!DOCTYPE NETSCAPE-Bookmark-file-1>\n<DL>\n"
#: Memory that the process may take in addition to that at its start.
MEMORY = 256 << 20

#: Content of a file: a prefix, a repeated part, and a suffix.
ATTACKS: dict[str, tuple[str, str, str]] = {
    "tags in tags": ("", "<a ", ""),
    "a tag of tags": ("", "<a " * 340_000 + "href=x>", ""),
    "folders with a long name": (
        f"<H3>{'x' * 9_000}</H3><DL>",
        '<H3>y</H3><DL><A HREF="https://a.example">b</A></DL>',
        "</DL>",
    ),
    "folders with half a megabyte of name": (
        f"<H3>{'x' * 490_000}</H3><DL>",
        '<H3>y</H3><DL><A HREF="https://a.example">b</A></DL>',
        "</DL>",
    ),
    "folders in folders": ("", "<H3>y</H3><DL>", ""),
    "folders side by side": ("<H3>y</H3><DL>" * 99, "<H3>z", ""),
    "empty folders": ("", "<H3>y</H3><DL></DL>", ""),
    "descriptions": ('<A HREF="https://a.example">b</A>', "<DD>a", ""),
    "lines": ('<A HREF="https://a.example">b</A><DD>', "a\n", ""),
    "breaks": ('<A HREF="https://a.example">b</A><DD>', "<p>", ""),
    "links": ("", '<A HREF="http://a">b', ""),
    "links that are none": ("", "<A HREF=x>b", ""),
    "attributes": ("<A HREF=http://a ", "a=b ", ">b</A>"),
    "names": ("<A HREF=http://a ", "a", ">b</A>"),
    "blanks": ("<A HREF ", " ", "=http://a>b</A>"),
    "quotes": ("<A ", "a='\" ", ">b</A>"),
    "quotes without an end": ('<A HREF="', "x", ""),
    "references": ("<H3>", "&amp", ""),
    "ampersands": ("<H3>", "&", ""),
    "a number": ("<H3>&#", "9", ";"),
    "a number in an address": ('<A HREF="http://a/?&#', "9", ';">b</A>'),
    "a letter of a number": ("<H3>&#x", "f", ";"),
    "comments": ("", "<!--", ""),
    "a comment": ("<!-- ", "-", ""),
    "instructions": ("", "<?", ""),
    "declarations": ("", "<! ", ""),
    "ends": ("", "</", ""),
    "signs": ("", "<", ""),
    "scripts": ("", "<script>", ""),
    "tags of a link": ('<A HREF="http://a" TAGS="', "a,", '">b</A>'),
    "an address": ('<A HREF="http://a/', "%00", '">b</A>'),
    "a host": ('<A HREF="http://', "a.", '">b</A>'),
    "blanks of a title": ("<H3>", " \t", "</H3>"),
    "other ends of lines": ("<H3>", "\u2028", "</H3>"),
    "closing": ("", "<DL></DL>", ""),
}


def attack(name: str, size: int) -> bytes:
    """Return a file of about a size."""
    before, again, after = ATTACKS[name]
    text = again * (size // len(again.encode()) + 1)
    return f"{DOCTYPE}{before}{text}{after}</DL>".encode()


def hostile(rng: random.Random, size: int) -> bytes:
    """Return a file of pieces of attacks, of a size at most."""
    parts = [DOCTYPE if rng.random() < 0.95 else ""]
    length = 0
    while length < size:
        name = rng.choice(list(ATTACKS))
        before, again, after = ATTACKS[name]
        times = 1 + int(rng.paretovariate(0.5)) if len(again) < 100 else 1
        piece = before + again * min(times, size // len(again)) + after
        parts.append(piece)
        length += len(piece)
    text = "".join(parts).encode()[:size]
    if text and rng.random() < 0.1:
        at = rng.randrange(len(text))
        return text[:at] + bytes([rng.randrange(256)]) + text[at + 1 :]
    return text


def read(data: bytes) -> tuple[str, float]:
    """Read a file; return what became of it, and seconds of a processor."""
    begun = thread_time()
    try:
        upload = read_upload(io.BytesIO(data))
        outcome = f"{upload.total} links"
    except InvalidInputError as error:
        outcome = str(error)
    return outcome, thread_time() - begun


def _limit() -> None:
    """Let the process have no more memory than it may need."""
    with open("/proc/self/statm") as file:
        pages = int(file.read().split()[0])
    most = pages * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def main(seed: str, count: int, size: int) -> dict[str, Any]:
    rng = random.Random(seed)
    # Either all attacks, or random files.
    files = {} if count else {name: attack(name, size) for name in ATTACKS}
    _limit()
    worst: tuple[float, str] = (0.0, "")
    outcomes: dict[str, str] = {}
    for number in range(count or len(files)):
        if count:
            name, data = f"{seed}:{number}", hostile(rng, rng.randrange(size))
        else:
            name, data = files.popitem()
        outcome, seconds = read(data)
        outcomes[name] = outcome[:200]
        # The constant part of each file does not count.
        worst = max(worst, (seconds / (len(data) + 100_000), name))
    return {"outcomes": outcomes, "worst": worst}


if __name__ == "__main__":
    _, seed, count, size = sys.argv
    json.dump(main(seed, int(count), int(size)), sys.stdout)
