"""What a memcached says of itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from dataclasses import dataclass
from typing import Any

from sqla_shard.cache.node import Node
from sqla_shard.cache.wire import Connection

__all__ = ["NodeStats", "node_stats"]

#: What memcached calls them.
_NAMES = {
    "items": "curr_items",
    "bytes": "bytes",
    "limit": "limit_maxbytes",
    "evictions": "evictions",
    "hits": "get_hits",
    "misses": "get_misses",
    "uptime": "uptime",
}


@dataclass(frozen=True, kw_only=True)
class NodeStats:
    """What a node says of itself; None where it says nothing.

    All but the first three are counted from the start of the node.

    :ivar node: its name.
    :ivar answers: whether it does.
    :ivar items: how many it has, with those that have ended and were not
        asked for since.
    :ivar bytes: what they take.
    :ivar limit: bytes that they may take.
    :ivar evictions: items that have made way, with tombstones among them: a
        node that is full makes the cache less safe.
    :ivar hits: items that were asked for, and there.
    :ivar misses: items that were asked for, and not there.
    :ivar uptime: seconds since it was started.
    """

    node: str
    answers: bool
    items: int | None = None
    bytes: int | None = None
    limit: int | None = None
    evictions: int | None = None
    hits: int | None = None
    misses: int | None = None
    uptime: int | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return asdict(self)


def node_stats(node: Node) -> NodeStats:
    """Return what a node says of itself; it is not waited for for long."""
    found = node.run(Connection.statistics)
    if found is None:
        return NodeStats(node=node.name, answers=False)
    numbers = {ours: _number(found, its) for ours, its in _NAMES.items()}
    return NodeStats(node=node.name, answers=True, **numbers)


def _number(found: Mapping[str, str], name: str) -> int | None:
    text = found.get(name, "")
    return int(text) if text.isascii() and text.isdecimal() else None
