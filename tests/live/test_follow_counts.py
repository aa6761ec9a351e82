"""Stored numbers of followers, and transactions at the same time."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import delete

from sqla_shard import Cluster, pack
from sqla_shard.contrib import FollowKind
from sqla_shard.contrib.edges import Edge
from sqla_shard.testing import StatementLog
from sqla_shard.testing.local_server import wait_until
from sqla_shard.testing.server_fleet import ServerFleet
from tests.models.backends import Clusters
from tests.models.graph_models import Base, follows, run, SHARDS, users

pytestmark = pytest.mark.live

cluster = Clusters(Base.metadata, SHARDS).on_servers("followcounts")


def test_counted_again_while_an_edge_is_written(
    fleet: ServerFleet[Any], cluster: Cluster
) -> None:
    """The edge is not lost, whose transaction has changed the number."""
    star, *fans = users(cluster, 3)
    table = follows.users_reversed
    counts: Any = table.counts
    run(cluster, follows.follow_user, fans[0], star)
    with cluster.begin() as session:
        place = table.place(session, star)
        session.execute(delete(counts.table), bind_arguments={"place": place})
    after = Edge().changed(FollowKind.EXPLICIT)
    (server,) = [each for each in fleet.servers if each.name == place.server]

    def waits() -> bool:
        # InnoDB returns cached values if it is queried within 0.1 seconds.
        return bool(
            server.root_execute(
                "SELECT 1 FROM information_schema.innodb_trx "
                "WHERE trx_state = 'LOCK WAIT'"
            )
        )

    with ThreadPoolExecutor(1) as executor:
        with cluster.begin() as session:
            table.put(session, [((star, fans[1]), after)])
            recounting = executor.submit(cluster.run, counts.recount, place, star)
            assert wait_until(waits, seconds=60, every=0.2)
        assert recounting.result(60) is True
    with cluster.session() as session:
        assert counts.differing(session, place, [star]) == []
        found = follows.count_followers(session, star)
    assert found[FollowKind.EXPLICIT] == 2


def test_many_edges_are_locked_together(
    fleet: ServerFleet[Any], cluster: Cluster
) -> None:
    """And the others are not."""
    ids = [pack(7, 3, number) for number in range(1, 1202)]
    pairs = itertools.pairwise(ids)
    rows = [(pair, Edge(FollowKind.EXPLICIT, 0, 1, 1)) for pair in pairs]
    table = follows.users
    cluster.run(table.put, rows)
    with StatementLog() as log, cluster.begin() as session:
        table.put(session, rows[:1000])
        place = table.place(session, ids[0])
        (server,) = [each for each in fleet.servers if each.name == place.server]
        ((free,),) = server.root_execute(
            f"SELECT COUNT(*) FROM {place.schema}.{table.name} FOR UPDATE SKIP LOCKED"
        )
    assert int(free) == 200
    assert len([one for one in log.executions if "FOR UPDATE" in one.statement]) == 4
