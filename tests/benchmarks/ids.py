"""``pack`` and ``unpack``."""

from __future__ import annotations

from sqla_shard.ids import pack, unpack
from tests.benchmarks.timing import compare, show


def run() -> None:
    """Print the table."""
    show(
        "object ids",
        compare(
            {
                "pack(3429, 1, 7075733)": lambda: pack(3429, 1, 7075733),
                "unpack(241294492511762325)": lambda: unpack(241294492511762325),
                "an empty function": lambda: None,
            },
            turns=200,
            calls=5000,
        ),
    )
