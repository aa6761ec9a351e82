"""The names that can be imported from :mod:`sqla_shard`.

They are loaded when the first of them is used.
"""

from __future__ import annotations

from sqla_shard.cluster.async_session import AsyncShardSession
from sqla_shard.cluster.cluster import Cluster
from sqla_shard.cluster.cluster_events import ClusterEvents
from sqla_shard.dialects.passwords import ServerLogin
from sqla_shard.engine import scatter
from sqla_shard.engine import scatter_errors
from sqla_shard.engine.rendering import SCHEMA
from sqla_shard.ids import IdLayout
from sqla_shard.ids import ObjectId
from sqla_shard.ids import pack
from sqla_shard.ids import TimeLayout
from sqla_shard.ids import unpack
from sqla_shard.models import blob_field
from sqla_shard.models import KeyspaceMixin
from sqla_shard.models import LookupMixin
from sqla_shard.models import MappingMixin
from sqla_shard.models import ObjectMixin
from sqla_shard.models.reference import ReferenceMixin
from sqla_shard.outbox import Operation
from sqla_shard.outbox import operation
from sqla_shard.session import no_cache
from sqla_shard.session import ShardSession
from sqla_shard.session.paging import Page
from sqla_shard.topology import FileSource
from sqla_shard.topology import Topology
from sqla_shard.types import full_id
from sqla_shard.types import JSONBlob
from sqla_shard.types import ObjectRef
from sqla_shard.types import Sequence38
from sqla_shard.types import ShardedId

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
