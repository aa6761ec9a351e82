"""Ids from two ticket servers, of which one may be down."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert, select
from sqlalchemy.orm import DeclarativeBase, Mapped

from sqla_shard import blob_field, Cluster, ObjectMixin, scatter, unpack
from sqla_shard.exc import IdServiceError
from sqla_shard.models.tickets import TicketServers
from sqla_shard.testing import sqlite_topology
from sqla_shard.testing.database_server import DatabaseServer
from tests.servers.kinds import Kind

Servers = tuple[DatabaseServer, DatabaseServer]


class Base(DeclarativeBase):
    id_source = "service"


class Coupon(ObjectMixin, Base, type_id=6):
    __tablename__ = "coupons"
    title: Mapped[str] = blob_field(default="")


@pytest.fixture(scope="module")
def servers(server_kind: Kind) -> Iterator[Servers]:
    # Not fast: a counter must survive a server that is killed.
    new = server_kind.server
    with new("tickets1") as one, new("tickets2") as two:
        yield one, two


@pytest.fixture
def tickets(servers: Servers, request: Any) -> Iterator[TicketServers]:
    for server in servers:
        if not server.running:
            server.start()
    found = TicketServers(
        [server.url for server in servers], database=f"db_{request.node.name[:50]}"
    )
    found.create(["coupons"])
    yield found
    found.dispose()


@pytest.fixture
def cluster(tmp_path: Path, tickets: TicketServers) -> Iterator[Cluster]:
    with Cluster.from_topology(sqlite_topology(tmp_path, 2, 8)) as cluster:
        cluster.create_all(Base.metadata)
        cluster.id_service = tickets
        yield cluster


def sell(cluster: Cluster, shard_id: int, count: int = 1) -> list[int]:
    """Insert coupons; return their local ids."""
    with cluster.begin(shard_id=shard_id) as session:
        new = [Coupon() for _ in range(count)]
        session.add_all(new)
        session.flush()
        found = [unpack(one.id) for one in new]
    assert {(one.shard_id, one.type_id) for one in found} == {(shard_id, 6)}
    return [one.local_id for one in found]


def test_odd_and_even_numbers(cluster: Cluster, tickets: TicketServers) -> None:
    assert sell(cluster, 1, 3) == [1, 3, 5]
    assert sell(cluster, 5, 3) == [2, 4, 6]
    with cluster.begin(shard_id=2) as session:
        session.execute(insert(Coupon), [{"title": "a"}, {"title": "b"}])
    assert sell(cluster, 2) == [8]
    with cluster.session() as session:
        ids = session.scalars(select(Coupon.id).options(scatter())).all()
    assert sorted(unpack(one).local_id for one in ids) == [*range(1, 7), 7, 8, 9]
    tickets.create(["coupons"], above=1000)
    assert sorted(sell(cluster, 0) + sell(cluster, 0)) == [1001, 1002]
    tickets.create(["coupons"], above=50)
    assert sorted(sell(cluster, 0) + sell(cluster, 0)) == [1003, 1004]


@pytest.mark.thorough
def test_a_server_is_killed_between_inserts_and_comes_back(
    servers: Servers, cluster: Cluster
) -> None:
    sold: list[int] = []
    end = threading.Event()
    seen = threading.Condition()

    def writer(shard_id: int) -> list[int]:
        own = []
        while not end.is_set():
            own += (more := sell(cluster, shard_id, 2))
            with seen:
                sold.extend(more)
                seen.notify_all()
        return own

    def more_than(count: int, parity: int) -> None:
        """Wait for new numbers of a server."""
        with seen:
            here = len(sold)
            assert seen.wait_for(
                lambda: sum(n % 2 == parity for n in sold[here:]) > count, 120
            )

    with ThreadPoolExecutor(3) as pool:
        runs = [pool.submit(writer, shard_id) for shard_id in (1, 4, 6)]
        try:
            more_than(5, 1)
            servers[0].kill()
            more_than(20, 0)
            servers[0].restart()
            more_than(5, 1)
        finally:
            end.set()
        ids = [one for run in runs for one in run.result(120)]
    # All shards together: a number is issued once.
    assert len(set(ids)) == len(ids) == len(sold)


@pytest.mark.thorough
def test_a_server_that_hangs(servers: Servers, cluster: Cluster) -> None:
    sell(cluster, 1)
    sell(cluster, 1)
    servers[0].pause()
    try:
        assert all(number % 2 == 0 for _ in range(3) for number in sell(cluster, 1))
    finally:
        servers[0].resume()


def test_no_server_is_left(servers: Servers, cluster: Cluster) -> None:
    for server in servers:
        server.kill()
    with pytest.raises(IdServiceError) as caught:
        sell(cluster, 1)
    for server in servers:
        assert f"{server.host}:{server.port}" in str(caught.value)
        assert server.password not in str(caught.value)
        server.restart()
    assert sell(cluster, 1)[0] in (1, 2)
    with cluster.session() as session:
        assert len(session.scalars(select(Coupon).options(scatter())).all()) == 1


def test_servers_in_another_order(
    servers: Servers, tickets: TicketServers, cluster: Cluster, request: Any
) -> None:
    database = f"db_{request.node.name[:50]}"
    urls = [server.url for server in servers]
    for other in (urls[::-1], urls[:1]):
        wrong = TicketServers(other, database=database)
        with pytest.raises(IdServiceError, match="same URLs in the same"):
            wrong.issue("coupons", 1)
        with pytest.raises(IdServiceError, match="same URLs in the same"):
            wrong.create(["coupons"])
        wrong.dispose()
    with pytest.raises(IdServiceError, match=r"create\(\['users'\]"):
        tickets.issue("users", 1)
    with pytest.raises(IdServiceError, match=r"doesn't exist|Unknown database"):
        TicketServers(urls, database="db_none").issue("coupons", 1)
    assert sorted(sell(cluster, 0) + sell(cluster, 0)) == [1, 2]


def test_a_child_process_has_connections_of_its_own(
    tickets: TicketServers, tmp_path: Path
) -> None:
    def several() -> list[int]:
        return [n for _ in range(30) for n in tickets.issue("coupons", 3)]

    numbers = several()
    path = tmp_path / "numbers"
    child = os.fork()
    if not child:
        code = 1
        try:
            path.write_text(json.dumps(several()))
            code = 0
        finally:
            os._exit(code)
    numbers += several()
    assert os.waitpid(child, 0) == (child, 0)
    numbers += json.loads(path.read_text())
    assert len(set(numbers)) == 3 * 30 * 3


def test_an_event_loop_does_not_wait(cluster: Cluster, tickets: TicketServers) -> None:
    threads = []

    class Watched:
        def issue(self, table: str, count: int) -> Any:
            threads.append(threading.current_thread())
            return tickets.issue(table, count)

    async def add() -> int:
        async with cluster.async_begin(shard_id=3) as session:
            session.add(new := Coupon())
            await session.flush()
            return int(new.id)

    cluster.id_service = Watched()
    assert unpack(asyncio.run(add())).local_id in (1, 2)
    assert threads
    assert threading.current_thread() not in threads
