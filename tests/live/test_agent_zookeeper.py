"""sqla-shard topology watch and agent, on a real ZooKeeper."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import stat
import subprocess
import threading
from pathlib import Path

import pytest

pytest.importorskip("kazoo")

from kazoo.client import KazooClient

from sqla_shard.fleet import Account, Accounts, Fleet, status
from sqla_shard.testing import ZooKeeperServer
from sqla_shard.testing.local_server import wait_until
from sqla_shard.topology import FileSource
from sqla_shard.topology.zookeeper.publisher import Publisher
from tests.servers.command_line import COMMAND, environment, invoke, write
from tests.servers.zookeeper import document, place, SECRET, topology

pytestmark = pytest.mark.live

SECONDS = 60


class Program:
    """A process of sqla-shard, and the lines that it prints."""

    def __init__(self, *arguments):
        self.lines: queue.Queue[str] = queue.Queue()
        self.errors: queue.Queue[str] = queue.Queue()
        self.process = subprocess.Popen(
            [*COMMAND, *map(str, arguments)],
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.threads = [
            threading.Thread(target=self._read, args=pair)
            for pair in (
                (self.process.stdout, self.lines),
                (self.process.stderr, self.errors),
            )
        ]
        for thread in self.threads:
            thread.start()

    @staticmethod
    def _read(stream, lines):
        for line in stream:
            lines.put(line)

    def until(self, text, lines=None):
        """Return the first line with a text, and drop those before it."""
        while True:
            line = (lines or self.lines).get(timeout=SECONDS)
            assert SECRET not in line
            if text in line:
                return line

    def end(self, number=signal.SIGTERM):
        """Return the status of the process after a signal."""
        self.process.send_signal(number)
        return self.process.wait(SECONDS)

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(SECONDS)
        for thread in self.threads:
            thread.join(SECONDS)
        self.process.stdout.close()
        self.process.stderr.close()


@pytest.fixture
def program():
    """Start programs, and end them after the test."""
    with contextlib.ExitStack() as stack:

        def start(*arguments):
            found = Program(*arguments)
            stack.callback(found.close)
            return found

        yield start


@pytest.fixture
def location(zookeeper_server):
    return place(zookeeper_server.hosts)


@pytest.fixture
def publisher(location):
    with Publisher(location) as found:
        yield found


@pytest.fixture
def agent(program, tmp_path):
    """Start an agent."""

    def start(location, *more, out=tmp_path / "topology.json"):
        return program(*("-t", location, "topology", "agent", "--out", out), *more)

    return start


def load(path):
    return FileSource(path, environ={"MYSQL_PASSWORD": ""}).load()


# -- agent


def test_an_agent_keeps_a_file(agent, publisher, location, tmp_path):
    publisher.publish(topology(1))
    out = tmp_path / "new" / "topology.json"
    found = agent(location, out=out)
    assert found.until("READY") == f"READY epoch 1 in {out}\n"
    assert load(out) == topology(1)
    assert stat.S_IMODE(out.stat().st_mode) == 0o640
    publisher.publish(topology(2, shards=16))
    found.until("epoch 1 -> 2; objects: 8 -> 16 shards", found.errors)
    assert found.end() == 0
    assert load(out) == topology(2, shards=16)
    assert b"${MYSQL_PASSWORD}" in out.read_bytes()
    assert list(out.parent.iterdir()) == [out]


def clients(location):
    accounts = Accounts(operator=Account(user="", password=""))
    return status(Fleet(location, accounts=accounts)).clients.known


def test_an_agent_shows_the_epoch_of_its_file(agent, publisher, location, tmp_path):
    publisher.publish(topology(1))
    folder = tmp_path / "new"
    found = agent(location, out=folder / "topology.json")
    other = agent(location, "--no-register", out=tmp_path / "other.json")
    found.until("READY")
    other.until("READY")
    assert wait_until(lambda: clients(location), seconds=SECONDS)
    (one,) = clients(location)
    assert (one.role, one.pid) == ("agent", found.process.pid)
    assert (one.file, one.epoch) == (str(folder / "topology.json"), 1)
    publisher.publish(topology(2))
    assert wait_until(lambda: clients(location)[0].epoch == 2, seconds=SECONDS)
    # A topology that cannot be written is not used by readers of the file.
    folder.rename(tmp_path / "moved")
    folder.write_text("not a folder")
    publisher.publish(topology(3))
    found.until("cannot be written", found.errors)
    publisher.publish(topology(4))
    other.until("epoch 3 -> 4", other.errors)
    assert clients(location)[0].epoch == 2
    assert found.end() == 0
    assert wait_until(lambda: not clients(location), seconds=SECONDS)


def test_the_mode_of_the_file(agent, publisher, location, tmp_path):
    publisher.publish(topology(1))
    found = agent(location, "--mode", "0600")
    found.until("READY")
    out = tmp_path / "topology.json"
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    assert found.end(signal.SIGINT) == 0


@pytest.mark.parametrize("mode", ["0660", "0666", "0200", "rw", "07777"])
def test_a_mode_that_is_refused(tmp_path, location, mode):
    done = invoke(
        *("-t", location, "topology", "agent"),
        *("--out", tmp_path / "a.json", "--mode", mode),
    )
    assert done.exit_code == 2
    assert repr(mode) in done.stderr


def test_a_file_that_cannot_be_written(agent, publisher, location, tmp_path):
    publisher.publish(topology(1))
    (tmp_path / "file").touch()
    found = agent(location, out=tmp_path / "file" / "topology.json")
    assert found.process.wait(SECONDS) == 1
    assert "cannot be" in found.until("sqla-shard: error:", found.errors)
    done = invoke("-t", location, "topology", "agent", "--out", tmp_path / "out.toml")
    assert done.exit_code == 1
    assert "must end in .json" in done.stderr


def test_zookeeper_is_killed_and_comes_back(agent, tmp_path):
    out = tmp_path / "topology.json"
    with ZooKeeperServer() as server:
        location = f"zookeeper://{server.hosts}/prod"
        with Publisher(location) as publisher:
            publisher.publish(topology(1))
        found = agent(location)
        found.until("READY")
        server.kill()
        found.until("the topology of epoch 1 stays in use", found.errors)
        assert load(out) == topology(1)
        # Restarted without ZooKeeper, it has the file.
        assert found.end() == 0
        again = agent(location, "--reread", "0.5")
        assert again.until("READY") == f"READY epoch 1 in {out}\n"
        server.start()
        with Publisher(location) as publisher:
            publisher.publish(topology(2))
        again.until("epoch 1 -> 2", again.errors)
        server.kill()
        assert again.end() == 0
    assert load(out) == topology(2)


def test_neither_zookeeper_nor_a_file(agent, tmp_path):
    """It goes on asking, and can be ended meanwhile."""
    with ZooKeeperServer() as server:
        location = f"zookeeper://{server.hosts}/prod"
        server.kill()
        first = agent(location, out=tmp_path / "first.json")
        second = agent(location, "--reread", "0.5")
        for one in (first, second):
            one.until("no topology available yet", one.errors)
        assert first.end() == 0
        server.start()
        second.until("nothing is published there", second.errors)
        with Publisher(location) as publisher:
            publisher.publish(topology(1))
        second.until("READY epoch 1")
        assert second.end() == 0
    assert load(tmp_path / "topology.json") == topology(1)


def test_two_agents_on_one_file(agent, publisher, location, tmp_path):
    publisher.publish(topology(1))
    both = [agent(location), agent(location)]
    for one in both:
        one.until("READY")
    for epoch in range(2, 8):
        publisher.publish(topology(epoch, shards=8 + epoch))
    for one in both:
        one.until("-> 7", one.errors)
        assert one.end() == 0
    out = tmp_path / "topology.json"
    assert load(out) == topology(7, shards=15)
    assert list(tmp_path.iterdir()) == [out]


def test_an_older_topology_is_not_taken(agent, publisher, location, tmp_path):
    out = write(tmp_path, document(9))
    os.chmod(out, 0o600)
    publisher.publish(topology(1))
    found = agent(location)
    assert found.until("READY") == f"READY epoch 9 in {out}\n"
    found.until("which is older", found.errors)
    assert found.end() == 0
    assert load(out) == topology(9)


# -- watch


def test_watch(program, publisher, location):
    publisher.publish(topology(1))
    found = program("-t", location, "topology", "watch")
    assert found.until("begin").endswith(f" begin: epoch 1 of {location}\n")
    publisher.publish(topology(2, shards=16))
    found.until(f"changed: epoch 2 of {location}")
    assert found.until("epoch 1 -> 2") == "  epoch 1 -> 2\n"
    found.until("  objects: 8 -> 16 shards")
    assert found.end(signal.SIGINT) == 130
    assert found.errors.empty()


def test_watch_in_json(program):
    with ZooKeeperServer() as server:
        location = f"zookeeper://{server.hosts}/prod"
        with Publisher(location) as publisher:
            publisher.publish(topology(1))
        found = program(*("-t", location, "topology", "watch"), "--json", "--count", 2)
        events = [json.loads(found.until("begin"))]
        with Publisher(location) as publisher:
            publisher.publish(topology(2))
        events.append(json.loads(found.until("changed")))
        server.kill()
        events.append(json.loads(found.until("stale")))
        server.start()
        events.append(json.loads(found.until("confirmed")))
        with Publisher(location) as publisher:
            publisher.publish(topology(3, shards=16))
        events.append(json.loads(found.until("changed")))
        assert found.process.wait(SECONDS) == 0
    assert [(one["event"], one["epoch"]) for one in events] == [
        ("begin", 1),
        ("changed", 2),
        ("stale", 2),
        ("confirmed", 2),
        ("changed", 3),
    ]
    assert {one["source"] for one in events} == {location}
    assert events[2]["error"]
    assert events[4]["diff"]["opened"] == [{"keyspace": "objects", "old": 8, "new": 16}]


def test_watch_reports_when_the_problem_changes(program, publisher, location):
    publisher.publish(topology(1))
    found = program("-t", location, "topology", "watch")
    found.until("begin")
    hosts, _, path = location.removeprefix("zookeeper://").partition("/")
    client = KazooClient(hosts)
    client.start()
    try:
        client.set(f"/{path}/topology", b"{")
        assert "1 problem" in found.until("stale")
        client.delete(f"/{path}/topology")
        assert "nothing is published there" in found.until("stale")
    finally:
        client.stop()
        client.close()


def test_watch_a_file(program, tmp_path):
    path = write(tmp_path, document(1, password=SECRET))
    found = program("-t", path, "topology", "watch", "--count", "1")
    found.until(f"begin: epoch 1 of {path}")
    for text, event in (("{", "stale"), (None, "confirmed")):
        other = Path(f"{path}.new")
        other.write_text(text or json.dumps(document(1, password=SECRET)), "utf-8")
        other.replace(path)
        found.until(event)
    write(tmp_path, document(2, password=SECRET, shards=16), "x.json").replace(path)
    found.until("changed: epoch 2")
    assert found.process.wait(SECONDS) == 0
    found.until("8 -> 16")
    assert found.errors.empty()


def test_watch_what_is_not_there(location):
    done = invoke("-t", location, "topology", "watch")
    assert done.exit_code == 1
    assert "nothing is published there" in done.stderr
