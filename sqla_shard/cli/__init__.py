"""The command line: ``sqla-shard``, with the extra ``cli``.

The commands inspect a cluster, publish its topology, open shells on its
shards, migrate their schema with alembic, repair rows, and operate the
servers.  ::

    sqla-shard id N ...                decode ids, or compose one
    sqla-shard where ID ...            server and database of an id
    sqla-shard explain WHAT            route of an id or statement, and why
    sqla-shard status                  servers, and what is pending
    sqla-shard topology show           keyspaces, servers, ranges
    sqla-shard topology validate       all problems of a topology file
    sqla-shard topology diff OLD NEW   differences between two topologies
    sqla-shard topology push FILE      publish a topology in ZooKeeper
    sqla-shard topology history        list the published topologies
    sqla-shard topology rollback       publish an older topology again
    sqla-shard topology reset FILE     publish with a lower epoch
    sqla-shard topology protect        restrict who can change the topology
    sqla-shard topology watch          print each change of the topology
    sqla-shard topology agent          copy the topology to a local file
    sqla-shard schema ...              migrate and verify all virtual shards
    sqla-shard fleet ...               operate the servers: see fleet --help
    sqla-shard repair                  run pending operations
    sqla-shard key KEY                 check if a transaction has committed
    sqla-shard halves                  list partially committed transactions
    sqla-shard queue ...               show, retry and delete jobs
    sqla-shard blobs ...               compress blobs with a dictionary
    sqla-shard cache repair            run pending cache invalidations
    sqla-shard cache stats             cache nodes and pending invalidations
    sqla-shard load                    hot shards, objects and lists
    sqla-shard exporter                metrics of the servers, for Prometheus
    sqla-shard verify lookups          check lookup keys against objects
    sqla-shard verify claims           list open claims of lookup keys
    sqla-shard verify relations        check mapping rows against objects
    sqla-shard verify references       compare reference tables
    sqla-shard verify sizes            show the largest lists
    sqla-shard spread                  move rows of lists to more pieces
    sqla-shard migrate shadow REPORT   what shards mean for one database
    sqla-shard migrate suggest BASE    suggest owners of its tables
    sqla-shard shell ID                SQL client or Python on a virtual shard
    sqla-shard init DIRECTORY          a new project, with tests
    sqla-shard dev up                  local servers for development
    sqla-shard completion SHELL        completion for bash, zsh or fish

Only ``schema``, ``repair``, ``key``, ``halves``, ``queue``, ``spread``,
``blobs``, ``cache``, ``verify`` and ``shell`` connect to databases and need
their passwords; ``fleet`` has accounts of its own.  The topology is the file
given with ``--topology``, or in the environment variable
``SQLA_SHARD_TOPOLOGY``, or ``topology.toml`` or ``topology.json`` in the
current directory.  It can also be a URL, ``zookeeper://host:port/path``, with
the credentials in ``SQLA_SHARD_ZOOKEEPER_AUTH``.

``repair``, ``verify`` and ``shell`` write rows of the application.  If the
application caches rows, pass its cache configuration with ``--cache FILE`` or
the environment variable ``SQLA_SHARD_CACHE``; see :doc:`/howto/cache`.

All commands exit with the same status codes:

0
    success;
1
    the command failed, or it found a problem;
2
    usage error;
3
    a server or database could not be read: the output covers the other ones,
    with one line for an outage, such as ``server2 unreachable (2003): 32
    shards 32-63: Can't connect ...``;
130
    interrupted with Ctrl-C.

Status 3 takes precedence over 1.  Only ``schema provision`` creates databases
or SQLite files.  An error is one line on standard error.  Passwords are never
shown.
"""

from __future__ import annotations

import gc
import sys

__all__ = ["main"]


def main() -> None:
    """Run ``sqla-shard`` with the arguments of this process, and exit.

    The exit status is 1 if the packages of the extra ``cli`` are missing.
    """
    try:
        import click  # noqa: F401  # checks that it is installed
        import rich  # noqa: F401  # likewise
    except ImportError as error:
        from sqla_shard.exc import MissingExtraError

        missing = MissingExtraError(
            package=error.name or "click", extra="cli", reason=str(error)
        )
        print(f"sqla-shard: error: {missing}", file=sys.stderr)  # noqa: T201  # click.echo() may not be installed
        sys.exit(1)
    from sqla_shard.cli.program import program

    try:
        program(prog_name="sqla-shard")
    finally:
        # The process ends with all of it: to look for cycles among the objects
        # of SQLAlchemy would take a fifth of the time of a command.
        gc.freeze()
