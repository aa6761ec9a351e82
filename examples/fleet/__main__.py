"""The command; see the docstring of the package."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from examples.fleet import KINDS, local_servers
from sqla_shard.exc import ServerProcessError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.fleet",
        description="Start six servers on 127.0.0.1 for three pairs.",
    )
    parser.add_argument(
        "directory",
        type=Path,
        help="gets topology.json, and the accounts in environment",
    )
    parser.add_argument("--server", choices=KINDS, default="mariadb", help="their kind")
    given = parser.parse_args(arguments)
    directory = given.directory
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with local_servers(directory, kind=given.server) as servers:
            for name, server in servers.items():
                print(f"{name}:3306 is {server.host}:{server.port}")
            print(f"accounts: . {directory}/environment")
            print("Ctrl-C stops the servers and removes them", flush=True)
            while True:
                # pause() would miss a signal that comes just before it.
                time.sleep(1)
    except KeyboardInterrupt:
        return 0
    except ServerProcessError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
