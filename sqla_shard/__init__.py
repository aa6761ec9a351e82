"""Shard MySQL with plain SQLAlchemy: the id of an object is its address.

A team with SQLAlchemy models on one MySQL server puts :class:`ObjectMixin` on
a model, writes a topology file and opens a :class:`Cluster`; from then on
every object lives on a virtual shard that its 64-bit id names.
"""

# The layers, in order.  A module imports only from those above it in this
# list; tests/test_layers.py holds us to it.
#
#   masking      texts as they may be shown, without their secrets
#   exc          every error
#   ids          64-bit object ids, type registry
#   paging       pages of rows, and bookmarks
#   files        files that are replaced as a whole
#   forking      what is done in a child process, right after a fork
#   jitter       pauses that differ
#   topology/    which server holds which virtual shard; files
#   following/   how a change of the topology reaches a process
#   types/       column types: ids, references, JSON blobs, times
#   dialects/    where MariaDB, MySQL and SQLite differ
#   rendering    from a compiled statement to the text of one shard
#   scattering/  one statement on many shards, all servers at once
#   branching    the newest rows of many lists, in one statement
#   internal     tables of this package itself
#   engines      one pool per physical server
#   routing/     statement -> virtual shards, and why
#   merging/     what is asked of several shards, to make one answer
#   session/     ShardSession and its parts
#   tokens       keys of transactions that were committed
#   committed    what all shards know of a key
#   intents/     what is done on other shards after a COMMIT
#   cache/       what is kept of rows on memcached, and when it may not be
#   retrying     repeating a transaction when that is safe
#   creating     databases and tables of every shard, for development
#   rehearsing   what would be sent for a statement
#   explaining   where something goes, without going there
#   loops        the engines of each event loop
#   current      the topology in use, and how a newer one takes its place
#   health       what a cluster says of itself
#   async_session  ShardSession for event loops
#   sourcing     the ways to open a cluster
#   running      a transaction, its attempts, and its key
#   upkeep       what is done for a cluster from time to time
#   keeping      the cache of a cluster
#   cluster      Cluster, the front door
#   cluster_events  what an application can be told of
#   orm/         object classes and their blob fields
#   mappings/    ordered lists of objects
#   lookup/      mod shards: from a key to an id, and claims of keys
#   reference/   small tables that are the same on every shard
#   deleting/    deleting an object with what belongs to it
#   verifying/   finding and mending rows that do not fit others
#   schema/      alembic over every virtual shard
#   ext/         Flask, OpenTelemetry, SQLAlchemy's ShardedSession; nothing
#                imports it
#   testing/     local servers, faults, logs, a linter; nothing imports it
#   cli/         the program sqla-shard, on top of these names; nothing
#                imports it

from __future__ import annotations

from sqla_shard import deleting as _deleting  # noqa: F401  # names operations
from sqla_shard.async_session import AsyncShardSession
from sqla_shard.cluster import Cluster
from sqla_shard.cluster_events import ClusterEvents
from sqla_shard.ids import ObjectId
from sqla_shard.ids import pack
from sqla_shard.ids import unpack
from sqla_shard.intents import Operation
from sqla_shard.intents import operation
from sqla_shard.lookup import LookupMixin
from sqla_shard.mappings import MappingMixin
from sqla_shard.orm import blob_field
from sqla_shard.orm import KeyspaceMixin
from sqla_shard.orm import ObjectMixin
from sqla_shard.paging import Page
from sqla_shard.reference import ReferenceMixin
from sqla_shard.rendering import SCHEMA
from sqla_shard.scattering import scatter
from sqla_shard.scattering import scatter_errors
from sqla_shard.session import no_cache
from sqla_shard.session import ShardSession
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
