"""Shard MySQL with plain SQLAlchemy: the id of an object is its address.

A team with SQLAlchemy models on one MySQL server puts :class:`ObjectMixin` on
a model, writes a topology file and opens a :class:`Cluster`; then every object
is on the virtual shard of its 64-bit id.
"""

# The layers of the package.  Each imports those above it and none below;
# tests/test_layers.py checks that.
#
#   util/        masking of secrets, files, forks, jitter, former paths
#   exc/         every error
#   ids          64-bit object ids and the registry of types
#   types/       column types: ids, references, JSON blobs, sequences, times
#   topology/    which server holds which virtual shard: model, files,
#                followers, ZooKeeper
#   dialects/    where MariaDB, MySQL and SQLite differ
#   engine/      one pool per server; a statement on many shards at once
#   routing/     statement -> virtual shards, and why
#   merging/     one result from the rows of several shards
#   session/     ShardSession: flush, get, execute, commit, pages
#   outbox/      operations on other shards, transaction keys, repair
#   cache/       the row cache on memcached or Redis, and its invalidation
#   cluster/     Cluster: sessions, transactions, health, explain, event loops
#   models/      object classes, blob fields, mappings, lookups, references,
#                deletion
#   lookup       the public names of lookups
#   schema/      alembic over every virtual shard
#   verify/      finds and repairs inconsistent rows
#   jobs/        a durable queue on the shards, and its workers
#   contrib/     a follow graph and home feeds, on top of the public names
#   fleet/       fails over, moves, rebuilds, compares and backs up servers
#   metrics/     definitions and collectors of metrics; load per shard
#   ext/         Flask, OpenTelemetry, SQLAlchemy's ShardedSession; nothing
#                imports it
#   testing/     local servers, faults, logs, a linter; nothing imports it
#   cli/         the program sqla-shard; nothing imports it

from __future__ import annotations

from sqla_shard.cluster.async_session import AsyncShardSession
from sqla_shard.cluster.cluster import Cluster
from sqla_shard.cluster.cluster_events import ClusterEvents
from sqla_shard.engine import scatter
from sqla_shard.engine import scatter_errors
from sqla_shard.engine.rendering import SCHEMA
from sqla_shard.ids import ObjectId
from sqla_shard.ids import pack
from sqla_shard.ids import unpack
from sqla_shard.models import blob_field
from sqla_shard.models import deletion as _deleting  # noqa: F401  # names operations
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
from sqla_shard.util import former

__all__ = [
    "SCHEMA",
    "AsyncShardSession",
    "Cluster",
    "ClusterEvents",
    "FileSource",
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
    "ShardSession",
    "ShardedId",
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

former.install()
