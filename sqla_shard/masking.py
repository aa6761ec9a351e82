"""URLs and settings as messages may show them: without their secrets.

Whatever may hold a URL passes through :func:`redact` on its way to an error,
a ``repr()``, a log, a report or a terminal.  It takes any text, since what is
shown is often what could not be read: a URL whose host was forgotten, or one
that was written where a name belongs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import date
from datetime import timedelta

__all__ = ["HARMLESS", "MASK", "cut", "only_placeholders", "redact", "shown"]

MASK = "***"

#: Options of URLs whose values are no secrets.  All others are masked: an
#: option that nobody knows may be a password, however it is spelled.
HARMLESS = frozenset(
    [
        *("charset", "connect_timeout", "program_name", "read_timeout"),
        *("ssl_ca", "ssl_capath", "ssl_cert", "ssl_check_hostname"),
        *("ssl_cipher", "ssl_key"),
        # Of ZooKeeper.
        *("ca", "certfile", "keyfile"),
    ]
)
_PLACEHOLDERS = re.compile(r"(?:\$\{[A-Za-z_][A-Za-z0-9_]*\})*")
_SEPARATORS = re.compile(r"([?&;#])")
_PLAIN = (bool, bytes, complex, float, int, type, type(None), date, timedelta)
_MOST = 80


def redact(text: str) -> str:
    """Return a text with the secrets of a URL in it replaced by ``***``.

    Placeholders stay as they are: they are names, not secrets.  A password
    may contain any mark, so all is masked from the ``:`` behind the user up
    to the last ``@``; of ``mysql://app:secret``, the host forgotten, what
    stands for the port; and the value of each option that is not known to
    be harmless.  The time is proportional to the length.

    :param text: any text.
    """
    head, mark, rest = text.partition("://")
    scheme = head + mark if mark else ""
    rest = rest if mark else head
    login, at, place = rest.rpartition("@")
    if at:
        user, colon, password = login.partition(":")
        if colon and not only_placeholders(password):
            password = MASK
        return f"{scheme}{user}{colon}{password}@{_options(place, scheme)}"
    if scheme and (secret := _port(rest)) is not None:
        return f"{scheme}{rest[:secret]}{MASK}"
    return scheme + _options(rest, scheme)


def only_placeholders(text: str) -> bool:
    """Whether a text is nothing but ``${NAME}``, or empty."""
    return _PLACEHOLDERS.fullmatch(text) is not None


def _port(rest: str) -> int | None:
    """Return where a password begins that stands for a port, if any."""
    start = 0
    for host in re.split("[/?#]", rest, maxsplit=1)[0].split(","):
        # The colons of an IPv6 address separate no port.
        colon = host.find(":", host.find("]") + 1)
        if colon >= 0:
            port = host[colon + 1 :]
            digits = port.isascii() and port.isdigit()
            if not digits and not only_placeholders(port):
                return start + colon + 1
        start += len(host) + 1
    return None


def _options(text: str, scheme: str) -> str:
    """Mask the values behind the ``?``; of other texts, those of a ``=``."""
    head, mark, query = text.partition("?")
    if not mark:
        return text
    parts = _SEPARATORS.split(query)
    for index in range(0, len(parts), 2):
        name, equals, value = parts[index].partition("=")
        if name in HARMLESS or (equals and only_placeholders(value)):
            continue
        if equals:
            parts[index] = f"{name}={MASK}"
        elif scheme and name:
            parts[index] = MASK
    return f"{head}?{''.join(parts)}"


def shown(value: object) -> str:
    """Return a value as a message may show it: short, and without secrets.

    :param value: of a mapping the keys are shown, and no values; of an
        object of another package its type alone.
    """
    if isinstance(value, str):
        # Cut before it is written out: that takes time and room, too.
        return cut(repr(redact(value)[: _MOST + 1]))
    if isinstance(value, Mapping):
        return cut(
            f"{{{', '.join(f'{shown(key)}: {MASK}' for key in value)}}}"
        )
    if isinstance(value, list | tuple | set | frozenset):
        return cut(f"[{', '.join(map(shown, value))}]")
    if isinstance(value, _PLAIN):
        return cut(redact(repr(value)))
    # A client, say, whose repr() has all of its settings.
    return f"<{type(value).__name__}>"


def cut(text: str) -> str:
    """Return a text with at most 80 characters."""
    return text if len(text) <= _MOST else f"{text[: _MOST - 3]}..."
