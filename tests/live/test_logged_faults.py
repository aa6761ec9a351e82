"""Operations on other shards, during failures of servers.

A proxy before each server cuts the connection on which a COMMIT comes.  What
is there is read, and repaired, past the proxies.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Any, Literal

import pytest
from sqlalchemy.exc import OperationalError

from sqla_shard import Cluster
from sqla_shard.exc import CommitUnknownError, ShardMissingError
from sqla_shard.outbox.tables import METADATA
from sqla_shard.testing.server_fleet import ServerFleet
from tests.models.operation_models import (
    account,
    add,
    after_crash,
    Base,
    count_applied,
    intend,
    make_due,
    note,
    points,
    SHARDS,
)
from tests.servers.kinds import own_fleet, own_lines
from tests.servers.operation_servers import own_cluster, own_proxied
from tests.suites.operations import FAR, NEAR, Suite

pytestmark = pytest.mark.live

When = Literal["before", "after"]
WHENS: list[When] = ["before", "after"]
SECONDS = 60
HOME, TARGET = 0, 1  # the servers of NEAR and FAR


fleet = own_fleet(2, SHARDS)
lines = own_lines()
cluster = own_cluster()
proxied = own_proxied()


class TestCuts(Suite):
    """A COMMIT that is cut, before the server has got it or after."""

    def check(self, cluster: Cluster, ids: list[int], mark: str, there: bool) -> None:
        """All of it is there once, or nothing, after two repairs."""
        for _ in range(2):
            make_due(cluster)
            assert cluster.repair().ok
        assert cluster.pending() == []
        expected = {(ids[FAR], mark): 1} if there else {}
        assert self.only(cluster, mark) == expected
        assert points(cluster, [ids[NEAR]]) == [int(there)]
        assert count_applied(cluster) == int(there)

    @pytest.mark.parametrize("when", WHENS)
    def test_of_the_transaction(self, cluster, proxied, lines, ids, mark, when):
        lines[HOME].cut_at_commit(when=when)
        with (
            pytest.raises(CommitUnknownError),
            proxied.begin(cross_shard="logged") as session,
        ):
            intend(session, ids[NEAR], ids[FAR], mark)
        # Nothing was done on a guess.
        assert self.only(cluster, mark) == {}
        self.check(cluster, ids, mark, when == "after")

    @pytest.mark.parametrize("when", WHENS)
    def test_of_the_transaction_with_a_key(
        self, cluster, proxied, lines, ids, mark, when
    ):
        """Its outcome is looked up, and its operations are applied."""

        def write(session: Any) -> None:
            intend(session, ids[NEAR], ids[FAR], mark)

        lines[HOME].cut_at_commit(when=when)
        proxied.run(write, key=mark, cross_shard="logged")
        self.check(cluster, ids, mark, True)

    @pytest.mark.parametrize("when", WHENS)
    def test_of_the_transaction_awaited(self, cluster, fleet, lines, ids, mark, when):
        async def write() -> None:
            document = fleet.topology_mapping(main=True, lookup=8, proxies=lines)
            proxied = Cluster.from_topology(document, environ=fleet.environ)
            try:
                async with proxied.async_begin(cross_shard="logged") as session:
                    await session.run_sync(intend, ids[NEAR], ids[FAR], mark)
                    # Not before: asyncmy commits on each new connection.
                    lines[HOME].cut_at_commit(when=when)
            finally:
                await proxied.aclose()

        with pytest.raises(CommitUnknownError):
            asyncio.run(write())
        self.check(cluster, ids, mark, when == "after")

    @pytest.mark.parametrize("when", WHENS)
    def test_of_what_applies_it(self, cluster, proxied, lines, ids, mark, when):
        lines[TARGET].cut_at_commit(when=when)
        with proxied.begin(cross_shard="logged") as session:
            intend(session, ids[NEAR], ids[FAR], mark)
        (pending,) = session.pending
        assert pending.target == ("objects", FAR)
        (one,) = cluster.pending()
        assert one.error.startswith("CommitUnknownError")
        assert sum(self.only(cluster, mark).values()) == (when == "after")
        self.check(cluster, ids, mark, True)

    @pytest.mark.parametrize("when", WHENS)
    def test_of_what_deletes_it(self, cluster, proxied, lines, ids, mark, when):
        lines[HOME].cut_at_commit(2, when=when)
        with proxied.begin(cross_shard="logged") as session:
            intend(session, ids[NEAR], ids[FAR], mark)
        assert session.pending == ()
        assert len(cluster.pending()) == (when == "before")
        self.check(cluster, ids, mark, True)

    @pytest.mark.parametrize(("server", "n"), [(HOME, 1), (TARGET, 1), (HOME, 2)])
    @pytest.mark.parametrize("when", WHENS)
    def test_of_a_worker(self, cluster, proxied, lines, ids, mark, server, n, when):
        """As it takes it, as it applies it, as it deletes it."""
        with after_crash(), cluster.begin(cross_shard="logged") as session:
            intend(session, ids[NEAR], ids[FAR], mark)
        make_due(cluster)
        lines[server].cut_at_commit(n, when=when)
        report = proxied.repair()
        assert len(report.failed) == 1
        assert report.applied == 0
        self.check(cluster, ids, mark, True)


class TestServers(Suite):
    """Servers that are down, and shards that are elsewhere."""

    def test_one_is_down(self, cluster, proxied, lines, ids, mark):
        for home, target in ((0, 1), (0, FAR), (FAR, 0), (FAR, 7)):
            with after_crash(), cluster.begin(cross_shard="logged") as session:
                intend(session, ids[home], ids[target], f"{mark} {home}")
        make_due(cluster)
        lines[TARGET].refuse()
        lines[TARGET].cut()
        report = proxied.repair()
        # Of the four, one has both of its shards on the other server.
        assert report.applied == 1
        assert len(report.failed) == 1
        assert "server2" in " ".join(map(str, report.unreachable))
        assert "server1" not in " ".join(map(str, report.unreachable))
        assert not report.ok
        assert self.only(cluster, mark) == {(ids[1], f"{mark} 0"): 1}
        lines[TARGET].restore()
        make_due(cluster)
        again = proxied.repair()
        assert (again.applied, again.ok) == (3, True)
        assert sum(self.only(cluster, mark).values()) == 4

    def test_down_while_it_is_written(self, cluster, proxied, lines, ids, mark):
        """The transaction commits; its operations are applied later."""
        lines[TARGET].refuse()
        lines[TARGET].cut()
        with proxied.begin(cross_shard="logged") as session:
            intend(session, ids[NEAR], ids[FAR], mark)
        assert len(session.pending) == 1
        lines[TARGET].restore()
        make_due(cluster)
        assert proxied.repair().applied == 1
        assert self.only(cluster, mark) == {(ids[FAR], mark): 1}

    def test_the_shard_has_moved_meanwhile(self, cluster, fleet, ids, mark):
        """Both that has the intent and that it is for."""
        document = fleet.topology_mapping(main=True, lookup=8)
        with after_crash(), cluster.begin(cross_shard="logged") as session:
            intend(session, ids[NEAR], ids[FAR], mark)
        make_due(cluster)
        for shard_id, there, back in ((NEAR, 0, 1), (FAR, 1, 0)):
            _copy_shard(fleet, shard_id, there, back)
        document["epoch"] = 2
        first, second = document["keyspaces"]["objects"]["servers"]
        first["shards"] = [[0, 0], [2, 3], [6, 6]]
        second["shards"] = [[1, 1], [4, 5], [7, 7]]
        with Cluster.from_topology(document, environ=fleet.environ) as moved:
            assert moved.repair().applied == 1
            assert self.only(moved, mark) == {(ids[FAR], mark): 1}
            assert points(moved, [ids[NEAR]]) == [1]
            assert moved.pending() == []
        for shard_id, server in ((NEAR, 1), (FAR, 0)):
            fleet.servers[server].root_execute(f"DROP DATABASE db{shard_id:05d}")

    def test_no_tables_of_intents(self, cluster, fleet, ids, mark):
        """On one shard; the others of its server are not kept waiting."""
        with after_crash(), cluster.begin(cross_shard="logged") as session:
            intend(session, ids[FAR + 1], ids[0], f"{mark} here")
        for table in ("sqla_shard_intent", "sqla_shard_applied"):
            fleet.servers[TARGET].root_execute(f"DROP TABLE db{FAR:05d}.{table}")
        with (
            pytest.raises(ShardMissingError),
            cluster.begin(cross_shard="logged") as session,
        ):
            intend(session, ids[FAR], ids[0], f"{mark} not")
        with cluster.begin(cross_shard="logged") as session:
            intend(session, ids[NEAR], ids[FAR], f"{mark} later")
        (failed,) = [one for one in cluster.pending() if one.error]
        assert "sqla_shard_applied" in failed.error
        make_due(cluster, {FAR})
        report = cluster.repair()
        assert (report.applied, len(report.failed)) == (1, 1)
        assert report.unreachable == ()
        cluster.create_all(Base.metadata)
        make_due(cluster)
        assert cluster.repair().applied == 1
        assert self.only(cluster, mark) == {
            (ids[0], f"{mark} here"): 1,
            (ids[FAR], f"{mark} later"): 1,
        }

    def test_one_that_catches_a_deadlock(self, cluster, ids, defined, mark):
        """The server has rolled all back, its token as well."""
        inside, outside = threading.Event(), threading.Event()
        tries = []

        def stubborn(session, account_id):
            tries.append(1)
            add(session, account_id, 1)
            if len(tries) > 1:
                return
            inside.set()
            assert outside.wait(SECONDS)
            # The other has more to undo, so this one is rolled back.
            with pytest.raises(OperationalError, match="1213"):
                add(session, second, 1)
            note(session, account_id, text=f"{mark} after")

        stubborn = defined(stubborn)
        second = account(cluster, FAR)

        def cross() -> None:
            assert inside.wait(SECONDS)
            with cluster.begin() as session:
                for number in range(200):
                    note(session, second, text=f"{mark} {number}")
                add(session, second, 1)
                outside.set()
                add(session, ids[FAR], 1)

        other = threading.Thread(target=cross)
        other.start()
        with cluster.begin(cross_shard="logged") as session:
            add(session, ids[NEAR], 1)
            stubborn.intend(session, ids[FAR])
        other.join(SECONDS)
        (one,) = cluster.pending()
        assert "rolled back its transaction" in one.error
        assert (ids[FAR], f"{mark} after") not in self.only(cluster, mark)
        assert points(cluster, [ids[FAR], second]) == [1, 1]
        make_due(cluster)
        assert cluster.repair().applied == 1
        assert points(cluster, [ids[FAR], second]) == [2, 1]


def _copy_shard(fleet: ServerFleet[Any], shard_id: int, there: int, back: int) -> None:
    """Copy a shard to the other server, as one that moves it does."""
    name = f"db{shard_id:05d}"
    source, target = fleet.servers[there], fleet.servers[back]
    target.root_execute(f"CREATE DATABASE {name} COLLATE utf8mb4_bin")
    tables = [*Base.metadata.tables, *METADATA.tables]
    for (table,) in source.root_execute(f"SHOW TABLES FROM {name}"):
        assert table in tables
        ((_, sql),) = source.root_execute(f"SHOW CREATE TABLE {name}.{table}")
        target.root_execute(sql.replace(f"`{table}`", f"`{name}`.`{table}`", 1))
        for row in source.root_execute(f"SELECT * FROM {name}.{table}"):
            values = ", ".join(["%s"] * len(row))
            target.root_execute(
                f"INSERT INTO {name}.{table} VALUES ({values})", list(row)
            )
