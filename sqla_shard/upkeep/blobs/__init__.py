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

===================  ======================================================
``stored``           the dictionaries in the databases: find, activate
``training``         samples of rows, and a dictionary from them
``rewriting``        rewrites rows with the active dictionary; checks rows
``counting``         numbers of rows and bytes, by dictionary
===================  ======================================================
"""

from __future__ import annotations

from sqla_shard.upkeep.blobs.counting import BlobStatus, status, VersionCount
from sqla_shard.upkeep.blobs.rewriting import (
    check,
    rewrite,
    RewriteProgress,
    RewriteReport,
    UnreadableRow,
)
from sqla_shard.upkeep.blobs.stored import activate, ActivationReport, deactivate
from sqla_shard.upkeep.blobs.training import train, TrainingReport

__all__ = [
    "ActivationReport",
    "BlobStatus",
    "RewriteProgress",
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
