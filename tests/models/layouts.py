"""The id layout of the classes of the suites.

``SQLA_SHARD_TEST_LAYOUT=13,8,42`` (bits of shard, type and local id) has the
suites run with another layout than the default; see ``tests/suite_table.py``.
"""

from __future__ import annotations

import os
from typing import Any

from sqla_shard.ids import IdLayout

__all__ = ["LAYOUT", "VARIABLE", "pack", "unpack", "with_layout"]

VARIABLE = "SQLA_SHARD_TEST_LAYOUT"

_bits = [int(one) for one in os.environ.get(VARIABLE, "16,10,36").split(",")]

LAYOUT = IdLayout(shard_bits=_bits[0], type_bits=_bits[1], local_bits=_bits[2])

pack = LAYOUT.pack
unpack = LAYOUT.unpack


def with_layout(document: dict[str, Any]) -> dict[str, Any]:
    """Return a topology document whose objects have the layout."""
    if not LAYOUT.is_default:
        for space in document["keyspaces"].values():
            if space["kind"] == "objects":
                space["id_layout"] = LAYOUT.to_mapping()
    return document
