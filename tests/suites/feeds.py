"""Home feeds on the tables alone.

Each class is a suite; a test module has a fixture ``cluster``.
"""

from __future__ import annotations

from collections import Counter

import pytest
from sqlalchemy import delete

from sqla_shard.exc import InvalidBookmarkError
from sqla_shard.outbox import apply
from sqla_shard.testing import StatementLog
from tests.models.graph_models import (
    boards,
    CLUSTERS,
    feed,
    follows,
    ids_of,
    Pin,
    pin,
    run,
    users,
)

cluster = CLUSTERS.on_backend()


class Pulled:
    """Pages that are read from the tables."""

    @pytest.fixture(autouse=True)
    def _patient(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(apply, "_APPLY_SECONDS", 120.0)

    def test_posts_of_followed_boards(self, cluster):
        ada, bob, eve = users(cluster, 3)
        one, two = boards(cluster, bob, 2)
        (other,) = boards(cluster, eve, 1)
        old = [pin(cluster, bob, one), pin(cluster, bob, two)]
        assert ids_of(cluster, ada) == []
        run(cluster, follows.follow_user, ada, bob)
        assert ids_of(cluster, ada) == old[::-1]
        new = [pin(cluster, eve, other), pin(cluster, bob, one)]
        assert ids_of(cluster, ada) == [new[1], *old[::-1]]
        run(cluster, follows.follow_board, ada, other)
        assert ids_of(cluster, ada) == [*new[::-1], *old[::-1]]
        run(cluster, follows.unfollow_board, ada, one)
        assert ids_of(cluster, ada) == [new[0], old[1]]
        run(cluster, follows.unfollow_user, ada, bob)
        assert ids_of(cluster, ada) == [new[0]]
        run(cluster, follows.block, eve, ada)
        assert ids_of(cluster, ada) == []

    def test_deleted_posts(self, cluster):
        ada, bob = users(cluster, 2)
        (board,) = boards(cluster, bob, 1)
        run(cluster, follows.follow_user, ada, bob)
        pins = [pin(cluster, bob, board) for _ in range(6)]
        assert cluster.run(feed.withdraw, bob, pins[5]) is True
        assert cluster.run(feed.withdraw, bob, pins[5]) is False
        gone = pins[1:5]
        cluster.run(
            lambda session: session.execute(delete(Pin).where(Pin.id.in_(gone)))
        )
        # A page is filled although a whole page of posts is left out.
        assert ids_of(cluster, ada, limit=1) == [pins[0]]

    def test_pages_while_posts_arrive(self, cluster):
        ada, bob = users(cluster, 2)
        (board,) = boards(cluster, bob, 1)
        run(cluster, follows.follow_user, ada, bob)
        pins = [pin(cluster, bob, board) for _ in range(7)]
        found, after = [], None
        while True:
            with cluster.session() as session:
                page = feed.page(session, ada, 2, after)
            found += [item.post.id for item in page]
            pin(cluster, bob, board)
            after = page.next
            if after is None:
                break
        assert found == pins[::-1]
        with cluster.session() as session:
            page = feed.page(session, ada, 2)
            with pytest.raises(InvalidBookmarkError):
                feed.page(session, bob, 2, page.next)

    def test_pages_of_some_authors(self, cluster):
        ada, *others = users(cluster, 4)
        owners = []
        for other in others:
            (board,) = boards(cluster, other, 1)
            run(cluster, follows.follow_user, ada, other)
            owners += [(pin(cluster, other, board), other) for _ in range(3)]
        some = others[1:]
        expected = [post for post, owner in owners if owner in some]
        found, after = [], None
        while True:
            with cluster.session() as session:
                page = feed.page(session, ada, 4, after, authors=some)
            found += [item.post.id for item in page]
            after = page.next
            if after is None:
                break
        assert found == expected[::-1]
        with cluster.session() as session:
            assert feed.page(session, ada, authors=[]).items == []

    def test_equal_to_a_model(self, cluster, rng):
        people = users(cluster, 6)
        owners = {board: user for user in people for board in boards(cluster, user, 2)}
        for user in people:
            for other in rng.sample(people, 3):
                if other != user:
                    run(cluster, follows.follow_user, user, other)
            for board, owner in rng.sample(sorted(owners.items()), 6):
                if owner != user:
                    name = rng.choice(["follow_board", "unfollow_board"])
                    run(cluster, getattr(follows, name), user, board)
        posts = []
        for _ in range(60):
            board, owner = rng.choice(sorted(owners.items()))
            posts.append((pin(cluster, owner, board), board))
        for user in people:
            with cluster.session() as session:
                wanted = follows.follows_boards(session, user, owners.items())
            expected = [one for one, board in posts if board in wanted]
            assert ids_of(cluster, user, rng.choice([1, 7])) == expected[::-1]

    def test_statements_of_a_page(self, cluster):
        """One for whom the user follows; for posts two on each server."""
        ada, *others = users(cluster, 8)
        for other in others:
            (board,) = boards(cluster, other, 1)
            run(cluster, follows.follow_user, ada, other)
            pin(cluster, other, board)
        with cluster.session() as session, StatementLog() as log:
            assert len(feed.page(session, ada)) == 7
        sent = Counter(one.server for one in log.events if one.kind == "execute")
        assert max(sent.values()) <= 3
        assert sent.total() <= 2 * len(sent) + 1
