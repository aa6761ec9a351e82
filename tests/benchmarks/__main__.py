"""Run with ``make bench``; arguments choose the parts by name.

``make bench ARGS="--server mysql --server mariadb reading"``: each part on the
servers of each kind; on MariaDB where none is named.  "pauses" compares them.

``make bench ARGS="--profile scatter"``: with ``--profile`` the parts say
where their time goes, if they can, and nothing else.
"""

from __future__ import annotations

import platform
import sys

import sqlalchemy

from tests.benchmarks import (
    blobs,
    cached,
    caching,
    capacity,
    fleet_compare,
    follows,
    ids,
    job_queues,
    jobs,
    lists,
    load,
    lookups,
    moving,
    operations,
    pauses,
    reading,
    scale,
    scatter,
    schema,
    sessions,
    shadow,
    spread,
    topology,
    writing,
)
from tests.benchmarks.servers import choose, TITLES

PARTS = {
    "ids": ids.run,
    "sessions": sessions.run,
    "topology": topology.run,
    "reading": reading.run,
    "scale": scale.run,
    "scatter": scatter.run,
    "lists": lists.run,
    "spread": spread.run,
    "load": load.run,
    "lookups": lookups.run,
    "follows": follows.run,
    "cache": caching.run,
    "cached": cached.run,
    "writing": writing.run,
    "operations": operations.run,
    "jobs": jobs.run,
    "queues": job_queues.run,
    "waits": job_queues.latency,
    "schema": schema.run,
    "capacity": capacity.run,
    "compare": fleet_compare.run,
    "pauses": pauses.run,
    "shadow": shadow.run,
    "moving": moving.run,
    "blobs": blobs.run,
}

PROFILES = {
    "reading": reading.profile,
    "scatter": scatter.profile,
    "writing": writing.profile,
    "cached": cached.profile,
    "operations": operations.profile,
    "pauses": pauses.profile,
}

#: Parts that measure all kinds of servers, in turns.
OF_ALL_KINDS = frozenset(["pauses"])


def main(names: list[str]) -> int:
    """Run the parts named, or all."""
    if "--help" in names:
        print(__doc__)
        print(f"Parts: {', '.join(PARTS)}")
        print(f"Parts with --profile: {', '.join(PROFILES)}")
        return 0
    parts = PROFILES if "--profile" in names else PARTS
    names = [name for name in names if name != "--profile"]
    kinds = []
    while "--server" in names:
        at = names.index("--server")
        kinds += names[at + 1 : at + 2]
        del names[at : at + 2]
        if not kinds or kinds[-1] not in TITLES:
            print(f"--server is one of {', '.join(TITLES)}")
            return 2
    unknown = [name for name in names if name not in parts]
    if unknown:
        print(f"no part {unknown[0]!r}; there are {', '.join(parts)}")
        return 2
    print(
        f"Python {platform.python_version()}, "
        f"SQLAlchemy {sqlalchemy.__version__}; times are medians, ratios "
        "medians of the ratios of each turn"
    )
    for name in names or parts:
        for kind in ["mariadb"] if name in OF_ALL_KINDS else kinds or ["mariadb"]:
            choose(kind)
            parts[name]()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
