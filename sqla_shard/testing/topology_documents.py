"""Topology documents for tests: dictionaries with evenly divided shards.

They have the form of a topology file::

    {
        "epoch": 1,
        "keyspaces": {
            "objects": {
                "kind": "objects",
                "shards": 64,
                "database": "db{shard:05d}",
                "servers": [
                    {"name": "server1", "primary": "...", "shards": [0, 31]},
                    {"name": "server2", "primary": "...", "shards": [32, 63]},
                ],
            },
        },
    }
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

OBJECTS_DATABASE = "db{shard:05d}"
"""Database names of the keyspace ``objects``."""

MOD_DATABASE = "lookup{shard:05d}"
"""Database names of the keyspace ``lookup``."""

GLOBAL_DATABASE = "main"
"""Database of the keyspace ``main``."""


def divide(shards: int, servers: int) -> list[tuple[int, int]]:
    """Divide shards among servers as evenly as possible.

    :return: the first and the last shard of each server; if there is a
        remainder, the first servers have one more.
    :raises ValueError: if there are fewer shards than servers.
    """
    if not 1 <= servers <= shards:
        raise ValueError(f"{shards} shards cannot be divided among {servers} servers")
    ranges = []
    start = 0
    for number in range(servers):
        size = shards // servers + (number < shards % servers)
        ranges.append((start, start + size - 1))
        start += size
    return ranges


def _servers(
    primaries: Mapping[str, str], shards: int, **more: Any
) -> list[dict[str, Any]]:
    ranges = divide(shards, len(primaries))
    return [
        {"name": name, "primary": url, "shards": list(pair), **more}
        for (name, url), pair in zip(primaries.items(), ranges, strict=True)
    ]


def topology_document(
    primaries: Mapping[str, str],
    shards: int,
    *,
    epoch: int = 1,
    database: str = OBJECTS_DATABASE,
    main: bool | str = False,
    lookup: int = 0,
    lookup_database: str = MOD_DATABASE,
    weights: Sequence[float] | None = None,
) -> dict[str, Any]:
    """Return a topology in which the servers share the shards evenly.

    :param primaries: URLs by the servers' names, in order.
    :param shards: number of open shards of the keyspace ``objects``.
    :param epoch: version of the topology.
    :param database: pattern of the database names of ``objects``.
    :param main: whether to add the global keyspace ``main``, which is on the
        first server; or the name of its database.
    :param lookup: shards of the mod keyspace ``lookup``; 0 for none.
    :param lookup_database: pattern of its database names.
    :param weights: share of new roots of each server.
    :raises ValueError: if there are not enough shards for all servers.
    """
    servers = _servers(primaries, shards)
    if weights is not None:
        for server, weight in zip(servers, weights, strict=True):
            server["weight"] = weight
    keyspaces: dict[str, Any] = {
        "objects": {
            "kind": "objects",
            "shards": shards,
            "database": database,
            "servers": servers,
        }
    }
    if main:
        name, url = next(iter(primaries.items()))
        keyspaces["main"] = {
            "kind": "global",
            "database": GLOBAL_DATABASE if main is True else main,
            "servers": [{"name": name, "primary": url}],
        }
    if lookup:
        first = dict(list(primaries.items())[:lookup])
        keyspaces["lookup"] = {
            "kind": "mod",
            "shards": lookup,
            "database": lookup_database,
            "servers": _servers(first, lookup),
        }
    return {"epoch": epoch, "keyspaces": keyspaces}


def databases(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield server and database of each shard of a document.

    :param document: with one range of shards for each server.
    """
    for keyspace in document["keyspaces"].values():
        for server in keyspace["servers"]:
            first, last = server.get("shards", (0, 0))
            for shard in range(first, last + 1):
                yield server["name"], keyspace["database"].format(shard=shard)


def sqlite_topology(
    directory: Path | str,
    servers: int = 2,
    shards: int = 64,
    *,
    epoch: int = 1,
    database: str = OBJECTS_DATABASE,
    main: bool | str = False,
    lookup: int = 0,
    lookup_database: str = MOD_DATABASE,
    weights: Sequence[float] | None = None,
) -> dict[str, Any]:
    """Return a topology of SQLite files, and create its directories.

    A server is a directory ``server1``, ``server2``... with one file for
    each of its virtual shards.

    :param directory: parent of the servers' directories.
    :param servers: number of servers.
    :param shards: number of virtual shards of ``objects``.
    :return: a document of :func:`topology_document`, which has the other
        parameters.
    :raises ValueError: if there are not enough shards for all servers.
    """
    base = Path(directory).resolve()
    primaries = {}
    for number in range(1, servers + 1):
        name = f"server{number}"
        primaries[name] = f"sqlite:///{base / name}"
    document = topology_document(
        primaries,
        shards,
        epoch=epoch,
        database=database,
        main=main,
        lookup=lookup,
        lookup_database=lookup_database,
        weights=weights,
    )
    for name in primaries:
        (base / name).mkdir(parents=True, exist_ok=True)
    return document
