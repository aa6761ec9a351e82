"""Shard MySQL with plain SQLAlchemy: the id of an object is its address.

A team with SQLAlchemy models on one MySQL server puts :class:`ObjectMixin` on
a model, writes a topology file and opens a :class:`Cluster`; then every object
is on the virtual shard of its 64-bit id.
"""

# The folders of the package.  Each imports those above it here and none below;
# tests/test_layers.py checks that.  The first one is at the bottom of the
# picture in docs/explanation/package.rst.
#
#   util/        masking of secrets, files, forks, jitter
#   exc/         every error
#   ids          64-bit object ids and the registry of types
#   types/       column types: ids, references, JSON blobs, sequences, times
#   topology/    which server holds which virtual shard: model, files,
#                followers, ZooKeeper
#   dialects/    where MariaDB, MySQL and SQLite differ
#   engine/      one pool per server; a statement on many shards at once
#   planning/    statement -> virtual shards, and why; one result from the
#                rows of several shards
#   session/     ShardSession: flush, get, execute, commit, pages
#   outbox/      operations on other shards, transaction keys, repair
#   cache/       the row cache on memcached or Redis, and its invalidation
#   cluster/     Cluster: sessions, transactions, health, explain, event loops
#   models/      object classes, blob fields, mappings, lookups, references,
#                deletion
#   lookup       the public names of lookups
#   api          the names below, which are loaded on first use
#   schema/      alembic over every virtual shard
#   upkeep/      finds and repairs inconsistent rows; dictionaries of
#                compressed blobs: training, roll-out
#   jobs/        a durable queue on the shards, and its workers
#   contrib/     a follow graph and home feeds, on top of the public names
#   fleet/       fails over, moves, rebuilds, compares and backs up servers
#   monitor/     definitions and collectors of metrics; load per shard; the
#                dashboard: pages that show a fleet, for Flask and a browser
#   migrate/     from one database to shards: measures, and moves the rows
#   ext/         Flask, FastAPI, OpenTelemetry, SQLAlchemy's ShardedSession;
#                nothing imports it
#   testing/     local servers, faults, logs, a linter; nothing imports it
#   cli/         the program sqla-shard; nothing imports it

from __future__ import annotations

import importlib
from typing import Any, TYPE_CHECKING

if TYPE_CHECKING:
    from sqla_shard.api import *  # noqa: F403  # what __getattr__ returns

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


def __getattr__(name: str) -> Any:
    # The names are imported on first use: SQLAlchemy's ORM takes longer than
    # `sqla-shard id` or the completion of a command may take.
    if name in __all__:
        value = getattr(importlib.import_module("sqla_shard.api"), name)
    elif name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    else:
        value = _submodule(name)
    globals()[name] = value
    return value


def _submodule(name: str) -> Any:
    """Import a module of the package that is used as its attribute."""
    path = f"{__name__}.{name}"
    try:
        return importlib.import_module(path)
    except ModuleNotFoundError as error:
        if error.name != path:
            raise
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
