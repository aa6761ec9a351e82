"""The topology: which physical server holds which virtual shard.

The modules here import no SQLAlchemy beyond the error tree and do no I/O,
except that :class:`FileSource` reads its file.

``keyspaces``    ranges of shards, servers, keyspaces, database names
``urls``         URLs of servers, and placeholders in them
``parse``        reads a document, also its short form, and collects problems
``model``        :class:`Topology`, and where an id or a shard is
``source``       TOML and JSON, and files
``generations``  the generations of servers, for caches
``changes``      differences between two topologies, and those not admitted
``history``      who has published a topology, and why
``follow``       followers, snapshots and polling
``zookeeper``    topologies in ZooKeeper
"""

from __future__ import annotations

from sqla_shard.topology.changes import (
    CountChange,
    DatabaseChange,
    diff,
    GenerationChange,
    KindChange,
    LayoutChange,
    MovedRange,
    refusals,
    ServerChange,
    TopologyDiff,
    UrlChange,
    WeightChange,
)
from sqla_shard.topology.keyspaces import Keyspace, Kind, MAX_SHARDS, Server, ShardRange
from sqla_shard.topology.model import (
    describe,
    find_object,
    find_shard,
    Location,
    server_names,
    Topology,
)
from sqla_shard.topology.parse import DEFAULT_URL
from sqla_shard.topology.source import (
    FileSource,
    read_document,
    to_json,
    TopologySource,
)
from sqla_shard.topology.urls import DEFAULT_PLACEHOLDERS, fill
from sqla_shard.util.masking import redact

__all__ = [
    "DEFAULT_PLACEHOLDERS",
    "DEFAULT_URL",
    "MAX_SHARDS",
    "CountChange",
    "DatabaseChange",
    "FileSource",
    "GenerationChange",
    "Keyspace",
    "Kind",
    "KindChange",
    "LayoutChange",
    "Location",
    "MovedRange",
    "Server",
    "ServerChange",
    "ShardRange",
    "Topology",
    "TopologyDiff",
    "TopologySource",
    "UrlChange",
    "WeightChange",
    "describe",
    "diff",
    "fill",
    "find_object",
    "find_shard",
    "read_document",
    "redact",
    "refusals",
    "server_names",
    "to_json",
]
