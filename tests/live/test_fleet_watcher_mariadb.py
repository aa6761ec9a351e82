"""Watchers promote a standby, and do nothing when in doubt."""

from __future__ import annotations

import contextlib
import json
import os
import random
import time
from dataclasses import replace

import pymysql
import pytest

pytest.importorskip("kazoo")

from sqla_shard.fleet import apply
from sqla_shard.fleet import Fleet
from sqla_shard.fleet.failover import Failover
from sqla_shard.fleet.watcher import WatchPolicy
from sqla_shard.testing import Proxy
from sqla_shard.testing.local_server import wait_until
from sqla_shard.topology import Topology
from sqla_shard.topology.urls import address_of
from sqla_shard.topology.zookeeper import Publisher
from sqla_shard.topology.zookeeper.store import ZooKeeperStore
from tests.servers.fleet_load import create
from tests.servers.fleet_load import roles
from tests.servers.fleet_load import SHARDS
from tests.servers.fleet_pairs import FleetPairs
from tests.servers.fleet_semi_sync import SEMI_SYNC_OPTIONS
from tests.servers.fleet_semi_sync import use_semi_sync
from tests.servers.fleet_watching import FleetByProxy
from tests.servers.fleet_watching import watch_until
from tests.servers.fleet_watching import Watching

pytestmark = [
    pytest.mark.live,
    pytest.mark.thorough,
    pytest.mark.usefixtures("mariadb_installed", "zookeeper_installed"),
]

SOAK = os.environ.get("SQLA_SHARD_SOAK") == "1"
POLICY = WatchPolicy(dead_after=1.0, every=0.1, patience=2.0)
LONG = 60.0


class Scene:
    """A pair with semi-sync, whose topology is in ZooKeeper."""

    def __init__(self, pairs, location):
        self.pairs = pairs
        self.location = location
        self.primary, self.standby = roles(pairs)

    def fleet(self, kind=Fleet):
        return kind(
            self.location, accounts=self.pairs.accounts, session_timeout=2.0
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


def without_password(pairs):
    """Return the first topology, with a placeholder for the password."""
    text = json.dumps(pairs.document())
    password = pairs["server1"].primary.password
    text = text.replace(password, "${MYSQL_PASSWORD}")
    return Topology.from_mapping(
        json.loads(text), environ={"MYSQL_PASSWORD": ""}
    )


@contextlib.contextmanager
def scene_in(folder, hosts):
    with FleetPairs(
        folder, pairs=1, shards=SHARDS, options=SEMI_SYNC_OPTIONS
    ) as pairs:
        primary, standby = roles(pairs)
        primary.root_execute("SET GLOBAL read_only = 0")
        create(pairs)
        use_semi_sync(primary, standby)
        location = f"zookeeper://{hosts}/{folder.name}"
        with Publisher(location) as publisher:
            publisher.publish(without_password(pairs))
        yield Scene(pairs, location)


@pytest.fixture
def scene(zookeeper_server, tmp_path):
    with scene_in(tmp_path, zookeeper_server.hosts) as scene:
        yield scene


@contextlib.contextmanager
def three(scene, policy=POLICY, fleets=None):
    with contextlib.ExitStack() as stack:
        watching = [
            stack.enter_context(Watching(fleet, policy))
            for fleet in fleets or [scene.fleet() for _ in range(3)]
        ]
        assert wait_until(
            lambda: all(one.reports for one in watching), seconds=LONG
        )
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


def test_a_lost_primary_is_replaced(scene, say):
    with three(scene) as watching:
        looks(watching, 2)
        assert sum(one.reports[-1].is_leader for one in watching) == 1
        scene.primary.kill()
        begin = time.monotonic()
        assert wait_until(
            lambda: scene.can_write(scene.standby), seconds=LONG, every=0.01
        )
        seconds = time.monotonic() - begin
        assert wait_until(
            lambda: any(one.said("lost writes: none") for one in watching),
            seconds=LONG,
        )
        assert scene.primary_now() is scene.standby
        # The old one returns, and takes no write.
        scene.primary.start()
        looks(watching, 2)
        assert not scene.can_write(scene.primary)
    say(
        f"from kill to writes {seconds:.2f} s, of which "
        f"{POLICY.dead_after:g} s are the threshold"
    )


def test_nothing_is_done_in_doubt(scene, zookeeper_server, say):
    primary = scene.primary
    with Proxy(primary.host, primary.port) as proxy:
        apart = scene.fleet(FleetByProxy)
        apart.ports = {primary.port: proxy.port}
        fleets = [apart, scene.fleet(), scene.fleet()]
        with three(scene, fleets=fleets) as watching:
            looks(watching, 2)
            # One of three does not see the primary; it may lead.
            proxy.hang()
            proxy.cut()
            begin = time.monotonic()
            assert wait_until(
                lambda: time.monotonic() > begin + 3 * POLICY.dead_after,
                seconds=LONG,
            )
            looks(watching, 2)
            assert scene.primary_now() is primary
            assert scene.can_write(primary)
            proxy.restore()
            # Without ZooKeeper even a primary that is lost is not replaced.
            zookeeper_server.pause()
            try:
                scene.primary.kill()
                assert wait_until(
                    lambda: all(
                        one.said("nothing is done without ZooKeeper")
                        for one in watching
                    ),
                    seconds=LONG,
                )
                assert scene.standby.root_execute("SELECT @@read_only") == [
                    (1,)
                ]
            finally:
                zookeeper_server.resume()
            assert wait_until(
                lambda: scene.can_write(scene.standby), seconds=LONG
            )


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
        # They have never seen it, so what is lost is unknown.
        assert wait_until(
            lambda: any(one.said("an operator may") for one in watching),
            seconds=LONG,
        )
    with three(scene, replace(dry, allow_loss=True)) as watching:
        assert wait_until(
            lambda: any(one.said("dry run of") for one in watching),
            seconds=LONG,
        )
    assert scene.primary.root_execute("SELECT @@read_only") == [(1,)]


def test_a_leader_that_dies_is_replaced(scene, request, say):
    seed = request.config.getoption("hypothesis_seed")
    step = random.Random(seed).choice(["drain", "stop", "publish"])
    say(f"seed {seed}: the leader dies after {step}")
    process = watch_until(scene.location, scene.pairs.accounts, POLICY, step)
    try:
        hosts = scene.location.removeprefix("zookeeper://")
        with contextlib.closing(ZooKeeperStore(hosts)) as store:
            assert wait_until(
                lambda: store.read("/fleet/watch/leader") is not None,
                seconds=LONG,
            )
        with contextlib.ExitStack() as stack:
            watching = [
                stack.enter_context(Watching(scene.fleet(), POLICY))
                for _ in range(2)
            ]
            looks(watching, 3)
            scene.primary.kill()
            assert wait_until(
                lambda: scene.can_write(scene.standby), seconds=LONG
            )
            assert wait_until(
                lambda: any(
                    one.said("another watcher had started it")
                    for one in watching
                ),
                seconds=LONG,
            )
        process.join(LONG)
        assert process.exitcode == -9
    finally:
        process.kill()
        process.join()
    assert scene.primary_now() is scene.standby
    assert scene.fleet().journal.pending() is None
