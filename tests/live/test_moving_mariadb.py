"""A whole move under load: processes of the application and the tool die."""

from __future__ import annotations

import contextlib
import json
import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path
from threading import Event

import pytest
from sqlalchemy import insert
from sqlalchemy import select
from sqlalchemy import update
from sqlalchemy.orm import Session

from sqla_shard.exc import StageRefusedError
from sqla_shard.migrate.fences import Fence
from sqla_shard.migrate.passes import reconcile
from sqla_shard.migrate.passes import verify
from sqla_shard.migrate.switching import copy_waiting
from sqla_shard.migrate.switching import Switch
from tests.models.moving_app import Base
from tests.models.moving_app import FOLLOWS
from tests.models.moving_app import open_move
from tests.models.moving_app import Post
from tests.models.moving_app import Posts
from tests.models.moving_app import Sharded
from tests.models.moving_app import ShardedPost
from tests.models.moving_app import User
from tests.models.moving_app import WRITTEN_AT
from tests.workers import moving_writer

SOAK = os.environ.get("SQLA_SHARD_SOAK") == "1"
SHARDS = 256 if SOAK else 8
ROWS = 1_000_000 if SOAK else 200
WRITERS = 8 if SOAK else 3
KILLS = 40 if SOAK else 6
DEADLINE = 3600 if SOAK else 300


@pytest.fixture
def scene(mariadb_fleet, tmp_path):
    """Yield the URL and the topology of an application with rows."""
    server = mariadb_fleet.servers[0]
    server.root_execute("DROP DATABASE IF EXISTS db_before")
    server.root_execute("CREATE DATABASE db_before")
    document = mariadb_fleet.topology_mapping(
        shards=SHARDS, database="db_after{shard:05d}"
    )
    mariadb_fleet.drop_databases(document)
    mariadb_fleet.create_databases(document)
    topology = tmp_path / "topology.json"
    topology.write_text(json.dumps(document))
    url = server.url.replace("mysql://", "mysql+pymysql://", 1)
    move = open_move(f"{url}/db_before", str(topology))
    Base.metadata.create_all(move.engine)
    move.cluster.create_all(Sharded.metadata)
    Switch(move).prepare()
    users = range(1, max(ROWS // 100, 5) + 1)
    with move.engine.begin() as connection:
        connection.execute(
            insert(User.__table__), [{"name": f"user {n}"} for n in users]
        )
        for start in range(0, ROWS, 10_000):
            connection.execute(
                insert(Post.__table__),
                [
                    {
                        "user_id": users[n % len(users)],
                        "reply_to": 1 if n % 7 == 6 else None,
                        "title": f"old {n}",
                        "changes": 0,
                        "written_at": WRITTEN_AT,
                    }
                    for n in range(start, min(start + 10_000, ROWS))
                ],
            )
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
    mariadb_fleet.drop_databases(document)


class Processes:
    """Processes that are started again when they were killed."""

    def __init__(self, folder, environ, seed):
        self.folder = folder
        self._environ = {**os.environ, **environ}
        self._random = random.Random(seed)
        self._running = {}

    def start(self, *arguments):
        command = [sys.executable, moving_writer.__file__, *arguments]
        log = (self.folder / f"log-{'-'.join(arguments)}").open("ab")
        with log:
            self._running[arguments[:2]] = subprocess.Popen(
                command, env=self._environ, stdout=log, stderr=log
            )

    def writer(self, number):
        self.start("writer", str(number), str(self._random.randrange(10**9)))

    def tool(self):
        self.start("tool")

    def kill_one(self):
        """Kill a process at a random time, and start it again."""
        Event().wait(self._random.uniform(0.2, 2.5))
        key = self._random.choice(sorted(self._running))
        process = self._running[key]
        if process.poll() is None:
            process.kill()
        elif key == ("tool",) and process.returncode == 0:
            return
        assert process.wait() in (-9, 0), self.logs()
        self.tool() if key == ("tool",) else self.writer(key[1])

    def await_tool(self):
        assert self._running["tool",].wait(DEADLINE) == 0, self.logs()

    def stop(self):
        (self.folder / "stop").touch()
        for process in self._running.values():
            assert process.wait(60) == 0, self.logs()

    def logs(self):
        return "\n".join(
            f"{path.name}: {path.read_text()[-3000:]}"
            for path in sorted(self.folder.glob("log-*"))
        )

    def close(self):
        for process in self._running.values():
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            process.wait()


def journals(folder: Path) -> dict[str, Counter[str]]:
    """Return the numbers of writes that were begun and acknowledged."""
    found: dict[str, Counter[str]] = {}
    for path in folder.glob("journal-*"):
        for line in path.read_text().splitlines():
            state, what, *rest = line.split(" ")
            if state != "counts:":
                found.setdefault(f"{state} {what}", Counter())[rest[0]] += 1
    return found


def check(move, folder):
    """Compare the rows of both sides with what was acknowledged."""
    written = journals(folder)
    with Session(move.engine) as session:
        legacy = {post.id: post for post in session.scalars(select(Post))}
    titles = Counter(post.title for post in legacy.values())
    done, begun = written["done change"], written["begin change"]
    for key in moving_writer.SHARED:
        assert done[str(key)] <= legacy[key].changes <= begun[str(key)]
    assert done.total() > 0
    gone = written.get("done delete", Counter())
    going = written.get("begin delete", Counter())
    for title in written["done add"]:
        if title in gone:
            assert titles[title] == 0, title
        elif title not in going:
            assert titles[title] == 1, title
    for title in written["begin add"]:
        assert titles[title] <= 1, title
    assert titles.total() == len(titles)
    assert sum(title.startswith("old ") for title in titles) == ROWS
    check_follows(move, folder)


def check_follows(move, folder):
    """Compare who follows whom with the last writes of each process."""
    with Session(move.engine) as session:
        found = {tuple(row)[:2] for row in session.execute(select(FOLLOWS))}
    last: dict[str, list[str]] = {}
    for path in folder.glob("journal-*"):
        for line in path.read_text().splitlines():
            state, what, pair = line.split(" ", 2)
            if what.endswith("follow"):
                last[pair] = [state, what]
    assert last
    for pair, (state, what) in last.items():
        follower_id, user_id = map(int, pair.split("-"))
        key = move.key("users", follower_id), user_id
        # The last one may have died before it was acknowledged.
        if state == "done":
            assert (key in found) is (what == "follow"), pair


def test_a_move_under_load_whose_processes_are_killed(scene, tmp_path):
    move, environ = scene
    processes = Processes(tmp_path, environ, random.randrange(10**6))
    with contextlib.closing(processes):
        for number in range(WRITERS):
            processes.writer(number)
        processes.tool()
        for _ in range(KILLS):
            processes.kill_one()
        processes.await_tool()
        processes.stop()
    now = move.progress(now=True)
    assert now.stage == "switched"
    assert copy_waiting(move, now) == 0
    found = verify(move)
    assert found.is_equal, found
    assert not found.waiting
    check(move, tmp_path)
    counts = [
        line
        for path in tmp_path.glob("journal-*")
        for line in path.read_text().splitlines()
        if line.startswith("counts: of")
    ]
    assert not any("different" in line for line in counts), counts
    # The rows are those of both sides: back, and forward until the end.
    switch = Switch(move)
    switch.back()
    assert verify(move).is_equal
    check(move, tmp_path)
    switch.go("detached")
    assert move.progress(now=True).rules.truth == "shards"


def test_a_write_that_bypasses_the_session_is_found_and_named(scene):
    move, _ = scene
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
    with pytest.raises(StageRefusedError, match="not yet equal"):
        switch.go("reading")
    assert reconcile(move).is_equal
    with move.cluster.session() as session:
        object_id = move.object_id("posts", 5)
        assert session.get(ShardedPost, object_id).title == "other"
    switch.go("reading")


class Unfenced(Fence):
    """The control: a process acts by what it knows of the stage."""

    def __init__(self, known):
        super().__init__()
        self._known = known

    def enter(self, connection):
        return self._known


def test_a_process_that_lags_loses_a_write_without_fences(scene):
    move, environ = scene
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
