"""One schema on every virtual shard, by alembic.

``env.py`` of an application is one call, :func:`run_env`; from then on the
commands of alembic work on all virtual shards of a keyspace.

``selecting``, ``options``  which shards, and how many at a time
``reports``, ``progress``   what became of them
``statements``              what a statement does, from its text
``internal``, ``migrations/``  the tables of this package itself
``versions``                at which revision shards are
``revisions/``              what is written into revisions
``running/``                revisions on many shards, in processes
``settings``, ``environment``, ``env``  what ``env.py`` calls
``status``, ``resolving``, ``commands``  commands beside alembic's
``provisioning/``           databases for shards that a topology opens
``drift/``                  whether the tables of all shards are alike
"""

from __future__ import annotations

from sqla_shard.schema.commands import downgrade
from sqla_shard.schema.commands import resolve
from sqla_shard.schema.commands import status
from sqla_shard.schema.commands import upgrade
from sqla_shard.schema.drift import DriftReport
from sqla_shard.schema.drift import verify
from sqla_shard.schema.env import current_shard
from sqla_shard.schema.env import run_env
from sqla_shard.schema.options import RunOptions
from sqla_shard.schema.progress import progress_on
from sqla_shard.schema.provisioning import provision
from sqla_shard.schema.provisioning import ProvisionReport
from sqla_shard.schema.reports import Outcome
from sqla_shard.schema.reports import RunReport
from sqla_shard.schema.reports import State
from sqla_shard.schema.resolving import Answer
from sqla_shard.schema.resolving import Resolution
from sqla_shard.schema.revisions import comparing
from sqla_shard.schema.revisions import init
from sqla_shard.schema.revisions import template_path
from sqla_shard.schema.selecting import parse_shards
from sqla_shard.schema.selecting import Shard
from sqla_shard.schema.status import ShardStatus
from sqla_shard.schema.status import StatusReport

__all__ = [
    "Answer",
    "DriftReport",
    "Outcome",
    "ProvisionReport",
    "Resolution",
    "RunOptions",
    "RunReport",
    "Shard",
    "ShardStatus",
    "State",
    "StatusReport",
    "comparing",
    "current_shard",
    "downgrade",
    "init",
    "parse_shards",
    "progress_on",
    "provision",
    "resolve",
    "run_env",
    "status",
    "template_path",
    "upgrade",
    "verify",
]
