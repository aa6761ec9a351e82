"""Writes to several servers: operations, COMMITs in order, and repair."""

from __future__ import annotations

from time import perf_counter
from typing import Any

from sqla_shard import Cluster, ShardSession
from sqla_shard.testing.server_fleet import ServerFleet
from tests.benchmarks import profiling
from tests.benchmarks.servers import new_fleet, title
from tests.benchmarks.timing import compare, show
from tests.models.operation_models import account, add, after_crash, Base

_SHARDS = 8
_MANY = 4096
_LEFT = 1000


def run() -> None:
    """Print the tables."""
    with new_fleet(servers=4, shards=_SHARDS, fast=True) as fleet:
        with Cluster.from_topology(
            fleet.topology_mapping(main=True, lookup=4), environ=fleet.environ
        ) as cluster:
            cluster.create_all(Base.metadata)
            ids = [account(cluster, n) for n in range(_SHARDS)]
            _write(cluster, ids[::2])
            _repair(cluster, ids)
        with _many(fleet) as cluster:
            _empty(cluster)


def profile() -> None:
    """Print where a pass over many shards spends its time."""
    with (
        new_fleet(servers=4, shards=_SHARDS, fast=True) as fleet,
        _many(fleet) as cluster,
    ):
        profiling.show(f"an empty pass, {_MANY:,} shards", cluster.repair)


def _many(fleet: ServerFleet[Any]) -> Cluster:
    document = fleet.topology_mapping(shards=_MANY, database="db_many{shard:05d}")
    cluster = Cluster.from_topology(document, environ=fleet.environ)
    metadata = Base.metadata.__class__()
    Base.metadata.tables["accounts"].to_metadata(metadata)
    cluster.create_all(metadata)
    return cluster


def _write(cluster: Cluster, ids: list[int]) -> None:
    """Compare transactions that write one server, two, and four."""

    def one_shard() -> None:
        with cluster.begin() as session:
            add(session, ids[0], 1)

    def each(count: int) -> None:
        for target in ids[:count]:
            with cluster.begin() as session:
                add(session, target, 1)

    def ordered(count: int) -> None:
        with cluster.begin(cross_shard="ordered") as session:
            for target in ids[:count]:
                add(session, target, 1)

    def logged(count: int) -> None:
        with cluster.begin(cross_shard="logged") as session:
            _intend(session, ids[:count])

    show(
        f"one row on each of several servers, 4 {title()} servers",
        compare(
            {
                "1 server, 1 transaction": one_shard,
                "2 servers, a transaction for each": lambda: each(2),
                '2 servers, cross_shard="ordered"': lambda: ordered(2),
                '2 servers, "logged": 1 operation': lambda: logged(2),
                "4 servers, a transaction for each": lambda: each(4),
                '4 servers, cross_shard="ordered"': lambda: ordered(4),
                '4 servers, "logged": 3 operations': lambda: logged(4),
            },
            turns=150,
        ),
    )


def _intend(session: ShardSession, ids: list[int]) -> None:
    first, *others = ids
    add(session, first, 1)
    for target in others:
        add.intend(session, target, 1)


def _repair(cluster: Cluster, ids: list[int]) -> None:
    with after_crash():
        for number in range(_LEFT):
            home = number % _SHARDS
            with cluster.begin(cross_shard="logged") as session:
                _intend(session, [ids[home], ids[(home + 3) % _SHARDS]])
    begin = perf_counter()
    applied = 0
    while applied < _LEFT:
        applied += cluster.repair(now=True).applied
    took = perf_counter() - begin
    print(
        f"\nrepair of {_LEFT:,} operations on 4 {title()} servers: "
        f"{took:.2f} s, {took / _LEFT * 1e3:.2f} ms each"
    )


def _empty(cluster: Cluster) -> None:
    show(
        f"one pass of repair() with nothing to do, {_MANY:,} shards on 4 "
        f"{title()} servers",
        compare({"repair()": cluster.repair}, turns=10, warm_up=2),
    )
