"""Random edits of a topology that is in use: only good newer ones are used."""

from __future__ import annotations

import copy
import gc
import json
import os
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event

from sqla_shard import Cluster, Topology
from sqla_shard.testing import ZooKeeperServer
from sqla_shard.testing.server_fleet import ServerFleet
from sqla_shard.topology.zookeeper.source import ZooKeeperSource
from tests.servers.chaos import both_ways, data_on_both, Load, node, PATIENCE
from tests.servers.following import SHARDS, until

pytestmark = pytest.mark.live

SOAK = os.environ.get("SQLA_SHARD_SOAK") == "1"
EDITS = 3000 if SOAK else 200
WARM = 60
#: So many shards have their databases; they are opened one after another.
MOST = SHARDS + 4

Document = dict[str, Any]


class Counting(ZooKeeperSource):
    """Counts its answers, so that a test knows when one was given."""

    answers = 0

    def load(self) -> Topology:
        try:
            return super().load()
        finally:
            self.answers += 1


class Edits:
    """Makes random edits, and says which of them may be used.

    :ivar used: the document that must be in use.
    """

    def __init__(self, rng: random.Random, used: Document) -> None:
        self.rng = rng
        self.used = used
        #: The server that has left, if one has.
        self.left: list[Document] = []

    def next(self) -> tuple[str, bytes | None, bool]:
        """Return the kind of an edit, its bytes (None to delete), and
        whether it must be used."""
        good = self.rng.random() < 0.4
        kinds = GOOD if good else BAD
        kind = self.rng.choice(kinds)
        new = copy.deepcopy(self.used)
        new["epoch"] += self.rng.choice([1, 1, 2, 50])
        made = kind(self, new)
        if good:
            self.used = new
        if isinstance(made, bytes) or kind is delete:
            return kind.__name__, made, good
        return kind.__name__, json.dumps(new).encode(), good


def objects(document: Document) -> Document:
    found: Document = document["keyspaces"]["objects"]
    return found


# -- what may be used


def nothing_else(edits: Edits, new: Document) -> None:
    """Another epoch, and nothing else."""


def swap(edits: Edits, new: Document) -> None:
    """The data is on both: all of it moves."""
    servers = objects(new)["servers"]
    urls = [server["primary"] for server in servers]
    for server, url in zip(servers, reversed(urls), strict=True):
        server["primary"] = url


def divide(edits: Edits, new: Document) -> None:
    servers = objects(new)["servers"]
    if len(servers) == 2:
        cut = edits.rng.randrange(1, objects(new)["shards"])
        servers[0]["shards"] = [0, cut - 1]
        servers[1]["shards"] = [cut, objects(new)["shards"] - 1]


def leave(edits: Edits, new: Document) -> None:
    """One server leaves, or comes back."""
    if len(objects(new)["servers"]) == 2:
        gone = objects(new)["servers"].pop(edits.rng.randrange(2))
        edits.left.append(gone)
        objects(new)["servers"][0]["shards"] = [0, objects(new)["shards"] - 1]
    else:
        objects(new)["servers"].append(edits.left.pop())
        divide(edits, new)


def open_shard(edits: Edits, new: Document) -> None:
    if objects(new)["shards"] < MOST:
        last = max(objects(new)["servers"], key=lambda s: s["shards"][1])
        last["shards"][1] += 1
        objects(new)["shards"] += 1


def weigh(edits: Edits, new: Document) -> None:
    objects(new)["servers"][0]["weight"] = edits.rng.randint(1, 9)


GOOD = [nothing_else, swap, swap, divide, leave, leave, open_shard, weigh]


# -- what may not


def older(edits: Edits, new: Document) -> None:
    swap(edits, new)
    new["epoch"] = max(1, edits.used["epoch"] - edits.rng.choice([1, 2, 100]))


def equal(edits: Edits, new: Document) -> None:
    objects(new)["servers"][0]["weight"] = 77
    new["epoch"] = edits.used["epoch"]


def repeated(edits: Edits, new: Document) -> None:
    new["epoch"] = edits.used["epoch"]


def close_shards(edits: Edits, new: Document) -> None:
    objects(new)["shards"] = 2
    objects(new)["servers"] = objects(new)["servers"][:1]
    objects(new)["servers"][0]["shards"] = [0, 1]


def rename(edits: Edits, new: Document) -> None:
    objects(new)["database"] = "db_elsewhere_{shard:05d}"


def lose_keyspace(edits: Edits, new: Document) -> None:
    new["keyspaces"]["things"] = new["keyspaces"].pop("objects")


def gap(edits: Edits, new: Document) -> None:
    objects(new)["servers"][0]["shards"][1] -= 1
    objects(new)["shards"] += 1


def twice(edits: Edits, new: Document) -> None:
    first = copy.deepcopy(objects(new)["servers"][0])
    objects(new)["servers"].append({**first, "name": "server9"})


def no_epoch(edits: Edits, new: Document) -> None:
    new["epoch"] = edits.rng.choice([None, -1, "7", 1.5, True, [], 2**80])


def no_url(edits: Edits, new: Document) -> None:
    objects(new)["servers"][0]["primary"] = edits.rng.choice(
        ["", "nonsense", "mysql://", "mysql://${HOME}@h", None, 7]
    )


def not_a_table(edits: Edits, new: Document) -> None:
    new["keyspaces"] = edits.rng.choice([None, [], {}, "objects", 1])


def cut_off(edits: Edits, new: Document) -> bytes:
    data = json.dumps(new).encode()
    return data[: edits.rng.randrange(len(data) - 1)]


def garbled(edits: Edits, new: Document) -> bytes:
    data = bytearray(json.dumps(new).encode())
    data[edits.rng.randrange(len(data))] = 0xFF
    return bytes(data)


def garbage(edits: Edits, new: Document) -> bytes:
    return edits.rng.choice([b"", b"null", b"[]", b"\0" * 9, edits.rng.randbytes(200)])


def delete(edits: Edits, new: Document) -> None:
    """Have nothing there."""


BAD = [
    *(older, equal, repeated, close_shards, rename, lose_keyspace, gap, twice),
    *(no_epoch, no_url, not_a_table, cut_off, cut_off, garbled, garbage),
    delete,
]


@pytest.fixture(scope="module")
def ids(fleet: ServerFleet[Any]) -> Iterator[list[int]]:
    with data_on_both(fleet, MOST) as ids:
        yield ids


class Used:
    """The resources that a process uses at one moment."""

    def __init__(self, cluster: Cluster) -> None:
        gc.collect()
        self.threads = threading.active_count()
        self.files = len(os.listdir("/proc/self/fd"))
        pages = Path("/proc/self/statm").read_text().split()[1]
        self.bytes = int(pages) * os.sysconf("SC_PAGE_SIZE")
        self.pools = len(cluster.stats())


def test_only_good_newer_ones_are_used(
    fleet: ServerFleet[Any],
    zookeeper_server: ZooKeeperServer,
    ids: list[int],
    rng: random.Random,
    tmp_path: Path,
    say: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Between two questions; it is most of the time here.
    monkeypatch.setattr("sqla_shard.topology.follow.follower._GAP", 0.005)
    first = both_ways(fleet, 2)
    edits = Edits(rng, first)
    epochs: list[int] = []
    kinds: list[str] = []
    hosts = f"{zookeeper_server.hosts}/random_edits_{os.getpid()}"
    with node(zookeeper_server.hosts) as client:
        where = hosts.partition("/")[2]
        client.create(f"/{where}/topology", json.dumps(first).encode(), makepath=True)
        source = Counting(hosts)
        mine = [key for key in ids if key >> 46 < SHARDS]
        with (
            Cluster.from_source(source, snapshot=tmp_path / "last.json") as cluster,
            Load(cluster, mine, rng, repeats=True) as load,
        ):

            @event.listens_for(cluster, "topology_changed")
            def note(cluster: Cluster, old: Topology, new: Topology) -> None:
                assert new.epoch > old.epoch
                epochs.append(new.epoch)

            expected: list[int] = []
            before: Used | None = None
            load.goes_on()
            for number in range(EDITS):
                if number == WARM:
                    load.goes_on()
                    before = Used(cluster)
                kind, data, good = edits.next()
                kinds.append(kind)
                answers = source.answers
                put(client, f"/{where}/topology", data)
                if good:
                    expected.append(edits.used["epoch"])
                    assert until(
                        lambda: cluster.topology.epoch == expected[-1], PATIENCE
                    ), (kinds[-5:], cluster.source_report())
                elif data is not None or kinds[-2:-1] != ["delete"]:
                    assert until(
                        lambda: source.answers > answers,  # noqa: B023  # called here
                        PATIENCE,
                    ), (kinds[-5:], cluster.source_report())
                assert cluster.topology == parsed(edits.used), kinds[-5:]
            load.goes_on()
            assert before is not None
            after = Used(cluster)
            assert not any(stats.retired for stats in cluster.stats())
            assert epochs == expected
            done = sum(load.done)
        client.delete(f"/{where}", recursive=True)
    say(
        f"{EDITS} edits, {len(expected)} of them used; {done} requests; "
        f"{(after.bytes - before.bytes) / 1e6:.1f} MB more"
    )
    assert len(set(kinds)) > 10
    assert after.threads <= before.threads
    assert after.files <= before.files + 8
    assert after.pools <= 2
    # With what pytest keeps of the log.
    assert after.bytes - before.bytes < 12_000_000 + EDITS * 4_000


def parsed(document: Document) -> Topology:
    return Topology.from_mapping(document)


def put(client: Any, where: str, data: bytes | None) -> None:
    if data is None:
        if client.exists(where):
            client.delete(where)
    elif client.exists(where):
        client.set(where, data)
    else:
        client.create(where, data)
