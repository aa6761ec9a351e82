"""The command; see the docstring of the package."""

from __future__ import annotations

import argparse
import signal
import sys
import threading
import webbrowser
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, ExitStack
from pathlib import Path
from types import FrameType

from alembic.util import CommandError
from flask import Flask
from sqlalchemy.exc import SQLAlchemyError
from werkzeug.serving import make_server

from examples.pinboard.app import create_app
from examples.pinboard.caching import keep, MEMORY
from examples.pinboard.clusters import (
    fleet_cluster,
    local_fleet,
    sqlite_cluster,
    topology_cluster,
)
from examples.pinboard.lab.bench import Bench
from examples.pinboard.lab.lab import Lab
from examples.pinboard.samples import add_samples
from examples.pinboard.tables import bring_up_to_date
from examples.pinboard.workers import working
from sqla_shard import Cluster

_HOST = "127.0.0.1"
#: Errors that are printed in a line; all others are bugs.
_TOLD = (CommandError, ModuleNotFoundError, OSError, SQLAlchemyError)


def port(text: str) -> int:
    """Return the number of a TCP port; argparse reports a ValueError."""
    number = int(text)
    # A larger one would be truncated to its lowest 16 bits silently.
    if not 0 <= number <= 65535:
        raise ValueError(text)
    return number


def options(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the parsed command line."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.pinboard",
        description="Serve boards of links, with sample users, on 127.0.0.1.",
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--data",
        type=Path,
        default=Path("pinboard-data"),
        help="directory for SQLite files (default: pinboard-data)",
    )
    where.add_argument(
        "--topology",
        type=Path,
        help="servers to use instead, with the keyspaces objects and lookup",
    )
    for kind, name in (("mysql", "MySQL"), ("mariadb", "MariaDB")):
        where.add_argument(
            f"--{kind}",
            action="store_const",
            dest="kind",
            const=kind,
            help=f"start two {name} servers, and remove them at the end",
        )
    parser.add_argument(
        "--port", type=port, default=5000, help="0 for any that is free (default: 5000)"
    )
    parser.add_argument(
        "--no-browser", action="store_true", help="do not open the browser"
    )
    parser.add_argument(
        "--cache",
        metavar="SERVERS",
        help="memcached nodes to keep rows on, as host:port with commas; "
        '"memory" or "none" (default: memory; with --mysql and --mariadb a '
        "memcached of its own, where it is installed)",
    )
    return parser.parse_args(arguments)


_SQLITE = (
    "On SQLite a server is a folder of files: there is no process to stop or "
    "to slow down. The cache can be switched off."
)
_OTHERS = (
    "These servers belong to you, not to the demo: it neither stops them nor "
    "fills them."
)


@contextmanager
def opened(chosen: argparse.Namespace) -> Iterator[tuple[Cluster, Bench, str]]:
    """Open the cluster that the command line asks for.

    :returns: the cluster, its faults for the lab, and the cache's nodes.
    """
    with ExitStack() as stack:
        cache = MEMORY
        if chosen.kind is not None:
            fleet = stack.enter_context(local_fleet(chosen.kind))
            bench: Bench = fleet
            cache = fleet.cache_address or MEMORY
            with Cluster(fleet.direct_topology(), environ=fleet.environ) as direct:
                bring_up_to_date(direct)
            cluster = stack.enter_context(fleet_cluster(fleet))
        elif chosen.topology is not None:
            bench = Bench(_OTHERS, may_write=False)
            cluster = stack.enter_context(topology_cluster(chosen.topology))
        else:
            bench = Bench(_SQLITE)
            cluster = stack.enter_context(sqlite_cluster(chosen.data))
        yield cluster, bench, chosen.cache or cache


def serve(app: Flask, port: int, *, browse: bool) -> None:
    """Answer requests until Ctrl-C or SIGTERM.

    :raises OSError: when the port is taken.
    """
    server = make_server(_HOST, port, app, threaded=True)

    def stop(number: int, frame: FrameType | None) -> None:
        # In a thread: it waits for the loop that this has interrupted.
        threading.Thread(target=server.shutdown).start()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    address = f"http://{_HOST}:{server.server_port}/"
    print(f"{address}  (Ctrl-C ends it)", flush=True)
    if browse:
        threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()
    try:
        server.serve_forever()
    finally:
        server.server_close()
        print("\nended", flush=True)


def run(chosen: argparse.Namespace) -> None:
    """Open the cluster, bring its tables up to date, and serve."""
    if chosen.kind is not None:
        print(f"starting two servers: {chosen.kind}", flush=True)
    with opened(chosen) as (cluster, bench, where):
        bring_up_to_date(cluster)
        keep(cluster, where)
        cluster.repair()  # left by the last run, if it was killed
        made = add_samples(cluster)
        keyspace = cluster.topology.sole("objects")
        print(
            f"{keyspace.shards} virtual shards on "
            f"{len(keyspace.servers)} servers; {made} new sample users; "
            f"cache: {where}",
            flush=True,
        )
        with Lab(cluster, bench, where) as lab, working(cluster):
            app = create_app(cluster, lab=lab)
            serve(app, chosen.port, browse=not chosen.no_browser)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    chosen = options(arguments)
    try:
        run(chosen)
    except KeyboardInterrupt:
        return 130
    except _TOLD as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
