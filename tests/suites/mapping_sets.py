"""Bounded pages, common targets of two lists, and removal from all lists."""

from __future__ import annotations

from datetime import datetime, timedelta, UTC
from itertools import islice

import pytest

from sqla_shard import exc, pack
from sqla_shard.models.list_positions import STEP
from sqla_shard.testing import StatementLog
from tests.models.follow_models import (
    Followers,
    FOLLOWS,
    Follows,
    length,
    Likes,
    new_users,
    SHARDS,
)


def some_ids(rng, count, most=4000):
    """Return ids of users that do not exist."""
    numbers = rng.sample(range(10**6, 10**6 + most), count)
    return [pack(number % SHARDS, 1, number) for number in numbers]


class Bounded:
    @pytest.mark.parametrize("newest", [True, False])
    def test_rows_appended_later_are_left_out(self, cluster, rng, newest):
        (ada,) = new_users(cluster, 1)
        before, later = some_ids(rng, 25), some_ids(rng, 9, 9000)
        later = [i for i in later if i not in before]
        cluster.run(Likes.append_many, ada, before)
        with cluster.session() as session:
            until = Likes.top(session, ada)
        found, bookmark = [], None
        for number in range(100):
            with cluster.session() as session:
                page = Likes.page(
                    session, ada, 4, bookmark, newest_first=newest, until=until
                )
                found += [row.liked_id for row in page]
                bookmark = page.next
            if bookmark is None:
                break
            if number < len(later):
                cluster.run(Likes.append, ada, later[number])
        assert found == (before[::-1] if newest else before)
        with cluster.session() as session:
            rows = Likes.iterate(session, ada, batch=7, until=until)
            assert [row.liked_id for row in rows] == before[::-1]

    def test_times(self, cluster, rng):
        (ada,) = new_users(cluster, 1)
        cluster.run(Likes.append_many, ada, some_ids(rng, 3))
        with cluster.session() as session:
            top = Likes.top(session, ada)
            at = datetime.fromtimestamp(top // STEP / 1000, UTC)
            for until, expected in (
                (at + timedelta(milliseconds=1), 3),
                (at - timedelta(milliseconds=1), 2),
                (at - timedelta(days=1), 0),
            ):
                page = Likes.page(session, ada, until=until)
                assert len(page) == expected

    def test_refused(self, cluster):
        (ada,) = new_users(cluster, 1)
        with cluster.session() as session:
            assert Likes.top(session, ada) is None
            for wrong in (-1, 10**38, "1", True):
                with pytest.raises(exc.InvalidSequenceError):
                    Likes.page(session, ada, until=wrong)
            with pytest.raises(ValueError, match="no time zone"):
                Likes.page(session, ada, until=datetime(2026, 1, 1))


class Intersecting:
    @pytest.mark.parametrize("descending", [False, True])
    def test_random_lists(self, cluster, rng, descending):
        for _ in range(6):
            ada, grace = new_users(cluster, 2)
            many = some_ids(rng, 120)
            ours = rng.sample(many, rng.randrange(100))
            theirs = rng.sample(many, rng.randrange(100))
            cluster.run(Likes.append_many, ada, ours)
            cluster.run(Likes.append_many, grace, theirs)
            expected = sorted(set(ours) & set(theirs), reverse=descending)
            with cluster.session() as session:
                for batch in (1, 2, 7, 100):
                    found = Likes.intersect(
                        session, ada, grace, descending=descending, batch=batch
                    )
                    assert list(found) == expected

    def test_two_classes(self, cluster):
        ada, grace, *others = new_users(cluster, 8)
        for other in others:
            cluster.run(Follows.append, ada, other)
        for other in others[::2]:
            cluster.run(Follows.append, other, grace)
        with cluster.session() as session:
            found = Follows.intersect(session, ada, grace, other=Followers)
            assert list(found) == others[::2]

    def test_lists_that_hardly_meet_take_few_statements(self, cluster):
        ada, grace = new_users(cluster, 2)
        low = [pack(0, 1, number) for number in range(10**7, 10**7 + 400)]
        high = [pack(3, 1, number) for number in range(10**7, 10**7 + 400)]
        cluster.run(Likes.append_many, ada, [*low, high[7]])
        cluster.run(Likes.append_many, grace, [low[3], *high])
        with cluster.session() as session, StatementLog() as log:
            found = Likes.intersect(session, ada, grace, batch=10)
            assert list(islice(found, 2)) == [low[3], high[7]]
        assert log.count() <= 8


class Everywhere:
    def test_the_inverse_has_the_lists(self, cluster):
        ada, grace, *others = new_users(cluster, 20)
        for other in others:
            cluster.run(Follows.append, other, ada)
            cluster.run(Follows.append, other, grace)
        assert Follows.clear_target(cluster, ada, batch=5) == 18
        with cluster.session() as session:
            assert Followers.count(session, ada) == 0
            assert Followers.count(session, grace) == 18
            assert all(Follows.count(session, i) == 1 for i in others)
        assert Follows.clear_target(cluster, ada) == 0

    def test_an_interrupted_run_is_resumed(self, cluster, monkeypatch):
        ada, *others = new_users(cluster, 12)
        for other in others:
            cluster.run(Follows.append, other, ada)
        remove = Follows.remove
        calls = []

        def failing(session, source_id, target_id):
            calls.append(source_id)
            if len(calls) == 7:
                raise RuntimeError("a stop")
            return remove(session, source_id, target_id)

        monkeypatch.setattr(Follows, "remove", failing)
        with pytest.raises(RuntimeError, match="a stop"):
            Follows.clear_target(cluster, ada, batch=3)
        assert length(cluster, Followers, ada) == 5
        assert Follows.clear_target(cluster, ada, batch=3) == 5
        assert length(cluster, Followers, ada) == 0

    def test_without_inverse(self, cluster):
        ada, *others = new_users(cluster, 9)
        for other in others:
            cluster.run(Likes.append_many, other, [ada, other])
        with pytest.raises(ValueError, match="scatter=True"):
            Likes.clear_target(cluster, ada)
        assert Likes.clear_target(cluster, ada, scatter=True, batch=3) == 8
        for other in others:
            assert length(cluster, Likes, other) == 1

    def test_the_inverse_is_refused(self, cluster):
        (ada,) = new_users(cluster, 1)
        with pytest.raises(exc.KeptMappingError):
            Followers.clear_target(cluster, ada)


cluster = FOLLOWS.on_backend()
