"""``rolled_back()``: sessions commit into a transaction that is rolled back."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import func, select, text

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
            outer.commit()
        assert points(cluster, [first]) == [4]

    @pytest.mark.parametrize("end", ["close", "rollback", "commit"])
    def test_a_reader_undoes_nothing(self, cluster: Cluster, end: str) -> None:
        found = [account(cluster, shard_id) for shard_id in range(SHARDS)]
        with cluster.session() as reader:
            assert len(reader.get_many(Account, found)) == SHARDS
            with cluster.begin() as session:
                add(session, found[1], 2)
            cluster.run(add, found[-1], 3)
            getattr(reader, end)()
            assert reader.get_one(Account, found[1]).points == 2
        assert points(cluster, [found[1], found[-1]]) == [2, 3]

    def test_readers_end_in_any_order(self, cluster: Cluster) -> None:
        first = account(cluster, 1)
        with cluster.session() as later:
            with cluster.session() as reader:
                reader.get_one(Account, first)
                later.get_one(Account, first)
            later.rollback()
        with cluster.session() as later:
            with cluster.session() as writer:
                add(writer, first, 1)
                later.get_one(Account, first)
            # The savepoint of the writer was before its own.
            add(later, first, 2)
            later.rollback()
            assert later.get_one(Account, first).points == 0

    def test_a_reader_that_writes_later(self, cluster: Cluster) -> None:
        first = account(cluster, 1)
        with cluster.session() as session:
            session.get_one(Account, first)
            cluster.run(add, first, 1)
            add(session, first, 2)
            with session.begin_nested() as savepoint:
                add(session, first, 4)
                savepoint.rollback()
            session.rollback()
            assert session.get_one(Account, first).points == 1

    def test_a_connection_that_is_kept(self, cluster: Cluster) -> None:
        first = account(cluster, 1)
        more = text("UPDATE accounts SET points = points + 2")
        with cluster.session() as session:
            kept = session.connection({"mapper": Account, "shard_id": 1})
            with cluster.session() as other:
                add(other, first, 1)
                other.commit()
                kept.execute(more)
            with kept.begin_nested() as savepoint:
                kept.execute(more)
                savepoint.rollback()
            assert session.get_one(Account, first).points == 3
            session.rollback()
            assert session.get_one(Account, first).points == 1

    def test_a_savepoint_around_a_commit(self, cluster: Cluster) -> None:
        first = account(cluster, 1)
        with cluster.session() as session:
            add(session, first, 1)
            with session.begin_nested() as savepoint:
                session.get_one(Account, first)
                cluster.run(add, first, 2)
                savepoint.rollback()
            session.commit()
        assert points(cluster, [first]) == [3]

    @pytest.mark.parametrize("end", ["close", "rollback"])
    def test_a_rollback_that_would_undo_a_commit(
        self, cluster: Cluster, end: str
    ) -> None:
        found = [account(cluster, shard_id) for shard_id in range(SHARDS)]
        session = cluster.session(cross_shard="unordered")
        for one in found:
            add(session, one, 1)
        cluster.run(add, found[0], 2)
        cluster.run(add, found[-1], 2)
        with pytest.raises(ConcurrentUseError, match="another session has written"):
            getattr(session, end)()
        session.close()
        # What is left is of no session, and in nobody's way.
        with cluster.session() as session:
            add(session, found[0], 4)
            session.rollback()
            add(session, found[0], 4)
            session.commit()
        assert points(cluster, [found[0], found[-1]]) == [7, 3]

    def test_a_session_that_writes_inside_of_another(self, cluster: Cluster) -> None:
        first = account(cluster, 1)
        with cluster.session() as outer, cluster.session() as inner:
            outer.get_one(Account, first)
            add(inner, first, 1)
            add(outer, first, 2)
            with pytest.raises(ConcurrentUseError, match=r"fleet\.empty"):
                inner.rollback()
            outer.commit()
        assert points(cluster, [first]) == [3]

    def test_a_commit_that_fails(self, cluster: Cluster) -> None:
        def refuse(*args: object) -> None:
            raise ValueError("no")

        first = account(cluster, 1)
        with cluster.session() as session:
            session.last = refuse
            add(session, first, 1)
            with pytest.raises(ValueError, match="no"):
                session.commit()
        assert points(cluster, [first]) == [0]

    def test_one_call_at_a_time(self, cluster: Cluster) -> None:
        again = rolled_back(cluster)
        with pytest.raises(ConcurrentUseError, match="only one fixture"):
            again.__enter__()
        first = account(cluster, 1)
        assert points(cluster, [first]) == [0]


class Before:
    """A session whose transaction began before the test."""

    def test_a_transaction_that_began_before(self, cluster: Cluster) -> None:
        before = rows(cluster)
        with cluster.session() as session:
            session.add(Account(shard_id=1))
            session.flush()
            with rolled_back(cluster):
                session.add(Account(shard_id=1))
                with pytest.raises(ConcurrentUseError, match="end it first"):
                    session.commit()
        with cluster.session() as session:
            session.scalar(select(func.count()).select_from(Account).options(scatter()))
            with rolled_back(cluster):
                session.rollback()
                session.add(Account(shard_id=1))
                session.commit()
        assert rows(cluster) == before


def account_of(session: ShardSession, account_id: int) -> int:
    return session.get_one(Account, account_id).id


cluster = OPERATIONS.on_backend()
