"""Stored lengths of lists, which stay equal to the number of rows."""

from __future__ import annotations

import random
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import delete, insert, update

from sqla_shard import exc
from sqla_shard.models.deletion import delete_object
from sqla_shard.models.mapping_definition import definition_of
from sqla_shard.session.execute import OUR_OWN
from sqla_shard.testing import StatementLog
from sqla_shard.upkeep import largest_lists, verify_relations
from tests.models.follow_models import (
    Followers,
    FOLLOWS,
    Follows,
    length,
    Likes,
    new_users,
    Stars,
    User,
    Watchers,
    Watches,
)

CLASSES = [Follows, Likes]


def count(cluster: Any, cls: Any, source_id: int) -> int:
    with cluster.session() as session:
        return cls.count(session, source_id)


def damage(cluster: Any, cls: Any, source_id: int, number: int | None) -> None:
    """Write a wrong count; delete it where ``number`` is None."""
    table = definition_of(cls).counts
    change = delete(table) if number is None else update(table).values(number=number)
    with cluster.begin() as session:
        session.execute(
            change.where(table.columns[0] == source_id), execution_options=OUR_OWN
        )


class Counting:
    @pytest.fixture
    def users(self, cluster):
        return new_users(cluster, 6)

    @pytest.mark.parametrize("cls", CLASSES)
    def test_follows_each_change(self, cluster, users, cls):
        ada, *others = users
        assert count(cluster, cls, ada) == 0
        for change, given, expected in (
            (cls.append, others[0], 1),
            (cls.append, others[0], 1),
            (cls.append_many, others, 5),
            (cls.append_many, others, 5),
            (cls.remove, others[1], 4),
            (cls.remove, others[1], 4),
        ):
            cluster.run(change, ada, given)
            assert count(cluster, cls, ada) == expected
            assert length(cluster, cls, ada) == expected
        assert cluster.run(cls.clear, ada) == 4
        assert count(cluster, cls, ada) == 0
        assert cluster.run(cls.clear, ada) == 0

    def test_the_inverse_is_counted(self, cluster, users):
        ada, *others = users
        for other in others:
            cluster.run(Follows.append, other, ada)
        assert count(cluster, Followers, ada) == 5
        cluster.run(Follows.remove, others[2], ada)
        cluster.run(Follows.clear, others[3])
        assert count(cluster, Followers, ada) == 3

    def test_a_rollback_takes_the_count_back(self, cluster, users):
        ada, grace, *_ = users
        with cluster.session() as session:
            Likes.append(session, ada, grace)
            assert Likes.count(session, ada) == 1
            session.rollback()
            assert Likes.count(session, ada) == 0

    def test_reads_one_row(self, cluster, users):
        ada, *others = users
        cluster.run(Likes.append_many, ada, others)
        with cluster.session() as session, StatementLog() as log:
            assert Likes.count(session, ada) == 5
        assert ["likes_count" in one for one in log.statements] == [True]

    def test_a_change_takes_one_more_statement(self, cluster, users):
        ada, *others = users
        cluster.run(Likes.append, ada, others[0])
        with cluster.begin() as session:
            Likes.count(session, ada)
            with StatementLog() as log:
                Likes.append(session, ada, others[1])
            upserts = session.places.engines.backends()
            one = all(backend.counts_upserts for backend in upserts)
            assert log.count() == (3 if one else 4)

    @pytest.mark.parametrize("change", ["append", "remove", "clear"])
    def test_rows_older_than_the_counts(self, cluster, users, change):
        ada, *others = users
        cluster.run(Likes.append_many, ada, others[:3])
        damage(cluster, Likes, ada, None)
        assert count(cluster, Likes, ada) == 3
        given = {"append": (others[4],), "remove": (others[0],), "clear": ()}
        cluster.run(getattr(Likes, change), ada, *given[change])
        expected = {"append": 4, "remove": 2, "clear": 0}[change]
        assert count(cluster, Likes, ada) == expected
        damage(cluster, Likes, ada, 99)
        assert count(cluster, Likes, ada) == 99, "the number is stored"

    def test_other_writes_are_refused(self, cluster, users):
        ada, grace, *_ = users
        cluster.run(Likes.append, ada, grace)
        values = {"liking_id": ada, "liked_id": users[3], "sequence": 1}
        table = definition_of(Likes).counts
        for statement in (
            insert(Likes).values(values),
            delete(Likes).where(Likes.liking_id == ada),
            update(Likes).where(Likes.liking_id == ada).values(liked_id=users[3]),
            update(table).where(table.c.liking_id == ada).values(number=3),
            delete(table).where(table.c.liking_id == ada),
        ):
            with (
                cluster.begin() as session,
                pytest.raises(exc.KeptMappingError, match="stored counts"),
            ):
                session.execute(statement)
        with cluster.session() as session:
            session.add(Likes(**values))
            with pytest.raises(exc.KeptMappingError, match="stored counts"):
                session.flush()
        assert count(cluster, Likes, ada) == 1
        assert length(cluster, Likes, ada) == 1

    def test_a_recount(self, cluster, users):
        ada, *others = users
        cluster.run(Likes.append_many, ada, others)
        for number in (0, 77, None):
            damage(cluster, Likes, ada, number)
            assert cluster.run(Likes.recount, ada) == 5
            assert count(cluster, Likes, ada) == 5

    def test_verify_finds_and_repairs_counts(self, cluster, users):
        ada, *others = users
        verify_relations(cluster, [Likes], grace=0.0, repair=True)
        cluster.run(Likes.append_many, ada, others)
        damage(cluster, Likes, ada, 8)
        report = verify_relations(cluster, [Likes], grace=0.0)
        assert report.found("miscounted") == 1
        assert count(cluster, Likes, ada) == 8
        report = verify_relations(cluster, [Likes], grace=0.0, repair=True)
        assert report.repaired("miscounted") == 1
        assert count(cluster, Likes, ada) == 5
        assert not verify_relations(cluster, [Likes], grace=0.0).found("miscounted")

    def test_a_deleted_object_leaves_no_count(self, cluster, users):
        ada, grace, alan, *_ = users
        cluster.run(Follows.append, ada, grace)
        cluster.run(Follows.append, alan, ada)
        delete_object(cluster, User, ada)
        assert count(cluster, Follows, alan) == 0
        assert count(cluster, Followers, grace) == 0
        for cls in (Follows, Followers):
            table = definition_of(cls).counts
            with cluster.session() as session:
                there = table.select().where(table.columns[0] == ada)
                assert session.execute(there).all() == []


class Sizes:
    """The report of the largest lists."""

    def test_the_largest_and_the_busiest(self, cluster):
        ada, grace, *others = new_users(cluster, 30)
        classes = [Likes, Stars, Follows]
        for other in others:
            cluster.run(Stars.append, ada, other)
        cluster.run(Likes.append_many, grace, others[:9])
        cluster.run(Likes.append_many, ada, others[:20])
        report = largest_lists(cluster, classes, top=2)
        assert report.unreachable == ()
        found = {(one.mapping, one.source_id) for one in report.largest}
        assert found == {("Stars", ada), ("Likes", ada)}
        (likes,) = (one for one in report.largest if one.mapping == "Likes")
        assert likes.rows == 20
        assert f"large: Likes of {ada}: 20 rows" in str(report)
        assert f"busy: Likes of {ada}: 20 rows appended" in str(report)
        assert {one.source_id for one in report.busiest} == {ada}
        old = largest_lists(cluster, classes, top=2, window=-3600)
        assert old.busiest == ()
        assert old.largest == report.largest

    def test_refused(self, cluster):
        with pytest.raises(ValueError, match="top=0"):
            largest_lists(cluster, top=0)


class Histories:
    """Random changes of few lists by many threads at once."""

    threads = 8
    changes = 30

    @pytest.mark.parametrize(
        ("cls", "inverse"), [(Follows, Followers), (Watches, Watchers), (Stars, None)]
    )
    def test_the_count_is_that_of_the_acknowledged_changes(
        self, cluster, rng, say, cls, inverse
    ):
        """Compare with the sum of what each change has returned."""
        users = new_users(cluster, 5)
        seeds = [rng.randrange(10**9) for _ in range(self.threads)]
        barrier = threading.Barrier(self.threads)

        def work(number: int) -> Counter[tuple[int, int]]:
            own = random.Random(seeds[number])
            barrier.wait(60)
            model: Counter[tuple[int, int]] = Counter()
            for _ in range(self.changes):
                source, *some = own.sample(users, 4)
                target = some[0]
                kind = own.random()
                if kind < 0.45:
                    done = self._run(cluster, cls.append, source, target)
                    model[source, target] += done
                elif kind < 0.8 or cls is Stars:
                    done = self._run(cluster, cls.remove, source, target)
                    model[source, target] -= done
                else:
                    added = self._run(cluster, cls.append_many, source, some)
                    model.update((source, one) for one in added)
            return model

        with ThreadPoolExecutor(self.threads) as executor:
            models = list(executor.map(work, range(self.threads)))
        cluster.repair(now=True)
        total: Counter[tuple[int, int]] = Counter()
        for model in models:
            total.update(model)
        assert set(total.values()) <= {0, 1}, "each change had its answer"
        pairs = {pair for pair, there in total.items() if there}
        say(f"{len(pairs)} rows after {self.threads * self.changes} changes")
        for user in users:
            followees = {b for a, b in pairs if a == user}
            followers = {a for a, b in pairs if b == user}
            for one, expected in ((cls, followees), (inverse, followers)):
                if one is None:
                    continue
                name = definition_of(one).target.column
                with cluster.session() as session:
                    rows = one.iterate(session, user)
                    assert {getattr(row, name) for row in rows} == expected
                    assert one.count(session, user) == len(expected)
        classes = [one for one in (cls, inverse) if one is not None]
        report = verify_relations(cluster, classes, grace=0.0)
        assert not report.found("miscounted")

    @staticmethod
    def _run(cluster: Any, change: Any, *given: Any) -> Any:
        return cluster.run(change, *given, attempts=20, timeout=120)


cluster = FOLLOWS.on_backend()
