"""Which physical server holds which virtual shard.

This package imports no SQLAlchemy beyond the error tree and opens no
connection; apart from :class:`FileSource`, which reads its file, it does no
I/O.
"""

from __future__ import annotations

# In the order of reading, each may import those above it:
#   ranges, placeholders, urls, databases    values and rules, by themselves
#   keyspaces                                Server and Keyspace
#   tables, parse, validate, shorthand       from a document, noting problems
#   load, model                              Topology
#   documents, source                        TOML and JSON; files
#   changes, admission                       what two versions differ in, and
#                                            what may not be different
#   generations                              lives of a server's data
#   describing, locating                     for reading; where something is
from sqla_shard.masking import redact
from sqla_shard.topology.admission import refusals
from sqla_shard.topology.changes import CountChange
from sqla_shard.topology.changes import DatabaseChange
from sqla_shard.topology.changes import diff
from sqla_shard.topology.changes import GenerationChange
from sqla_shard.topology.changes import KindChange
from sqla_shard.topology.changes import MovedRange
from sqla_shard.topology.changes import ServerChange
from sqla_shard.topology.changes import TopologyDiff
from sqla_shard.topology.changes import UrlChange
from sqla_shard.topology.changes import WeightChange
from sqla_shard.topology.describing import describe
from sqla_shard.topology.documents import read_document
from sqla_shard.topology.documents import to_json
from sqla_shard.topology.keyspaces import Keyspace
from sqla_shard.topology.keyspaces import Kind
from sqla_shard.topology.keyspaces import Server
from sqla_shard.topology.locating import find_object
from sqla_shard.topology.locating import find_shard
from sqla_shard.topology.locating import Location
from sqla_shard.topology.model import Topology
from sqla_shard.topology.placeholders import DEFAULT_PLACEHOLDERS
from sqla_shard.topology.placeholders import fill
from sqla_shard.topology.ranges import MAX_SHARDS
from sqla_shard.topology.ranges import ShardRange
from sqla_shard.topology.shorthand import DEFAULT_URL
from sqla_shard.topology.source import FileSource
from sqla_shard.topology.source import TopologySource

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
    "to_json",
]
