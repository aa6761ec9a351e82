"""The command line: ``sqla-shard``, with the extra ``cli``.

It looks at a cluster, publishes its topology, opens shells on its shards,
changes their tables with alembic, and repairs rows.  It moves no shard.  ::

    sqla-shard id N ...                decode ids, or compose one
    sqla-shard where ID ...            the server and the database of an id
    sqla-shard explain WHAT            where an id or a statement goes, and why
    sqla-shard topology show           keyspaces, servers, ranges
    sqla-shard topology validate       every problem of a topology file
    sqla-shard topology diff OLD NEW   what is different between two of them
    sqla-shard topology push FILE      publish one in a ZooKeeper
    sqla-shard topology history        what was published
    sqla-shard topology rollback       publish an older one again
    sqla-shard topology watch          each change, as it comes
    sqla-shard topology agent          a file that has what is published
    sqla-shard schema ...              one schema on every virtual shard
    sqla-shard repair                  operations that were left to be done
    sqla-shard key KEY                 whether a transaction has committed
    sqla-shard halves                  what has committed on some servers only
    sqla-shard cache repair            keys that are still in a cache
    sqla-shard cache stats             its nodes, and how many keys that are
    sqla-shard verify lookups          keys that lead nowhere, and others
    sqla-shard verify claims           keys that are reserved for nobody yet
    sqla-shard verify relations        rows of lists without their objects
    sqla-shard shell ID                a client or Python on a virtual shard
    sqla-shard completion SHELL        completion for bash, zsh or fish

All but ``schema``, ``repair``, ``key``, ``halves``, ``cache``, ``verify`` and
``shell`` connect to no database and need no password of one.  The topology is
the file of ``--topology``, or of the environment variable
``SQLA_SHARD_TOPOLOGY``, or ``topology.toml`` in the current directory; in
place of a file it can be ``zookeeper://host:port/path``, with the
credentials in ``SQLA_SHARD_ZOOKEEPER_AUTH``.

``repair``, ``verify`` and ``shell`` write rows of the application.  Where it
keeps them in a cache, ``--cache FILE`` or the environment variable
``SQLA_SHARD_CACHE`` names the file that says so; see :doc:`/howto/cache`.

The status is the same for all commands:

0
    it has done what it was asked;
1
    that has failed, or something is wrong with what it has looked at;
2
    it was asked wrongly;
3
    a server or a database could not be read: what it prints is of the others,
    and a line for each server says how many of its virtual shards were not
    read, and why;
130
    after Ctrl-C.

3 takes precedence over 1.  No command but ``schema provision`` makes a
database, or an SQLite file.  Errors are one line on the standard error.  A
password is never shown.
"""

from __future__ import annotations

import sys

from sqla_shard.exc import MissingExtraError

__all__ = ["main"]

# In the order of reading, each may import those above it:
#   printing, settings           JSON and tables; options of all commands
#   revisions                    which revisions a command is for
#   ids, topologies, completion  commands
#   ending                       what goes on until it is ended
#   publishing, following        `topology push` and such; `watch`, `agent`
#   schema_options, schema       `schema`, loaded when it is asked for
#   expressions, explaining      Python from the command line; `explain`
#   told                         the option --cache of what writes rows
#   repairing, keys, caching     `repair`; `key`, `halves`; `cache`
#   verifying                    `verify`
#   clients, sessions, shell     programs, and sessions of one shard; `shell`
#   program                      all of them in one


def main() -> None:
    """Run ``sqla-shard`` with the arguments of this process; never returns.

    The status is 1 where the packages of the extra ``cli`` are missing.
    """
    try:
        import click  # noqa: F401  # only whether it is there
        import rich  # noqa: F401  # likewise
    except ImportError as error:
        missing = MissingExtraError(
            package=error.name or "click", extra="cli", reason=str(error)
        )
        print(f"sqla-shard: error: {missing}", file=sys.stderr)  # noqa: T201  # click is not there to do it
        sys.exit(1)
    from sqla_shard.cli.program import program

    program(prog_name="sqla-shard")
