"""Every command of ``sqla-shard``, by group and section.

Each is listed with the module that defines it and the first sentence of its
help; see :class:`~sqla_shard.cli.groups.LazyGroup`.
"""

from __future__ import annotations

from pathlib import Path

import click

from sqla_shard.cli.groups import Lazy, LazyGroup, Sections

#: Commands and groups of the program.
PROGRAM: Sections = {
    "Ids and routes": {
        "id": Lazy(
            "id_command:id_command",
            "Decode object ids, or compose an id from its parts.",
        ),
        "where": Lazy(
            "route_commands:where_command",
            "Show the server and the database of objects.",
        ),
        "explain": Lazy(
            "route_commands:explain_command",
            "Explain which shards an id or a statement is routed to, and why.",
        ),
        "shell": Lazy(
            "shell_command:shell_command",
            "Open a shell on a virtual shard, or on the shard of an object.",
        ),
    },
    "Servers and schema": {
        "status": Lazy(
            "status_command:status_command",
            "Show the servers, and what is pending on them.",
        ),
        "topology": Lazy(
            "catalogue:topology_group",
            "Show, validate, compare, publish and follow topologies.",
        ),
        "schema": Lazy(
            "catalogue:schema_group",
            "Migrate and verify the tables of every virtual shard, with alembic.",
        ),
        "fleet": Lazy(
            "fleet_catalogue:fleet_group", "Operate the servers of a topology."
        ),
        "load": Lazy(
            "load_command:load_command",
            "Show the shards, objects and lists with the highest load.",
        ),
        "dashboard": Lazy(
            "dashboard_command:dashboard_command",
            "Serve pages that show the fleet, until Ctrl-C or SIGTERM.",
            extra="dashboard",
        ),
        "exporter": Lazy(
            "exporter_command:exporter_command",
            "Serve the metrics of the servers at /metrics, until SIGTERM or Ctrl-C.",
        ),
    },
    "Rows and transactions": {
        "verify": Lazy(
            "catalogue:verify_group", "Find inconsistent rows, and repair them."
        ),
        "repair": Lazy(
            "repair_commands:repair_command", "Run pending operations of transactions."
        ),
        "key": Lazy(
            "repair_commands:key_command",
            "Show where the transaction with a KEY has committed.",
        ),
        "halves": Lazy(
            "repair_commands:halves_command",
            "List transactions that have committed on some of their servers only.",
        ),
        "spread": Lazy(
            "verify_commands:spread_command", "Move rows of lists to more pieces."
        ),
        "blobs": Lazy(
            "catalogue:blobs_group",
            "Compress the blobs of a class: train, activate, rewrite.",
        ),
        "cache": Lazy(
            "catalogue:cache_group",
            "Run pending invalidations, and show statistics of the cache.",
        ),
    },
    "One database": {
        "migrate": Lazy(
            "catalogue:migrate_group",
            "Measure what shards would mean for one database, and move its rows.",
        )
    },
    "Jobs": {
        "worker": Lazy("worker_command:worker_command", "Run the jobs of queues."),
        "queue": Lazy(
            "catalogue:queue_group",
            "Show, pause and limit queues; show, retry and delete jobs.",
        ),
    },
    "Development": {
        "dev": Lazy("catalogue:dev_group", "Run local servers for development."),
        "completion": Lazy(
            "program:completion_command", "Print a shell completion script."
        ),
    },
}

_TOPOLOGY: Sections = {
    "Commands": {
        "show": Lazy(
            "topology_commands:show_command",
            "Show keyspaces, servers and their shards.",
        ),
        "validate": Lazy(
            "topology_commands:validate_command",
            "List all problems of a topology, one per line.",
        ),
        "diff": Lazy(
            "topology_commands:diff_command",
            "Show the changes from the topology OLD to NEW.",
        ),
    },
    "In ZooKeeper": {
        "push": Lazy(
            "publish_commands:push_command",
            "Publish the topology in FILE in ZooKeeper.",
        ),
        "history": Lazy(
            "topology_commands:history_command",
            "List the published topologies, newest first.",
        ),
        "rollback": Lazy(
            "publish_commands:rollback_command",
            "Publish an older topology again, with a new epoch.",
        ),
        "reset": Lazy(
            "publish_commands:reset_command",
            "Publish the topology in FILE with any epoch, even a lower one.",
        ),
        "protect": Lazy(
            "publish_commands:protect_command",
            "Restrict who can change the topology and its history.",
        ),
        "watch": Lazy(
            "follow_commands:watch_command",
            "Print each change of the topology when it happens.",
        ),
        "agent": Lazy(
            "follow_commands:agent_command",
            "Copy the topology in ZooKeeper to a file, and keep it up to date.",
        ),
    },
}


@click.group("topology", cls=LazyGroup, sections=_TOPOLOGY)
def topology_group() -> None:
    """Show, validate, compare, publish and follow topologies.

    A topology is a file, or the URL of one in ZooKeeper,
    zookeeper://host:port,host:port/path.  These commands do not connect to
    the servers of the topology and need no database passwords.
    """


_MIGRATE: Sections = {
    "Measure": {
        "shadow": Lazy(
            "migrate_commands:shadow_command", "Show the reports of shadow mode as one."
        ),
        "suggest": Lazy(
            "migrate_commands:suggest_command",
            "Suggest owners for the tables of an application.",
        ),
    },
    "Move": {
        "plan": Lazy(
            "move_commands:plan_command",
            "Show what a move will do, and create its tables.",
        ),
        "status": Lazy(
            "move_commands:status_command",
            "Show the stage of a move, and what is left to do.",
        ),
        "switch": Lazy(
            "move_commands:switch_command",
            "Go forward to STAGE, by way of those in between.",
        ),
        "rollback": Lazy(
            "move_commands:rollback_command", "Go back to the stage before."
        ),
        "backfill": Lazy(
            "move_commands:backfill_command",
            "Copy the rows that no session has copied.",
        ),
        "reconcile": Lazy(
            "move_commands:reconcile_command",
            "Compare all rows, and repair them, until none differs.",
        ),
        "verify": Lazy(
            "move_commands:verify_command",
            "Compare all rows of both sides; change none.",
        ),
    },
}


@click.group("migrate", cls=LazyGroup, sections=_MIGRATE)
def migrate_group() -> None:
    """Measure what shards would mean for one database, and move its rows.

    MOVE is the sqla_shard.migrate.Move of the application, as MODULE:NAME.
    Each command can be repeated after an interruption.
    """


_SCHEMA: Sections = {
    "Commands": {
        "init": Lazy(
            "schema_commands:init_command",
            "Create a DIRECTORY for revisions, and alembic.ini.",
        ),
        "template": Lazy(
            "schema_commands:template_command",
            "Print the path of the template for `alembic init -t`.",
        ),
        "provision": Lazy(
            "schema_commands:provision_command",
            "Create the databases of virtual shards that a new topology opens.",
        ),
        "upgrade": Lazy(
            "schema_commands:upgrade_command",
            "Upgrade every virtual shard to REVISION, `head` by default.",
        ),
        "downgrade": Lazy(
            "schema_commands:downgrade_command",
            "Downgrade every virtual shard to REVISION, as `alembic downgrade`.",
        ),
        "status": Lazy(
            "schema_commands:status_command",
            "Show the revisions of shards, and which shards need attention.",
        ),
        "verify": Lazy(
            "schema_commands:verify_command",
            "Compare the tables of every shard with those of one shard.",
        ),
        "resolve": Lazy(
            "schema_commands:resolve_command",
            "Resolve a SHARD whose revision is in doubt.",
        ),
    }
}


@click.group("schema", cls=LazyGroup, sections=_SCHEMA)
@click.option(
    "-c",
    "--config",
    "ini",
    metavar="PATH",
    envvar="ALEMBIC_CONFIG",
    show_envvar=True,
    type=click.Path(path_type=Path),
    default=Path("alembic.ini"),
    show_default=False,
    help="Configuration file of alembic; alembic.ini by default.",
)
@click.option(
    "-n",
    "--name",
    metavar="SECTION",
    default="alembic",
    show_default=False,
    help="Section of that file, for a keyspace with its own revisions.",
)
@click.pass_context
def schema_group(ctx: click.Context, ini: Path, name: str) -> None:
    """Migrate and verify the tables of every virtual shard, with alembic.

    Create revisions with `alembic revision --autogenerate`.  `alembic
    upgrade` does the same as `sqla-shard schema upgrade`.  The options of
    this group precede the command.
    """
    ctx.meta["sqla_shard.ini"] = ini, name


_CACHE: Sections = {
    "Commands": {
        "repair": Lazy(
            "cache_commands:repair_command", "Run pending invalidations of the cache."
        ),
        "stats": Lazy(
            "cache_commands:stats_command",
            "Show the nodes and the pending invalidations of each region.",
        ),
    }
}


@click.group("cache", cls=LazyGroup, sections=_CACHE)
def cache_group() -> None:
    """Run pending invalidations, and show statistics of the cache."""


_VERIFY: Sections = {
    "Commands": {
        "lookups": Lazy(
            "verify_commands:lookups_command", "Check lookup keys against objects."
        ),
        "claims": Lazy(
            "verify_commands:claims_command", "List open claims of lookup keys."
        ),
        "relations": Lazy(
            "verify_commands:relations_command", "Check mapping rows against objects."
        ),
        "references": Lazy(
            "verify_commands:references_command", "Compare reference tables."
        ),
        "sizes": Lazy("verify_commands:sizes_command", "Show the largest lists."),
    }
}


@click.group("verify", cls=LazyGroup, sections=_VERIFY)
def verify_group() -> None:
    """Find inconsistent rows, and repair them.

    The application can run at the same time.  Nothing is written without
    --repair or --rekey.
    """


_BLOBS: Sections = {
    "Commands": {
        "train": Lazy(
            "blobs_commands:train_command",
            "Train a dictionary from random rows, and store it on all shards.",
        ),
        "activate": Lazy(
            "blobs_commands:activate_command",
            "Let processes write blobs with a dictionary.",
        ),
        "deactivate": Lazy(
            "blobs_commands:deactivate_command", "Let processes write blobs as JSON."
        ),
        "rewrite": Lazy(
            "blobs_commands:rewrite_command",
            "Rewrite rows with the active dictionary, or as JSON without one.",
        ),
        "check": Lazy(
            "blobs_commands:check_command",
            "Read all rows, and list those whose blob cannot be read.",
        ),
        "status": Lazy(
            "blobs_commands:status_command",
            "Show the dictionaries of a class, and where they are active.",
        ),
    }
}


@click.group("blobs", cls=LazyGroup, sections=_BLOBS)
def blobs_group() -> None:
    """Compress the blobs of a class: train, activate, rewrite.

    The application can run at the same time.  Each command can be repeated
    after an interruption.
    """


_QUEUE: Sections = {
    "Queues": {
        "list": Lazy(
            "queue_commands:list_command",
            "Show the number of jobs of each queue, by state.",
        ),
        "stats": Lazy(
            "queue_commands:stats_command",
            "Show the number of jobs of a QUEUE, by task and state.",
        ),
        "pause": Lazy(
            "queue_commands:pause_command",
            "Let workers claim no more jobs of a QUEUE; those that run go on.",
        ),
        "resume": Lazy(
            "queue_commands:resume_command",
            "End the pause of a QUEUE; its limit is as before.",
        ),
        "limit": Lazy(
            "queue_commands:limit_command",
            "Limit the jobs that all workers of a QUEUE claim in a second.",
        ),
    },
    "Jobs": {
        "scan": Lazy(
            "queue_commands:scan_command",
            "List jobs of a QUEUE, by state, priority and the time they are due.",
        ),
        "show": Lazy(
            "queue_commands:show_command",
            "Show jobs with their arguments and progress.",
        ),
        "retry": Lazy(
            "queue_commands:retry_command",
            "Run failed jobs again, with all their attempts.",
        ),
        "delete": Lazy(
            "queue_commands:delete_command", "Delete jobs that are not running."
        ),
    },
}


@click.group("queue", cls=LazyGroup, sections=_QUEUE)
def queue_group() -> None:
    """Show, pause and limit queues; show, retry and delete jobs.

    An ID is the keyspace, the shard and the number of a job, such as
    objects/7/1234.
    """


_DEV: Sections = {
    "Commands": {
        "up": Lazy(
            "dev_command:up_command",
            "Run local servers until Ctrl-C, and write their topology.",
            extra="testing",
        )
    }
}


@click.group("dev", cls=LazyGroup, sections=_DEV)
def dev_group() -> None:
    """Run local servers for development.

    They need MariaDB, and ZooKeeper or memcached for these, on the machine.
    """
