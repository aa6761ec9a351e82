"""URLs of servers, and ``${NAME}`` placeholders in user and password.

A topology is stored, compared, logged and published with *unexpanded*
placeholders, so that it contains no secrets.  They are expanded when a
connection is opened, separately in the user and the password of the parsed
URL::

    url = sqlalchemy.make_url(server.primary)
    url = url.set(password=fill(url.password, os.environ))

If they were expanded in the URL as a string, a password that contains ``@`` or
``/`` could change the host.  Values are used verbatim: they are not
percent-decoded, and placeholders in them are not expanded.

A literal dollar sign is written twice, as in :class:`string.Template`:
``pa$$word`` is the password ``pa$word``.  A single ``$`` is refused when the
topology is loaded.  Otherwise ``$MYSQL_PASSWORD`` without braces would be sent
to the server as the password, and only fail with "access denied" later.

A URL is split exactly as by :func:`sqlalchemy.make_url`, so that the URL that
was checked is the one that is connected to.  Two forms exist::

    mysql://user:password@host:3306        also mariadb://, and +driver
    sqlite:///directory                    relative; sqlite:////absolute

A MySQL URL names no database, since one pooled connection serves all virtual
shards of its server.  An SQLite URL names a directory with one file for each
virtual shard.
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple
from urllib.parse import parse_qsl, unquote

from sqla_shard.exc import Problem, TopologyError
from sqla_shard.exc.base import shortened_list
from sqla_shard.util import masking

DEFAULT_PLACEHOLDERS = ("MYSQL_USER", "MYSQL_PASSWORD")
"""Placeholders that are allowed by default."""

_DOLLAR = re.compile(r"\$(?:(?P<escape>\$)|\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)\})?")
#: Matches names of secrets, such as SHOP_PW.
_SECRET = re.compile(
    r"pass|pwd|secret|token|credential|(?:^|_)(?:pw|key|auth)(?:_|$)", re.IGNORECASE
)


def fill(text: str, environ: Mapping[str, str]) -> str:
    """Return ``text`` with every ``${NAME}`` replaced by its value.

    :param text: a user or a password of a parsed URL, percent-decoded; never
        a whole URL.
    :param environ: values by name, such as ``os.environ``.
    :raises TopologyError: if ``environ`` lacks a name, or a ``$`` does not
        begin a placeholder.  The message contains neither ``text`` nor
        values.
    """

    def value(match: re.Match[str]) -> str:
        if match["escape"]:
            return "$"
        if match["name"] is None:
            raise _refusal("user or password", _malformed(match.start()))
        if match["name"] not in environ:
            raise _refusal(match[0], _missing(match["name"]))
        return environ[match["name"]]

    return _DOLLAR.sub(value, text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The placeholders that a document may use.

    :param allowed: names of the placeholders; None allows all.
    :param environ: mapping that must have their values; None skips this check.
    """

    allowed: Collection[str] | None = None
    environ: Mapping[str, str] | None = field(default=None, repr=False)

    @classmethod
    def of(cls, allowed: Collection[str], environ: Mapping[str, str] | None) -> Policy:
        """Return the policy of an application.

        :param allowed: the names that it allows.
        :param environ: the variables; None uses those of this process.
        :raises TopologyError: if ``allowed`` is a string.
        """
        if isinstance(allowed, str):
            # "PASS" in "MYSQL_PASSWORD" is true: a string would allow all of
            # its substrings.
            raise _refusal(
                "placeholders", f"{allowed!r} is one string; use a collection of names"
            )
        return cls(
            allowed=frozenset(allowed),
            environ=os.environ if environ is None else environ,
        )

    def faults(self, text: str, *, is_secret: bool) -> Iterator[str]:
        """Yield a message for each placeholder that cannot be expanded.

        :param text: a user or a password, percent-decoded.
        :param is_secret: whether ``text`` is the password.  Users are sent in
            clear text, and shown in "Access denied for user ...".
        """
        for match in _DOLLAR.finditer(text):
            name = match["name"]
            if match["escape"]:
                continue
            if name is None:
                yield _malformed(match.start())
            elif self.allowed is not None and name not in self.allowed:
                yield _forbidden(name, self.allowed)
            elif not is_secret and _SECRET.search(name):
                yield (
                    f"${{{name}}} is a secret by its name, and servers log "
                    "the user in clear text; put it after the ':', or give "
                    "the variable another name"
                )
            elif self.environ is not None and name not in self.environ:
                yield f"${{{name}}} {_missing(name)}"


def _malformed(index: int) -> str:
    # Show the position only: the text around it may be part of a password.
    return (
        f"the '$' at character {index + 1} does not begin a ${{NAME}}; "
        "write ${NAME} for a variable, or $$ for a dollar sign"
    )


def _missing(name: str) -> str:
    return f"has no value: set the environment variable {name}"


def _forbidden(name: str, allowed: Collection[str]) -> str:
    known = ", ".join(sorted(allowed)) or "none"
    return (
        f"${{{name}}} is not a placeholder that this application allows "
        f"({known}); use one of those, or pass its name in placeholders="
    )


def _refusal(place: str, message: str) -> TopologyError:
    return TopologyError([Problem(place, message)], source="placeholders")


_URL = re.compile(
    r"""
    (?P<scheme>[\w\+]+)://
    (?:
        (?P<user>[^:/]*)
        (?::(?P<password>[^@]*))?
    @)?+
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
#: Options that repeat the host, the port or the login: a URL could contradict
#: itself, or connect to another server than its host.
_REPEATED = frozenset(
    [
        *("database", "db", "host", "passwd", "password", "port"),
        *("unix_socket", "user"),
    ]
)


class _OptionFormat(NamedTuple):
    """The form of the value of an option.

    :ivar words: its description, for messages.
    """

    pattern: re.Pattern[str]
    words: str


_TEXT = _OptionFormat(re.compile(".+"), "a value")
_SECONDS = _OptionFormat(re.compile("[1-9][0-9]{0,5}"), "whole seconds, 1 or more")
#: The form of the value of each allowed option.  Other options are refused,
#: since a topology must not override the application: ``ssl_disabled``,
#: ``ssl_verify_cert``, ``ssl_verify_identity`` and ``ssl_key_password``
#: disable its checks of certificates; ``local_infile``, ``client_flag`` and
#: ``read_default_file`` expose its files to the server; ``init_command``,
#: ``sql_mode`` and ``autocommit`` change the meaning of statements; ``plugin``
#: and ``plugin_dir`` load code.
_OF_MYSQLDB = {
    "charset": _OptionFormat(re.compile("utf8mb4"), "utf8mb4"),
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
    "program_name": _OptionFormat(
        re.compile("[A-Za-z0-9_.:-]{1,64}"),
        "1 to 64 letters, digits and the characters '_.:-'",
    ),
    "ssl_check_hostname": _OptionFormat(
        re.compile("[01]|true|false"), "0, 1, true or false"
    ),
}
#: Allowed options by driver; "" is the driver of the application.
#: Asynchronous sessions use the same URLs, so asyncmy supports all of these.
#: Other drivers allow none.
OPTIONS: dict[str, dict[str, _OptionFormat]] = {
    "": _OF_PYMYSQL,
    "asyncmy": _OF_PYMYSQL,
    "mysqldb": _OF_MYSQLDB,
    "pymysql": _OF_PYMYSQL,
}
MAX_LENGTH = 2048
"""Maximum length of a URL; messages show URLs."""
_OUTSIDE = (
    "placeholders are allowed only in the user and the password; write out "
    "the rest of the URL"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """The address of a physical server, without user and password.

    :param family: the kind of server.
    :param where: its ``host:port`` in lower case, or an absolute directory.
    """

    family: Literal["mysql", "sqlite"]
    where: str

    def __str__(self) -> str:
        return self.where


class Url:
    """A URL, its address and its faults.

    :param text: the URL, placeholders unexpanded.
    :param policy: the placeholders that the URL may use.
    :ivar address: address of the server; None if the URL is not valid.
    :ivar faults: messages about faults, without passwords.
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
            # Percent-decoded, as by the engine.
            if match[part]:
                value = unquote(match[part])
                for fault in policy.faults(value, is_secret=part == "password"):
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

    def _check_mysql(self, match: re.Match[str], shown: _Shown) -> Iterator[str]:
        if _has_second_at(match):
            yield (
                f"{shown} has an '@' after the user and password; in these, "
                "write '@', ':', '/' and '?' as %40, %3A, %2F and %3F"
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
                f"{shown} has an invalid port; use a number from 1 to 65535, "
                "or omit it for 3306"
            )
        elif host:
            self.address = Address(family="mysql", where=f"{host}:{port}")

    def _check_sqlite(self, match: re.Match[str], shown: _Shown) -> Iterator[str]:
        if any(
            match[part] is not None
            for part in ("user", "ipv6", "host", "port", "query")
        ):
            yield (
                f"{shown} has a host, a user or options, which SQLite does "
                "not support; write sqlite:///relative or sqlite:////absolute"
            )
        elif match["path"] in (None, "", ":memory:"):
            yield (
                f"{shown} names no directory; write that of the files of its "
                "shards, such as sqlite:///data/server1"
            )
        elif "%" in match["path"]:
            # SQLAlchemy 2.1 decodes it, 2.0 does not: two directories.
            yield f"{shown} has a '%' in its path; choose another directory"
        else:
            where = os.path.abspath(match["path"])
            self.address = Address(family="sqlite", where=where)


def address_of(url: str) -> Address | None:
    """Return the address of a valid URL.

    :param url: URL with unexpanded placeholders.
    """
    return Url(url, Policy()).address


def _option_faults(match: re.Match[str], shown: _Shown) -> Iterator[str]:
    """Yield the faults of the options, without their values."""
    driver = match["scheme"].partition("+")[2]
    allowed = OPTIONS.get(driver, {})
    # As SQLAlchemy reads them: names are percent-decoded.
    given = parse_qsl(match["query"] or "", keep_blank_values=True)
    names = [name for name, _ in given]
    again = [name for name in names if name.lower() in _REPEATED]
    if again:
        yield (
            f"{shown} has the {_named(again)}; write it before the '?', since "
            "a server is identified by its host and port"
        )
    unknown = [
        # A name without a value may be part of a password.
        name if value else masking.MASK
        for name, value in given
        if name not in allowed and name.lower() not in _REPEATED
    ]
    if unknown:
        known = ", ".join(sorted(allowed)) or "none with this driver"
        yield (
            f"{shown} has the {_named(unknown)}, which is not allowed in a "
            f"URL (allowed: {known}); remove it, or set it in the "
            "application, with engine_options={'connect_args': ...}"
        )
    twice = [name for name in allowed if names.count(name) > 1]
    if twice:
        yield f"{shown} has the {_named(twice)} twice; remove one"
    for name, value in given:
        if name in allowed and not allowed[name].pattern.fullmatch(value):
            yield (
                f"{shown} has the option {name!r} with an invalid value; "
                f"write {allowed[name].words}"
            )


def _named(options: list[str]) -> str:
    several = list(dict.fromkeys(options))
    names = shortened_list([masking.masked(one) for one in several], 3)
    return f"option{'s' if several[1:] else ''} {names}"


class _Shown:
    """A URL in messages; it is masked when it is formatted."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __str__(self) -> str:
        return repr(masking.redact(self._text))


def _has_second_at(match: re.Match[str]) -> bool:
    """Return whether the apparent host may be part of a password."""
    parts = ("ipv6", "host", "port", "path", "query")
    return any("@" in (match[part] or "") for part in parts)


def _is_port(match: re.Match[str]) -> bool:
    # SQLAlchemy fails on the empty port of "host:".
    return match["port"] is None or bool(_PORT.fullmatch(match["port"]))


def _host(match: re.Match[str]) -> tuple[str, str]:
    """Return the normalized host, or "", and a message about its fault."""
    if match["ipv6"]:
        try:
            return f"[{ipaddress.IPv6Address(match['ipv6']).compressed}]", ""
        except ValueError:
            return "", f"has an invalid IPv6 address, [{match['ipv6']}]"
    if not match["host"]:
        return "", "has no host; write it after the '@' or the '://'"
    if not _HOST.fullmatch(match["host"]):
        return "", (
            f"has the invalid host {match['host']!r}; use letters, digits, "
            "'.', '_' and '-', or an IPv6 address in brackets"
        )
    return match["host"].lower(), ""
