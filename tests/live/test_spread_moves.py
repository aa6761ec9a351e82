"""Lists that get more pieces, with writers, readers and killed commands."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from random import Random
from time import monotonic
from typing import Any

import pytest
from sqlalchemy import select

from sqla_shard import Cluster, pack
from sqla_shard.models.list_positions import MOST_PIECES
from sqla_shard.upkeep import verify_relations
from tests.models.spread_stages import MODELS, SHARDS, stage
from tests.servers.command_line import COMMAND, environment, ROOT, write

pytestmark = pytest.mark.live

SOAK = os.environ.get("SQLA_SHARD_SOAK") == "1"
KILLS = 15 if SOAK else 2
WRITERS = 4
#: Rows of each list that no writer changes.
FIXED = 600 if SOAK else 90
#: Targets of each writer.
OWN = 10
BATCH = 10
PATIENCE = 120.0


@pytest.fixture
def topology(fleet: Any, tmp_path: Path) -> Iterator[Path]:
    document = fleet.topology_mapping(shards=SHARDS, database="db_spread_{shard:05d}")
    fleet.drop_databases(document)
    yield write(tmp_path, document)
    fleet.drop_databases(document)


@pytest.fixture
def cluster(topology: Path) -> Iterator[Cluster]:
    options = {"engine_options": {"pool_size": 20}}
    with Cluster.from_file(topology, **options) as cluster:
        cluster.create_all(stage(2, 0).base.metadata)
        yield cluster


class Application:
    """Writers and a reader, whose code is replaced step by step."""

    def __init__(self, cluster: Cluster, rng: Random) -> None:
        self.cluster = cluster
        self.stages = [stage(2, number).fans for number in range(4)]
        self.owners = [self._user(number) for number in range(2)]
        self.fixed = [_target(10**6 + n) for n in range(FIXED)]
        for owner in self.owners:
            self.cluster.run(
                self.stages[0].append_many, owner, self.fixed, cross_shard="ordered"
            )
        self._seeds = [rng.random() for _ in range(WRITERS + 1)]
        #: The stage of each writer, and of the reader.
        self.deployed = [0] * (WRITERS + 1)
        #: The lists of each writer, as acknowledged.
        self.expected: list[dict[int, set[int]]] = [
            {owner: set() for owner in self.owners} for _ in range(WRITERS)
        ]
        self._rounds = [0] * (WRITERS + 1)
        self._changed = threading.Condition()
        self._stop = threading.Event()
        self.errors: list[BaseException] = []
        self._threads = [
            threading.Thread(target=self._run, args=(number,))
            for number in range(WRITERS + 1)
        ]

    def _user(self, shard_id: int) -> int:
        with self.cluster.begin(shard_id=shard_id) as session:
            user = stage(2, 0).user()
            session.add(user)
            session.flush()
            return int(user.id)

    def __enter__(self) -> Application:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: Any) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def deploy(self, number: int, stage_number: int) -> None:
        """Replace the code of a thread, which then completes a round."""
        with self._changed:
            self.deployed[number] = stage_number
            # The round that runs may still have the code before.
            wanted = self._rounds[number] + 2
            done = self._changed.wait_for(
                lambda: self._rounds[number] >= wanted or bool(self.errors), PATIENCE
            )
        assert not self.errors, self.errors
        assert done

    def deploy_everywhere(self, stage_number: int) -> None:
        """Replace the code of one thread after another, the reader first."""
        for number in range(WRITERS, -1, -1):
            self.deploy(number, stage_number)

    def _run(self, number: int) -> None:
        rng = Random(self._seeds[number])
        try:
            while not self._stop.is_set():
                fans = self.stages[self.deployed[number]]
                if number == WRITERS:
                    self._read(fans, rng)
                else:
                    self._write(fans, rng, number)
                with self._changed:
                    self._rounds[number] += 1
                    self._changed.notify_all()
        except BaseException as error:
            with self._changed:
                self.errors.append(error)
                self._changed.notify_all()

    def _write(self, fans: Any, rng: Random, number: int) -> None:
        owner = rng.choice(self.owners)
        fan = _target(10**7 + number * 1000 + rng.randrange(OWN))
        mine = self.expected[number][owner]
        change = fans.remove if fan in mine else fans.append
        if rng.random() < 0.2:
            # An append of a member, or a removal of a non-member.
            change = fans.append if fan in mine else fans.remove
            assert not self.cluster.run(change, owner, fan, timeout=PATIENCE)
            return
        assert self.cluster.run(change, owner, fan, timeout=PATIENCE)
        mine ^= {fan}

    def _read(self, fans: Any, rng: Random) -> None:
        owner = rng.choice(self.owners)
        newest = rng.random() < 0.5
        with self.cluster.session() as session:
            # The snapshot of one server is older than those of the others.
            fan = rng.choice(self.fixed)
            assert fans.position(session, owner, fan) is not None
            rows = fans.iterate(session, owner, newest_first=newest, batch=25)
            found = [row.fan_id for row in rows]
            assert len(found) == len(set(found))
            assert set(self.fixed) <= set(found)
            some = rng.sample(self.fixed, 25)
            assert fans.contains(session, owner, some) == set(some)
            number = fans.count(session, owner)
        # A batch may be between its two COMMITs.
        assert FIXED - BATCH <= number <= FIXED + WRITERS * OWN + BATCH

    def check(self) -> None:
        """Compare the lists with the acknowledged changes."""
        last = self.stages[3]
        for owner in self.owners:
            whole = set(self.fixed)
            for own in self.expected:
                whole |= own[owner]
            with self.cluster.begin(cross_shard="ordered") as session:
                rows = last.iterate(session, owner, batch=100)
                found = [row.fan_id for row in rows]
                assert len(found) == len(whole)
                assert set(found) == whole
                assert last.contains(session, owner, found) == whole
                assert last.count(session, owner) == len(whole)
                assert last.recount(session, owner) == len(whole)
        report = verify_relations(self.cluster, [last], grace=0.0)
        assert report.found("misplaced") == report.found("miscounted") == 0


def _target(number: int) -> int:
    return pack(number % SHARDS, 1, number)


def in_new_pieces(cluster: Cluster, fans: Any) -> int:
    """Return the number of rows in pieces that did not exist before."""
    table = fans.__sqla_shard_mapping__.counts
    statement = select(table.c.number).where(
        table.c.slot >= 2, table.c.slot < MOST_PIECES
    )
    with cluster.session() as session:
        keyspace = session.places.keyspace(None, "objects")
        places = session.places.several(keyspace, range(SHARDS))
        at = {"places": places}
        return sum(session.scalars(statement, bind_arguments=at))


def move(topology: Path, *options: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*COMMAND, *("-t", str(topology), "spread", *MODELS, *options)],
        cwd=ROOT,
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )


def kill_after(
    process: subprocess.Popen[bytes], cluster: Cluster, fans: Any, rows: int
) -> None:
    """Kill a command when some rows have been copied."""
    deadline = monotonic() + PATIENCE
    while process.poll() is None and in_new_pieces(cluster, fans) < rows:
        assert monotonic() < deadline
        threading.Event().wait(0.005)
    process.kill()
    process.communicate()


def test_writers_readers_and_killed_commands(cluster, topology, rng):
    with Application(cluster, rng) as application:
        moving = application.stages[2]
        application.deploy_everywhere(1)
        application.deploy_everywhere(2)
        pause = ("--batch", str(BATCH), "--grace", "1")
        for number in range(KILLS):
            # Few of those that remain, so that each run has some.
            most = FIXED // KILLS
            rows = in_new_pieces(cluster, moving) + rng.randrange(1, most)
            process = move(topology, *pause, "--rate", "400")
            kill_after(process, cluster, moving, rows)
            assert process.returncode < 0, f"the run {number} had ended"
        process = move(topology, *pause)
        _, error = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, error.decode()
        application.deploy_everywhere(3)
    assert not application.errors, application.errors
    application.check()
