"""Primaries that are lost in several ways: nothing acknowledged is lost.

With ``SQLA_SHARD_SOAK=1`` there are five rounds of each way, 20 in all.
"""

from __future__ import annotations

import os

import pytest

from sqla_shard.fleet.admin import Admin
from sqla_shard.fleet.failover import Failover
from sqla_shard.fleet.server_states import read_state
from sqla_shard.testing.local_server import wait_until
from tests.servers.fleet_dying import lose_primary, small_disk, write_all
from tests.servers.fleet_pairs import FleetPairs

pytestmark = [pytest.mark.live, pytest.mark.thorough]

ROUNDS = 5 if os.environ.get("SQLA_SHARD_SOAK") == "1" else 1


def rounds(kind, cause, tmp_path, request, say):
    seed = request.config.getoption("hypothesis_seed")
    for number in range(ROUNDS):
        folder = tmp_path / str(number)
        folder.mkdir()
        found = lose_primary(kind, cause, folder, f"{seed} {number}")
        say(
            f"{kind.name}, {cause}, seed {seed}, round {number + 1}: "
            f"{found.waited}; {len(found.lost)} lost; "
            f"stated: {found.statement}"
        )
        yield found


@pytest.mark.parametrize("cause", ["kill", "partition", "disk", "lag"])
def test_with_semi_sync_nothing_is_lost(server_kind, cause, tmp_path, request, say):
    for found in rounds(server_kind, cause, tmp_path, request, say):
        assert found.wrong == []
        assert found.statement.startswith("none: semi-sync was on")


def test_without_semi_sync_the_loss_is_unknown(server_kind, tmp_path, request, say):
    for found in rounds(server_kind, "async", tmp_path, request, say):
        assert found.statement.startswith("unknown: semi-sync was off")
        # So the statement is true, and a statement "none" would not be.
        assert found.lost


def test_a_standby_whose_disk_is_full_is_named(server_kind, tmp_path):
    """MariaDB does not answer SHOW SLAVE STATUS then."""
    pairs = FleetPairs(tmp_path, shards=1, pair=server_kind.pair)
    (pair,) = pairs.pairs
    with small_disk() as disk:
        pair.standby.options += (f"--relay-log={disk}/relay",)
        with pairs:
            url = pairs.accounts.url(pair.standby.url)
            write_all(disk / "filler")
            for sql in (
                "SET GLOBAL read_only = 0",
                "CREATE DATABASE db00000",
                "CREATE TABLE db00000.pins (data LONGTEXT)",
                "INSERT INTO db00000.pins VALUES (REPEAT('a', 1000000))",
            ):
                pair.primary.root_execute(sql)
            try:
                with Admin(url, name="server1") as admin:
                    assert wait_until(admin.waits_for_space, seconds=60)
                plan = Failover.planned(pairs.fleet(), "server1")
                state = read_state(
                    url, name="server1", role="standby", address="", timeout=5.0
                )
            finally:
                # Its shutdown would wait for space, too.
                pair.standby.kill()
    [problem] = plan.problems
    assert str(problem).startswith("server1 standby: it waits for space on a disk")
    if server_kind.name == "mariadb":
        assert "its disk is full" in str(state.unknown)
    else:
        assert state.replication is not None
