"""Column types: object ids, references and JSON blobs.

``ids``       :class:`ShardedId` and :class:`ObjectRef`
``binds``     parameters that differ by shard
``tracking``  JSON containers that notice changes
``blob``      :class:`JSONBlob`
``keys``      :class:`LookupKey`
``sequences`` :class:`Sequence38`
``times``     :class:`UTCTimestamp`
"""

from __future__ import annotations

from sqla_shard.types.blob import Blob
from sqla_shard.types.blob import JSONBlob
from sqla_shard.types.ids import full_id
from sqla_shard.types.ids import IdType
from sqla_shard.types.ids import ObjectRef
from sqla_shard.types.ids import ShardedId
from sqla_shard.types.keys import LookupKey
from sqla_shard.types.sequences import Sequence38
from sqla_shard.types.times import UTCTimestamp

__all__ = [
    "Blob",
    "IdType",
    "JSONBlob",
    "LookupKey",
    "ObjectRef",
    "Sequence38",
    "ShardedId",
    "UTCTimestamp",
    "full_id",
]
