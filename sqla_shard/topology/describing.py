"""A topology in lines of text, with the passwords left out."""

from __future__ import annotations

from collections.abc import Iterator

from sqla_shard.masking import redact
from sqla_shard.topology.keyspaces import Keyspace
from sqla_shard.topology.keyspaces import Server
from sqla_shard.topology.model import Topology

__all__ = ["describe"]


def describe(topology: Topology) -> str:
    """Return a topology for reading: a line for each keyspace and server.

    :param topology: the topology; a password that was typed into a URL is
        shown as ``***``.
    :returns: lines without a newline after the last one.
    """
    return "\n".join(_lines(topology))


def _lines(topology: Topology) -> Iterator[str]:
    resets = f", resets {topology.resets}" if topology.resets else ""
    yield f"epoch {topology.epoch}{resets}"
    for keyspace in topology.keyspaces.values():
        yield _described(keyspace)
        for server in keyspace.servers:
            yield f"  {_placed(server, keyspace)}"


def _described(keyspace: Keyspace) -> str:
    if keyspace.kind == "global":
        return f"{keyspace.name}: kind global, database {keyspace.database}"
    return (
        f"{keyspace.name}: kind {keyspace.kind}, {keyspace.shards} shards, "
        f"databases {keyspace.database}"
    )


def _placed(server: Server, keyspace: Keyspace) -> str:
    parts = [redact(server.primary)]
    if server.standby is not None:
        parts.append(f"standby {redact(server.standby)}")
    if keyspace.kind != "global":
        parts += map(str, server.shards)
    if server.weight != 1.0:
        parts.append(f"weight {server.weight:g}")
    if server.generation is not None:
        parts.append(f"generation {server.generation}")
    return f"{server.name}: {', '.join(parts)}"
