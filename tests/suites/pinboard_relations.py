"""Boards that are followed, and pins that are saved, across shards.

A test module has a fixture ``cluster`` with the tables of the pinboard, and
four shards at least; it takes the suite::

    class TestRelations(Relations):
        pass
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from examples.pinboard import boards, relations
from examples.pinboard.errors import ConflictError, ForbiddenError, NotFoundError
from examples.pinboard.inputs import read_board, read_pin
from examples.pinboard.models import Board, graph, Pin, PinInBoards, UserFollowsBoards
from examples.pinboard.samples import add_user
from examples.pinboard.tables import move_follows
from sqla_shard import Cluster
from sqla_shard.contrib import BoardChoice

_numbers = itertools.count(1)


def new_user(cluster: Cluster, shard_id: int) -> int:
    name = f"relative {next(_numbers)}"
    return add_user(cluster, name, shard_id=shard_id)


def new_board(cluster: Cluster, user_id: int) -> int:
    title = f"Board {next(_numbers)}"
    return cluster.run(boards.add_board, user_id, read_board(title, ""))


def new_pin(cluster: Cluster, user_id: int, board_id: int) -> int:
    entered = read_pin("https://example.com/", "", "")
    return cluster.run(boards.add_pin, user_id, board_id, entered)


def read(cluster: Cluster, function: Any, *args: Any) -> Any:
    with cluster.session() as session:
        return function(session, *args)


def change(cluster: Cluster, function: Any, *ids: int) -> None:
    """Follow or unfollow."""
    cluster.run(function, *ids, cross_shard="logged")


def board_of(cluster: Cluster, board_id: int) -> Board:
    with cluster.session() as session:
        return session.get_one(Board, board_id)


def followers_of(cluster: Cluster, board_id: int) -> list[int]:
    """Return the followers of a board, as stored on its shard."""
    with cluster.session() as session:
        rows = graph.boards_reversed.page(
            session, board_id, [BoardChoice.FOLLOWED], 100, None
        )
        return [row.id for row in rows]


def followed_by(cluster: Cluster, user_id: int) -> list[int]:
    found = read(cluster, relations.followed_boards, user_id)
    return [one.board.id for one in found]


def holders_of(cluster: Cluster, pin_id: int) -> list[int]:
    with cluster.session() as session:
        pin = session.get_one(Pin, pin_id)
        found = relations.boards_that_hold(session, pin)
        assert all(one.owner.id == one.board.user_id for one in found)
        return [one.board.id for one in found]


def saved_on(cluster: Cluster, board_id: int) -> list[int]:
    found = read(cluster, relations.saved_pins, board_id)
    return [pin.id for pin in found]


class Relations:
    def test_following(self, cluster: Cluster) -> None:
        owner = new_user(cluster, 0)
        first, second = (new_board(cluster, owner) for _ in range(2))
        # On the shard of the board, and on others.
        people = [new_user(cluster, shard_id) for shard_id in range(4)]
        for user_id in people:
            change(cluster, relations.follow, user_id, first)
            change(cluster, relations.follow, user_id, first)
        change(cluster, relations.follow, people[3], second)
        assert followers_of(cluster, first) == people[::-1]
        board = board_of(cluster, first)
        assert read(cluster, relations.followers, board) == 4
        assert followed_by(cluster, people[3]) == [second, first]
        assert read(cluster, relations.follows, people[0], board)
        other = board_of(cluster, second)
        assert not read(cluster, relations.follows, people[0], other)

        for user_id in people[1:3]:
            change(cluster, relations.unfollow, user_id, first)
            change(cluster, relations.unfollow, user_id, first)
        assert followers_of(cluster, first) == [people[3], people[0]]
        assert followed_by(cluster, people[1]) == []
        assert not cluster.pending()

    def test_home_and_notices(self, cluster: Cluster) -> None:
        owner, reader, friend = (new_user(cluster, n) for n in (0, 1, 2))
        one, two = (new_board(cluster, owner) for _ in range(2))
        theirs = new_board(cluster, friend)
        old = new_pin(cluster, owner, one)
        change(cluster, relations.follow_user, reader, owner)
        change(cluster, relations.follow, reader, theirs)
        new = [new_pin(cluster, owner, two), new_pin(cluster, friend, theirs)]
        page = read(cluster, relations.home_page, reader)
        found = page.pins
        assert [each.pin.id for each in found] == [*new[::-1], old]
        assert [each.board.id for each in found] == [theirs, two, one]
        assert [each.owner.id for each in found] == [friend, owner, owner]
        assert page.next is None
        # A removed pin is not shown until it is restored.
        cluster.run(boards.remove_pin, owner, new[0])
        found = read(cluster, relations.home_page, reader).pins
        assert [each.pin.id for each in found] == [new[1], old]
        cluster.run(boards.restore_pin, owner, new[0])
        change(cluster, relations.unfollow, reader, theirs)
        found = read(cluster, relations.home_page, reader).pins
        assert [each.pin.id for each in found] == [new[0], old]
        for user_id, number in ((owner, 0), (friend, None)):
            notices = read(cluster, relations.notices, user_id)
            shown = [(each.user.id, each.boards) for each in notices]
            assert shown == ([] if number is None else [(reader, number)])
        assert read(cluster, relations.counts, owner) == (1, 0)
        assert read(cluster, relations.counts, reader) == (0, 1)
        change(cluster, relations.unfollow_user, reader, owner)
        found = read(cluster, relations.home_page, reader)
        assert (found.pins, found.next, found.hidden) == ([], None, 0)

    # All rows of an earlier version are moved, once.
    @pytest.mark.sqla_shard_allow("scatter")
    def test_boards_of_earlier_versions(self, cluster: Cluster) -> None:
        owner, reader = (new_user(cluster, shard_id) for shard_id in (0, 1))
        board_id = new_board(cluster, owner)
        cluster.run(UserFollowsBoards.append, reader, board_id)
        for _ in range(2):
            move_follows(cluster)
            assert followers_of(cluster, board_id) == [reader]
            assert followed_by(cluster, reader) == [board_id]
        with cluster.session() as session:
            assert not UserFollowsBoards.count(session, reader)

    def test_invalid_follows_are_refused(self, cluster: Cluster) -> None:
        user_id = new_user(cluster, 1)
        board_id = new_board(cluster, user_id)
        with pytest.raises(ConflictError):
            change(cluster, relations.follow, user_id, board_id)
        with pytest.raises(ConflictError):
            change(cluster, relations.follow_user, user_id, user_id)
        for function in (relations.follow, relations.unfollow):
            with pytest.raises(NotFoundError):
                change(cluster, function, user_id, board_id + 1000)
        for function in (relations.follow_user, relations.unfollow_user):
            with pytest.raises(NotFoundError):
                change(cluster, function, user_id, user_id + 1000)
        assert followers_of(cluster, board_id) == []

    def test_boards_that_hold_a_pin(self, cluster: Cluster) -> None:
        owner = new_user(cluster, 0)
        home = new_board(cluster, owner)
        pin_id, other = (new_pin(cluster, owner, home) for _ in range(2))
        people = [new_user(cluster, shard_id) for shard_id in range(4)]
        theirs = [new_board(cluster, user_id) for user_id in people]
        for user_id, board_id in zip(people, theirs, strict=True):
            for _ in range(2):
                cluster.run(relations.save_pin, user_id, board_id, pin_id)
        assert holders_of(cluster, pin_id) == [home, *theirs[::-1]]
        assert holders_of(cluster, other) == [home]
        assert [saved_on(cluster, one) for one in theirs] == [[pin_id]] * 4
        # The board that it is of counts as before, and so do theirs.
        assert read(cluster, boards.pin_counts, home) == (2, 0)
        assert read(cluster, boards.pin_counts, theirs[1]) == (0, 0)

        cluster.run(relations.take_off, people[1], theirs[1], pin_id)
        cluster.run(relations.take_off, people[0], theirs[0], pin_id)
        kept = [home, theirs[3], theirs[2]]
        assert holders_of(cluster, pin_id) == kept
        assert saved_on(cluster, theirs[1]) == []

        # Removed by its owner, it is shown nowhere; restored, everywhere.
        cluster.run(boards.remove_pin, owner, pin_id)
        assert saved_on(cluster, theirs[2]) == []
        cluster.run(boards.restore_pin, owner, pin_id)
        assert saved_on(cluster, theirs[2]) == [pin_id]
        assert holders_of(cluster, pin_id) == kept
        assert not cluster.pending()

    def test_whose_is_what(self, cluster: Cluster) -> None:
        owner, other = new_user(cluster, 0), new_user(cluster, 3)
        home, theirs = new_board(cluster, owner), new_board(cluster, other)
        pin_id = new_pin(cluster, owner, home)
        with pytest.raises(ForbiddenError):
            cluster.run(relations.save_pin, owner, theirs, pin_id)
        with pytest.raises(ConflictError):
            cluster.run(relations.save_pin, owner, home, pin_id)
        with pytest.raises(NotFoundError):
            cluster.run(relations.save_pin, other, theirs, pin_id + 1000)
        cluster.run(relations.save_pin, other, theirs, pin_id)
        # Users who saved a pin on their board may not change it.
        for change in (boards.remove_pin, boards.restore_pin):
            with pytest.raises(ForbiddenError):
                cluster.run(change, other, pin_id)
        with pytest.raises(ForbiddenError):
            cluster.run(boards.edit_pin, other, pin_id, {"title": "Mine"})
        # Nor may its owner take it off there.
        with pytest.raises(ForbiddenError):
            cluster.run(relations.take_off, owner, theirs, pin_id)
        assert holders_of(cluster, pin_id) == [home, theirs]

    def test_boards_to_choose_from(self, cluster: Cluster) -> None:
        owner, other = new_user(cluster, 0), new_user(cluster, 2)
        home, mine = new_board(cluster, owner), new_board(cluster, owner)
        theirs = [new_board(cluster, other) for _ in range(2)]
        pin_id = new_pin(cluster, owner, home)
        cluster.run(relations.save_pin, other, theirs[0], pin_id)
        with cluster.session() as session:
            pin = session.get_one(Pin, pin_id)
            for user_id, expected in [(owner, [mine]), (other, theirs[1:])]:
                found = relations.boards_to_save_on(session, user_id, pin)
                assert [board.id for board in found] == expected
            assert PinInBoards.count(session, pin_id) == 1
