"""Search for the dictionary of a compressed blob on the virtual shards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sqlalchemy import select

from sqla_shard.engine import by_server
from sqla_shard.engine.rendering import Place
from sqla_shard.outbox.scan import scan
from sqla_shard.outbox.tables import DICTIONARIES
from sqla_shard.session import ShardSession

if TYPE_CHECKING:
    from sqla_shard import Cluster

_dictionary = DICTIONARIES.c


def load_dictionary(
    cluster: Cluster, dictionary_id: int
) -> tuple[bytes | None, list[str]]:
    """Return the content of a dictionary.

    Usually every shard has it, so the first shard of each server is read
    first.

    :returns: the content, None if it is not found; and the servers that
        could not be read.
    """
    places = cluster.places
    first = {
        group[0].address
        for keyspace in places.topology.keyspaces.values()
        for group in by_server(places.all_places(keyspace))
    }
    statement = select(_dictionary.content).where(_dictionary.id == dictionary_id)

    def read(session: ShardSession, group: Sequence[Place]) -> list[bytes]:
        # One shard after another: each has the whole dictionary.
        for place in group:
            content = session.execute(
                statement, bind_arguments={"place": place}
            ).scalar()
            if content is not None:
                return [bytes(content)]
        return []

    def read_first(session: ShardSession, group: Sequence[Place]) -> list[bytes]:
        return read(session, [one for one in group if one.address in first])

    unreachable: list[str] = []
    for way in (read_first, read):
        found, failed = scan(
            cluster,
            way,
            lambda place, error: True,
            purpose="dictionary",
            kinds=("objects",),
        )
        if found:
            return found[0], []
        unreachable = [one.server for one in failed]
    return None, unreachable
