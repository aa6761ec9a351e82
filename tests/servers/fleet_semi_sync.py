"""Semi-synchronous replication on a pair."""

from __future__ import annotations

import time
from contextlib import suppress

from sqla_shard.exc import FleetServerError
from sqla_shard.fleet import Fleet
from sqla_shard.fleet.loss import acknowledgements
from sqla_shard.fleet.loss import receiving
from sqla_shard.fleet.loss import SemiSyncProbe
from sqla_shard.fleet.replication import replication_of
from sqla_shard.testing import MariaDBServer
from sqla_shard.testing.local_server import wait_until
from tests.servers.fleet_load import wait_until_equal

__all__ = ["SEMI_SYNC_OPTIONS", "look_at", "use_semi_sync"]

#: Closed when it starts, as every server of a fleet should be.
SEMI_SYNC_OPTIONS = (
    "--read-only=1",
    "--rpl-semi-sync-master-wait-point=AFTER_SYNC",
)


def use_semi_sync(
    primary: MariaDBServer, standby: MariaDBServer, *, timeout: int = 60_000
) -> None:
    """Turn it on, and wait until the standby acknowledges.

    :param timeout: milliseconds after which a COMMIT stops waiting.
    """
    wait_until_equal(primary, standby)
    standby.root_execute("SET GLOBAL rpl_semi_sync_slave_enabled = 1")
    standby.root_execute("STOP SLAVE")
    standby.root_execute("START SLAVE")
    primary.root_execute(
        "SET GLOBAL rpl_semi_sync_master_timeout = %s", (timeout,)
    )
    primary.root_execute("SET GLOBAL rpl_semi_sync_master_enabled = 1")

    def acknowledges() -> bool:
        return primary.root_execute(
            "SHOW GLOBAL STATUS LIKE 'Rpl_semi_sync_master_clients'"
        ) == [("Rpl_semi_sync_master_clients", "1")]

    assert wait_until(acknowledges, seconds=60)


def look_at(fleet: Fleet, primary: str, standby: str) -> SemiSyncProbe:
    """Look at a pair as a watcher does.

    :param primary: its URL.
    :param standby: its URL.
    :raises FleetServerError: if the primary does not respond.
    """
    begin = time.time()
    found = None
    with (
        suppress(FleetServerError),
        fleet.admin(standby, name="standby") as admin,
    ):
        found = receiving(replication_of(admin))
    with fleet.admin(primary, name="primary") as admin:
        acks = acknowledgements(replication_of(admin), found)
    return SemiSyncProbe(seen=begin, lost=time.time(), acks=acks)
