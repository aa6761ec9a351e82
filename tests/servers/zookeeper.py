"""Topologies to publish, and places in a ZooKeeper to publish them at."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from sqla_shard import Topology

#: Typed into URLs; it must not be shown, wherever that may be.
SECRET = "hush-4711"

_numbers: Iterator[int] = itertools.count(1)


def document(
    epoch: int = 1,
    *,
    shards: int = 8,
    password: str = "${MYSQL_PASSWORD}",  # noqa: S107  # it names one
    hosts: tuple[str, str] = ("one", "two"),
    generation: int | None = None,
    **more: Any,
) -> dict[str, Any]:
    """Return a topology of two servers as a mapping.

    :param generation: of the second server.
    :param more: for the keyspace.
    """
    first, second = (f"mysql://app:{password}@{host}" for host in hosts)
    return {
        "epoch": epoch,
        "keyspaces": {
            "objects": {
                "kind": "objects",
                "shards": shards,
                "database": "db{shard:05d}",
                "servers": [
                    {"name": "a", "primary": first, "shards": [0, 3]},
                    {
                        "name": "b",
                        "primary": second,
                        "shards": [4, shards - 1],
                        **({} if generation is None else {"generation": generation}),
                    },
                ],
                **more,
            }
        },
    }


def topology(epoch: int = 1, **more: Any) -> Topology:
    """Return it as a topology; for ``more`` see :func:`document`."""
    return Topology.from_mapping(
        document(epoch, **more), environ={"MYSQL_PASSWORD": ""}
    )


def place(hosts: str) -> str:
    """Return a place of its own in a ZooKeeper that many tests use.

    With a folder of its own: some close it to everybody else.
    """
    return f"zookeeper://{hosts}/tests{next(_numbers)}/topologies"
