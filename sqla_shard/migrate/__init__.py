"""From one database to virtual shards.

:class:`Shadow` watches an application on one database, and reports what would
become of its statements on shards, by a :class:`Declaration` of its tables;
:func:`suggest` proposes declarations.  :class:`Move` moves the rows while the
application writes them.

``declaration``    what the tables will be
``future``         the tables as the router will see them
``exact_types``    columns as the server has their values
``report``         verdicts, and reports of them: files of many processes
``planner``        forms of statements, and the verdict of an execution
``shadow``         shadow mode: decides what is planned, and counts it
``suggest``        declarations from foreign keys and recorded traffic
``stages``         the stages of a move, and the stage in each database
``marks``          versions of rows, and the map of their ids
``copies``         copies of rows, by versions
``tables``         the tables of a move: rows and objects
``copier``         copies between the database and the shards; mapping tables
``move``           a move as the application has it: reads, writes, sessions
``passes``         backfill, reconciliation, verification
``stage_changes``  what a move will do, and changes of its stage
"""

from __future__ import annotations

from sqla_shard.migrate.declaration import (
    Declaration,
    Global,
    Lookup,
    MappingTable,
    Owned,
    Owner,
    Reference,
)
from sqla_shard.migrate.move import Move
from sqla_shard.migrate.report import load, merge, Report
from sqla_shard.migrate.shadow import Shadow
from sqla_shard.migrate.suggest import suggest, Suggestion
from sqla_shard.migrate.tables import Moved

__all__ = [
    "Declaration",
    "Global",
    "Lookup",
    "MappingTable",
    "Move",
    "Moved",
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
