"""From a text to the source that it names.

A text that begins with ``zookeeper://`` or ``zookeeper+tls://`` names a
ZooKeeper, every other one a file::

    topology.toml
    zookeeper://zk1:2181,zk2:2181/prod
    zookeeper+tls://zk1:2281/prod?ca=/etc/ssl/zk.pem

Credentials are no part of it, since it is shown in messages: they stand in
the environment variable ``SQLA_SHARD_ZOOKEEPER_AUTH``, as
``digest:user:password``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from collections.abc import Mapping
from typing import Any
from typing import cast
from urllib.parse import parse_qsl

from sqla_shard.exc import Problem
from sqla_shard.exc import TopologyError
from sqla_shard.following.contract import FollowedSource
from sqla_shard.following.files import FollowedFile
from sqla_shard.following.files import PolledSource
from sqla_shard.masking import redact
from sqla_shard.masking import shown
from sqla_shard.topology import DEFAULT_PLACEHOLDERS
from sqla_shard.topology import FileSource
from sqla_shard.topology import Topology
from sqla_shard.topology import TopologySource

__all__ = [
    "AUTH_VARIABLE",
    "check_hosts",
    "followed",
    "is_zookeeper",
    "load_location",
    "source_at",
    "zookeeper_options",
]

#: The environment variable with the credentials for ZooKeeper.
AUTH_VARIABLE = "SQLA_SHARD_ZOOKEEPER_AUTH"

_SCHEME = "zookeeper://"
_TLS_SCHEME = "zookeeper+tls://"
#: A host, or an address of IPv6 in brackets, and a port.
_HOST = re.compile(r"(?:[^\s:\[\]]+|\[[0-9A-Fa-f:.%]+\])(?::[0-9]{1,5})?")
_TLS_OPTIONS = frozenset({"ca", "certfile", "keyfile"})


def is_zookeeper(location: object) -> bool:
    """Tell whether a location names a ZooKeeper."""
    return isinstance(location, str) and location.startswith(
        (_SCHEME, _TLS_SCHEME)
    )


def source_at(
    location: str | os.PathLike[str],
    *,
    placeholders: Collection[str] = DEFAULT_PLACEHOLDERS,
    environ: Mapping[str, str] | None = None,
) -> FollowedSource:
    """Return the source that a location names; nothing is opened yet.

    :param location: a path, or a URL of the form above.
    :param placeholders: see :meth:`Topology.from_mapping`.
    :param environ: likewise.
    :raises TopologyError: when it cannot be one.
    :raises MissingExtraError: when ZooKeeper is meant, and kazoo is not
        installed.
    """
    if not is_zookeeper(location):
        file = FileSource(location, placeholders=placeholders, environ=environ)
        return FollowedFile(file)
    hosts, options = zookeeper_options(str(location))
    from sqla_shard.following.zookeeper import ZooKeeperSource

    return ZooKeeperSource(
        hosts, options=options, placeholders=placeholders, environ=environ
    )


def load_location(
    location: str | os.PathLike[str],
    *,
    placeholders: Collection[str] = DEFAULT_PLACEHOLDERS,
    environ: Mapping[str, str] | None = None,
) -> Topology:
    """Return the topology at a location, once; see :func:`source_at`.

    :raises TopologyUnavailableError: when a ZooKeeper does not answer, or
        nothing is published there.
    """
    source = source_at(location, placeholders=placeholders, environ=environ)
    try:
        return source.load()
    finally:
        source.stop()


def followed(source: TopologySource, interval: float = 5.0) -> FollowedSource:
    """Return what follows a source.

    :param source: returned as it is where it can be followed.
    :param interval: seconds between two questions to one that can only be
        asked.
    """
    if isinstance(source, FileSource):
        return FollowedFile(source)
    if hasattr(source, "start") and hasattr(source, "look"):
        return cast(FollowedSource, source)
    return PolledSource(source, interval)


def zookeeper_options(location: str) -> tuple[str, dict[str, Any]]:
    """Return the connection string of a location, and kazoo's options.

    :param location: begins with ``zookeeper://`` or ``zookeeper+tls://``.
    :raises TopologyError: when it cannot be used.
    """
    tls = location.startswith(_TLS_SCHEME)
    rest = location[len(_TLS_SCHEME if tls else _SCHEME) :]
    hosts, _, query = rest.partition("?")
    check_hosts(
        # A password may have a question mark.
        rest if "@" in rest else hosts,
        credentials=f"put them into the environment, {AUTH_VARIABLE}",
    )
    options: dict[str, Any] = {"use_ssl": True} if tls else {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if not tls or name not in _TLS_OPTIONS:
            known = ", ".join(sorted(_TLS_OPTIONS))
            raise _refusal(
                "query",
                f"{shown(name)} is none of {known}, of {_TLS_SCHEME}",
            )
        options[name] = value
    credentials = os.environ.get(AUTH_VARIABLE)
    if credentials:
        scheme, found, secret = credentials.partition(":")
        if not found:
            raise _refusal(
                AUTH_VARIABLE, "must be scheme:credentials, as digest:me:pass"
            )
        options["auth_data"] = [(scheme, secret)]
    return hosts.rstrip("/"), options


def check_hosts(hosts: str, *, credentials: str) -> None:
    """Refuse a connection string that leads nowhere, whatever is up.

    :param hosts: ``host:port,host:port/path``.
    :param credentials: what to do with those that are found in it.
    :raises TopologyError: when it has credentials, lacks a host, or has a
        port that is none.
    """
    # Not in the address alone: a password may have a slash.
    if "@" in hosts:
        raise _refusal(
            "hosts", f"credentials are not part of it; {credentials}"
        )
    if "?" in hosts:
        raise _refusal("hosts", "options are not part of it; remove the '?'")
    address, _, _ = hosts.partition("/")
    for part in address.split(","):
        if not _HOST.fullmatch(part.strip()):
            raise _refusal(
                "hosts",
                f"{redact(_SCHEME + address)!r} names no host, or a port "
                "that is no number; "
                "write host:port,host:port/path",
            )


def _refusal(place: str, message: str) -> TopologyError:
    return TopologyError([Problem(place, message)], source="zookeeper URL")
