"""One schema on every virtual shard, by alembic.

``env.py`` of an application is one call, :func:`run_env`; from then on the
commands of alembic work on all virtual shards of a keyspace.

``selection``         the shards of a command, and how many at a time
``effects``           the effect of a statement, read from its text
``ledger``            the tables of this package, and the revision of every shard
``migrations/``       revisions of these tables
``reports``           the outcome of every shard, and progress
``journal``           a revision on a shard, statement by statement
``replay``            revisions that send the same to every shard, in few trips
``applier``           a process that changes shards of a server
``waves``             canary, wave, all: the processes of a run
``environment``       a command of alembic on many shards
``commands``          upgrade, downgrade, status and resolve
``provisioning``      databases for shards that a topology opens
``drift``             comparison of the tables of all shards
``revisions/``        contents of revisions
"""

from __future__ import annotations

from sqla_shard.schema.applier import Applier
from sqla_shard.schema.commands import (
    Answer,
    downgrade,
    Resolution,
    resolve,
    ShardStatus,
    status,
    StatusReport,
    upgrade,
)
from sqla_shard.schema.drift import DriftReport, verify
from sqla_shard.schema.environment import current_shard, run_env
from sqla_shard.schema.journal import Journal
from sqla_shard.schema.provisioning import provision, ProvisionReport
from sqla_shard.schema.reports import Outcome, progress_on, RunReport, State
from sqla_shard.schema.revisions import comparing, init, template_path
from sqla_shard.schema.selection import parse_shards, RunOptions, Shard
from sqla_shard.schema.waves import check_target, run

__all__ = [
    "Answer",
    "Applier",
    "DriftReport",
    "Journal",
    "Outcome",
    "ProvisionReport",
    "Resolution",
    "RunOptions",
    "RunReport",
    "Shard",
    "ShardStatus",
    "State",
    "StatusReport",
    "check_target",
    "comparing",
    "current_shard",
    "downgrade",
    "init",
    "parse_shards",
    "progress_on",
    "provision",
    "resolve",
    "run",
    "run_env",
    "status",
    "template_path",
    "upgrade",
    "verify",
]
