"""Normalization policies, which determine equal keys.

A key is stored in the form that its policy returns, and located by the hash
of that form.  A policy with other rules is therefore another version, and
each row names the policy that wrote it: rows of a changed policy would not be
found.

======================= ===================================================
:data:`exact`           no change: "a", "A" and "a " are three keys
:data:`casefold`        ``strip()``, NFC and ``casefold()``: for names
:data:`email`           ``strip()``, NFC, and A to Z in lower case; one part
                        before the last "@" and one after it
======================= ===================================================

``email`` changes the case of no other letters, because case folding makes
addresses of different people equal; it has no rules of particular providers,
such as ignoring dots; and it does not convert domain names:
``bücher.example`` and its form ``xn--bcher-kva.example`` are two keys.

``casefold`` and ``email`` reject characters that are unassigned in the Unicode
version of this Python: a later version may fold them in another way.

A policy of your own::

    def digits(number: str) -> str:
        return "".join(c for c in number if c in "0123456789")

    phone = Normalization(name="phone", version=1, function=digits)

Its function raises :exc:`ValueError`, with the reason, for an invalid key.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass

from sqla_shard.exc import InvalidKeyError
from sqla_shard.types import LookupKey

_NAME = re.compile(r"[a-z][a-z0-9_.-]{0,29}")
_MOST_VERSIONS = 99_999
#: Characters of the longest ``name/version``.
LONGEST_LABEL = 40


@dataclass(frozen=True, kw_only=True)
class Normalization:
    """A normalization policy.

    :ivar name: lower case letters, digits, ``_``, ``.`` and ``-``.
    :ivar version: an integer from 1.  A function with other results requires
        another version.
    :ivar function: returns the stored form of a key; it must be idempotent.
    :raises ValueError: for an invalid name or version.
    """

    name: str
    version: int
    function: Callable[[str], str]

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ValueError(
                f"name={self.name!r}; it must be up to 30 of a-z, 0-9, _ . "
                "and -, and begin with a letter"
            )
        if type(self.version) is not int or not 1 <= self.version <= _MOST_VERSIONS:
            raise ValueError(
                f"version={self.version!r}; it must be an integer from 1 to "
                f"{_MOST_VERSIONS}"
            )

    @property
    def label(self) -> str:
        """``name/version``, as stored in rows."""
        return f"{self.name}/{self.version}"

    def __call__(self, key: str) -> str:
        """Return the stored form of a key.

        :raises InvalidKeyError: if the key is not valid.
        """
        if not isinstance(key, str):
            raise InvalidKeyError(key=key, reason="it must be a str")
        try:
            text = self.function(key)
        except ValueError as error:
            raise InvalidKeyError(key=key, reason=str(error)) from error
        if not isinstance(text, str):
            raise TypeError(f"{self.label} must return a str, not {text!r} for {key!r}")
        if not text:
            raise InvalidKeyError(key=key, reason="it is empty after normalization")
        LookupKey.encoded(text)
        return text

    def __repr__(self) -> str:
        return f"<Normalization {self.label}>"


def _check_known(key: str) -> None:
    if key.isascii():
        return
    for character in key:
        if unicodedata.category(character) == "Cn":
            raise ValueError(
                f"U+{ord(character):04X} is not assigned in Unicode "
                f"{unicodedata.unidata_version}, the version of this Python"
            )


def _as_it_is(key: str) -> str:
    return key


def _folded(key: str) -> str:
    _check_known(key)
    # Decompose first, because some combining characters are folded to letters;
    # compose afterwards, so that a folded key does not change again.
    folded = unicodedata.normalize("NFD", key).casefold()
    return unicodedata.normalize("NFC", folded).strip()


#: Spaces and control characters.
_UNFIT = re.compile(r"[\s\x00-\x1f\x7f-\x9f]")
_SMALL = {capital: capital + 32 for capital in range(ord("A"), ord("Z") + 1)}


def _address(key: str) -> str:
    _check_known(key)
    # Compose again: "h" has composed forms with combining characters that "H"
    # lacks.
    text = unicodedata.normalize("NFC", key).strip().translate(_SMALL)
    text = unicodedata.normalize("NFC", text)
    local, at, domain = text.rpartition("@")
    if not (local and at and domain):
        raise ValueError("it is not a mail address: a part on one side of @ is missing")
    unfit = _UNFIT.search(text)
    if unfit:
        raise ValueError(f"it contains {unfit[0]!r}, which a mail address cannot")
    return text


exact: Normalization = Normalization(name="exact", version=1, function=_as_it_is)
"""Keys are not changed: equal bytes are equal keys."""

casefold: Normalization = Normalization(name="casefold", version=1, function=_folded)
"""Ignores case, Unicode composition and surrounding spaces."""

email: Normalization = Normalization(name="email", version=1, function=_address)
"""Policy of mail addresses; A to Z are equal to a to z."""
