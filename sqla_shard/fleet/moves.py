"""The shards that move, and their targets: the arguments of a split.

Shards are written as ``8-15``, ``8``, or ``objects:8-15`` for a pair with
shards of several keyspaces.  The target is written as ``host:port``, or
``mysql://host:port?ssl_ca=...``: its users and passwords are those of the
server that has the shards, as in the topology, since it gets a copy of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqla_shard.exc import FleetSetupError, Problem, TopologyError, UnknownServerError
from sqla_shard.fleet.fleet import all_pairs, bare_url, Pair, pair_named, with_login
from sqla_shard.topology import Keyspace, Server, ShardRange, Topology
from sqla_shard.topology.keyspaces import common, joined
from sqla_shard.topology.urls import address_of
from sqla_shard.util.masking import redact

_SHARDS = re.compile(
    r"(?:(?P<keyspace>[^:]+):)?(?P<first>\d{1,5})(?:-(?P<last>\d{1,5}))?"
)


@dataclass(frozen=True, kw_only=True)
class Request:
    """The request of the operator.

    :ivar server: name of the server that has the shards.
    :ivar shards: ranges as text; None for all shards of the server.
    :ivar target: name of the new server.
    :ivar primary: address of its primary.
    :ivar standby: address of its standby; None if it has none.
    :ivar weight: its weight; None for that of ``server``.
    """

    server: str
    shards: tuple[str, ...] | None
    target: str
    primary: str
    standby: str | None
    weight: float | None

    @property
    def title(self) -> str:
        """Title of the operation."""
        if self.shards is None:
            return f"move of {self.server} to {self.target}"
        return f"split of {self.server}: {', '.join(self.shards)} to {self.target}"

    def resolve(self, topology: Topology, problems: list[Problem]) -> ShardMove | None:
        """Return the move; None if the server or the target is unknown.

        :param problems: list to which every problem is appended.
        """
        urls = {
            role: _bare_target(role, text, problems)
            for role, text in (("primary", self.primary), ("standby", self.standby))
            if text is not None
        }
        pair = self._pair(topology, problems)
        problems += self._name_problems(topology)
        problems += _address_problems(topology, urls)
        if self.weight is not None and not 0 <= self.weight < float("inf"):
            problems.append(Problem("weight", f"{self.weight} must be 0 or more"))
        if pair is None or None in urls.values():
            return None
        moving = list(self._ranges(pair, problems))
        staying = [
            (keyspace.name, rest)
            for keyspace, server in pair.members
            for rest in _without(
                server.shards, (r for k, r in moving if k == keyspace.name)
            )
        ]
        if self.shards is not None and moving and not staying:
            problems.append(
                Problem(
                    "shards",
                    f"are all of {self.server!r}; move the whole server "
                    "with: sqla-shard fleet move",
                )
            )
        return ShardMove(
            server=self.server,
            target=self.target,
            source_primary=bare_url(pair.primary),
            source_standby=None if pair.standby is None else bare_url(pair.standby),
            target_primary=str(urls["primary"]),
            target_standby=urls.get("standby"),
            moving=tuple(moving),
            staying=tuple(staying),
            weight=self.weight,
        )

    def _pair(self, topology: Topology, problems: list[Problem]) -> Pair | None:
        try:
            return pair_named(topology, self.server)
        except (UnknownServerError, FleetSetupError) as error:
            problems.append(Problem("server", str(error)))
            return None

    def _name_problems(self, topology: Topology) -> Iterator[Problem]:
        used = {
            server.name
            for keyspace in topology.keyspaces.values()
            for server in keyspace.servers
        }
        if not self.target.strip() or "/" in self.target:
            yield Problem("target", f"{self.target!r} is not a name of a server")
        if self.target in used:
            yield Problem(
                "target",
                f"{self.target!r} is already a server of the topology; "
                "shards move to a new pair, so write a new name",
            )

    def _ranges(
        self, pair: Pair, problems: list[Problem]
    ) -> Iterator[tuple[str, ShardRange]]:
        """Yield the ranges that move, joined, by keyspace."""
        has = {keyspace.name: server.shards for keyspace, server in pair.members}
        if self.shards is None:
            for name, ranges in has.items():
                yield from ((name, one) for one in ranges)
            return
        asked: dict[str, list[ShardRange]] = {}
        for text in self.shards:
            parsed = _parsed(text, list(has), problems)
            if parsed is None:
                continue
            name, item = parsed
            mine = asked.setdefault(name, [])
            for twice in common(mine, [item]):
                problems.append(
                    Problem("shards", f"{text!r} repeats {twice}; remove one")
                )
            for missing in _without([item], has[name]):
                problems.append(
                    Problem(
                        "shards",
                        f"{text!r}: {self.server!r} does not have {missing}; "
                        f"it has {', '.join(map(str, has[name]))}",
                    )
                )
            mine.append(item)
        for name, items in asked.items():
            for one in joined(common(items, has[name])):
                yield name, one


@dataclass(frozen=True, kw_only=True)
class ShardMove:
    """Shards that move from a pair to a new one.

    URLs have neither user nor password.

    :ivar server: name of the source.
    :ivar target: name of the target.
    :ivar source_primary: URL of the primary of the source.
    :ivar source_standby: URL of its standby; None if it has none.
    :ivar target_primary: URL of the primary of the target.
    :ivar target_standby: URL of its standby; None if it has none.
    :ivar moving: keyspace and range of the shards that move.
    :ivar staying: those of the source that do not move.
    :ivar weight: weight of the target; None for that of the source.
    """

    server: str
    target: str
    source_primary: str
    source_standby: str | None
    target_primary: str
    target_standby: str | None
    moving: tuple[tuple[str, ShardRange], ...]
    staying: tuple[tuple[str, ShardRange], ...]
    weight: float | None

    def as_arguments(self) -> dict[str, Any]:
        """Return the move in JSON values."""
        return {
            **self.__dict__,
            "moving": [[k, r.first, r.last] for k, r in self.moving],
            "staying": [[k, r.first, r.last] for k, r in self.staying],
        }

    @classmethod
    def from_arguments(cls, arguments: Mapping[str, Any]) -> ShardMove:
        """Return the move of a document of :meth:`as_arguments`."""
        ranges = {
            name: tuple(
                (keyspace, ShardRange(first, last))
                for keyspace, first, last in arguments[name]
            )
            for name in ("moving", "staying")
        }
        return cls(**{**arguments, **ranges})

    @property
    def urls(self) -> dict[str, str]:
        """The URLs of the servers by role: ``"source standby"`` and so on."""
        found = {
            "source": self.source_primary,
            "source standby": self.source_standby,
            "target": self.target_primary,
            "target standby": self.target_standby,
        }
        return {role: url for role, url in found.items() if url is not None}

    def databases(self, topology: Topology) -> list[str]:
        """Return the names of the databases that move."""
        return _databases(topology, self.moving)

    def staying_databases(self, topology: Topology) -> list[str]:
        """Return the names of the databases of the source that stay."""
        return _databases(topology, self.staying)

    def is_in(self, topology: Topology) -> bool:
        """Return whether the shards are on the target in a topology."""
        target = address_of(self.target_primary)
        return all(
            name in topology.keyspaces
            and address_of(topology.keyspaces[name].server_for(item.first).primary)
            == target
            for name, item in self.moving
        )

    def changed(self, topology: Topology) -> Topology:
        """Return the next topology, with the shards on the target."""
        source = address_of(self.source_primary)
        keyspaces = {
            name: replace(
                keyspace,
                servers=tuple(
                    new
                    for server in keyspace.servers
                    for new in (
                        self._divided(keyspace, server)
                        if address_of(server.primary) == source
                        else (server,)
                    )
                ),
            )
            for name, keyspace in topology.keyspaces.items()
        }
        return replace(topology, epoch=topology.epoch + 1, keyspaces=keyspaces)

    def _divided(self, keyspace: Keyspace, server: Server) -> Iterator[Server]:
        """Yield the remaining shards of a server, and those of the target."""
        moving = [r for name, r in self.moving if name == keyspace.name]
        left = tuple(_without(server.shards, moving))
        if left:
            yield replace(server, shards=left)
        if moving:
            login = server.primary
            yield replace(
                server,
                name=self.target,
                primary=with_login(self.target_primary, login),
                standby=None
                if self.target_standby is None
                else with_login(self.target_standby, server.standby or login),
                shards=tuple(moving),
                weight=server.weight if self.weight is None else self.weight,
                # Rows that were cached before the move have a lower one.
                generation=None if server.generation is None else server.generation + 1,
            )


def _bare_target(role: str, text: str, problems: list[Problem]) -> str | None:
    """Return the URL of a target, or record a problem."""
    url = text if "://" in text else f"mysql://{text}"
    if bare_url(url) != url:
        problems.append(
            Problem(
                role,
                f"{redact(url)} has a user; write host:port, since the user "
                "and the password are those of the server in the topology",
            )
        )
        return None
    address = address_of(url)
    if address is None or address.family != "mysql":
        problems.append(
            Problem(
                role,
                f"{redact(url)!r} is not the address of a MySQL or MariaDB "
                "server; write host:port",
            )
        )
        return None
    return url


def _address_problems(
    topology: Topology, urls: Mapping[str, str | None]
) -> Iterator[Problem]:
    used = {
        address_of(url): f"the {role} of {pair.name!r}"
        for pair in all_pairs(topology)
        for role, url in pair.urls.items()
    }
    for role, url in urls.items():
        address = None if url is None else address_of(url)
        if address in used and address is not None:
            yield Problem(
                role,
                f"{address} is {used[address]} already; shards move to "
                "servers that the topology does not have",
            )
        used.setdefault(address, f"the {role} of the target")


def _parsed(
    text: str, keyspaces: Sequence[str], problems: list[Problem]
) -> tuple[str, ShardRange] | None:
    """Return the keyspace and the range of a text, or record a problem."""
    match = _SHARDS.fullmatch(text)
    fault = None
    if match is None:
        fault = "is not a range; write 8-15, 8 or KEYSPACE:8-15"
    elif match["keyspace"] is None and len(keyspaces) > 1:
        fault = (
            f"may be of {' or '.join(keyspaces)}; write the keyspace, as "
            f"{keyspaces[0]}:{text}"
        )
    elif match["keyspace"] not in (None, *keyspaces):
        fault = (
            f"is of the keyspace {match['keyspace']!r}, of which the server "
            f"has no shards; it has shards of {', '.join(keyspaces)}"
        )
    else:
        first = int(match["first"])
        try:
            item = ShardRange(first, int(match["last"] or first))
        except TopologyError:
            fault = "is reversed; write the lower shard first"
        else:
            return match["keyspace"] or keyspaces[0], item
    problems.append(Problem("shards", f"{text!r} {fault}"))
    return None


def _without(
    ranges: Iterable[ShardRange], removed: Iterable[ShardRange]
) -> Iterator[ShardRange]:
    """Yield the ranges without the shards of others."""
    others = joined(removed)
    for item in ranges:
        begin = item.first
        for hole in common(others, [item]):
            if hole.first > begin:
                yield ShardRange(begin, hole.first - 1)
            begin = max(begin, hole.last + 1)
        if begin <= item.last:
            yield ShardRange(begin, item.last)


def _databases(
    topology: Topology, ranges: Iterable[tuple[str, ShardRange]]
) -> list[str]:
    return [
        topology.keyspaces[name].database_for(shard_id)
        for name, item in ranges
        for shard_id in item
    ]
