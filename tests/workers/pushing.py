"""A process that publishes one topology after another.

It is started with ``python -m tests.workers.pushing URL``, and prints a line
for each; with ``open`` behind the URL, new nodes take no ACL of others.
"""

from __future__ import annotations

import sys

from sqla_shard.exc import ShardError
from sqla_shard.topology.zookeeper import store
from sqla_shard.topology.zookeeper.publisher import Publisher
from tests.servers.zookeeper import topology


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def push(location: str) -> None:
    """Publish until the process is killed."""
    with Publisher(location) as publisher:
        while True:
            before = publisher.current()
            epoch = 1 if before is None else before.epoch + 1
            try:
                publisher.publish(topology(epoch))
            except ShardError as error:
                # Another one was faster.
                say(type(error).__name__)
            else:
                say("published")


if __name__ == "__main__":
    if sys.argv[2:] == ["open"]:
        store.acl_of_first = lambda *given: None
    push(sys.argv[1])
