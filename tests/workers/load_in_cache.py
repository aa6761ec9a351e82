"""A process that reads some pins, and publishes its load in a cache.

Run as a program with a topology file, the address of a memcached node, and
``ID:COUNT`` for each pin to read so many times.  It prints a line when its
load is published, and publishes it until standard input ends.
"""

from __future__ import annotations

import sys

from sqla_shard import Cluster
from sqla_shard.monitor import LoadCache, measure_load, publish_load
from tests.models.models import Pin

PREFIX = "load-in-cache"


def main(topology: str, address: str, *reads: str) -> None:
    with Cluster.from_file(topology) as cluster:
        cluster.configure_cache(
            {
                "pins": {
                    "backend": "sqla_shard.memcached",
                    "arguments": {"servers": [address], "timeout": 5.0},
                }
            },
            classes={},
            prefix=PREFIX,
        )
        assert cluster.cache is not None
        store = LoadCache(cluster.cache.regions["pins"].store, PREFIX)
        # Counts stay: a busy machine needs seconds for a test.
        meter = measure_load(cluster, rate=1, window=600)
        publisher = publish_load(meter, store)
        with cluster.session() as session:
            for read in reads:
                pin, count = map(int, read.split(":"))
                for _ in range(count):
                    session.get(Pin, pin)
        publisher.publish()
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        sys.stdin.read()
        publisher.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
