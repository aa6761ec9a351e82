"""Checks of user input: links to web pages, and texts of bounded length.

A link is stored as it was entered, and shown to others: ``javascript:`` would
run in their browsers, and a password in an address would no longer be one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

from examples.pinboard.errors import InvalidInputError
from sqla_shard.exc import InvalidKeyError
from sqla_shard.models import normalization

MAX_LINK = 2000
MAX_TITLE = 200
MAX_DETAILS = 2000
MAX_NAME = 50
MAX_EMAIL = 254

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]")
_BIDI = re.compile("[\u202a-\u202e\u2066-\u2069]")
# Refused in a link: spaces, control characters, and characters that display
# another host than the one that is opened.
_FORBIDDEN = re.compile(
    r"[\s\x00-\x1f\x7f-\x9f\\\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PinInput:
    """A pin as it may be stored; one without a title has ""."""

    link: str
    title: str
    details: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardInput:
    """A board as it may be stored."""

    title: str
    details: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UserInput:
    """Valid input of a user who signs up."""

    email: str
    name: str
    about: str = ""


def read_link(text: str) -> str:
    """Return a link to a web page.

    :param text: the input; ``https://`` may be missing.
    :raises InvalidInputError: when it is no link to a web page.
    """
    link = text.strip()
    if not link:
        raise _bad_link("Enter a link.")
    if len(link) > MAX_LINK:
        raise _bad_link(f"A link has at most {MAX_LINK:,} characters.")
    if _FORBIDDEN.search(link):
        raise _bad_link("A link has no spaces, backslashes or line breaks.")
    if re.fullmatch(r"[\w-]+(\.[\w-]+)+(:\d+)?([/?#].*)?", link):
        link = f"https://{link}"
    parts = _split(link)
    if parts.scheme not in ("http", "https"):
        what = f"{parts.scheme[:20]}: is" if parts.scheme else "This is"
        raise _bad_link(
            f"{what} no web page. Only links with http:// or https:// can be pinned."
        )
    if not parts.hostname:
        raise _bad_link("The link has no host name.")
    if "@" in parts.netloc:
        raise _bad_link("A link must not contain a user name or password.")
    return link


def _split(link: str) -> SplitResult:
    try:
        parts = urlsplit(link)
        parts.port  # noqa: B018  # checks it
    except ValueError:
        raise _bad_link("This is not a valid link.") from None
    return parts


def _bad_link(message: str) -> InvalidInputError:
    return InvalidInputError(message, field="link")


def host_of(link: str) -> str:
    """Return the host of a stored link, without ``www.``."""
    return (urlsplit(link).hostname or "").removeprefix("www.")


def read_pin(link: str, title: str, details: str) -> PinInput:
    """Check the input for a pin.

    :raises InvalidInputError: when it cannot be stored.
    """
    checked = read_link(link)
    return PinInput(
        link=checked, title=_line(title, "title"), details=_text(details, "details")
    )


def read_board(title: str, details: str) -> BoardInput:
    """Check the input for a board.

    :raises InvalidInputError: when it cannot be stored.
    """
    line = _line(title, "title")
    if not line:
        raise InvalidInputError("A board needs a title.", field="title")
    return BoardInput(title=line, details=_text(details, "details"))


def read_user(email: str, name: str) -> UserInput:
    """Check the input of a user who signs up.

    :raises InvalidInputError: when it cannot be stored.
    """
    return UserInput(email=read_email(email), name=_name(name))


def read_email(text: str) -> str:
    """Return a mail address, as it was entered.

    :raises InvalidInputError: when it is not a mail address.
    """
    email = text.strip()
    try:
        normalization.email(email)
    except InvalidKeyError:
        email = ""
    if not email or len(email) > MAX_EMAIL:
        raise InvalidInputError("This is not a valid mail address.", field="email")
    return email


def _name(text: str) -> str:
    name = " ".join(_clean(text).split())
    if not name:
        raise InvalidInputError("Enter a name.", field="name")
    try:
        normalization.casefold(name)
    except InvalidKeyError:
        name = ""
    if not name or len(name) > MAX_NAME:
        raise InvalidInputError(
            f"A name has at most {MAX_NAME} characters, which others can read.",
            field="name",
        )
    return name


def shorten(text: str, length: int) -> str:
    """Return a text of a file, without control and bidi characters.

    :param length: characters at most; a longer one ends in an ellipsis.
    """
    clean = _clean(text)
    return clean if len(clean) <= length else f"{clean[: length - 1]}…"


def _line(text: str, field: str) -> str:
    line = " ".join(_clean(text).split())
    if len(line) > MAX_TITLE:
        raise InvalidInputError(
            f"A title has at most {MAX_TITLE} characters.", field=field
        )
    return line


def _text(text: str, field: str) -> str:
    clean = _clean(text.replace("\r\n", "\n")).strip()
    if len(clean) > MAX_DETAILS:
        raise InvalidInputError(
            f"A description has at most {MAX_DETAILS:,} characters.", field=field
        )
    return clean


def _clean(text: str) -> str:
    # Lone surrogates cannot be encoded.  Characters that reverse the direction
    # of text would also reverse the text around the title.
    encodable = text.encode("utf-8", "replace").decode("utf-8")
    return _BIDI.sub("", _CONTROL.sub(" ", encodable))
