"""A whole move under load: processes of the application and the tool die."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from time import monotonic

import pytest
from sqlalchemy import insert, update

from sqla_shard import Cluster, unpack
from sqla_shard.exc import StageRefusedError
from sqla_shard.migrate.passes import backfill, reconcile, verify
from sqla_shard.migrate.stage_changes import copy_waiting, Switch
from sqla_shard.migrate.stages import DatabaseFence
from sqla_shard.migrate.tables import COPYING
from tests.models.moving_app import (
    Base,
    open_move,
    Post,
    Posts,
    Sharded,
    ShardedPost,
    ShardedUser,
    User,
    WRITTEN_AT,
)
from tests.servers.moving_trial import (
    check,
    fill,
    Processes,
    report,
    rows_of_database,
    rows_of_shards,
    SHORT,
    SIZE,
)


@pytest.fixture
def scene(fleet, tmp_path):
    """Yield the move of an application with rows, and its environment."""
    server = fleet.servers[0]
    server.root_execute("DROP DATABASE IF EXISTS db_before")
    server.root_execute("CREATE DATABASE db_before")
    document = fleet.topology_mapping(
        shards=SIZE.shards, database="db_after{shard:05d}"
    )
    fleet.drop_databases(document)
    fleet.create_databases(document)
    topology = tmp_path / "topology.json"
    topology.write_text(json.dumps(document))
    url = server.url.replace("mysql://", "mysql+pymysql://", 1)
    move = open_move(f"{url}/db_before", str(topology))
    Base.metadata.create_all(move.engine)
    move.cluster.create_all(Sharded.metadata)
    Switch(move).prepare()
    yield (
        move,
        {
            "MOVING_URL": str(move.engine.url.render_as_string(False)),
            "MOVING_TOPOLOGY": str(topology),
        },
    )
    move.close()
    move.cluster.close()
    move.engine.dispose()
    server.root_execute("DROP DATABASE db_before")
    fleet.drop_databases(document)


def test_parts_at_the_same_time(scene, tmp_path):
    move, environ = scene
    count = 4
    with move.engine.begin() as connection:
        connection.execute(
            insert(User.__table__), [{"name": f"user {number}"} for number in range(20)]
        )
        connection.execute(
            insert(Post.__table__),
            [
                {
                    "user_id": 1 + number % 20,
                    "title": f"post {number}",
                    "changes": 0,
                    "written_at": WRITTEN_AT,
                }
                for number in range(6000)
            ],
        )
    Switch(move).go("copying")
    done = [
        subprocess.Popen(
            [
                *(sys.executable, "-m", "sqla_shard.cli", "migrate"),
                *("backfill", "tests.models.moving_app"),
                *("--part", f"{number}/{count}"),
            ],
            env={**os.environ, **environ},
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(1, count + 1)
    ]
    for process in done:
        output, _ = process.communicate()
        assert (process.returncode, output) == (0, "0 rows could not be copied\n")
    found = verify(move)
    assert found.is_equal
    assert (found.rows, found.waiting) == (6020, 0)


def inserts(fleet):
    """Return how many INSERTs the servers of a fleet have received."""
    sql = "SHOW GLOBAL STATUS LIKE 'Com_insert'"
    rows = [server.root_execute(sql)[0] for server in fleet.servers]
    return sum(int(count) for _, count in rows)


def test_rows_of_a_backfill_are_written_together(scene, fleet):
    """The number of INSERTs is that of shards, not of rows."""
    move, _ = scene
    Switch(move).go("copying")
    with move.engine.begin() as connection:
        connection.execute(
            insert(User.__table__),
            [{"name": f"user {number}"} for number in range(200)],
        )
    before = inserts(fleet)
    assert backfill(move) == 0
    # All claims in the database; the marks and the rows of each shard.
    assert SIZE.shards < inserts(fleet) - before <= 1 + 2 * SIZE.shards


def test_a_move_under_load_whose_processes_are_killed(scene, tmp_path):
    move, environ = scene
    fill(move.engine, SIZE)
    processes = Processes(tmp_path, environ, SIZE)
    start = monotonic()
    with contextlib.closing(processes):
        processes.run(move)
        processes.stop()
    seconds = monotonic() - start
    now = move.progress(now=True)
    assert now.stage == "switched"
    assert copy_waiting(move, now) == 0
    shards = rows_of_shards(move.cluster)
    check(shards, tmp_path, SIZE)
    # The rows are those of both sides: back, and forward until the end.
    switch = Switch(move)
    switch.back()
    database = rows_of_database(move.engine)
    assert database == shards
    found = verify(move)
    assert found.is_equal, found
    assert not found.waiting
    switch.go("detached")
    assert move.progress(now=True).rules.truth == "shards"
    assert rows_of_shards(move.cluster) == shards
    report(tmp_path, f"{found.rows:,} rows, {seconds:,.0f} s, {processes.killed}")


def test_a_write_that_bypasses_the_session_is_found_and_named(scene):
    move, _ = scene
    fill(move.engine, SHORT)
    switch = Switch(move)
    switch.go("copying")
    assert reconcile(move).is_equal
    with move.engine.begin() as connection:
        connection.execute(
            update(Post.__table__).where(Post.id == 5).values(title="other")
        )
    found = verify(move)
    assert [one.key for one in found.found] == [(5,)]
    assert "title is 'other' in the database" in str(found)
    with pytest.raises(StageRefusedError, match="migrate reconcile"):
        switch.go("reading")
    assert reconcile(move).is_equal
    with move.cluster.session() as session:
        object_id = move.object_id("posts", 5)
        assert session.get(ShardedPost, object_id).title == "other"
    switch.go("reading")


def test_reads_of_a_shard_have_one_snapshot(scene):
    move, environ = scene
    with move.cluster.begin(info={COPYING: True}) as session:
        user = ShardedUser(name="one")
        session.add(user)
        session.flush()
        user_id = user.id
    options = {"isolation_level": "READ COMMITTED"}
    with Cluster.from_file(
        environ["MOVING_TOPOLOGY"], engine_options=options
    ) as cluster:
        part = move.tables["users"].on(cluster, unpack(user_id).shard_id)
        with part.begin():
            assert part.count(None, None) == 1
            with move.cluster.begin(info={COPYING: True}) as session:
                session.delete(session.get(ShardedUser, user_id))
            assert part.count(None, None) == 1
        with part.begin():
            assert part.count(None, None) == 0


class Unfenced(DatabaseFence):
    """The control: a process acts by its last known stage."""

    def __init__(self, known):
        super().__init__()
        self._known = known

    def enter(self, connection):
        return self._known


def test_a_process_that_lags_loses_a_write_without_fences(scene):
    move, environ = scene
    fill(move.engine, SHORT)
    switch = Switch(move)
    switch.go("copying")
    assert reconcile(move).is_equal
    switch.go("reading")
    # Its processes have nothing of the change in the next hour, and die
    # after COMMIT.
    lagging = open_move(*environ.values(), refresh=3600.0, copies=False)
    known = lagging.progress()
    with contextlib.closing(lagging):
        switch.go("switched")
        Posts(move).change(1)
        Posts(lagging).change(1)
        assert copy_waiting(move, move.progress(now=True)) == 0
        assert verify(move).is_equal
        assert shown(move, 1) == 2
        # The same without the fence.
        lagging._known = known
        lagging._expires = float("inf")
        lagging._legacy_marks._fence = Unfenced(known)
        Posts(lagging).change(1)
        Posts(move).change(1)
    # Four were acknowledged.
    assert shown(move, 1) == 3


def shown(move, key):
    """Return the number of changes of a post on its shard."""
    with move.cluster.session() as session:
        object_id = move.object_id("posts", key)
        return session.get(ShardedPost, object_id).changes
