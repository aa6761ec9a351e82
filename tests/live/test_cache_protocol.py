"""Readers and writers in processes that are killed, on nodes that fail.

The cache is asked for a few rows of a real server which change all the time.
No read may know less than a write that was acknowledged before it began.
The same is shown to find what get, set and delete do wrong.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from time import monotonic

import pytest

from sqla_shard.testing.database_server import DatabaseServer
from tests.servers import redis
from tests.servers.cache_checking import check
from tests.servers.cache_events import events_of
from tests.servers.memcached import grow_old, nodes
from tests.workers.cache_worker import Settings, TIMES

pytestmark = [pytest.mark.live, pytest.mark.usefixtures("memcached_installed")]

ROOT = Path(__file__).parents[2]
SOAK = os.environ.get("SQLA_SHARD_SOAK") == "1"
KEYS = ["row:1", "row:2", "row:3", "list:1", "list:2"]
TABLES = (
    "CREATE TABLE versions (id VARCHAR(20) PRIMARY KEY, version BIGINT)",
    "CREATE TABLE elements (id SERIAL, list VARCHAR(20), KEY (list))",
)


@pytest.fixture(scope="module")
def database(server_kind):
    options = ["--innodb-lock-wait-timeout=2"]
    with server_kind.server(fast=True, options=options) as server:
        with server.connect() as connection:
            connection.cursor().execute("CREATE DATABASE db_cache")
        yield server


@pytest.fixture(scope="module")
def servers(memcached_installed):
    with nodes(3) as servers:
        yield servers


@dataclass
class Scene:
    """Processes at work.

    :ivar seconds: that they work.
    """

    database: DatabaseServer
    servers: list
    path: Path
    rng: random.Random
    seconds: float

    grow_old = staticmethod(grow_old)

    @property
    def addresses(self):
        return [server.address for server in self.servers]

    def run(self, policy, *, faults=None, **settings):
        """Return what the checker finds."""
        self._empty()
        everybody = [
            self._settings(policy, role, number, **settings)
            for role in ("reader", "writer")
            for number in range(3)
        ]
        program = [sys.executable, "-m", "tests.workers.cache_worker"]
        process = subprocess.Popen(
            [*program, json.dumps(everybody)], cwd=ROOT, stdout=subprocess.PIPE
        )
        with process:
            until = float(process.stdout.readline())
            try:
                if faults is not None:
                    faults(until - 0.2)
                assert process.wait(self.seconds + 120) == 0
            finally:
                process.kill()
        return check(events_of(self.path.glob("*.log")))

    def _empty(self):
        for log in self.path.glob("*.log"):
            log.unlink()
        with self.database.connect(database="db_cache") as connection:
            cursor = connection.cursor()
            cursor.execute("DROP TABLE IF EXISTS versions, elements")
            for table in TABLES:
                cursor.execute(table)
            cursor.executemany(
                "INSERT INTO versions VALUES (%s, 1)", [(k,) for k in KEYS]
            )
            connection.commit()
        for server in self.servers:
            server.flush()
            self.grow_old(server)

    def _settings(self, policy, role, number, **settings):
        database = {
            "host": self.database.host,
            "port": self.database.port,
            "user": self.database.user,
            "password": self.database.password,
            "database": "db_cache",
            # Processes that live for a moment would spend it on loading the
            # authorities of the system.
            "ssl_disabled": True,
        }
        # Patient, unless nodes are to fail: the machine may be busy.
        some = {"delay": 0.002, "life": 0.0, "timeout": 10.0, "strict": False}
        one = Settings(
            policy=policy,
            role=role,
            seed=f"{self.rng.getrandbits(32)} {role} {number}",
            servers=self.addresses,
            keys=KEYS,
            seconds=self.seconds,
            log=str(self.path / f"{role}{number}.log"),
            database=database,
            **{**some, **settings},
        )
        return asdict(one)

    def faults(self, until):
        """Do things to nodes, one after the other."""
        pause = threading.Event()
        while monotonic() < until:
            pause.wait(self.rng.uniform(0.1, 1.0))
            server = self.rng.choice(self.servers)
            what = self.rng.choice(["kill", "restart", "flush", "pause"])
            getattr(server, what)()
            if what in ("kill", "pause"):
                pause.wait(self.rng.uniform(0.05, 0.6))
            if what == "kill":
                server.start()
            elif what == "pause":
                server.resume()


class SceneOnRedis(Scene):
    """The same on one server, which also comes back with old values."""

    grow_old = staticmethod(redis.grow_old)

    @property
    def addresses(self):
        return [f"redis://{server.address}" for server in self.servers]

    def faults(self, until):
        """Fail, and be up for long enough in between to give leases."""
        [server] = self.servers
        pause = threading.Event()
        while monotonic() < until:
            what = self.rng.choice(["old", "kill", "restart", "flush"])
            if what == "old":
                server.save()
            elif what != "kill":
                getattr(server, what)()
            # Leases are given, and values are put there.
            pause.wait(TIMES.tombstone + self.rng.uniform(1, 3))
            for _ in range(self.rng.randrange(3)):
                server.pause()
                pause.wait(self.rng.uniform(0.02, 0.6))
                server.resume()
                pause.wait(self.rng.uniform(0.1, 1))
            if what in ("old", "kill"):
                server.kill()
                pause.wait(self.rng.uniform(0, 0.5))
                server.start()


@pytest.fixture
def scene(database, servers, tmp_path, rng):
    return Scene(database, servers, tmp_path, rng, 600 if SOAK else 3)


@pytest.fixture
def scene_on_redis(database, redis_installed, tmp_path, rng):
    with redis.old_server() as server:
        seconds = 600 if SOAK else 3
        yield SceneOnRedis(database, [server], tmp_path, rng, seconds)


def nothing_stale(scene, say, *kinds, **settings):
    """Run until enough was done for a meaningful check.

    :returns: the keys of which nothing was promised in the end.
    """
    counts = Counter()
    exempt = set()
    for _ in range(5):
        report = scene.run("protocol", **settings)
        say(f"cache: {dict(report.counts)}")
        assert report.stale == []
        # Of all runs: a machine that is busy does little in each of them.
        counts += report.counts
        exempt |= report.exempt
        if all(counts[kind] > 20 for kind in kinds):
            return exempt
        # Most of the time of a short run goes into starting processes.
        scene.seconds *= 2
    pytest.fail(f"the machine is too slow: {dict(counts)}")


def test_nothing_is_stale(scene, say):
    assert nothing_stale(scene, say, "cached", "write", "add") == set()


def test_nothing_is_stale_when_processes_are_killed(scene, say):
    kinds = ("read", "write", "add")
    assert nothing_stale(scene, say, *kinds, life=0.4) == set()


@pytest.mark.parametrize("strict", [True, False])
def test_nothing_is_stale_when_nodes_fail(scene, say, strict):
    exempt = nothing_stale(
        *(scene, say, "read", "write", "add"),
        life=1.0,
        timeout=0.05,
        strict=strict,
        faults=scene.faults,
    )
    if strict:
        assert exempt == set()


def test_nothing_is_stale_on_redis(scene_on_redis, say):
    kinds = ("cached", "read", "write", "add")
    assert nothing_stale(scene_on_redis, say, *kinds, life=0.4) == set()


def test_nothing_is_stale_when_redis_fails(scene_on_redis, say):
    scene_on_redis.seconds = max(scene_on_redis.seconds, 20)
    nothing_stale(
        *(scene_on_redis, say, "cached", "read", "write", "add"),
        life=1.0,
        timeout=0.05,
        strict=True,
        faults=scene_on_redis.faults,
    )


@pytest.mark.parametrize("policy", ["plain", "dogpile"])
def test_the_same_finds_what_others_do_wrong(scene, policy, say):
    scene.seconds = 1
    for _ in range(6):
        report = scene.run(policy, delay=0.005)
        if report.stale:
            break
        # The machine is busy, or there was luck.
        scene.seconds *= 2
    say(f"{policy}: {len(report.stale)} stale of {dict(report.counts)}")
    assert report.stale
