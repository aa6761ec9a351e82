"""Appends to lists, removals and moves: their effects and costs."""

from __future__ import annotations

import enum
from itertools import pairwise

import pytest
from sqlalchemy import select

from sqla_shard import exc
from sqla_shard.models.list_positions import STEP
from sqla_shard.types.columns import MAX_SEQUENCE
from tests.models.layouts import pack, unpack
from tests.models.mapping_models import (
    BOARD,
    BoardHasPins,
    BoardHasRatedPins,
    LISTS,
    NarrowList,
    new_board,
    PIN,
    pins,
    put,
    sequences,
    SHARDS,
    shown,
    Suite,
    USER,
    User,
    UserFollowsUser,
)

NOW = 1_700_000_000_000


class Number(enum.IntEnum):
    BOARD = pack(7, BOARD, 77)
    PIN = pack(8, PIN, 88)


class Changes(Suite):
    @pytest.fixture
    def five(self, cluster, board):
        """Return the pins of a board, newest first."""
        found = pins(5)
        with cluster.begin() as session:
            BoardHasPins.append_many(session, board, found)
        return found[::-1]


class Appending(Changes):
    def test_new_rows_go_on_top(self, cluster, session, board):
        a, b, c = pins(3)
        for pin in (a, b, c):
            assert BoardHasPins.append(session, board, pin) is True
        session.commit()
        assert shown(cluster, BoardHasPins, board) == [c, b, a]

    def test_existing_rows_stay_unchanged(self, cluster, session, board, five):
        before = sequences(cluster, BoardHasPins, board)
        assert BoardHasPins.append(session, board, five[2]) is False
        assert BoardHasPins.append_many(session, board, five) == []
        session.commit()
        assert sequences(cluster, BoardHasPins, board) == before

    def test_put_at_a_position(self, cluster, session, board, five):
        at = sequences(cluster, BoardHasPins, board)
        (new,) = pins(1)
        assert BoardHasPins.put(session, board, new, at[five[2]] + 1) is True
        assert BoardHasPins.put(session, board, five[0], 7) is True
        assert BoardHasPins.put(session, board, five[0], 7) is False
        session.commit()
        assert shown(cluster, BoardHasPins, board) == [five[1], new, *five[2:], five[0]]
        assert sequences(cluster, BoardHasPins, board)[five[0]] == 7
        with pytest.raises(exc.SequenceExhaustedError):
            BoardHasPins.put(session, board, new, MAX_SEQUENCE + 1)

    def test_put_many_at_positions(self, cluster, session, board, five):
        at = sequences(cluster, BoardHasPins, board)
        new = pins(2)
        wanted = {five[1]: at[five[1]], five[0]: 7, new[0]: at[five[2]] + 1, new[1]: 5}
        changed = BoardHasPins.put_many(session, board, wanted)
        assert sorted(changed) == sorted({*new, five[0]})
        assert BoardHasPins.put_many(session, board, wanted) == []
        assert BoardHasPins.put_many(session, board, {}) == []
        session.commit()
        found = sequences(cluster, BoardHasPins, board)
        assert found == {**at, **wanted}
        assert BoardHasPins.count(session, board) == 7
        with pytest.raises(exc.SequenceExhaustedError):
            BoardHasPins.put_many(
                session, board, {five[0]: 1, pins(1)[0]: MAX_SEQUENCE + 1}
            )
        with pytest.raises(exc.InvalidIdError, match="a dict of positions"):
            BoardHasPins.put_many(session, board, five)

    def test_what_is_no_list_is_refused(self, session, board, five):
        for wrong in (None, five[0], "", object()):
            for read in (BoardHasPins.contains, BoardHasPins.append_many):
                with pytest.raises(exc.InvalidIdError, match="takes a list of ids"):
                    read(session, board, wrong)
            with pytest.raises(exc.InvalidIdError, match="takes a list of ids"):
                BoardHasPins.pages(session, wrong)

    def test_a_row_stays_on_the_shard_of_its_source(self, session, board, five):
        shard, *others = unpack(board)
        row = session.get_one(BoardHasPins, (board, five[0]))
        row.board_id = pack(shard + 1, *others)
        with pytest.raises(exc.ColocationError, match="cannot move"):
            session.flush()

    def test_a_target_can_be_in_many_lists(self, cluster, session, board):
        other = new_board(cluster)
        (a,) = pins(1)
        assert BoardHasPins.append(session, board, a)
        assert BoardHasPins.append(session, other, a)
        assert NarrowList.append(session, board, a)
        session.commit()
        for cls, source in (
            (BoardHasPins, board),
            (BoardHasPins, other),
            (NarrowList, board),
        ):
            assert shown(cluster, cls, source) == [a]

    def test_positions_of_one_millisecond_differ(
        self, cluster, session, board, monkeypatch
    ):
        monkeypatch.setattr(
            "sqla_shard.models.list_positions.now", lambda: 1_700_000_000_000 * STEP
        )
        many = pins(20)
        for pin in many[:10]:
            BoardHasPins.append(session, board, pin)
        BoardHasPins.append_many(session, board, many[10:])
        session.commit()
        found = sequences(cluster, BoardHasPins, board)
        assert list(found) == many[::-1]
        assert sorted(found.values()) == [(NOW + i) * STEP for i in range(20)]

    def test_a_clock_that_was_set_back(self, cluster, session, board, monkeypatch):
        a, b = pins(2)
        BoardHasPins.append(session, board, a)
        monkeypatch.setattr("sqla_shard.models.list_positions.now", lambda: STEP)
        BoardHasPins.append(session, board, b)
        session.commit()
        assert shown(cluster, BoardHasPins, board) == [b, a]

    def test_many(self, cluster, session, board):
        many = pins(2500)
        BoardHasPins.append(session, board, many[1200])
        # Twice the same, and from an iterator.
        added = BoardHasPins.append_many(session, board, iter(many + many))
        assert added == many[:1200] + many[1201:]
        session.commit()
        assert shown(cluster, BoardHasPins, board) == [*reversed(added), many[1200]]

    def test_none(self, session, board, log):
        assert BoardHasPins.append_many(session, board, []) == []
        assert log.take() == {}

    def test_costs(self, session, board, five, log):
        (a, *more) = pins(101)
        BoardHasPins.append(session, board, a)
        assert log.take() == {5: 2}
        BoardHasPins.append(session, board, a)
        assert log.take() == {5: 1}
        BoardHasPins.append_many(session, board, more)
        assert log.take() == {5: 3}

    def test_the_same_class_twice(self, cluster, session):
        # Users that others insert here do not follow anybody.
        users = [pack(9, USER, 900_000 + i) for i in range(4)]
        for one in users[1:]:
            UserFollowsUser.append(session, users[0], one)
        # A user may follow itself.
        assert UserFollowsUser.append(session, users[0], users[0])
        session.commit()
        assert shown(cluster, UserFollowsUser, users[0]) == [users[0], *users[:0:-1]]
        assert shown(cluster, UserFollowsUser, users[1]) == []

    def test_columns_of_ones_own_get_their_defaults(self, session, board):
        (a, b) = pins(2)
        BoardHasRatedPins.append(session, board, a)
        BoardHasRatedPins.append_many(session, board, [b])
        rows = list(BoardHasRatedPins.page(session, board))
        assert [(row.stars, row.remark) for row in rows] == [(3, None)] * 2

    def test_a_source_and_a_shard_that_is_not_there(self, cluster, session):
        # Nothing checks that the source exists.
        board = pack(17, BOARD, 2**36 - 1)
        (a,) = pins(1)
        assert BoardHasPins.append(session, board, a)
        session.commit()
        assert shown(cluster, BoardHasPins, board) == [a]
        with pytest.raises(exc.UnknownShardError):
            BoardHasPins.append(session, pack(SHARDS, BOARD, 1), a)

    def test_a_target_of_a_shard_that_is_not_open(self, session, board):
        # It could never be read, and nor could a page with it.
        lost = pack(SHARDS, PIN, 1)
        with pytest.raises(exc.UnknownShardError):
            BoardHasPins.append(session, board, lost)
        with pytest.raises(exc.UnknownShardError):
            BoardHasPins.append_many(session, board, [*pins(1), lost])
        assert not BoardHasPins.count(session, board)
        assert not BoardHasPins.remove(session, board, lost)

    def test_one_transaction_writes_one_shard(self, cluster, session, five):
        other = new_board(cluster, shard_id=6)
        BoardHasPins.append(session, pack(5, BOARD, 999_999), five[0])
        with pytest.raises(exc.CrossShardWriteError):
            BoardHasPins.append(session, other, five[0])

    def test_rolled_back(self, cluster, session, board, five):
        (a,) = pins(1)
        BoardHasPins.append(session, board, a)
        session.rollback()
        assert shown(cluster, BoardHasPins, board) == five
        savepoint = session.begin_nested()
        BoardHasPins.append(session, board, a)
        savepoint.rollback()
        assert BoardHasPins.append(session, board, a)
        session.commit()
        assert shown(cluster, BoardHasPins, board) == [a, *five]

    def test_a_row_that_is_not_flushed_yet(self, cluster, session, board):
        a, b = pins(2)
        session.add(BoardHasPins(board_id=board, pin_id=a))
        assert BoardHasPins.append(session, board, a) is False
        session.add(BoardHasPins(board_id=board, pin_id=b, sequence=STEP))
        assert BoardHasPins.append_many(session, board, [a, b]) == []
        session.commit()
        assert shown(cluster, BoardHasPins, board) == [a, b]

    def test_without_autoflush(self, cluster, session, board):
        a, b = pins(2)
        with session.no_autoflush:
            session.add(BoardHasPins(board_id=board, pin_id=a))
            assert BoardHasPins.append(session, board, b)
            assert BoardHasPins.contains(session, board, [a, b]) == {b}
        session.commit()
        assert set(shown(cluster, BoardHasPins, board)) == {a, b}

    def test_above_a_sequence_at_the_end_of_time(self, cluster, session, board):
        a, b = pins(2)
        put(cluster, BoardHasPins, board, {a: MAX_SEQUENCE})
        with pytest.raises(exc.MappingError):
            BoardHasPins.append(session, board, b)
        session.rollback()
        assert shown(cluster, BoardHasPins, board) == [a]


class Removing(Changes):
    def test_remove(self, cluster, session, board, five):
        assert BoardHasPins.remove(session, board, five[1]) is True
        assert BoardHasPins.remove(session, board, five[1]) is False
        session.commit()
        assert shown(cluster, BoardHasPins, board) == [five[0], *five[2:]]

    def test_costs(self, session, board, five, log):
        BoardHasPins.remove(session, board, five[1])
        assert log.take() == {5: 2}
        BoardHasPins.remove(session, board, five[1])
        assert log.take() == {5: 1}

    def test_only_of_this_list(self, cluster, session, board, five):
        other = new_board(cluster)
        assert BoardHasPins.remove(session, other, five[0]) is False
        BoardHasPins.append(session, other, five[0])
        BoardHasPins.remove(session, board, five[0])
        session.commit()
        assert shown(cluster, BoardHasPins, board) == five[1:]
        assert shown(cluster, BoardHasPins, other) == five[:1]

    def test_and_add_again_on_top(self, cluster, session, board, five):
        BoardHasPins.remove(session, board, five[3])
        assert BoardHasPins.append(session, board, five[3])
        session.commit()
        assert shown(cluster, BoardHasPins, board) == [five[3], *five[:3], five[4]]

    def test_a_row_that_the_session_holds(self, session, board, five):
        rows = list(BoardHasPins.page(session, board))
        BoardHasPins.remove(session, board, five[0])
        assert rows[0] not in session
        assert list(BoardHasPins.page(session, board)) == rows[1:]
        session.rollback()
        assert [r.pin_id for r in BoardHasPins.page(session, board)] == five
        assert rows[0].sequence == BoardHasPins.position(session, board, five[0])

    def test_savepoint(self, session, board, five):
        rows = list(BoardHasPins.page(session, board))
        before = [row.sequence for row in rows]
        savepoint = session.begin_nested()
        BoardHasPins.remove(session, board, five[0])
        BoardHasPins.append(session, board, five[0])
        savepoint.rollback()
        again = list(BoardHasPins.page(session, board))
        assert [row.pin_id for row in again] == five
        assert [row.sequence for row in again] == before


class Clearing(Changes):
    def test_clear(self, cluster, session, board, five, log):
        other = pack(5, BOARD, 55555)
        BoardHasPins.append(session, other, five[0])
        NarrowList.append(session, board, five[0])
        log.take()
        assert BoardHasPins.clear(session, board) == 5
        assert log.take() == {5: 2}
        assert BoardHasPins.clear(session, board) == 0
        session.commit()
        assert shown(cluster, BoardHasPins, board) == []
        assert shown(cluster, BoardHasPins, other) == five[:1]
        assert shown(cluster, NarrowList, board) == five[:1]

    def test_rows_that_the_session_holds(self, session, board, five):
        rows = list(BoardHasPins.page(session, board))
        BoardHasPins.clear(session, board)
        assert not any(row in session for row in rows)
        assert not BoardHasPins.page(session, board)
        session.rollback()
        assert list(BoardHasPins.page(session, board)) == rows

    def test_savepoint(self, session, board, five):
        rows = list(BoardHasPins.page(session, board))
        before = [row.sequence for row in rows]
        savepoint = session.begin_nested()
        BoardHasPins.clear(session, board)
        BoardHasPins.append_many(session, board, five)
        savepoint.rollback()
        again = list(BoardHasPins.page(session, board))
        assert [row.pin_id for row in again] == five
        assert [row.sequence for row in again] == before

    def test_a_row_that_is_not_flushed_yet(self, session, board, five):
        session.add(BoardHasPins(board_id=board, pin_id=pins(1)[0]))
        assert BoardHasPins.clear(session, board) == 6
        assert BoardHasPins.count(session, board) == 0

    def test_and_fill_again(self, cluster, session, board, five):
        BoardHasPins.clear(session, board)
        added = BoardHasPins.append_many(session, board, five)
        assert added == five
        session.commit()
        assert shown(cluster, BoardHasPins, board) == five[::-1]


class Moving(Changes):
    @pytest.mark.parametrize("way", ["before", "after", "both"])
    @pytest.mark.parametrize("source", range(5))
    @pytest.mark.parametrize("place", range(5))
    def test_to_every_place(self, cluster, session, board, five, source, place, way):
        moved = five[source]
        rest = [pin for pin in five if pin != moved]
        named = {
            "before": rest[place - 1] if place else None,
            "after": rest[place] if place < 4 else None,
        }
        if way != "both":
            named = {way: named[way]}
        if set(named.values()) == {None}:
            return  # nothing is on that side
        sequence = BoardHasPins.move(session, board, moved, **named)
        session.commit()
        assert shown(cluster, BoardHasPins, board) == [
            *rest[:place],
            moved,
            *rest[place:],
        ]
        with cluster.session() as other:
            assert BoardHasPins.position(other, board, moved) == sequence

    def test_costs(self, session, board, five, log):
        a, b, c, d, e = five
        for named in (
            {"before": a},
            {"after": d},
            {"before": e},
            {"before": a, "after": b},
        ):
            BoardHasPins.move(session, board, c, **named)
            first, second = (event.statement for event in log.executions)
            assert first.startswith("SELECT")
            assert second.startswith("UPDATE")
            log.clear()

    def test_where_it_is_already(self, session, board, five, log):
        a, b, c, d, e = five
        at = BoardHasPins.position(session, board, c)
        for named in ({"before": b}, {"after": d}, {"before": b, "after": d}):
            log.take()
            assert BoardHasPins.move(session, board, c, **named) == at
            assert log.take() == {5: 1}
        assert BoardHasPins.move(session, board, a, after=b) == BoardHasPins.position(
            session, board, a
        )
        assert BoardHasPins.move(session, board, e, before=d) == BoardHasPins.position(
            session, board, e
        )

    def test_not_adjacent_any_more_is_next_to_before(
        self, cluster, session, board, five
    ):
        a, b, c, d, e = five
        BoardHasPins.move(session, board, e, before=a, after=d)
        session.commit()
        assert shown(cluster, BoardHasPins, board) == [a, e, b, c, d]

    def test_past_a_neighbour_that_was_moved(self, cluster, session, board, five):
        a, b, c, d, e = five
        with cluster.begin() as other:
            BoardHasPins.move(other, board, b, after=a)
        BoardHasPins.move(session, board, e, before=b)
        session.commit()
        assert shown(cluster, BoardHasPins, board) == [b, e, a, c, d]

    def test_commits_of_others_are_visible(self, cluster, session, board, five):
        a, b, c, d, e = five
        # Begins a transaction, and its snapshot.
        assert BoardHasPins.count(session, board) == 5
        with cluster.begin() as other:
            BoardHasPins.move(other, board, d, before=a, after=b)
        BoardHasPins.move(session, board, e, before=a, after=b)
        session.commit()
        assert shown(cluster, BoardHasPins, board) == [a, e, d, b, c]

    def test_stale_neighbours(self, session, board, five):
        a, b, c, d, _ = five
        (gone,) = pins(1)
        for named, missing in (
            ({"before": gone}, (gone,)),
            ({"after": gone}, (gone,)),
            ({"before": a, "after": gone}, (gone,)),
            ({"before": gone, "after": a}, (gone,)),
            ({"before": d, "after": b}, ()),
        ):
            with pytest.raises(exc.StaleNeighbourError) as caught:
                BoardHasPins.move(session, board, c, **named)
            error = caught.value
            assert error.missing == missing
            assert (error.mapping, error.source_id, error.target_id) == (
                "BoardHasPins",
                board,
                c,
            )
            assert (error.before, error.after) == (
                named.get("before"),
                named.get("after"),
            )
        assert [r.pin_id for r in BoardHasPins.page(session, board)] == five

    def test_a_neighbour_of_another_list(self, cluster, session, board, five):
        other = new_board(cluster)
        (a,) = pins(1)
        with cluster.begin() as setup:
            BoardHasPins.append(setup, other, a)
            NarrowList.append(setup, board, a)
        with pytest.raises(exc.StaleNeighbourError):
            BoardHasPins.move(session, board, five[0], before=a)
        with pytest.raises(exc.MissingTargetError):
            BoardHasPins.move(session, board, a, before=five[0])

    def test_a_missing_row(self, session, board, five):
        (gone,) = pins(1)
        with pytest.raises(exc.MissingTargetError) as caught:
            BoardHasPins.move(session, board, gone, before=five[0])
        assert caught.value.target_id == gone
        with pytest.raises(exc.MissingTargetError):
            BoardHasPins.move(session, pack(5, BOARD, 88888), gone, before=five[0])

    def test_moves_that_make_no_sense(self, session, board, five, log):
        a, b, *_ = five
        for named in (
            {},
            {"before": None, "after": None},
            {"before": a},
            {"after": a},
            {"before": a, "after": b},
            {"before": b, "after": a},
            {"before": b, "after": b},
        ):
            with pytest.raises(exc.InvalidMoveError) as caught:
                BoardHasPins.move(session, board, a, **named)
            assert isinstance(caught.value, ValueError)
        assert log.take() == {}

    def test_two_rows(self, cluster, session, board):
        a, b = pins(2)
        BoardHasPins.append_many(session, board, [a, b])
        BoardHasPins.move(session, board, a, after=b)
        session.commit()
        assert shown(cluster, BoardHasPins, board) == [a, b]
        BoardHasPins.move(session, board, a, before=b)
        session.commit()
        assert shown(cluster, BoardHasPins, board) == [b, a]

    def test_to_both_ends_for_ever(self, cluster, session, board, five):
        model = list(five)
        for _ in range(60):
            last = model.pop()
            BoardHasPins.move(session, board, last, after=model[0])
            model.insert(0, last)
        for _ in range(60):
            first = model.pop(0)
            BoardHasPins.move(session, board, first, before=model[-1])
            model.append(first)
        session.commit()
        assert shown(cluster, BoardHasPins, board) == model

    def test_at_the_ends_of_all_positions(self, cluster, session, board):
        low, high, a, b = pins(4)
        put(
            cluster,
            BoardHasPins,
            board,
            {low: 0, a: 5 * STEP, b: 6 * STEP, high: MAX_SEQUENCE},
        )
        BoardHasPins.move(session, board, a, before=low)
        BoardHasPins.move(session, board, b, after=high)
        session.commit()
        assert shown(cluster, BoardHasPins, board) == [b, high, low, a]
        found = sequences(cluster, BoardHasPins, board)
        assert len(set(found.values())) == 4

    def test_between_equal_positions(self, cluster, session, board):
        a, b, c, d = sorted(pins(4))
        put(cluster, BoardHasPins, board, dict.fromkeys((a, b, c), STEP))
        BoardHasPins.append(session, board, d)
        # Newest first, and of equal ones the highest id.
        assert [r.pin_id for r in BoardHasPins.page(session, board)] == [d, c, b, a]
        BoardHasPins.move(session, board, d, before=b, after=a)
        session.commit()
        assert shown(cluster, BoardHasPins, board) == [c, b, d, a]
        found = sequences(cluster, BoardHasPins, board)
        assert len(set(found.values())) == 4

    @pytest.mark.parametrize(("side", "moves"), [("before", 83), ("after", 84)])
    def test_a_gap_of_one_millisecond(self, cluster, session, board, side, moves, log):
        top, low, *rest = pins(90)
        put(
            cluster,
            BoardHasPins,
            board,
            {top: NOW * STEP, low: (NOW - 1) * STEP}
            | {pin: i for i, pin in enumerate(rest)},
        )
        neighbours = {"before": top, "after": low}
        for count, pin in enumerate(rest):  # noqa: B007  # used after it
            log.take()
            BoardHasPins.move(session, board, pin, **neighbours)
            if log.take() != {5: 2}:
                break
            neighbours[side] = pin
        # The middle is rounded down, so there is one more above it.
        assert count == moves
        session.commit()
        found = shown(cluster, BoardHasPins, board)
        moved = rest[: count + 1]
        if side == "after":
            moved.reverse()
        assert found[: count + 3] == [top, *moved, low]

    def test_narrow_gaps_are_reported(self, cluster, board, request):
        seen = []
        definition = BoardHasPins.__sqla_shard_mapping__
        request.addfinalizer(definition.callbacks.clear)

        @BoardHasPins.on_narrow_gap
        def heard(session, gap):
            assert session is current
            seen.append(gap)

        assert callable(heard)
        top, low, moved = pins(3)
        with cluster.begin() as current:
            put(cluster, BoardHasPins, board, {top: STEP + 2**21, low: STEP})
            BoardHasPins.append(current, board, moved)
        with cluster.begin() as current:
            BoardHasPins.move(current, board, moved, before=top)
            assert seen == []
        put(cluster, BoardHasPins, board, dict.fromkeys(pins(1), 9))
        other = new_board(cluster)
        put(cluster, BoardHasPins, other, {top: STEP + 2**20, low: STEP})
        with cluster.begin() as current:
            BoardHasPins.append(current, other, moved)
            BoardHasPins.move(current, other, moved, before=top)
        (gap,) = seen
        assert gap.mapping is BoardHasPins
        assert (gap.source_id, gap.target_id) == (other, moved)
        assert gap.moves_left == 19

    def test_a_callback_may_respace(self, cluster, board, request):
        definition = NarrowList.__sqla_shard_mapping__
        request.addfinalizer(definition.callbacks.clear)

        @NarrowList.on_narrow_gap
        def respace(session, gap):
            assert NarrowList.respace(session, gap.source_id, around=gap.target_id)

        top, low, moved = pins(3)
        put(cluster, NarrowList, board, {top: STEP + 3, low: STEP, moved: 5})
        with cluster.begin() as session:
            at = NarrowList.move(session, board, moved, before=top)
            assert NarrowList.position(session, board, moved) == at
        assert shown(cluster, NarrowList, board) == [top, moved, low]

    def test_no_room_on_top(self, cluster, board):
        top, new = pins(2)
        put(cluster, BoardHasPins, board, {top: 10**38 - 1})
        with cluster.begin() as session:
            with pytest.raises(exc.SequenceExhaustedError, match="the first"):
                BoardHasPins.append(session, board, new)
            with pytest.raises(exc.SequenceExhaustedError, match="the first"):
                BoardHasPins.append_many(session, board, [new])
        assert shown(cluster, BoardHasPins, board) == [top]

    @pytest.mark.parametrize("column", ["board_id", "pin_id"])
    def test_rows_with_ids_of_other_classes(self, session, board, column):
        (pin,) = pins(1)
        row = {"board_id": board, "pin_id": pin}
        row[column] = pin if column == "board_id" else board
        session.add(BoardHasPins(**row))
        with pytest.raises(exc.WrongTypeError):
            session.flush()

    def test_an_exception_of_a_callback_fails_the_move(self, cluster, board, request):
        definition = NarrowList.__sqla_shard_mapping__
        request.addfinalizer(definition.callbacks.clear)

        @NarrowList.on_narrow_gap
        def refuse(session, gap):
            raise RuntimeError("no room")

        top, low, moved = pins(3)
        put(cluster, NarrowList, board, {top: STEP + 3, low: STEP, moved: 5})
        with pytest.raises(RuntimeError), cluster.begin() as session:
            NarrowList.move(session, board, moved, before=top)
        assert shown(cluster, NarrowList, board) == [top, low, moved]

    def test_columns_of_ones_own_stay(self, session, board):
        a, b = pins(2)
        session.add(BoardHasRatedPins(board_id=board, pin_id=a, stars=5, remark="x"))
        session.flush()
        BoardHasRatedPins.append(session, board, b)
        BoardHasRatedPins.move(session, board, a, after=b)
        session.expire_all()
        (row, _) = BoardHasRatedPins.page(session, board)
        assert (row.pin_id, row.stars, row.remark) == (a, 5, "x")


class Held(Changes):
    """Sessions that hold rows."""

    def test_a_row_has_its_new_sequence(self, session, board, five):
        rows = {r.pin_id: r for r in BoardHasPins.page(session, board)}
        at = BoardHasPins.move(session, board, five[4], after=five[0])
        assert rows[five[4]].sequence == at
        session.commit()
        assert rows[five[4]].sequence == at

    def test_and_its_old_one_after_a_rollback(self, session, board, five):
        rows = {r.pin_id: r for r in BoardHasPins.page(session, board)}
        before = rows[five[4]].sequence
        BoardHasPins.move(session, board, five[4], after=five[0])
        assert rows[five[4]].sequence != before
        session.rollback()
        assert rows[five[4]].sequence == before

    @pytest.mark.parametrize("looked", [True, False])
    def test_and_after_that_to_a_savepoint(self, session, board, five, looked):
        rows = {r.pin_id: r for r in BoardHasPins.page(session, board)}
        before = rows[five[4]].sequence
        savepoint = session.begin_nested()
        at = BoardHasPins.move(session, board, five[4], after=five[0])
        if looked:
            assert rows[five[4]].sequence == at
        savepoint.rollback()
        assert rows[five[4]].sequence == before

    def test_a_released_savepoint(self, session, board, five):
        rows = {r.pin_id: r for r in BoardHasPins.page(session, board)}
        with session.begin_nested():
            at = BoardHasPins.move(session, board, five[4], after=five[0])
            assert rows[five[4]].sequence == at
        assert rows[five[4]].sequence == at

    def test_rows_that_were_respaced(self, cluster, session, board):
        close = sorted(pins(10))
        put(cluster, BoardHasPins, board, {p: STEP + i for i, p in enumerate(close)})
        rows = {r.pin_id: r for r in BoardHasPins.page(session, board)}
        old = {pin: row.sequence for pin, row in rows.items()}
        savepoint = session.begin_nested()
        BoardHasPins.move(session, board, close[0], before=close[6], after=close[5])
        new = {pin: row.sequence for pin, row in rows.items()}
        assert new == {
            r.pin_id: r.sequence
            for r in session.scalars(
                select(BoardHasPins)
                .where(BoardHasPins.board_id == board)
                .execution_options(populate_existing=True)
            )
        }
        assert new != old
        savepoint.rollback()
        assert {pin: row.sequence for pin, row in rows.items()} == old
        assert BoardHasPins.respace(session, board) > 0
        assert {p: r.sequence for p, r in rows.items()} != old

    def test_a_change_that_is_not_flushed(self, cluster, session, board, five):
        (row, *_) = BoardHasPins.page(session, board)
        row.sequence = 7
        assert BoardHasPins.position(session, board, row.pin_id) == 7
        row.sequence = 8
        # The row is at the end now, so it goes up.
        at = BoardHasPins.move(session, board, row.pin_id, after=five[1])
        assert row.sequence == at
        session.commit()
        assert shown(cluster, BoardHasPins, board) == five

    def test_a_row_that_was_deleted_and_not_flushed(self, session, board, five):
        (row, *_) = BoardHasPins.page(session, board)
        session.delete(row)
        with pytest.raises(exc.MissingTargetError):
            BoardHasPins.move(session, board, five[0], before=five[1])


class Respacing(Changes):
    def test_the_whole_list(self, cluster, session, board):
        many = sorted(pins(3000))
        put(
            cluster,
            BoardHasPins,
            board,
            {pin: STEP + i // 3 for i, pin in enumerate(many)},
        )
        before = shown(cluster, BoardHasPins, board)
        changed = BoardHasPins.respace(session, board)
        session.commit()
        assert shown(cluster, BoardHasPins, board) == before
        found = list(sequences(cluster, BoardHasPins, board).values())
        gaps = [a - b for a, b in pairwise(found)]
        assert min(gaps) >= 2**40
        assert changed == 2999
        assert BoardHasPins.respace(session, board) == 0

    def test_around_a_row(self, cluster, session, board):
        many = sorted(pins(12))
        put(cluster, BoardHasPins, board, {pin: STEP + i for i, pin in enumerate(many)})
        assert BoardHasPins.respace(session, board, around=many[3]) > 0
        session.commit()
        found = sequences(cluster, BoardHasPins, board)
        assert list(found) == many[::-1]
        places = list(found.values())
        gaps = [a - b for a, b in pairwise(places)]
        assert min(gaps) >= 2**40

    def test_nothing_there(self, session, board):
        (gone,) = pins(1)
        assert BoardHasPins.respace(session, board) == 0
        with pytest.raises(exc.MissingTargetError):
            BoardHasPins.respace(session, board, around=gone)

    def test_too_many_rows_without_room(self, cluster, session):
        board = new_board(cluster)
        count = 4**7 + 10
        many = pins(count + 1)
        with cluster.begin() as setup:
            BoardHasPins.append(setup, board, many[-1])
            for start in range(0, count, 1000):
                setup.execute(
                    BoardHasPins.__table__.insert(),
                    [
                        {"board_id": board, "pin_id": pin, "sequence": STEP}
                        for pin in many[start : min(start + 1000, count)]
                    ],
                )
        order = shown(cluster, BoardHasPins, board)
        a, b = order[5000:5002]
        with pytest.raises(exc.SequenceExhaustedError) as caught:
            BoardHasPins.move(session, board, many[-1], before=a, after=b)
        assert "respace" in str(caught.value)
        assert BoardHasPins.respace(session, board) == count - 1
        BoardHasPins.move(session, board, many[-1], before=a, after=b)
        session.commit()
        order.remove(many[-1])
        order.insert(order.index(b), many[-1])
        assert shown(cluster, BoardHasPins, board) == order


class Refusing(Changes):
    CALLS = (
        lambda cls, session, s, t: cls.append(session, s, t),
        lambda cls, session, s, t: cls.append_many(session, s, [t]),
        lambda cls, session, s, t: cls.remove(session, s, t),
        lambda cls, session, s, t: cls.contains(session, s, [t]),
        lambda cls, session, s, t: cls.position(session, s, t),
        lambda cls, session, s, t: cls.move(session, s, t, before=Number.PIN),
        lambda cls, session, s, t: cls.respace(session, s, around=t),
    )
    LISTS = (
        lambda cls, session, s: cls.count(session, s),
        lambda cls, session, s: cls.page(session, s),
        lambda cls, session, s: cls.pages(session, [s]),
        lambda cls, session, s: list(cls.iterate(session, s)),
        lambda cls, session, s: cls.respace(session, s),
        lambda cls, session, s: cls.clear(session, s),
        lambda cls, session, s: cls.append_many(session, s, []),
        lambda cls, session, s: cls.contains(session, s, []),
    )
    NO_IDS = ("1", b"1", 1.0, True, False, -1, 2**62, 2**70, (), Number)

    @pytest.mark.parametrize("call", range(len(CALLS)))
    def test_targets(self, session, board, call, log):
        for wrong in (*self.NO_IDS, None):
            if wrong is None and call == 6:
                continue  # respace of the whole list
            with pytest.raises(exc.InvalidIdError):
                self.CALLS[call](BoardHasPins, session, board, wrong)
        for wrong in (board, 0, 12345, pack(1, USER, 1)):
            with pytest.raises(exc.WrongTypeError):
                self.CALLS[call](BoardHasPins, session, board, wrong)
        assert log.take() == {}

    @pytest.mark.parametrize("call", range(len(CALLS) + len(LISTS)))
    def test_sources(self, session, call, log):
        def run(source):
            if call < len(self.CALLS):
                made = self.CALLS[call]
                made(BoardHasPins, session, source, pack(1, PIN, 1))
            else:
                made = self.LISTS[call - len(self.CALLS)]
                made(BoardHasPins, session, source)

        for wrong in (*self.NO_IDS, None):
            with pytest.raises(exc.InvalidIdError):
                run(wrong)
        for wrong in (0, 12345, pack(1, PIN, 1), pack(1, USER, 1)):
            with pytest.raises(exc.WrongTypeError):
                run(wrong)
        with pytest.raises(exc.UnknownShardError):
            run(pack(SHARDS, BOARD, 1))
        assert log.take() == {}

    @pytest.mark.parametrize("name", ["before", "after"])
    def test_neighbours(self, session, board, name, log):
        for wrong in self.NO_IDS:
            with pytest.raises(exc.InvalidIdError):
                BoardHasPins.move(session, board, pack(1, PIN, 1), **{name: wrong})
        with pytest.raises(exc.WrongTypeError):
            BoardHasPins.move(session, board, pack(1, PIN, 1), **{name: board})
        assert log.take() == {}

    def test_an_enum_is_an_id_as_well(self, session):
        assert BoardHasPins.append(session, Number.BOARD, Number.PIN)
        (a,) = pins(1)
        BoardHasPins.append(session, Number.BOARD, a)
        BoardHasPins.move(session, Number.BOARD, Number.PIN, after=a)
        page = BoardHasPins.page(session, Number.BOARD, targets=True)
        assert [row.pin_id for row in page] == [Number.PIN, a]
        pages = BoardHasPins.pages(session, [Number.BOARD])
        assert [row.pin_id for row in pages[Number.BOARD]] == [Number.PIN, a]
        assert BoardHasPins.remove(session, Number.BOARD, Number.PIN)

    def test_rows_of_the_wrong_kind(self, session, board):
        for values in (
            {"board_id": 5, "pin_id": pack(1, PIN, 1)},
            {"board_id": board, "pin_id": pack(1, PIN, 1), "sequence": -1},
            {"board_id": board, "pin_id": pack(1, PIN, 1), "sequence": "5"},
            {"board_id": board, "pin_id": pack(1, PIN, 1), "sequence": 10**38},
            {"board_id": board, "pin_id": pack(1, PIN, 1), "sequence": True},
            {"board_id": board, "pin_id": pack(1, PIN, 1), "sequence": 1.0},
        ):
            session.add(BoardHasPins(**values))
            with pytest.raises((exc.ShardError, ValueError)):
                session.flush()
            session.rollback()

    def test_a_new_session_for_each_id(self, session):
        user = User(name="x")
        session.add(user)
        session.flush()
        assert UserFollowsUser.count(session, user.id) == 0


cluster = LISTS.on_backend()
