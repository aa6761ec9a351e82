"""Splits under load: nothing acknowledged is lost, whatever dies."""

from __future__ import annotations

import contextlib
import json
import os
import random
import threading
import time

import pymysql
import pytest

from sqla_shard.exc import (
    FleetLockLostError,
    FleetServerError,
    OperationFailedError,
    OperationRefusedError,
    UndoRefusedError,
)
from sqla_shard.fleet import apply, resume, undo
from sqla_shard.fleet.doctor import examine
from sqla_shard.fleet.failover import Failover
from sqla_shard.fleet.fences import Fence
from sqla_shard.fleet.orphans import OrphanChange, orphans_of
from sqla_shard.fleet.replication import replication_of
from sqla_shard.fleet.split import Split
from sqla_shard.testing.database_server import system_user
from tests.servers.fleet_load import writing
from tests.servers.fleet_pairs import FleetPairs
from tests.servers.fleet_pauses import PauseLog
from tests.servers.fleet_processes import apply_until
from tests.servers.fleet_splits import address, planned, renewed
from tests.servers.load_checks import check, only_old, pauses, rows_at, rows_of_places
from tests.servers.load_log import Attempt
from tests.servers.published import connect_to, places, publish_to
from tests.servers.server_statements import received, unlogged, words

pytestmark = pytest.mark.live

SHARDS = 8
STAYING = range(SHARDS // 2)
MOVING = range(SHARDS // 2, SHARDS)
LATE = "db00007.late"
SOAK = os.environ.get("SQLA_SHARD_SOAK") == "1"
LOCK = "topology.json.fleet/lock"
STEPS = (
    *("attach", "compare", "prepare", "wait", "fence", "drain", "publish"),
    *("open", "reopen", "detach", "shut", "verify"),
)
BEFORE = STEPS[: STEPS.index("publish")]
AFTER = STEPS[STEPS.index("publish") :]


@pytest.fixture(scope="module")
def pairs(server_kind, tmp_path_factory):
    folder = tmp_path_factory.mktemp("fleet")
    with FleetPairs(
        folder, pairs=1, spare=1, shards=SHARDS, pair=server_kind.pair
    ) as pairs:
        yield pairs


@pytest.fixture
def seed(request, say):
    seed = request.config.getoption("hypothesis_seed")
    say(f"seed {seed}")
    return seed


@pytest.fixture
def fleet(pairs):
    return renewed(pairs)


def rows_on(pairs, server, shards=range(SHARDS)):
    """Read all rows of a server, of shards of others too."""
    where = places(pairs.document())
    with server.root_connect() as connection:
        return rows_at(connection, {s: where[s][1] for s in shards})


def prove(pairs, attempts):
    """Check that nothing is lost, and that standbys have the same."""
    source, target = pairs["server1"], pairs["server2"]
    where = places(json.loads(pairs.path.read_text()))
    is_moved = where[MOVING[0]][0] == target.primary.url
    rows = rows_of_places(where)
    assert check(attempts, rows) == []
    source.wait_caught_up()
    for server in source.servers:
        assert only_old(rows_on(pairs, server), rows) == []
    if not is_moved:
        assert rows_on(pairs, source.standby) == rows
        return
    target.wait_caught_up()
    for pair, shards in ((source, STAYING), (target, MOVING)):
        assert pair.primary.root_execute("SELECT @@read_only") == [(0,)]
        for server in pair.servers:
            there = rows_on(pairs, server, shards)
            assert there == {shard: rows[shard] for shard in shards}


class Stale:
    """Writes to the old server of the shards that move, regardless of errors.

    It rests at least as long as a write takes: on a busy machine two without
    rests write more than the target applies, which then never catches up.

    :ivar attempts: acknowledged writes.
    """

    def __init__(self, pairs):
        self.attempts = []
        self._places = places(pairs.document())
        self._stopped = threading.Event()
        self._threads = [
            threading.Thread(target=self._work, args=(number,), daemon=True)
            for number in range(2)
        ]

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exc_info):
        self._stopped.set()
        for thread in self._threads:
            thread.join()

    def _work(self, number):
        rng = random.Random(number)
        serial = 0
        while not self._stopped.is_set():
            shard = rng.choice(MOVING)
            url, name = self._places[shard]
            try:
                # With a default database, whose privileges are cached, or
                # without.
                with connect_to(url, database=name if number else None) as raw:
                    while not self._stopped.is_set():
                        serial += 1
                        begin = time.monotonic()
                        self._write(raw, f"stale{number}-{serial}", shard)
                        self._stopped.wait(max(0.01, time.monotonic() - begin))
            except pymysql.err.MySQLError:
                self._stopped.wait(0.02)

    def _write(self, connection, token, shard):
        name = self._places[shard][1]
        begin = time.monotonic()
        cursor = connection.cursor()
        connection.begin()
        cursor.execute(f"INSERT INTO `{name}`.load_pins (token) VALUES (%s)", (token,))
        local_id = cursor.lastrowid
        cursor.execute(
            f"INSERT INTO `{name}`.load_notes VALUES (%s, %s)", (token, local_id)
        )
        now = {"token": token, "shard": shard, "t0": begin}
        try:
            connection.commit()
        except pymysql.err.MySQLError:
            end = time.monotonic()
            self.attempts.append(Attempt(**now, t1=end, outcome="unknown"))
            raise
        end = time.monotonic()
        acked = Attempt(**now, t1=end, outcome="acked", local_id=local_id)
        self.attempts.append(acked)


@pytest.mark.thorough
def test_a_split_loses_nothing(pairs, tmp_path, seed, say):
    for number in range(20 if SOAK else 1):
        fleet = renewed(pairs)
        with (
            writing(pairs, tmp_path / str(number), f"{seed} {number}") as load,
            Stale(pairs) as stale,
        ):
            load.wait_for_acks(200)
            plan = planned(fleet, pairs)
            assert plan.problems == ()
            result = apply(fleet, plan)
            load.wait_for_acks(100, shards=MOVING)
            attempts = load.stop()
        say(str(result))
        for name, shards in (("staying", STAYING), ("moving", MOVING)):
            say(f"  {name}: {pauses(attempts, shards=shards)}")
        assert (result.state, result.epoch) == ("finished", 2)
        # Writes since the cutover are not reported as differences.
        assert result.problems == ()
        assert stale.attempts
        prove(pairs, [*attempts, *stale.attempts])


@pytest.mark.thorough
def test_the_pause_of_a_quiet_split(fleet, pairs, tmp_path, seed, say):
    with writing(pairs, tmp_path / "load", seed, processes=2) as load:
        load.wait_for_acks(50)
        result = apply(fleet, planned(fleet, pairs))
        load.wait_for_acks(30, shards=MOVING)
        attempts = load.stop()
    say(f"2 writers: {result}")
    say(f"  {pauses(attempts)}")
    prove(pairs, attempts)


@pytest.mark.parametrize("index", [0, 1])
@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM db00007.load_pins",
        "INSERT INTO db00007.load_pins (token) VALUES ('x')",
        "DROP DATABASE db00007",
    ],
)
def test_the_old_home_is_shut(split_once, index, sql):
    with split_once["server1"].servers[index].connect() as connection:
        cursor = connection.cursor()
        cursor.execute("SELECT COUNT(*) FROM db00003.load_pins")
        with pytest.raises(pymysql.err.OperationalError) as info:
            cursor.execute(sql)
    assert info.value.args[0] in {1142, 1044} | ({1290} if index else set())


@pytest.mark.parametrize("index", [0, 1])
def test_the_copies_on_the_target_are_shut(split_once, index):
    with split_once["server2"].servers[index].connect() as connection:
        cursor = connection.cursor()
        cursor.execute("SELECT COUNT(*) FROM db00004.load_pins")
        with pytest.raises(pymysql.err.OperationalError) as info:
            cursor.execute("SELECT COUNT(*) FROM db00003.load_pins")
    assert info.value.args[0] in {1142, 1044}


def domains_of(server):
    """Return where the GTIDs of its own writes belong."""
    if server.kind == "mysql":
        ((origin,),) = server.root_execute("SELECT @@server_uuid")
        return {origin} if origin in server.position() else set()
    own = f"-{server.server_id}-"
    return {x.split("-")[0] for x in server.position().split(",") if own in x}


def test_both_sides_write_under_their_own_domain(split_once):
    source, target = split_once["server1"], split_once["server2"]
    domains = set()
    for pair, shard in ((source, 0), (target, 7)):
        with pair.primary.connect(autocommit=True) as connection:
            connection.cursor().execute(
                f"INSERT INTO db{shard:05d}.load_pins (token) VALUES ('own')"
            )
        pair.wait_caught_up()
        domains |= domains_of(pair.primary)
    assert len(domains) == 2
    assert target.primary.root_execute("SHOW REPLICA STATUS") == []


@pytest.fixture(scope="module")
def pause_log(pairs):
    return PauseLog()


@pytest.fixture(scope="module")
def receivers():
    return []


@pytest.fixture(scope="module")
def split_once(pairs, pause_log, receivers):
    fleet = renewed(pairs)
    source, target = pairs["server1"], pairs["server2"]

    def tell(event):
        pause_log.progress(event)
        if (event.step, event.state) == ("reopen", "done"):
            # As if this process had died here: root passes the fence.
            source.primary.root_execute(f"CREATE TABLE {LATE} (id INT)")
            source.wait_caught_up()
            receivers.append(received(target.primary))

    with pause_log:
        apply(fleet, planned(fleet, pairs), progress=tell)
    return pairs


def test_a_write_past_the_fence_does_not_reach_the_target(split_once, receivers):
    assert set(receivers) == {"No"}
    source, target = split_once["server1"], split_once["server2"]
    exists = "SELECT COUNT(*) FROM information_schema.tables WHERE table_name = 'late'"
    assert source.standby.root_execute(exists) == [(1,)]
    assert target.primary.root_execute(exists) == [(0,)]


def test_writes_wait_for_few_statements(split_once, pause_log):
    assert 10 < len(pause_log.statements) <= 18
    assert pause_log.avoidable() == []


# -- a process that dies --------------------------------------------------


@pytest.mark.thorough
def test_kill_9_before_it_is_published(pairs, tmp_path, seed, say):
    rng = random.Random(seed)
    fleet = renewed(pairs)
    choices = [(step, end) for step in BEFORE for end in (undo, resume)]
    if not SOAK:
        # Those after which writes are stopped, and another.
        choices = [
            (rng.choice(BEFORE[:4]), undo),
            ("fence", undo),
            ("drain", undo),
            (rng.choice(BEFORE[4:]), resume),
        ]
    for number, (step, end) in enumerate(choices):
        say(f"kill -9 after {step}, {end.__name__}")
        folder = tmp_path / str(number)
        with writing(pairs, folder, f"{seed} {number}") as load:
            load.wait_for_acks(30)
            apply_until(pairs.fleet(), planned(fleet, pairs), step=step, state="done")
            result = end(pairs.fleet())
            load.wait_for_acks(30, shards=MOVING)
            attempts = load.stop()
        assert result.state == ("undone" if end is undo else "finished")
        prove(pairs, attempts)
        fleet = renewed(pairs)


@pytest.mark.thorough
def test_kill_9_after_it_is_published(pairs, tmp_path, seed, say):
    rng = random.Random(seed)
    steps = AFTER if SOAK else ("publish", rng.choice(AFTER[1:]))
    for number, step in enumerate(steps):
        say(f"kill -9 after {step}")
        fleet = renewed(pairs)
        folder = tmp_path / str(number)
        with writing(pairs, folder, f"{seed} {number}") as load:
            load.wait_for_acks(30)
            apply_until(pairs.fleet(), planned(fleet, pairs), step=step, state="done")
            with pytest.raises(UndoRefusedError, match="resume"):
                undo(pairs.fleet())
            assert resume(pairs.fleet()).state == "finished"
            load.wait_for_acks(30, shards=MOVING)
            attempts = load.stop()
        prove(pairs, attempts)


def test_rows_of_a_fence_do_not_stay_without_effect(fleet, pairs):
    """A restart of the source, or any GRANT, would give them their effect."""
    count = "SELECT COUNT(*) FROM mysql.db WHERE Db = 'db00007'"
    source, lock = pairs["server1"].primary, pairs.path.parent / LOCK
    rows = []

    def tell(event):
        if (event.step, event.state) == ("wait", "done"):
            rows.extend(source.root_execute(count))
            lock.unlink()

    with pytest.raises(FleetLockLostError):
        apply(fleet, planned(fleet, pairs), progress=tell)
    rows += source.root_execute(count)
    assert rows == [(1,), (0,)]
    assert undo(pairs.fleet()).state == "undone"
    acked_now(pairs, MOVING[0])


# -- differences ----------------------------------------------------------


def with_a_row(pairs, fleet):
    """Write a row, and let the new pair replicate."""
    acked_now(pairs, MOVING[0])
    with pytest.raises(OperationFailedError):
        apply(fleet, planned(fleet, pairs, compare_limit=1e-6))
    pairs["server2"].wait_caught_up()


def change_a_row(pairs):
    with pairs["server2"].primary.root_connect() as connection:
        cursor = connection.cursor()
        cursor.execute("SET SESSION sql_log_bin = 0")
        cursor.execute(f"UPDATE db{MOVING[0]:05d}.load_pins SET token = 'not'")
        connection.commit()


def test_a_copy_with_other_rows_is_refused(fleet, pairs):
    with_a_row(pairs, fleet)
    change_a_row(pairs)
    with pytest.raises(OperationFailedError) as info:
        apply(fleet, planned(fleet, pairs))
    assert (info.value.step, info.value.undone) == ("compare", True)
    for part in ("1 rows", "db00004.load_pins 1: differs", "fleet verify"):
        assert part in str(info.value)
    # Asked for explicitly, it is not looked at.
    plan = planned(fleet, pairs, compare_limit=None)
    assert "no rows are compared" in plan.costs
    assert apply(fleet, plan).problems == ()


def test_a_target_where_the_application_cannot_write(fleet, pairs):
    target = pairs["server2"].primary
    app, gone = "'app'@'127.0.0.1'", "'gone'@'127.0.0.1'"
    text = f"it has no account {app}, which may use databases of its shards on"

    def rename(one, other):
        with target.root_connect() as connection:
            connection.cursor().execute("SET SESSION sql_log_bin = 0")
            connection.cursor().execute(f"RENAME USER {one} TO {other}")

    rename(app, gone)
    try:
        plan = planned(fleet, pairs)
        # It is empty: the accounts may come by replication.
        assert plan.problems == ()
        assert text in "\n".join(plan.warnings)
        with pytest.raises(OperationFailedError) as info:
            apply(fleet, plan)
        assert (info.value.step, info.value.undone) == ("compare", True)
        assert text in str(info.value)
        assert text in "\n".join(map(str, planned(fleet, pairs).problems))
    finally:
        rename(gone, app)
    assert planned(fleet, pairs).problems == ()


@pytest.mark.thorough
def test_rows_that_differ_at_the_cutover_are_reported(fleet, pairs):
    with_a_row(pairs, fleet)

    def change(event):
        if (event.step, event.state) == ("wait", "begin"):
            change_a_row(pairs)
        if (event.step, event.state) == ("verify", "begin"):
            # Too late to be found by looking at the servers as they are.
            with pairs["server2"].primary.root_connect() as connection:
                connection.cursor().execute(
                    "UPDATE db00004.load_pins SET token = 'now'"
                )
                connection.commit()

    result = apply(fleet, planned(fleet, pairs), progress=change)
    (problem,) = result.problems
    assert "at the cutover 1 rows" in problem
    assert "db00004.load_pins 1: differs in token" in problem


def test_a_comparison_that_takes_too_long_undoes_it(fleet, pairs):
    with pytest.raises(OperationFailedError) as info:
        apply(fleet, planned(fleet, pairs, compare_limit=1e-6))
    assert info.value.undone
    assert "4 tables or databases were not compared" in str(info.value)


@pytest.mark.thorough
def test_kill_9_in_the_move_of_a_server(pairs, tmp_path, seed, say):
    steps = [name for name, _ in planned(renewed(pairs), pairs, shards=None).steps]
    before = steps[: steps.index("publish")]
    choices = [
        *((step, end) for step in before for end in (undo, resume)),
        *((step, resume) for step in steps[len(before) :]),
    ]
    if not SOAK:
        choices = [("drain", undo), ("publish", resume)]
    for number, (step, end) in enumerate(choices):
        say(f"kill -9 after {step}, {end.__name__}")
        fleet = renewed(pairs)
        folder = tmp_path / str(number)
        with writing(pairs, folder, f"{seed} {number}") as load:
            load.wait_for_acks(30)
            plan = planned(fleet, pairs, shards=None)
            apply_until(pairs.fleet(), plan, step=step, state="done")
            result = end(pairs.fleet())
            load.wait_for_acks(30)
            attempts = load.stop()
        assert result.state == ("undone" if end is undo else "finished")
        if end is undo:
            prove(pairs, attempts)
            continue
        where = places(json.loads(pairs.path.read_text()))
        source, target = pairs["server1"], pairs["server2"]
        assert {url for url, _ in where.values()} == {target.primary.url}
        rows = rows_of_places(where)
        assert check(attempts, rows) == []
        target.wait_caught_up()
        assert rows_on(pairs, target.standby) == rows
        old = source.primary
        assert only_old(rows_on(pairs, old), rows) == []
        assert old.root_execute("SELECT @@read_only") == [(1,)]


# -- shards that are not fenced -------------------------------------------


def open_transaction(server, shard, token):
    """Return a connection that has written, and not committed."""
    connection = server.connect()
    cursor = connection.cursor()
    cursor.execute(f"INSERT INTO db{shard:05d}.load_pins (token) VALUES (%s)", (token,))
    cursor.execute(
        f"INSERT INTO db{shard:05d}.load_notes VALUES (%s, %s)",
        (token, cursor.lastrowid),
    )
    return connection, cursor.lastrowid


@pytest.mark.thorough
def test_without_the_kill_a_write_is_lost(fleet, pairs, monkeypatch):
    monkeypatch.setattr(Fence, "kill_sessions", lambda self, seconds: [])
    connection, _ = open_transaction(pairs["server1"].primary, MOVING[0], "open")
    with connection:
        apply(fleet, planned(fleet, pairs))
        connection.commit()
    now = time.monotonic()
    acked = Attempt(
        token="open", shard=MOVING[0], t0=now, t1=now, outcome="acked", local_id=None
    )
    rows = rows_of_places(places(json.loads(pairs.path.read_text())))
    (problem,) = check([acked], rows)
    assert problem.endswith("and lost")
    assert only_old(rows_on(pairs, pairs["server1"].primary), rows)


def test_an_open_transaction_does_not_survive(fleet, pairs):
    connection, _ = open_transaction(pairs["server1"].primary, MOVING[0], "open")
    with connection:
        apply(fleet, planned(fleet, pairs))
        with pytest.raises(pymysql.err.OperationalError):
            connection.commit()
    prove(
        pairs,
        [
            Attempt(token="open", shard=4, t0=0, t1=0, outcome="failed"),
            acked_now(pairs, MOVING[0]),
        ],
    )


def acked_now(pairs, shard):
    """Write a row where the topology says."""
    url, name = places(json.loads(pairs.path.read_text()))[shard]
    with connect_to(url) as connection:
        cursor = connection.cursor()
        cursor.execute(f"INSERT INTO `{name}`.load_pins (token) VALUES ('now')")
        local_id = cursor.lastrowid
        cursor.execute(
            f"INSERT INTO `{name}`.load_notes VALUES ('now', %s)", (local_id,)
        )
        connection.commit()
    return Attempt(
        token="now", shard=shard, t0=0, t1=0, outcome="acked", local_id=local_id
    )


# -- failures and refusals ------------------------------------------------


def test_a_statement_in_the_way_undoes_it(fleet, pairs, monkeypatch):
    monkeypatch.setattr("sqla_shard.fleet.admin._MAX_TRIES", 2)
    with pairs["server1"].primary.connect() as connection:
        cursor = connection.cursor()
        cursor.execute("LOCK TABLES db00000.load_pins WRITE")
        with pytest.raises(OperationFailedError) as info:
            # The comparison would wait for the lock, too.
            apply(fleet, planned(fleet, pairs, compare_limit=None))
        assert info.value.undone
        assert info.value.step == "fence"
        cursor.execute("UNLOCK TABLES")
    prove(pairs, [acked_now(pairs, MOVING[0])])


@pytest.mark.slow_on_servers
def test_a_target_that_does_not_catch_up_is_named_with_the_remedy(
    fleet, pairs, monkeypatch
):
    with_a_row(pairs, fleet)
    monkeypatch.setattr("sqla_shard.fleet.split._WAIT_SECONDS", 0.5)
    target = pairs["server2"].primary
    with contextlib.ExitStack() as stack:

        def hold_up(event):
            if (event.step, event.state) == ("compare", "begin"):
                connection = stack.enter_context(target.root_connect())
                lock = f"LOCK TABLES db{MOVING[1]:05d}.load_notes READ"
                connection.cursor().execute(lock)
                acked_now(pairs, MOVING[1])

        with pytest.raises(OperationFailedError, match="still behind") as info:
            apply(fleet, planned(fleet, pairs), progress=hold_up)
    assert f"Raise {words(target).APPLIERS}" in str(info.value)

    def stop(event):
        if (event.step, event.state) == ("compare", "begin"):
            target.root_execute("STOP REPLICA SQL_THREAD")
            acked_now(pairs, MOVING[2])

    with pytest.raises(OperationFailedError, match="it was stopped"):
        apply(fleet, planned(fleet, pairs), progress=stop)


def test_the_target_has_semi_sync_if_the_source_has(fleet, pairs):
    source, target = pairs["server1"], pairs["server2"]
    waits, acknowledges = words(source.primary).SEMI_SYNC
    source.primary.root_execute(f"SET GLOBAL {waits}_enabled = 1")
    try:
        plan = planned(fleet, pairs)
        source.primary.root_execute(f"SET GLOBAL {waits}_timeout = 1")
        assert "problem" not in apply(fleet, plan).notes.get("detach", {})
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            ((_, clients),) = target.primary.root_execute(
                f"SHOW STATUS LIKE '{waits}_clients'"
            )
            if clients == "1":
                break
            time.sleep(0.05)
        assert clients == "1"
        acked_now(pairs, MOVING[0])
    finally:
        for server in (*source.servers, *target.servers):
            server.root_execute(f"SET GLOBAL {waits}_enabled = 0")
            server.root_execute(f"SET GLOBAL {acknowledges}_enabled = 0")


def test_a_prepared_transaction_undoes_it(fleet, pairs):
    source = pairs["server1"].primary
    plan = planned(fleet, pairs)
    connection = source.connect()
    cursor = connection.cursor()
    cursor.execute("XA START 'held'")
    cursor.execute("INSERT INTO db00004.load_pins (token) VALUES ('held')")
    cursor.execute("XA END 'held'")

    def prepare(event):
        # After the check: the fence itself must find it.
        if (event.step, event.state) == ("wait", "done"):
            cursor.execute("XA PREPARE 'held'")
            connection.close()

    try:
        with pytest.raises(OperationFailedError, match="prepared XA") as info:
            apply(fleet, plan, progress=prepare)
        assert info.value.undone
        (problem,) = planned(fleet, pairs).problems
        assert "prepared XA transactions (held)" in problem.message
    finally:
        source.root_execute("XA ROLLBACK 'held'")
    prove(pairs, [acked_now(pairs, MOVING[0])])


@pytest.mark.only_on("mysql")
def test_without_the_privilege_for_xa_recover_it_is_named(fleet, pairs):
    """XA RECOVER would be error 1401 XAER_RMERR."""
    source = pairs["server1"].primary
    operator = f"'{pairs.accounts.operator.user}'@'{source.host}'"
    unlogged(source, f"REVOKE XA_RECOVER_ADMIN ON *.* FROM {operator}")
    try:
        (problem,) = planned(fleet, pairs).problems
    finally:
        unlogged(source, f"GRANT XA_RECOVER_ADMIN ON *.* TO {operator}")
    assert "lacks XA_RECOVER_ADMIN; grant these ON *.*" in problem.message


def test_databases_that_no_account_can_use_are_not_fenced(fleet, pairs):
    accounts = Fence.accounts
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(
            Fence,
            "accounts",
            lambda self: [] if "db00004" in self.databases else accounts(self),
        )
        (problem,) = planned(fleet, pairs).problems
    assert "nothing would be fenced" in problem.message


def test_a_fence_deletes_its_own_rows_only(fleet, pairs):
    server = pairs["server1"].primary
    row = "INSERT INTO mysql.db (Host, Db, User) VALUES ('%', 'db00004', 'me')"
    with server.root_connect() as connection:
        cursor = connection.cursor()
        cursor.execute("SET SESSION sql_log_bin = 0")
        cursor.execute(row)
        try:
            with fleet.admin(server.url, name="server1") as admin:
                fence = Fence(admin, ["db00004"], exempt=[system_user()])
                fence.insert(readable=False)
                fence.flush()
                assert fence.missing() == []
                fence.delete()
                assert fence.missing() == ["db00004"]
            cursor.execute("SELECT User FROM mysql.db WHERE Db = 'db00004'")
            assert cursor.fetchall() == (("me",),)
        finally:
            cursor.execute("DELETE FROM mysql.db WHERE User = 'me'")
            cursor.execute("FLUSH LOCAL PRIVILEGES")


class Away:
    """Lets servers of an operation be unreachable.

    :ivar roles: the servers, by role.
    """

    def __init__(self, monkeypatch):
        self.roles = set()
        at = Split._at

        def lost(split, role):
            if role in self.roles:
                raise FleetServerError(
                    server=role, number=2003, reason="it does not answer"
                )
            return at(split, role)

        monkeypatch.setattr(Split, "_at", lost)


@pytest.fixture
def away(monkeypatch):
    return Away(monkeypatch)


def test_a_source_lost_after_the_publication_does_not_lock_the_fleet(
    fleet, pairs, away
):
    def tell(event):
        if (event.step, event.state) == ("publish", "done"):
            away.roles = {"source", "source standby"}

    result = apply(fleet, planned(fleet, pairs), progress=tell)
    assert result.state == "finished"
    for step in ("reopen", "shut", "verify"):
        assert "source" in result.notes[step]["problem"]
    target = pairs["server2"].primary
    assert target.root_execute("SELECT @@read_only") == [(0,)]
    acked_now(pairs, MOVING[0])


def test_an_undo_ends_although_the_target_is_away(fleet, pairs, away):
    def tell(event):
        if (event.step, event.state) == ("fence", "begin"):
            away.roles = {"target", "target standby", "source standby"}

    with pytest.raises(OperationFailedError) as info:
        apply(fleet, planned(fleet, pairs), progress=tell)
    assert info.value.undone
    for role in away.roles:
        assert role in info.value.left
    source = pairs["server1"].primary
    assert source.root_execute("SELECT @@read_only") == [(0,)]
    acked_now(pairs, MOVING[0])


def test_all_obstacles_are_reported_at_once(fleet, pairs):
    source, target = pairs["server1"].primary, pairs["server2"].primary
    source.root_execute("SET GLOBAL binlog_format = STATEMENT")
    source.root_execute("CREATE VIEW db00005.v AS SELECT 1 AS one")
    source.root_execute("CREATE USER cron@localhost")
    source.root_execute("GRANT INSERT ON *.* TO cron@localhost")
    source.root_execute("CREATE ROLE writers")
    source.root_execute("GRANT writers TO cron@localhost")
    source.root_execute("GRANT SELECT ON db00006.load_pins TO cron@localhost")
    source.root_execute("GRANT UPDATE ON db00007.* TO cron@localhost")
    target.root_execute("CREATE DATABASE other")
    try:
        plan = planned(fleet, pairs)
        with pytest.raises(OperationRefusedError) as info:
            apply(fleet, plan)
        problems = "\n".join(map(str, plan.problems))
        assert info.value.problems == plan.problems
        for part in (
            "binlog_format = STATEMENT",
            "views db00005.v",
            "'cron'@'localhost' has the global privileges INSERT",
            "cron@localhost (role writers)",
            "cron on db00006.load_pins",
            "cron has grants on single databases (db00007)",
            "server2 primary: it has databases (other)",
        ):
            assert part in problems, problems
    finally:
        source.root_execute("SET GLOBAL binlog_format = ROW")
        source.root_execute("DROP VIEW db00005.v")
        source.root_execute("DROP USER cron@localhost")
        source.root_execute("DROP ROLE writers")
        target.root_execute("DROP DATABASE other")


WRONG = (
    ({"server": "server9"}, "no server 'server9'"),
    ({"shards": ["4-20"]}, "does not have shards 8-20"),
    ({"shards": ["4-5", "5-6"]}, "repeats shard 5"),
    ({"shards": ["5-4"]}, "is reversed"),
    ({"shards": ["x"]}, "is not a range"),
    ({"shards": ["lookup:1"]}, "the keyspace 'lookup'"),
    ({"shards": ["0-7"]}, "sqla-shard fleet move"),
    ({"target": "server1"}, "already a server"),
    ({"primary": "app:secret@host:1"}, "has a user"),
    ({"primary": "host:port"}, "is not the address"),
    ({"weight": -1.0}, "-1.0 must be 0 or more"),
)


def test_arguments_that_do_not_fit(fleet, pairs):
    for changes, part in WRONG:
        try:
            problems = planned(fleet, pairs, **changes).problems
        except OperationRefusedError as error:
            problems = error.problems
        shown = "\n".join(map(str, problems))
        assert part in shown
        assert "secret" not in shown


def test_servers_of_the_topology_are_no_target(fleet, pairs):
    source = pairs["server1"]
    plan = planned(fleet, pairs, standby=address(source.standby))
    assert "is the standby of 'server1' already" in str(plan.problems)


def test_a_server_that_does_not_answer_is_unknown(fleet, pairs):
    pairs["server2"].standby.pause()
    try:
        plan = planned(pairs.fleet(timeout=1.0), pairs)
    finally:
        pairs["server2"].standby.resume()
    (problem,) = [p for p in plan.problems if "standby" in p.place]
    assert "its state is unknown" in problem.message


def test_a_whole_server_moves(fleet, pairs):
    plan = planned(fleet, pairs, shards=None)
    assert any("sqla-shard fleet retire" in cost for cost in plan.costs)
    result = apply(fleet, plan)
    assert result.state == "finished"
    old = pairs["server1"].primary
    assert old.root_execute("SELECT @@read_only") == [(1,)]
    (server,) = json.loads(pairs.path.read_text())["keyspaces"]["objects"]["servers"]
    assert server["name"] == "server2"
    assert server["shards"] == [0, 7]
    assert server["primary"] == pairs["server2"].primary.url
    assert server["standby"] == pairs["server2"].standby.url


def test_the_log_of_a_copy_does_not_begin_with_its_first_write(fleet, pairs):
    source, target = (pairs[name].primary for name in ("server1", "server2"))
    # As after its content was copied from another server.
    if target.kind == "mysql":
        other = "3e11fa47-71ca-11e1-9e33-c80aa9429562:1-9"
        target.root_execute(f"SET GLOBAL gtid_purged = '+{other}'")
    else:
        target.root_execute("SET GLOBAL gtid_slave_pos = '9-9-9'")
    found = []
    for server in (source, target):
        with fleet.admin(server.url, name=server.name) as admin:
            found.append(replication_of(admin).has_first_write())
    assert found == [True, False]


# -- orphans --------------------------------------------------------------


def orphans_on(fleet, server):
    return [orphan.database for orphan in orphans_of(fleet, server)]


def databases_of(server):
    return {name for (name,) in server.root_execute("SHOW DATABASES")}


def change(fleet, action, **arguments):
    return OrphanChange.planned(
        fleet,
        server="server1",
        action=action,
        allowed_users=[system_user()],
        **arguments,
    )


def test_orphans_are_renamed_restored_and_dropped(fleet, pairs):
    source = pairs["server1"]
    moved = [f"db{shard:05d}" for shard in MOVING]
    assert orphans_on(fleet, None) == []
    assert change(fleet, "rename").problems
    apply(fleet, planned(fleet, pairs))
    assert orphans_on(fleet, "server1") == moved
    assert orphans_on(fleet, "server2") == [f"db{s:05d}" for s in STAYING]
    assert apply(fleet, change(fleet, "rename")).state == "finished"
    source.wait_caught_up()
    for server in source.servers:
        assert not databases_of(server) & set(moved)
        assert len(orphans_on(fleet, "server1")) == len(moved)
        with server.connect() as connection:
            with pytest.raises(pymysql.err.OperationalError) as info:
                connection.cursor().execute("CREATE DATABASE db00007")
            assert info.value.args[0] in {1044, 1290}
    first, *rest = orphans_on(fleet, "server1")
    apply(fleet, change(fleet, "restore", databases=[first]))
    assert orphans_on(fleet, "server1")[0] == moved[0]
    assert "no orphan to drop" in str(change(fleet, "drop").problems)
    named = change(fleet, "drop", databases=rest)
    with pytest.raises(OperationRefusedError, match="the grace period is 7"):
        apply(fleet, named)
    apply(fleet, change(fleet, "drop", older_than=0.0))
    assert orphans_on(fleet, "server1") == moved[:1]


def test_databases_that_are_not_fenced_or_the_only_copy_stay(fleet, pairs):
    apply(fleet, planned(fleet, pairs))
    with pairs["server1"].primary.root_connect() as connection:
        cursor = connection.cursor()
        cursor.execute("SET SESSION sql_log_bin = 0")
        cursor.execute("DELETE FROM mysql.db WHERE Db = 'db00004'")
        cursor.execute("FLUSH LOCAL PRIVILEGES")
    pairs["server2"].primary.root_execute("DROP DATABASE db00005")
    with pytest.raises(OperationRefusedError) as info:
        apply(fleet, change(fleet, "rename"))
    shown = str(info.value)
    assert "db00004: is not fenced on the primary" in shown
    assert "db00005: may be the only copy" in shown
    assert len(info.value.problems) == 2
    with pytest.raises(OperationRefusedError, match="is not an orphan"):
        apply(fleet, change(fleet, "rename", databases=["db00000"]))
    target = pairs["server2"].primary
    target.root_execute("DROP TABLE db00006.load_notes")
    (problem,) = change(fleet, "rename", databases=["db00006"]).problems
    assert "only copy of the tables load_notes" in problem.message


def without_fence(server, name):
    with server.root_connect() as connection:
        cursor = connection.cursor()
        cursor.execute("SET SESSION sql_log_bin = 0")
        cursor.execute("DELETE FROM mysql.db WHERE Db = %s", (name,))
        cursor.execute("FLUSH LOCAL PRIVILEGES")


def test_orphans_are_fenced_again(fleet, pairs):
    apply(fleet, planned(fleet, pairs))
    source = pairs["server1"]
    for server in source.servers:
        without_fence(server, "db00004")
    open_ones = [
        str(finding)
        for finding in examine(fleet, environ={"MARIADB_PASSWORD": "x"}).at_least(
            "warning"
        )
        if "does not fence 1 databases" in finding.what
    ]
    assert len(open_ones) == 2, open_ones
    assert all("fleet orphans fence server1" in one for one in open_ones)
    assert "db00004" in str(change(fleet, "rename").problems)
    with source.primary.connect(database="db00004") as late:
        cursor = late.cursor()
        cursor.execute("INSERT INTO load_pins (token) VALUES ('late')")
        assert apply(fleet, change(fleet, "fence")).state == "finished"
        with pytest.raises(pymysql.err.OperationalError):
            late.commit()
    for server in source.servers:
        with server.connect() as connection:
            with pytest.raises(pymysql.err.OperationalError) as info:
                connection.cursor().execute("SELECT * FROM db00004.load_pins")
            assert info.value.args[0] in {1142, 1044}
    assert change(fleet, "rename").problems == ()


def test_a_failover_opens_no_orphans(fleet, pairs):
    apply(fleet, planned(fleet, pairs))
    without_fence(pairs["server1"].standby, "db00004")
    (problem,) = Failover.planned(fleet, "server1").problems
    assert "it does not fence db00004" in problem.message
    apply(fleet, change(fleet, "fence"))
    assert Failover.planned(fleet, "server1").problems == ()


def test_the_target_fences_the_orphans_of_the_source(fleet, pairs):
    source, target = pairs["server1"], pairs["server2"]
    with source.primary.root_connect() as connection:
        cursor = connection.cursor()
        cursor.execute("SET SESSION sql_log_bin = 0")
        cursor.execute(
            "INSERT INTO mysql.db (User, Host, Db) VALUES (%s, %s, 'db00099')",
            (source.primary.user, source.primary.host),
        )
        cursor.execute("FLUSH LOCAL PRIVILEGES")
    apply(fleet, planned(fleet, pairs))
    for server in target.servers:
        with server.connect() as connection:
            with pytest.raises(pymysql.err.OperationalError) as info:
                connection.cursor().execute("CREATE DATABASE db00099")
            assert info.value.args[0] in {1044, 1290}
    assert target.primary.root_execute(
        "SELECT COUNT(*) FROM mysql.db WHERE Db = 'db00099'"
    ) == [(1,)]


@pytest.mark.thorough
def test_rows_that_only_an_orphan_has(fleet, pairs):
    acked_now(pairs, 4)
    acked_now(pairs, 5)
    apply(fleet, planned(fleet, pairs))
    # The journal proves it, whatever is written since.
    target = pairs["server2"].primary
    target.root_execute("UPDATE db00004.load_pins SET token = 'changed'")
    one = {"databases": ["db00004"]}
    assert change(fleet, "rename", **one).problems == ()
    # As if it had been created anew.
    target.root_execute("TRUNCATE db00005.load_pins")
    (problem,) = change(fleet, "rename").problems
    assert problem.place == "db00005"
    assert "rows of the tables load_pins, which are empty" in problem.message
    assert change(fleet, "rename", accept_differences=True).problems == ()
    # Without the journal the rows are compared.
    for path in pairs.path.parent.glob("*/history/*.json"):
        path.unlink()
    (problem,) = change(fleet, "rename", **one).problems
    assert "1 differ (db00004.load_pins 1: differs in token" in problem.message
    equal = {"databases": ["db00006"]}
    target.root_execute("INSERT INTO db00006.load_pins (token) VALUES ('new')")
    assert apply(fleet, change(fleet, "rename", **equal)).state == "finished"
    (name,) = (n for n in orphans_on(fleet, "server1") if "db00006" in n)
    named = {"databases": [name], "older_than": 0.0}
    # Proven when it was renamed.
    assert change(fleet, "drop", **named).problems == ()
    for path in pairs.path.parent.glob("*/history/*.json"):
        path.unlink()
    (problem,) = change(fleet, "drop", **named).problems
    assert "restore it and rename it again" in problem.message
    accepted = change(fleet, "drop", **named, accept_differences=True)
    assert apply(fleet, accepted).state == "finished"


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["orphans", "split"])
def test_an_undo_while_the_source_is_away(fleet, pairs, kind):
    source = pairs["server1"].primary
    if kind == "orphans":
        apply(fleet, planned(fleet, pairs))
        plan, step = change(fleet, "rename"), "rename"
    else:
        plan, step = planned(fleet, pairs), "fence"
    apply_until(pairs.fleet(), plan, step=step, state="done")
    source.pause()
    try:
        with pytest.raises(OperationFailedError) as info:
            undo(pairs.fleet(timeout=1.0))
    finally:
        source.resume()
    assert not info.value.undone
    assert "repeat: sqla-shard fleet undo" in str(info.value)
    assert undo(pairs.fleet()).state == "undone"
    if kind == "orphans":
        names = [f"db{shard:05d}" for shard in MOVING]
        assert orphans_on(fleet, "server1") == names
    else:
        prove(pairs, [acked_now(pairs, MOVING[0])])


def test_a_change_of_orphans_is_not_resumed_after_another_epoch(fleet, pairs):
    apply(fleet, planned(fleet, pairs))
    plan = change(fleet, "rename")
    apply_until(pairs.fleet(), plan, step="rename", state="begin")
    document = json.loads(pairs.path.read_text())
    document["epoch"] += 1
    publish_to(pairs.path, document)
    with pytest.raises(OperationFailedError, match="epoch 3 is publi") as info:
        resume(pairs.fleet())
    assert not info.value.undone
    assert undo(pairs.fleet()).state == "undone"
    names = [f"db{shard:05d}" for shard in MOVING]
    assert orphans_on(fleet, "server1") == names


@pytest.mark.thorough
def test_orphans_are_checked_again_when_a_change_is_resumed(fleet, pairs):
    apply(fleet, planned(fleet, pairs))
    plan = change(fleet, "rename")
    apply_until(pairs.fleet(), plan, step="rename", state="begin")
    pairs["server2"].primary.root_execute("DROP DATABASE db00005")
    with pytest.raises(OperationFailedError, match="may be the only copy"):
        resume(pairs.fleet())
    names = [f"db{shard:05d}" for shard in MOVING]
    assert orphans_on(fleet, "server1") == names
