"""Opening a session, with few and with many virtual shards."""

from __future__ import annotations

from sqlalchemy import create_engine
from sqlalchemy.ext.horizontal_shard import ShardedSession
from sqlalchemy.orm import Session

from sqla_shard import Cluster
from tests.benchmarks.timing import compare, show


def cluster_of(shards: int) -> Cluster:
    """Return a cluster on four servers that nothing connects to."""
    each = shards // 4
    servers = [
        {
            "name": f"server{index}",
            "primary": f"mysql://app@127.0.0.1:{10_000 + index}",
            "shards": [index * each, (index + 1) * each - 1],
        }
        for index in range(4)
    ]
    document = {
        "epoch": 1,
        "keyspaces": {
            "objects": {
                "kind": "objects",
                "shards": shards,
                "database": "db{shard:05d}",
                "servers": servers,
            }
        },
    }
    return Cluster.from_topology(document)


def run() -> None:
    """Print the table."""
    few, many = cluster_of(4), cluster_of(65_536)
    engine = create_engine("sqlite://")
    shards = {str(index): engine for index in range(4096)}

    def upstream() -> None:
        ShardedSession(
            shard_chooser=lambda *a, **k: "0",
            identity_chooser=lambda *a, **k: ["0"],
            execute_chooser=lambda *a: ["0"],
            shards=shards,
        ).close()

    show(
        "open and close a session",
        compare(
            {
                "4 virtual shards": lambda: few.session().close(),
                "65,536 virtual shards": lambda: many.session().close(),
                "SQLAlchemy's Session": lambda: Session(engine).close(),
                "SQLAlchemy's ShardedSession, 4,096 shards": upstream,
            },
            calls=20,
        ),
    )
