"""Pending keys, while nodes of the cache and servers fail.

The writer cannot reach a node that goes on serving its values: these stay
stale until the key was deleted.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from sqla_shard import Cluster
from sqla_shard.cache.stores import KeyState, MemoryStore
from sqla_shard.cache.stores.memcached import MemcachedStore
from sqla_shard.exc import CommitUnknownError, ShardMissingError
from sqla_shard.outbox.invalidations import drain, outbox_size
from sqla_shard.testing import MemcachedServer, Proxy
from sqla_shard.testing.local_server import wait_until
from tests.models.operation_models import Account, Base, points, SHARDS
from tests.servers.kinds import own_fleet, own_lines
from tests.servers.memcached import grow_old, nodes
from tests.servers.operation_servers import own_cluster, own_proxied
from tests.suites.cache_store import leased, put, state, token
from tests.suites.operations import FAR, NEAR, Suite
from tests.suites.outbox import at_commit, forget_all, leave, rows

pytestmark = [pytest.mark.live, pytest.mark.usefixtures("memcached_installed")]

HOME, OTHER = 0, 1  # the servers of NEAR and FAR
RETRY = 0.2
#: A machine that is busy may take so long.
SECONDS = 60


fleet = own_fleet(2, SHARDS)
lines = own_lines()
cluster = own_cluster()
proxied = own_proxied()


@pytest.fixture
def servers() -> Iterator[list[MemcachedServer]]:
    with nodes(2) as servers:
        yield servers


def connected(addresses: list[str], timeout: float = 5.0) -> Any:
    store = MemcachedStore(addresses, timeout=timeout, retry=RETRY, longest=5)
    return contextlib.closing(store)


class TestNodes(Suite):
    @pytest.fixture(autouse=True)
    def _nothing_waits(self, cluster: Cluster) -> Iterator[None]:
        yield
        forget_all(cluster)

    @pytest.mark.parametrize("fault", ["refuse", "hang"])
    def test_an_old_value_is_taken_out_when_the_node_is_back(
        self, cluster, ids, servers, fault
    ):
        """The node has not forgotten it meanwhile."""
        node, healthy = servers
        with (
            Proxy(node.host, node.port) as proxy,
            connected(
                [f"{proxy.host}:{proxy.port}", healthy.address],
                # A node that hangs takes so long; one that is well must not.
                timeout=1.0,
            ) as ours,
        ):
            keys = [f"key:{n}" for n in range(20)]
            for key in keys:
                put(ours, key, b"old")
            getattr(proxy, fault)()
            proxy.cut()
            failed = ours.block(keys, token(), 1)
            assert 0 < len(failed) < len(keys)
            entries = [("r", key) for key in keys if key in failed]
            leave(cluster, ids[NEAR], entries)
            report = drain(cluster, {"r": ours})
            assert report.removed == 0
            (left,) = report.left
            assert (left.region, left.rows) == ("r", len(failed))
            assert len(rows(cluster)) == len(failed)
            proxy.restore()
            for key in failed:
                # That is the lie that ends now.
                assert wait_until(
                    lambda key=key: state(ours, key) is KeyState.VALUE, seconds=SECONDS
                )
            report = drain(cluster, {"r": ours})
            assert (report.removed, report.ok) == (len(failed), True)
            for key in failed:
                assert state(ours, key) is KeyState.LEASED
        assert rows(cluster) == []

    def test_a_node_that_was_killed(self, cluster, ids, servers):
        with connected([one.address for one in servers]) as store:
            keys = [f"key:{n}" for n in range(20)]
            its = [key for key in keys if store.node_of(key) == servers[0].address]
            servers[0].kill()
            assert store.block(keys, token(), 5) == set(its)
            leave(cluster, ids[NEAR], [("r", key) for key in its])
            leave(cluster, ids[FAR], [("r", key) for key in keys])
            report = drain(cluster, {"r": store})
            assert report.removed == len(keys) - len(its)
            assert [w.rows for w in report.left] == [2 * len(its)]
            first, second = store.stats()
            assert (first.answers, second.answers) == (False, True)
            servers[0].start()
            grow_old(servers[0])
            # It was left alone for a moment.
            assert wait_until(lambda: drain(cluster, {"r": store}).ok, seconds=SECONDS)
        assert rows(cluster) == []

    def test_responses_of_nodes(self, servers):
        with connected([one.address for one in servers]) as store:
            put(store, "a", b"1")
            assert state(store, "a") is KeyState.VALUE
            leased(store, ["b", "c", "d"])
            found = store.stats()
            assert [one.node for one in found] == [one.address for one in servers]
            assert all(one.answers for one in found)
            # Both have their guard.
            assert sum(one.items for one in found) == 6
            assert sum(one.hits for one in found) > 0
            for one in found:
                assert one.limit == 64 * 1024 * 1024
                assert 0 < one.bytes < one.limit
                assert one.evictions == 0
                assert one.misses >= 0
                assert 0 <= one.uptime < 600


class TestServers(Suite):
    @pytest.fixture(autouse=True)
    def _nothing_waits(self, cluster: Cluster) -> Iterator[None]:
        yield
        cluster.create_all(Base.metadata)
        forget_all(cluster)

    @pytest.mark.parametrize("when", ["before", "after"])
    def test_a_commit_that_is_cut(self, cluster, proxied, lines, ids, mark, when):
        """The key waits if, and only if, the rest was committed."""
        lines[HOME].cut_at_commit(when=when)
        with (
            at_commit([("r", mark)]),
            pytest.raises(CommitUnknownError),
            proxied.begin() as session,
        ):
            session.get_one(Account, ids[NEAR]).points += 1
        there = when == "after"
        # The server may hear of the end of the connection later.
        assert wait_until(
            lambda: points(cluster, [ids[NEAR]]) == [int(there)], seconds=SECONDS
        )
        assert rows(cluster) == ([(NEAR, "r", mark)] if there else [])

    def test_a_server_that_is_down(self, cluster, proxied, lines, ids, mark):
        leave(cluster, ids[NEAR], [("r", "a"), ("r", "b")])
        leave(cluster, ids[FAR], [("r", "c")])
        lines[HOME].refuse()
        lines[HOME].cut()
        report = drain(proxied, {"r": MemoryStore()})
        assert report.removed == 1
        assert not report.ok
        (lost,) = report.unreachable
        assert str(lost).startswith(
            f"{cluster_server(cluster, NEAR)} unreachable (2003): "
        )
        sizes, unreachable = outbox_size(proxied)
        assert sizes == []
        assert {one.server for one in unreachable} == {lost.server}
        lines[HOME].restore()
        assert wait_until(
            lambda: drain(proxied, {"r": MemoryStore()}).ok, seconds=SECONDS
        )
        assert rows(cluster) == []

    def test_it_is_lost_between_reading_and_deleting(
        self, cluster, proxied, lines, ids
    ):
        class Cutting(MemoryStore):
            def unblock(self, keys: Any, token: bytes) -> set[str]:
                lines[HOME].refuse()
                lines[HOME].cut()
                return super().unblock(keys, token)

        leave(cluster, ids[NEAR], [("r", "a")])
        report = drain(proxied, {"r": Cutting()})
        assert (report.removed, len(report.unreachable)) == (0, 1)
        assert rows(cluster) == [(NEAR, "r", "a")]

    def test_no_table_on_one_shard(self, cluster, fleet, ids):
        """The others of its server are drained."""
        leave(cluster, ids[FAR + 1], [("r", "a")])
        fleet.servers[OTHER].root_execute(f"DROP TABLE db{FAR:05d}.sqla_shard_outbox")
        with pytest.raises(ShardMissingError):
            leave(cluster, ids[FAR], [("r", "b")])
        # Nothing is committed of which the cache would not hear.
        assert points(cluster, [ids[FAR]]) == [0]
        report = drain(cluster, {"r": MemoryStore()})
        assert (report.removed, report.ok) == (1, True)

    def test_a_statement_at_commit_that_fails(self, cluster, fleet, ids):
        server = fleet.servers[HOME]
        table = f"db{NEAR:05d}.sqla_shard_outbox"
        server.root_execute(f"ALTER TABLE {table} MODIFY region VARCHAR(3)")
        with pytest.raises(Exception, match="Data too long"):
            leave(cluster, ids[NEAR], [("long", "b")])
        assert points(cluster, [ids[NEAR]]) == [0]
        leave(cluster, ids[NEAR], [("r", "b")])
        assert points(cluster, [ids[NEAR]]) == [1]
        server.root_execute(f"DROP TABLE {table}")

    def test_asynchronous_sessions(self, cluster, fleet, ids):
        document = fleet.topology_mapping(main=True, lookup=8)

        # It is closed in the loop that has used it.
        other = Cluster.from_topology(document, environ=fleet.environ)

        async def main() -> None:
            async with contextlib.aclosing(other), other.async_begin() as session:
                found = await session.get_one(Account, ids[NEAR])
                found.points += 1

        with at_commit([("r", "a"), ("r", "b")]):
            asyncio.run(main())
        assert rows(cluster) == [(NEAR, "r", "a"), (NEAR, "r", "b")]
        assert points(cluster, [ids[NEAR]]) == [1]

    def test_a_lock_of_another_session(self, cluster, fleet, ids):
        """It is logged, and done the next time."""
        leave(cluster, ids[NEAR], [("r", "a")])
        leave(cluster, ids[FAR], [("r", "b")])
        place = cluster.places.place(cluster.places.keyspace(None, "objects"), NEAR)
        document = fleet.topology_mapping(main=True, lookup=8)
        with (
            Cluster.from_topology(
                document,
                environ=fleet.environ,
                engine_options={
                    "connect_args": {"init_command": "SET innodb_lock_wait_timeout = 1"}
                },
            ) as hasty,
            place.engine.connect() as holder,
        ):
            holder.exec_driver_sql(
                f"SELECT * FROM db{NEAR:05d}.sqla_shard_outbox FOR UPDATE"
            )
            report = drain(hasty, {"r": MemoryStore()})
            assert report.removed == 1
            (locked,) = report.unreachable
            assert "Lock wait timeout" in locked.cause.reason
            holder.rollback()
            assert drain(hasty, {"r": MemoryStore()}).removed == 1


def cluster_server(cluster: Cluster, shard_id: int) -> str:
    places = cluster.places
    return places.place(places.keyspace(None, "objects"), shard_id).server
