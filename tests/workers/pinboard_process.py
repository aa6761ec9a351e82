"""A sign-up in a process of its own, which stops on the way.

``python -m tests.workers.pinboard_process WHEN EMAIL NAME``, with a topology
on the standard input.  It says ``stopped`` after that step and waits, so that
it can be killed there.
"""

from __future__ import annotations

import json
import sys
import threading
from datetime import timedelta
from typing import Any

from examples.pinboard import signing_up
from examples.pinboard.inputs import read_user
from sqla_shard import Cluster
from sqla_shard.outbox import operations

#: Lifetime of claims, so that no sign-up waits for long.
LIFETIME = timedelta(seconds=1)
#: After which transaction, in the order of signing up.
STEPS = ("address", "name", "user")


def stop(*_: Any) -> None:
    sys.stdout.write("stopped\n")
    sys.stdout.flush()
    threading.Event().wait()


def main(when: str, email: str, name: str) -> None:
    signing_up.LIFETIME = LIFETIME
    # Operations of a killed process are finished at once.
    operations._LEASE = 0.0
    if when == "user":
        # After the COMMIT, before its intent is applied.
        operations.apply_after_commit = stop
    left = STEPS.index(when)
    with Cluster.from_topology(json.load(sys.stdin)) as cluster:
        run = cluster.run

        def stepping(*args: Any, **options: Any) -> Any:
            nonlocal left
            found = run(*args, **options)
            if left == 0:
                stop()
            left -= 1
            return found

        cluster.run = stepping  # type: ignore[method-assign]  # to stop it
        signing_up.sign_up(cluster, read_user(email, name))


if __name__ == "__main__":
    main(*sys.argv[1:])
