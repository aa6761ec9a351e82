"""Failovers from a primary that was killed, and what naive ones lose."""

from __future__ import annotations

import os
import random
import time

import pytest

from sqla_shard.exc import OperationRefusedError
from sqla_shard.fleet import apply
from sqla_shard.fleet import resume
from sqla_shard.fleet import runner
from sqla_shard.fleet import undo
from sqla_shard.fleet.dead_failover import DeadFailover
from sqla_shard.fleet.dead_failover import SemiSyncProbe
from sqla_shard.fleet.reopen import Reopen
from sqla_shard.testing.local_server import wait_until
from tests.servers.fleet_load import create
from tests.servers.fleet_load import document
from tests.servers.fleet_load import lost
from tests.servers.fleet_load import prove
from tests.servers.fleet_load import roles
from tests.servers.fleet_load import rows_now
from tests.servers.fleet_load import SHARDS
from tests.servers.fleet_load import wait_until_equal
from tests.servers.fleet_load import writing
from tests.servers.fleet_pairs import FleetPairs
from tests.servers.fleet_processes import apply_until
from tests.servers.fleet_semi_sync import SEMI_SYNC_OPTIONS
from tests.servers.fleet_semi_sync import use_semi_sync
from tests.servers.load_checks import pauses
from tests.servers.published import publish_to

pytestmark = [pytest.mark.live, pytest.mark.usefixtures("mariadb_installed")]

SOAK = os.environ.get("SQLA_SHARD_SOAK") == "1"
BEFORE = ("record", "drain", "stop", "raise-ids")


def started(folder):
    return FleetPairs(
        folder, pairs=1, shards=SHARDS, options=SEMI_SYNC_OPTIONS
    )


@pytest.fixture
def pairs(mariadb_installed, tmp_path):
    """Start a pair with semi-synchronous replication."""
    with started(tmp_path) as pairs:
        prepare(pairs)
        yield pairs


def prepare(pairs, *, timeout=60_000):
    primary, standby = roles(pairs)
    primary.root_execute("SET GLOBAL read_only = 0")
    create(pairs)
    use_semi_sync(primary, standby, timeout=timeout)


def semi_sync_of(primary):
    """Look at semi-sync as the watcher does."""
    found = dict(
        primary.root_execute("SHOW GLOBAL STATUS LIKE 'Rpl_semi_sync_master%'")
    )
    ((timeout,),) = primary.root_execute(
        "SELECT @@rpl_semi_sync_master_timeout"
    )
    now = time.time()
    return SemiSyncProbe(
        seen=now,
        lost=now,
        on=found["Rpl_semi_sync_master_status"] == "ON",
        timeout=timeout / 1000,
        standbys=int(found["Rpl_semi_sync_master_clients"]),
    )


def is_connecting(standby):
    with standby.root_connect() as connection:
        cursor = connection.cursor()
        cursor.execute("SHOW SLAVE STATUS")
        names = [column[0] for column in cursor.description]
        status = dict(zip(names, cursor.fetchone(), strict=True))
    return status["Slave_IO_Running"] == "Connecting"


def kill(pairs):
    """Kill the primary; return it when the standby has noticed."""
    primary, standby = roles(pairs)
    primary.kill()
    assert wait_until(lambda: is_connecting(standby), seconds=30)
    return primary


@pytest.fixture
def seed(request, say):
    seed = request.config.getoption("hypothesis_seed")
    say(f"seed {seed}")
    return seed


@pytest.mark.parametrize("behind", [False, True])
def test_with_semi_sync_nothing_is_lost(tmp_path, seed, say, behind):
    for number in range(10 if SOAK else 1):
        folder = tmp_path / str(number)
        folder.mkdir()
        with started(folder) as pairs:
            prepare(pairs)
            survive(pairs, folder / "log", seed, say, behind=behind)


def survive(pairs, folder, seed, say, *, behind):
    """Kill the primary under load, and see what is left.

    :param behind: whether the standby receives and does not apply.
    """
    fleet = pairs.fleet()
    topology = document(pairs)
    (server,) = topology["keyspaces"]["objects"]["servers"]
    server["generation"] = 7
    publish_to(pairs.path, topology)
    primary, standby = roles(pairs)
    if behind:
        standby.root_execute("STOP SLAVE SQL_THREAD")
    with writing(pairs, folder, seed) as load:
        load.wait_for_acks(random.Random(seed).randrange(200, 600))
        probe = semi_sync_of(primary)
        old = kill(pairs)
        plan = DeadFailover.planned(fleet, "server1", probe=probe)
        assert plan.problems == ()
        result = apply(fleet, plan)
        assert result.notes["verify"]["loss"].startswith("none: semi-sync")
        assert roles(pairs) == (standby, None)
        (server,) = document(pairs)["keyspaces"]["objects"]["servers"]
        assert server["generation"] == 8
        load.wait_for_acks(200)
        # It returns as its configuration says, and takes no write.
        old.start()
        load.wait_for_acks(200)
        attempts = load.stop()
    say(f"lost primary, behind {behind}: {pauses(attempts)}")
    prove(pairs, attempts)
    assert old.root_execute("SELECT @@read_only") == [(1,)]
    assert "open" in str(Reopen.planned(fleet, "server1").problems[0])


@pytest.mark.thorough
def test_a_killed_failover_is_resumed_or_undone(pairs, tmp_path, seed):
    fleet = pairs.fleet()
    _, standby = roles(pairs)
    standby.root_execute("STOP SLAVE SQL_THREAD")
    with writing(pairs, tmp_path / "log", seed) as load:
        load.wait_for_acks(200)
        kill(pairs)
        for step in BEFORE:
            for state in ("begin", "done"):
                plan = DeadFailover.planned(fleet, "server1")
                apply_until(fleet, plan, step=step, state=state)
                assert undo(fleet).state == "undone"
                assert wait_until(lambda: is_connecting(standby), seconds=30)
        last = random.Random(seed).choice(
            [("drain", "done"), ("stop", "done"), ("publish", "done")]
        )
        plan = DeadFailover.planned(fleet, "server1")
        apply_until(fleet, plan, step=last[0], state=last[1])
        assert resume(fleet).state == "finished"
        load.wait_for_acks(200)
        prove(pairs, load.stop())


class Naive(DeadFailover):
    """Promotes the standby as it is."""

    def _drain(self):
        return None

    def _stop(self):
        self.new.stop()
        self.prepare_publish()


def test_a_naive_promotion_loses_what_was_received(
    pairs, tmp_path, seed, monkeypatch, say
):
    monkeypatch.setitem(runner.KINDS, "dead-failover", Naive)
    fleet = pairs.fleet()
    _, standby = roles(pairs)
    standby.root_execute("STOP SLAVE SQL_THREAD")
    with writing(pairs, tmp_path / "log", seed) as load:
        load.wait_for_acks(200)
        kill(pairs)
        apply(fleet, DeadFailover.planned(fleet, "server1"))
        load.wait_for_acks(50)
        attempts = load.stop()
    gone = lost(pairs, attempts)
    say(f"naive promotion: {len(gone)} lost")
    assert len(gone) >= 200


def test_after_a_timeout_of_semi_sync_the_loss_is_stated(tmp_path, seed, say):
    with started(tmp_path) as pairs:
        prepare(pairs, timeout=100)
        fleet = pairs.fleet()
        primary, standby = roles(pairs)
        with writing(pairs, tmp_path / "log", seed) as load:
            load.wait_for_acks(50)
            standby.pause()
            load.wait_for_acks(200)
            probe = semi_sync_of(primary)
            primary.kill()
            standby.resume()
            assert wait_until(lambda: is_connecting(standby), seconds=30)
            plan = DeadFailover.planned(fleet, "server1", probe=probe)
            assert "unknown: semi-sync was off" in plan.costs[0]
            apply(fleet, plan)
            load.wait_for_acks(200)
            attempts = load.stop()
        gone = lost(pairs, attempts)
        say(f"semi-sync timed out: {len(gone)} lost")
        assert gone
        assert_no_id_names_another(pairs, attempts)


def assert_no_id_names_another(pairs, attempts):
    """Check that the ids of lost rows were not given to others."""
    there = {
        (shard, local_id): token
        for shard, rows in rows_now(pairs).items()
        for local_id, token in rows.pins
    }
    for attempt in attempts:
        if attempt.outcome == "acked":
            key = attempt.shard, attempt.local_id
            assert there.get(key, attempt.token) == attempt.token


def problems_of(plan):
    return "\n".join(map(str, plan.problems))


# -- what is refused, on a pair that is as before afterwards ---------------


@pytest.fixture(scope="module")
def shared(mariadb_installed, tmp_path_factory):
    with started(tmp_path_factory.mktemp("shared")) as pairs:
        prepare(pairs)
        yield pairs


def test_a_primary_that_lives_is_not_replaced(shared):
    fleet = shared.fleet()
    primary, standby = roles(shared)
    found = problems_of(DeadFailover.planned(fleet, "server1"))
    assert "it is not lost" in found
    assert "still connected" in found
    primary.pause()
    try:
        found = problems_of(DeadFailover.planned(fleet, "server1"))
        assert "it is not lost" not in found
        assert "still connected" in found
        plan = DeadFailover.planned(fleet, "server1", fenced=True)
        assert plan.problems == ()
    finally:
        primary.resume()
    assert roles(shared) == (primary, standby)


def test_a_standby_that_was_restarted_is_refused(shared):
    fleet = shared.fleet()
    primary, standby = roles(shared)
    kill(shared)
    standby.kill()
    standby.start()
    plan = DeadFailover.planned(fleet, "server1")
    assert "it was restarted. Do not start" in problems_of(plan)
    with pytest.raises(OperationRefusedError):
        apply(fleet, plan)
    primary.start()
    standby.root_execute("START SLAVE")


def test_a_restarted_primary_is_opened_again(shared):
    fleet = shared.fleet()
    primary, standby = roles(shared)
    assert primary.root_execute("SELECT @@read_only") == [(1,)]
    assert apply(fleet, Reopen.planned(fleet, "server1")).state == "finished"
    assert primary.root_execute("SELECT @@read_only") == [(0,)]
    wait_until_equal(primary, standby)


def test_a_primary_with_fewer_writes_is_not_opened(shared):
    fleet = shared.fleet()
    primary, standby = roles(shared)
    primary.kill()
    standby.root_execute("SET GLOBAL gtid_strict_mode = 0")
    standby.root_execute("CREATE DATABASE later")
    standby.root_execute("SET GLOBAL read_only = 0")
    primary.start()
    found = problems_of(Reopen.planned(fleet, "server1"))
    assert "that the primary has not" in found
    assert "it can be written" in found
    assert primary.root_execute("SELECT @@read_only") == [(1,)]
