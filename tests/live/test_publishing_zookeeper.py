"""Publishing in a real ZooKeeper: refusals, races, and lost connections."""

from __future__ import annotations

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, UTC

import pytest

pytest.importorskip("kazoo")

from kazoo.client import KazooClient
from kazoo.security import make_acl, make_digest_acl

from sqla_shard import exc
from sqla_shard.testing import Proxy, ZooKeeperServer
from sqla_shard.topology import to_json, Topology
from sqla_shard.topology.follow import Follower, Snapshot, source_at
from sqla_shard.topology.zookeeper.publications import MAX_BYTES, NOT_PUBLISHED
from sqla_shard.topology.zookeeper.publisher import Publisher
from tests.servers.zookeeper import document, place, SECRET, topology

pytestmark = pytest.mark.live


@pytest.fixture
def location(zookeeper_server):
    return place(zookeeper_server.hosts)


@pytest.fixture
def publisher(location):
    with Publisher(location) as found:
        yield found


@pytest.fixture
def client(location):
    """Return a plain client of ZooKeeper, which edits nodes by hand."""
    hosts, _, path = location.removeprefix("zookeeper://").partition("/")
    found = KazooClient(hosts)
    found.start()
    found.ensure_path(f"/{path}")
    found.chroot = f"/{path}"
    yield found
    found.stop()
    found.close()


def read(location):
    source = source_at(location, environ={"MYSQL_PASSWORD": ""})
    try:
        return source.load()
    finally:
        source.stop()


def test_the_first_and_the_next(publisher, location, client):
    assert publisher.current() is None
    assert publisher.history() == []
    first = publisher.publish(topology(1), expected_epoch=NOT_PUBLISHED)
    assert (first.old, first.diff, first.version) == (None, None, 0)
    second = publisher.publish(topology(5, shards=16), expected_epoch=1)
    assert second.is_published
    assert (second.old, second.new) == (topology(1), topology(5, shards=16))
    assert "8 -> 16 shards" in str(second.diff)
    assert read(location) == publisher.current() == second.new
    data, _ = client.get("/topology")
    assert data == client.get("/history/0000000005")[0]
    assert data == to_json(second.new)
    assert b"${MYSQL_PASSWORD}" in data
    entries = publisher.history()
    assert [one.epoch for one in entries] == [5, 1]
    assert entries[0].size == len(data)
    age = datetime.now(UTC) - entries[0].published
    assert abs(age) < timedelta(minutes=5)
    assert publisher.at(1) == topology(1)


def test_a_topology_published_during_the_lookup(publisher, location, monkeypatch):
    """Between the question for it and the one to be told of it."""
    source = source_at(location, environ={"MYSQL_PASSWORD": ""})
    await_node = source._await_node

    def late():
        publisher.publish(topology(1))
        return await_node()

    monkeypatch.setattr(source, "_await_node", late)
    try:
        assert source.load() == topology(1)
    finally:
        source.stop()


def test_a_dry_run_writes_nothing(publisher, client):
    done = publisher.publish(topology(1), dry_run=True)
    assert (done.new, done.version, done.is_published) == (topology(1), None, False)
    assert client.exists("/topology") is None
    assert client.exists("/history") is None
    publisher.publish(topology(1))
    publisher.publish(topology(2, shards=16), dry_run=True)
    assert publisher.current() == topology(1)
    assert [one.epoch for one in publisher.history()] == [1]


def test_an_equal_topology_is_not_published_again(publisher):
    publisher.publish(topology(3))
    again = publisher.publish(topology(3), expected_epoch=2)
    assert (again.new, again.is_published) == (topology(3), False)
    assert [one.epoch for one in publisher.history()] == [3]


@pytest.mark.parametrize("epoch", [2, 3])
def test_epochs_only_grow(publisher, epoch):
    publisher.publish(topology(3))
    with pytest.raises(exc.StaleTopologyError) as caught:
        publisher.publish(topology(epoch, shards=16))
    assert (caught.value.epoch, caught.value.current) == (epoch, 3)
    assert publisher.current() == topology(3)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"shards": 6}, "drops shards 6-7"),
        ({"database": "other{shard:05d}"}, "names databases that do not"),
        ({"kind": "mod"}, "would route every key to another shard"),
        ({"hosts": ("two", "one")}, "is still the primary of 'b'"),
        ({"hosts": ("two", "three")}, "is still the primary of 'b'"),
    ],
    ids=["shards", "database", "kind", "exchange", "taken over"],
)
def test_a_change_that_would_lose_data_is_refused(publisher, more, message):
    publisher.publish(topology(1))
    for dry_run in (True, False):
        with pytest.raises(exc.TopologyRefusedError, match=message):
            publisher.publish(topology(2, **more), dry_run=dry_run)
    assert publisher.current() == topology(1)
    assert [one.epoch for one in publisher.history()] == [1]


@pytest.mark.parametrize("password", [SECRET, "***", f"{SECRET}$$"])
@pytest.mark.parametrize("first", [True, False])
def test_a_typed_password_is_refused(publisher, client, password, first):
    if not first:
        publisher.publish(topology(1))
    with pytest.raises(exc.TopologyRefusedError) as caught:
        publisher.publish(topology(2, password=password))
    assert caught.value.current == (None if first else 1)
    assert SECRET not in str(caught.value)
    assert "${MYSQL_PASSWORD}" in str(caught.value)
    assert [one.place for one in caught.value.problems] == [
        "keyspaces.objects.servers[0].primary",
        "keyspaces.objects.servers[1].primary",
    ]
    if first:
        assert client.exists("/topology") is None


def test_a_placeholder_that_is_not_allowed(publisher):
    unknown = topology(1).from_mapping(
        document(1, password="${OTHER}"), placeholders=["OTHER"], environ={"OTHER": ""}
    )
    with pytest.raises(exc.TopologyError, match="OTHER"):
        publisher.publish(unknown)


def test_a_document_of_any_size_is_published_or_refused(location):
    def wide(epoch, servers):
        found = document(epoch, shards=65536)
        found["keyspaces"]["objects"]["servers"] = [
            {
                "name": f"server{number:05d}",
                "primary": f"mysql://app@{'h' * 40}{number:05d}",
                "shards": [number, number] if number < servers - 1 else [number, 65535],
            }
            for number in range(servers)
        ]
        return topology(1).from_mapping(found)

    low, high = wide(1, 10), wide(1, 2000)
    each = (len(to_json(high)) - len(to_json(low))) // 1990
    fits = wide(1, MAX_BYTES // each - 60)
    size = len(to_json(fits))
    assert MAX_BYTES * 0.9 < size <= MAX_BYTES
    with Publisher(location) as publisher:
        publisher.publish(fits)
        assert publisher.current() == fits
        with pytest.raises(exc.TopologyRefusedError, match="bytes, and at"):
            publisher.publish(wide(2, MAX_BYTES // each + 100))


# -- conflicts


def test_an_edit_of_an_older_version(publisher):
    publisher.publish(topology(1))
    publisher.publish(topology(2, shards=16))
    with pytest.raises(exc.TopologyConflictError) as caught:
        publisher.publish(topology(3, shards=24), expected_epoch=1)
    assert (caught.value.expected, caught.value.found) == (1, 2)
    with pytest.raises(exc.TopologyConflictError) as caught:
        publisher.publish(topology(3), expected_epoch=NOT_PUBLISHED)
    assert caught.value.expected is None
    assert publisher.current() == topology(2, shards=16)


@pytest.mark.parametrize("first", [True, False])
def test_one_of_many_wins(location, first):
    count = 8
    if not first:
        with Publisher(location) as publisher:
            publisher.publish(topology(1, shards=8))
    ready = threading.Barrier(count)

    def publish(number):
        with Publisher(location, timeout=60) as publisher:
            publisher.current()
            ready.wait(60)
            try:
                publisher.publish(topology(2, shards=8 + number))
            except (exc.TopologyConflictError, exc.StaleTopologyError):
                return None
            except exc.TopologyRefusedError:
                # It has seen that of the winner already.
                return None
            return number

    with ThreadPoolExecutor(count) as pool:
        won = [n for n in pool.map(publish, range(count)) if n is not None]
    assert len(won) == 1
    with Publisher(location) as publisher:
        assert publisher.current() == topology(2, shards=8 + won[0])
        assert publisher.at(2) == publisher.current()


def test_every_epoch_has_one_winner(location):
    """Publishers that go on until they have had enough of it."""
    wins: list[int] = []

    def publish(rounds):
        with Publisher(location, timeout=60) as publisher:
            for _ in range(rounds):
                current = publisher.current()
                assert current is not None
                epoch = current.epoch + 1
                new = topology(epoch, shards=8 + epoch)
                try:
                    done = publisher.publish(new, expected_epoch=epoch - 1)
                except (exc.TopologyConflictError, exc.StaleTopologyError):
                    continue
                if done.is_published:
                    wins.append(epoch)

    with Publisher(location) as publisher:
        publisher.publish(topology(1, shards=9))
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(publish, [15] * 4))
        epochs = [one.epoch for one in publisher.history()]
    assert sorted(wins) == list(range(2, max(wins) + 1))
    assert epochs == sorted([1, *wins], reverse=True)[:50]


# -- history


def test_old_versions_are_deleted(location, client):
    with Publisher(location, keep=3) as publisher:
        for epoch in range(1, 6):
            publisher.publish(topology(epoch, shards=8 + epoch))
        assert [one.epoch for one in publisher.history()] == [5, 4, 3]
        with pytest.raises(
            exc.TopologyUnavailableError, match=r"no epoch 2; it has 5, 4, 3"
        ):
            publisher.rollback(to=2)
    assert sorted(client.get_children("/history")) == [
        "0000000003",
        "0000000004",
        "0000000005",
    ]
    with pytest.raises(ValueError, match="keep must be 1 or more"):
        Publisher(location, keep=0)


def test_rollback(publisher):
    publisher.publish(topology(1))
    publisher.publish(topology(2, hosts=("one", "three")))
    planned = publisher.rollback(to=1, dry_run=True)
    assert not planned.is_published
    done = publisher.rollback(to=1, expected_epoch=2)
    assert done.new == topology(3) == publisher.current() == planned.new
    assert "@three -> " in str(done.diff)
    assert [one.epoch for one in publisher.history()] == [3, 2, 1]
    with pytest.raises(exc.TopologyConflictError):
        publisher.rollback(to=1, expected_epoch=2)


def test_a_rollback_closes_no_shards(publisher):
    publisher.publish(topology(1))
    publisher.publish(topology(2, shards=16))
    with pytest.raises(exc.TopologyRefusedError, match="drops shards 8-15"):
        publisher.rollback(to=1)
    assert publisher.current() == topology(2, shards=16)


def test_bytes_that_were_written_by_hand(publisher, client):
    publisher.publish(topology(1))
    publisher.publish(topology(2, shards=16))
    client.set("/topology", b'{"epoch": ' + SECRET.encode())
    with pytest.raises(exc.TopologyError) as caught:
        publisher.publish(topology(3, shards=24))
    assert "rollback --to 2" in str(caught.value)
    assert SECRET not in str(caught.value)
    # It follows the newest of the history.
    with pytest.raises(exc.TopologyRefusedError, match="drops shards 8-15"):
        publisher.rollback(to=1)
    done = publisher.rollback(to=2)
    assert (done.old, done.new) == (topology(2, shards=16), topology(3, shards=16))
    assert publisher.current() == done.new


def test_a_node_that_was_removed_or_set_back(publisher, client):
    publisher.publish(topology(1))
    publisher.publish(topology(2, shards=16))
    client.set("/topology", client.get("/history/0000000001")[0])
    with pytest.raises(exc.StaleTopologyError) as caught:
        publisher.publish(topology(2, shards=24))
    assert caught.value.current == 2
    client.delete("/topology")
    with pytest.raises(exc.TopologyRefusedError, match="drops shards 8-15"):
        publisher.publish(topology(3))
    publisher.publish(topology(3, shards=24))
    assert publisher.current() == topology(3, shards=24)


def test_a_history_that_cannot_be_read(publisher, client):
    publisher.publish(topology(1))
    publisher.publish(topology(2))
    for node in ("/topology", "/history/0000000001", "/history/0000000002"):
        client.set(node, b"[]")
    with pytest.raises(exc.TopologyError, match="0000000001"):
        publisher.rollback(to=1)
    client.delete("/topology")
    with pytest.raises(exc.StaleTopologyError):
        publisher.publish(topology(2))
    publisher.publish(topology(3))
    assert publisher.current() == topology(3)


# -- epochs that leave none


HIGHEST = 2**63 - 1


def test_an_epoch_that_leaves_none_is_not_published(publisher):
    with pytest.raises(exc.TopologyRefusedError, match="is too large a step"):
        publisher.publish(topology(HIGHEST))
    publisher.publish(topology(41))
    with pytest.raises(exc.TopologyRefusedError, match=r"41 -> .* too large"):
        publisher.publish(topology(HIGHEST))
    publisher.publish(topology(42))


def test_a_reset_reaches_those_who_have_the_highest_epoch(
    publisher, location, client, tmp_path
):
    """Written by hand, and taken by a process that had none before."""
    publisher.publish(topology(41))
    data = to_json(topology(HIGHEST))
    client.set("/topology", data)
    client.create(f"/history/{HIGHEST}", data)
    client.create(f"/history/{HIGHEST}9", b"no topology")
    state = tmp_path / "state.json"
    environ = {"MYSQL_PASSWORD": "", "MYSQL_USER": ""}

    def snapshot():
        return Snapshot(state, placeholders=environ, environ=environ)

    source = source_at(location, environ=environ)
    follower = Follower(source, snapshot=snapshot())
    follower.begin()
    follower.start()
    try:
        assert follower.epoch == HIGHEST
        with pytest.raises(exc.StaleTopologyError):
            publisher.publish(topology(42))
        assert not publisher.reset(topology(42), dry_run=True).is_published
        assert follower.epoch == HIGHEST
        done = publisher.reset(topology(42))
        assert (done.new.epoch, done.new.resets) == (42, 1)
        assert follower.wait(HIGHEST, 30)
        assert follower.topology.version == (1, 42)
        assert follower.report().state == "current"
        assert [one.epoch for one in publisher.history()] == [42, 41]
        # Epochs of the operators' files continue from there.
        publisher.publish(topology(43))
        assert follower.wait(42, 30)
        publisher.rollback(to=41)
        assert follower.wait(43, 30)
        assert follower.topology.version == (1, 44)
        # Once more, and with what is published unreadable.
        client.set("/topology", b"{")
        publisher.reset(topology(7))
        assert follower.wait(44, 30)
        assert follower.topology.version == (2, 7)
    finally:
        follower.close()
    assert snapshot().load().version == (2, 7)
    assert [one.epoch for one in publisher.history()] == [7]
    # A reset is no way to lose shards.
    with pytest.raises(exc.TopologyRefusedError, match="drops"):
        publisher.reset(topology(1, shards=6))


# -- write access


def test_nodes_belong_to_who_published(location, monkeypatch):
    monkeypatch.setenv("SQLA_SHARD_ZOOKEEPER_AUTH", f"digest:me:{SECRET}")
    with Publisher(location) as publisher:
        publisher.publish(topology(1))
    monkeypatch.delenv("SQLA_SHARD_ZOOKEEPER_AUTH")
    assert read(location) == topology(1)
    with Publisher(location) as publisher:
        with pytest.raises(exc.TopologyUnavailableError) as caught:
            publisher.publish(topology(2))
        assert publisher.current() == topology(1)
        assert [one.epoch for one in publisher.history()] == [1]
    assert "set SQLA_SHARD_ZOOKEEPER_AUTH to" in str(caught.value)
    monkeypatch.setenv("SQLA_SHARD_ZOOKEEPER_AUTH", f"digest:me:{SECRET}")
    with Publisher(location) as publisher:
        publisher.publish(topology(2))
        assert publisher.current() == topology(2)


def test_an_acl_of_ones_own(location, client):
    acl = make_digest_acl("me", SECRET, all=True)
    options = {"default_acl": [acl], "auth_data": [("digest", f"me:{SECRET}")]}
    with Publisher(location, options=options) as publisher:
        publisher.publish(topology(1))
        assert publisher.current() == topology(1)
    with (
        Publisher(location) as publisher,
        pytest.raises(exc.TopologyUnavailableError) as caught,
    ):
        publisher.current()
    assert SECRET not in str(caught.value)


OTHER = make_digest_acl("reader", SECRET, read=True)
MINE = make_digest_acl("me", SECRET, all=True)


def acls(client, *nodes):
    """Return the ACL of each node, read with full permissions."""
    client.add_auth("digest", f"me:{SECRET}")
    return [set(client.get_acls(node)[0]) for node in nodes]


@pytest.fixture
def as_me(monkeypatch):
    monkeypatch.setenv("SQLA_SHARD_ZOOKEEPER_AUTH", f"digest:me:{SECRET}")


def test_the_history_is_as_protected_as_the_topology(location, client, as_me):
    with Publisher(location) as publisher:
        publisher.publish(topology(1))
    protected = [MINE, OTHER]
    for node in ("/topology", "/history/0000000001"):
        client.add_auth("digest", f"me:{SECRET}")
        client.set_acls(node, protected)
    with Publisher(location) as publisher:
        publisher.publish(topology(2))
        publisher.publish(topology(3))
    for found in acls(
        client, "/topology", "/history/0000000002", "/history/0000000003"
    ):
        assert found == set(protected)


def test_a_protected_folder_protects_what_is_published_in_it(location, client, as_me):
    """The whole path, with the history that is yet to be made."""
    client.set_acls("/", [MINE, OTHER])
    with Publisher(location) as publisher:
        publisher.publish(topology(1))
    for found in acls(client, "/topology", "/history", "/history/0000000001"):
        assert found == {MINE, OTHER}


def test_an_open_folder_is_no_acl_to_take_over(location, client, as_me):
    with Publisher(location) as publisher:
        publisher.publish(topology(1))
    [found] = acls(client, "/topology")
    assert found == {MINE, make_acl("world", "anyone", read=True)}


def test_an_acl_that_is_given(location, client, as_me):
    reader = f"digest:{OTHER.id.id}:r"
    with Publisher(location, acl=["auth::cdrwa", reader]) as publisher:
        publisher.publish(topology(1))
        publisher.publish(topology(2))
    for found in acls(client, "/topology", "/history/0000000002"):
        assert found == {MINE, OTHER}


@pytest.mark.parametrize(
    "acl", ["", "world", "world:anyone", "world:anyone:x", ":anyone:r"]
)
def test_an_invalid_acl_is_refused(location, acl):
    with pytest.raises(exc.TopologyError, match="scheme:id:permissions"):
        Publisher(location, acl=[acl])


def test_an_acl_that_cannot_be_seen_in_full(location, client, monkeypatch):
    """Digests are hidden from clients that may not change the ACL."""
    with Publisher(location) as publisher:
        publisher.publish(topology(1))
    me = make_digest_acl("me", SECRET, read=True, write=True)
    admin = make_digest_acl("admin", SECRET, all=True)
    client.set_acls("/topology", [me, admin])
    client.set_acls("/history", [me, make_acl("world", "anyone", create=True)])
    monkeypatch.setenv("SQLA_SHARD_ZOOKEEPER_AUTH", f"digest:me:{SECRET}")
    with (
        Publisher(location) as publisher,
        pytest.raises(exc.TopologyUnavailableError) as caught,
    ):
        publisher.publish(topology(2))
    assert "--acl" in str(caught.value)
    with Publisher(location, acl=["auth::r"]) as publisher:
        publisher.publish(topology(2))
        assert publisher.current() == topology(2)


READ = make_acl("world", "anyone", read=True)
NODES = ("", "/topology", "/history", "/history/0000000001")


def test_files_that_everybody_may_change_are_reported(location, publisher, client):
    path = f"/{location.removeprefix('zookeeper://').partition('/')[2]}"
    assert publisher.open_nodes() == [path]
    publisher.publish(topology(1))
    assert publisher.open_nodes() == [f"{path}{node}" for node in NODES]
    for acl, is_open in (
        ([make_acl("world", "anyone", read=True, admin=True)], True),
        ([make_acl("world", "anyone", read=True, delete=True), MINE], True),
        ([READ, MINE], False),
        ([MINE], False),
    ):
        client.add_auth("digest", f"me:{SECRET}")
        client.set_acls("/topology", acl)
        assert (f"{path}/topology" in publisher.open_nodes()) == is_open


def test_open_nodes_are_protected(location, client, monkeypatch):
    with Publisher(location) as publisher:
        publisher.publish(topology(1))
        publisher.publish(topology(2))
        with pytest.raises(exc.TopologyUnavailableError) as caught:
            publisher.protect()
    assert "SQLA_SHARD_ZOOKEEPER_AUTH" in str(caught.value)
    monkeypatch.setenv("SQLA_SHARD_ZOOKEEPER_AUTH", f"digest:me:{SECRET}")
    with Publisher(location) as publisher:
        planned = publisher.protect(dry_run=True)
        assert len(planned) == len(publisher.open_nodes()) == 5
        assert {one.new for one in planned} == {None}
        done = publisher.protect()
        assert [one.path for one in done] == [one.path for one in planned]
        assert {one.old for one in done} == {"world:anyone:cdrwa"}
        new = "digest:me:***:cdrwa, world:anyone:r"
        # The first as it was asked for.
        assert [one.new for one in done[1:]] == 4 * [new]
        assert publisher.open_nodes() == []
        assert publisher.protect() == []
        publisher.publish(topology(3))
        assert publisher.open_nodes() == []
    for found in acls(client, *NODES[:3], "/history/0000000003"):
        assert found == {MINE, READ}
    assert read(location) == topology(3)
    monkeypatch.delenv("SQLA_SHARD_ZOOKEEPER_AUTH")
    with Publisher(location) as publisher, pytest.raises(exc.TopologyUnavailableError):
        publisher.publish(topology(4))
    # A client that is not closed goes on in the tests that come after.
    with (
        Publisher(location, acl=["world:anyone:cdrwa"]) as publisher,
        pytest.raises(exc.TopologyUnavailableError, match="NoAuth"),
    ):
        publisher.protect()


def test_the_history_is_protected_as_the_topology_is(location, client, as_me):
    """An ACL of the topology and one of a restricted folder do not change."""
    with Publisher(location) as publisher:
        publisher.publish(topology(1))
    client.add_auth("digest", f"me:{SECRET}")
    client.set_acls("/topology", [MINE, OTHER])
    client.set_acls("/", [MINE, READ])
    with Publisher(location) as publisher:
        done = publisher.protect()
    assert [one.path.rpartition("/")[2] for one in done] == ["history", "0000000001"]
    assert acls(client, *NODES) == [
        {MINE, READ},
        {MINE, OTHER},
        {MINE, OTHER},
        {MINE, OTHER},
    ]


def test_an_acl_that_is_given_protects(location, client, as_me):
    with Publisher(location) as publisher:
        publisher.publish(topology(1))
    reader = f"digest:{OTHER.id.id}:r"
    with Publisher(location, acl=["auth::cdrwa", reader]) as publisher:
        publisher.protect()
    for found in acls(client, *NODES[1:]):
        assert found == {MINE, OTHER}


def test_nothing_to_protect(publisher):
    with pytest.raises(exc.TopologyUnavailableError, match="nothing was publ"):
        publisher.protect()


def test_the_root_is_not_closed_to_others(monkeypatch):
    monkeypatch.setenv("SQLA_SHARD_ZOOKEEPER_AUTH", f"digest:me:{SECRET}")
    with ZooKeeperServer() as server:
        location = f"zookeeper://{server.hosts}"
        with Publisher(location) as publisher:
            publisher.publish(topology(1))
            assert publisher.open_nodes() == ["/"]
            assert publisher.protect() == []
            assert publisher.open_nodes() == ["/"]


def test_a_host_that_does_not_resolve_is_named(zookeeper_server, monkeypatch):
    monkeypatch.setattr("sqla_shard.topology.zookeeper.source._RESOLVING", 60.0)
    nobody = "zookeeper.invalid"
    with (
        Publisher(f"zookeeper://{nobody}:2181/prod", timeout=0.2) as publisher,
        pytest.raises(exc.TopologyUnavailableError) as caught,
    ):
        publisher.current()
    assert f"{nobody} does not resolve" in str(caught.value)
    assert "no server answered" not in str(caught.value)
    with (
        Publisher(f"zookeeper://{nobody},127.0.0.1:1/prod", timeout=0.2) as publisher,
        pytest.raises(exc.TopologyUnavailableError) as caught,
    ):
        publisher.current()
    assert f"{nobody} does not resolve" in str(caught.value)
    assert "no server answered" in str(caught.value)
    # One of several is enough.
    with Publisher(
        f"zookeeper://{nobody},{zookeeper_server.hosts}/nothing"
    ) as publisher:
        assert publisher.current() is None


# -- generations


def number_of(topology):
    return topology.keyspace("objects").servers[1].generation


def test_a_failover_and_back(publisher, client):
    """A number for each life, although a host comes back."""
    publisher.publish(topology(1, generation=1))
    there = topology(2, hosts=("one", "three"), generation=1)
    for dry_run in (True, False):
        done = publisher.publish(there, dry_run=dry_run)
        assert number_of(done.new) == 2
        (raised,) = done.generations
        assert str(raised) == ("objects: generation of 'b' is 2 instead of 1")
        assert "objects: generation of 'b' 1 -> 2" in str(done.diff)
    assert publisher.current() == publisher.at(2) == done.new
    done = publisher.publish(topology(3, generation=2))
    assert number_of(publisher.current()) == number_of(done.new) == 3
    # A publisher that raised it itself gets no message.
    done = publisher.publish(topology(4, hosts=("one", "three"), generation=7))
    assert (number_of(done.new), done.generations) == (7, ())
    # Nor without a generation: the first server.
    assert done.new.keyspace("objects").servers[0].generation is None


def test_a_rollback_brings_no_number_back(publisher):
    three = ("one", "three")
    publisher.publish(topology(1))
    publisher.publish(topology(2, generation=1))
    publisher.publish(topology(3, hosts=three, generation=2))
    done = publisher.rollback(to=2)
    assert done.new == topology(4, generation=3)
    (raised,) = done.generations
    assert (raised.given, raised.published) == (1, 3)
    # The primary is the same as then, and so is the number.
    done = publisher.rollback(to=2)
    assert done.new == topology(5, generation=3)
    # Of a time without numbers.
    done = publisher.rollback(to=1)
    assert done.new == topology(6, generation=3)
    (raised,) = done.generations
    assert str(raised) == ("objects: generation of 'b' is 3 instead of none")
    done = publisher.rollback(to=3)
    assert done.new == topology(7, hosts=three, generation=4)
    # To one that had a number, from one that has none any more.
    publisher.publish(topology(8, hosts=three))
    done = publisher.rollback(to=2)
    assert done.new == topology(9, generation=5)


def test_a_number_that_is_lower_is_refused(publisher):
    publisher.publish(topology(1, generation=5))
    for hosts in (("one", "two"), ("one", "three")):
        with pytest.raises(exc.TopologyRefusedError) as caught:
            publisher.publish(topology(2, hosts=hosts, generation=4))
        (problem,) = caught.value.problems
        assert problem.place == "keyspaces.objects.servers[1].generation"
        assert "4 is lower than 5" in problem.message
        assert "write 5" in problem.message
    assert publisher.current() == topology(1, generation=5)


def test_numbers_of_a_history_that_cannot_be_read(publisher, client):
    publisher.publish(topology(1, generation=8))
    data = to_json(topology(1, generation=20)).replace(b'"kind"', b'"sort"')
    client.create("/history/0000000000", data)
    client.create("/history/0000000002", b"{")
    done = publisher.publish(topology(3, hosts=("one", "three"), generation=8))
    assert number_of(done.new) == 21


def test_a_number_that_leaves_none_is_refused(publisher):
    for old in (None, topology(1, generation=3)):
        if old is not None:
            publisher.publish(old)
        with pytest.raises(exc.TopologyRefusedError) as caught:
            publisher.publish(topology(2, generation=HIGHEST))
        assert f"-> {HIGHEST} is too large a step" in str(caught.value)
    publisher.publish(topology(2, generation=4))


def test_a_server_that_comes_back_has_another_number(publisher):
    publisher.publish(topology(1, generation=1))
    gone = document(2)
    servers = gone["keyspaces"]["objects"]["servers"]
    del servers[1]
    servers[0]["shards"] = [0, 7]
    publisher.publish(Topology.from_mapping(gone, environ={"MYSQL_PASSWORD": ""}))
    done = publisher.publish(topology(3, generation=1))
    assert number_of(done.new) == 2


def test_another_name_of_the_same_machine(publisher):
    publisher.publish(topology(1, generation=4))
    named = topology(2, hosts=("one", "zwei"), generation=4)
    done = publisher.publish(named, renamed=True)
    assert (done.new, done.generations) == (named, ())
    done = publisher.rollback(to=1, renamed=True)
    assert done.new == topology(3, generation=4)


def test_raised_ids_can_be_published_again(publisher):
    """A publication whose answer was lost is repeated without changes."""
    publisher.publish(topology(1, generation=1))
    again = topology(2, hosts=("one", "three"), generation=1)
    first = publisher.publish(again)
    second = publisher.publish(again)
    assert (second.is_published, second.new) == (False, first.new)
    assert second.generations == first.generations
    assert publisher.has(again)
    assert [one.epoch for one in publisher.history()] == [2, 1]
    # Not what would not have become that.
    for other in (
        topology(2, hosts=("one", "three"), generation=0),
        topology(2, hosts=("one", "three"), generation=5),
        topology(2, hosts=("one", "three")),
        topology(2, hosts=("one", "four"), generation=1),
    ):
        assert not publisher.has(other)
        with pytest.raises(exc.StaleTopologyError):
            publisher.publish(other)


def test_an_answer_that_is_lost_of_what_was_raised(location):
    def lose(write):
        write()
        raise exc.TopologyUnavailableError(source="", reason="it is lost")

    with Publisher(location) as publisher:
        publisher.publish(topology(1, generation=1))
    with Cut(location, lose=lose) as publisher:
        done = publisher.publish(topology(2, hosts=("one", "three"), generation=1))
        assert (done.is_published, number_of(done.new)) == (True, 2)


def test_of_many_who_raise_one_wins(location):
    with Publisher(location) as publisher:
        publisher.publish(topology(1, generation=1))
    start = threading.Barrier(4)

    def fail_over(host):
        new = topology(2, hosts=("one", host), generation=1)
        with Publisher(location) as publisher:
            publisher.current()
            start.wait(60)
            try:
                return publisher.publish(new)
            except (exc.TopologyConflictError, exc.StaleTopologyError):
                return None

    with ThreadPoolExecutor(4) as pool:
        done = list(pool.map(fail_over, ["w", "x", "y", "z"]))
    (won,) = [one for one in done if one is not None]
    with Publisher(location) as publisher:
        assert publisher.current() == won.new
        assert number_of(won.new) == 2


# -- lost requests and responses


class Cut(Publisher):
    """Loses its connection when something is written, before or after."""

    def __init__(self, *arguments, lose, **more):
        super().__init__(*arguments, **more)
        self.store_write = self._store.write
        self._store.write = self.write  # type: ignore[method-assign]  # a fault
        self.lose = lose

    def write(self, *arguments, **more):
        return self.lose(lambda: self.store_write(*arguments, **more))


def answers_within(publisher, seconds):
    """Have a publisher wait so long for each answer from now on."""
    publisher._store._connection._timeout = seconds


def test_an_answer_that_is_lost(zookeeper_server, location, client):
    """It was written, and the publisher finds that out."""
    with Proxy(zookeeper_server.host, zookeeper_server.port) as proxy:
        path = location.partition(zookeeper_server.hosts)[2]
        url = f"zookeeper://127.0.0.1:{proxy.port}{path}"
        written = threading.Event()
        lost: list[exc.TopologyUnavailableError] = []

        def lose(write):
            # Half of it is left for us to notice that it was written.
            proxy.delay = 4
            try:
                return write()
            except exc.TopologyUnavailableError as error:
                lost.append(error)
                raise

        with (
            Cut(url, lose=lose, timeout=60) as publisher,
            ThreadPoolExecutor(1) as pool,
        ):
            assert publisher.current() is None
            client.exists("/topology", watch=lambda event: written.set())
            publishing = pool.submit(publisher.publish, topology(1))
            assert written.wait(60)
            # The answer is under way.
            assert not publishing.done()
            proxy.cut()
            proxy.delay = 0
            done = publishing.result(60)
        assert len(lost) == 1
        assert (done.is_published, done.version) == (True, 0)


def test_a_question_that_is_lost(location):
    def lose(write):
        raise exc.TopologyUnavailableError(source="", reason="it is lost")

    with Cut(location, lose=lose) as publisher:
        with pytest.raises(
            exc.TopologyUnavailableError, match="it is lost; nothing was"
        ):
            publisher.publish(topology(1))
        assert publisher.current() is None


def test_a_question_that_is_lost_while_another_publishes(location):
    def lose(write):
        with Publisher(location) as other:
            other.publish(topology(1, shards=16))
        raise exc.TopologyUnavailableError(source="", reason="it is lost")

    with Cut(location, lose=lose) as publisher:
        with pytest.raises(exc.TopologyConflictError):
            publisher.publish(topology(1))
        assert publisher.current() == topology(1, shards=16)


def test_a_server_that_stops_answering():
    with ZooKeeperServer() as server:
        location = f"zookeeper://{server.hosts}/prod"

        def lose(write):
            server.pause()
            # Not earlier: the first requests need responses.
            answers_within(publisher, 0.5)
            try:
                return write()
            finally:
                stopped.set()

        stopped = threading.Event()
        with Publisher(location) as publisher:
            publisher.publish(topology(1))
        with Cut(location, lose=lose) as publisher:
            with pytest.raises(
                exc.TopologyUnavailableError, match="it is unknown whether"
            ):
                publisher.publish(topology(2))
            assert stopped.is_set()
            server.resume()
            answers_within(publisher, 5.0)
            publisher.lose = lambda write: write()
            deadline = time.monotonic() + 30
            while True:
                try:
                    # Whichever it was, to repeat it makes it so.
                    publisher.publish(topology(2))
                    break
                except exc.TopologyUnavailableError:
                    assert time.monotonic() < deadline
            assert publisher.current() == topology(2)
            assert [one.epoch for one in publisher.history()] == [2, 1]


def test_no_server(location):
    with (
        Publisher("zookeeper://127.0.0.1:1/prod", timeout=0.2) as publisher,
        pytest.raises(exc.TopologyUnavailableError, match=":1/prod"),
    ):
        publisher.publish(topology(1))
    with pytest.raises(exc.TopologyError, match="is not a ZooKeeper"):
        Publisher("topology.toml")


def test_the_published_document_is_a_topology_file(publisher, client, tmp_path):
    publisher.publish(topology(1))
    data, _ = client.get("/topology")
    assert json.loads(data) == topology(1).to_mapping()
