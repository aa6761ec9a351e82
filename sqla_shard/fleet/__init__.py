"""Operating a fleet: fail over, move, rebuild, verify, back up.

A fleet is a topology that can be changed, with the servers in it.  Every
operation is planned, checked, applied step by step with a journal, and
verified; see :mod:`sqla_shard.fleet.operation`.

Operations:

``fleet``                      a topology that can be changed, and its servers
``operation``                  the shape of every operation: its steps and checks
``runner``                     applies, resumes and undoes operations
``journal``                    the steps that are done, and the lock of the fleet
``zookeeper_journal``          those of a topology in ZooKeeper
``requirements``               what an operation requires of its servers
``role_change``                what changes the writable server of a pair
``failover``                   a planned one, to the standby
``dead_failover``, ``loss``    one from a primary that is lost, and what is lost with it
``replica``                    builds, rebuilds and replaces a standby
``split``, ``moves``           moves shards to a new pair
``copies``                     the copy of a server while it serves
``restore``                    one shard from a backup

One server:

``admin``                      a connection of the operator
``accounts``                   accounts of the operator, and those on a server
``app_access``                 the privileges of the application
``write_access``, ``fences``   opens and closes servers, and single databases
``replication``                replication, as MariaDB and as MySQL have it
``replication_base``           what they have in common
``server_states``              the state of servers, for commands

Reports:

``doctor``                     everything that can go wrong in a fleet
``findings``                   how a check is written, and what refuses a plan
``facts``, ``fact_reader``     what the checks read, from all servers at once
``access_checks``              accounts, sessions and transactions
``content_checks``             shards, definitions, ids and disks
``replication_checks``         write access, and standbys
``setting_checks``             settings, versions and clocks
``publish_checks``             servers of a topology that is to be published
``clients``                    processes that follow the topology
``capacity``                   sizes and growth, and how to divide them
``orphans``                    databases that are elsewhere in the topology

Content:

``compare``, ``differences``   the content of two servers while they serve
``common_point``               snapshots of two servers at one position
``checksums``                  checksums of rows, by the server
``row_copy``                   the tables of a server, and all their rows

Binary logs and files:

``backup``                     the shards of a server at one position
``dumps``, ``client_options``  compressed SQL, by the programs of the server
``binlog_archive``             copies of binary logs, for a point in time
``binlog_events``              their events for one database
``binlog_statements``          statements, for a database of another name
``replay``                     from a backup to a moment
``storage``, ``files``         where backups and logs are

Watching:

``watcher``                    fails over from primaries that are lost
``watch_votes``                what each watcher sees, and their leader
"""

from __future__ import annotations

from typing import Any, TYPE_CHECKING

from sqla_shard.fleet.accounts import Account, Accounts
from sqla_shard.fleet.fleet import Fleet
from sqla_shard.fleet.operation import FleetPlan, FleetStatus, Result

if TYPE_CHECKING:
    from sqla_shard.fleet.runner import apply, resume, status, undo

__all__ = [
    "Account",
    "Accounts",
    "Fleet",
    "FleetPlan",
    "FleetStatus",
    "Result",
    "apply",
    "resume",
    "status",
    "undo",
]


def __getattr__(name: str) -> Any:
    # Imported when it is used: the modules of all operations take as long as a
    # third of `sqla-shard status`.
    if name not in ("apply", "resume", "status", "undo"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from sqla_shard.fleet import runner

    return getattr(runner, name)
