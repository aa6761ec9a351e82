"""Every command of ``sqla-shard fleet``, as :mod:`.catalogue` lists others."""

from __future__ import annotations

import click

from sqla_shard.cli.groups import Lazy, LazyGroup, Sections

_FLEET: Sections = {
    "Look": {
        "status": Lazy(
            "fleet_commands:status_command",
            "Show the pending operation, its lock, and what to do now.",
        ),
        "doctor": Lazy(
            "fleet_doctor:doctor_command",
            "Check all servers of the fleet; change nothing.",
        ),
        "capacity": Lazy(
            "fleet_doctor:capacity_command",
            "Show sizes, growth and activity of servers and shards.",
        ),
        "verify": Lazy(
            "fleet_verify:verify_command",
            "Compare the content of SERVER with its standby, while both serve.",
        ),
        "history": Lazy(
            "fleet_commands:history_command",
            "List finished and undone operations, the latest first.",
        ),
    },
    "Primary and standby": {
        "failover": Lazy(
            "fleet_failover:failover_command",
            "Make the standby of SERVER its primary, and the primary its standby.",
        ),
        "watch": Lazy(
            "fleet_watch:watch_command",
            "Promote the standby of a primary that is lost.",
        ),
        "reopen": Lazy(
            "fleet_failover:reopen_command",
            "Open the primary of SERVER, which was restarted.",
        ),
        "replica": Lazy(
            "fleet_catalogue:replica_group",
            "Build, rebuild or replace the standby of a server.",
        ),
        "retire": Lazy(
            "fleet_replica:retire_command",
            "Take TARGET, which the topology does not name, out of service.",
        ),
    },
    "Shards": {
        "split": Lazy(
            "fleet_split:split_command", "Move some shards of SERVER to a new pair."
        ),
        "move": Lazy(
            "fleet_split:move_command", "Move all shards of SERVER to a new pair."
        ),
        "orphans": Lazy(
            "fleet_catalogue:orphans_group",
            "Remove databases that the topology has on another server.",
        ),
    },
    "Backups": {
        "backup": Lazy(
            "fleet_catalogue:backup_group", "Back up virtual shards into a folder."
        ),
        "restore": Lazy(
            "fleet_backup:restore_command",
            "Restore SHARD of KEYSPACE from FOLDER into a new database.",
        ),
    },
    "Operations": {
        "apply": Lazy(
            "fleet_commands:apply_command",
            "Apply the plan in FILE, the output of --plan-only --json.",
        ),
        "resume": Lazy(
            "fleet_commands:resume_command",
            "Finish an operation whose process has died or failed.",
        ),
        "undo": Lazy(
            "fleet_commands:undo_command",
            "Undo an operation whose process has died or failed.",
        ),
    },
}


@click.group("fleet", cls=LazyGroup, sections=_FLEET)
def fleet_group() -> None:
    """Operate the servers of a topology.

    Every operation is planned, checked, applied step by step with a journal,
    and verified.  The accounts are in the environment:
    SQLA_SHARD_OPERATOR_USER and _PASSWORD, SQLA_SHARD_REPLICATION_USER and
    _PASSWORD.
    """


_REPLICA: Sections = {
    "Commands": {
        "build": Lazy(
            "fleet_replica:build_command",
            "Make the empty server TARGET, a host:port, a standby of SERVER.",
        ),
        "rebuild": Lazy(
            "fleet_replica:rebuild_command",
            "Drop the content of the standby of SERVER and copy it again.",
        ),
        "replace": Lazy(
            "fleet_replica:replace_command",
            "Make the empty server TARGET the standby of SERVER in place of another.",
        ),
    }
}


@click.group("replica", cls=LazyGroup, sections=_REPLICA)
def replica_group() -> None:
    """Build, rebuild or replace the standby of a server.

    Applications write meanwhile.  The new standby is attached, has caught up
    and is compared before the topology is published.
    """


_ORPHANS: Sections = {
    "Commands": {
        "list": Lazy(
            "fleet_orphans:list_command",
            "List the orphans of SERVER, or of all servers.",
        ),
        "fence": Lazy(
            "fleet_orphans:fence_command",
            "Fence DATABASES of SERVER, by default all orphans, again.",
        ),
        "rename": Lazy(
            "fleet_orphans:rename_command",
            "Rename DATABASES of SERVER, by default all orphans, to moved_NAME.",
        ),
        "restore": Lazy(
            "fleet_orphans:restore_command",
            "Undo the renaming of DATABASES of SERVER, by default of all.",
        ),
        "drop": Lazy(
            "fleet_orphans:drop_command",
            "Drop renamed DATABASES of SERVER, by default all old enough.",
        ),
    }
}


@click.group("orphans", cls=LazyGroup, sections=_ORPHANS)
def orphans_group() -> None:
    """Remove databases that the topology has on another server.

    First they are renamed, and dropped days later.
    """


_BACKUP: Sections = {
    "Commands": {
        "create": Lazy(
            "fleet_backup:create_command",
            "Back up shards into FOLDER: one backup for each server.",
        ),
        "binlogs": Lazy(
            "fleet_backup:binlogs_command",
            "Copy the binary logs of SERVER that FOLDER does not have.",
        ),
        "list": Lazy(
            "fleet_backup:list_command",
            "List the finished backups in FOLDER, the oldest first.",
        ),
        "verify": Lazy(
            "fleet_backup:verify_command",
            "Compare the files in FOLDER with their checksums.",
        ),
        "prune": Lazy(
            "fleet_backup:prune_command",
            "Remove old backups from FOLDER, and unfinished ones after a day.",
        ),
    }
}


@click.group("backup", cls=LazyGroup, sections=_BACKUP)
def backup_group() -> None:
    """Back up virtual shards into a folder."""
