"""Parse the tag ``<A HREF=... ADD_DATE=...>`` into a link.

Browsers write ``&`` into HREF as it is: ``?a=1&copy=2`` is not a reference to
the copyright sign, which HTML allows without a semicolon.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, UTC
from urllib.parse import urlsplit

from examples.quickstart.tags import unescape

MAX_ADDRESS = 500_000
"""Characters of a link and its tags; browsers stop at 2,000,000."""

_ATTRIBUTE = re.compile(r"""([^\s"'>/=]+)(?:\s*=\s*("[^"]*"|'[^']*'|[^\s>]*))?""")
_NAMES = frozenset(["href", "tags", "feedurl", "add_date"])
_REFERENCE = re.compile(r"&(?:#[0-9]+|#[xX][0-9A-Fa-f]+|[A-Za-z0-9]+);")


@dataclass(slots=True, kw_only=True)
class Link:
    """A link to a web page.

    :ivar line: of the file, counted from 1.
    :ivar added: when it was saved, if the browser says so.
    """

    line: int
    url: str
    title: str = ""
    details: str = ""
    tags: tuple[str, ...] = ()
    added: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """An entry that is no link to a web page, and why."""

    line: int
    reason: str


def read_link(tag: str, line: int) -> Link | Skipped:
    """Return the link of a tag, still without its title.

    :param tag: the text of the tag, from ``<A`` to ``>``.
    :param line: its line.
    :raises ValueError: when no browser would write it.
    """
    attributes = dict(_attributes(tag))
    url = attributes.get("href", "").strip()
    tags = attributes.get("tags", "")
    if not url and "feedurl" in attributes:
        return Skipped(line=line, reason="a feed without a page")
    if not url:
        raise ValueError("a link without HREF")
    if "\n" in url:
        raise ValueError("an HREF of several lines; is its quote closed?")
    problem = _problem(url)
    if not problem and len(url) + len(tags) > MAX_ADDRESS:
        problem = f"more than {MAX_ADDRESS:,} characters"
    if problem:
        return Skipped(line=line, reason=problem)
    return Link(
        line=line,
        url=url,
        tags=tuple(filter(None, map(str.strip, tags.split(",")))),
        added=_time(attributes.get("add_date", "")),
    )


def _attributes(tag: str) -> Iterator[tuple[str, str]]:
    """Yield name and value of the attributes that are used."""
    for match in _ATTRIBUTE.finditer(tag, len("<a")):
        name, value = match[1].lower(), match[2] or ""
        if name not in _NAMES:
            continue
        if value[:1] in ('"', "'"):
            value = value[1:-1]
        # Only what ends in ";": the rest is parameters of a query.
        yield name, _REFERENCE.sub(lambda m: unescape(m[0]), value)


def _problem(url: str) -> str | None:
    """Return the reason why this is not a web page; None if it is one."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "not a valid address"
    if not parts.scheme:
        return "not a whole address"
    if parts.scheme not in ("http", "https"):
        return f"{parts.scheme[:20]}: is no web page"
    return None if parts.hostname else "no host in the address"


def _time(text: str) -> datetime | None:
    if not re.fullmatch(r"[0-9]{1,20}", text):
        return None
    seconds = int(text)
    # Some browsers write milliseconds or microseconds.
    while seconds >= 10**11:
        seconds //= 1000
    return datetime.fromtimestamp(seconds, UTC) if seconds else None
