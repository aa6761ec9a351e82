"""The names that can be imported from :mod:`sqla_shard`.

They are loaded when the first of them is used.
"""

from __future__ import annotations

from sqla_shard.cluster.cluster import Cluster, ClusterEvents
from sqla_shard.cluster.event_loops import AsyncShardSession
from sqla_shard.dialects.base import ServerLogin
from sqla_shard.engine import scatter, scatter_errors
from sqla_shard.engine.rendering import SCHEMA
from sqla_shard.ids import IdLayout, ObjectId, pack, TimeLayout, unpack
from sqla_shard.models import (
    blob_field,
    KeyspaceMixin,
    LookupMixin,
    MappingMixin,
    ObjectMixin,
)
from sqla_shard.models.reference import ReferenceMixin
from sqla_shard.outbox import Operation, operation
from sqla_shard.session import no_cache, ShardSession
from sqla_shard.session.paging import Page
from sqla_shard.topology import FileSource, Topology
from sqla_shard.types import full_id, JSONBlob, ObjectRef, Sequence38, ShardedId

__all__ = [
    "SCHEMA",
    "AsyncShardSession",
    "Cluster",
    "ClusterEvents",
    "FileSource",
    "IdLayout",
    "JSONBlob",
    "KeyspaceMixin",
    "LookupMixin",
    "MappingMixin",
    "ObjectId",
    "ObjectMixin",
    "ObjectRef",
    "Operation",
    "Page",
    "ReferenceMixin",
    "Sequence38",
    "ServerLogin",
    "ShardSession",
    "ShardedId",
    "TimeLayout",
    "Topology",
    "blob_field",
    "full_id",
    "no_cache",
    "operation",
    "pack",
    "scatter",
    "scatter_errors",
    "unpack",
]
