"""Topologies of many servers, shards and ranges, that nothing connects to."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqla_shard import Topology

_ENVIRON = {"MYSQL_USER": "app", "MYSQL_PASSWORD": "secret"}
_LOGIN = "mysql://${MYSQL_USER}:${MYSQL_PASSWORD}@"


def document(
    *,
    epoch: int = 1,
    shards: int = 65_536,
    servers: int = 128,
    ranges: int = 128,
    turn: int = 0,
) -> dict[str, Any]:
    """Return the document of a topology.

    :param ranges: how many there are in all; the servers take turns.
    :param turn: by how many servers each range has moved on.
    """
    ends = [index * shards // ranges for index in range(ranges + 1)]
    pairs = [[ends[i], ends[i + 1] - 1] for i in range(ranges)]
    return {
        "epoch": epoch,
        "keyspaces": {
            "objects": {
                "kind": "objects",
                "shards": shards,
                "database": "db{shard:05d}",
                "servers": [
                    {
                        "name": f"sharddb{index:03d}",
                        "primary": f"{_LOGIN}mysql{index:03d}a.example.com",
                        "standby": f"{_LOGIN}mysql{index:03d}b.example.com",
                        "shards": pairs[(index + turn) % servers :: servers],
                    }
                    for index in range(servers)
                ],
            }
        },
    }


def topology(values: dict[str, Any]) -> Topology:
    """Return the topology of a document of :func:`document`."""
    return Topology.from_mapping(values, environ=_ENVIRON)


class Memory:
    """The memory that Python has allocated since this was made."""

    def __init__(self) -> None:
        gc.collect()
        tracemalloc.reset_peak()
        self._before = tracemalloc.get_traced_memory()[0]

    @property
    def kept(self) -> int:
        """Bytes that are still in use."""
        gc.collect()
        return tracemalloc.get_traced_memory()[0] - self._before

    @property
    def most(self) -> int:
        """Bytes in use at the peak, including temporary ones."""
        return tracemalloc.get_traced_memory()[1] - self._before


@contextmanager
def measured() -> Iterator[None]:
    """Let :class:`Memory` be used."""
    tracemalloc.start()
    try:
        yield
    finally:
        tracemalloc.stop()
