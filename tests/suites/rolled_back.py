"""``rolled_back()``: sessions commit into a transaction that is rolled back."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import func, select

from sqla_shard import Cluster, scatter, ShardSession
from sqla_shard.exc import ConcurrentUseError, KeyTakenError
from sqla_shard.testing import jobs_enqueued, rolled_back
from tests.models.operation_models import (
    Account,
    account,
    add,
    count_applied,
    Email,
    entries,
    intend,
    OPERATIONS,
    points,
    Setting,
    SHARDS,
)


def rows(cluster: Cluster) -> int:
    """Count the rows of all tables of the suite."""
    count = 0
    with cluster.session() as session:
        for cls in (Account, Setting):
            everyone = select(func.count()).select_from(cls)
            count += session.scalar(everyone.options(scatter())) or 0
    return count + entries(cluster).total() + count_applied(cluster)


class RolledBack:
    """A test that commits, and what is left of it."""

    @pytest.fixture(autouse=True)
    def tested(self, cluster: Cluster) -> Iterator[None]:
        """Let nothing be left, and the cluster commit again."""
        before = rows(cluster)
        with rolled_back(cluster) as same:
            assert same is cluster
            yield
        assert rows(cluster) == before
        with cluster.session() as session:
            assert session.join_transaction_mode == "conditional_savepoint"

    def test_a_commit_is_seen_by_later_sessions(self, cluster: Cluster) -> None:
        first = account(cluster, 1)
        with cluster.session() as session:
            session.get_one(Account, first).points = 3
            session.commit()
            # It goes on in the next transaction.
            session.get_one(Account, first).points += 1
            session.commit()
        assert points(cluster, [first]) == [4]
        assert cluster.run(lambda session: session.get_one(Account, first).points) == 4

    def test_a_rollback_leaves_what_was_committed(self, cluster: Cluster) -> None:
        first = account(cluster, 1)
        with cluster.session() as session:
            add(session, first, 5)
            with session.begin_nested():
                add(session, first, 2)
            assert session.get_one(Account, first).points == 7
            session.rollback()
            assert session.get_one(Account, first).points == 0
        # Not committed at all.
        with cluster.session() as session:
            add(session, first, 5)
        assert points(cluster, [first]) == [0]

    def test_shards_of_all_servers(self, cluster: Cluster) -> None:
        found = [account(cluster, shard_id) for shard_id in range(SHARDS)]
        with cluster.begin(cross_shard="unordered") as session:
            for one in found:
                add(session, one, 1)
        with cluster.session() as session:
            # Closing it rolls back on several servers at once.
            assert len(session.get_many(Account, found)) == SHARDS
        assert points(cluster, found) == [1] * SHARDS

    def test_names_operations_and_keys(self, cluster: Cluster) -> None:
        first, last = account(cluster, 0), account(cluster, SHARDS - 1)
        with cluster.begin(cross_shard="ordered") as session:
            Email.claim(session, "ada@example.com", first)
        with cluster.session() as session, pytest.raises(KeyTakenError):
            Email.claim(session, "ada@example.com", last)
        with cluster.begin(cross_shard="logged") as session:
            # Applied right after COMMIT, by a session of the package.
            intend(session, first, last, "hello")
        assert entries(cluster) == {(last, "hello"): 1}
        assert cluster.run(account_of, first, key="once") == first
        with cluster.session() as session:
            assert jobs_enqueued(session) == []

    def test_sessions_that_are_open_together(self, cluster: Cluster) -> None:
        first = account(cluster, 1)
        with cluster.session() as outer:
            add(outer, first, 1)
            with cluster.begin() as inner:
                add(inner, first, 2)
            outer.commit()
        assert points(cluster, [first]) == [3]
        with cluster.session() as outer, cluster.session() as inner:
            add(outer, first, 1)
            add(inner, first, 2)
            with pytest.raises(ConcurrentUseError, match="end it before"):
                outer.commit()


def account_of(session: ShardSession, account_id: int) -> int:
    return session.get_one(Account, account_id).id


cluster = OPERATIONS.on_backend()
