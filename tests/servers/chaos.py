"""An application under constant load, whose topology is in ZooKeeper."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError
from kazoo.retry import KazooRetry
from sqlalchemy import insert

from sqla_shard import Cluster, pack
from sqla_shard.exc import TopologyUnavailableError
from sqla_shard.testing import MariaDBFleet
from tests.models.clusters import at
from tests.servers.following import Base, document, Pin, SHARDS, until

#: Seconds in which a topology comes to a cluster, whatever was before.
PATIENCE = 60.0
DATABASE = "db_chaos_{shard:05d}"
#: Short, so that tests need not wait for what takes ten seconds otherwise.
SESSION = 2.0
#: Generous enough for a machine that stops for a second.
LONG_SESSION = 30.0


class Load:
    """Requests of several threads, all the time.

    :param cluster: of the application.
    :param ids: of the objects that are read.
    :param repeats: whether requests go through :meth:`Cluster.run`.
    """

    def __init__(
        self,
        cluster: Cluster,
        ids: list[int],
        rng: random.Random,
        *,
        threads: int = 3,
        repeats: bool = False,
    ) -> None:
        self._cluster = cluster
        self._ids = ids
        self._repeats = repeats
        self._stop = threading.Event()
        self.errors: list[BaseException] = []
        self.done = [0] * threads
        self._threads = [
            threading.Thread(target=self._work, args=(n, random.Random(rng.random())))
            for n in range(threads)
        ]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *details: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(PATIENCE)
        assert self.errors == []
        assert not any(thread.is_alive() for thread in self._threads)

    def _work(self, number: int, rng: random.Random) -> None:
        try:
            while not self._stop.wait(0.002):
                if self._repeats:
                    self._cluster.run(self._request, rng)
                else:
                    with self._cluster.begin() as session:
                        self._request(session, rng)
                self.done[number] += 1
        except BaseException as error:
            self.errors.append(error)

    def _request(self, session: Any, rng: random.Random) -> None:
        key = rng.choice(self._ids)
        found = session.get(Pin, key)
        assert found is not None, key
        if rng.random() < 0.2:
            session.add(at(key >> 46, Pin(title="of a request")))

    def goes_on(self) -> None:
        """See each thread answer some requests from now on."""
        before = list(self.done)
        assert until(
            lambda: (
                self.errors
                or all(
                    now > then + 3 for now, then in zip(self.done, before, strict=True)
                )
            )
        )
        assert self.errors == []


def both_ways(fleet: MariaDBFleet, epoch: int, **more: Any) -> dict[str, Any]:
    """Return a topology of the first two servers, in turn this or that way.

    :param more: for :func:`document`.
    """
    spaces = fleet.topology_mapping(shards=256)["keyspaces"]
    urls = [server["primary"] for server in spaces["objects"]["servers"][:2]]
    if epoch % 2:
        urls.reverse()
    return document(
        epoch,
        {
            "server1": (urls[0], [0, SHARDS // 2 - 1]),
            "server2": (urls[1], [SHARDS // 2, more.get("shards", SHARDS) - 1]),
        },
        database=DATABASE,
        **more,
    )


@contextmanager
def data_on_both(fleet: MariaDBFleet, shards: int = SHARDS) -> Iterator[Any]:
    """Put the same objects on two servers; yield their ids."""
    ids = [pack(shard, 1, k) for shard in range(shards) for k in (1, 2, 3)]
    documents = [both_ways(fleet, epoch, shards=shards) for epoch in (1, 2)]
    # All shards on each server: their names change with the epoch.
    held = {f"server{n}": ("", [0, shards - 1]) for n in (1, 2)}
    every = document(1, held, database=DATABASE)
    fleet.drop_databases(every)
    for one in documents:
        with Cluster.from_topology(one) as cluster:
            cluster.create_all(Base.metadata)
            with cluster.begin(cross_shard="unordered") as session:
                session.execute(insert(Pin), [{"id": i, "title": f"{i}"} for i in ids])
    yield ids
    fleet.drop_databases(every)


@contextmanager
def node(hosts: str, **options: Any) -> Iterator[KazooClient]:
    """Yield a client of its own for a publisher."""
    client = KazooClient(hosts, timeout=5.0, **options)
    client.start(PATIENCE)
    try:
        yield client
    finally:
        client.stop()
        client.close()


class Scene:
    """A ZooKeeper path, and the applications that follow it.

    :param hosts: where publishers find ZooKeeper.
    :param seen: where applications find it; there may be a proxy between.
    :param path: in it, of this test alone.
    """

    def __init__(
        self,
        fleet: MariaDBFleet,
        hosts: str,
        path: str,
        directory: Path,
        *,
        seen: str | None = None,
        options: dict[str, Any] | None = None,
    ) -> None:
        self.fleet = fleet
        self.hosts = hosts
        self.path = path
        self.snapshot = directory / "last.json"
        self.epoch = 0
        self._seen = seen or hosts
        self._options = options or {}

    def open(self, *, patience: float = PATIENCE, session: float = SESSION) -> Cluster:
        """Return the cluster of one more application.

        :param patience: seconds in which ZooKeeper has to answer at first;
            later it is one second, so that an outage is soon known.
        :param session: seconds after which its session ends.
        """
        end = monotonic() + patience
        while True:
            try:
                cluster = Cluster.from_zookeeper(
                    self._seen + self.path,
                    # A machine that is busy may take a second over the first
                    # answer; there would be no topology then, or only the
                    # snapshot.
                    timeout=patience,
                    snapshot=self.snapshot,
                    kazoo_options={"timeout": session, **self._options},
                )
                break
            except TopologyUnavailableError as error:
                # A client with a short session leaves a server that takes a
                # fifth of a second over an answer.
                if "was lost" not in str(error) or monotonic() > end:
                    raise
        follower: Any = cluster._active.follower
        follower._source._connection._timeout = 1.0
        return cluster

    def put(self, data: bytes) -> None:
        """Have some data where the topology is."""
        with node(self.hosts, **self._options) as client:
            where = f"{self.path}/topology"
            # Servers that choose a leader drop their clients.
            patiently = KazooRetry(max_tries=-1, deadline=PATIENCE)
            try:
                patiently(client.set, where, data)
            except NoNodeError:
                client.create(where, data, makepath=True)

    def publish(self) -> int:
        """Publish the next topology: all shards move to the other server."""
        self.epoch += 1
        self.put(json.dumps(both_ways(self.fleet, self.epoch)).encode())
        return self.epoch

    def is_followed(self, *clusters: Cluster) -> None:
        """Publish, and see it used by all."""
        epoch = self.publish()
        for cluster in clusters:
            assert until(
                lambda: cluster.topology.epoch == epoch,  # noqa: B023  # called here
                PATIENCE,
            ), cluster.source_report()
            assert until(
                lambda: cluster.source_report().state == "current",  # noqa: B023  # called here
                PATIENCE,
            )

    @contextmanager
    def application(self, state: str) -> Iterator[Cluster]:
        """Start one more application in the middle of things."""
        # In an outage the snapshot is used when the patience ends.
        with (
            self.open(patience=1.0)
            if state == "stale"
            else self.open(session=LONG_SESSION)
        ) as cluster:
            report = cluster.source_report()
            assert report.state == state
            assert report.from_snapshot == (state == "stale")
            assert report.epoch == self.epoch
            with cluster.begin() as session:
                assert session.get(Pin, pack(0, 1, 1)) is not None
            yield cluster


def is_stale(cluster: Cluster) -> bool:
    """Wait until it is known that the source cannot be asked."""
    return until(lambda: cluster.source_report().state == "stale", PATIENCE)
