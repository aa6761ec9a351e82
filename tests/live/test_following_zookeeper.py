"""A real ZooKeeper that fails in every way, under an application's load.

No request fails, and the next published topology is used after every failure.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kazoo.security import make_digest_acl
from sqlalchemy import event

from sqla_shard import Cluster, Topology
from sqla_shard.exc import TopologyUnavailableError
from sqla_shard.testing import Proxy, ZooKeeperEnsemble, ZooKeeperServer
from sqla_shard.testing.server_fleet import ServerFleet
from sqla_shard.topology import to_json
from sqla_shard.topology.follow import source_at
from sqla_shard.topology.follow.locations import AUTH_VARIABLE
from sqla_shard.topology.zookeeper.source import ZooKeeperConnection
from tests.servers.chaos import (
    data_on_both,
    is_stale,
    Load,
    LONG_SESSION,
    node,
    PATIENCE,
    Scene,
)
from tests.servers.following import in_child, Pin, until
from tests.servers.processes import count_sockets_to, running, started_since

pytestmark = [pytest.mark.live, pytest.mark.usefixtures("zookeeper_installed")]


@pytest.fixture(scope="module")
def ids(fleet: ServerFleet[Any]) -> Iterator[list[int]]:
    with data_on_both(fleet) as ids:
        yield ids


@pytest.fixture(scope="module")
def zookeeper(zookeeper_installed: None) -> Iterator[ZooKeeperServer]:
    """One that no other module uses: it is killed."""
    with ZooKeeperServer() as server:
        yield server


@pytest.fixture
def proxy(zookeeper: ZooKeeperServer) -> Iterator[Proxy]:
    with Proxy(zookeeper.host, zookeeper.port) as proxy:
        yield proxy


@pytest.fixture
def scene(
    zookeeper: ZooKeeperServer,
    proxy: Proxy,
    fleet: ServerFleet[Any],
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> Iterator[Scene]:
    scene = Scene(
        fleet,
        zookeeper.hosts,
        f"/{request.node.name.translate({91: 95, 93: 95})}",
        tmp_path,
        seen=f"{proxy.host}:{proxy.port}",
    )
    scene.publish()
    yield scene
    zookeeper.start()


@pytest.fixture
def cluster(scene: Scene) -> Iterator[Cluster]:
    with scene.open() as cluster:
        yield cluster


@pytest.fixture
def load(cluster: Cluster, ids: list[int], rng: random.Random) -> Iterator[Load]:
    with Load(cluster, ids, rng) as load:
        load.goes_on()
        yield load
        load.goes_on()


def kill(zookeeper: ZooKeeperServer, proxy: Proxy) -> Callable[[], object]:
    zookeeper.kill()
    return zookeeper.start


def pause(zookeeper: ZooKeeperServer, proxy: Proxy) -> Callable[[], object]:
    zookeeper.pause()
    return zookeeper.resume


def hang(zookeeper: ZooKeeperServer, proxy: Proxy) -> Callable[[], object]:
    proxy.hang()
    return proxy.restore


def refuse(zookeeper: ZooKeeperServer, proxy: Proxy) -> Callable[[], object]:
    proxy.refuse()
    proxy.cut()
    return proxy.restore


def wipe(zookeeper: ZooKeeperServer, proxy: Proxy) -> Callable[[], object]:
    zookeeper.wipe()
    return zookeeper.start


@pytest.mark.parametrize("fail", [kill, pause, hang, refuse, wipe])
def test_an_outage(
    fail: Callable[[ZooKeeperServer, Proxy], Callable[[], object]],
    scene: Scene,
    zookeeper: ZooKeeperServer,
    proxy: Proxy,
    cluster: Cluster,
    load: Load,
) -> None:
    scene.is_followed(cluster)
    repair = fail(zookeeper, proxy)
    assert is_stale(cluster)
    load.goes_on()
    # An application that starts now has the last good one.
    with scene.application("stale") as other:
        load.goes_on()
        assert cluster.health().servers == {"server1": None, "server2": None}
        repair()
        scene.is_followed(cluster, other)
    with scene.application("current") as other:
        scene.is_followed(cluster, other)


def test_a_session_that_expires(
    scene: Scene, zookeeper: ZooKeeperServer, cluster: Cluster, load: Load
) -> None:
    for _ in range(3):
        scene.is_followed(cluster)
        client = client_of(cluster)
        session = client.client_id[0]
        # One that had ended by itself is followed by another.
        assert until(
            lambda: client.client_id and zookeeper.expire(client.client_id),  # noqa: B023  # called here
            PATIENCE,
        )
        # Between the two it has none.
        assert until(
            lambda: (client.client_id or [session])[0] != session,  # noqa: B023  # called here
            PATIENCE,
        )
        load.goes_on()
        scene.is_followed(cluster)
        with scene.application("current"):
            load.goes_on()


def client_of(cluster: Cluster) -> Any:
    follower: Any = cluster._active.follower
    return follower._source._connection._client


def test_a_connection_that_flaps(
    scene: Scene, proxy: Proxy, cluster: Cluster, load: Load
) -> None:
    """Listeners are called once for each topology, and for nothing else."""
    notified: list[int] = []

    @event.listens_for(cluster, "topology_changed")
    def note(cluster: Cluster, old: Topology, new: Topology) -> None:
        notified.append(new.epoch)

    for _ in range(10):
        proxy.cut()
        load.goes_on()
    assert notified == []
    for _ in range(3):
        scene.is_followed(cluster)
        proxy.cut()
        load.goes_on()
    # They are called when the new one is in use, a little later.
    assert until(lambda: notified == [2, 3, 4])


def test_lost_data_is_no_topology_and_old_data_none_either(
    scene: Scene, zookeeper: ZooKeeperServer, cluster: Cluster, load: Load
) -> None:
    scene.is_followed(cluster)
    scene.is_followed(cluster)
    used = cluster.topology
    with node(scene.hosts) as client:
        client.delete(f"{scene.path}/topology")
    assert is_stale(cluster)
    assert "nothing is published" in str(cluster.source_report().last_error)
    load.goes_on()
    with scene.application("stale"):
        load.goes_on()
    # From a backup, with an epoch that was used up long ago.
    scene.epoch = 0
    scene.publish()
    assert until(lambda: "older" in str(cluster.source_report().last_error), PATIENCE)
    assert cluster.topology is used
    scene.epoch = used.epoch
    with scene.application("stale"):
        load.goes_on()
    scene.is_followed(cluster)


def test_nothing_in_the_beginning(
    scene: Scene, zookeeper: ZooKeeperServer, proxy: Proxy
) -> None:
    with node(scene.hosts) as client:
        client.delete(f"{scene.path}/topology")
    before = running()
    with pytest.raises(TopologyUnavailableError, match="topology push"):
        scene.open(session=LONG_SESSION)
    proxy.refuse()
    with pytest.raises(TopologyUnavailableError, match="no server answered"):
        scene.open(patience=1.0)
    # kazoo's threads are gone.
    assert until(lambda: not started_since(before), PATIENCE)


def test_closing_in_an_outage(scene: Scene, proxy: Proxy, ids: list[int]) -> None:
    before = running()
    with scene.open() as cluster:
        with cluster.session() as session:
            assert session.get(Pin, ids[0]) is not None
        proxy.hang()
    assert cluster.source_report().state == "closed"
    assert until(lambda: not started_since(before), PATIENCE)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("used", [False, True])
def test_a_child_process(
    scene: Scene, ids: list[int], tmp_path: Path, used: bool
) -> None:
    """It opens a session of its own, and leaves its parent's alone."""
    with scene.open(session=LONG_SESSION) as cluster:
        if used:
            scene.is_followed(cluster)
        session = client_of(cluster).client_id
        ((_, port),) = client_of(cluster).hosts
        assert count_sockets_to(port) == 1

        def child() -> None:
            assert count_sockets_to(port) == 0
            assert client_of(cluster) is None
            scene.is_followed(cluster)
            assert client_of(cluster).client_id != session
            with cluster.begin() as one:
                assert one.get(Pin, ids[0]) is not None
            cluster.close()

        in_child(child, tmp_path)
        scene.epoch += 1
        assert until(lambda: cluster.topology.epoch == scene.epoch, PATIENCE)
        assert client_of(cluster).client_id == session
        assert until(lambda: client_of(cluster).connected, PATIENCE)
        scene.is_followed(cluster)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_child_of_a_process_that_publishes(
    zookeeper: ZooKeeperServer, tmp_path: Path
) -> None:
    """The child follows nothing; the session is the parent's alone."""
    connection = ZooKeeperConnection(zookeeper.hosts)
    try:
        session = connection.client().client_id

        def child() -> None:
            assert count_sockets_to(zookeeper.port) == 0

        in_child(child, tmp_path)
        assert connection.client().client_id == session
        assert connection.ask(lambda one: one.exists_async("/")) is not None
    finally:
        connection.close()


def test_an_ensemble_without_its_leader(
    fleet: ServerFleet[Any], tmp_path: Path, ids: list[int], rng: random.Random
) -> None:
    with ZooKeeperEnsemble(servers=3) as ensemble:
        scene = Scene(fleet, ensemble.hosts, "/prod", tmp_path)
        scene.publish()
        with scene.open() as cluster, Load(cluster, ids, rng) as load:
            scene.is_followed(cluster)
            leader = ensemble.leader()
            leader.kill()
            load.goes_on()
            scene.is_followed(cluster)
            # Without a majority, no server responds.
            second = ensemble.leader()
            second.kill()
            assert is_stale(cluster)
            with scene.application("stale") as other:
                load.goes_on()
                leader.start()
                second.start()
                scene.is_followed(cluster, other)
            load.goes_on()


def test_tls_and_digest(
    fleet: ServerFleet[Any],
    tmp_path: Path,
    ids: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By kazoo's options, and by a URL."""
    with ZooKeeperServer(tls=True) as server:
        tls = {
            "use_ssl": True,
            "ca": str(server.ca),
            "certfile": str(server.certificate),
            "keyfile": str(server.key),
        }
        auth = {"auth_data": [("digest", "app:sesame")]}
        scene = Scene(fleet, server.hosts, "/prod", tmp_path, options={**tls, **auth})
        scene.publish()
        with node(server.hosts, **tls) as client:
            client.set_acls(
                "/prod/topology", [make_digest_acl("app", "sesame", all=True)]
            )
        with scene.open() as cluster:
            scene.is_followed(cluster)
            with cluster.session() as session:
                assert session.get(Pin, ids[0]) is not None
        stranger = Scene(fleet, server.hosts, "/prod", tmp_path / "other", options=tls)
        with pytest.raises(TopologyUnavailableError, match="NoAuthError"):
            stranger.open()
        plain = Scene(fleet, server.hosts, "/prod", tmp_path / "x")
        with pytest.raises(TopologyUnavailableError, match="no server"):
            plain.open(patience=1.0)
        monkeypatch.setenv(AUTH_VARIABLE, "digest:app:sesame")
        source = source_at(
            f"zookeeper+tls://{server.hosts}/prod?ca={server.ca}"
            f"&certfile={server.certificate}&keyfile={server.key}"
        )
        with Cluster.from_source(source) as cluster:
            scene.is_followed(cluster)
            shown = repr(cluster) + str(cluster.health())
        assert "sesame" not in shown + to_json(cluster.topology).decode()
