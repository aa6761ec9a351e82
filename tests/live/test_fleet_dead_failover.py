"""Failovers from a primary that was killed, and what naive ones lose."""

from __future__ import annotations

import json
import os
import random
import threading
import time
from dataclasses import replace
from typing import Any

import pytest

from sqla_shard.exc import OperationFailedError, OperationRefusedError
from sqla_shard.fleet import apply, resume, runner, undo
from sqla_shard.fleet.dead_failover import DeadFailover
from sqla_shard.fleet.loss import acknowledgements, loss_of, receiving
from sqla_shard.fleet.replication import replication_of
from sqla_shard.fleet.write_access import Reopen
from sqla_shard.ids import TimeLayout
from sqla_shard.outbox.tables import CLOCKS
from sqla_shard.testing.local_server import wait_until
from tests.servers.fleet_controls import Naive
from tests.servers.fleet_load import (
    create,
    document,
    lost,
    prove,
    roles,
    rows_now,
    SHARDS,
    wait_until_equal,
    writing,
)
from tests.servers.fleet_pairs import FleetPairs
from tests.servers.fleet_processes import apply_until
from tests.servers.fleet_semi_sync import look_at, use_semi_sync
from tests.servers.load_checks import pauses
from tests.servers.published import places, publish_to
from tests.servers.server_statements import received, semi_sync_options, unlogged, words
from tests.test_docs import certificates  # noqa: F401  # a fixture

pytestmark = pytest.mark.live

SOAK = os.environ.get("SQLA_SHARD_SOAK") == "1"
TIMES = TimeLayout(epoch_ms=1_314_220_021_721)
BEFORE = ("record", "drain", "stop", "raise-ids")


def started(folder, kind):
    return FleetPairs(
        folder, pairs=1, shards=SHARDS, pair=kind.pair, options=semi_sync_options(kind)
    )


@pytest.fixture
def pairs(server_kind, tmp_path):
    """Start a pair with semi-synchronous replication."""
    with started(tmp_path, server_kind) as pairs:
        prepare(pairs)
        yield pairs


def prepare(pairs, *, timeout=60_000):
    primary, standby = roles(pairs)
    primary.root_execute("SET GLOBAL read_only = 0")
    create(pairs)
    use_semi_sync(primary, standby, timeout=timeout)


def seen(pairs, **options):
    """Look at semi-sync as a watcher does."""
    primary, standby = roles(pairs)
    return look_at(pairs.fleet(**options), primary.url, standby.url)


def is_connecting(standby):
    return received(standby) == "Connecting"


def kill(pairs):
    """Kill the primary; return it when the standby has noticed."""
    primary, standby = roles(pairs)
    primary.kill()
    assert wait_until(lambda: is_connecting(standby), seconds=60)
    return primary


@pytest.fixture
def seed(request, say):
    seed = request.config.getoption("hypothesis_seed")
    say(f"seed {seed}")
    return seed


@pytest.mark.parametrize("behind", [False, True])
def test_with_semi_sync_nothing_is_lost(server_kind, tmp_path, seed, say, behind):
    for number in range(10 if SOAK else 1):
        folder = tmp_path / str(number)
        folder.mkdir()
        with started(folder, server_kind) as pairs:
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
    _, standby = roles(pairs)
    if behind:
        standby.root_execute("STOP REPLICA SQL_THREAD")
    with writing(pairs, folder, seed) as load:
        load.wait_for_acks(random.Random(seed).randrange(50, 150))
        probe = seen(pairs)
        old = kill(pairs)
        plan = DeadFailover.planned(fleet, "server1", probe=probe)
        assert plan.problems == ()
        result = apply(fleet, plan)
        assert result.notes["verify"]["loss"].startswith("none: semi-sync")
        assert "\nlost writes: none: semi-sync" in str(result)
        assert "\nnext: server1 standby" in str(result)
        assert roles(pairs) == (standby, None)
        (server,) = document(pairs)["keyspaces"]["objects"]["servers"]
        assert server["generation"] == 8
        load.wait_for_acks(50)
        # It returns as its configuration says, and takes no write.
        old.start()
        load.wait_for_acks(50)
        attempts = load.stop()
    say(f"lost primary, behind {behind}: {pauses(attempts)}")
    prove(pairs, attempts)
    assert old.root_execute("SELECT @@read_only") == [(1,)]
    assert "open" in str(Reopen.planned(fleet, "server1").problems[0])


@pytest.mark.thorough
def test_a_killed_failover_is_resumed_or_undone(pairs, tmp_path, seed):
    fleet = pairs.fleet()
    _, standby = roles(pairs)
    standby.root_execute("STOP REPLICA SQL_THREAD")
    with writing(pairs, tmp_path / "log", seed) as load:
        load.wait_for_acks(50)
        kill(pairs)
        for step in BEFORE:
            for state in ("begin", "done"):
                plan = DeadFailover.planned(fleet, "server1")
                apply_until(fleet, plan, step=step, state=state)
                assert undo(fleet).state == "undone"
                assert wait_until(lambda: is_connecting(standby), seconds=60)
        last = random.Random(seed).choice(
            [("drain", "done"), ("stop", "done"), ("publish", "done")]
        )
        plan = DeadFailover.planned(fleet, "server1")
        apply_until(fleet, plan, step=last[0], state=last[1])
        assert resume(fleet).state == "finished"
        load.wait_for_acks(50)
        prove(pairs, load.stop())


@pytest.mark.thorough
def test_a_naive_promotion_loses_what_was_received(
    pairs, tmp_path, seed, monkeypatch, say
):
    monkeypatch.setitem(runner.kinds(), "dead-failover", Naive)
    fleet = pairs.fleet()
    _, standby = roles(pairs)
    standby.root_execute("STOP REPLICA SQL_THREAD")
    with writing(pairs, tmp_path / "log", seed) as load:
        load.wait_for_acks(50)
        kill(pairs)
        apply(fleet, DeadFailover.planned(fleet, "server1"))
        load.wait_for_acks(20)
        attempts = load.stop()
    gone = lost(pairs, attempts)
    say(f"naive promotion: {len(gone)} lost")
    assert len(gone) >= 50


@pytest.mark.thorough
def test_after_a_timeout_of_semi_sync_the_loss_is_stated(
    server_kind, tmp_path, seed, say
):
    with started(tmp_path, server_kind) as pairs:
        prepare(pairs, timeout=100)
        fleet = pairs.fleet()
        primary, standby = roles(pairs)
        # Enough that the buffers of the standby's socket do not have all of it.
        with writing(pairs, tmp_path / "log", seed, processes=8) as load:
            load.wait_for_acks(20)
            standby.pause()
            load.wait_for_acks(200)
            probe = seen(pairs, timeout=2.0)
            primary.kill()
            standby.resume()
            assert wait_until(lambda: is_connecting(standby), seconds=60)
            plan = DeadFailover.planned(fleet, "server1", probe=probe)
            assert "unknown: semi-sync was off" in plan.costs[0]
            apply(fleet, plan)
            load.wait_for_acks(50)
            attempts = load.stop()
        gone = lost(pairs, attempts)
        say(f"semi-sync timed out: {len(gone)} lost")
        assert gone
        assert_no_id_names_another(pairs, attempts)


@pytest.mark.thorough
def test_a_transaction_that_was_received_in_part_is_not_waited_for(
    server_kind, tmp_path
):
    """MySQL waits for 60 s before it stops the applier of one."""
    with started(tmp_path, server_kind) as pairs:
        prepare(pairs, timeout=100)
        fleet = pairs.fleet()
        primary, standby = roles(pairs)
        primary.root_execute("CREATE TABLE db00000.filler (v LONGTEXT)")
        wait_until_equal(primary, standby)
        standby.pause()
        with primary.root_connect() as connection:
            cursor = connection.cursor()
            cursor.execute("START TRANSACTION")
            # More than the buffers of the standby's socket hold.
            for _ in range(32):
                cursor.execute("INSERT INTO db00000.filler SELECT REPEAT('x', 1000000)")
            connection.commit()
        primary.kill()
        standby.resume()
        assert wait_until(lambda: is_connecting(standby), seconds=60)
        plan = DeadFailover.planned(fleet, "server1")
        assert apply(fleet, plan).state == "finished"
        assert standby.root_execute("SELECT COUNT(*) FROM db00000.filler") == [(0,)]


@pytest.mark.only_on("mysql")
def test_the_applier_of_another_channel_is_not_killed(server_kind, tmp_path):
    with started(tmp_path, server_kind) as pairs:
        fleet = pairs.fleet()
        primary, standby = roles(pairs)
        standby.root_execute("STOP REPLICA")
        standby.root_execute(
            "CHANGE REPLICATION SOURCE TO SOURCE_HOST = '127.0.0.1',"
            " SOURCE_PORT = 1, SOURCE_USER = 'nobody' FOR CHANNEL 'other'"
        )
        # First, so that the processlist has it first.
        standby.root_execute("START REPLICA SQL_THREAD FOR CHANNEL 'other'")
        standby.root_execute("START REPLICA FOR CHANNEL ''")
        primary.kill()
        assert wait_until(lambda: is_connecting(standby), seconds=60)
        plan = DeadFailover.planned(fleet, "server1")
        assert apply(fleet, plan).state == "finished"


@pytest.mark.thorough
def test_a_standby_that_was_restarted_by_itself_states_the_loss(
    pairs, tmp_path, seed, say
):
    fleet = pairs.fleet()
    _, standby = roles(pairs)
    standby.root_execute("STOP REPLICA SQL_THREAD")
    with writing(pairs, tmp_path / "log", seed) as load:
        load.wait_for_acks(30)
        probe = seen(pairs)
        assert loss_of(probe).startswith("none")
        kill(pairs)
        # Without skip-slave-start; one of MariaDB deletes its relay log.
        standby.kill()
        standby.start()
        standby.root_execute("START REPLICA")
        assert wait_until(lambda: is_connecting(standby), seconds=60)
        plan = DeadFailover.planned(fleet, "server1", probe=probe, allow_loss=False)
        assert plan.problems == ()
        stated = "unknown: the standby was restarted"
        assert plan.arguments["loss"].startswith(stated)
        # A watcher whose plan is older does nothing, either.
        with pytest.raises(OperationFailedError) as caught:
            apply(fleet, plan)
        assert caught.value.step == "record"
        assert stated in caught.value.reason
        plan = DeadFailover.planned(fleet, "server1", probe=probe)
        apply(fleet, plan)
        load.wait_for_acks(20)
        gone = lost(pairs, load.stop())
    say(f"standby restarted: {len(gone)} lost")
    assert bool(gone) == (pairs.kind == "mariadb")


@pytest.mark.only_on("mysql")
@pytest.mark.parametrize("how", ["restarted", "stopped"])
def test_a_standby_of_mysql_applies_what_it_had_received(
    pairs, tmp_path, seed, say, how
):
    """Its relay log survives, and has the only copy of acknowledged writes."""
    fleet = pairs.fleet()
    _, standby = roles(pairs)
    standby.root_execute("STOP REPLICA SQL_THREAD")
    with writing(pairs, tmp_path / "log", seed) as load:
        load.wait_for_acks(50)
        kill(pairs)
        if how == "restarted":
            standby.kill()
            standby.start()
        else:
            standby.root_execute("STOP REPLICA")
        assert received(standby) == "No"
        plan = DeadFailover.planned(fleet, "server1")
        assert plan.problems == ()
        apply(fleet, plan)
        load.wait_for_acks(20)
        attempts = load.stop()
    say(f"standby {how}: {len(lost(pairs, attempts))} lost")
    prove(pairs, attempts)


@pytest.mark.parametrize("option", ["--relay-log-recovery=1", "--relay-log=another"])
def test_a_standby_that_cannot_read_its_relay_log_is_refused(pairs, option):
    """It may have been the only copy of acknowledged writes."""
    fleet = pairs.fleet()
    primary, standby = roles(pairs)
    standby.root_execute("STOP REPLICA SQL_THREAD")
    receive_a_database(fleet, primary, standby)
    kill(pairs)
    standby.kill()
    standby.options = (*standby.options, option)
    standby.start()
    plan = DeadFailover.planned(fleet, "server1")
    unknown = "what it had received is unknown: it was restarted"
    assert unknown in problems_of(plan)
    with pytest.raises(OperationRefusedError, match=unknown):
        apply(fleet, plan)
    assert roles(pairs) == (primary, standby)


def receive_a_database(fleet, primary, standby):
    """Let a standby receive a transaction, which it may not apply."""
    primary.root_execute("CREATE DATABASE acknowledged")
    with fleet.admin(standby.url, name="standby") as admin:
        new = replication_of(admin)
        position = primary.position()
        assert wait_until(
            lambda: new.covers(new.status().received, position), seconds=60
        )


def test_a_primary_that_lacks_what_its_standby_has_received(pairs):
    fleet = pairs.fleet()
    primary, standby = roles(pairs)
    standby.root_execute("STOP REPLICA SQL_THREAD")
    with fleet.admin(primary.url, name="primary") as admin:
        old = replication_of(admin)
        position, history = old.position(), old.history()
        receive_a_database(fleet, primary, standby)
        # As a power failure does, with sync_binlog = 0.
        unlogged(primary, "DROP DATABASE acknowledged")
        old.adopt(position, history)
    primary.kill()
    primary.start()
    found = problems_of(Reopen.planned(fleet, "server1"))
    assert "it has received" in found
    assert "fleet failover server1 --dead" in found


@pytest.mark.only_on("mysql")
def test_a_standby_that_has_received_nothing_yet_is_promoted(pairs):
    """Retrieved_Gtid_Set is empty until the first write after attaching."""
    fleet = pairs.fleet()
    _, standby = roles(pairs)
    standby.root_execute("STOP REPLICA")
    standby.root_execute("RESET REPLICA")
    standby.root_execute("START REPLICA")
    kill(pairs)
    with fleet.admin(standby.url, name="standby") as admin:
        assert replication_of(admin).status().received == ""
    assert apply(fleet, DeadFailover.planned(fleet, "server1")).problems == ()
    assert roles(pairs) == (standby, None)


class Slow(DeadFailover):
    """Applies for longer than semi-sync waits."""

    def _do_drain(self):
        super()._do_drain()
        probe = self._probe()
        assert wait_until(
            lambda: loss_of(replace(probe, lost=time.time())).startswith("unknown"),
            seconds=60,
        )


@pytest.mark.thorough
def test_a_loss_that_is_unknown_in_the_end_is_not_published(pairs, monkeypatch):
    monkeypatch.setitem(runner.kinds(), "dead-failover", Slow)
    fleet = pairs.fleet()
    probe = seen(pairs)
    probe = replace(probe, acks=replace(probe.acks, timeout=8.0))
    kill(pairs)
    plan = DeadFailover.planned(fleet, "server1", probe=probe, allow_loss=False)
    with pytest.raises(OperationFailedError) as caught:
        apply(fleet, plan)
    # A machine that is very slow knows it before.
    assert caught.value.step in ("record", "stop")
    assert "may be lost (unknown: semi-sync was on" in caught.value.reason
    assert caught.value.undone
    plan = DeadFailover.planned(fleet, "server1", probe=probe)
    result = apply(fleet, plan)
    assert result.notes["verify"]["loss"].startswith("unknown")


@pytest.mark.thorough
def test_an_applier_that_hangs_is_not_waited_for(pairs, tmp_path, seed):
    fleet = pairs.fleet()
    _, standby = roles(pairs)
    table = f"`{places(document(pairs))[0][1]}`.load_pins"
    with (
        standby.connect() as connection,
        writing(pairs, tmp_path / "log", seed) as load,
    ):
        connection.cursor().execute(f"LOCK TABLES {table} READ")
        load.wait_for_acks(30)
        kill(pairs)
        plan = DeadFailover.planned(fleet, "server1", drain_timeout=2.0)
        with pytest.raises(OperationFailedError) as caught:
            apply(fleet, plan)
        assert caught.value.step == "drain"
        assert "or wait longer with --drain-timeout" in caught.value.reason
        assert caught.value.undone
        assert not caught.value.left
        connection.cursor().execute("UNLOCK TABLES")
        apply(fleet, DeadFailover.planned(fleet, "server1"))
        load.wait_for_acks(20)
        prove(pairs, load.stop())


LATE = 40


class Returning(DeadFailover):
    """Its primary returns when it has just been proven to be lost."""

    pair: Any = None

    def _still_receives(self, status):
        found = super()._still_receives(status)
        if self.notes.get("record") and self.pair is not None:
            (primary, server), type(self).pair = self.pair, None
            primary.start()
            standby = self.new
            wait_until(lambda: standby.status().runs, seconds=60)
            locking = server.root_connect()
            locking.cursor().execute("LOCK TABLES later.it WRITE")
            # More than one: STOP waits for the one that is being applied.
            with primary.root_connect() as connection:
                for number in range(LATE):
                    connection.cursor().execute(
                        "INSERT INTO later.it VALUES (%s)", (number,)
                    )
            written = primary.position()
            wait_until(
                lambda: standby.covers(standby.status().received, written), seconds=60
            )
            primary.kill()
            threading.Timer(1.0, locking.close).start()
        return found


def test_transactions_received_while_it_stops_are_applied(pairs, monkeypatch):
    fleet = pairs.fleet()
    primary, standby = roles(pairs)
    monkeypatch.setitem(runner.kinds(), "dead-failover", Returning)
    primary.root_execute("CREATE DATABASE later")
    primary.root_execute("CREATE TABLE later.it (id INT PRIMARY KEY)")
    wait_until_equal(primary, standby)
    kill(pairs)
    monkeypatch.setattr(Returning, "pair", (primary, standby))
    plan = DeadFailover.planned(fleet, "server1")
    assert apply(fleet, plan).state == "finished"
    found = standby.root_execute("SELECT COUNT(*) FROM later.it")
    assert found == [(LATE,)]


# -- a failover that is resumed after another change ------------------------


def killed_before_publish(pairs):
    """Kill the primary, and the process of the failover."""
    fleet = pairs.fleet()
    primary = kill(pairs)
    plan = DeadFailover.planned(fleet, "server1")
    apply_until(fleet, plan, step="raise-ids", state="done")
    return fleet, primary


def test_the_clocks_of_ids_and_counters_are_raised(pairs):
    topology = document(pairs)
    topology["keyspaces"]["objects"]["id_layout"] = TIMES.to_mapping()
    pairs.path.write_text(json.dumps(topology))
    primary, standby = roles(pairs)
    names = [place[1] for place in places(topology).values()]
    # One of them has not been upgraded.
    for name in names[1:]:
        table = f"{name}.{CLOCKS.name}"
        primary.root_execute(
            f"CREATE TABLE {table} (id INT PRIMARY KEY, last_id BIGINT)"
        )
        primary.root_execute(f"INSERT INTO {table} VALUES (1, 500)")
    if pairs.kind == "mariadb":
        primary.root_execute(
            f"CREATE TABLE {names[0]}.versioned"
            " (id INT PRIMARY KEY AUTO_INCREMENT) WITH SYSTEM VERSIONING"
        )
        primary.root_execute(f"INSERT INTO {names[0]}.versioned VALUES (500)")
    wait_until_equal(primary, standby)
    kill(pairs)
    fleet = pairs.fleet()
    plan = DeadFailover.planned(fleet, "server1")
    assert apply(fleet, plan).state == "finished"
    for name in names[1:]:
        found = standby.root_execute(f"SELECT * FROM {name}.{CLOCKS.name}")
        assert found == [(1, 100_500)]
    if pairs.kind == "mariadb":
        table = f"{names[0]}.versioned"
        standby.root_execute(f"INSERT INTO {table} VALUES ()")
        found = standby.root_execute(f"SELECT MAX(id) FROM {table}")
        assert found == [(100_501,)]


def reason_of_resume(fleet):
    with pytest.raises(OperationFailedError) as caught:
        resume(fleet)
    assert caught.value.step == "publish"
    assert caught.value.undone
    assert fleet.topology().epoch == 1
    return caught.value.reason, caught.value.left


def test_a_primary_that_returned_is_not_replaced_by_resume(pairs):
    fleet, primary = killed_before_publish(pairs)
    primary.start()
    reason, left = reason_of_resume(fleet)
    assert "it is not lost" in reason
    assert not left
    wait_until_equal(primary, roles(pairs)[1])


def test_a_standby_that_was_reset_is_not_published_by_resume(pairs):
    fleet, _ = killed_before_publish(pairs)
    _, standby = roles(pairs)
    standby.root_execute("RESET REPLICA ALL")
    reason, left = reason_of_resume(fleet)
    assert "it does not replicate any more" in reason
    assert "does not replicate; look at it" in left


def test_resume_loses_no_transactions_received_meanwhile(pairs):
    fleet, primary = killed_before_publish(pairs)
    _, standby = roles(pairs)
    primary.start()
    standby.root_execute("START REPLICA IO_THREAD")
    primary.root_execute("CREATE DATABASE later")
    written = primary.position()
    with fleet.admin(standby.url, name="standby") as admin:
        found = replication_of(admin)
        assert wait_until(
            lambda: found.covers(found.status().received, written), seconds=60
        )
    primary.kill()
    standby.root_execute("STOP REPLICA IO_THREAD")
    reason, left = reason_of_resume(fleet)
    assert "it has applied" in reason
    if pairs.kind == "mysql":
        assert not left
        apply(fleet, DeadFailover.planned(fleet, "server1"))
        assert ("later",) in standby.root_execute("SHOW DATABASES")
    else:
        # Starting it would delete its relay log.
        expected = "stays stopped: it has received more than it has applied"
        assert expected in left


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


# -- refusals, which leave the pair unchanged ------------------------------


@pytest.fixture(scope="module")
def shared(server_kind, tmp_path_factory):
    with started(tmp_path_factory.mktemp("shared"), server_kind) as pairs:
        prepare(pairs)
        yield pairs


@pytest.mark.thorough
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


def test_a_primary_whose_tls_fails_is_not_replaced(
    shared,
    certificates,  # noqa: F811  # the fixture
):
    """Its certificate may have expired, while applications are served."""
    primary, standby = roles(shared)
    before = document(shared)
    topology = document(shared)
    (server,) = topology["keyspaces"]["objects"]["servers"]
    server["primary"] += f"?ssl_ca={certificates / 'other.pem'}"
    publish_to(shared.path, topology)
    standby.root_execute("STOP REPLICA IO_THREAD")
    try:
        found = problems_of(DeadFailover.planned(shared.fleet(), "server1"))
        assert "it is not lost" in found
        assert "error 2026" in found
    finally:
        publish_to(shared.path, before)
        # MySQL counts the connection that has ended for another second.
        use_semi_sync(primary, standby)


def doubt_now(shared):
    return seen(shared).acks.doubt


def test_semi_sync_is_believed_only_if_it_works(shared):
    primary, standby = roles(shared)
    source, replica = words(primary).SEMI_SYNC
    alone = f"{source}_wait_no_{replica.rpartition('_')[2]}"
    assert loss_of(seen(shared)).startswith("none: semi-sync was on")
    primary.root_execute(f"SET GLOBAL {alone} = 0")
    assert "a standby that is disconnected" in doubt_now(shared)
    primary.root_execute(f"SET GLOBAL {alone} = 1")
    standby.root_execute(f"SET GLOBAL {replica}_enabled = 0")
    assert doubt_now(shared) == "the standby did not acknowledge"
    standby.root_execute(f"SET GLOBAL {replica}_enabled = 1")
    standby.root_execute("STOP REPLICA IO_THREAD")
    assert doubt_now(shared) == "the standby did not receive"
    standby.root_execute("START REPLICA")
    # Without semi-sync nothing is known.
    primary.root_execute(f"SET GLOBAL {source}_enabled = 0")
    assert loss_of(seen(shared)).startswith("unknown: semi-sync was off")
    use_semi_sync(primary, standby)
    assert loss_of(seen(shared)).startswith("none")


def test_another_standby_is_not_that_of_the_topology(shared):
    fleet = shared.fleet()
    primary, standby = roles(shared)
    with (
        fleet.admin(primary.url, name="primary") as one,
        fleet.admin(standby.url, name="standby") as two,
    ):
        first, found = replication_of(one), receiving(replication_of(two))
        assert acknowledgements(first, found).doubt == ""
        assert acknowledgements(first, None).doubt == ("the standby did not respond")
        other = replace(found, source_id=found.source_id + 1)
        assert acknowledgements(first, other).doubt == (
            "the standby received from another server"
        )
        standby.root_execute("STOP REPLICA IO_THREAD")
        try:
            assert wait_until(lambda: first.semi_sync().standbys == 0, seconds=60)
            assert acknowledgements(first, found).doubt == ("0 standbys acknowledged")
        finally:
            use_semi_sync(primary, standby)


@pytest.mark.only_on("mysql")
def test_a_commit_under_way_is_not_errant(shared):
    """A standby has it before gtid_executed of its primary does."""
    fleet = shared.fleet()
    primary, standby = roles(shared)
    count = "SET GLOBAL rpl_semi_sync_source_wait_for_replica_count = {}"
    use_semi_sync(primary, standby, timeout=400)
    before = standby.position()
    # It waits for another acknowledgement until the timeout.
    primary.root_execute(count.format(2))
    writing = threading.Thread(
        target=primary.root_execute, args=("CREATE DATABASE under_way",)
    )
    try:
        with fleet.admin(primary.url, name="primary") as admin:
            found = replication_of(admin)
            writing.start()
            assert wait_until(lambda: standby.position() != before, seconds=60)
            assert found.errant(standby.position()) == {}
    finally:
        writing.join()
        primary.root_execute(count.format(1))
        use_semi_sync(primary, standby)


@pytest.mark.thorough
def test_a_commit_that_waits_shortens_the_time(shared):
    primary, standby = roles(shared)
    waiting = threading.Thread(
        target=primary.root_execute, args=("CREATE DATABASE waiting",)
    )
    fleet = shared.fleet(timeout=2.0)
    standby.pause()
    try:
        waiting.start()
        with fleet.admin(primary.url, name="primary") as admin:
            found = replication_of(admin)
            assert wait_until(lambda: found.longest_wait() > 1, seconds=60)
        acks = seen(shared, timeout=2.0).acks
        assert 1 < acks.waiting < acks.timeout
    finally:
        standby.resume()
        waiting.join()
    wait_until_equal(primary, standby)
    assert seen(shared).acks.waiting == 0


def test_a_standby_that_was_restarted_is_refused_by_mariadb_only(shared):
    fleet = shared.fleet()
    primary, standby = roles(shared)
    kill(shared)
    standby.kill()
    standby.start()
    plan = DeadFailover.planned(fleet, "server1")
    if shared.kind == "mariadb":
        assert "it was restarted. Do not start" in problems_of(plan)
        with pytest.raises(OperationRefusedError):
            apply(fleet, plan)
    else:
        assert plan.problems == ()
    primary.start()
    standby.root_execute("START REPLICA")


def test_a_restarted_primary_is_opened_again(shared):
    fleet = shared.fleet()
    primary, standby = roles(shared)
    primary.kill()
    primary.start()
    assert primary.root_execute("SELECT @@read_only") == [(1,)]
    assert apply(fleet, Reopen.planned(fleet, "server1")).state == "finished"
    assert primary.root_execute("SELECT @@read_only") == [(0,)]
    wait_until_equal(primary, standby)


def test_a_primary_with_fewer_writes_is_not_opened(shared):
    fleet = shared.fleet()
    primary, standby = roles(shared)
    primary.kill()
    if shared.kind == "mariadb":
        standby.root_execute("SET GLOBAL gtid_strict_mode = 0")
    standby.root_execute("CREATE DATABASE later")
    standby.root_execute("SET GLOBAL read_only = 0")
    primary.start()
    found = problems_of(Reopen.planned(fleet, "server1"))
    assert "that the primary has not" in found
    assert "it can be written" in found
    assert primary.root_execute("SELECT @@read_only") == [(1,)]
