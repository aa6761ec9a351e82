"""Reference tables: small, and the same on every virtual shard.

``definition``  what happens when a reference class is created
``rows``        from what a caller gives to rows of the table
``copies``      the rows on one shard: reading, comparing, changing
``writing``     the same change on every shard
``report``      what was found
``verifying``   comparing all shards, and repairing them
``mixin``       :class:`ReferenceMixin`
"""

from __future__ import annotations

from sqla_shard.reference.mixin import ReferenceMixin
from sqla_shard.reference.report import Deviation
from sqla_shard.reference.report import ReferencesReport
from sqla_shard.reference.report import Unread
from sqla_shard.reference.verifying import verify_references

__all__ = [
    "Deviation",
    "ReferenceMixin",
    "ReferencesReport",
    "Unread",
    "verify_references",
]
