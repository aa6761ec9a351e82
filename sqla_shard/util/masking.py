"""Masking of secrets in URLs and settings, and text for messages and terminals.

Every string that may contain a URL passes through :func:`redact` before it is
shown in an error, a ``repr()``, a log, a report or a terminal.  It accepts any
string, since messages often show invalid ones: a URL without its host, or one
instead of a name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import date, timedelta

MASK = "***"

#: Options of URLs whose values are not secrets.  All others are masked: an
#: unknown option may be a password, however it is spelled.
HARMLESS = frozenset(
    [
        *("charset", "connect_timeout", "program_name", "read_timeout"),
        *("ssl_ca", "ssl_capath", "ssl_cert", "ssl_check_hostname"),
        *("ssl_cipher", "ssl_key"),
        # Options of ZooKeeper URLs.
        *("ca", "certfile", "keyfile"),
    ]
)
_PLACEHOLDERS = re.compile(r"(?:\$\{[A-Za-z_][A-Za-z0-9_]*\})*")
_SEPARATORS = re.compile(r"([?&;#])")
_PLAIN = (bool, bytes, complex, float, int, type, type(None), date, timedelta)
_MAX_VALUE_LENGTH = 80


def redact(text: str) -> str:
    """Return a string with the secrets of a URL in it replaced by ``***``.

    Placeholders stay as they are: they are names, not secrets.  A password
    may contain any character, so everything from the ``:`` after the user to
    the last ``@`` is masked; in ``mysql://app:secret``, which lacks the host,
    the part in the position of the port; and the value of each option that is
    not known to be harmless.  The time is proportional to the length.

    :param text: any string.
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
    """Return whether a string consists only of ``${NAME}``, or is empty."""
    return _PLACEHOLDERS.fullmatch(text) is not None


def _port(rest: str) -> int | None:
    """Return the position of a password instead of a port, or None."""
    start = 0
    for host in re.split("[/?#]", rest, maxsplit=1)[0].split(","):
        # The colons of an IPv6 address do not separate a port.
        colon = host.find(":", host.find("]") + 1)
        if colon >= 0:
            port = host[colon + 1 :]
            digits = port.isascii() and port.isdigit()
            if not digits and not only_placeholders(port):
                return start + colon + 1
        start += len(host) + 1
    return None


def _options(text: str, scheme: str) -> str:
    """Mask values after ``?``; without a scheme, only those after ``=``."""
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


def masked(value: object) -> str:
    """Return a short description of a value, without secrets.

    :param value: any value; of a mapping only the keys are shown, of an object
        of another package only its type.
    """
    if isinstance(value, str):
        # Cut first: repr() of a long string takes time and memory.
        return cut(repr(redact(value)[: _MAX_VALUE_LENGTH + 1]))
    if isinstance(value, Mapping):
        return cut(f"{{{', '.join(f'{masked(key)}: {MASK}' for key in value)}}}")
    if isinstance(value, list | tuple | set | frozenset):
        return cut(f"[{', '.join(map(masked, value))}]")
    if isinstance(value, _PLAIN):
        return cut(redact(repr(value)))
    # The repr() of a client, for example, may show all of its settings.
    return f"<{type(value).__name__}>"


def cut(text: str) -> str:
    """Return a string cut to at most 80 characters."""
    return (
        text
        if len(text) <= _MAX_VALUE_LENGTH
        else f"{text[: _MAX_VALUE_LENGTH - 3]}..."
    )


# Control characters of ASCII and Latin-1, Unicode line separators, and
# characters that change the direction of the text.
_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]"
)


def printable(text: str) -> str:
    """Return a string with escaped control characters, except tab and newline.

    Errors of servers and findings contain values of end users, which must
    not control the terminal of an operator.
    """
    return _CONTROL.sub(lambda found: ascii(found[0])[1:-1], text)


def host_and_port(host: str, port: int) -> str:
    """Return ``host:port``, with an IPv6 address in brackets."""
    # Without brackets the port would read as a part of the address.
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
