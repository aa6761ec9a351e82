"""The URL of a physical server: what it may say, and how it is shown.

A URL is split here exactly as :func:`sqlalchemy.make_url` splits it, for
what was checked must be what is connected to.  Two forms exist::

    mysql://user:password@host:3306        also mariadb://, and +driver
    sqlite:///directory                    relative; sqlite:////absolute

A MySQL URL names no database, since one pooled connection serves every
virtual shard of its server.  An SQLite URL names the directory that holds
one file for each virtual shard.
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal
from urllib.parse import parse_qsl
from urllib.parse import unquote

from sqla_shard.topology.placeholders import Policy

__all__ = ["Address", "Url", "address_of", "redact"]

_URL = re.compile(
    r"""
    (?P<scheme>[\w\+]+)://
    (?:
        (?P<user>[^:/]*)
        (?::(?P<password>[^@]*))?
    @)?
    (?:
        (?:
            \[(?P<ipv6>[^/\?]+)\] |
            (?P<host>[^/:\?]+)
        )?
        (?::(?P<port>[^/\?]*))?
    )?
    (?:/(?P<path>[^\?]*))?
    (?:\?(?P<query>.*))?
    """,
    re.VERBOSE,
)
_SCHEME = re.compile(r"(?:mysql|mariadb)(?:\+[a-z0-9_]+)?|sqlite")
_HOST = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9._-]*[A-Za-z0-9_])?")
_PORT = re.compile(r"[0-9]{1,9}")
_ONLY_PLACEHOLDERS = re.compile(r"(?:\$\{[A-Za-z_][A-Za-z0-9_]*\})*")
_HARMLESS = {
    "password": _ONLY_PLACEHOLDERS,
    "port": re.compile(rf"[0-9]+|{_ONLY_PLACEHOLDERS.pattern}"),
}
_SECRET_OPTION = re.compile(
    r"([?&][^=&]*(?:pass|pwd|secret|token)[^=&]*=)[^&]*", re.IGNORECASE
)
# What a driver would also read from the options, so that a URL could say
# two things at once, or reach a server that its host does not name.
_FORBIDDEN_OPTIONS = frozenset(
    [
        "database",
        "db",
        "host",
        "passwd",
        "password",
        "port",
        "unix_socket",
        "user",
    ]
)
_OUTSIDE = (
    "placeholders can stand only in the user and the password, which are "
    "filled in when a connection is made; write the rest of the URL out"
)


def redact(url: str) -> str:
    """Return ``url`` with a password typed into it replaced by ``***``.

    Placeholders stay as they are: they are names, not secrets.  Text that
    is not a URL is returned with whatever stands between ``:`` and the
    last ``@`` replaced, since that is where a password would be.

    :param url: any text.
    """
    match = _URL.fullmatch(url)
    if match is None or _has_second_at(match):
        # Up to the last '@': a password may contain any other mark.
        login, at, host = url.rpartition("@")
        start = login.find("://") + 3 if "://" in login else 0
        colon = login.find(":", start)
        if colon >= 0 and not _ONLY_PLACEHOLDERS.fullmatch(login, colon + 1):
            url = f"{login[: colon + 1]}***{at}{host}"
    else:
        # Of app:secret, the host forgotten, the secret is the "port".
        part = "port" if match["password"] is None else "password"
        if match[part] and not _HARMLESS[part].fullmatch(match[part]):
            url = f"{url[: match.start(part)]}***{url[match.end(part) :]}"
    return _SECRET_OPTION.sub(r"\1***", url)


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """What tells two physical servers apart: never user or password.

    :param family: the kind of server.
    :param where: ``host:port`` in lower case, or an absolute directory.
    """

    family: Literal["mysql", "sqlite"]
    where: str

    def __str__(self) -> str:
        return self.where


class Url:
    """A URL, its address, and what is wrong with it.

    :param text: the URL, placeholders unexpanded.
    :param policy: the placeholders that it may use.
    :ivar address: where the server is; None where the URL does not tell.
    :ivar faults: messages, none of which shows a password.
    """

    def __init__(self, text: str, policy: Policy) -> None:
        self.text = text
        self.address: Address | None = None
        self.faults: tuple[str, ...] = tuple(self._check(policy))

    def _check(self, policy: Policy) -> Iterator[str]:
        shown = _Shown(self.text)
        match = _URL.fullmatch(self.text)
        if match is None or not _SCHEME.fullmatch(match["scheme"]):
            yield (
                f"{shown} is not the URL of a server; write "
                "mysql://user:password@host:port, mariadb://..., either "
                "with +driver, or sqlite:///directory"
            )
            if "$" in self.text:
                yield _OUTSIDE
            return
        if re.search(r"[\x00-\x1f\x7f]", self.text):
            yield f"{shown} contains a control character; remove it"
            return
        for part in ("user", "password"):
            # Decoded, since the engine fills in what was decoded.
            for fault in policy.faults(unquote(match[part] or "")):
                yield f"in the {part}, {fault}"
        outside = self.text
        for part in ("password", "user"):
            if match[part] is not None:
                start, end = match.span(part)
                outside = outside[:start] + outside[end:]
        if "$" in outside:
            yield f"{shown}: {_OUTSIDE}"
        elif match["scheme"] == "sqlite":
            yield from self._check_sqlite(match, shown)
        else:
            yield from self._check_mysql(match, shown)

    def _check_mysql(
        self, match: re.Match[str], shown: _Shown
    ) -> Iterator[str]:
        if _has_second_at(match):
            yield (
                f"{shown} has an '@' after the user and password; write the "
                "marks '@', ':', '/' and '?' in either as %40, %3A, %2F, %3F"
            )
            return
        if match["path"]:
            yield (
                f"{shown} names a database, but a pooled connection serves "
                "every database of its server; end the URL after the port"
            )
        for option, _ in parse_qsl(match["query"] or "", True):
            if option.lower() in _FORBIDDEN_OPTIONS:
                yield (
                    f"{shown} has the option {option!r}; say it before the "
                    "'?': a server is told by its host and port alone"
                )
        host, fault = _host(match)
        port = int(match["port"] or 3306) if _is_port(match) else 0
        if fault:
            yield f"{shown} {fault}"
        if not 1 <= port <= 65_535:
            yield (
                f"{shown} has no port from 1 to 65535 after the ':' behind "
                "its host; correct it, or leave it out for 3306"
            )
        elif host:
            self.address = Address(family="mysql", where=f"{host}:{port}")

    def _check_sqlite(
        self, match: re.Match[str], shown: _Shown
    ) -> Iterator[str]:
        if any(
            match[part] is not None
            for part in ("user", "ipv6", "host", "port", "query")
        ):
            yield (
                f"{shown} has a host, a user or options, and SQLite none of "
                "these; write sqlite:///relative or sqlite:////absolute"
            )
        elif match["path"] in (None, "", ":memory:"):
            yield (
                f"{shown} names no directory; write the one that will hold "
                "a file for each shard, as in sqlite:///data/server1"
            )
        elif "%" in match["path"]:
            # SQLAlchemy 2.1 decodes it, 2.0 does not: two directories.
            yield f"{shown} has a '%' in its path; choose another directory"
        else:
            where = os.path.abspath(match["path"])
            self.address = Address(family="sqlite", where=where)


def address_of(url: str) -> Address | None:
    """Return where the server of a URL is, that was checked before.

    :param url: placeholders unexpanded.
    """
    return Url(url, Policy()).address


class _Shown:
    """A URL in messages, without its password; most URLs need none."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __str__(self) -> str:
        return repr(redact(self._text))


def _has_second_at(match: re.Match[str]) -> bool:
    """Whether what seems to be the host may be part of a password."""
    parts = ("ipv6", "host", "port", "path", "query")
    return any("@" in (match[part] or "") for part in parts)


def _is_port(match: re.Match[str]) -> bool:
    # "host:" has an empty port, on which SQLAlchemy fails.
    return match["port"] is None or bool(_PORT.fullmatch(match["port"]))


def _host(match: re.Match[str]) -> tuple[str, str]:
    """Return the host in one spelling, or "", and what is wrong with it."""
    if match["ipv6"]:
        try:
            return f"[{ipaddress.IPv6Address(match['ipv6']).compressed}]", ""
        except ValueError:
            return "", f"has no IPv6 address in [{match['ipv6']}]"
    if not match["host"]:
        return "", "has no host; write it after the '@', or after '://'"
    if not _HOST.fullmatch(match["host"]):
        return "", (
            f"has the host {match['host']!r}; a host is letters, digits, "
            "'.', '_' and '-', or an IPv6 address in brackets"
        )
    return match["host"].lower(), ""
