"""Processes that follow a real ZooKeeper show which epoch they use."""

from __future__ import annotations

import json
import os
import threading
from contextlib import contextmanager

import pytest

pytest.importorskip("kazoo")

from kazoo.client import KazooClient
from kazoo.security import make_digest_acl, READ_ACL_UNSAFE
from sqlalchemy import event

from sqla_shard import Cluster
from sqla_shard.fleet import Account, Accounts, Fleet, status
from sqla_shard.fleet.clients import late_lines, late_note
from sqla_shard.testing import Proxy, ZooKeeperServer
from sqla_shard.testing.local_server import wait_until
from sqla_shard.topology import to_json
from sqla_shard.topology.zookeeper import Publisher
from tests.servers.following import in_child
from tests.servers.zookeeper import place, topology

pytestmark = [pytest.mark.live, pytest.mark.usefixtures("zookeeper_installed")]

SECONDS = 60
ME = os.getpid()


@pytest.fixture(scope="module")
def zookeeper(zookeeper_installed):
    """Start one that no other module uses: it is killed."""
    with ZooKeeperServer() as server:
        yield server


@pytest.fixture
def proxy(zookeeper):
    with Proxy(zookeeper.host, zookeeper.port) as proxy:
        yield proxy


@pytest.fixture
def location(zookeeper):
    found = place(zookeeper.hosts)
    with Publisher(found) as publisher:
        publisher.publish(topology(1))
    return found


def publish(location, epoch):
    with Publisher(location) as publisher:
        publisher.publish(topology(epoch))


@contextmanager
def following(location, **options):
    """Open a cluster whose thread follows ZooKeeper."""
    hosts = location.removeprefix("zookeeper://")
    options.setdefault("kazoo_options", {"timeout": 2.0})
    cluster = Cluster.from_zookeeper(
        hosts,
        snapshot=False,
        environ={"MYSQL_PASSWORD": ""},
        reread=options.pop("reread", 0.5),
        **options,
    )
    with cluster:
        follow(cluster)
        yield cluster


def follow(cluster):
    """Start the thread, as the first transaction does."""
    assert cluster._active.places is not None


def fleet(location):
    accounts = Accounts(operator=Account(user="", password=""))
    return Fleet(location, accounts=accounts)


def clients(location):
    """Return what status says about clients."""
    return status(fleet(location)).clients


def pids(location):
    return [(one.pid, one.epoch) for one in clients(location).known]


def until(condition):
    assert wait_until(condition, seconds=SECONDS)


def nodes(location):
    """Return the names and contents of the nodes, and the client."""
    hosts = location.removeprefix("zookeeper://")
    client = KazooClient(hosts=hosts)
    client.start()
    try:
        return {
            name: json.loads(client.get(f"/clients/{name}")[0])
            for name in client.get_children("/clients")
        }
    finally:
        client.stop()
        client.close()


def test_a_cluster_shows_its_epoch_and_takes_it_away(location):
    assert clients(location).known == ()
    with following(location) as cluster:
        until(lambda: pids(location) == [(ME, 1)])
        (name,) = nodes(location)
        publish(location, 2)
        until(lambda: pids(location) == [(ME, 2)])
        assert cluster.topology.epoch == 2
        (one,) = clients(location).known
        assert (one.role, one.file, one.behind) == ("cluster", None, None)
        assert one.host == os.uname().nodename
        # It is the same node.
        assert list(nodes(location)) == [name]
    until(lambda: pids(location) == [])


def test_nothing_is_shown_unless_wanted(location):
    with following(location, register=False), following(location):
        until(lambda: len(pids(location)) == 1)


def test_a_listener_that_does_not_return_is_seen(location):
    """Until it does, the process reads no newer topology."""
    go_on = threading.Event()
    with following(location) as cluster:

        @event.listens_for(cluster, "topology_changed")
        def wait(*args):
            assert go_on.wait(SECONDS)

        until(lambda: pids(location) == [(ME, 1)])
        try:
            publish(location, 2)
            until(lambda: clients(location).late)
            found = clients(location)
            (late,) = found.late
            assert (late.pid, late.epoch) == (ME, 1)
            assert 0 <= late.behind < SECONDS
            assert f"epoch 1 is used by {late.program} on " in str(found)
            assert "restart it" in str(found)
        finally:
            go_on.set()
        until(lambda: clients(location).late == ())


def test_a_session_that_expires_is_replaced(location, zookeeper):
    with following(location) as cluster:
        until(lambda: pids(location) == [(ME, 1)])
        (name,) = nodes(location)
        source = cluster._active.follower._source
        identity = source._connection.connected().client_id
        assert zookeeper.expire(identity)
        until(lambda: set(nodes(location)) - {name})
        until(lambda: pids(location) == [(ME, 1)])
        publish(location, 2)
        until(lambda: pids(location) == [(ME, 2)])


def test_a_node_that_is_deleted_comes_back(location):
    with following(location):
        until(lambda: pids(location) == [(ME, 1)])
        (name,) = nodes(location)
        client = KazooClient(hosts=location.removeprefix("zookeeper://"))
        client.start()
        client.delete(f"/clients/{name}")
        client.stop()
        client.close()
        until(lambda: pids(location) == [(ME, 1)])


@pytest.mark.parametrize("fault", ["hang", "refuse"])
def test_an_outage_does_not_stop_the_process(location, proxy, zookeeper, fault):
    seen = location.replace(zookeeper.hosts, f"{proxy.host}:{proxy.port}")
    with following(seen) as cluster:
        until(lambda: pids(location) == [(ME, 1)])
        getattr(proxy, fault)()
        proxy.cut()
        # Its session expires.
        until(lambda: pids(location) == [])
        publish(location, 2)
        assert cluster.topology.epoch == 1
        proxy.restore()
        until(lambda: cluster.topology.epoch == 2)
        until(lambda: pids(location) == [(ME, 2)])


def test_a_child_process_has_its_own_node(location, tmp_path):
    with following(location) as cluster:
        until(lambda: pids(location) == [(ME, 1)])

        def child():
            follow(cluster)
            until(lambda: len(pids(location)) == 2)
            known = {pid for pid, _ in pids(location)}
            assert known == {ME, os.getpid()}
            cluster.close()

        in_child(child, tmp_path)
        until(lambda: pids(location) == [(ME, 1)])


def test_without_permission_it_goes_on(location, zookeeper, caplog):
    hosts = location.removeprefix("zookeeper://")
    servers, _, path = hosts.partition("/")
    auth = [("digest", "operator:secret")]
    client = KazooClient(hosts=servers, auth_data=auth)
    client.start()
    mine = make_digest_acl("operator", "secret", all=True)
    client.set_acls(f"/{path}", [mine, *READ_ACL_UNSAFE])
    caplog.set_level("INFO", "sqla_shard")
    with following(location) as cluster:
        until(
            lambda: any(
                "may not create a node" in one.getMessage() for one in caplog.records
            )
        )
        with Publisher(location, options={"auth_data": auth}) as publisher:
            publisher.publish(topology(2))
        until(lambda: cluster.topology.epoch == 2)
        assert cluster.source_report().state == "current"
        assert clients(location).known == ()
    # As the documentation says.
    app = make_digest_acl("app", "word", create=True)
    client.create(f"/{path}/clients", acl=[mine, app, *READ_ACL_UNSAFE])
    options = {"auth_data": [("digest", "app:word")], "timeout": 2.0}
    with following(location, kazoo_options=options):
        until(lambda: pids(location) == [(ME, 2)])
        (name,) = nodes(location)
        acl, _ = client.get_acls(f"/{path}/clients/{name}")
        assert {(one.id.scheme, one.perms) for one in acl} == {
            ("digest", 31),
            ("world", 1),
        }
    client.stop()
    client.close()


def test_data_of_others_is_shown_as_text_or_not_at_all(location, monkeypatch):
    client = KazooClient(hosts=location.removeprefix("zookeeper://"))
    client.start()
    good = {"role": "x", "host": "a\x1b[2Jb", "pid": 1, "program": "p" * 999}
    for name, value in {
        "a": b"",
        "b": b"[1]",
        "c": b'{"epoch": "1"}',
        "d": b"x" * 20_000,
        "e": json.dumps({**good, "epoch": -1, "resets": 0}).encode(),
        "f": json.dumps({**good, "epoch": 0, "resets": 0}).encode(),
        "g": b"{",
    }.items():
        client.create(f"/clients/{name}", value, makepath=True)
    client.stop()
    client.close()
    found = clients(location)
    assert found.invalid == ("a", "b", "c", "d", "e", "g")
    (one,) = found.late
    assert (one.host, len(one.program)) == ("a?[2Jb", 200)
    assert "\x1b" not in str(found)
    # Nor are so many read that a command would not end.
    monkeypatch.setattr("sqla_shard.fleet.clients._MAX_NODES", 6)
    some = clients(location)
    assert (some.invalid, len(some.late)) == (("a", "b", "c", "d", "e"), 1)
    assert "7 nodes are registered, of which 6 were read" in some.unread
    assert f"other clients are unknown: {some.unread}" in str(some)
    late, unknown = late_lines(late_note(fleet(location)))
    assert late.startswith("old epoch: epoch 0 is used by ")
    assert unknown == f"other clients are unknown: {some.unread}"
    monkeypatch.undo()
    # Neither does a node that may not be read.
    other = [("digest", "other:word")]
    client = KazooClient(hosts=location.removeprefix("zookeeper://"))
    client.start()
    secret = [make_digest_acl("other", "word", all=True)]
    client.create("/clients/h", acl=secret)
    assert clients(location).invalid == (*found.invalid, "h")
    client.set_acls("/clients", secret)
    unread = clients(location)
    assert "NoAuthError" in unread.unread
    assert "clients are unknown: " in str(unread)
    client.add_auth(*other[0])
    client.delete("/clients", recursive=True)
    client.stop()
    client.close()
    json.dumps(found.as_dict())


def test_a_topology_in_a_file_has_no_clients(tmp_path):
    path = tmp_path / "topology.json"
    path.write_bytes(to_json(topology(1)))
    assert clients(path) is None
