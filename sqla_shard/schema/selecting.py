"""Which virtual shards a command is for."""

from __future__ import annotations

import re
from collections.abc import Collection
from collections.abc import Iterable
from dataclasses import dataclass

from sqla_shard.engines import Places
from sqla_shard.exc import SchemaOptionError
from sqla_shard.exc import UnknownServerError
from sqla_shard.exc import UnknownShardError
from sqla_shard.rendering import Place
from sqla_shard.topology import Keyspace

__all__ = ["Shard", "as_ranges", "parse_shards", "shards_of"]

_RANGE = re.compile(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?")


@dataclass(frozen=True, kw_only=True)
class Shard:
    """One virtual shard of a keyspace, and where it is.

    :ivar database: the name of its database, not quoted.
    """

    keyspace: str
    shard_id: int
    server: str
    database: str
    place: Place

    @property
    def schema(self) -> str:
        """What its connection calls the database, not quoted."""
        # A file is "main" to those who are connected to it.
        if self.place.engine.url.host is None:
            return self.place.schema
        return self.database

    def __str__(self) -> str:
        return f"shard {self.shard_id} ({self.database} on {self.server})"


def shards_of(
    places: Places,
    keyspace: Keyspace,
    shards: Collection[int] | None = None,
    servers: Collection[str] | None = None,
) -> list[Shard]:
    """Return virtual shards of a keyspace, in order.

    :param shards: only these; None for all.
    :param servers: only those on these; None for all.
    :raises UnknownShardError: when one is not open.
    :raises UnknownServerError: when a server is not of the keyspace.
    :raises SchemaOptionError: when nothing is left.
    """
    known = [server.name for server in keyspace.servers]
    for name in servers or ():
        if name not in known:
            raise UnknownServerError(server=name, known=known)
    for shard_id in shards or ():
        if shard_id >= keyspace.shards:
            raise UnknownShardError(
                shard_id=shard_id,
                keyspace=keyspace.name,
                opened=keyspace.shards,
            )
    found = [
        _shard(places, keyspace, shard_id)
        for shard_id in (
            keyspace.shard_ids if shards is None else sorted(set(shards))
        )
        if servers is None or keyspace.server_for(shard_id).name in servers
    ]
    if not found:
        raise SchemaOptionError(
            "no virtual shard is both among the shards and on the servers "
            "that were named",
            option="servers",
            value=",".join(servers or ()),
        )
    return found


def _shard(places: Places, keyspace: Keyspace, shard_id: int) -> Shard:
    place = places.place(keyspace, shard_id)
    return Shard(
        keyspace=keyspace.name,
        shard_id=shard_id,
        server=place.server,
        database=keyspace.database_for(shard_id),
        place=place,
    )


def parse_shards(text: str) -> list[int]:
    """Return the shards that ``"0-511,600"`` names, ascending.

    :raises SchemaOptionError: when it is not written so.
    """
    found: set[int] = set()
    for part in text.split(","):
        match = _RANGE.fullmatch(part)
        last = int(match[2] or match[1]) if match else -1
        first = int(match[1]) if match else 0
        if last < first or last > 65_535:
            raise SchemaOptionError(
                f"{part.strip()!r} is no shard and no range of them; write "
                "numbers and ranges such as 0-511,600",
                option="shards",
                value=text,
            )
        found.update(range(first, last + 1))
    return sorted(found)


def as_ranges(shard_ids: Iterable[int], most: int = 12) -> str:
    """Return ``"0-511, 600"``: the form that :func:`parse_shards` reads.

    :param most: how many ranges to show.
    """
    ranges: list[tuple[int, int]] = []
    for shard_id in sorted(shard_ids):
        if ranges and ranges[-1][1] == shard_id - 1:
            ranges[-1] = ranges[-1][0], shard_id
        else:
            ranges.append((shard_id, shard_id))
    shown = [
        str(first) if first == last else f"{first}-{last}"
        for first, last in ranges[:most]
    ]
    more = sum(last - first + 1 for first, last in ranges[most:])
    return ", ".join(shown) + (f" and {more} more" if more else "")
