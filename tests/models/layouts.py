"""The id layout of the classes of the suites.

``SQLA_SHARD_TEST_LAYOUT=13,8,42`` (bits of shard, type and local id) has the
suites run with another layout than the default; ``time,13,10`` (bits of shard
and sequence number) with ids that begin with the time.  See
``tests/suite_table.py``.
"""

from __future__ import annotations

import os
from typing import Any

from sqla_shard.ids import IdLayout, TimeLayout

VARIABLE = "SQLA_SHARD_TEST_LAYOUT"

#: The epoch of ids that begin with the time: Instagram's.
_EPOCH_MS = 1_314_220_021_721


def _layout(text: str) -> IdLayout:
    kind, *rest = text.split(",")
    bits = [int(one) for one in rest]
    if kind == "time":
        return TimeLayout(epoch_ms=_EPOCH_MS, shard_bits=bits[0], sequence_bits=bits[1])
    return IdLayout(shard_bits=int(kind), type_bits=bits[0], local_bits=bits[1])


LAYOUT = _layout(os.environ.get(VARIABLE, "16,10,36"))


def pack(shard_id: int, type_id: int, local_id: int) -> int:
    """Return an id; one without a type has it in the sequence number.

    Otherwise objects of two classes would have the same id.
    """
    if LAYOUT.names_type:
        return LAYOUT.pack(shard_id, type_id, local_id)
    return LAYOUT.pack(shard_id, 0, local_id << 10 | type_id)


unpack = LAYOUT.unpack


def with_layout(document: dict[str, Any]) -> dict[str, Any]:
    """Return a topology document whose objects have the layout."""
    if not LAYOUT.is_default:
        for space in document["keyspaces"].values():
            if space["kind"] == "objects":
                space["id_layout"] = LAYOUT.to_mapping()
    return document
