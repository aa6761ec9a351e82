"""Reading lists: pages, bookmarks, targets, and the cost."""

from __future__ import annotations

import base64
import pickle
import random
import struct

import pytest
from sqlalchemy import delete, func, insert, inspect, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import aliased, joinedload, selectinload

from sqla_shard import exc, full_id, Page
from sqla_shard.models.list_pages import bookmarks_of
from sqla_shard.models.mapping_list import List
from sqla_shard.session import INCLUDE_INACTIVE
from tests.models.clusters import ShardLog
from tests.models.layouts import pack
from tests.models.mapping_models import (
    BOARD,
    Board,
    BoardHasPins,
    BoardHasRatedPins,
    LISTS,
    NarrowList,
    new_board,
    new_pins,
    PIN,
    Pin,
    pins,
    put,
    SHARDS,
    shown,
    Suite,
    User,
    UserFollowsUser,
)

FIRST = 10**25


class Lists(Suite):
    @pytest.fixture
    def ten(self, cluster, board):
        """Return the pins of a board, newest first."""
        found = pins(10)
        with cluster.begin() as session:
            BoardHasPins.append_many(session, board, found)
        return found[::-1]


def ids(page):
    return [row.pin_id for row in page]


class Questions(Lists):
    def test_contains(self, session, board, ten):
        absent = pins(3)
        assert BoardHasPins.contains(session, board, [*ten, *absent]) == set(ten)
        assert BoardHasPins.contains(session, board, iter(ten[:2] * 2)) == set(ten[:2])
        assert BoardHasPins.contains(session, board, absent) == set()
        assert BoardHasPins.contains(session, board, []) == set()

    def test_contains_many(self, session, board, ten, log):
        many = [*pins(2500), *ten]
        assert BoardHasPins.contains(session, board, many) == set(ten)
        assert log.take() == {5: 3}
        BoardHasPins.contains(session, board, ten)
        assert log.take() == {5: 1}
        BoardHasPins.contains(session, board, [])
        assert log.take() == {}

    def test_count(self, cluster, session, board, ten, log):
        assert BoardHasPins.count(session, board) == 10
        assert log.take() == {5: 1}
        assert BoardHasPins.count(session, pack(5, BOARD, 77777)) == 0
        assert BoardHasPins.remove(session, board, ten[0])
        assert BoardHasPins.count(session, board) == 9

    def test_position(self, session, board, ten, log):
        found = [BoardHasPins.position(session, board, pin) for pin in ten]
        assert log.take() == {5: 10}
        assert found == sorted(found, reverse=True)
        assert {type(at) for at in found} == {int}
        assert len({str(at)[:2] for at in found}) == 1
        assert all(at % FIRST == 0 for at in found)
        assert BoardHasPins.position(session, board, pins(1)[0]) is None

    def test_positions_are_exact(self, cluster, session, board):
        rng = random.Random(7)
        rows = {pin: rng.randrange(10 ** rng.randrange(1, 39)) for pin in pins(50)}
        rows |= dict(zip(pins(3), (0, 1, 10**38 - 1), strict=True))
        put(cluster, BoardHasPins, board, rows)
        for pin, at in rows.items():
            assert BoardHasPins.position(session, board, pin) == at
        order = sorted(rows, key=lambda pin: (rows[pin], pin), reverse=True)
        assert ids(BoardHasPins.iterate(session, board, batch=7)) == order


class Pages(Lists):
    @pytest.mark.parametrize("newest", [True, False])
    @pytest.mark.parametrize("limit", [1, 2, 3, 4, 5, 9, 10, 11])
    def test_pages(self, session, board, ten, newest, limit):
        order = ten if newest else ten[::-1]
        found = []
        after = None
        count = 0
        while True:
            page = BoardHasPins.page(session, board, limit, after, newest_first=newest)
            assert isinstance(page, Page)
            assert len(page) == len(page.items) == len(list(page))
            assert bool(page)
            found += ids(page)
            count += 1
            after = page.next
            if after is None:
                break
            assert len(page) == limit
        assert found == order
        assert count == -(-10 // limit)

    @pytest.mark.parametrize("newest", [True, False])
    @pytest.mark.parametrize("limit", [1, 3, 5, 10])
    def test_pages_backwards(self, session, board, ten, newest, limit):
        def read(after):
            return BoardHasPins.page(session, board, limit, after, newest_first=newest)

        pages = [read(None)]
        while pages[-1].next is not None:
            pages.append(read(pages[-1].next))
        assert pages[0].previous is None
        page = pages[-1]
        for there in reversed(pages[:-1]):
            page = read(page.previous)
            assert ids(page) == ids(there)
            assert ids(read(page.next)) == ids(pages[pages.index(there) + 1])
        assert page.previous is None

    def test_backwards_while_the_list_changes(self, cluster, session, board):
        rows = pins(12)
        put(
            cluster,
            BoardHasPins,
            board,
            {p: 9 * 10**30 - i * 10**25 for i, p in enumerate(rows)},
        )
        shown = [BoardHasPins.page(session, board, 4)]
        for _ in range(2):
            shown.append(BoardHasPins.page(session, board, 4, shown[-1].next))
        listed = [ids(page) for page in shown]
        with cluster.begin() as other:
            for gone in (listed[2][0], listed[1][3], listed[1][0]):
                BoardHasPins.remove(other, board, gone)
        session.rollback()
        back = BoardHasPins.page(session, board, 4, shown[2].previous)
        assert ids(back) == [*listed[0][2:], *listed[1][1:3]]
        on = BoardHasPins.page(session, board, 4, back.next)
        assert ids(on) == listed[2][1:]
        with cluster.begin() as other:
            for gone in (*listed[0], *listed[1][1:3]):
                BoardHasPins.remove(other, board, gone)
        session.rollback()
        none = BoardHasPins.page(session, board, 4, on.previous)
        assert (ids(none), none.previous) == ([], None)
        start = BoardHasPins.page(session, board, 4, none.next)
        assert (ids(start), start.previous) == (listed[2][1:], None)

    def test_an_empty_list(self, session, board):
        page = BoardHasPins.page(session, board)
        assert (page.items, page.next, len(page), bool(page)) == ([], None, 0, False)
        assert list(BoardHasPins.iterate(session, board)) == []
        assert BoardHasPins.pages(session, [board])[board].items == []

    @pytest.mark.parametrize("newest", [True, False])
    def test_equal_positions(self, cluster, session, board, newest):
        many = pins(30)
        put(
            cluster,
            BoardHasPins,
            board,
            {pin: FIRST + i // 10 for i, pin in enumerate(many)},
        )
        order = sorted(many, key=lambda p: (many.index(p) // 10, p), reverse=newest)
        for batch in (1, 3, 10, 29, 30, 31):
            found = BoardHasPins.iterate(
                session, board, newest_first=newest, batch=batch
            )
            assert ids(found) == order

    def test_costs(self, session, board, ten, log):
        page = BoardHasPins.page(session, board, 3)
        assert log.take() == {5: 1}
        page = BoardHasPins.page(session, board, 3, page.next)
        assert log.take() == {5: 1}
        page = BoardHasPins.page(session, board, 4, page.next)
        assert log.take() == {5: 1}
        assert page.next is None
        list(BoardHasPins.iterate(session, board, batch=4))
        assert log.take() == {5: 3}

    @pytest.mark.parametrize("wrong", [0, -1, True, None, "5", 1.0, 2.5, 10**30, 2**63])
    def test_limits(self, session, board, ten, wrong, log):
        for call in (
            lambda: BoardHasPins.page(session, board, wrong),
            lambda: BoardHasPins.pages(session, [board], wrong),
            lambda: BoardHasPins.iterate(session, board, batch=wrong),
        ):
            with pytest.raises(ValueError):
                call()
        assert log.take() == {}

    def test_a_wrong_batch_is_called_so(self, session, board):
        with pytest.raises(ValueError, match="batch"):
            BoardHasPins.iterate(session, board, batch=0)

    def test_a_large_limit(self, session, board, ten):
        assert ids(BoardHasPins.page(session, board, 2**31 - 1)) == ten

    @pytest.mark.parametrize("newest", [True, False])
    def test_the_last_row_shown_is_removed(self, cluster, session, board, ten, newest):
        order = ten if newest else ten[::-1]
        page = BoardHasPins.page(session, board, 4, newest_first=newest)
        session.rollback()
        with cluster.begin() as other:
            BoardHasPins.remove(other, board, order[3])
        rest = BoardHasPins.page(session, board, 10, page.next, newest_first=newest)
        assert ids(rest) == order[4:]

    @pytest.mark.parametrize("newest", [True, False])
    @pytest.mark.parametrize("limit", [1, 3, 5])
    @pytest.mark.parametrize("what", ["move", "remove", "append", "respace"])
    def test_others_change_the_list_meanwhile(
        self, cluster, session, board, ten, newest, limit, what
    ):
        order = ten if newest else ten[::-1]
        page = BoardHasPins.page(session, board, limit, newest_first=newest)
        session.rollback()
        new = pins(1)
        with cluster.begin() as other:
            if what == "move":
                BoardHasPins.move(other, board, order[limit - 1], before=ten[6])
            elif what == "remove":
                for pin in order[:limit]:
                    BoardHasPins.remove(other, board, pin)
            elif what == "append":
                BoardHasPins.append_many(other, board, new)
            else:
                BoardHasPins.respace(other, board)
        rest = ids(
            BoardHasPins.page(session, board, 20, page.next, newest_first=newest)
        )
        quiet = [pin for pin in order[limit:] if pin in rest]
        assert quiet == order[limit:]
        assert not set(rest) & set(order[: limit - 1])

    @pytest.mark.parametrize("newest", [True, False])
    def test_respaced_between_pages(self, cluster, session, board, newest):
        many = sorted(pins(12))
        put(
            cluster, BoardHasPins, board, {pin: FIRST + i for i, pin in enumerate(many)}
        )
        order = many[::-1] if newest else many
        page = BoardHasPins.page(session, board, 5, newest_first=newest)
        session.rollback()
        with cluster.begin() as other:
            assert BoardHasPins.respace(other, board, around=many[6]) == 12
        rest = BoardHasPins.page(session, board, 20, page.next, newest_first=newest)
        assert ids(rest) == order[5:]

    @pytest.mark.parametrize("newest", [True, False])
    def test_the_last_rows_shown_go_a_little_further(
        self, cluster, session, board, newest
    ):
        # As little as a re-spacing would shift them.
        for limit in (1, 2, 3, 4, 5, 6):
            board = new_board(cluster)
            many = sorted(pins(12))
            put(
                cluster,
                BoardHasPins,
                board,
                {pin: FIRST + i * 2**40 for i, pin in enumerate(many)},
            )
            order = many[::-1] if newest else many
            page = BoardHasPins.page(session, board, limit, newest_first=newest)
            session.rollback()
            with cluster.begin() as other:
                for pin in order[: limit - 1]:
                    BoardHasPins.remove(other, board, pin)
                named = {"before" if newest else "after": order[limit + 1]}
                BoardHasPins.move(other, board, order[limit - 1], **named)
            rest = BoardHasPins.page(session, board, 20, page.next, newest_first=newest)
            assert ids(rest) == order[limit:]
            session.rollback()

    @pytest.mark.parametrize("newest", [True, False])
    @pytest.mark.parametrize("gone", range(6))
    def test_one_row_was_moved_and_the_others_respaced(
        self, cluster, session, board, newest, gone
    ):
        many = sorted(pins(12))
        put(
            cluster, BoardHasPins, board, {pin: FIRST + i for i, pin in enumerate(many)}
        )
        order = many[::-1] if newest else many
        page = BoardHasPins.page(session, board, 5, newest_first=newest)
        session.rollback()
        new = pins(1)
        with cluster.begin() as other:
            BoardHasPins.append_many(other, board, new)
            BoardHasPins.move(other, board, order[gone], before=new[0])
            around = order[6]
            assert BoardHasPins.respace(other, board, around=around) >= 10
        rest = ids(
            BoardHasPins.page(session, board, 20, page.next, newest_first=newest)
        )
        quiet = [pin for pin in order[5:] if pin != order[gone]]
        assert [pin for pin in rest if pin in quiet] == quiet
        assert not set(rest) & {p for p in order[:5] if p != order[gone]}

    def test_rows_that_the_session_holds(self, cluster, session, board, ten):
        first = BoardHasPins.page(session, board, 5)
        session.commit()
        with cluster.begin() as other:
            BoardHasPins.move(other, board, ten[9], after=ten[0])
        again = BoardHasPins.page(session, board, 6)
        assert ids(again) == [ten[9], *ten[:5]]
        assert again.items[1] is first.items[0]
        found = [row.sequence for row in again]
        assert found == sorted(found, reverse=True)

    def test_iterating_while_the_list_changes(self, cluster, session, board, ten):
        found = []
        for row in BoardHasPins.iterate(session, board, batch=2):
            found.append(row.pin_id)
            # Those that were shown go to the end and come once more.
            if len(found) <= 3:
                BoardHasPins.move(session, board, row.pin_id, before=ten[9])
        assert set(found) == set(ten)
        quiet = [pin for pin in found if pin in ten[3:]]
        assert quiet == ten[3:]

    def test_pages_of_many_lists(self, cluster, session, log):
        boards = [new_board(cluster, shard) for shard in (1, 1, 1, 2, 40, 41)]
        order = {}
        for size, board in enumerate(boards):
            added = pins(size)
            with cluster.begin() as setup:
                BoardHasPins.append_many(setup, board, added)
            order[board] = added[::-1]
        log.take()
        pages = BoardHasPins.pages(session, boards, 3)
        assert log.take() == {1: 1, 2: 1, 40: 1, 41: 1}
        assert list(pages) == boards
        for board, page in pages.items():
            assert ids(page) == order[board][:3]
            assert (page.next is not None) == (len(order[board]) > 3)
            if page.next:
                rest = BoardHasPins.page(session, board, 9, page.next)
                assert ids(rest) == order[board][3:]
                assert page.next == BoardHasPins.page(session, board, 3).next

    def test_pages_of_hundreds_of_lists(self, cluster, session, log):
        boards = [pack(3, BOARD, 10_000 + i) for i in range(150)]
        with cluster.begin() as setup:
            for board in boards[::10]:
                BoardHasPins.append_many(setup, board, pins(3))
        log.take()
        pages = BoardHasPins.pages(session, iter(boards * 2), 2)
        assert log.take() == {3: 3}
        assert [bool(page) for page in pages.values()] == [
            i % 10 == 0 for i in range(150)
        ]
        assert BoardHasPins.pages(session, []) == {}

    def test_pages_with_columns_of_ones_own(self, cluster, session, board):
        a, b = pins(2)
        session.add(BoardHasRatedPins(board_id=board, pin_id=a, stars=5, remark="x"))
        session.flush()
        BoardHasRatedPins.append(session, board, b)
        session.expunge_all()
        other = pack(5, BOARD, 66666)
        found = BoardHasRatedPins.pages(session, [other, board])[board]
        assert [(r.pin_id, r.stars, r.remark) for r in found] == [
            (b, 3, None),
            (a, 5, "x"),
        ]
        assert all(inspect(row).persistent for row in found)
        # One and the same object, however it was read.
        (one, two) = BoardHasRatedPins.page(session, board)
        assert (one, two) == tuple(found)

    def test_the_cache_does_not_grow(self, cluster, session, board, ten):
        def use(number):
            some = pins(number)
            BoardHasPins.contains(session, board, some)
            BoardHasPins.append_many(session, board, some)
            list(BoardHasPins.iterate(session, board, batch=number))
            boards = [
                pack(5, BOARD, 70_000 + number + i) for i in range(number % 60 + 1)
            ]
            BoardHasPins.pages(session, boards, number)
            BoardHasPins.move(session, board, some[-1], before=ten[0])
            BoardHasPins.position(session, board, some[0])
            BoardHasPins.remove(session, board, some[0])
            page = BoardHasPins.page(session, board, number, targets=True)
            assert page
            # The targets may be on other shards, now and then on this one.
            session.get_many(Pin, [pack(5, 1, number)])

        (engine,) = {session.get_bind(mapper=inspect(BoardHasPins), shard_id=5)}
        for number in (1, 2, 5, 9, 17, 33, 64):
            use(number)
        size = len(engine._compiled_cache)
        for number in range(1, 40):
            use(number)
        assert len(engine._compiled_cache) == size

    def test_nor_with_respacings(self, cluster, session, board):
        many = sorted(pins(40))
        put(cluster, NarrowList, board, {pin: FIRST + i for i, pin in enumerate(many)})
        engine = session.get_bind(mapper=inspect(NarrowList), shard_id=5)
        sizes = []
        rng = random.Random(3)
        for _ in range(60):
            a, b, c = rng.sample(many, 3)
            NarrowList.move(session, board, a, before=b)
            NarrowList.move(session, board, a, after=c)
            sizes.append(len(engine._compiled_cache))
        assert sizes[-1] == sizes[30]


class Bookmarks(Lists):
    @pytest.fixture
    def bookmark(self, session, board, ten):
        return BoardHasPins.page(session, board, 5).next

    def test_is_safe_in_urls(self, bookmark):
        assert isinstance(bookmark, str)
        assert bookmark.replace("-", "a").replace("_", "a").isalnum()
        assert bookmark.isascii()
        assert len(bookmark) < 400

    def refused(self, session, board, wrong, cls=BoardHasPins, **options):
        with pytest.raises(exc.InvalidBookmarkError) as caught:
            cls.page(session, board, after=wrong, **options)
        assert caught.value.bookmark == wrong
        assert isinstance(caught.value, ValueError)
        assert len(str(caught.value)) < 1000
        again = pickle.loads(pickle.dumps(caught.value))
        assert str(again) == str(caught.value)

    def test_of_another_order(self, session, board, bookmark):
        self.refused(session, board, bookmark, newest_first=False)

    def test_of_another_list(self, cluster, session, bookmark):
        self.refused(session, new_board(cluster), bookmark)

    def test_of_another_mapping(self, session, board, bookmark):
        self.refused(session, board, bookmark, NarrowList)

    @pytest.mark.parametrize(
        "wrong",
        [
            "",
            " ",
            "a",
            "abc",
            "None",
            "=",
            "====",
            "A" * 100_000,
            "é" * 20,
            "\0",
            "a\ud800",
            "%20",
            5,
            0,
            True,
            b"AAAA",
            1.5,
            ("a",),
        ],
    )
    def test_invalid_values(self, session, board, ten, wrong):
        self.refused(session, board, wrong)

    def test_changed_on_its_way(self, session, board, bookmark, rng):
        for _ in range(300):
            letters = list(bookmark)
            at = rng.randrange(len(letters))
            change = rng.randrange(4)
            if change == 0:
                letters[at] = rng.choice("aB0-_+/=. \n")
            elif change == 1:
                del letters[at]
            elif change == 2:
                letters.insert(at, rng.choice("aB0-_+/=. \n"))
            else:
                letters = letters[:at]
            wrong = "".join(letters)
            if wrong != bookmark:
                self.refused(session, board, wrong)

    def test_written_otherwise(self, session, board, bookmark):
        raw = base64.urlsafe_b64decode(bookmark + "=" * (-len(bookmark) % 4))
        for wrong in (
            bookmark + "\n",
            " " + bookmark,
            bookmark + bookmark,
            base64.b16encode(raw).decode(),
            base64.b85encode(raw).decode(),
        ):
            self.refused(session, board, wrong)

    def test_random_bytes(self, session, board, rng):
        for _ in range(200):
            wrong = base64.urlsafe_b64encode(
                rng.choice([b"", b"\x01", b"\x02", b"\x03"])
                + rng.randbytes(rng.randrange(130))
            ).decode()
            self.refused(session, board, wrong)

    def test_forged_bookmarks(self, session, board, ten, rng):
        # It contains no secret, but its values must be valid.
        real = bookmarks_of(List(BoardHasPins, session, board))

        def seal(payload):
            return real.seal.seal(payload, real.subject)

        good = struct.pack(">QQQ", 1 << 60, 5, ten[3])
        assert BoardHasPins.page(session, board, after=seal(good * 2))
        top = 2**64 - 1
        for payload in (
            b"",
            good,
            good * 2 + b"x",
            (good * 2)[:-1],
            good * 50,
            *(
                one + other
                for wrong in (
                    (top, top, ten[3]),
                    (5, 5, top),
                    (5, 5, 1 << 63),
                    (5, 5, board),
                    (5, 5, 0),
                    (5, 5, 12),
                    (5, 5, 2**62 - 1),
                )
                for bad in [struct.pack(">QQQ", *wrong)]
                for one, other in ((bad, good), (good, bad), (bad, bad))
            ),
            *(rng.randbytes(24 * rng.randrange(5)) for _ in range(50)),
        ):
            self.refused(session, board, seal(payload))

    def test_bookmarks_hold_across_sessions(self, cluster, board, ten, bookmark):
        with cluster.session() as other:
            assert ids(BoardHasPins.page(other, board, 9, bookmark)) == ten[5:]

    def test_errors_are_raised_before_anything_is_sent(
        self, session, board, bookmark, log
    ):
        self.refused(session, board, bookmark[:-4])
        assert log.take() == {}


class Targets(Lists):
    def test_on_fifty_shards(self, cluster, session, board):
        added = new_pins(cluster, 50)
        with cluster.begin() as setup:
            BoardHasPins.append_many(setup, board, added)
        with ShardLog() as log:
            page = BoardHasPins.page(session, board, 50, targets=True)
            found = log.take()
            assert sum(found.values()) <= 1 + SHARDS
            assert found == {i: 1 + (i == 5) for i in range(50)}
            assert [row.target.id for row in page] == added[::-1]
            assert [row.target.title for row in page] == [
                f"pin {i}" for i in reversed(range(50))
            ]
            assert log.take() == {}

    def test_on_one_shard(self, cluster, session, board):
        added = new_pins(cluster, 30, shards=2)
        with cluster.begin() as setup:
            BoardHasPins.append_many(setup, board, added)
        with ShardLog() as log:
            page = BoardHasPins.page(session, board, targets=True)
            assert log.take() == {5: 1, 0: 1, 1: 1}
            assert all(row.target.id == row.pin_id for row in page)
            assert log.take() == {}

    def test_of_many_lists(self, cluster, session):
        boards = [new_board(cluster, shard) for shard in (1, 1, 2)]
        added = new_pins(cluster, 12, shards=4)
        for number, board in enumerate(boards):
            with cluster.begin() as setup:
                BoardHasPins.append_many(setup, board, added[number:])
        with ShardLog() as log:
            pages = BoardHasPins.pages(session, boards, targets=True)
            assert log.take() == {0: 1, 1: 2, 2: 2, 3: 1}
            for number, board in enumerate(boards):
                found = [row.target.id for row in pages[board]]
                assert found == added[number:][::-1]
            assert log.take() == {}

    @pytest.mark.parametrize("loaded", [True, False])
    def test_gone_and_inactive(self, cluster, session, board, loaded):
        added = [*new_pins(cluster, 3), *pins(1)]
        with cluster.begin() as setup:
            BoardHasPins.append_many(setup, board, added)
        with cluster.begin() as setup:
            setup.get(Pin, added[0]).deactivate()
        with cluster.begin() as setup:
            setup.delete(setup.get(Pin, added[1]))
        page = BoardHasPins.page(session, board, targets=loaded)
        assert len(page) == 4
        found = [row.target and row.target.id for row in page]
        assert found == [None, added[2], None, None]

    def test_deactivated_in_this_session(self, cluster, session, board):
        (one,) = new_pins(cluster, 1)
        with cluster.begin() as setup:
            BoardHasPins.append(setup, board, one)
        pin = session.get(Pin, one)
        pin.deactivate()
        session.flush()
        (row,) = BoardHasPins.page(session, board, targets=True)
        assert row.target is None
        pin.restore()
        session.flush()
        (row,) = BoardHasPins.page(session, board, targets=True)
        assert row.target is pin

    def test_with_inactive_ones_on_request(self, cluster, session, board):
        (one,) = new_pins(cluster, 1)
        with cluster.begin() as setup:
            BoardHasPins.append(setup, board, one)
        with cluster.begin() as setup:
            setup.get(Pin, one).deactivate()
        statement = (
            select(BoardHasPins)
            .where(BoardHasPins.board_id == board)
            .options(selectinload(BoardHasPins.target))
            .execution_options(**{INCLUDE_INACTIVE: True})
        )
        assert session.scalars(statement).one().target.id == one

    def test_a_target_that_was_changed_and_not_flushed(self, cluster, session, board):
        (one,) = new_pins(cluster, 1)
        with cluster.begin() as setup:
            BoardHasPins.append(setup, board, one)
        pin = session.get(Pin, one)
        with session.no_autoflush:
            pin.title = "new"
            (row,) = BoardHasPins.page(session, board, targets=True)
            assert row.target is pin
            assert pin.title == "new"

    def test_selectinload(self, cluster, session, board):
        added = new_pins(cluster, 20, shards=10)
        # Never inserted, on a shard that has none of the others.
        missing = pack(SHARDS - 1, PIN, 10**9)
        with cluster.begin() as setup:
            BoardHasPins.append_many(setup, board, [*added, missing])
        statement = (
            select(BoardHasPins)
            .where(BoardHasPins.board_id == board)
            .order_by(BoardHasPins.sequence)
            .options(
                selectinload(BoardHasPins.target), selectinload(BoardHasPins.source)
            )
        )
        with ShardLog() as log:
            rows = session.scalars(statement).all()
            found = log.take()
            assert found.pop(SHARDS - 1, 1) == 1
            assert sum(found.values()) <= 1 + 1 + 10
            assert [row.target and row.target.id for row in rows] == [*added, None]
            assert {row.source.id for row in rows} == {board}
            assert log.take() == {}

    def test_joins_cannot_reach_other_shards(self, cluster, session, board):
        statement = (
            select(BoardHasPins)
            .where(BoardHasPins.board_id == board)
            .options(joinedload(BoardHasPins.target))
        )
        with pytest.raises(exc.RoutingError):
            session.scalars(statement).all()

    def test_the_source(self, cluster, session, board, ten):
        page = BoardHasPins.page(session, board)
        with ShardLog() as log:
            assert {row.source.id for row in page} == {board}
            assert log.take() == {5: 1}
        assert page.items[0].source is session.get(Board, board)
        (row,) = BoardHasPins.page(session, board, 1)
        assert row.source.title == "Boats"

    def test_one_class_on_both_sides(self, cluster, session):
        users = []
        for shard_id in range(4):
            with cluster.begin(shard_id=shard_id) as setup:
                user = User(name=f"user {shard_id}")
                setup.add(user)
                setup.flush()
                users.append(user.id)
        with cluster.begin() as setup:
            UserFollowsUser.append_many(setup, users[0], users)
        page = UserFollowsUser.page(session, users[0], targets=True)
        assert [row.target.name for row in page] == [f"user {i}" for i in (3, 2, 1, 0)]
        assert [row.source.name for row in page] == ["user 0"] * 4

    def test_is_only_for_reading(self, cluster, session, board):
        (one,) = new_pins(cluster, 1)
        pin = session.get(Pin, one)
        row = BoardHasPins(board_id=board, pin_id=one)
        session.add(row)
        session.flush()
        assert row.target is pin
        session.delete(row)
        session.commit()
        assert session.get(Pin, one) is pin


class Mapped(Lists):
    """They are ordinary mapped classes as well."""

    def test_select(self, session, board, ten, log):
        statement = (
            select(BoardHasPins)
            .where(BoardHasPins.board_id == board)
            .order_by(BoardHasPins.sequence.desc())
            .limit(3)
        )
        assert ids(session.scalars(statement)) == ten[:3]
        assert log.take() == {5: 1}
        at = BoardHasPins.position(session, board, ten[4])
        below = statement.where(BoardHasPins.sequence < at)
        assert ids(session.scalars(below)) == ten[5:8]
        between = statement.where(BoardHasPins.sequence.between(at, at))
        assert ids(session.scalars(between)) == [ten[4]]
        within = statement.where(BoardHasPins.sequence.in_([at, 5]))
        assert ids(session.scalars(within)) == [ten[4]]
        top = select(func.max(BoardHasPins.sequence)).where(
            BoardHasPins.board_id == board
        )
        assert session.scalar(top) == BoardHasPins.position(session, board, ten[0])

    def test_arithmetic_is_refused(self, session, board):
        for make in (
            lambda c: c + 1,
            lambda c: 1 + c,
            lambda c: c - 1,
            lambda c: 1 - c,
            lambda c: c / 2,
            lambda c: c // 2,
            lambda c: c % 2,
            lambda c: c * 2,
            lambda c: -c,
        ):
            with pytest.raises(exc.UnsupportedStatementError):
                make(BoardHasPins.sequence)

    def test_of_several_lists(self, cluster, session, board, ten, log):
        other = new_board(cluster, 9)
        with cluster.begin() as setup:
            BoardHasPins.append(setup, other, ten[0])
        log.take()
        statement = select(BoardHasPins).where(
            BoardHasPins.board_id.in_([board, other])
        )
        assert len(session.scalars(statement).all()) == 11
        assert log.take() == {5: 1, 9: 1}

    def test_a_statement_that_names_no_source_is_refused(self, session):
        for statement in (
            select(BoardHasPins),
            select(BoardHasPins).where(BoardHasPins.pin_id == pack(1, 1, 1)),
            delete(BoardHasPins),
            update(BoardHasPins).values(sequence=1),
        ):
            with pytest.raises(exc.RoutingError):
                session.execute(statement)

    def test_get(self, session, board, ten, log):
        row = session.get(BoardHasPins, (board, ten[2]))
        assert log.take() == {5: 1}
        assert row.pin_id == ten[2]
        assert session.get(BoardHasPins, (board, pins(1)[0])) is None
        log.take()
        named = session.get(BoardHasPins, {"board_id": board, "pin_id": ten[2]})
        assert named is row
        assert log.take() == {}

    def test_add_change_delete(self, cluster, session, board, ten):
        (a,) = pins(1)
        row = BoardHasPins(board_id=board, pin_id=a)
        session.add(row)
        session.commit()
        assert shown(cluster, BoardHasPins, board) in (
            [a, *ten],
            # Rows that were appended in one millisecond are ahead of it.
            *([*ten[:i], a, *ten[i:]] for i in range(11)),
        )
        row.sequence = 0
        session.commit()
        assert shown(cluster, BoardHasPins, board) == [*ten, a]
        session.delete(row)
        session.commit()
        assert shown(cluster, BoardHasPins, board) == ten

    def test_twice_in_one_list(self, session, board, ten):
        session.add(BoardHasPins(board_id=board, pin_id=ten[0]))
        with pytest.raises(IntegrityError):
            session.flush()

    def test_statements_that_write(self, cluster, session, board, ten):
        (a, b) = pins(2)
        session.execute(
            insert(BoardHasPins),
            [
                {"board_id": board, "pin_id": a, "sequence": 2},
                {"board_id": board, "pin_id": b, "sequence": 9},
            ],
        )
        row = {"board_id": board, "pin_id": b, "sequence": 1}
        session.execute(update(BoardHasPins), [row])
        session.execute(
            update(BoardHasPins)
            .where(BoardHasPins.board_id == board, BoardHasPins.pin_id == a)
            .values(sequence=0)
        )
        session.execute(
            delete(BoardHasPins).where(
                BoardHasPins.board_id == board, BoardHasPins.pin_id.in_(ten)
            )
        )
        session.commit()
        assert shown(cluster, BoardHasPins, board) == [b, a]

    def test_aliases_and_columns_alone(self, session, board, ten):
        alias = aliased(BoardHasPins)
        statement = (
            select(alias.pin_id, alias.sequence)
            .where(alias.board_id == board)
            .order_by(alias.sequence)
        )
        rows = session.execute(statement).all()
        assert [row.pin_id for row in rows] == ten[::-1]
        assert {type(row.sequence) for row in rows} == {int}

    def test_join_with_the_source(self, session, board, ten):
        counted = (
            select(func.count())
            .select_from(BoardHasPins)
            .where(BoardHasPins.board_id == board)
        )
        of_board = full_id(Board.id) == BoardHasPins.board_id
        assert session.scalar(counted.join(Board, of_board)) == 10
        with pytest.raises(exc.UnsupportedStatementError, match="full_id"):
            session.scalar(counted.join(BoardHasPins.source))

    def test_pickling(self, session, board, ten):
        page = BoardHasPins.page(session, board, 3)
        again = pickle.loads(pickle.dumps(page))
        assert ids(again) == ids(page)
        assert again.next == page.next
        assert [row.sequence for row in again] == [row.sequence for row in page]

    def test_repr(self, session, board, ten):
        (row,) = BoardHasPins.page(session, board, 1)
        assert repr(row) == f"<BoardHasPins {board} -> {ten[0]}>"
        session.expire(row)
        assert "BoardHasPins" in repr(row)
        assert "BoardHasPins" in repr(BoardHasPins())

    def test_the_table(self):
        table = BoardHasPins.__table__
        assert table.name == "board_has_pins"
        assert list(table.c.keys()) == ["board_id", "pin_id", "sequence"]
        assert [c.name for c in table.primary_key] == ["board_id", "pin_id"]
        (index,) = table.indexes
        assert [c.name for c in index.columns] == ["board_id", "sequence", "pin_id"]
        rated = BoardHasRatedPins.__table__
        assert list(rated.c.keys())[:3] == ["board_id", "pin_id", "sequence"]

    def test_errors_survive_pickling(self, session, board, ten):
        (gone,) = pins(1)
        for call, kind in (
            (lambda: BoardHasPins.move(session, board, ten[0]), exc.InvalidMoveError),
            (
                lambda: BoardHasPins.move(session, board, ten[0], before=gone),
                exc.StaleNeighbourError,
            ),
            (
                lambda: BoardHasPins.move(session, board, gone, before=ten[0]),
                exc.MissingTargetError,
            ),
        ):
            with pytest.raises(kind) as caught:
                call()
            assert isinstance(caught.value, exc.MappingError)
            again = pickle.loads(pickle.dumps(caught.value))
            assert type(again) is kind
            assert str(again) == str(caught.value)
            assert vars(again) == vars(caught.value)


cluster = LISTS.on_backend()
