"""Every command of ``sqla-shard``, by group and section, and its module.

See :class:`~sqla_shard.cli.groups.LazyGroup`.
"""

from __future__ import annotations

from pathlib import Path

import click

from sqla_shard.cli.groups import LazyGroup, Sections
from sqla_shard.cli.output import option

#: Commands and groups of the program.
PROGRAM: Sections = {
    "Ids and routes": {
        "id": "id_commands",
        "where": "id_commands",
        "explain": "id_commands",
        "shell": "shell_command",
    },
    "Servers and schema": {
        "status": "status_command",
        "check": "check_command",
        "topology": "catalogue",
        "schema": "catalogue",
        "fleet": "catalogue",
        "load": "monitor_commands",
        "dashboard": "dashboard_command",
        "exporter": "monitor_commands",
    },
    "Rows and transactions": {
        "verify": "catalogue",
        "repair": "repair_commands",
        "key": "repair_commands",
        "halves": "repair_commands",
        "spread": "verify_commands",
        "blobs": "catalogue",
        "cache": "catalogue",
    },
    "One database": {"migrate": "catalogue"},
    "Jobs": {"worker": "jobs_commands", "queue": "catalogue"},
    "Development": {
        "init": "init_command",
        "dev": "catalogue",
        "completion": "program",
    },
}

_TOPOLOGY: Sections = {
    "Commands": {
        "show": "topology_commands",
        "validate": "topology_commands",
        "diff": "topology_commands",
    },
    "In ZooKeeper": {
        "push": "topology_commands",
        "history": "topology_commands",
        "rollback": "topology_commands",
        "reset": "topology_commands",
        "protect": "topology_commands",
        "watch": "follow_commands",
        "agent": "follow_commands",
    },
}


@click.group("topology", cls=LazyGroup, sections=_TOPOLOGY)
def topology_command() -> None:
    """Show, validate, compare, publish and follow topologies.

    A topology is a file, or the URL of one in ZooKeeper,
    zookeeper://host:port,host:port/path.  These commands do not connect to
    the servers of the topology and need no database passwords.
    """


_MIGRATE: Sections = {
    "Measure": {"shadow": "migrate_commands", "suggest": "migrate_commands"},
    "Move": {
        "plan": "migrate_commands",
        "status": "migrate_commands",
        "switch": "migrate_commands",
        "rollback": "migrate_commands",
        "backfill": "migrate_commands",
        "reconcile": "migrate_commands",
        "verify": "migrate_commands",
    },
}


@click.group("migrate", cls=LazyGroup, sections=_MIGRATE)
def migrate_command() -> None:
    """Measure what shards would mean for one database, and move its rows.

    MOVE is the sqla_shard.migrate.Move of the application, as MODULE:NAME.
    Each command can be repeated after an interruption.
    """


_SCHEMA: Sections = {
    "Commands": {
        "init": "schema_commands",
        "template": "schema_commands",
        "provision": "schema_commands",
        "upgrade": "schema_commands",
        "downgrade": "schema_commands",
        "status": "schema_commands",
        "verify": "schema_commands",
        "resolve": "schema_commands",
    }
}


@click.group("schema", cls=LazyGroup, sections=_SCHEMA)
@option(
    "-c --config PATH",
    "Configuration file of alembic; alembic.ini by default.",
    click.Path(path_type=Path),
    to="ini",
    envvar="ALEMBIC_CONFIG",
    show_envvar=True,
    default=Path("alembic.ini"),
    show_default=False,
)
@option(
    "-n --name SECTION",
    "Section of that file, or keyspace, for one with its own revisions.",
    default="alembic",
    show_default=False,
)
@click.pass_context
def schema_command(ctx: click.Context, ini: Path, name: str) -> None:
    """Migrate and verify the tables of every virtual shard, with alembic.

    Create revisions with `alembic revision --autogenerate`.  `alembic
    upgrade` does the same as `sqla-shard schema upgrade`.  The options of
    this group precede the command.
    """
    ctx.meta["sqla_shard.ini"] = ini, name


_CACHE: Sections = {"Commands": {"repair": "cache_commands", "stats": "cache_commands"}}


@click.group("cache", cls=LazyGroup, sections=_CACHE)
def cache_command() -> None:
    """Run pending invalidations, and show statistics of the cache."""


_VERIFY: Sections = {
    "Commands": {
        "lookups": "verify_commands",
        "claims": "verify_commands",
        "relations": "verify_commands",
        "references": "verify_commands",
        "sizes": "verify_commands",
    }
}


@click.group("verify", cls=LazyGroup, sections=_VERIFY)
def verify_command() -> None:
    """Find inconsistent rows, and repair them.

    The application can run at the same time.  Nothing is written without
    --repair or --rekey.
    """


_BLOBS: Sections = {
    "Commands": {
        "train": "blobs_commands",
        "activate": "blobs_commands",
        "deactivate": "blobs_commands",
        "rewrite": "blobs_commands",
        "check": "blobs_commands",
        "status": "blobs_commands",
    }
}


@click.group("blobs", cls=LazyGroup, sections=_BLOBS)
def blobs_command() -> None:
    """Compress the blobs of a class: train, activate, rewrite.

    The application can run at the same time.  Each command can be repeated
    after an interruption.
    """


_QUEUE: Sections = {
    "Queues": {
        "list": "jobs_commands",
        "stats": "jobs_commands",
        "pause": "jobs_commands",
        "resume": "jobs_commands",
        "limit": "jobs_commands",
    },
    "Jobs": {
        "scan": "jobs_commands",
        "show": "jobs_commands",
        "retry": "jobs_commands",
        "delete": "jobs_commands",
    },
}


@click.group("queue", cls=LazyGroup, sections=_QUEUE)
def queue_command() -> None:
    """Show, pause and limit queues; show, retry and delete jobs.

    An ID is the keyspace, the shard and the number of a job, such as
    objects/7/1234.
    """


_DEV: Sections = {"Commands": {"up": "dev_command"}}


@click.group("dev", cls=LazyGroup, sections=_DEV)
def dev_command() -> None:
    """Run local servers for development.

    They need MariaDB, and ZooKeeper or memcached for these, on the machine.
    """


_FLEET: Sections = {
    "Look": {
        "status": "fleet_operations",
        "doctor": "fleet_reports",
        "capacity": "fleet_reports",
        "verify": "fleet_reports",
        "history": "fleet_operations",
    },
    "Primary and standby": {
        "failover": "fleet_operations",
        "watch": "fleet_reports",
        "reopen": "fleet_operations",
        "replica": "catalogue",
        "retire": "fleet_operations",
    },
    "Shards": {
        "split": "fleet_operations",
        "move": "fleet_operations",
        "orphans": "catalogue",
    },
    "Backups": {"backup": "catalogue", "restore": "fleet_backup"},
    "Operations": {
        "apply": "fleet_operations",
        "resume": "fleet_operations",
        "undo": "fleet_operations",
    },
}


@click.group("fleet", cls=LazyGroup, sections=_FLEET)
def fleet_command() -> None:
    """Operate the servers of a topology.

    Every operation is planned, checked, applied step by step with a journal,
    and verified.  The accounts are in the environment:
    SQLA_SHARD_OPERATOR_USER and _PASSWORD, SQLA_SHARD_REPLICATION_USER and
    _PASSWORD.
    """


_REPLICA: Sections = {
    "Commands": {
        "build": "fleet_operations",
        "rebuild": "fleet_operations",
        "replace": "fleet_operations",
    }
}


@click.group("replica", cls=LazyGroup, sections=_REPLICA)
def replica_command() -> None:
    """Build, rebuild or replace the standby of a server.

    Applications write meanwhile.  The new standby is attached, has caught up
    and is compared before the topology is published.
    """


_ORPHANS: Sections = {
    "Commands": {
        "list": "fleet_operations",
        "fence": "fleet_operations",
        "rename": "fleet_operations",
        "restore": "fleet_operations",
        "drop": "fleet_operations",
    }
}


@click.group("orphans", cls=LazyGroup, sections=_ORPHANS)
def orphans_command() -> None:
    """Remove databases that the topology has on another server.

    First they are renamed, and dropped days later.
    """


_BACKUP: Sections = {
    "Commands": {
        "create": "fleet_backup",
        "binlogs": "fleet_backup",
        "list": "fleet_backup",
        "verify": "fleet_backup",
        "prune": "fleet_backup",
    }
}


@click.group("backup", cls=LazyGroup, sections=_BACKUP)
def backup_command() -> None:
    """Back up virtual shards into a folder."""
