"""Failovers under load: nothing acknowledged is lost, whatever dies."""

from __future__ import annotations

import itertools
import os
import random
import re
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import pymysql
import pytest

from sqla_shard.exc import (
    FleetLockedError,
    OperationFailedError,
    OperationRefusedError,
    UndoRefusedError,
)
from sqla_shard.fleet import Account, admin, apply, Fleet, resume, undo
from sqla_shard.fleet.failover import Failover
from sqla_shard.testing.local_server import wait_until
from tests.servers.fleet_load import (
    create,
    document,
    prove,
    roles,
    SHARDS,
    wait_until_equal,
    writing,
)
from tests.servers.fleet_pairs import FleetPairs
from tests.servers.fleet_pauses import PauseLog
from tests.servers.fleet_processes import apply_until
from tests.servers.load_checks import pauses
from tests.servers.published import places
from tests.servers.server_statements import standby_state, unlogged, words

pytestmark = pytest.mark.live

SOAK = os.environ.get("SQLA_SHARD_SOAK") == "1"
STEPS = (
    "compare",
    "prepare",
    "stop-events",
    "fence",
    "publish",
    "open",
    "attach",
    "kill",
    "move-events",
    "verify",
)
BEFORE = STEPS[: STEPS.index("publish")]


def started(folder, **options):
    """Return pairs with one pair in the topology, and its tables."""
    return FleetPairs(folder, pairs=1, shards=SHARDS, **options)


@pytest.fixture(scope="module")
def pairs(server_kind, tmp_path_factory):
    folder = tmp_path_factory.mktemp("fleet")
    with started(folder, pair=server_kind.pair) as pairs:
        create(pairs)
        yield pairs


@pytest.fixture
def fleet(pairs):
    return pairs.fleet()


@pytest.fixture
def rng(request, say):
    seed = request.config.getoption("hypothesis_seed")
    say(f"seed {seed}")
    return random.Random(seed)


def empty(pairs):
    """Remove the rows of the test before."""
    primary, standby = roles(pairs)
    with primary.connect() as connection:
        for _, name in places(document(pairs)).values():
            for table in ("load_pins", "load_notes"):
                connection.cursor().execute(f"TRUNCATE `{name}`.{table}")
    wait_until_equal(primary, standby)


@pytest.fixture
def load(pairs, tmp_path, request):
    empty(pairs)
    seed = request.config.getoption("hypothesis_seed")
    with writing(pairs, tmp_path / "log", seed) as load:
        load.wait_for_acks(50)
        yield load


def test_failovers_lose_nothing(pairs, fleet, load, say):
    found = []
    for _ in range(20 if SOAK else 4):
        old, new = roles(pairs)
        plan = Failover.planned(fleet, "server1")
        assert plan.problems == ()
        result = apply(fleet, plan)
        assert result.state == "finished"
        assert roles(pairs) == (new, old)
        assert not any("problem" in note for note in result.notes.values())
        found.append(result.pause)
        load.wait_for_acks(30)
    attempts = load.stop()
    milliseconds = ", ".join(f"{1000 * pause:.0f}" for pause in found)
    say(f"failovers, pauses {milliseconds} ms; {pauses(attempts)}")
    prove(pairs, attempts)
    errors = [attempt.error for attempt in attempts if attempt.error]
    assert any("1290" in error for error in errors)


def test_writes_wait_for_few_statements(pairs, fleet):
    plan = Failover.planned(fleet, "server1", compare_limit=None)
    with PauseLog() as log:
        apply(fleet, plan, progress=log.progress)
    assert 5 < len(log.statements) <= 12
    assert log.avoidable() == []


@pytest.fixture
def quiet(pairs):
    """Create a table that no writer uses, with a row."""
    primary, standby = roles(pairs)
    primary.root_execute("CREATE TABLE db00001.quiet (id INT PRIMARY KEY, v TEXT)")
    primary.root_execute("INSERT INTO db00001.quiet VALUES (1, 'a')")
    wait_until_equal(primary, standby)
    yield
    primary, standby = roles(pairs)
    primary.root_execute("DROP TABLE db00001.quiet")
    wait_until_equal(primary, standby)


def test_rows_that_differ_refuse_a_failover(pairs, fleet, quiet, load, say):
    """Nothing of the failover is done, and writes go on."""
    old, new = roles(pairs)
    unlogged(new, "UPDATE db00001.quiet SET v = 'b'")
    begun = []
    plan = Failover.planned(fleet, "server1")
    with pytest.raises(OperationFailedError, match="1 rows") as info:
        apply(fleet, plan, progress=lambda event: begun.append(event.step))
    assert info.value.undone
    assert set(begun) == {"compare", "undo"}
    assert "sqla-shard fleet verify server1" in str(info.value)
    assert "--skip-compare" in str(info.value)
    assert roles(pairs) == (old, new)
    load.wait_for_acks(20)
    unlogged(new, "UPDATE db00001.quiet SET v = 'a'")
    result = apply(fleet, plan)
    assert result.problems == ()
    before, after = result.notes["compare"], result.notes["verify"]
    say(f"{before['proof']}; {after['proof']}")
    assert after["rows"] >= before["rows"] > 0
    assert f"compare: {before['proof']}" in str(result)
    prove(pairs, load.stop())


def test_an_operator_may_skip_the_comparison(pairs, fleet, quiet):
    old, new = roles(pairs)
    unlogged(new, "UPDATE db00001.quiet SET v = 'b'")
    plan = Failover.planned(fleet, "server1", compare_limit=None)
    assert "no rows are compared" in plan.costs
    result = apply(fleet, plan)
    assert (result.problems, result.proofs) == ((), ())
    assert roles(pairs) == (new, old)


def test_steps_without_time_left_are_named(pairs, fleet):
    plan = Failover.planned(fleet, "server1", compare_limit=1e-6)
    result = apply(fleet, plan)
    assert result.problems == ()
    for step in ("compare", "verify"):
        proof = result.notes[step]["proof"]
        assert "not compared, or not to their end: " in proof
        assert "the limit of 1e-06 s was reached" in proof


def test_rows_that_were_lost_are_found_after_the_failover(pairs, fleet, quiet):
    old, new = roles(pairs)

    def lose(event):
        if (event.step, event.state) == ("verify", "begin"):
            unlogged(new, "DELETE FROM db00001.quiet")

    plan = Failover.planned(fleet, "server1")
    result = apply(fleet, plan, progress=lose)
    assert (result.state, roles(pairs)) == ("finished", (new, old))
    (problem,) = result.problems
    assert "after the failover 1 rows or definitions differ" in problem
    assert "do not rebuild it before" in problem


def test_a_comparison_that_was_killed_is_repeated(pairs, fleet):
    """It leaves the applier of the standby stopped."""
    old, new = roles(pairs)
    for step, follower in (("compare", new), ("verify", old)):
        plan = Failover.planned(fleet, "server1")
        apply_until(fleet, plan, step=step, state="begin")
        follower.root_execute("STOP REPLICA SQL_THREAD")
        result = resume(fleet)
        assert result.problems == ()
        assert "are equal" in result.notes["compare"]["proof"]
        assert "are equal" in result.notes["verify"]["proof"]
        apply(fleet, Failover.planned(fleet, "server1", compare_limit=None))
        assert roles(pairs) == (old, new)


def kill_points(rng):
    """Return step, event, and what follows; some of them in the short run."""
    every = [
        (step, state, after)
        for step, state in itertools.product(STEPS, ("begin", "done"))
        for after in ("resume", "undo")
        if after == "resume" or step in (*BEFORE, "publish")
    ]
    if SOAK:
        return every
    always = [("fence", "done", "resume"), ("fence", "done", "undo")]
    return [*always, *rng.sample(every, 4)]


@pytest.mark.thorough
def test_a_killed_failover_is_resumed_or_undone(pairs, fleet, load, rng, say):
    for step, state, after in kill_points(rng):
        say(f"killed at {step} {state}, then {after}")
        old, new = roles(pairs)
        plan = Failover.planned(fleet, "server1")
        apply_until(fleet, plan, step=step, state=state)
        with pytest.raises(FleetLockedError):
            apply(fleet, plan)
        published = roles(pairs)[0] is new
        assert published == (
            step not in BEFORE and (step, state) != ("publish", "begin")
        )
        if after == "undo" and published:
            with pytest.raises(UndoRefusedError):
                undo(fleet)
            after = "resume"
        result = resume(fleet) if after == "resume" else undo(fleet)
        assert result.state == ("finished" if after == "resume" else "undone")
        expected = (new, old) if after == "resume" else (old, new)
        assert roles(pairs) == expected
        load.wait_for_acks(30)
    prove(pairs, load.stop())


@pytest.mark.thorough
def test_a_statement_in_the_way_undoes_everything(pairs, fleet, monkeypatch):
    monkeypatch.setattr("sqla_shard.fleet.admin._MAX_TRIES", 2)
    old, new = roles(pairs)
    with old.connect() as connection:
        cursor = connection.cursor()
        cursor.execute("LOCK TABLES db00000.load_pins WRITE")
        for step, limit in (("compare", 60.0), ("fence", None)):
            plan = Failover.planned(fleet, "server1", compare_limit=limit)
            with pytest.raises(OperationFailedError) as info:
                apply(fleet, plan)
            assert info.value.undone
            assert info.value.step == step
        cursor.execute("INSERT INTO db00000.load_pins (token) VALUES ('x')")
        connection.rollback()
    assert roles(pairs) == (old, new)
    assert fleet.journal.pending() is None
    assert old.root_execute("SELECT @@read_only") == [(0,)]
    wait_until_equal(old, new)


def test_the_fence_waits_for_a_row_that_is_locked(pairs, fleet, monkeypatch):
    """One transaction waits for a row of another, which waits for the fence.

    Neither is long, but the first attempt of the fence cannot succeed.
    """
    old, new = roles(pairs)
    old.root_execute("INSERT INTO db00000.load_pins (token) VALUES ('contended')")
    update = (
        "UPDATE db00000.load_pins SET token = 'contended' WHERE token = 'contended'"
    )
    plan = Failover.planned(fleet, "server1", compare_limit=None)
    slept = []
    lock_waits = (
        "SELECT COUNT(*) FROM information_schema.innodb_trx"
        " WHERE trx_state = 'LOCK WAIT'"
    )
    with old.connect() as first, old.connect() as second:
        first.cursor().execute(update)
        waiting = threading.Thread(target=second.cursor().execute, args=[update])
        waiting.start()
        # The table has a cache of 0.1 s, which each read extends.
        assert wait_until(
            lambda: old.root_execute(lock_waits) == [(1,)], seconds=60, every=0.2
        )

        def commit(seconds):
            slept.append(seconds)
            first.commit()
            waiting.join()

        clock = SimpleNamespace(sleep=commit, monotonic=time.monotonic)
        monkeypatch.setattr(admin, "time", clock)
        assert apply(fleet, plan).state == "finished"
    assert slept == [1]
    assert roles(pairs) == (new, old)
    wait_until_equal(old, new)


def test_an_open_transaction_does_not_survive(pairs, fleet):
    old, _ = roles(pairs)
    with old.connect() as connection:
        port = connection._sock.getsockname()[1]
        connection.cursor().execute(
            "INSERT INTO db00000.load_pins (token) VALUES ('open')"
        )
        result = apply(fleet, Failover.planned(fleet, "server1"))
        with pytest.raises(pymysql.err.OperationalError):
            connection.commit()
    note = result.notes["kill"]
    assert note["killed"] >= 1
    # Without the Performance Schema, the port is what identifies a process.
    (group,) = [one for one in note["ended"] if port in one["ports"]]
    assert (group["host"], group["program"]) == ("127.0.0.1", None)
    line = f"ended on server1 primary ({old.host}:{old.port}): 127.0.0.1 "
    assert line in str(result)
    for server in pairs.servers:
        sql = "SELECT * FROM db00000.load_pins WHERE token = 'open'"
        assert server.root_execute(sql) == []


def test_an_undo_opens_the_primary_although_the_standby_is_lost(pairs, fleet):
    old, new = roles(pairs)
    plan = Failover.planned(fleet, "server1")
    apply_until(fleet, plan, step="fence", state="done")
    new.kill()
    try:
        result = undo(fleet)
        assert result.state == "undone"
        assert old.root_execute("SELECT @@read_only") == [(0,)]
        (problem,) = result.problems
        assert "the standby does not replicate" in problem
    finally:
        new.start()
    # After an odd number of failovers it is the server that was started as
    # the primary, without read_only in its configuration.
    new.root_execute("SET GLOBAL read_only = 1")
    new.root_execute("START REPLICA")
    wait_until_equal(old, new)


@pytest.mark.parametrize("how", ["session", "server"])
def test_a_fence_that_is_lost_is_set_again(pairs, fleet, how):
    """The old primary may be open after a restart, by its configuration."""
    old, new = roles(pairs)

    def progress(event):
        if (event.step, event.state) == ("open", "done"):
            assert old.root_execute("SELECT @@read_only") == [(1,)]
        if (event.step, event.state) != ("open", "begin"):
            return
        if how == "server":
            old.kill()
            old.start()
            old.root_execute("SET GLOBAL read_only = 0")
            return
        (number,) = [
            number
            for number, user in old.root_execute(
                "SELECT id, user FROM information_schema.processlist"
            )
            if user == pairs.accounts.operator.user
        ]
        old.root_execute(f"KILL {number}")

    result = apply(fleet, Failover.planned(fleet, "server1"), progress=progress)
    assert (result.state, result.problems) == ("finished", ())
    assert roles(pairs) == (new, old)
    assert new.root_execute("SELECT @@read_only") == [(0,)]
    assert old.root_execute("SELECT @@read_only") == [(1,)]
    wait_until_equal(new, old)


@pytest.mark.thorough
def test_the_new_primary_stays_closed_while_the_old_one_cannot_be_closed(
    pairs, fleet, monkeypatch
):
    monkeypatch.setattr("sqla_shard.fleet.admin._MAX_TRIES", 2)
    old, new = roles(pairs)
    plan = Failover.planned(fleet, "server1")
    apply_until(fleet, plan, step="publish", state="done")
    # As after a restart with a configuration that lets it be written.
    old.root_execute("SET GLOBAL read_only = 0")
    with old.connect() as connection:
        connection.cursor().execute("LOCK TABLES db00000.load_pins WRITE")
        with pytest.raises(OperationFailedError, match="1205") as info:
            resume(fleet)
        assert (info.value.step, info.value.undone) == ("open", False)
        assert "a session without a statement holds a lock" in str(info.value)
        assert new.root_execute("SELECT @@read_only") == [(1,)]
    assert resume(fleet).state == "finished"
    assert roles(pairs) == (new, old)
    wait_until_equal(new, old)


def test_events_and_semi_sync_change_sides(pairs, fleet):
    old, new = roles(pairs)
    old.root_execute(
        "CREATE DEFINER = 'root'@'%' EVENT db00000.often ON SCHEDULE"
        " EVERY 1 DAY DO DELETE FROM db00000.load_pins WHERE token = 'old'"
    )
    old.root_execute("SET GLOBAL event_scheduler = ON")
    source, replica = words(old).SEMI_SYNC
    old.root_execute(f"SET GLOBAL {source}_enabled = 1")
    new.root_execute(f"SET GLOBAL {replica}_enabled = 1")
    for server in pairs.servers:
        server.root_execute(f"SET GLOBAL {source}_timeout = 2000")
    wait_until_equal(old, new)
    new.root_execute("STOP REPLICA IO_THREAD")
    new.root_execute("START REPLICA IO_THREAD")
    result = apply(fleet, Failover.planned(fleet, "server1"))
    assert len(result.notes["prepare"]["events"]) == 1
    status = (
        "SELECT status, definer FROM information_schema.events"
        " WHERE event_name = 'often'"
    )
    ((disabled, definer),) = old.root_execute(status)
    assert disabled in ("SLAVESIDE_DISABLED", "REPLICA_SIDE_DISABLED")
    assert definer == "root@%"
    assert new.root_execute(status) == [("ENABLED", "root@%")]
    scheduler = "SELECT @@event_scheduler"
    assert old.root_execute(scheduler) == [("OFF",)]
    assert new.root_execute(scheduler) == [("ON",)]

    def is_on():
        ((_, value),) = new.root_execute(f"SHOW GLOBAL STATUS LIKE '{source}_status'")
        return value == "ON"

    assert wait_until(is_on, seconds=60)
    new.root_execute("DROP EVENT db00000.often")
    for server in pairs.servers:
        server.root_execute("SET GLOBAL event_scheduler = OFF")
        server.root_execute(f"SET GLOBAL {source}_enabled = 0")
        server.root_execute(f"SET GLOBAL {replica}_enabled = 0")
    wait_until_equal(new, old)


@pytest.mark.thorough
@pytest.mark.only_on("mysql")
def test_a_standby_waits_for_a_primary_that_is_away_for_long(pairs, fleet):
    """By default it tries ten times, and then stops for ever."""
    apply(fleet, Failover.planned(fleet, "server1", compare_limit=None))
    primary, standby = roles(pairs)
    primary.kill()

    def tries():
        found = re.search(r"attempt (\d+)/", standby.replication_state()) or [0, 0]
        return int(found[1])

    try:
        assert wait_until(lambda: tries() > 11, seconds=120)
    finally:
        primary.start()
        primary.root_execute("SET GLOBAL read_only = 0")
    assert wait_until(lambda: standby_state(standby) == ("Yes", "Yes"), seconds=60)
    wait_until_equal(primary, standby)


#: A setting, a wrong value of it, and the statement of a filter.
WRONG = {
    "mariadb": (
        *("gtid_strict_mode", "OFF"),
        "SET GLOBAL replicate_wild_ignore_table = '{}'",
    ),
    "mysql": (
        *("gtid_mode", "ON_PERMISSIVE"),
        "CHANGE REPLICATION FILTER REPLICATE_WILD_IGNORE_TABLE = ('{}')",
    ),
}


def test_a_wrong_password_of_the_operator_loses_no_primary(pairs, fleet):
    wrong = Account(user=pairs.accounts.operator.user, password="wrong")
    plan = Failover.planned(
        Fleet(pairs.path, accounts=replace(pairs.accounts, operator=wrong)), "server1"
    )
    (problem,) = plan.problems
    assert "(error 1045); its state is unknown" in str(problem)
    assert "--dead" not in str(problem)


def test_a_lost_standby_loses_no_primary(pairs, fleet):
    _, standby = roles(pairs)
    standby.kill()
    try:
        (problem,) = Failover.planned(fleet, "server1").problems
    finally:
        standby.start()
        standby.root_execute("START REPLICA")
    assert wait_until(lambda: standby_state(standby) == ("Yes", "Yes"), seconds=60)
    assert "(error 2003); its state is unknown" in str(problem)
    assert "fleet replica replace server1 HOST:PORT" in str(problem)
    assert "--dead" not in str(problem)


def test_everything_wrong_is_listed_at_once(pairs, fleet):
    old, new = roles(pairs)
    setting, wrong, ignoring = WRONG[pairs.kind]
    new.root_execute("SET GLOBAL read_only = 0")
    new.root_execute("STOP REPLICA")
    new.root_execute(ignoring.format("x.%"))
    new.root_execute("CREATE DATABASE only_there")
    new.root_execute(f"SET GLOBAL {setting} = {wrong}")
    try:
        with old.root_connect():
            plan = Failover.planned(fleet, "server1")
            with pytest.raises(OperationRefusedError):
                apply(fleet, plan)
    finally:
        with new.root_connect() as connection:
            cursor = connection.cursor()
            cursor.execute("SET sql_log_bin = 0")
            cursor.execute("DROP DATABASE only_there")
            cursor.execute(ignoring.format("").replace("('')", "()"))
            cursor.execute(f"SET GLOBAL {setting} = 'ON'")
            cursor.execute("SET GLOBAL read_only = 1")
    text = "\n".join(map(str, plan.problems))
    for part in (
        f"{setting} = {wrong}",
        "it does not replicate: receiver",
        "it leaves out data",
        "it is writable",
        "transactions that its primary does not have",
        "session",
    ):
        assert part in text
    assert fleet.journal.pending() is None
