"""A planned failover of real servers, with the topology in ZooKeeper."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import signal

import pytest

pytest.importorskip("kazoo")

from kazoo.client import KazooClient

from sqla_shard.exc import ShardError
from sqla_shard.fleet import access_checks, apply, Fleet, resume, status, undo
from sqla_shard.fleet.doctor import examine
from sqla_shard.fleet.failover import Failover
from sqla_shard.topology import DEFAULT_PLACEHOLDERS, Topology
from sqla_shard.topology.zookeeper import Publisher
from tests.servers.fleet_pairs import FleetPairs

pytestmark = pytest.mark.live


#: Seconds after which the lock of a process that sleeps ends.
SESSION = 2.0


@pytest.fixture(scope="module")
def pairs(server_kind, tmp_path_factory):
    folder = tmp_path_factory.mktemp("fleet")
    # With it, servers know the programs of sessions.
    options = ("--performance-schema=ON",)
    with FleetPairs(
        folder, pairs=1, shards=8, pair=server_kind.pair, options=options
    ) as pairs:
        yield pairs


@pytest.fixture(scope="module")
def fleet(pairs, zookeeper_server):
    location = f"zookeeper://{zookeeper_server.hosts}/{pairs.path.parent.name}"
    # A topology with passwords is not published.
    text = re.sub(
        r"//[^@/]*@", "//${MYSQL_USER}:${MYSQL_PASSWORD}@", json.dumps(pairs.document())
    )
    with Publisher(location) as publisher:
        publisher.publish(
            Topology.from_mapping(
                json.loads(text), environ=dict.fromkeys(DEFAULT_PLACEHOLDERS, "x")
            )
        )
    return Fleet(location, accounts=pairs.accounts, session_timeout=SESSION)


def test_there_and_back(fleet, capsys):
    pauses = []
    for epoch in (2, 3, 4, 5):
        before = fleet.topology()
        done = apply(fleet, Failover.planned(fleet, "server1"))
        assert (done.state, done.epoch) == ("finished", epoch)
        after = fleet.topology()
        old, new = (one.keyspaces["objects"].servers[0] for one in (before, after))
        assert (new.primary, new.standby) == (old.standby, old.primary)
        assert done.pause is not None
        pauses.append(1000 * done.pause)
    assert status(fleet).pending is None
    assert len(fleet.journal.history()) == 4
    with capsys.disabled():
        print("\npauses", *(f"{one:.0f} ms" for one in pauses))  # noqa: T201  # figures


def old_client(fleet, epoch):
    """Return a session with the node of a process that has not followed."""
    client = KazooClient(hosts=fleet.location.removeprefix("zookeeper://"))
    client.start()
    document = {
        "role": "agent",
        "host": "web3",
        "pid": 4711,
        "program": "sqla-shard",
        "file": "/run/topology.json",
        "epoch": epoch,
        "resets": 0,
    }
    client.create(
        "/clients/old", json.dumps(document).encode(), ephemeral=True, makepath=True
    )
    return client


def test_sessions_and_clients_with_an_old_epoch_are_named(fleet, pairs, monkeypatch):
    epoch = fleet.topology().epoch
    client = old_client(fleet, epoch)
    plan = Failover.planned(fleet, "server1")
    old = next(
        server
        for server in pairs.servers
        if f"{server.host}:{server.port}" == plan.arguments["old"]
    )
    old.root_execute("CREATE DATABASE IF NOT EXISTS db00001")
    options = {"program_name": "pinboard", "database": "db00001"}
    with old.connect(**options), old.connect(**options):
        result = apply(fleet, plan)
    assert result.problems == ()
    (group,) = [
        one for one in result.notes["kill"]["ended"] if one["program"] == "pinboard"
    ]
    assert (group["sessions"], group["pids"]) == (2, [os.getpid()])
    assert (group["ports"], group["databases"]) == ([], ["db00001"])
    assert f"(pinboard): 2 sessions, in db00001, pid {os.getpid()}" in str(result)
    (late,) = result.notes["verify"]["late_clients"]
    assert (late["host"], late["epoch"]) == ("web3", epoch)
    line = (
        f"epoch {epoch} is used by agent sqla-shard on web3, pid 4711, and "
        "the processes that read /run/topology.json"
    )
    assert f"old epoch: {line}" in str(result)
    assert result.as_dict()["notes"]["verify"]["late"] == 1
    assert line in str(status(fleet))
    monkeypatch.setattr(access_checks, "FOLLOWED", 0.0)
    environ = {"MYSQL_USER": old.user, "MYSQL_PASSWORD": ""}
    # It is the standby now.
    with old.connect(program_name="pinboard"):
        findings = examine(fleet, environ=environ).findings
    (elsewhere,) = [one for one in findings if one.check == "sessions-elsewhere"]
    who = f"127.0.0.1 {old.user} (pinboard): 1 session, pid {os.getpid()}"
    assert who in elsewhere.what
    found = [one for one in findings if one.check == "old-epochs"]
    assert [one.severity for one in found] == ["warning", "info"]
    assert found[0].what.startswith(line)
    assert "restart it" in found[0].remedy
    assert "1 processes have registered" in found[1].what
    client.stop()
    client.close()
    assert status(fleet).clients.known == ()


def test_nothing_secret_is_in_the_journal(fleet):
    records = fleet.journal.history()
    text = json.dumps([record.as_dict() for record in records])
    assert fleet.accounts.operator.password not in text
    assert fleet.accounts.for_replication().password not in text


def apply_asleep(fleet, plan, point, path):
    """Apply a plan, sleep at an event, and write what happened afterwards."""
    events = None

    def progress(event):
        nonlocal events
        if events is not None:
            events.append((event.step, event.state))
        elif (event.step, event.state) == point:
            os.kill(os.getpid(), signal.SIGSTOP)
            events = []

    try:
        end = apply(fleet, plan, progress=progress).state
    except ShardError as error:
        end = type(error).__name__
    path.write_text(json.dumps([end, events]))


def state_of(fleet, pairs):
    """Return the epoch, and what each server is."""
    return fleet.topology().epoch, [
        (
            server.root_execute("SELECT @@GLOBAL.read_only"),
            len(server.root_execute("SHOW REPLICA STATUS")),
        )
        for server in pairs.servers
    ]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("step", "end", "more"),
    [
        ("stop-events", undo, []),
        ("fence", undo, [["publish", "begin"]]),
        ("fence", resume, [["publish", "begin"]]),
        # The server refuses it: its session was ended.
        ("publish", resume, [["open", "begin"]]),
        ("open", resume, []),
    ],
)
def test_a_process_that_slept_does_no_more_step(
    fleet, pairs, tmp_path, step, end, more
):
    path = tmp_path / "end"
    plan = Failover.planned(fleet, "server1")
    process = multiprocessing.get_context("fork").Process(
        target=apply_asleep, args=(fleet, plan, (step, "done"), path)
    )
    process.start()
    try:
        _, found = os.waitpid(process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(found)
        result = end(fleet)
        assert result.state == ("undone" if end is undo else "finished")
        before = state_of(fleet, pairs)
        os.kill(process.pid, signal.SIGCONT)
        process.join(60)
    finally:
        process.kill()
        process.join()
    assert json.loads(path.read_text()) == ["FleetLockLostError", more]
    assert state_of(fleet, pairs) == before
    assert sorted(before[1]) == [([(0,)], 0), ([(1,)], 1)]
