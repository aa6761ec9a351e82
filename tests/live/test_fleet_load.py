"""Applications write during every operation of a fleet, and lose nothing.

The topology is in ZooKeeper.  With ``SQLA_SHARD_SOAK=1`` eight applications
write, and random operations follow each other for five minutes.
"""

from __future__ import annotations

import contextlib
import os
import time

import pymysql
import pytest

pytest.importorskip("kazoo")

from sqla_shard.fleet import apply, runner
from sqla_shard.fleet.backup import create_backups, Scope
from sqla_shard.fleet.compare import CompareOptions, verify_data
from sqla_shard.fleet.dead_failover import DeadFailover
from sqla_shard.fleet.failover import Failover
from sqla_shard.fleet.fences import Fence
from sqla_shard.fleet.orphans import OrphanChange, orphans_of
from sqla_shard.fleet.replica import Replica
from sqla_shard.fleet.restore import Restore
from sqla_shard.fleet.split import Split
from sqla_shard.fleet.storage import Storage
from sqla_shard.fleet.write_access import Reopen, Retire
from sqla_shard.testing.database_server import system_user
from sqla_shard.testing.local_server import wait_until
from tests.servers.fleet_controls import Unfenced
from tests.servers.fleet_load import wait_until_equal
from tests.servers.fleet_pairs import empty_server
from tests.servers.fleet_scene import FleetScene, SHARDS
from tests.servers.fleet_semi_sync import look_at, use_semi_sync
from tests.servers.load_checks import rows_at
from tests.servers.load_log import ACKNOWLEDGED, Attempt
from tests.servers.published import connect_to
from tests.servers.server_statements import let_root_write, standby_state, words

pytestmark = [pytest.mark.live, pytest.mark.thorough]

SOAK = os.environ.get("SQLA_SHARD_SOAK") == "1"
WRITERS = 8 if SOAK else 2
#: Acknowledged writes to wait for after each operation.
ACKS = 200 if SOAK else 30
SECONDS = 300
#: The shards that move.
HALF = [f"{SHARDS // 2}-{SHARDS - 1}"]


@pytest.fixture(scope="module")
def seed(request):
    return request.config.getoption("hypothesis_seed")


@pytest.fixture(scope="module")
def scene(server_kind, zookeeper_server, seed, tmp_path_factory):
    """Return a fleet of which no shard has moved."""
    folder = tmp_path_factory.mktemp("scene")
    with FleetScene(
        folder, zookeeper_server, seed=seed, writers=WRITERS, kind=server_kind
    ) as scene:
        yield scene


@pytest.fixture
def new_scene(server_kind, zookeeper_server, seed, tmp_path):
    """Return a fleet of this test alone."""
    with FleetScene(
        tmp_path, zookeeper_server, seed=seed, writers=WRITERS, kind=server_kind
    ) as scene:
        yield scene


def address(server):
    return f"{server.host}:{server.port}"


def applied(scene, plan):
    """Apply a plan that nothing speaks against."""
    assert plan.problems == ()
    result = apply(scene.fleet, plan)
    assert (result.state, result.problems) == ("finished", ())
    return result


# -- operations: each leaves the pair with a primary and a standby ---------


def fail_over(scene, load):
    name = scene.rng.choice(scene.names())
    old, new = scene.roles(name)
    applied(scene, Failover.planned(scene.fleet, name))
    assert scene.roles(name) == (new, old)


def fail_over_from_dead(scene, load, name=None):
    """Lose a primary; it comes back and becomes the standby."""
    name = name or scene.rng.choice(scene.names())
    old, new = scene.roles(name)
    use_semi_sync(old, new)
    load.wait_for_acks(20)
    probe = look_at(scene.fleet, old.url, new.url)
    old.kill()
    plan = DeadFailover.planned(
        scene.fleet, name, fenced=True, probe=probe, allow_loss=False
    )
    assert plan.problems == ()
    assert apply(scene.fleet, plan).state == "finished"
    assert scene.roles(name) == (new, None)
    load.wait_for_acks(20)
    old.start()
    assert old.root_execute("SELECT @@read_only") == [(1,)]
    empty_server(old)
    applied(scene, Replica.planned(scene.fleet, "build", name, address(old)))
    without_semi_sync(old, new)


def without_semi_sync(*servers):
    for server in servers:
        for name in words(server).SEMI_SYNC:
            server.root_execute(f"SET GLOBAL {name}_enabled = 0")


def verify(scene, load):
    # Writes that a fence has rolled back raise counters on the primary only.
    options = CompareOptions(counters=False)
    name = scene.rng.choice(scene.names())
    report = verify_data(scene.fleet, name, options=options)
    assert (report.found, report.unread) == (0, ()), str(report)
    assert report.rows > 0


def back_up_and_restore(scene, load):
    """Restore a shard next to the live one."""
    shard = scene.rng.randrange(SHARDS)
    folder = scene.folder / f"backup{time.monotonic_ns()}"
    before = load.attempts()
    (server,) = [
        name
        for name in scene.names()
        if scene.places()[shard][0] == scene.roles(name)[0].url
    ]
    primary, standby = scene.roles(server)
    # A backup is of the standby.
    wait_until_equal(primary, standby)
    create_backups(scene.fleet, Storage(folder), Scope(keyspace="objects", shard=shard))
    plan = Restore.planned(scene.fleet, folder, keyspace="objects", shard=shard)
    applied(scene, plan)
    name = plan.arguments["database"]
    with primary.root_connect() as connection:
        found = rows_at(connection, {shard: name}, has_transfers=True)[shard]
        live = scene.rows()[shard]
        connection.cursor().execute(f"DROP DATABASE `{name}`")
    assert found.pins <= live.pins
    assert {*found.notes} <= {*live.notes}
    assert found.balance == sum(amount for amount, _ in found.transfers)
    acked = {
        attempt.token
        for attempt in before
        if attempt.outcome in ACKNOWLEDGED and attempt.shard == shard
    }
    assert acked <= {token for _, token in found.pins}


def reopen(scene, load):
    """Lose a primary; it comes back closed, and is opened."""
    name = scene.rng.choice(scene.names())
    primary, standby = scene.roles(name)
    primary.kill()
    primary.start()
    assert primary.root_execute("SELECT @@read_only") == [(1,)]

    def follows():
        return standby_state(standby) == ("Yes", "Yes")

    assert wait_until(follows, seconds=60)
    applied(scene, Reopen.planned(scene.fleet, name))


def rebuild(scene, load):
    """Copy a standby again that has lost its content."""
    name = scene.rng.choice(scene.names())
    _, standby = scene.roles(name)
    with standby.root_connect() as connection:
        cursor = connection.cursor()
        let_root_write(cursor, standby.kind)
        cursor.execute("SET SESSION sql_log_bin = 0")
        cursor.execute("STOP REPLICA")
        cursor.execute("RESET REPLICA ALL")
        cursor.execute("DROP DATABASE db00003")
    plan = Replica.planned(scene.fleet, "rebuild", name, discard_errant=True)
    applied(scene, plan)


def replace_and_retire(scene, load):
    """Put another standby in the place of one, which is retired."""
    name = scene.rng.choice(scene.names())
    _, old = scene.roles(name)
    new = scene.new_server()
    applied(scene, Replica.planned(scene.fleet, "replace", name, address(new)))
    assert scene.roles(name)[1] is new
    applied(scene, Retire.planned(scene.fleet, address(old)))


def split(scene, load):
    """Move the second half of the shards to the spare pair."""
    move_to_spare(scene, load, HALF)
    assert scene.names() == ["server1", "server2"]


def move(scene, load):
    """Move all shards to the spare pair."""
    move_to_spare(scene, load, None)
    assert scene.names() == ["server2"]


def planned_to_spare(scene, shards):
    pair = scene.pairs["server2"]
    return Split.planned(
        scene.fleet,
        server="server1",
        shards=shards,
        target="server2",
        primary=address(pair.primary),
        standby=address(pair.standby),
        allowed_users=[system_user()],
        # The machine of the tests is shared.
        patience=30.0,
    )


def move_to_spare(scene, load, shards):
    with idle_client(scene, SHARDS - 1) as write:
        result = applied(scene, planned_to_spare(scene, shards))
        with pytest.raises(pymysql.err.OperationalError):
            write()
    assert result.pause is not None
    load.wait_for_acks(10, shards=range(SHARDS // 2, SHARDS))


@contextlib.contextmanager
def idle_client(scene, shard):
    """Connect to the home that a shard has now; write only when called.

    The server has cached the privileges of its default database.
    """
    url, name = scene.places()[shard]
    with connect_to(url, database=name) as connection:
        cursor = connection.cursor()
        cursor.execute("SELECT COUNT(*) FROM load_pins")
        connection.rollback()

        def write():
            token = f"idle{time.monotonic_ns()}"
            begin = time.monotonic()
            connection.begin()
            cursor.execute(
                f"INSERT INTO `{name}`.load_pins (token) VALUES (%s)", (token,)
            )
            local_id = cursor.lastrowid
            cursor.execute(
                f"INSERT INTO `{name}`.load_notes (token, pin_local) VALUES (%s, %s)",
                (token, local_id),
            )
            connection.commit()
            scene.attempts.append(
                Attempt(
                    token=token,
                    shard=shard,
                    t0=begin,
                    t1=time.monotonic(),
                    outcome="acked",
                    local_id=local_id,
                )
            )

        yield write


def change_orphans(scene, load):
    """Rename the databases that have moved, restore them, drop them."""

    def change(action, **options):
        plan = OrphanChange.planned(
            scene.fleet,
            server="server1",
            action=action,
            allowed_users=[system_user()],
            **options,
        )
        applied(scene, plan)

    assert len(orphans_of(scene.fleet, "server1")) == SHARDS // 2
    change("rename")
    change("restore")
    change("rename")
    change("drop", older_than=0.0)
    assert orphans_of(scene.fleet, "server1") == []


REPEATABLE = (
    fail_over,
    fail_over_from_dead,
    verify,
    back_up_and_restore,
    reopen,
    rebuild,
    replace_and_retire,
)


def under_load(scene, say, *operations):
    """Do operations one after another while applications write."""
    names = ", ".join(operation.__name__ for operation in operations)
    with scene.writing() as load:
        for operation in operations:
            operation(scene, load)
            load.wait_for_acks(ACKS)
    say(f"seed {scene.seed}, {names}: {scene.waited()}")
    scene.prove()


@pytest.mark.parametrize("operation", REPEATABLE, ids=lambda fn: fn.__name__)
def test_an_operation_loses_nothing(scene, operation, say):
    under_load(scene, say, operation)


@pytest.mark.parametrize(
    "operations",
    [(split, change_orphans, fail_over), (move,)],
    ids=lambda fns: fns[0].__name__,
)
def test_shards_that_move_lose_nothing(new_scene, operations, say):
    under_load(new_scene, say, *operations)


@pytest.mark.skipif(not SOAK, reason="needs SQLA_SHARD_SOAK=1")
# The last operation may begin when the time is nearly up.
@pytest.mark.timeout(2 * SECONDS)
def test_random_operations_lose_nothing(
    server_kind, zookeeper_server, seed, tmp_path, say
):
    end = time.monotonic() + SECONDS
    done = acknowledged = number = 0
    while time.monotonic() < end:
        number += 1
        folder = tmp_path / str(number)
        folder.mkdir()
        with FleetScene(
            folder,
            zookeeper_server,
            seed=f"{seed} {number}",
            writers=WRITERS,
            kind=server_kind,
        ) as scene:
            left = [split, change_orphans]
            for _ in range(8):
                if time.monotonic() > end:
                    break
                operation = scene.rng.choice([*REPEATABLE, *left[:1]])
                if operation in left:
                    left.remove(operation)
                under_load(scene, say, operation)
                done += 1
            acknowledged += sum(one.outcome in ACKNOWLEDGED for one in scene.attempts)
    say(f"seed {seed}: {done} operations, {acknowledged} acknowledged writes")
    assert done


# -- findings of the checks ------------------------------------------------


def without_fence(scene, load, monkeypatch):
    monkeypatch.setitem(runner.kinds(), "failover", Unfenced)
    old, _ = scene.roles("server1")
    plan = Failover.planned(scene.fleet, "server1")
    apply(scene.fleet, plan)
    # Later steps may have closed it.
    old.root_execute("SET GLOBAL read_only = 0")
    # Processes that do not follow the topology still use the old servers.
    scene.late.wait_for_acks(1)


def without_kill(scene, load, monkeypatch):
    """Leave a transaction that commits when the old home is open again."""
    monkeypatch.setattr(Fence, "kill_sessions", lambda self, seconds: [])
    shard = SHARDS // 2
    url, name = scene.places()[shard]
    begin = time.monotonic()
    with connect_to(url) as connection:
        cursor = connection.cursor()
        cursor.execute(f"INSERT INTO `{name}`.load_pins (token) VALUES ('open')")
        local_id = cursor.lastrowid
        cursor.execute(
            f"INSERT INTO `{name}`.load_notes (token, pin_local) VALUES ('open', %s)",
            (local_id,),
        )
        apply(scene.fleet, planned_to_spare(scene, HALF))
        connection.commit()
    scene.attempts.append(
        Attempt(
            token="open",
            shard=shard,
            t0=begin,
            t1=time.monotonic(),
            outcome="acked",
            local_id=local_id,
        )
    )


def without_kill_of_idle(scene, load, monkeypatch):
    monkeypatch.setattr(Fence, "kill_sessions", lambda self, seconds: [])
    with idle_client(scene, SHARDS - 1) as write:
        apply(scene.fleet, planned_to_spare(scene, HALF))
        write()


def after_a_timeout(scene, load, monkeypatch):
    old, new = scene.roles("server1")
    use_semi_sync(old, new, timeout=100)
    # A standby that is paused has some of it in the buffer of its socket.
    new.root_execute("STOP REPLICA IO_THREAD")
    load.wait_for_acks(ACKS, timeout=120)
    old.kill()
    new.root_execute("START REPLICA IO_THREAD")
    plan = DeadFailover.planned(scene.fleet, "server1", fenced=True)
    assert "unknown" in plan.costs[0]
    apply(scene.fleet, plan)


@pytest.mark.parametrize(
    "control",
    [without_fence, without_kill, without_kill_of_idle, after_a_timeout],
    ids=lambda fn: fn.__name__,
)
def test_losses_are_found(new_scene, control, monkeypatch, say):
    with new_scene.writing() as load:
        control(new_scene, load, monkeypatch)
        # A writer that looks for a row which is lost writes none.
        load.wait_for_acks(10)
    found = new_scene.problems()
    say(f"{control.__name__}: {len(found)} found, such as {found[:1]}")
    assert any("and lost" in problem for problem in found)
