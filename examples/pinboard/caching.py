"""Regions of the row cache, for all rows that pages show.

Every process that writes needs the same configuration: the command, each
process of a WSGI server, and any other program that changes boards.
"""

from __future__ import annotations

import re
from typing import Any

from examples.pinboard.models import (
    Board,
    BoardHasFollowers,
    BoardHasPins,
    BoardHasRemovedPins,
    BoardHasSavedPins,
    Pin,
    PinInBoards,
    User,
    UserFollowsBoards,
    UserHasBoards,
)
from sqla_shard import Cluster
from sqla_shard.cache import Cached

MEMORY = "memory"
"""The region for a single process."""
NONE = "none"

_LISTS = Cached(region="lists", rows=200)
_CLASSES: dict[Any, str | Cached] = {
    User: "objects",
    Board: "objects",
    Pin: "objects",
    UserHasBoards: _LISTS,
    BoardHasPins: _LISTS,
    BoardHasRemovedPins: _LISTS,
    UserFollowsBoards: _LISTS,
    BoardHasFollowers: _LISTS,
    BoardHasSavedPins: _LISTS,
    PinInBoards: _LISTS,
}


def keep(cluster: Cluster, where: str) -> None:
    """Cache rows from now on; call it before anything is written.

    :param where: "memory", the memcached nodes as host:port with commas
        between them, or "none" to cache nothing.
    """
    if where == NONE:
        return
    region: dict[str, Any] = {"backend": "dogpile.cache.memory"}
    if where != MEMORY:
        servers = re.split(r"[,\s]+", where.strip(", "))
        region = {"backend": "sqla_shard.memcached", "arguments": {"servers": servers}}
    cluster.configure_cache(
        {"objects": region, "lists": region}, classes=_CLASSES, prefix="pinboard"
    )
