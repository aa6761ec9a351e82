"""Which keys are equal: policies with a name and a version.

A key is stored as its policy writes it, and found by the hash of that.  So a
policy that changes loses rows; therefore it never does.  Another rule is
another version, and each row says under which one it was written.

======================= ===================================================
:data:`exact`           nothing is done: "a", "A" and "a " are three keys
:data:`casefold`        ``strip()``, NFC and ``casefold()``: for names
:data:`email`           ``strip()``, NFC, and A to Z made small; one part
                        before the last "@" and one after it
======================= ===================================================

``email`` folds no other letters, since the folding of all of them makes
addresses of different people equal; it knows no rules of single providers,
such as dots that make no difference; and it does not translate names of
domains: ``bücher.example`` and its form ``xn--bcher-kva.example`` are two
keys.

``casefold`` and ``email`` refuse characters that the Unicode of this Python
does not know: what becomes of them is not settled before they are there.

A policy of your own::

    def digits(number: str) -> str:
        return "".join(c for c in number if c in "0123456789")

    phone = Normalization(name="phone", version=1, function=digits)

Its function raises :exc:`ValueError`, with the reason, for what is no key.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass

from sqla_shard.exc import InvalidKeyError
from sqla_shard.types import LookupKey

__all__ = ["LONGEST_LABEL", "Normalization", "casefold", "email", "exact"]

_NAME = re.compile(r"[a-z][a-z0-9_.-]{0,29}")
_MOST_VERSIONS = 99_999
#: Characters of the longest ``name/version``.
LONGEST_LABEL = 40


@dataclass(frozen=True, kw_only=True)
class Normalization:
    """A policy: what makes two keys equal.

    :ivar name: lower case letters, digits, ``_``, ``.`` and ``-``.
    :ivar version: a number from 1.  A function that does something else is
        another version.
    :ivar function: returns the form in which a key is stored, of which it
        returns the same.
    :raises ValueError: for a name or a version that cannot be one.
    """

    name: str
    version: int
    function: Callable[[str], str]

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ValueError(
                f"name={self.name!r}; it has up to 30 of a-z, 0-9, _ . and "
                "-, and begins with a letter"
            )
        if (
            type(self.version) is not int
            or not 1 <= self.version <= _MOST_VERSIONS
        ):
            raise ValueError(
                f"version={self.version!r}; it is a number from 1 to "
                f"{_MOST_VERSIONS}"
            )

    @property
    def label(self) -> str:
        """Name and version, as rows have them."""
        return f"{self.name}/{self.version}"

    def __call__(self, key: str) -> str:
        """Return a key as it is stored.

        :raises InvalidKeyError: when it cannot be a key.
        """
        if not isinstance(key, str):
            raise InvalidKeyError(key=key, reason="it is not text")
        try:
            found = self.function(key)
        except ValueError as error:
            raise InvalidKeyError(key=key, reason=str(error)) from error
        if not isinstance(found, str):
            raise TypeError(f"{self.label} has made {found!r} of {key!r}")
        if not found:
            raise InvalidKeyError(key=key, reason="nothing is left of it")
        LookupKey.encoded(found)
        return found

    def __repr__(self) -> str:
        return f"<Normalization {self.label}>"


def _check_known(key: str) -> None:
    if key.isascii():
        return
    for character in key:
        if unicodedata.category(character) == "Cn":
            raise ValueError(
                f"U+{ord(character):04X} is no character of Unicode "
                f"{unicodedata.unidata_version}, which this Python knows"
            )


def _as_it_is(key: str) -> str:
    return key


def _folded(key: str) -> str:
    _check_known(key)
    # Decomposed before, for some marks are folded to letters, and composed
    # after: that of a folded key is itself.
    folded = unicodedata.normalize("NFD", key).casefold()
    return unicodedata.normalize("NFC", folded).strip()


#: Spaces and control characters.
_UNFIT = re.compile(r"[\s\x00-\x1f\x7f-\x9f]")
_SMALL = {capital: capital + 32 for capital in range(ord("A"), ord("Z") + 1)}


def _address(key: str) -> str:
    _check_known(key)
    # Composed again: "h" has forms with marks of its own that "H" has not.
    found = unicodedata.normalize("NFC", key).strip().translate(_SMALL)
    found = unicodedata.normalize("NFC", found)
    local, at, domain = found.rpartition("@")
    if not (local and at and domain):
        raise ValueError("it is no address: one has a part on each side of @")
    unfit = _UNFIT.search(found)
    if unfit:
        raise ValueError(f"it holds {unfit[0]!r}, which no address does")
    return found


exact = Normalization(name="exact", version=1, function=_as_it_is)
"""Nothing is done: equal bytes are equal keys."""

casefold = Normalization(name="casefold", version=1, function=_folded)
"""Upper and lower case are the same, and so are forms of one character;
spaces around it do not count."""

email = Normalization(name="email", version=1, function=_address)
"""A mail address; A to Z are the same as a to z."""
