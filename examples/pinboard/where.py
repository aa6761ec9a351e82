"""The location of an object, for the panel that shows it.

All of it is in the id and the topology; nothing is looked up.  The panel also
shows the location of related rows: lists are on the shard of the
object that has them, and lookups on the shard of the hash of a key.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from examples.pinboard.errors import NotFoundError
from examples.pinboard.models import Base, Board, Pin, User, UserEmail, UserName
from sqla_shard import Cluster, MappingMixin, ShardSession
from sqla_shard.exc import InvalidIdError, UnknownShardError
from sqla_shard.ids import LOCAL_BITS, SHARD_SHIFT, TYPE_SHIFT, unpack

#: Classes that have a page; uploaded files are for their users only.
_CLASSES: dict[int, Any] = {
    cls.__sqla_shard__.type_id: cls for cls in (User, Board, Pin)
}


#: The lists of each class.
_LISTS: dict[Any, list[Any]] = {
    cls: sorted(
        (
            mapper.class_
            for mapper in Base.registry.mappers
            if issubclass(mapper.class_, MappingMixin)
            and mapper.relationships["source"].entity.class_ is cls
        ),
        key=lambda mapping: mapping.__tablename__,
    )
    for cls in _CLASSES.values()
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Bits:
    """A part of an id.

    :ivar name: reserved, shard, type or local.
    :ivar first: number of its highest bit, 63 or less.
    :ivar last: number of its lowest bit.
    :ivar bits: the digits 0 and 1, the highest first.
    """

    name: str
    value: int
    first: int
    last: int
    bits: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """The location of an object.

    :ivar parts: of the id, the highest first; 64 bits together.
    :ivar kind: name of its class.
    :ivar table: table of its row.
    :ivar server: name of the physical server; never its address.
    :ivar ranges: the virtual shards of that server.
    :ivar database: on the server; on SQLite folder and file.
    :ivar epoch: version of the topology that this is derived from.
    """

    object_id: int
    parts: tuple[Bits, ...]
    kind: str
    table: str
    keyspace: str
    shard_id: int
    local_id: int
    server: str
    ranges: str
    database: str
    shards: int
    servers: int
    epoch: int

    def as_json(self) -> dict[str, Any]:
        """Return it for the API; the id is a string, as it exceeds 2**53."""
        return {
            "id": str(self.object_id),
            "kind": self.kind,
            "parts": [
                {
                    "name": part.name,
                    "value": str(part.value),
                    "bits": [part.first, part.last],
                }
                for part in self.parts
            ],
            "keyspace": self.keyspace,
            "shard": self.shard_id,
            "server": self.server,
            "server_shards": self.ranges,
            "database": self.database,
            "table": self.table,
            "local_id": str(self.local_id),
            "epoch": self.epoch,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Location of the rows of a table that belong to an object.

    :ivar why: the reason for this location.
    """

    table: str
    keyspace: str
    shard_id: int
    server: str
    why: str


def where_is(cluster: Cluster, object_id: int) -> Where:
    """Return the location of an object, if it exists.

    :raises NotFoundError: when the id is invalid.
    """
    try:
        explained = cluster.explain(object_id)
    except (InvalidIdError, UnknownShardError):
        raise NotFoundError("There is no such object.") from None
    parts, (target,) = explained.object_id, explained.targets
    assert parts is not None
    cls = _CLASSES.get(parts.type_id)
    if cls is None:
        raise NotFoundError("There is no such object.")
    keyspace = cluster.topology.keyspace(str(explained.keyspace))
    server = keyspace.server_for(target.shard_id)
    return Where(
        object_id=object_id,
        parts=(
            _bits("reserved", 0, 64, 62),
            _bits("shard", parts.shard_id, 62, SHARD_SHIFT),
            _bits("type", parts.type_id, SHARD_SHIFT, TYPE_SHIFT),
            _bits("local", parts.local_id, LOCAL_BITS, 0),
        ),
        kind=cls.__name__,
        table=cls.__tablename__,
        keyspace=keyspace.name,
        shard_id=parts.shard_id,
        local_id=parts.local_id,
        server=target.server,
        ranges=" and ".join(map(str, server.shards)),
        database=_short(target.database),
        shards=keyspace.shards,
        servers=len(keyspace.servers),
        epoch=cluster.topology.epoch,
    )


def related_rows(
    session: ShardSession, instance: Any, viewer_id: int | None
) -> list[Row]:
    """Return the locations of the rows that belong to an object.

    :param viewer_id: user who sees it; a mail address is for its user alone.
    """
    found = []
    if isinstance(instance, User):
        keys: list[tuple[Any, str, str]] = [(UserName, instance.name, "name")]
        if instance.id == viewer_id and instance.email:
            keys.append((UserEmail, instance.email, "e-mail"))
        for lookup, key, what in keys:
            shard_id = lookup.shard_of(session, key)
            found.append(_row(session, lookup, shard_id, f"hash of the {what}"))
    shard_id = unpack(instance.id).shard_id
    for mapping in _LISTS[type(instance)]:
        found.append(_row(session, mapping, shard_id, "shard of the id"))
    return found


def _row(session: ShardSession, cls: Any, shard_id: int, why: str) -> Row:
    place = session.place_for(cls, shard_id)
    return Row(
        table=cls.__tablename__,
        keyspace=place.keyspace,
        shard_id=shard_id,
        server=place.server,
        why=why,
    )


def _bits(name: str, value: int, above: int, last: int) -> Bits:
    return Bits(
        name=name,
        value=value,
        first=above - 1,
        last=last,
        bits=f"{value:0{above - last}b}",
    )


def _short(database: str) -> str:
    # A file's whole path would disclose the machine's directories.
    return "/".join(PurePath(database).parts[-2:])
