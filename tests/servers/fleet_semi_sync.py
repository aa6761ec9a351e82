"""Semi-synchronous replication on a pair."""

from __future__ import annotations

import time
from contextlib import suppress

from sqla_shard.exc import FleetServerError
from sqla_shard.fleet import Fleet
from sqla_shard.fleet.loss import acknowledgements, receiving, SemiSyncProbe
from sqla_shard.fleet.replication import replication_of
from sqla_shard.testing.database_server import DatabaseServer
from sqla_shard.testing.local_server import wait_until
from tests.servers.fleet_load import wait_until_equal
from tests.servers.server_statements import words


def use_semi_sync(
    primary: DatabaseServer, standby: DatabaseServer, *, timeout: int | None = 60_000
) -> None:
    """Turn it on, and wait until the standby acknowledges.

    :param timeout: milliseconds after which a COMMIT stops waiting; None for
        those of the configuration.
    """
    wait_until_equal(primary, standby)
    source, replica = words(primary).SEMI_SYNC
    standby.root_execute(f"SET GLOBAL {replica}_enabled = 1")
    before = _senders(primary)
    standby.root_execute("STOP REPLICA")
    standby.root_execute("START REPLICA")
    if timeout is not None:
        primary.root_execute(f"SET GLOBAL {source}_timeout = %s", (timeout,))
    primary.root_execute(f"SET GLOBAL {source}_enabled = 1")

    def acknowledges() -> bool:
        ((_, clients),) = primary.root_execute(
            f"SHOW GLOBAL STATUS LIKE '{source}_clients'"
        )
        # MySQL ends the one of the earlier connection a second later.
        senders = _senders(primary)
        return clients == "1" and len(senders) == 1 and not senders & before

    assert wait_until(acknowledges, seconds=60)


def _senders(primary: DatabaseServer) -> set[int]:
    """Return the sessions that send the binary log of a primary."""
    return {
        number
        for (number,) in primary.root_execute(
            "SELECT id FROM information_schema.processlist"
            " WHERE command LIKE 'Binlog Dump%'"
        )
    }


def look_at(fleet: Fleet, primary: str, standby: str) -> SemiSyncProbe:
    """Look at a pair as a watcher does.

    :param primary: its URL.
    :param standby: its URL.
    :raises FleetServerError: if the primary does not respond.
    """
    begin = time.time()
    found = None
    with suppress(FleetServerError), fleet.admin(standby, name="standby") as admin:
        found = receiving(replication_of(admin))
    with fleet.admin(primary, name="primary") as admin:
        acks = acknowledgements(replication_of(admin), found)
    return SemiSyncProbe(seen=begin, lost=time.time(), acks=acks)
