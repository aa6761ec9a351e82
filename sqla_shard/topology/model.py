"""The topology: one version of which server holds which virtual shard.

A :class:`Topology` is an immutable snapshot.  Processes replace the one
that they have by another with a higher epoch; nothing in it ever changes::

    topology = Topology.from_mapping({
        "epoch": 7,
        "keyspaces": {
            "objects": {
                "kind": "objects",
                "shards": 4096,
                "database": "db{shard:05d}",
                "servers": [
                    {
                        "name": "sharddb001",
                        "primary": "mysql://app:${MYSQL_PASSWORD}@mysql001a",
                        "standby": "mysql://app:${MYSQL_PASSWORD}@mysql001b",
                        "shards": [0, 4095],
                    },
                ],
            },
        },
    })
    topology.keyspace("objects").server_for(3429).name    # 'sharddb001'

Every topology in existence has passed every check, also one that was put
together from its parts or derived with :func:`dataclasses.replace`.  What a
topology does not know is whether the servers are there and hold what it
says.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any

from sqla_shard.exc import Problem
from sqla_shard.exc import TopologyError
from sqla_shard.exc import UnknownKeyspaceError
from sqla_shard.masking import redact
from sqla_shard.topology.keyspaces import Keyspace
from sqla_shard.topology.keyspaces import Kind
from sqla_shard.topology.keyspaces import Server
from sqla_shard.topology.load import Checked
from sqla_shard.topology.load import load
from sqla_shard.topology.placeholders import DEFAULT_PLACEHOLDERS
from sqla_shard.topology.placeholders import Policy
from sqla_shard.topology.ranges import ShardRange
from sqla_shard.topology.shorthand import DEFAULT_URL

__all__ = ["Topology"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """One version of the topology; compared by value, hashable, picklable.

    :param epoch: number of the version; a higher one is newer.
    :param keyspaces: the keyspaces by name; copied, read-only afterwards.
    :param resets: how often the numbering of epochs was begun again; with
        more of them a topology is newer whatever its epoch.
    :raises TopologyError: with all problems.  Placeholders are checked for
        their form and place only; which names are allowed, and whether they
        have a value, is for :meth:`from_mapping`.
    """

    epoch: int
    keyspaces: Mapping[str, Keyspace]
    resets: int = 0

    def __post_init__(self) -> None:
        given = self.keyspaces
        keyspaces = MappingProxyType(dict(given))
        object.__setattr__(self, "keyspaces", keyspaces)
        if isinstance(given, Checked) and (given.resets, given.epoch) == (
            self.version
        ):
            # Straight from a document, which has passed already.
            return
        load(
            self.to_mapping(),
            source="Topology",
            policy=Policy(),
            url=DEFAULT_URL,
        )
        self._check_parts()

    def __hash__(self) -> int:
        return hash((self.version, frozenset(self.keyspaces.items())))

    def __reduce__(self) -> tuple[Any, ...]:
        # A read-only view of a dict cannot be pickled.
        keyspaces = dict(self.keyspaces)
        make = partial(
            type(self),
            epoch=self.epoch,
            keyspaces=keyspaces,
            resets=self.resets,
        )
        return make, ()

    @property
    def version(self) -> tuple[int, int]:
        """What tells which of two topologies is newer: resets and epoch."""
        return self.resets, self.epoch

    def __repr__(self) -> str:
        # In short: a hundred servers would bury the message around it.
        parts = "; ".join(
            f"{one.name}: kind {one.kind}, shards {one.shards}, "
            f"servers {len(one.servers)}"
            for one in self.keyspaces.values()
        )
        return f"<Topology epoch {self.epoch} ({parts})>"

    @classmethod
    def from_mapping(
        cls,
        document: Mapping[str, Any],
        *,
        source: str = "mapping",
        placeholders: Collection[str] = DEFAULT_PLACEHOLDERS,
        environ: Mapping[str, str] | None = None,
        url: str = DEFAULT_URL,
    ) -> Topology:
        """Return the topology that a document describes.

        :param document: as TOML or JSON give it; the full form, or the
            short form ``{"sharddb001": {"range": [0, 511], "master":
            "MySQL001A", "slave": "MySQL001B"}, ...}``.
        :param source: where it came from, for the error.
        :param placeholders: names that may stand as ``${NAME}`` in the user
            and the password of a URL.
        :param environ: has to have a value for those that are used; None
            takes ``os.environ``.
        :param url: makes a URL of the short form's bare hosts, by putting
            them in place of ``{host}``.
        :raises TopologyError: with all problems of the document.
        """
        policy = Policy.of(placeholders, environ)
        checked = load(document, source=source, policy=policy, url=url)
        return cls(
            epoch=checked.epoch, keyspaces=checked, resets=checked.resets
        )

    def to_mapping(self) -> dict[str, Any]:
        """Return the document of this topology, in the full form.

        It holds only what JSON and TOML can, :meth:`from_mapping` makes an
        equal topology of it, and placeholders are unexpanded in it.  A
        password that was typed into a URL is there in clear.
        """
        return {
            "epoch": self.epoch,
            **({"resets": self.resets} if self.resets else {}),
            "keyspaces": {
                name: _keyspace(keyspace)
                for name, keyspace in self.keyspaces.items()
            },
        }

    def redacted(self) -> Topology:
        """Return this topology with ``***`` for every typed password.

        Placeholders stay.  It is for showing: nothing can connect with it.
        """
        return replace(
            self,
            keyspaces={
                name: replace(
                    keyspace, servers=tuple(map(_redacted, keyspace.servers))
                )
                for name, keyspace in self.keyspaces.items()
            },
        )

    def keyspace(self, name: str) -> Keyspace:
        """Return a keyspace.

        :param name: its name.
        :raises UnknownKeyspaceError: when the topology has none of it.
        """
        try:
            return self.keyspaces[name]
        except KeyError:
            known = tuple(self.keyspaces)
        raise UnknownKeyspaceError(
            f"there is no keyspace {name!r} in the topology of epoch "
            f"{self.epoch}; it has {', '.join(map(repr, known))}",
            keyspace=name,
            known=known,
        )

    def sole(self, kind: Kind) -> Keyspace:
        """Return the only keyspace of a kind.

        :param kind: see :data:`~sqla_shard.topology.Kind`.
        :raises UnknownKeyspaceError: when there is none, or several.
        """
        found = [one for one in self.keyspaces.values() if one.kind == kind]
        if len(found) == 1:
            return found[0]
        known = tuple(one.name for one in found or self.keyspaces.values())
        names = ", ".join(map(repr, known))
        if found:
            message = (
                f"the topology has {len(found)} keyspaces of kind {kind!r} "
                f"({names}), so none can be meant without being named; name "
                f'it with the class keyword keyspace="{known[0]}"'
            )
        else:
            message = (
                f"the topology has no keyspace of kind {kind!r}, only "
                f"{names}; add one, or name another with the class keyword "
                'keyspace="..."'
            )
        raise UnknownKeyspaceError(message, keyspace=None, known=known)

    def _check_parts(self) -> None:
        """Refuse parts that their document does not show."""
        problems = []
        for name, keyspace in self.keyspaces.items():
            if keyspace.name != name:
                problems.append(
                    Problem(
                        f"keyspaces.{name}",
                        f"holds the keyspace {keyspace.name!r}; give both "
                        "one name",
                    )
                )
            if keyspace.kind == "global" and (
                keyspace.shards != 1
                or keyspace.servers[0].shards != (ShardRange(0, 0),)
            ):
                problems.append(
                    Problem(
                        f"keyspaces.{name}.shards",
                        "a global keyspace has the one shard 0; build it "
                        "with shards=1, its server with ShardRange(0, 0)",
                    )
                )
        if problems:
            raise TopologyError(problems, source="Topology")


def _redacted(server: Server) -> Server:
    standby = server.standby
    return replace(
        server,
        primary=redact(server.primary),
        standby=None if standby is None else redact(standby),
    )


def _keyspace(keyspace: Keyspace) -> dict[str, Any]:
    is_global = keyspace.kind == "global"
    document: dict[str, Any] = {"kind": keyspace.kind}
    if not is_global:
        document["shards"] = keyspace.shards
    document["database"] = keyspace.database
    document["servers"] = [
        _server(server, is_global=is_global) for server in keyspace.servers
    ]
    return document


def _server(server: Server, *, is_global: bool) -> dict[str, Any]:
    document: dict[str, Any] = {
        "name": server.name,
        "primary": server.primary,
    }
    if server.standby is not None:
        document["standby"] = server.standby
    if not is_global:
        pairs = [[item.first, item.last] for item in server.shards]
        document["shards"] = pairs[0] if len(pairs) == 1 else pairs
    if server.weight != 1.0:
        document["weight"] = server.weight
    if server.generation is not None:
        document["generation"] = server.generation
    return document
