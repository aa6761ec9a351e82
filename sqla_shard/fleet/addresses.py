"""Addresses of servers, and their use in the topology."""

from __future__ import annotations

import re

from sqla_shard.fleet.fleet import all_pairs
from sqla_shard.topology import Topology
from sqla_shard.topology.urls import address_of

_ADDRESS = re.compile(r"(?:\[[0-9a-f:.]+\]|[^\s:/@?]+):[0-9]+")
#: The part of a URL before the host; a password has no '@', '/' or '?'.
_BEFORE_HOST = re.compile(r"(?<![^:/?@])(?P<scheme>[^:/?@]+://)(?P<login>[^/?@]*@)?")
_HOST = re.compile(r"(?:\[[^\]]*\]|[^:/?]*)(?::[0-9]*)?")


def address_in(url: str) -> str:
    """Return ``host:port`` of a URL of the topology."""
    return str(address_of(url))


def with_port(address: str) -> str:
    """Return ``host:port`` in lower case; the port is 3306 by default."""
    lower = address.strip().lower()
    return lower if re.search(r":[0-9]+$", lower) else f"{lower}:3306"


def is_address(text: str) -> bool:
    """Return whether a text is ``host:port``."""
    return _ADDRESS.fullmatch(text) is not None


def url_at(url: str, address: str) -> str:
    """Return a URL with another host and port.

    Placeholders, account and TLS options are those of the URL.
    """
    scheme, _, rest = url.partition("://")
    account, at, place = rest.partition("@")
    if not at:
        account, place = "", rest
    return f"{scheme}://{account}{at}{_HOST.sub(address, place, count=1)}"


def bare_url(text: str) -> str:
    """Return a URL without user and password."""
    return _BEFORE_HOST.sub(lambda match: match["scheme"], text, count=1)


def with_login(url: str, other: str) -> str:
    """Return a URL with the user and the password of another."""
    match = _BEFORE_HOST.match(other)
    login = "" if match is None else match["login"] or ""
    return _BEFORE_HOST.sub(lambda found: f"{found['scheme']}{login}", url, count=1)


def roles_in(topology: Topology) -> dict[str, list[str]]:
    """Return the roles of each server of a topology, by its address."""
    found: dict[str, list[str]] = {}
    for pair in all_pairs(topology):
        for role, url in pair.urls.items():
            text = f"the {role} of {pair.name}"
            found.setdefault(address_in(url), []).append(text)
    return found
