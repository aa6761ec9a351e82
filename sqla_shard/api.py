"""The names that can be imported from :mod:`sqla_shard`.

They are loaded when the first of them is used.
"""

from __future__ import annotations

from sqla_shard.cluster.cluster import (
    Cluster as Cluster,
    ClusterEvents as ClusterEvents,
)
from sqla_shard.cluster.event_loops import AsyncShardSession as AsyncShardSession
from sqla_shard.dialects.base import ServerLogin as ServerLogin
from sqla_shard.engine import scatter as scatter, scatter_errors as scatter_errors
from sqla_shard.engine.rendering import SCHEMA as SCHEMA
from sqla_shard.ids import (
    IdLayout as IdLayout,
    ObjectId as ObjectId,
    pack as pack,
    TimeLayout as TimeLayout,
    unpack as unpack,
)
from sqla_shard.models import (
    blob_field as blob_field,
    KeyspaceMixin as KeyspaceMixin,
    LookupMixin as LookupMixin,
    MappingMixin as MappingMixin,
    ObjectMixin as ObjectMixin,
)
from sqla_shard.models.reference import ReferenceMixin as ReferenceMixin
from sqla_shard.outbox import Operation as Operation, operation as operation
from sqla_shard.session import no_cache as no_cache, ShardSession as ShardSession
from sqla_shard.session.paging import Page as Page
from sqla_shard.topology import FileSource as FileSource, Topology as Topology
from sqla_shard.types import (
    full_id as full_id,
    JSONBlob as JSONBlob,
    ObjectRef as ObjectRef,
    Sequence38 as Sequence38,
    ShardedId as ShardedId,
)
