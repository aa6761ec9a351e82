"""Object ids: integers that locate an object.

======== ===== ================= =======================================
part     bits  values            meaning
======== ===== ================= =======================================
reserved 2     0                 a signed BIGINT stays positive
shard    16    0 .. 65535        the virtual shard that holds the object
type     10    0 .. 1023         the class of the object
local    36    0 .. 2**36 - 1    the row of its table on that shard
======== ===== ================= =======================================

An id never changes, because an object never leaves its virtual shard.  The
server that holds the shard may change; see :mod:`sqla_shard.topology`.  Ids
exceed ``2**53``: pass them to JavaScript as strings.

>>> pack(3429, 1, 7075733)
241294492511762325
>>> unpack(241294492511762325)
ObjectId(shard_id=3429, type_id=1, local_id=7075733)

The layout is Pinterest's ("Sharding Pinterest: How we scaled our MySQL
fleet", 2015).  It is the default, :data:`DEFAULT_LAYOUT`; an
:class:`IdLayout` has other widths, and a :class:`TimeLayout` begins with the
time, as at Instagram.  An id does not contain its layout: the same number is
another object in another layout.

``layout``       the bits of an id; the type ids of classes
``time_layout``  ids that begin with the time
"""

from __future__ import annotations

from sqla_shard.ids.layout import (
    check_shard_id,
    DEFAULT_LAYOUT,
    IdLayout,
    LOCAL_BITS,
    MAX_ID,
    MAX_LOCAL_ID,
    MAX_SHARD_ID,
    MAX_TYPE_ID,
    ObjectId,
    pack,
    SHARD_SHIFT,
    TYPE_SHIFT,
    TypeRegistry,
    unpack,
)
from sqla_shard.ids.time_layout import TimeLayout

__all__ = [
    "DEFAULT_LAYOUT",
    "LOCAL_BITS",
    "MAX_ID",
    "MAX_LOCAL_ID",
    "MAX_SHARD_ID",
    "MAX_TYPE_ID",
    "SHARD_SHIFT",
    "TYPE_SHIFT",
    "IdLayout",
    "ObjectId",
    "TimeLayout",
    "TypeRegistry",
    "check_shard_id",
    "pack",
    "unpack",
]
