"""Up to 64 servers, and 32 threads of an application.

The servers are one server behind as many proxies, each with a round
trip of 10 ms, the first with 20 ms.  They share 65,536 virtual shards, of
which 64 have a database with one object each.

* All 64 objects from 1, 4, 16 and 64 servers, and from the farthest alone.
* Threads and memory of a process of its own, with 64 servers.
* One object at a time, in 32 threads; without a proxy.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, ExitStack
from functools import partial
from time import perf_counter
from typing import Any

from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from sqla_shard import Cluster, pack, ShardSession, unpack
from sqla_shard.testing import Proxy
from sqla_shard.testing.database_server import DatabaseServer
from sqla_shard.testing.topology_documents import topology_document
from tests.benchmarks.pins import Base, Pin, PlainPin
from tests.benchmarks.servers import new_fleet
from tests.benchmarks.timing import compare, show

_SHARDS = 65_536
_SERVERS = (1, 4, 16, 64)
_OBJECTS = max(_SERVERS)
_FARTHEST, _FAR = 0.020, 0.010
_THREADS = 32
_CALLS = 40
_ROUNDS = 5
_TURNS = 30

_PROCESS = """
import json, sys
from sqla_shard import Cluster
from tests.benchmarks.pins import Pin

def show(what):
    with open("/proc/self/status") as file:
        found = dict(line.split(":", 1) for line in file)
    memory = int(found["VmRSS"].split()[0]) / 1024
    print(f"  {what:<44}{memory:>9.1f} MiB{int(found['Threads']):>9}")

topology, ids = json.load(sys.stdin)
show("imported")
cluster = Cluster.from_topology(topology)
show("cluster of 65,536 shards on 64 servers")
for _ in range(3):
    with cluster.session() as session:
        assert None not in session.get_many(Pin, ids)
show("has read from all 64")
"""


def run() -> None:
    """Print the tables."""
    with new_fleet(1, 1, fast=True) as fleet:
        [server] = fleet.servers
        with Cluster.from_topology(fleet.topology_mapping()) as cluster:
            cluster.create_all(Base.metadata)
            with cluster.begin(shard_id=0) as session:
                session.add(Pin(title="a pin", link="https://example.com/a"))
        ids = _copy(server)
        with _proxies(server, max(_SERVERS)) as proxies:
            for count in _SERVERS:
                _read(_topology(server, proxies[:count]), count, ids)
            _process(_topology(server, proxies), ids)
        _threads(fleet.topology_mapping(), server, ids[0])


def _copy(server: Any) -> list[int]:
    """Copy the first database to others, and return the ids."""
    shards = range(0, _SHARDS, _SHARDS // _OBJECTS)
    with closing(server.connect(autocommit=True)) as connection:
        cursor = connection.cursor()
        for shard_id in shards[1:]:
            name = f"db{shard_id:05d}"
            cursor.execute(f"CREATE DATABASE {name}")
            cursor.execute(f"CREATE TABLE {name}.pins LIKE db00000.pins")
            cursor.execute(f"INSERT INTO {name}.pins SELECT * FROM db00000.pins")
    return [pack(shard_id, 1, 1) for shard_id in shards]


@contextmanager
def _proxies(server: Any, count: int) -> Iterator[list[Proxy]]:
    with ExitStack() as stack:
        yield [
            stack.enter_context(
                Proxy(server.host, server.port, delay=_FAR if number else _FARTHEST)
            )
            for number in range(count)
        ]


def _topology(server: DatabaseServer | Any, proxies: list[Proxy]) -> dict[str, Any]:
    return topology_document(
        {
            f"s{number:02d}": f"mysql://{server.user}:{server.password}"
            f"@{proxy.host}:{proxy.port}"
            for number, proxy in enumerate(proxies)
        },
        _SHARDS,
    )


def _read(topology: dict[str, Any], count: int, ids: list[int]) -> None:
    """Compare all servers with the farthest, in an open session."""
    of_first = _SHARDS // count
    its_ids = [one for one in ids if unpack(one).shard_id < of_first]
    with (
        Cluster.from_topology(topology) as cluster,
        cluster.session() as every,
        cluster.session() as first,
    ):
        ways: dict[str, Callable[[], object]] = {
            "the farthest server alone": partial(_get, first, its_ids),
            "all servers": partial(_get, every, ids),
        }
        rows = compare(ways, turns=_TURNS, warm_up=3)
        show(f"64 objects, {count} server(s), up to 20 ms away", rows)
        print(f"  threads of the process: {threading.active_count()}")


def _get(session: ShardSession, ids: list[int]) -> None:
    session.expunge_all()
    assert None not in session.get_many(Pin, ids)


def _process(topology: dict[str, Any], ids: list[int]) -> None:
    """Print memory and threads of a new process."""
    done = subprocess.run(
        [sys.executable, "-c", _PROCESS],
        input=json.dumps([topology, ids]),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    print(f"\n{'A process of its own':<46}{'memory':>9}    {'threads':>9}")
    print(done.stdout, end="")


def _threads(topology: dict[str, Any], server: Any, object_id: int) -> None:
    """Compare 32 threads with as many of plain SQLAlchemy."""
    url = (
        f"mysql+pymysql://{server.user}:{server.password}"
        f"@{server.host}:{server.port}/db00000?charset=utf8mb4"
    )
    engine = create_engine(url, pool_size=_THREADS)
    options = {"pool_size": _THREADS}
    with Cluster.from_topology(topology, engine_options=options) as cluster:

        def plain() -> None:
            with Session(engine) as session:
                assert session.get(PlainPin, 1) is not None

        def ours() -> None:
            with cluster.session() as session:
                assert session.get(Pin, object_id) is not None

        for way in (plain, ours):
            _at_once(way)
        rates: list[list[float]] = [[], []]
        waits: list[list[float]] = [[], []]
        for _ in range(_ROUNDS):
            for number, way in enumerate((plain, ours)):
                rate, times = _at_once(way)
                rates[number].append(rate)
                waits[number].append(times[int(len(times) * 0.99)])
    engine.dispose()
    print(
        f"\n{f'One object at a time, {_THREADS} threads':<42}"
        f"{'a second':>10}{'p99':>12}"
    )
    for number, name in enumerate(("Session.get, one server", "sqla_shard")):
        rate = statistics.median(rates[number])
        wait = statistics.median(waits[number]) * 1e3
        print(f"  {name:<40}{rate:>10.0f}{wait:>9.1f} ms")
    faster = statistics.median(b / a for a, b in zip(*rates, strict=True))
    longer = statistics.median(b / a for a, b in zip(*waits, strict=True))
    print(f"  {'ratio':<40}{faster:>9.2f}x{longer:>11.2f}x")


def _at_once(way: Callable[[], None]) -> tuple[float, list[float]]:
    """Call a way in all threads; return calls a second, and sorted times."""
    start = threading.Barrier(_THREADS + 1)
    times: list[float] = []

    def work() -> None:
        start.wait()
        for _ in range(_CALLS):
            began = perf_counter()
            way()
            times.append(perf_counter() - began)

    threads = [threading.Thread(target=work) for _ in range(_THREADS)]
    for thread in threads:
        thread.start()
    start.wait()
    began = perf_counter()
    for thread in threads:
        thread.join()
    taken = perf_counter() - began
    assert len(times) == _THREADS * _CALLS
    return len(times) / taken, sorted(times)
