"""What ``env.py`` of a sharded application calls: :func:`run_env`.

Alembic runs ``env.py`` for each command and expects it to run migrations on
one database.  Here they run on every virtual shard of a keyspace, for
``upgrade``, ``downgrade`` and ``stamp``; ``current`` tells of all shards;
``revision --autogenerate`` and ``check`` compare the models with one of
them; ``--sql`` prints the statements once, for they are the same everywhere.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from alembic import op
from alembic.util import CommandError
from sqlalchemy import MetaData

from sqla_shard.cluster import Cluster
from sqla_shard.exc import MigrationFailedError
from sqla_shard.exc import SchemaError
from sqla_shard.exc import ShardError
from sqla_shard.schema.environment import Environment
from sqla_shard.schema.selecting import Shard

__all__ = ["current_shard", "run_env"]


def run_env(
    context: Any,
    metadata: MetaData,
    *,
    cluster: Cluster | None = None,
    **settings: Any,
) -> None:
    """Run alembic's command on every virtual shard of a keyspace.

    All that ``env.py`` has to do::

        from alembic import context
        from myapp.models import Base
        from sqla_shard.schema import run_env

        run_env(context, Base.metadata)

    The topology is the file that ``topology`` in ``alembic.ini`` names, and
    the keyspace that of ``keyspace``.

    :param context: ``alembic.context``.
    :param metadata: the tables of the models.
    :param cluster: the cluster, where the application makes its own.
    :param settings: more for alembic's ``context.configure()``, such as
        ``include_object``, which is asked for what belongs to the keyspace;
        :mod:`sqla_shard.schema.settings` says what becomes of them.
    :raises SchemaOptionError: when a setting, or an option of alembic.ini,
        cannot be used.
    :raises MigrationFailedError: when not every shard could be changed;
        alembic's own command line exits with 1 instead, having printed the
        report.
    :raises SchemaError: when the command cannot be run at all.
    """
    by_command_line = context.config.cmd_opts is not None
    try:
        Environment(context, metadata, cluster, settings).run()
    except MigrationFailedError as error:
        if by_command_line:
            # A traceback through alembic would bury the report.
            raise SystemExit(1) from error
        raise
    except ShardError as error:
        if by_command_line:
            raise CommandError(str(error)) from error
        raise


def current_shard() -> Shard:
    """Return the virtual shard that a revision is running on.

    For revisions that must do something else on one of them; all shards
    must be the same afterwards, or queries will fail on some.

    :raises SchemaError: when none is, as with ``--sql``.
    """
    with suppress(NameError):
        found = op.get_context().opts.get("sqla_shard")
        if isinstance(found, Shard):
            return found
    raise SchemaError(
        "no revision is running on a virtual shard: current_shard() is for "
        "upgrade() and downgrade(), and has no answer for --sql, which is "
        "printed once for all shards"
    )
