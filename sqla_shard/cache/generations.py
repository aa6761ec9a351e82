"""From which life of a server's data a row is that a cache holds.

The text of :func:`generation_of` stands in front of what is cached.  After a
failover it is another one: the new primary may lack the last commits of the
old one, which the cache has already.  Who finds a value with another text
removes it, and reads the database.
"""

from __future__ import annotations

import hashlib
from base64 import urlsafe_b64encode

from sqla_shard.engines import Places
from sqla_shard.rendering import Place

__all__ = ["generation_of"]

#: How many texts are kept for one topology, as :class:`Places` does.
_MOST = 8192


def generation_of(places: Places, place: Place) -> str:
    """Return what tells the life of the data of a virtual shard.

    The same text in every process, thread and event loop that has the same
    topology, whatever its user, password and driver.

    :param places: those of a topology.
    :param place: one of them.
    :returns: 12 letters, digits, ``-`` and ``_``.
    """
    # Once for each row that is looked for: nothing is called here.
    found = places.generations.get((place.keyspace, place.shard_id))
    return found if found is not None else _remembered(places, place)


def _remembered(places: Places, place: Place) -> str:
    known = places.generations
    if len(known) >= _MOST:
        known.clear()
    return known.setdefault(place.address, _told(places, place))


def _told(places: Places, place: Place) -> str:
    keyspace = places.topology.keyspace(place.keyspace)
    server = keyspace.server_for(place.shard_id)
    # Not as statements write it: what is quoted differs between drivers.
    database = keyspace.database_for(place.shard_id)
    if server.generation is not None:
        return _digest(
            "number",
            keyspace.name,
            server.name,
            str(server.generation),
            database,
        )
    url = place.engine.url
    if url.host is None:
        # SQLite: each database is a file.
        return _digest("file", str(url.database), database)
    return _digest(
        "address", url.host.lower(), str(url.port or 3306), database
    )


def _digest(*parts: str) -> str:
    # No part can have a NUL in it.
    data = "\0".join(parts).encode()
    digest = hashlib.blake2b(data, digest_size=9).digest()
    return urlsafe_b64encode(digest).decode("ascii")
