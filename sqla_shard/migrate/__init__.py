"""From one database to virtual shards.

:class:`Shadow` watches an application on one database, and reports what would
become of its statements on shards, by a :class:`Declaration` of its tables;
:func:`suggest` proposes declarations.  :class:`Move` moves the rows while the
application writes them.

``declaration``   what the tables will be
``future``        the tables as the router will see them
``locations``     shards of rows that have no object id yet
``verdicts``      what would become of a statement
``forms``         forms of statements, read as if they were sharded
``planner``       the verdict of an execution
``traffic``       statements reduced to what determines their shards
``report``        reports: files, merged from many processes
``shadow``        shadow mode: decides what is planned, and counts it
``suggest``       declarations from foreign keys and recorded traffic
``move``          a move as the application has it: reads and writes
``tables``        the tables of a move: rows and objects
``links``         association tables as mapping tables, and back
``rows``          rows as objects and back, and whether the two are the same
``session_marks`` events of sessions: fences, marks, copies after COMMIT
``stages``        the stages of a move, and their order
``fences``        the stage in each database that is written
``marks``         versions of rows, and the map of their ids
``copying``       copies of rows, by versions
``copier``        copies between the database and the shards
``pass_reports``  the results of passes
``passes``        backfill, reconciliation, verification
``switching``     changes of the stage
``move_plan``     what a move will do, and how far it is
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
