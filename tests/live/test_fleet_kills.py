"""Operations that are killed between their steps, or in one, under load."""

from __future__ import annotations

import itertools
import os
import random
import signal

import pymysql
import pytest

from sqla_shard.exc import FleetLockedError, OperationFailedError
from sqla_shard.fleet import apply, orphans, resume, undo
from sqla_shard.fleet.fences import Fence
from sqla_shard.fleet.orphans import OrphanChange
from sqla_shard.fleet.write_access import CloseFormer, CloseStandby, Reopen, Retire
from sqla_shard.testing.database_server import system_user
from tests.servers.fleet_load import (
    create,
    document,
    prove,
    roles,
    rows_now,
    SHARDS,
    wait_until_equal,
    writing,
)
from tests.servers.fleet_pairs import FleetPairs
from tests.servers.fleet_processes import apply_until
from tests.servers.load_checks import check
from tests.servers.load_writers import create_tables
from tests.servers.published import places, publish_to

pytestmark = pytest.mark.live

SOAK = os.environ.get("SQLA_SHARD_SOAK") == "1"
CLOSED, OPEN = [(1,)], [(0,)]


@pytest.fixture(scope="module")
def pairs(server_kind, tmp_path_factory):
    """Start a pair with all shards, and a spare one."""
    folder = tmp_path_factory.mktemp("fleet")
    with FleetPairs(
        folder, pairs=1, spare=1, shards=SHARDS, pair=server_kind.pair
    ) as pairs:
        create(pairs)
        yield pairs


@pytest.fixture
def fleet(pairs):
    return pairs.fleet()


@pytest.fixture
def load(pairs, tmp_path, request):
    seed = request.config.getoption("hypothesis_seed")
    primary, standby = roles(pairs)
    for shard in range(SHARDS):
        for table in ("load_pins", "load_notes"):
            primary.root_execute(f"TRUNCATE db{shard:05d}.{table}")
    wait_until_equal(primary, standby)
    with writing(pairs, tmp_path / "log", seed) as load:
        load.wait_for_acks(30)
        yield load


def exchange(pairs):
    """Publish the standby as the primary, as an operator may by hand."""
    new = document(pairs)
    new["epoch"] += 1
    (server,) = new["keyspaces"]["objects"]["servers"]
    server["primary"], server["standby"] = server["standby"], server["primary"]
    publish_to(pairs.path, new)


def test_a_standby_that_has_become_the_primary_is_not_closed(pairs, fleet):
    _, standby = roles(pairs)
    standby.root_execute("SET GLOBAL read_only = 0")
    try:
        plan = CloseStandby.planned(fleet, "server1")
        apply_until(fleet, plan, step="close", state="begin")
        exchange(pairs)
        with pytest.raises(OperationFailedError, match=r"epoch \d+ is published"):
            resume(fleet)
        assert undo(fleet).state == "undone"
        assert standby.root_execute("SELECT @@read_only") == OPEN
        assert fleet.journal.pending() is None
    finally:
        exchange(pairs)
        standby.root_execute("SET GLOBAL read_only = 1")


def points(say, *steps):
    """Yield each step, its event, and what follows the kill."""
    for step, state, end in itertools.product(steps, ("begin", "done"), (resume, undo)):
        say(f"killed at {step} {state}, then {end.__name__}")
        yield step, state, end


def read_only(server):
    return server.root_execute("SELECT @@GLOBAL.read_only")


def killed(fleet, plan, step, state):
    """Apply a plan until the process kills itself."""
    assert plan.problems == ()
    apply_until(fleet, plan, step=step, state=state)
    with pytest.raises(FleetLockedError, match=plan.title):
        apply(fleet, plan)


# -- reopen ---------------------------------------------------------------


def close(pairs):
    """Make the primary read-only, as after a restart."""
    primary, _ = roles(pairs)
    primary.root_execute("SET GLOBAL read_only = 1")
    return primary


@pytest.mark.thorough
def test_a_killed_reopening(pairs, fleet, load, say):
    for step, state, end in points(say, "open", "verify"):
        primary = close(pairs)
        killed(fleet, Reopen.planned(fleet, "server1"), step, state)
        was_open = (step, state) != ("open", "begin")
        assert read_only(primary) == (OPEN if was_open else CLOSED)
        result = end(fleet)
        assert result.state == ("finished" if end is resume else "undone")
        # An open primary has writes that were acknowledged.
        stays = end is undo and was_open
        assert any("stays open" in one for one in result.problems) == stays
        if end is undo and not was_open:
            assert read_only(primary) == CLOSED
            apply(fleet, Reopen.planned(fleet, "server1"))
        load.wait_for_acks(20)
    prove(pairs, load.stop())


def test_a_standby_that_is_lost_does_not_close_the_primary(pairs, fleet):
    primary = close(pairs)
    _, standby = roles(pairs)

    def lose(event):
        if (event.step, event.state) == ("verify", "begin"):
            standby.kill()

    try:
        plan = Reopen.planned(fleet, "server1")
        result = apply(fleet, plan, progress=lose)
        assert result.state == "finished"
        (problem,) = result.problems
        assert "server1 standby" in problem
        assert read_only(primary) == OPEN
    finally:
        standby.start()
        standby.root_execute("START REPLICA")
    wait_until_equal(primary, standby)


@pytest.mark.parametrize("state", ["begin", "done"])
def test_a_resumed_opening_is_checked_again(pairs, fleet, state):
    primary = close(pairs)
    _, standby = roles(pairs)
    killed(fleet, Reopen.planned(fleet, "server1"), "open", state)
    standby.root_execute("SET GLOBAL read_only = 0")
    try:
        if state == "begin":
            with pytest.raises(OperationFailedError, match="can be written"):
                resume(fleet)
            assert read_only(primary) == CLOSED
        else:
            # It is open already.
            (problem,) = resume(fleet).problems
            assert "is open, but: server1 standby: it can be" in problem
            assert read_only(primary) == OPEN
        assert fleet.journal.pending() is None
    finally:
        standby.root_execute("SET GLOBAL read_only = 1")
        primary.root_execute("SET GLOBAL read_only = 0")


def test_an_undo_closes_a_server_that_is_no_longer_the_primary(pairs, fleet):
    primary = close(pairs)
    _, standby = roles(pairs)
    before = document(pairs)
    killed(fleet, Reopen.planned(fleet, "server1"), "open", "done")
    after = document(pairs)
    (server,) = after["keyspaces"]["objects"]["servers"]
    server.update(primary=standby.url, standby=primary.url)
    publish_to(pairs.path, {**after, "epoch": before["epoch"] + 1})
    try:
        with pytest.raises(OperationFailedError, match="epoch"):
            resume(fleet)
        assert read_only(primary) == OPEN
        assert undo(fleet).problems == ()
        assert read_only(primary) == CLOSED
    finally:
        publish_to(pairs.path, {**before, "epoch": before["epoch"] + 2})
        primary.root_execute("SET GLOBAL read_only = 0")


# -- retire ---------------------------------------------------------------


@pytest.mark.thorough
def test_a_killed_retirement(pairs, fleet, load, say):
    spare = pairs["server2"]
    target = f"{spare.standby.host}:{spare.standby.port}"
    for step, state, end in points(say, "close", "detach"):
        spare.attach(spare.standby)
        spare.standby.root_execute("SET GLOBAL read_only = 0")
        killed(fleet, Retire.planned(fleet, target), step, state)
        result = end(fleet)
        untouched = (step, state, end) == ("close", "begin", undo)
        assert read_only(spare.standby) == (OPEN if untouched else CLOSED)
        if end is resume or untouched:
            assert result.problems == ()
        else:
            (problem,) = result.problems
            detached = (step, state) == ("detach", "done")
            assert "stays read-only" in problem
            assert problem.endswith("does not replicate") == detached
        if end is resume:
            assert spare.standby.root_execute("SHOW REPLICA STATUS") == []
    prove(pairs, load.stop())


def test_a_server_that_is_lost_while_it_is_retired(pairs, fleet):
    server = pairs["server2"].standby

    def lose(event):
        if (event.step, event.state) == ("detach", "begin"):
            server.kill()

    try:
        plan = Retire.planned(fleet, f"{server.host}:{server.port}")
        with pytest.raises(OperationFailedError) as caught:
            apply(fleet, plan, progress=lose)
        assert caught.value.undone
        assert "look whether it is read-only" in caught.value.left
        assert fleet.journal.pending() is None
    finally:
        server.start()


# -- orphans --------------------------------------------------------------

MOVED = [f"db{shard:05d}" for shard in range(SHARDS - 3, SHARDS)]


@pytest.fixture(scope="module")
def two_pairs(server_kind, tmp_path_factory):
    """Start two pairs, of which each has all databases."""
    folder = tmp_path_factory.mktemp("orphans")
    with FleetPairs(folder, pairs=2, shards=SHARDS, pair=server_kind.pair) as pairs:
        create(pairs)
        with pairs["server2"].primary.connect() as connection:
            names = [place[1] for place in places(pairs.document()).values()]
            create_tables(connection, names)
        accounts = pairs.accounts
        users = {accounts.operator.user, accounts.for_replication().user}
        for server in pairs["server1"].servers:
            with pairs.fleet().admin(server.url, name="server1") as admin:
                fence = Fence(admin, MOVED, exempt={*users, system_user()})
                fence.insert(readable=False)
                fence.flush()
        yield pairs


def kill_at(monkeypatch, number):
    """Let a child process end before it quotes a name for that time."""
    parent, calls, quoted = os.getpid(), itertools.count(1), orphans.marked

    def counted(name):
        if os.getpid() != parent and next(calls) == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return quoted(name)

    monkeypatch.setattr(orphans, "marked", counted)


def orphans_now(pairs):
    """Return the name and the state of each orphan, which has its row."""
    found = {}
    with pairs["server1"].primary.root_connect() as connection:
        cursor = connection.cursor()
        for orphan in known_orphans(pairs):
            cursor.execute(f"SELECT token FROM `{orphan.database}`.load_pins")
            assert cursor.fetchall() == ((orphan.original,),)
            found[orphan.original] = orphan.renamed is not None
    return found


def known_orphans(pairs):
    return [
        orphan
        for orphan in orphans.orphans_of(pairs.fleet(), "server1")
        if orphan.original in MOVED
    ]


def renew(pairs, action):
    """Make all orphans again, renamed or not, each with a row."""
    primary, standby = pairs["server1"].servers
    with primary.root_connect() as connection:
        cursor = connection.cursor()
        for orphan in known_orphans(pairs):
            cursor.execute(f"DROP DATABASE `{orphan.database}`")
        create_tables(connection, MOVED)
        for name in MOVED:
            cursor.execute(f"INSERT INTO {name}.load_pins (token) VALUES ('{name}')")
        connection.commit()
    if action != "rename":
        apply(pairs.fleet(), change(pairs, "rename"))
    wait_until_equal(primary, standby)


def change(pairs, action):
    return OrphanChange.planned(
        pairs.fleet(),
        server="server1",
        action=action,
        databases=MOVED if action == "rename" else (),
        older_than=0.0,
        allowed_users=[system_user()],
        # Their rows are made here: no split has moved them.
        accept_differences=True,
    )


#: Names are quoted for CREATE DATABASE, 8 times for RENAME TABLE, and for
#: DROP DATABASE; a drop quotes one.
_ORPHANS = [
    *(
        (action, at)
        for action in ("rename", "restore")
        for at in ("begin", 2, 10, 11, "done")
    ),
    *(("drop", at) for at in ("begin", 2, "done")),
]


@pytest.mark.thorough
def test_a_killed_change_of_orphans(two_pairs, tmp_path, request, monkeypatch, say):
    seed = request.config.getoption("hypothesis_seed")
    say(f"seed {seed}")
    every = list(itertools.product(_ORPHANS, (resume, undo)))
    chosen = every if SOAK else random.Random(seed).sample(every, 8)
    fleet = two_pairs.fleet()
    with writing(two_pairs, tmp_path / "log", seed) as load:
        for (action, at), end in chosen:
            say(f"{action} killed at {at}, then {end.__name__}")
            renew(two_pairs, action)
            before = orphans_now(two_pairs)
            assert set(before) == set(MOVED)
            with monkeypatch.context() as patched:
                if isinstance(at, int):
                    kill_at(patched, at)
                killed(fleet, change(two_pairs, action), action, at)
            result = end(fleet)
            after = orphans_now(two_pairs)
            if end is resume:
                assert result.problems == ()
                assert after == (
                    {} if action == "drop" else dict.fromkeys(MOVED, action == "rename")
                )
            elif action != "drop" or at == "begin":
                assert result.problems == ()
                assert after == before
            else:
                (problem,) = result.problems
                assert "were dropped" in problem
                assert len(after) == (len(MOVED) - 1 if at == 2 else 0)
        load.wait_for_acks(20)
        attempts = load.stop()
    assert check(attempts, rows_now(two_pairs)) == []
    for name in ("server1", "server2"):
        two_pairs[name].wait_caught_up()


@pytest.mark.thorough
def test_a_killed_fencing_of_orphans(two_pairs, monkeypatch, say):
    """An undo does not open an orphan that is fenced."""
    fleet, pair = two_pairs.fleet(), two_pairs["server1"]
    accounts = two_pairs.accounts
    users = {accounts.operator.user, accounts.for_replication().user}
    renew(two_pairs, "rename")
    fences = []
    for server in pair.servers:
        admin = fleet.admin(server.url, name="server1")
        fence = Fence(admin, MOVED, exempt={*users, system_user()})
        fences.append(fence)
    # Killed on the standby, too, when the primary has been fenced.
    flush, parent = Fence.flush, os.getpid()

    def dying(fence):
        flush(fence)
        if os.getpid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)

    try:
        for at, end in itertools.product(("begin", "flushed", "done"), (resume, undo)):
            say(f"fence killed at {at}, then {end.__name__}")
            for fence in fences:
                fence.delete()
                assert fence.missing() == MOVED
            with monkeypatch.context() as patched:
                if at == "flushed":
                    patched.setattr(Fence, "flush", dying)
                killed(fleet, change(two_pairs, "fence"), "fence", at)
            primary, standby = (fence.missing() == [] for fence in fences)
            assert primary == (at != "begin")
            assert standby == (at == "done")
            assert end(fleet).problems == ()
            after = [fence.missing() == [] for fence in fences]
            expected = [True, True] if end is resume else [primary, standby]
            assert after == expected
            assert orphans_now(two_pairs) == dict.fromkeys(MOVED, False)
    finally:
        for fence in fences:
            fence.insert(readable=False)
            fence.flush()
            fence.admin.close()


# -- what watchers close --------------------------------------------------


@pytest.mark.thorough
def test_a_killed_closing_of_a_standby(pairs, fleet, load, say):
    _, standby = roles(pairs)
    for step, state, end in points(say, "close"):
        standby.root_execute("SET GLOBAL read_only = 0")
        killed(fleet, CloseStandby.planned(fleet, "server1"), step, state)
        was_closed = state == "done"
        assert read_only(standby) == (CLOSED if was_closed else OPEN)
        result = end(fleet)
        assert result.problems == ()
        # An undo leaves a former primary fenced.
        stays_open = end is undo and not was_closed
        assert read_only(standby) == (OPEN if stays_open else CLOSED)
        standby.root_execute("SET GLOBAL read_only = 1")
        load.wait_for_acks(20)
    prove(pairs, load.stop())


@pytest.mark.thorough
def test_a_killed_closing_of_a_former_primary(pairs, fleet, load, say):
    former = pairs["server2"].primary
    address = f"{former.host}:{former.port}"
    for step, state, end in points(say, "close"):
        former.root_execute("SET GLOBAL read_only = 0")
        with former.connect() as connection:
            port = connection._sock.getsockname()[1]
            plan = CloseFormer.planned(fleet, address)
            killed(fleet, plan, step, state)
            was_closed = state == "done"
            assert read_only(former) == (CLOSED if was_closed else OPEN)
            assert is_alive(connection) != was_closed
            result = end(fleet)
            assert result.problems == ()
            stays_open = end is undo and not was_closed
            assert read_only(former) == (OPEN if stays_open else CLOSED)
            assert is_alive(connection) == stays_open
        ended = result.notes.get("close", {}).get("ended", [])
        is_named = any(port in group["ports"] for group in ended)
        assert is_named == (end is resume and not was_closed)
        load.wait_for_acks(20)
    former.root_execute("SET GLOBAL read_only = 0")
    prove(pairs, load.stop())


def is_alive(connection):
    """Return whether the server still has a session."""
    try:
        connection.ping(reconnect=False)
    except pymysql.err.Error:
        return False
    return True
