"""Many virtual shards in one statement, on real servers.

What is compared with what:

* fifty objects by id, on fifty virtual shards of four servers;
* the newest ten of all objects, on 256 virtual shards of one server and of
  four;
* both over servers that are unequally far away, with the farthest alone.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from contextlib import contextmanager, ExitStack
from functools import partial
from typing import Any

from sqlalchemy import select

from sqla_shard import Cluster, ShardSession, unpack
from sqla_shard.testing import Proxy
from sqla_shard.testing.server_fleet import ServerFleet
from tests.benchmarks import asynchronous, newest, profiling, spider
from tests.benchmarks.pins import Base, fill, MYSQLCLIENT, Pin, raw, upstream
from tests.benchmarks.servers import new_fleet
from tests.benchmarks.timing import compare, show

_SHARDS = 256
# The farthest first: it has the shards from 0, so that a topology of its
# shards alone can be written down.
_ROUND_TRIPS = (0.020, 0.005, 0.002, 0.001)

Way = Callable[[], object]


def run() -> None:
    """Print the tables."""
    with _cluster(servers=4) as (fleet, cluster):
        ids = fill(cluster)
        _fifty(fleet, cluster, ids)
        _fifty_with_mysqlclient(fleet, ids)
        newest.fill_shards(cluster, _SHARDS)
        _newest(cluster, "4 servers")
        _far(fleet, ids)
    with _cluster(servers=1) as (_, cluster):
        fill(cluster)
        newest.fill_shards(cluster, _SHARDS)
        _newest(cluster, "1 server")


def profile() -> None:
    """Print where the time of reading many shards goes."""
    with _cluster(servers=4) as (_, cluster):
        ids = fill(cluster)
        newest.fill_shards(cluster, _SHARDS)
        with cluster.session() as session:
            profiling.show(
                "get_many of 50 objects, session open",
                _open(session, partial(_get_many, ids=ids)),
            )
            profiling.show(
                "get_many of 50 objects, new session",
                _new(cluster, partial(_get_many, ids=ids)),
            )
            profiling.show(
                "the newest 10 of 256 virtual shards, session open",
                _open(session, newest.ours),
            )


@contextmanager
def _cluster(servers: int) -> Iterator[tuple[ServerFleet[Any], Cluster]]:
    with (
        new_fleet(servers, _SHARDS, fast=True) as fleet,
        Cluster.from_topology(fleet.topology_mapping()) as cluster,
    ):
        cluster.create_all(Base.metadata)
        yield fleet, cluster


def _open(session: ShardSession, read: Callable[[Any], Any]) -> Way:
    """Read in a session that has its connections, and no objects."""

    def way() -> None:
        session.expunge_all()
        assert None not in read(session)

    return way


def _new(cluster: Cluster, read: Callable[[Any], Any]) -> Way:
    """Read in a new session."""

    def way() -> None:
        with cluster.session() as session:
            assert None not in read(session)

    return way


def _get_many(session: ShardSession, ids: list[int]) -> list[Any]:
    return session.get_many(Pin, ids)


def _first_only(topology: dict[str, Any], shards: int) -> dict[str, Any]:
    """Return a topology of the shards of the first server alone."""
    objects = topology["keyspaces"]["objects"]
    first = {**objects, "shards": shards, "servers": objects["servers"][:1]}
    return {**topology, "keyspaces": {"objects": first}}


# -- objects by id ---------------------------------------------------------


def _fifty(fleet: ServerFleet[Any], cluster: Cluster, ids: list[int]) -> None:
    many = partial(_get_many, ids=ids)

    def selected(session: ShardSession) -> list[Any]:
        found = session.scalars(select(Pin).where(Pin.id.in_(ids))).all()
        assert len(found) == len(ids)
        return list(found)

    def one_by_one(session: ShardSession) -> list[Any]:
        return [session.get(Pin, object_id) for object_id in ids]

    with ExitStack() as stack:
        enter = stack.enter_context
        session = enter(cluster.session())
        ways: dict[str, Way] = {
            "raw PyMySQL, a UNION ALL for each server in threads": enter(
                raw(cluster, ids)
            ),
            "get_many, session open": _open(session, many),
            "get_many, new session": _new(cluster, many),
            "select() with in_(), session open": _open(session, selected),
            "select() with in_(), new session": _new(cluster, selected),
            **enter(asynchronous.by_id(cluster, ids)),
            "50 times get, session open": _open(session, one_by_one),
            **enter(spider.ways(fleet, ids)),
            "SQLAlchemy's ShardedSession, session open": enter(upstream(cluster, ids)),
        }
        show("50 objects on 50 virtual shards of 4 servers", compare(ways, turns=100))


def _fifty_with_mysqlclient(fleet: ServerFleet[Any], ids: list[int]) -> None:
    if importlib.util.find_spec(MYSQLCLIENT) is None:
        print("\nnot measured: mysqlclient (make mysqlclient installs it)")
        return
    many = partial(_get_many, ids=ids)
    with ExitStack() as stack:
        enter = stack.enter_context
        mapping = fleet.topology_mapping()
        cluster = enter(Cluster.from_topology(mapping, driver="mysqldb"))
        with_pymysql = enter(Cluster.from_topology(mapping))
        ways: dict[str, Way] = {
            "raw mysqlclient, a UNION ALL for each server in threads": enter(
                raw(cluster, ids, MYSQLCLIENT)
            ),
            "get_many, session open": _open(enter(cluster.session()), many),
            "get_many, new session": _new(cluster, many),
            "get_many with PyMySQL, session open": _open(
                enter(with_pymysql.session()), many
            ),
            "SQLAlchemy's ShardedSession, session open": enter(
                upstream(cluster, ids, MYSQLCLIENT)
            ),
        }
        show(
            "50 objects on 50 virtual shards of 4 servers, with mysqlclient",
            compare(ways, turns=100),
        )


# -- the newest of all -----------------------------------------------------


def _newest(cluster: Cluster, where: str) -> None:
    shards = range(_SHARDS)
    with ExitStack() as stack:
        enter = stack.enter_context
        session = enter(cluster.session())
        here = enter(newest.merged_here(cluster, shards))
        there = enter(newest.merged_there(cluster, shards))
        found = [pin.id for pin in newest.ours(session)]
        assert here() == there() == found
        ways: dict[str, Way] = {
            "raw UNION ALL, merged in Python": here,
            "raw UNION ALL with ORDER BY and LIMIT around it": there,
            "select() with scatter(), session open": _open(session, newest.ours),
            "select() with scatter(), new session": _new(cluster, newest.ours),
            **enter(asynchronous.newest_of_all(cluster)),
        }
        show(
            f"the newest 10 of 256 virtual shards on {where}",
            compare(ways, turns=60, warm_up=5),
        )


# -- servers that are far away ---------------------------------------------


def _far(fleet: ServerFleet[Any], ids: list[int]) -> None:
    """Read over proxies, each with a round trip of its own."""
    of_first = _SHARDS // len(fleet.servers)
    its_ids = [i for i in ids if unpack(i).shard_id < of_first]
    with ExitStack() as stack:
        enter = stack.enter_context
        proxies = [enter(Proxy(s.host, s.port)) for s in fleet.servers]
        topology = fleet.topology_mapping(proxies=proxies)
        tables: dict[str, dict[str, Way]] = {
            f"{what}, {how}": {}
            for what in ("50 objects", "the newest 10")
            for how in ("session open", "new session", "PyMySQL by hand")
        }
        every = Cluster.from_topology(topology)
        first = Cluster.from_topology(_first_only(topology, of_first))
        for title, cluster, wanted, shards in (
            ("the farthest server alone", enter(first), its_ids, of_first),
            ("all servers", enter(every), ids, _SHARDS),
        ):
            session = enter(cluster.session())
            many = partial(_get_many, ids=wanted)
            by_hand = newest.merged_there(cluster, range(shards))
            ways = (
                _open(session, many),
                _new(cluster, many),
                enter(raw(cluster, wanted)),
                _open(session, newest.ours),
                _new(cluster, newest.ours),
                enter(by_hand),
            )
            for table, way in zip(tables.values(), ways, strict=True):
                table[title] = way
                way()  # connects
        plain = enter(upstream(every, ids))
        plain()
        tables["50 objects, session open"]["all, ShardedSession"] = plain
        for proxy, seconds in zip(proxies, _ROUND_TRIPS, strict=True):
            proxy.delay = seconds
        for title, table in tables.items():
            show(
                f"{title}, round trips of 20, 5, 2 and 1 ms",
                compare(table, turns=30, warm_up=2),
            )
