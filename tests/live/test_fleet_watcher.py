"""Watchers promote a standby, and do nothing when in doubt."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import threading
import time
from dataclasses import replace
from functools import partial

import pymysql
import pytest

pytest.importorskip("kazoo")

from examples.fleet import options_of
from sqla_shard.exc import OperationRefusedError, TopologyUnavailableError
from sqla_shard.fleet import apply, Fleet, status
from sqla_shard.fleet.dead_failover import DeadFailover
from sqla_shard.fleet.failover import Failover
from sqla_shard.fleet.watcher import SESSION, WatchPolicy
from sqla_shard.testing import Proxy, ZooKeeperEnsemble
from sqla_shard.testing.local_server import wait_until
from sqla_shard.topology import Topology
from sqla_shard.topology.urls import address_of
from sqla_shard.topology.zookeeper import Publisher
from sqla_shard.topology.zookeeper.publications import TOPOLOGY
from sqla_shard.topology.zookeeper.store import Create, Replace, ZooKeeperStore
from tests.servers.fleet_load import create, roles, SHARDS
from tests.servers.fleet_pairs import FleetPairs
from tests.servers.fleet_semi_sync import use_semi_sync
from tests.servers.fleet_watching import FleetByProxy, watch_until, Watching
from tests.servers.server_statements import semi_sync_options, words

pytestmark = [
    pytest.mark.live,
    pytest.mark.thorough,
    pytest.mark.usefixtures("zookeeper_installed"),
]

SOAK = os.environ.get("SQLA_SHARD_SOAK") == "1"
POLICY = WatchPolicy(dead_after=1.0, every=0.25, patience=2.0)
LONG = 60.0
#: Seconds without ZooKeeper; sessions of the tests end after 2 s.
AWAY = 60.0 if SOAK else 6.0
ROUNDS = 10 if SOAK else 1
STEPS = (
    *("record", "drain", "stop", "raise-ids", "publish", "open"),
    *("enable-events", "verify"),
)
OPEN, CLOSED = [(0,)], [(1,)]


class Scene:
    """A pair with semi-sync, whose topology is in ZooKeeper."""

    def __init__(self, pairs, location, session=2.0):
        self.pairs = pairs
        self.location = location
        self.session = session
        self.primary, self.standby = roles(pairs)

    def fleet(self, kind=Fleet):
        return kind(
            self.location, accounts=self.pairs.accounts, session_timeout=self.session
        )

    def primary_now(self):
        topology = self.fleet().topology()
        (server,) = topology.keyspaces["objects"].servers
        address = address_of(server.primary)
        (found,) = [
            one
            for one in self.pairs.servers
            if str(address) == f"{one.host}:{one.port}"
        ]
        return found

    def store(self):
        hosts = self.location.removeprefix("zookeeper://")
        return contextlib.closing(ZooKeeperStore(hosts))

    def can_write(self, server):
        try:
            with server.connect() as connection:
                connection.cursor().execute(
                    "INSERT INTO db00000.load_pins (token) VALUES ('again')"
                )
                connection.commit()
        except pymysql.err.MySQLError:
            return False
        return True

    def is_replaced(self):
        """Wait until the standby takes writes."""
        # Each look is a new connection.
        return wait_until(lambda: self.can_write(self.standby), seconds=LONG, every=0.1)


def without_password(pairs):
    """Return the first topology, with a placeholder for the password."""
    text = json.dumps(pairs.document())
    password = pairs["server1"].primary.password
    text = text.replace(password, "${MYSQL_PASSWORD}")
    return Topology.from_mapping(json.loads(text), environ={"MYSQL_PASSWORD": ""})


@contextlib.contextmanager
def scene_in(folder, hosts, kind, *, documented=False):
    """Yield a scene, if wanted with the configuration of the documentation."""
    options = semi_sync_options(kind)
    if documented:
        # The plugins are loaded already.
        found = options_of(kind.name)
        options = [one for one in found if not one.startswith("--plugin")]
    with FleetPairs(
        folder, pairs=1, shards=SHARDS, pair=kind.pair, options=options
    ) as pairs:
        primary, standby = roles(pairs)
        primary.root_execute("SET GLOBAL read_only = 0")
        create(pairs)
        use_semi_sync(primary, standby, timeout=None if documented else 60_000)
        location = f"zookeeper://{hosts}/{kind.name}/{folder.name}"
        with Publisher(location) as publisher:
            publisher.publish(without_password(pairs))
        yield Scene(pairs, location, SESSION if documented else 2.0)


class Writing:
    """Writes on a primary, one row after another, until it or the block ends.

    :ivar acknowledged: the tokens whose COMMIT had succeeded.
    """

    def __init__(self, server):
        self.acknowledged = []
        self._server = server
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._write)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *exc_info):
        self._end.set()
        self._thread.join()

    def has(self, count):
        """Wait until that many were acknowledged."""
        return wait_until(lambda: len(self.acknowledged) >= count, seconds=LONG)

    def missing(self, server):
        """Return the acknowledged tokens that a server has not."""
        rows = server.root_execute("SELECT token FROM db00000.load_pins")
        return set(self.acknowledged) - {token for (token,) in rows}

    def _write(self):
        insert = "INSERT INTO db00000.load_pins (token) VALUES (%s)"
        with (
            contextlib.suppress(pymysql.err.MySQLError),
            self._server.connect(autocommit=True, read_timeout=LONG) as connection,
        ):
            cursor = connection.cursor()
            for number in itertools.count():
                if self._end.is_set():
                    return
                cursor.execute(insert, (f"token {number}",))
                self.acknowledged.append(f"token {number}")


@pytest.fixture(scope="module")
def ensemble(zookeeper_installed):
    with ZooKeeperEnsemble(servers=3) as ensemble:
        yield ensemble


@pytest.fixture
def scene(ensemble, server_kind, tmp_path):
    with scene_in(tmp_path, ensemble.hosts, server_kind) as scene:
        yield scene


@contextlib.contextmanager
def three(scene, policy=POLICY, fleets=None):
    with contextlib.ExitStack() as stack:
        watching = [
            stack.enter_context(Watching(fleet, policy))
            for fleet in fleets or [scene.fleet() for _ in range(3)]
        ]
        assert wait_until(lambda: all(one.reports for one in watching), seconds=LONG)
        yield watching


def looks(watching, count):
    """Wait until each watcher has looked that often again."""
    before = [len(one.reports) for one in watching]
    assert wait_until(
        lambda: all(
            len(one.reports) >= number + count
            for one, number in zip(watching, before, strict=True)
        ),
        seconds=LONG,
    )


def passes(seconds):
    """Wait, as machines do that do nothing."""
    end = time.monotonic() + seconds
    assert wait_until(lambda: time.monotonic() > end, seconds=seconds + LONG)


def read_only(server):
    return server.root_execute("SELECT @@read_only")


@pytest.mark.parametrize("policy", [POLICY, WatchPolicy()], ids=["quick", "default"])
def test_a_lost_primary_is_replaced(scene, policy, say):
    fleet = scene.fleet()
    plan = DeadFailover.planned(fleet, "server1", is_automatic=True)
    # Nothing was done, which holds nothing off.
    with pytest.raises(OperationRefusedError, match="it is not lost"):
        apply(fleet, plan)
    with three(scene, policy) as watching:
        looks(watching, 2)
        assert sum(one.reports[-1].is_leader for one in watching) == 1
        address = f"{scene.primary.host}:{scene.primary.port}"
        found = status(scene.fleet())
        assert f"primary {address}: 3 of 3 watchers see it" in str(found)
        watchers = found.as_dict()["watchers"]
        assert watchers["leader"] in watchers["votes"]
        assert [vote[address]["lost_for"] for vote in watchers["votes"].values()] == [
            None,
            None,
            None,
        ]
        scene.primary.kill()
        begin = time.monotonic()
        assert scene.is_replaced()
        seconds = time.monotonic() - begin
        assert seconds < LONG / 2
        assert wait_until(
            lambda: any(one.said("lost writes: none") for one in watching), seconds=LONG
        )
        assert scene.primary_now() is scene.standby
        # The old one returns, and takes no write.
        scene.primary.start()
        looks(watching, 2)
        assert not scene.can_write(scene.primary)
        # One that was only unreachable comes back open.
        with scene.primary.connect() as session:
            scene.primary.root_execute("SET GLOBAL read_only = 0")
            assert wait_until(
                lambda: any(
                    one.said("it may have writes of its own") for one in watching
                ),
                seconds=LONG,
            )
            assert not scene.can_write(scene.primary)
            with pytest.raises(pymysql.err.MySQLError):
                session.ping(reconnect=False)
    say(
        f"from kill to writes {seconds:.2f} s, of which "
        f"{policy.dead_after:g} s are the threshold"
    )


def test_a_silent_primary_is_replaced(ensemble, server_kind, tmp_path, say):
    """As documented: neither its machine nor the network closes connections."""
    for number in range(ROUNDS):
        folder = tmp_path / f"silent-{number}"
        folder.mkdir()
        with scene_in(folder, ensemble.hosts, server_kind, documented=True) as scene:
            with three(scene, WatchPolicy()) as watching:
                looks(watching, 2)
                with Writing(scene.primary) as writing:
                    assert writing.has(50)
                    scene.primary.pause()
                    begin = time.monotonic()
                    replaced = scene.is_replaced()
                    seconds = time.monotonic() - begin
                    scene.primary.kill()
                assert replaced, [one.reports[-1] for one in watching]
            assert scene.primary_now() is scene.standby
            assert writing.missing(scene.standby) == set()
            ((record,)) = scene.fleet().journal.history()
            loss = record.notes["verify"]["loss"]
            assert loss.startswith("none")
        say(f"from silence to writes {seconds:.1f} s; lost: {loss}")


@contextlib.contextmanager
def behind_proxies(scene):
    """Yield three fleets, and the proxies by which they see the primary."""
    port = scene.primary.port
    with contextlib.ExitStack() as stack:
        proxies = [
            stack.enter_context(Proxy(scene.primary.host, port)) for _ in range(3)
        ]
        fleets = []
        for proxy in proxies:
            fleet = scene.fleet(FleetByProxy)
            fleet.ports = {port: proxy.port}
            fleets.append(fleet)
        yield fleets, proxies


def test_partitioned_watchers_do_nothing(scene):
    with (
        behind_proxies(scene) as (fleets, proxies),
        three(scene, fleets=fleets) as watching,
    ):
        looks(watching, 2)
        # The leader first: the others do not act.
        order = sorted(
            range(3), key=lambda one: not watching[one].reports[-1].is_leader
        )
        for count, number in enumerate(order, 1):
            proxies[number].hang()
            proxies[number].cut()
            passes(3 * POLICY.dead_after)
            looks(watching, 2)
            leader = watching[order[0]]
            if count < 3:
                part = f"{3 - count} of 3 watchers still see it"
            else:
                # Its standby sees it.
                part = "it is still connected to the primary"
            assert wait_until(lambda: leader.said(part), seconds=LONG)  # noqa: B023  # called here
            assert scene.primary_now() is scene.primary
            assert scene.can_write(scene.primary)
            assert read_only(scene.standby) == CLOSED
        for proxy in proxies:
            proxy.restore()
        before = [len(one.reports) for one in watching]
        assert wait_until(
            lambda: all(
                one.reports[number:] and one.reports[-1].ok
                for one, number in zip(watching, before, strict=True)
            ),
            seconds=LONG,
        )
    assert scene.fleet().journal.history() == []


def test_nothing_is_done_without_zookeeper(scene, ensemble):
    # The lost transactions would be unknown when ZooKeeper is back.
    source, _ = words(scene.primary).SEMI_SYNC
    scene.primary.root_execute(f"SET GLOBAL {source}_timeout = 600000")
    with three(scene) as watching:
        looks(watching, 2)
        for server in ensemble.servers[:2]:
            server.pause()
        try:
            scene.primary.kill()
            assert wait_until(
                lambda: all(
                    one.said("nothing is done without ZooKeeper") for one in watching
                ),
                seconds=LONG,
            )
            passes(AWAY)
            looks(watching, 1)
            assert read_only(scene.standby) == CLOSED
            assert scene.standby.root_execute("SHOW REPLICA STATUS")
        finally:
            # After a pause ZooKeeper 3.8.0 may commit nothing more.
            for server in ensemble.servers:
                server.kill()
            ensemble.start()
        assert scene.is_replaced(), (
            [str(server.mode) for server in ensemble.servers],
            [one.reports[-1] for one in watching],
        )
        assert wait_until(
            lambda: any(one.said("lost writes: none") for one in watching), seconds=LONG
        )
    assert scene.primary_now() is scene.standby


def test_a_standby_that_can_be_written_is_closed(scene):
    primary, standby = scene.primary, scene.standby
    with three(scene) as watching:
        looks(watching, 2)
        standby.root_execute("SET GLOBAL read_only = 0")
        assert wait_until(
            lambda: any(one.said("two servers could be written") for one in watching),
            seconds=LONG,
        )
        assert read_only(standby) == CLOSED
        assert scene.can_write(primary)
    (record,) = scene.fleet().journal.history()
    assert (record.plan["kind"], record.state) == ("close-standby", "finished")
    standby.root_execute("SET GLOBAL read_only = 0")
    with three(scene, replace(POLICY, dry_run=True)) as watching:
        assert wait_until(
            lambda: any(one.said("dry run: nothing is closed") for one in watching),
            seconds=LONG,
        )
        looks(watching, 2)
        assert read_only(standby) == OPEN
    # It may be what applications use.
    primary.root_execute("SET GLOBAL read_only = 1")
    with three(scene) as watching:
        looks(watching, 3)
        assert all(one.said("is the standby and can be written") for one in watching)
        assert all(one.said("fleet reopen server1") for one in watching)
    assert read_only(standby) == OPEN
    assert len(scene.fleet().journal.history()) == 1


def test_votes_that_are_not_valid_do_not_count(scene):
    lost = {"lost_for": 100.0, "seen_ago": 100.0}
    address = f"{scene.primary.host}:{scene.primary.port}"
    votes = {
        "nested": b"[" * 100_000,
        "older": json.dumps({address: lost}).encode(),
        "large": b" " * 600_000,
    }
    with scene.store() as store:
        folder = "/fleet/watch/votes"
        store.prepare(folder, like=TOPOLOGY)
        for name, data in votes.items():
            assert store.commit(Create(f"{folder}/{name}", data)) is not None

        # As watchers do; without pauses ZooKeeper does nothing else.
        renewing = partial(wait_until, seconds=LONG, every=0.5)

        def renewed():
            try:
                for name, data in votes.items():
                    path = f"{folder}/{name}"
                    node = store.read(path)
                    assert store.commit(Replace(path, data, node.version))
            except TopologyUnavailableError:
                # The connection was lost; the client connects again.
                return False
            return True

        with Watching(scene.fleet(), POLICY) as one:
            assert renewing(
                lambda: (
                    renewed() and all(one.said(f"watcher '{name}'") for name in votes)
                )
            )
            scene.primary.kill()
            assert renewing(lambda: renewed() and one.said("1 of 3 watchers have not"))
            found = str(status(scene.fleet()))
            assert "0 of 1 watchers see it" in found
            assert all(f"watcher {name}: its vote" in found for name in votes)
            before = len(one.reports)
            assert renewing(lambda: renewed() and len(one.reports) > before + 3)
            assert read_only(scene.standby) == CLOSED
            with Watching(scene.fleet(), POLICY):
                assert scene.is_replaced()


def test_a_second_failover_is_held_off(scene):
    fleet = scene.fleet()
    assert apply(fleet, Failover.planned(fleet, "server1")).epoch == 2
    with three(scene) as watching:
        looks(watching, 2)
        scene.standby.kill()
        assert wait_until(
            lambda: any(one.said("the next is held off") for one in watching),
            seconds=LONG,
        )
    dry = replace(POLICY, dry_run=True, hold_off=0.0)
    with three(scene, dry) as watching:
        # They have never seen it, so the loss is unknown.
        assert wait_until(
            lambda: any(
                one.said("sqla-shard fleet failover server1 --dead") for one in watching
            ),
            seconds=LONG,
        )
    with three(scene, replace(dry, allow_loss=True)) as watching:
        assert wait_until(
            lambda: any(one.said("dry run of") for one in watching), seconds=LONG
        )
    assert scene.primary.root_execute("SELECT @@read_only") == [(1,)]


def test_a_standby_that_did_not_acknowledge_is_not_promoted(scene):
    _, replica = words(scene.standby).SEMI_SYNC
    scene.standby.root_execute(f"SET GLOBAL {replica}_enabled = 0")
    with three(scene) as watching:
        looks(watching, 2)
        scene.primary.kill()
        assert wait_until(
            lambda: any(
                one.said("unknown: the standby did not acknowledge") for one in watching
            ),
            seconds=LONG,
        )
        looks(watching, 2)
    assert scene.standby.root_execute("SELECT @@read_only") == [(1,)]
    assert scene.primary_now() is scene.primary


def test_a_leader_that_dies_is_replaced(ensemble, server_kind, tmp_path, request, say):
    seed = request.config.getoption("hypothesis_seed")
    steps = STEPS if SOAK else (random.Random(seed).choice(STEPS),)
    say(f"seed {seed}: the leader dies after {', '.join(steps)}")
    for number, step in enumerate(steps):
        folder = tmp_path / f"leader-{number}"
        folder.mkdir()
        with scene_in(folder, ensemble.hosts, server_kind, documented=True) as scene:
            seconds = lose_leader(scene, step)
            say(f"{step}: from kill to writes {seconds:.1f} s")
            assert scene.primary_now() is scene.standby
            assert scene.fleet().journal.pending() is None
            # The old one returns, and takes no write.
            scene.primary.start()
            assert not scene.can_write(scene.primary)
            assert scene.can_write(scene.standby)


def lose_leader(scene, step):
    """Kill a primary, and the leader when it has done a step.

    :return: seconds until the standby could be written.
    """
    policy = WatchPolicy()
    process = watch_until(
        scene.location, scene.pairs.accounts, policy, step, scene.session
    )
    try:
        with scene.store() as store:
            assert wait_until(
                lambda: store.read("/fleet/watch/leader") is not None, seconds=LONG
            )
        with contextlib.ExitStack() as stack:
            watching = [
                stack.enter_context(Watching(scene.fleet(), policy)) for _ in range(2)
            ]
            looks(watching, 3)
            with Writing(scene.primary) as writing:
                assert writing.has(50)
                scene.primary.kill()
                begin = time.monotonic()
            replaced = scene.is_replaced()
            seconds = time.monotonic() - begin
            assert replaced, [one.reports[-1] for one in watching]
            assert wait_until(
                lambda: any(
                    one.said("another watcher had started it") for one in watching
                ),
                seconds=LONG,
            )
            assert writing.missing(scene.standby) == set()
        process.join(LONG)
        assert process.exitcode == -9
        return seconds
    finally:
        process.kill()
        process.join()
