"""A fleet: a topology that can be changed, and the servers in it.

::

    fleet = Fleet("zookeeper://zk1,zk2,zk3/prod",
                  accounts=Accounts.from_environ(os.environ))
    plan = Failover.planned(fleet, server="sharddb001")
    apply(fleet, plan)

A topology in a file must be JSON: operations rewrite it, which would lose the
comments of TOML.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from sqla_shard.exc import FleetSetupError, UnknownServerError
from sqla_shard.fleet.accounts import Accounts
from sqla_shard.fleet.admin import Admin
from sqla_shard.fleet.journal import FileJournal, FleetJournal
from sqla_shard.topology import (
    DEFAULT_PLACEHOLDERS,
    Keyspace,
    Server,
    server_names,
    Topology,
)
from sqla_shard.topology.follow import is_zookeeper, load_location
from sqla_shard.topology.keyspaces import Template
from sqla_shard.topology.urls import address_of
from sqla_shard.util.masking import masked


class Pair:
    """A primary, its standby, and the shards of all keyspaces on them.

    :ivar name: name of the server in the topology.
    :ivar primary: URL of the primary, as in the topology.
    :ivar standby: URL of the standby; None if it has none.
    :ivar members: the keyspaces with the entry of the server in each; an
        entry belongs to the pair if it has the same primary.
    """

    def __init__(self, name: str, members: Iterable[tuple[Keyspace, Server]]) -> None:
        self.members: tuple[tuple[Keyspace, Server], ...] = tuple(members)
        first = self.members[0][1]
        self.name = name
        self.primary: str = first.primary
        self.standby: str | None = first.standby

    @property
    def urls(self) -> dict[str, str]:
        """The URLs of the primary, and of the standby if there is one."""
        found = {"primary": self.primary, "standby": self.standby}
        return {role: url for role, url in found.items() if url is not None}

    def databases(self) -> list[str]:
        """Return the names of all databases that it has."""
        return [
            keyspace.database_for(shard_id)
            for keyspace, server in self.members
            for part in server.shards
            for shard_id in part
        ]

    def shards(self) -> dict[str, list[int]]:
        """Return the numbers of its shards, by keyspace."""
        found: dict[str, list[int]] = {}
        for keyspace, server in self.members:
            numbers = found.setdefault(keyspace.name, [])
            numbers += (one for part in server.shards for one in part)
        return found

    def changed(self, topology: Topology, **changes: Any) -> Topology:
        """Return the next topology, with changed attributes of the pair.

        :param topology: a topology that has this pair.
        :param changes: attributes of :class:`~sqla_shard.topology.Server`.
        """
        entries = {(one.name, server.name) for one, server in self.members}
        keyspaces = {
            key: replace(
                keyspace,
                servers=tuple(
                    replace(server, **changes)
                    if (key, server.name) in entries
                    else server
                    for server in keyspace.servers
                ),
            )
            for key, keyspace in topology.keyspaces.items()
        }
        return replace(topology, epoch=topology.epoch + 1, keyspaces=keyspaces)


class Fleet:
    """The topology at a location, its journal, and its servers.

    :param location: path of a JSON file, or the URL of a ZooKeeper.
    :param accounts: accounts of the operator.
    :param placeholders: allowed names in ``${NAME}`` in the topology.
    :param environ: values of placeholders, such as ``os.environ``: with those
        of the topology, operations try whether the application can log in.
    :param timeout: seconds to wait for a server.
    :param session_timeout: seconds after which ZooKeeper gives up the lock of
        a process that is gone; not used for a file.
    :raises FleetSetupError: if the location is a TOML file.
    """

    def __init__(
        self,
        location: str | os.PathLike[str],
        *,
        accounts: Accounts,
        placeholders: Collection[str] = DEFAULT_PLACEHOLDERS,
        environ: Mapping[str, str] = MappingProxyType({}),
        timeout: float = 10.0,
        session_timeout: float = 10.0,
    ) -> None:
        self.location: str = os.fspath(location)
        self.accounts = accounts
        self.placeholders = placeholders
        self.environ = environ
        self.timeout = timeout
        self.session_timeout = session_timeout
        self._environ = dict.fromkeys(placeholders, "")
        if not is_zookeeper(location) and not self.location.endswith(".json"):
            shown = masked(self.location)
            raise FleetSetupError(
                f"{shown} is not a JSON file: fleet operations rewrite the topology, "
                "which would lose the comments of TOML. Convert it once with: "
                f"sqla-shard -t {shown} topology show --json > topology.json"
            )

    @property
    def journal(self) -> FleetJournal:
        """The journal of operations, where the topology is."""
        if is_zookeeper(self.location):
            # kazoo is needed for this one alone.
            from sqla_shard.fleet.zookeeper_journal import ZooKeeperJournal

            return ZooKeeperJournal(
                self.location,
                placeholders=self.placeholders,
                session_timeout=self.session_timeout,
            )
        return FileJournal(self.location, placeholders=self.placeholders)

    def topology(self) -> Topology:
        """Return the topology as it is now.

        :raises TopologyError: if it is not valid.
        :raises TopologyUnavailableError: if it cannot be read.
        """
        return load_location(
            self.location,
            placeholders=self.placeholders,
            # Operations use no account of the application.
            environ=self._environ,
        )

    def admin(self, url: str, *, name: str, timeout: float | None = None) -> Admin:
        """Connect to a server as the operator.

        :param url: URL of the topology, or ``mysql://host:port``.
        :param name: name of the server for messages.
        :param timeout: seconds to wait for responses; by default that of the
            fleet.
        :raises FleetServerError: if it cannot be connected to.
        """
        return Admin(self.accounts.url(url), name=name, timeout=timeout or self.timeout)


def pair_named(topology: Topology, name: str) -> Pair:
    """Return a pair of the topology.

    :param name: name of a server, or ``keyspace/name`` if keyspaces have
        different servers of that name.
    :raises UnknownServerError: if there is no such server.
    :raises FleetSetupError: if the name is ambiguous.
    """
    entries = list(_entries(topology))
    found = {
        str(address_of(server.primary)): server
        for keyspace, server in entries
        if name in (server.name, f"{keyspace.name}/{server.name}")
    }
    if len(found) > 1:
        raise FleetSetupError(
            f"{name!r} names {len(found)} servers ({', '.join(found)}); write "
            f"it with the keyspace, as {entries[0][0].name}/{name}"
        )
    for address in found:
        return Pair(name, _at(entries, address))
    prefix = "{}/" if "/" in name else ""
    known = [prefix.format(keyspace.name) + one.name for keyspace, one in entries]
    raise UnknownServerError(server=name, known=tuple(dict.fromkeys(known)))


def all_pairs(topology: Topology) -> list[Pair]:
    """Return every pair of the topology once, in its order.

    The name of a pair is that of its server, with the keyspace if keyspaces
    have different servers of that name.
    """
    entries = list(_entries(topology))
    names = server_names(topology)
    found: dict[str, str] = {}
    for keyspace, server in entries:
        key = str(address_of(server.primary))
        found.setdefault(key, names[keyspace.name, server.name])
    return [Pair(name, _at(entries, key)) for key, name in found.items()]


def shard_of(topology: Topology, database: str) -> tuple[Keyspace, int] | None:
    """Return keyspace and shard of the name of a database, or None.

    The shard may not be open.
    """
    for keyspace in topology.keyspaces.values():
        template = Template.parse(keyspace.database, sharded=keyspace.kind != "global")
        # The topology has checked the template.
        if isinstance(template, Template):
            shard_id = template.shard_of(database)
            if shard_id is not None:
                return keyspace, shard_id
    return None


def _entries(topology: Topology) -> Iterator[tuple[Keyspace, Server]]:
    for keyspace in topology.keyspaces.values():
        for server in keyspace.servers:
            yield keyspace, server


def _at(
    entries: Iterable[tuple[Keyspace, Server]], address: str
) -> list[tuple[Keyspace, Server]]:
    return [
        (keyspace, server)
        for keyspace, server in entries
        if str(address_of(server.primary)) == address
    ]


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
