"""Column types: object ids, references, JSON blobs, keys and times.

``tracking``      JSON containers that detect changes; checks of JSON values
``blob``          :class:`JSONBlob`
``compression``   the format of compressed blobs, and dictionaries
``shard_bound``   bind parameters whose value depends on the shard
``object_ids``    :class:`ShardedId` and :class:`ObjectRef`
``columns``       :class:`LookupKey`, :class:`Sequence38`,
                  :class:`UTCTimestamp`
``vectors``       :class:`Vector`
"""

from __future__ import annotations

from sqla_shard.types.blob import Blob, JSONBlob
from sqla_shard.types.columns import LookupKey, Sequence38, UTCTimestamp
from sqla_shard.types.object_ids import full_id, IdType, ObjectRef, ShardedId
from sqla_shard.types.vectors import Vector

__all__ = [
    "Blob",
    "IdType",
    "JSONBlob",
    "LookupKey",
    "ObjectRef",
    "Sequence38",
    "ShardedId",
    "UTCTimestamp",
    "Vector",
    "full_id",
]
