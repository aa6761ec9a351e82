"""Events of a server, which run on the primary only.

An event whose definer may bypass ``read_only`` writes on a standby, too, and
its transactions are missing on the primary.  So a failover stops the event
scheduler of the old primary before the fence, disables its events, and
enables them on the new one.  The statements are not written into the binary
log: each server has its own state of an event.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqla_shard.fleet.admin import Admin, marked
from sqla_shard.fleet.replication import replication_of

#: The second one is that of MySQL 8.2 and later.
_REPLICATED = ("SLAVESIDE_DISABLED", "REPLICA_SIDE_DISABLED")


def events_of(admin: Admin) -> list[list[str]]:
    """Return the enabled events of a server.

    :returns: database, name and definer of each, which a journal can hold.
    """
    return _events(admin, "ENABLED")


def replicated_events_of(admin: Admin) -> list[list[str]]:
    """Return the events of a standby that are enabled on its primary."""
    return _events(admin, *_REPLICATED)


def _events(admin: Admin, *statuses: str) -> list[list[str]]:
    rows = admin.rows(
        "SELECT status, event_schema, event_name, definer"
        " FROM information_schema.events"
    )
    return [event for status, *event in rows if status in statuses]


def set_scheduler(admin: Admin, *, on: bool) -> bool:
    """Start or stop the event scheduler.

    :returns: whether it ran before.
    """
    found = admin.value("SELECT @@GLOBAL.event_scheduler")
    if found != "DISABLED" and (found == "ON") != on:
        admin.run(f"SET GLOBAL event_scheduler = {'ON' if on else 'OFF'}")
    return bool(found == "ON")


def enable_events(admin: Admin, events: Sequence[Sequence[str]]) -> None:
    """Enable events of a new primary, if they are there."""
    _alter(admin, events, "ENABLE")


def disable_events(admin: Admin, events: Sequence[Sequence[str]]) -> None:
    """Disable events of a former primary, if they are there."""
    _alter(admin, events, f"DISABLE ON {replication_of(admin).REPLICA}")


def _alter(admin: Admin, events: Sequence[Sequence[str]], end: str) -> None:
    there = set(
        admin.rows("SELECT event_schema, event_name FROM information_schema.events")
    )
    with admin.unlogged():
        for database, name, definer in events:
            if (database, name) not in there:
                continue
            user, _, host = definer.rpartition("@")
            # Without its definer it would become an event of the operator.
            admin.run(
                f"ALTER DEFINER = {marked(user)}@{marked(host)} EVENT "
                f"{marked(database)}.{marked(name)} {end}"
            )
