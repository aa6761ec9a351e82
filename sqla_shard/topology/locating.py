"""Where an object or a virtual shard is, by the topology alone.

Nothing is connected to, so whether the object exists is not known.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqla_shard.exc import UnknownKeyspaceError
from sqla_shard.ids import ObjectId
from sqla_shard.ids import unpack
from sqla_shard.masking import redact
from sqla_shard.topology.keyspaces import Keyspace
from sqla_shard.topology.keyspaces import Server
from sqla_shard.topology.model import Topology

__all__ = ["Location", "find_object", "find_shard"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    """A virtual shard, and the server that holds it.

    :ivar keyspace: the keyspace.
    :ivar shard_id: the shard; 0 of a global keyspace.
    :ivar database: name of its database.
    :ivar server: the physical server.
    :ivar object_id: the object that was looked for; None for a shard.
    """

    keyspace: Keyspace
    shard_id: int
    database: str
    server: Server
    object_id: ObjectId | None = None

    def __str__(self) -> str:
        return (
            f"shard {self.shard_id} of {self.keyspace.name}: database "
            f"{self.database} on {self.server.name}, "
            f"{redact(self.server.primary)}"
        )

    def to_mapping(self) -> dict[str, str | int | None]:
        """Return what JSON can hold: the id as text, no passwords."""
        found: dict[str, str | int | None] = {}
        if self.object_id is not None:
            found["id"] = str(int(self.object_id))
        standby = self.server.standby
        return {
            **found,
            "keyspace": self.keyspace.name,
            "shard": self.shard_id,
            "server": self.server.name,
            "database": self.database,
            "primary": redact(self.server.primary),
            "standby": None if standby is None else redact(standby),
        }


def find_object(
    topology: Topology, object_id: int, keyspace: str | None = None
) -> Location:
    """Return where the object of an id is.

    :param topology: the topology.
    :param object_id: the id.
    :param keyspace: name of its keyspace; None for the only one of kind
        objects.
    :raises InvalidIdError: when it is not an id.
    :raises UnknownShardError: when its shard is not open.
    :raises UnknownKeyspaceError: when there is no such keyspace, or several,
        or when it is one whose shards ids do not name.
    """
    parts = unpack(object_id)
    space = _keyspace(topology, keyspace)
    if space.kind != "objects":
        raise UnknownKeyspaceError(
            f"keyspace {space.name!r} is of kind {space.kind!r}, and the ids "
            "of objects name shards of kind 'objects' only; name a keyspace "
            "of that kind, or the shard in place of an id",
            keyspace=space.name,
            known=_of_objects(topology),
        )
    return _location(space, parts.shard_id, parts)


def find_shard(
    topology: Topology, shard_id: int, keyspace: str | None = None
) -> Location:
    """Return where a virtual shard is.

    :param topology: the topology.
    :param shard_id: the shard; 0 for a global keyspace.
    :param keyspace: name of the keyspace; None for the only one of kind
        objects.
    :raises UnknownShardError: when it is not open.
    :raises UnknownKeyspaceError: when there is no such keyspace, or several.
    """
    return _location(_keyspace(topology, keyspace), shard_id, None)


def _location(
    keyspace: Keyspace, shard_id: int, object_id: ObjectId | None
) -> Location:
    return Location(
        keyspace=keyspace,
        shard_id=shard_id,
        database=keyspace.database_for(shard_id),
        server=keyspace.server_for(shard_id),
        object_id=object_id,
    )


def _keyspace(topology: Topology, name: str | None) -> Keyspace:
    if name is not None:
        return topology.keyspace(name)
    found = _of_objects(topology)
    if len(found) == 1:
        return topology.keyspace(found[0])
    known = found or tuple(topology.keyspaces)
    raise UnknownKeyspaceError(
        f"the topology has {len(found) or 'no'} keyspaces of kind 'objects', "
        f"so the keyspace has to be named: {', '.join(map(repr, known))}",
        keyspace=None,
        known=known,
    )


def _of_objects(topology: Topology) -> tuple[str, ...]:
    return tuple(
        one.name
        for one in topology.keyspaces.values()
        if one.kind == "objects"
    )
