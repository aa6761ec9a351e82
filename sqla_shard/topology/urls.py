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
from typing import NamedTuple
from urllib.parse import parse_qsl
from urllib.parse import unquote

from sqla_shard import masking
from sqla_shard.topology.placeholders import Policy

__all__ = ["MAX_LENGTH", "OPTIONS", "Address", "Url", "address_of"]

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
#: What the host, the port and the login say: a URL could say two things at
#: once, or reach a server that its host does not name.
_SAID_BEFORE = frozenset(
    [
        *("database", "db", "host", "passwd", "password", "port"),
        *("unix_socket", "user"),
    ]
)


class _Form(NamedTuple):
    """What the value of an option must look like.

    :ivar words: the same, for messages.
    """

    pattern: re.Pattern[str]
    words: str


_TEXT = _Form(re.compile(".+"), "a text")
_SECONDS = _Form(re.compile("[1-9][0-9]{0,5}"), "full seconds, 1 or more")
#: What a value must look like, for each option that a URL may have.  All
#: others are refused, for who writes the topology must not decide what the
#: application has decided: ``ssl_disabled``, ``ssl_verify_cert``,
#: ``ssl_verify_identity`` and ``ssl_key_password`` undo the certificates that
#: it insists on; ``local_infile``, ``client_flag`` and ``read_default_file``
#: hand its files to the server; ``init_command``, ``sql_mode`` and
#: ``autocommit`` change what statements mean; ``plugin`` and ``plugin_dir``
#: load code.
_OF_MYSQLDB = {
    "charset": _Form(re.compile("utf8mb4"), "utf8mb4, as everywhere"),
    "connect_timeout": _SECONDS,
    "read_timeout": _SECONDS,
    "ssl_ca": _TEXT,
    "ssl_capath": _TEXT,
    "ssl_cert": _TEXT,
    "ssl_cipher": _TEXT,
    "ssl_key": _TEXT,
}
_OF_PYMYSQL = {
    **_OF_MYSQLDB,
    "program_name": _Form(
        re.compile("[A-Za-z0-9_.:-]{1,64}"),
        "1 to 64 letters, digits and marks of '_.:-'",
    ),
    "ssl_check_hostname": _Form(
        re.compile("[01]|true|false"), "0, 1, true or false"
    ),
}
#: By driver; "" is that of the application.  Asynchronous sessions take the
#: same URLs, so what is here asyncmy understands, too.  Of drivers that are
#: not here no option is known.
OPTIONS: dict[str, dict[str, _Form]] = {
    "": _OF_PYMYSQL,
    "asyncmy": _OF_PYMYSQL,
    "mysqldb": _OF_MYSQLDB,
    "pymysql": _OF_PYMYSQL,
}
MAX_LENGTH = 2048
"""Characters of a URL.  What is wrong with one is told with the URL."""
_OUTSIDE = (
    "placeholders can stand only in the user and the password, which are "
    "filled in when a connection is made; write the rest of the URL out"
)


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
        if len(self.text) > MAX_LENGTH:
            yield (
                f"has {len(self.text)} characters, and a URL at most "
                f"{MAX_LENGTH}; write mysql://user:password@host:port"
            )
            return
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
        if re.search(r"[\x00-\x1f\x7f\ud800-\udfff]", self.text):
            yield (
                f"{shown} contains a control character, or half of a "
                "surrogate pair; remove it"
            )
            return
        for part in ("user", "password"):
            # Decoded, since the engine fills in what was decoded.
            for fault in policy.faults(
                unquote(match[part] or ""), is_secret=part == "password"
            ):
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
        yield from _option_faults(match, shown)
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


def _option_faults(match: re.Match[str], shown: _Shown) -> Iterator[str]:
    """Yield what is wrong with the options; no value is shown."""
    driver = match["scheme"].partition("+")[2]
    allowed = OPTIONS.get(driver, {})
    # As SQLAlchemy reads them: names are percent-decoded.
    given = parse_qsl(match["query"] or "", keep_blank_values=True)
    names = [name for name, _ in given]
    again = [name for name in names if name.lower() in _SAID_BEFORE]
    if again:
        yield (
            f"{shown} has the {_named(again)}; say it before the '?': a "
            "server is told by its host and port alone"
        )
    unknown = [
        # Without a value it may be a part of a password.
        name if value else masking.MASK
        for name, value in given
        if name not in allowed and name.lower() not in _SAID_BEFORE
    ]
    if unknown:
        known = ", ".join(sorted(allowed)) or "none with this driver"
        yield (
            f"{shown} has the {_named(unknown)}, which is not allowed in a "
            f"URL (allowed: {known}); remove it, or let the application say "
            "it, with engine_options={'connect_args': ...}"
        )
    twice = [name for name in allowed if names.count(name) > 1]
    if twice:
        yield f"{shown} has the {_named(twice)} twice; leave one"
    for name, value in given:
        if name in allowed and not allowed[name].pattern.fullmatch(value):
            yield (
                f"{shown} has the option {name!r} with a value that it "
                f"cannot have; write {allowed[name].words}"
            )


def _named(options: list[str]) -> str:
    several = list(dict.fromkeys(options))
    listed = ", ".join(map(masking.shown, several[:3]))
    more = f" and {len(several) - 3} more" if several[3:] else ""
    return f"option{'s' if several[1:] else ''} {listed}{more}"


class _Shown:
    """A URL in messages, without its password; most URLs need none."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __str__(self) -> str:
        return repr(masking.redact(self._text))


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
