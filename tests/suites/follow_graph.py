"""A follow graph: its rules, its lists, and random histories of it.

Each class is a suite; a test module has a fixture ``cluster``.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import delete, select, text, update
from sqlalchemy.orm import DeclarativeBase, Mapped

from sqla_shard import blob_field, Cluster, ObjectMixin, scatter
from sqla_shard.contrib import (
    BoardChoice,
    FollowKind,
    Follows,
    forget_deleted_board,
    purge_follows,
    repair_follows,
)
from sqla_shard.exc import (
    BlockedError,
    CrossShardWriteError,
    FollowRefusedError,
    InvalidBookmarkError,
    OperationDefinitionError,
    WrongTypeError,
)
from sqla_shard.models.deletion import delete_object, plan_deletion
from sqla_shard.outbox import apply, discard, repair
from sqla_shard.outbox.tables import INTENTS
from sqla_shard.testing import StatementLog
from tests.models.graph_models import (
    Board,
    boards,
    CLUSTERS,
    feed,
    follows,
    ids_of,
    Pin,
    pin,
    run,
    User,
    users,
)
from tests.models.operation_models import after_crash, forget_all

cluster = CLUSTERS.on_backend()

EXPLICIT, IMPLICIT = FollowKind.EXPLICIT, FollowKind.IMPLICIT


class Suite:
    @pytest.fixture(autouse=True)
    def _patient(self, monkeypatch: pytest.MonkeyPatch) -> None:
        # On a busy machine a COMMIT would leave operations to workers.
        monkeypatch.setattr(apply, "_APPLY_SECONDS", 120.0)


def kind_of(cluster: Cluster, one: int, other: int) -> FollowKind | None:
    """Return the relation of a user to another, which both sides have."""
    with cluster.session() as session:
        found = follows.following(session, one, [other]).get(other)
        assert follows.followed_by(session, other, [one]).get(one) == found
    return found


def audience(cluster: Cluster, board: int, owner: int) -> list[int]:
    with cluster.session() as session:
        batches = follows.audience(session, board, owner, batch=2)
        found = [user for batch in batches for user in batch.users]
        assert follows.count_audience(session, board, owner) == len(found)
        for user in found:
            assert follows.follows_boards(session, user, [(board, owner)])
    return found


class Rules(Suite):
    """The effects of following, unfollowing and blocking."""

    def test_a_user_with_all_boards(self, cluster):
        ada, bob = users(cluster, 2)
        (old,) = boards(cluster, bob, 1)
        assert run(cluster, follows.follow_user, ada, bob) is True
        assert run(cluster, follows.follow_user, ada, bob) is False
        assert kind_of(cluster, ada, bob) is EXPLICIT
        assert kind_of(cluster, bob, ada) is None
        (new,) = boards(cluster, bob, 1)
        assert audience(cluster, old, bob) == [ada]
        assert audience(cluster, new, bob) == [ada]
        assert run(cluster, follows.follow_board, ada, new) is False
        assert run(cluster, follows.unfollow_board, ada, old) is True
        assert run(cluster, follows.unfollow_board, ada, old) is False
        assert audience(cluster, old, bob) == []
        assert audience(cluster, new, bob) == [ada]
        assert run(cluster, follows.follow_board, ada, old) is True
        assert audience(cluster, old, bob) == [ada]
        assert run(cluster, follows.unfollow_user, ada, bob) is True
        assert run(cluster, follows.unfollow_user, ada, bob) is False
        assert kind_of(cluster, ada, bob) is None
        assert audience(cluster, new, bob) == []

    def test_the_relation_ends_with_the_last_board(self, cluster):
        ada, bob = users(cluster, 2)
        one, two, other = boards(cluster, bob, 3)
        for board in (one, two):
            assert run(cluster, follows.follow_board, ada, board) is True
            assert run(cluster, follows.follow_board, ada, board) is False
        assert kind_of(cluster, ada, bob) is IMPLICIT
        with cluster.session() as session:
            (edge,) = follows.followees(session, ada)
            assert (edge.id, edge.number) == (bob, 2)
            (seen,) = follows.followers(session, bob)
            assert seen == edge._replace(id=ada)
        assert run(cluster, follows.unfollow_board, ada, other) is False
        assert run(cluster, follows.unfollow_board, ada, one) is True
        assert run(cluster, follows.unfollow_board, ada, one) is False
        assert kind_of(cluster, ada, bob) is IMPLICIT
        assert audience(cluster, one, bob) == []
        assert audience(cluster, two, bob) == [ada]
        assert run(cluster, follows.unfollow_board, ada, two) is True
        assert kind_of(cluster, ada, bob) is None

    def test_following_a_user_replaces_the_choices_for_boards(self, cluster):
        ada, bob = users(cluster, 2)
        one, two = boards(cluster, bob, 2)
        run(cluster, follows.follow_board, ada, one)
        run(cluster, follows.follow_user, ada, bob)
        assert kind_of(cluster, ada, bob) is EXPLICIT
        run(cluster, follows.unfollow_board, ada, two)
        run(cluster, follows.unfollow_user, ada, bob)
        assert audience(cluster, one, bob) == []
        run(cluster, follows.follow_user, ada, bob)
        assert audience(cluster, two, bob) == [ada]

    def test_a_block_ends_and_prevents_one_direction(self, cluster):
        ada, bob = users(cluster, 2)
        (board,) = boards(cluster, bob, 1)
        run(cluster, follows.follow_board, ada, board)
        run(cluster, follows.follow_user, bob, ada)
        assert run(cluster, follows.block, bob, ada) is True
        assert run(cluster, follows.block, bob, ada) is False
        assert kind_of(cluster, ada, bob) is None
        assert audience(cluster, board, bob) == []
        assert kind_of(cluster, bob, ada) is EXPLICIT
        with cluster.session() as session:
            assert [one.id for one in follows.blocked(session, bob)] == [ada]
            assert follows.count_followers(session, bob) == {EXPLICIT: 0, IMPLICIT: 0}
        for change, target in (
            (follows.follow_user, bob),
            (follows.follow_board, board),
        ):
            with pytest.raises(BlockedError) as caught:
                run(cluster, change, ada, target)
            assert caught.value.blocker_id == bob
        assert run(cluster, follows.unfollow_user, ada, bob) is False
        assert run(cluster, follows.unblock, bob, ada) is True
        assert run(cluster, follows.unblock, bob, ada) is False
        assert kind_of(cluster, ada, bob) is None
        assert run(cluster, follows.follow_user, ada, bob) is True

    def test_refusals(self, cluster):
        ada, bob = users(cluster, 2)
        (board,) = boards(cluster, ada, 1)
        missing = board + 1000
        for change, target in (
            (follows.follow_user, ada),
            (follows.block, ada),
            (follows.follow_board, board),
            (follows.follow_board, missing),
        ):
            with pytest.raises(FollowRefusedError) as caught:
                run(cluster, change, ada, target)
            assert caught.value.follower_id == ada
        with pytest.raises(FollowRefusedError, match="there is no User"):
            run(cluster, follows.follow_user, ada + 1000, bob)
        with pytest.raises(WrongTypeError):
            run(cluster, follows.follow_user, ada, board)
        with pytest.raises(CrossShardWriteError, match="logged"):
            cluster.run(follows.follow_user, ada, bob)
        assert kind_of(cluster, ada, bob) is None

    def test_names_of_two_graphs_differ(self):
        """Otherwise one would write the rows of the other."""

        class Base(DeclarativeBase):
            pass

        class User(ObjectMixin, Base, type_id=3):
            __tablename__ = "users"

        class Board(ObjectMixin, Base, type_id=2, colocate_with="user_id"):
            __tablename__ = "boards"
            user_id: Mapped[int] = blob_field(ref=User)

        used = r"already used by .* of <Follows 'graph' of tests\.models\."
        with pytest.raises(OperationDefinitionError, match=used):
            Follows(Base, user=User, board=Board, owner="user_id", name="graph")

    def test_nothing_without_a_commit(self, cluster):
        ada, bob = users(cluster, 2)
        with cluster.session(cross_shard="logged") as session:
            follows.follow_user(session, ada, bob)
            session.rollback()
        assert kind_of(cluster, ada, bob) is None


class Snapshots(Suite):
    """Transactions that have read before they change."""

    def test_after_a_read_of_the_same_transaction(self, cluster):
        ada, bob = users(cluster, 2)
        one, two = boards(cluster, bob, 2)
        with cluster.begin(cross_shard="logged") as session:
            # Its snapshot does not have the first board.
            assert follows.following(session, ada, [bob]) == {}
            run(cluster, follows.follow_board, ada, one)
            follows.follow_board(session, ada, two)
        with cluster.session() as session:
            (edge,) = follows.followees(session, ada)
        assert edge.number == 2

    def test_fifty_follow_at_once(self, cluster):
        """Followers of one user do not wait for each other."""
        star, *fans = users(cluster, 51)
        (board,) = boards(cluster, star, 1)

        def follow(number: int) -> None:
            if number % 2:
                run(cluster, follows.follow_user, fans[number], star)
            else:
                run(cluster, follows.follow_board, fans[number], board)

        with ThreadPoolExecutor(10) as executor:
            list(executor.map(follow, range(50)))
        assert len(audience(cluster, board, star)) == 50
        assert cluster.pending() == []
        with cluster.session() as session:
            counts = follows.count_followers(session, star)
        assert counts == {EXPLICIT: 25, IMPLICIT: 25}


class Lists(Suite):
    """Pages, counts and questions, with the statements they take."""

    def test_counted_on_request(self, cluster, monkeypatch):
        _counted_on_request(monkeypatch)
        star, *fans = users(cluster, 4)
        (board,) = boards(cluster, star, 1)
        run(cluster, follows.follow_board, fans[0], board)
        for fan in fans:
            run(cluster, follows.follow_user, fan, star)
        run(cluster, follows.unfollow_board, fans[1], board)
        run(cluster, follows.unfollow_user, fans[2], star)

        def check() -> None:
            with cluster.session() as session:
                for question, source, number in (
                    (follows.count_followers, star, 2),
                    (follows.count_followees, fans[0], 1),
                ):
                    assert question(session, source) == {EXPLICIT: number, IMPLICIT: 0}
                assert follows.count_audience(session, board, star) == 1

        check()
        monkeypatch.undo()
        # A graph whose numbers are stored from now on.
        assert repair_follows(cluster, follows).recounted == 4
        check()

    def test_pages_of_both_kinds(self, cluster):
        star, *fans = users(cluster, 12)
        (board,) = boards(cluster, star, 1)
        for index, fan in enumerate(fans):
            if index % 3:
                run(cluster, follows.follow_user, fan, star)
            else:
                run(cluster, follows.follow_board, fan, board)
        with cluster.session() as session:
            assert follows.count_followers(session, star) == {EXPLICIT: 7, IMPLICIT: 4}
            found, after = [], None
            while True:
                page = follows.followers(session, star, 3, after)
                found += [one.id for one in page]
                after = page.next
                if after is None:
                    break
            assert found == fans[::-1]
            only = follows.followers(session, star, kinds=[IMPLICIT])
            assert [one.id for one in only] == fans[::3][::-1]
            first = follows.followers(session, star, 3)
            with pytest.raises(InvalidBookmarkError):
                follows.followers(session, fans[0], 3, first.next)
            with pytest.raises(InvalidBookmarkError):
                follows.followees(session, star, 3, first.next)

    def test_one_statement_for_25(self, cluster):
        ada, *others = users(cluster, 26)
        for other in others[:5]:
            run(cluster, follows.follow_user, ada, other)
        for other in others[3:8]:
            run(cluster, follows.follow_user, other, ada)
        with cluster.session() as session:
            for question, expected in (
                (follows.following, others[:5]),
                (follows.followed_by, others[3:8]),
            ):
                with StatementLog() as log:
                    found = question(session, ada, others)
                assert sorted(found) == sorted(expected)
                sent = [one for one in log.events if one.kind == "execute"]
                assert len(sent) == 1

    def test_an_audience_has_an_end(self, cluster):
        star, *fans = users(cluster, 8)
        (board,) = boards(cluster, star, 1)
        for fan in fans[:5]:
            run(cluster, follows.follow_user, fan, star)
        with cluster.session() as session:
            newest = next(iter(follows.followers(session, star))).sequence
        run(cluster, follows.follow_user, fans[5], star)
        run(cluster, follows.follow_board, fans[6], board)
        whole, found, position = [], [], None
        with cluster.session() as session:
            for batch in follows.audience(session, board, star, batch=2):
                whole += batch.users
            assert sorted(whole) == sorted(fans)
            # Continue with a position at each step.
            while True:
                batch = next(
                    follows.audience(
                        session, board, star, until=newest, batch=2, position=position
                    )
                )
                found += batch.users
                position = batch.position
                if position is None:
                    break
        assert sorted(found) == sorted(fans[:5])


class Deletions(Suite):
    """Users who are deleted leave the graph and the feeds of others."""

    @pytest.fixture
    def people(self, cluster: Cluster) -> list[int]:
        """Ada, who is to be deleted, has edges of all kinds on 4 shards."""
        forget_all(cluster)
        ada, bob, eve, ivy = users(cluster, 4)
        (own,), (other,) = boards(cluster, ada, 1), boards(cluster, eve, 1)
        run(cluster, follows.follow_user, ada, bob)
        run(cluster, follows.follow_board, ada, other)
        run(cluster, follows.follow_board, bob, own)
        run(cluster, follows.follow_user, eve, ada)
        run(cluster, follows.follow_user, eve, bob)
        run(cluster, follows.block, ada, ivy)
        run(cluster, follows.block, ivy, ada)
        pin(cluster, ada, own)
        return [ada, bob, eve, ivy]

    @staticmethod
    def lasting(cluster: Cluster, user_id: int) -> list[Any]:
        """Return the rows of all shards that name a user, but ended edges."""
        found: list[Any] = []
        with cluster.session() as session:
            for table in (
                *(follows.users, follows.users_reversed),
                *(follows.boards, follows.boards_reversed),
            ):
                named = (table.source_id, table.target_id, table.number)
                rows = session.execute(
                    select(*named, table.kind).where(table.kind != 0).options(scatter())
                )
                found += [row for row in rows if user_id in tuple(row)[:3]]
            for posts in (feed.posts, feed.pulled):
                own = select(posts).where(posts.c.author_id == user_id)
                found += session.execute(own).all()
        return found

    def test_all_that_names_a_user(self, cluster, people):
        ada, bob, eve, _ = people
        assert len(self.lasting(cluster, ada)) == 17
        assert ids_of(cluster, eve) != []
        with cluster.session() as session:
            plan = plan_deletion(session, User, ada)
        there = {(part.name, part.shard_id): part.count for part in plan.parts}
        assert (
            there.items()
            >= {
                ("graph_user_follows_user", 0): 3,
                ("graph_user_followed_by_user", 1): 1,
                ("graph_user_followed_by_user", 2): 1,
                ("graph_user_followed_by_user", 3): 1,
                ("graph_user_follows_board", 0): 1,
                ("graph_board_followed_by_user", 2): 1,
                ("graph_user_follows_user", 1): 1,
                ("graph_user_follows_user", 2): 1,
                ("graph_user_follows_user", 3): 1,
                ("graph_user_follows_board", 1): 1,
                ("graph_feeds_user_has_posts", 0): 1,
            }.items()
        )
        done = delete_object(cluster, User, ada)
        names = {part.name for part in plan.parts}
        assert names == {part.name for part in done.parts}
        assert self.lasting(cluster, ada) == []
        assert cluster.pending() == []
        assert ids_of(cluster, eve) == []
        with cluster.session() as session:
            assert follows.count_followers(session, bob)[EXPLICIT] == 1
            assert follows.count_followees(session, bob)[IMPLICIT] == 0
            assert follows.count_followees(session, eve)[EXPLICIT] == 1
        assert delete_object(cluster, User, ada).parts == ()
        assert repair_follows(cluster, follows).changed == 0
        purge_follows(cluster, follows, timedelta(0))
        for table in (follows.users, follows.users_reversed):
            numbers = table.counts.table
            with cluster.session() as session:
                own = select(numbers).where(numbers.columns[0] == ada)
                assert session.execute(own).all() == []

    def test_posts_that_are_deleted(self, cluster, people):
        """One in the feed of its author, and of others who share it."""
        ada, bob, *_ = people
        (board,) = boards(cluster, ada, 1)
        (other,) = boards(cluster, bob, 1)
        post, left = pin(cluster, ada, board), pin(cluster, ada, board)
        cluster.run(feed.publish, bob, other, post)
        done = delete_object(cluster, Pin, post)
        assert feed.posts.name in done.unseen
        assert self.authors(cluster, post) == [bob]
        done = delete_object(cluster, Pin, post, scatter=True)
        assert feed.posts.name not in done.unseen
        assert [part.items for part in done.parts] == [((bob, post),)]
        assert self.authors(cluster, post) == []
        assert self.authors(cluster, left) == [ada]

    def authors(self, cluster, post):
        own = feed.posts.c
        rows = select(own.author_id).where(own.post_id == post)
        with cluster.session() as session:
            return session.scalars(rows.options(scatter())).all()

    def test_a_process_that_is_killed(self, cluster, people):
        ada, *_ = people
        with after_crash():
            delete_object(cluster, User, ada, batch=1)
        assert self.lasting(cluster, ada) != []
        assert delete_object(cluster, User, ada).parts != ()
        repair(cluster, now=True)
        assert self.lasting(cluster, ada) == []
        assert delete_object(cluster, User, ada).parts == ()
        assert repair_follows(cluster, follows).changed == 0

    def test_a_follower_who_comes_meanwhile(self, cluster, people):
        ada, *_, ivy = people
        _, new = users(cluster, 2)
        with after_crash():
            run(cluster, follows.follow_user, new, ada)
        delete_object(cluster, User, ada)
        with pytest.raises(FollowRefusedError):
            run(cluster, follows.follow_user, ada, ivy)
        repair(cluster, now=True)
        assert self.lasting(cluster, ada) != []
        assert repair_follows(cluster, follows).forgotten == 1
        assert self.lasting(cluster, ada) == []
        assert repair_follows(cluster, follows).changed == 0

    def test_users_whose_rows_were_deleted(self, cluster, people):
        """Earlier versions, or other programs, have left their edges."""
        ada, *_ = people
        cluster.run(lambda session: session.execute(delete(User).where(User.id == ada)))
        assert repair_follows(cluster, follows).forgotten > 0
        with cluster.session() as session:
            for table in (follows.users, follows.users_reversed):
                place = table.place(session, ada)
                assert table.lasting(session, place, [ada]) == []
        assert repair_follows(cluster, follows).changed == 0


class Repairs(Suite):
    """Rows that have differed."""

    def test_both_directions(self, cluster):
        forget_all(cluster)
        ada, bob, eve = users(cluster, 3)
        (board,) = boards(cluster, bob, 1)
        run(cluster, follows.follow_user, ada, bob)
        run(cluster, follows.follow_board, eve, board)
        with cluster.begin(cross_shard="unordered") as session:
            # Both sides of one edge each are lost, as by a restored server.
            for table, source in ((follows.users_reversed, bob), (follows.boards, eve)):
                session.execute(delete(table.table).where(table.source_id == source))
        found = repair_follows(cluster, follows)
        assert (found.written, found.reverted) == (2, 1)
        # Of the lost edges of bob; that of eve was reverted with its number.
        assert found.recounted == 1
        assert repair_follows(cluster, follows).changed == 0
        assert kind_of(cluster, ada, bob) is EXPLICIT
        assert audience(cluster, board, bob) == [ada]

    def test_stored_numbers(self, cluster):
        forget_all(cluster)
        star, *fans = users(cluster, 6)
        (board,) = boards(cluster, star, 1)
        run(cluster, follows.follow_board, fans[0], board)
        for fan in fans[1:]:
            run(cluster, follows.follow_user, fan, star)
        repair_follows(cluster, follows)
        for table, source in (
            (follows.users, fans[0]),
            (follows.users_reversed, star),
            (follows.boards_reversed, board),
        ):
            cluster.run(_add_to_numbers, table, source)
        with cluster.session() as session:
            # Edges are not counted.
            assert follows.count_followers(session, star)[EXPLICIT] > 4
        found = repair_follows(cluster, follows, batch=2)
        assert (found.recounted, found.changed) == (3, 3)
        assert repair_follows(cluster, follows).changed == 0
        with cluster.session() as session:
            for question, expected in (
                (follows.count_followers, {EXPLICIT: 4, IMPLICIT: 1}),
                (follows.count_followees, {EXPLICIT: 0, IMPLICIT: 0}),
            ):
                assert question(session, star) == expected
            assert follows.count_audience(session, board, star) == 5

    def test_resumed(self, cluster):
        star, *fans = users(cluster, 12)
        for fan in fans:
            with after_crash():
                run(cluster, follows.follow_user, fan, star)
        discard(cluster, [one.token for one in cluster.pending()])
        position, written, calls = None, 0, 0
        while True:
            found = repair_follows(cluster, follows, position=position, rows=1, batch=1)
            written += found.written
            calls += 1
            position = found.position
            if position is None:
                break
        # The row of one fan is on the shard of the star.
        assert written == len(fans) - 1
        assert calls > len(fans)
        with cluster.session() as session:
            assert follows.count_followers(session, star)[EXPLICIT] == 11

    def test_purged_when_old(self, cluster):
        ada, bob = users(cluster, 2)
        run(cluster, follows.follow_user, ada, bob)
        run(cluster, follows.unfollow_user, ada, bob)
        run(cluster, follows.follow_user, bob, ada)
        before = _rows(cluster)
        assert purge_follows(cluster, follows) == 0
        ended = sum(kind == 0 for kind in before.values())
        assert purge_follows(cluster, follows, timedelta(0)) == ended >= 2
        assert _rows(cluster) == {k: v for k, v in before.items() if v}
        assert repair_follows(cluster, follows).changed == 0

    def test_plain_rows(self, cluster):
        """The names of tables and columns, for textual SQL."""
        ada, bob = users(cluster, 2)
        run(cluster, follows.follow_user, ada, bob)
        with cluster.session() as session:
            place = follows.users.place(session, ada)
            row = session.execute(
                text(
                    "SELECT followee_id, kind, n_boards FROM "
                    "graph_user_follows_user WHERE follower_id = :ada"
                ),
                {"ada": ada},
                bind_arguments={
                    "mapper": follows.users.cls,
                    "shard_id": place.shard_id,
                },
            ).one()
        assert tuple(row) == (bob, EXPLICIT, 0)


def _counted_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the server count edges, as for a graph without ``count_slots``."""
    for table in _tables():
        monkeypatch.setattr(table, "counts", None)


def _add_to_numbers(session: Any, table: Any, source: int) -> None:
    """Make the stored numbers of edges of an object wrong."""
    numbers = table.counts.table
    session.execute(
        update(numbers)
        .where(numbers.columns[0] == source)
        .values(number=numbers.c.number + 1),
        bind_arguments={"place": table.place(session, source)},
    )


def _rows(cluster: Cluster) -> dict[tuple[str, int, int], int]:
    """Return the kinds of all rows of the four tables."""
    found = {}
    for table in (
        *(follows.users, follows.boards),
        *(follows.users_reversed, follows.boards_reversed),
    ):
        with cluster.session() as session:
            rows = session.execute(
                select(table.source_id, table.target_id, table.kind).options(scatter())
            )
            for source, target, kind in rows:
                found[table.name, source, target] = kind
    return found


class Model:
    """A model of the follow graph: two dictionaries."""

    def __init__(self, owners: dict[int, int]) -> None:
        self.owners = owners
        self.kinds: dict[tuple[int, int], FollowKind] = {}
        self.choices: dict[tuple[int, int], BoardChoice] = {}

    def kind(self, user: int, other: int) -> FollowKind:
        return self.kinds.get((user, other), FollowKind.NONE)

    def follows(self, user: int, board: int) -> bool:
        kind = self.kind(user, self.owners[board])
        choice = self.choices.get((user, board))
        if kind is EXPLICIT:
            return choice is not BoardChoice.UNFOLLOWED
        return choice is BoardChoice.FOLLOWED

    def number(self, user: int, other: int) -> int:
        return sum(
            one == user and self.owners[board] == other and choice == 1
            for (one, board), choice in self.choices.items()
        )

    def _clear(self, user: int, other: int) -> None:
        for one, board in list(self.choices):
            if one == user and self.owners[board] == other:
                del self.choices[one, board]

    def follow_user(self, user: int, other: int) -> None:
        if self.kind(user, other) is not EXPLICIT:
            self._clear(user, other)
            self.kinds[user, other] = EXPLICIT

    def unfollow_user(self, user: int, other: int) -> None:
        if self.kind(user, other) is not FollowKind.BLOCKED:
            self._clear(user, other)
            self.kinds.pop((user, other), None)

    def block(self, other: int, user: int) -> None:
        self._clear(user, other)
        self.kinds[user, other] = FollowKind.BLOCKED

    def unblock(self, other: int, user: int) -> None:
        if self.kind(user, other) is FollowKind.BLOCKED:
            del self.kinds[user, other]

    def follow_board(self, user: int, board: int) -> None:
        other = self.owners[board]
        if self.kind(user, other) is EXPLICIT:
            self.choices.pop((user, board), None)
        else:
            self.choices[user, board] = BoardChoice.FOLLOWED
            self.kinds[user, other] = IMPLICIT

    def unfollow_board(self, user: int, board: int) -> None:
        other = self.owners[board]
        if self.kind(user, other) is EXPLICIT:
            self.choices[user, board] = BoardChoice.UNFOLLOWED
        else:
            self._drop(user, board)

    def _drop(self, user: int, board: int) -> None:
        other = self.owners[board]
        choice = self.choices.pop((user, board), None)
        if choice is BoardChoice.FOLLOWED and not self.number(user, other):
            del self.kinds[user, other]

    def delete_board(self, board: int) -> None:
        for user, one in list(self.choices):
            if one == board:
                self._drop(user, board)
        del self.owners[board]


class Histories(Suite):
    """Random histories, with operations that are late, repeated and lost."""

    histories = 4
    steps = 60

    @pytest.fixture(autouse=True)
    def _empty(self, cluster: Cluster) -> None:
        tables = [one.table for one in _tables()]
        tables += [one.counts.table for one in _tables() if one.counts]
        for table in tables:
            with cluster.begin(cross_shard="unordered") as session:
                for place in cluster.places.all_places(
                    cluster.topology.keyspaces["objects"]
                ):
                    session.execute(delete(table), bind_arguments={"place": place})
        forget_all(cluster)

    def test_equal_to_a_model(self, cluster, rng, monkeypatch):
        for number in range(self.histories):
            if number == self.histories // 2 > 0:
                _counted_on_request(monkeypatch)
            people = users(cluster, 5)
            owners = {
                board: user for user in people for board in boards(cluster, user, 2)
            }
            model = Model(owners)
            for _ in range(self.steps):
                self.step(cluster, rng, people, model)
            self.deliver(cluster, rng)
            # Some are lost, and some were not applied by killed processes.
            tokens = [one.token for one in cluster.pending()]
            discard(cluster, [one for one in tokens if rng.random() < 0.3])
            repair(cluster, now=True)
            batch = rng.choice([1, 3, 500])
            repair_follows(cluster, follows, batch=batch)
            # A forgotten board changes an edge whose row was compared.
            repair(cluster, now=True)
            self.compare(cluster, people, model)
            assert repair_follows(cluster, follows, batch=batch).changed == 0
            self.compare(cluster, people, model)

    def test_in_any_order(self, cluster, rng):
        """Operations are applied late, repeatedly, and not in order."""
        people = users(cluster, 4)
        model = Model(
            {board: user for user in people for board in boards(cluster, user, 2)}
        )
        with after_crash():
            for _ in range(self.steps):
                self.change(cluster, rng, people, model)
        found = self.pending(cluster)
        found += rng.choices(found, k=len(found))
        rng.shuffle(found)
        for arguments in found:
            cluster.run(_apply, arguments)
        self.compare(cluster, people, model)
        repair(cluster, now=True)
        assert repair_follows(cluster, follows).changed == 0
        self.compare(cluster, people, model)

    def step(self, cluster: Any, rng: random.Random, people: Any, model: Model) -> None:
        chance = rng.random()
        if chance < 0.1:
            return self.deliver(cluster, rng)
        if chance < 0.15:
            user = rng.choice(people)
            (board,) = boards(cluster, user, 1)
            model.owners[board] = user
            return None
        if chance < 0.2 and len(model.owners) > 3:
            return self.delete_board(cluster, rng, model)
        with after_crash() if rng.random() < 0.5 else nullcontext():
            return self.change(cluster, rng, people, model)

    def change(
        self, cluster: Any, rng: random.Random, people: Any, model: Model
    ) -> None:
        """Let a user follow, unfollow, block or unblock."""
        user, other = rng.sample(people, 2)
        names = ["follow_user", "unfollow_user", "block", "unblock"]
        name = rng.choices(names, [6, 3, 1, 2])[0]
        if rng.random() < 0.6:
            name = rng.choice(["follow_board", "unfollow_board"])
            other = rng.choice(
                [b for b, owner in model.owners.items() if owner != user]
            )
        to = model.owners.get(other, other)
        blocked = model.kind(user, to) is FollowKind.BLOCKED
        try:
            run(cluster, getattr(follows, name), user, other)
        except BlockedError:
            assert blocked
            assert name.startswith("follow_")
        else:
            assert not (blocked and name.startswith("follow_"))
            getattr(model, name)(user, other)

    def delete_board(self, cluster: Any, rng: random.Random, model: Model) -> None:
        board = rng.choice(list(model.owners))
        cluster.run(
            lambda session: session.execute(delete(Board).where(Board.id == board))
        )
        model.delete_board(board)
        if rng.random() < 0.5:
            forget_deleted_board(cluster, follows, board, batch=2)
        else:
            repair_follows(cluster, follows)
        # Those without a row on the shard of the board are found by this.
        repair_follows(cluster, follows)

    def deliver(self, cluster: Any, rng: random.Random) -> None:
        """Apply some pending operations in any order, and leave them."""
        found = self.pending(cluster)
        rng.shuffle(found)
        for arguments in found[: rng.randrange(len(found) + 1)]:
            cluster.run(_apply, arguments)
        if rng.random() < 0.3:
            repair(cluster, now=True)

    def pending(self, cluster: Any) -> list[Any]:
        """Return the arguments of all pending operations."""
        places = cluster.places.all_places(cluster.topology.keyspaces["objects"])
        with cluster.session() as session:
            return list(
                session.scalars(
                    select(INTENTS.c.arguments), bind_arguments={"places": places}
                )
            )

    def compare(self, cluster: Any, people: list[int], model: Model) -> None:
        for user in people:
            kinds = {
                other: model.kind(user, other)
                for other in people
                if model.kind(user, other) in (EXPLICIT, IMPLICIT)
            }
            fans = {
                other: model.kind(other, user)
                for other in people
                if model.kind(other, user) in (EXPLICIT, IMPLICIT)
            }
            with cluster.session() as session:
                assert follows.following(session, user, people) == kinds
                assert follows.followed_by(session, user, people) == fans
                for count, related in (
                    (follows.count_followers, fans),
                    (follows.count_followees, kinds),
                ):
                    assert count(session, user) == {
                        kind: Counter(related.values())[kind]
                        for kind in (EXPLICIT, IMPLICIT)
                    }
                for edge in follows.followees(session, user):
                    expected = model.number(user, edge.id)
                    assert edge.number == expected
        for board, owner in model.owners.items():
            expected = [one for one in people if model.follows(one, board)]
            found = audience(cluster, board, owner)
            assert sorted(found) == sorted(expected)
        forward = {
            ("user", one, other): kind
            for (name, one, other), kind in _rows(cluster).items()
            if name == follows.users.name and kind
        }
        backward = {
            ("user", one, other): kind
            for (name, other, one), kind in _rows(cluster).items()
            if name == follows.users_reversed.name and kind
        }
        assert forward == backward


def _tables() -> Any:
    return (
        *(follows.users, follows.boards),
        *(follows.users_reversed, follows.boards_reversed),
    )


def _apply(session: Any, arguments: Any) -> None:
    if isinstance(arguments, str):
        arguments = json.loads(arguments)
    follows.apply(session, **arguments)
