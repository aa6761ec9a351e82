"""From one database to virtual shards.

:class:`Shadow` watches an application on one database, and reports what would
become of its statements on shards, by a :class:`Declaration` of its tables;
:func:`suggest` proposes declarations.

``declaration``   what the tables will be
``future``        the tables as the router will see them
``locations``     shards of rows that have no object id yet
``verdicts``      what would become of a statement
``forms``         forms of statements, read as if they were sharded
``planner``       the verdict of an execution
``traffic``       statements reduced to what determines their shards
``report``        reports: files, merged from many processes
``recorder``      the counts of a process
``watch``         the events of the engines that are watched
``shadow``        shadow mode: decides what is planned, and counts it
``suggest``       declarations from foreign keys and recorded traffic
``stages``        the stages of moving the rows, and their order
``stage_stores``  the stage in a file, or in ZooKeeper
``fences``        the stage in each database that is written
``marks``         versions of rows, and the map of their ids
``copying``       copies of rows, by versions
``comparing``     passes that compare the rows of both sides
``rows``          rows as objects, and whether the two are the same
"""

from __future__ import annotations

from sqla_shard.migrate.declaration import Declaration
from sqla_shard.migrate.declaration import Global
from sqla_shard.migrate.declaration import Lookup
from sqla_shard.migrate.declaration import MappingTable
from sqla_shard.migrate.declaration import Owned
from sqla_shard.migrate.declaration import Owner
from sqla_shard.migrate.declaration import Reference
from sqla_shard.migrate.report import load
from sqla_shard.migrate.report import merge
from sqla_shard.migrate.report import Report
from sqla_shard.migrate.shadow import Shadow
from sqla_shard.migrate.suggest import suggest
from sqla_shard.migrate.suggest import Suggestion

__all__ = [
    "Declaration",
    "Global",
    "Lookup",
    "MappingTable",
    "Owned",
    "Owner",
    "Reference",
    "Report",
    "Shadow",
    "Suggestion",
    "load",
    "merge",
    "suggest",
]
