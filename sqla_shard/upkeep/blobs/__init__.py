"""Compressed blobs: training, roll-out, rewriting and counting.

Blobs of a class with ``compression="zstd"`` are written as JSON until a
dictionary is active, and read in any form at any time:

1. :func:`train` creates a dictionary from rows of the table and stores it on
   every virtual shard.  It can be read from then on.
2. :func:`activate` lets processes write with it.
3. :func:`rewrite` compresses the existing rows.

:func:`deactivate` and :func:`rewrite` return to JSON.  Every step can be
repeated after it was interrupted, while the application runs.

The dictionaries of a table are in the database of each virtual shard, which
is the unit that is moved, copied, backed up and restored: a row and its
dictionary cannot be separated.

================  =========================================================
``dictionaries``  trained, stored in the databases, active; what they compress
``rewrites``      rewrites rows with the active dictionary; checks rows
================  =========================================================
"""

from __future__ import annotations

from sqla_shard.upkeep.blobs.dictionaries import (
    activate,
    ActivationReport,
    BlobStatus,
    deactivate,
    status,
    train,
    TrainingReport,
    VersionCount,
)
from sqla_shard.upkeep.blobs.rewrites import (
    check,
    rewrite,
    RewriteReport,
    UnreadableRow,
)

__all__ = [
    "ActivationReport",
    "BlobStatus",
    "RewriteReport",
    "TrainingReport",
    "UnreadableRow",
    "VersionCount",
    "activate",
    "check",
    "deactivate",
    "rewrite",
    "status",
    "train",
]
