"""Files that configure a cache, for tests of programs that read them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path


def write_regions(path: Path, regions: Mapping[str, Sequence[str]]) -> Path:
    """Write a file with regions on memcached nodes.

    :param regions: by name, the nodes.
    """
    path.write_text(
        "\n".join(
            f"[regions.{name}]\n"
            'backend = "sqla_shard.memcached"\n'
            f"[regions.{name}.arguments]\n"
            f"servers = {json.dumps(list(servers))}\n"
            # A busy machine may take its time.
            "timeout = 5.0\n"
            "retry = 0.1\n"
            for name, servers in regions.items()
        ),
        "utf-8",
    )
    return path
