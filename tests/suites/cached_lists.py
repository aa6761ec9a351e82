"""Lists from the cache, and the same ones from the database."""

from __future__ import annotations

import random
from functools import partial
from typing import Any

import pytest
from sqlalchemy import inspect

from sqla_shard import Cluster
from sqla_shard.exc import InvalidBookmarkError, InvalidIdError, WrongTypeError
from tests.models.cached_models import (
    BOARD,
    Board,
    BoardHasPins,
    BoardHasRatedPins,
    CACHED,
    changed,
    PIN,
    Pin,
    sent,
    stored,
    Suite,
    USER,
)
from tests.models.layouts import pack

#: Cached(rows=5) says so.
KEPT = 5


def shown(row: Any) -> Any:
    """Return all that is loaded of a row, and of its target."""
    state = inspect(row)
    target = state.dict.get("target", "not loaded")
    return (
        {
            name: (type(value), value)
            for name, value in state.dict.items()
            if name not in ("_sa_instance_state", "target")
        },
        getattr(target, "title", target),
        state.unloaded,
        state.modified,
        state.key,
    )


def paged(page: Any) -> Any:
    bookmarks = [mark for mark in (page.next, page.previous) if mark]
    return [shown(row) for row in page], bookmarks


class Asking:
    """Asks sessions with and without the cache the same questions."""

    def __init__(self, cluster: Cluster, cls: Any, boards: list[int]) -> None:
        self.cluster = cluster
        self.cls = cls
        self.boards = boards
        #: Pages of unfinished iterations: board, order, limit and bookmark.
        self.begun: list[tuple[int, bool, int, str]] = []

    def same(self, ask: Any) -> Any:
        answers = []
        for cache in (False, True, True):
            with self.cluster.session(cache=cache) as session:
                answers.append(ask(session))
        assert answers[1] == answers[0]
        assert answers[2] == answers[0]
        return answers[0]

    def whole(self, board: int) -> list[int]:
        with self.cluster.session(cache=False) as session:
            return [row.pin_id for row in self.cls.iterate(session, board)]

    def page(self, rng: random.Random, board: int) -> None:
        limit = rng.choice((1, 2, 3, KEPT - 1, KEPT, KEPT + 1, 20))
        newest = rng.random() < 0.7
        targets = rng.random() < 0.3
        _, bookmarks = self.same(
            lambda s: paged(
                self.cls.page(s, board, limit, newest_first=newest, targets=targets)
            )
        )
        if bookmarks:
            mark = rng.choice(bookmarks)
            self.begun.append((board, newest, limit, mark))

    def go_on(self, rng: random.Random) -> None:
        if not self.begun:
            return
        index = rng.randrange(len(self.begun))
        board, newest, limit, after = self.begun.pop(index)
        _, bookmarks = self.same(
            lambda s: paged(self.cls.page(s, board, limit, after, newest_first=newest))
        )
        if bookmarks:
            mark = rng.choice(bookmarks)
            self.begun.append((board, newest, limit, mark))

    def ask(self, rng: random.Random, pins: list[int]) -> None:
        board = rng.choice(self.boards)
        some = rng.sample(pins, rng.randrange(len(pins)))
        newest = rng.random() < 0.5
        limit = rng.choice((1, KEPT - 1, KEPT, KEPT + 1))
        questions = (
            lambda s: self.cls.count(s, board),
            lambda s: self.cls.contains(s, board, some),
            lambda s: [self.cls.position(s, board, pin) for pin in some],
            lambda s: [
                shown(row)
                for row in self.cls.iterate(s, board, newest_first=newest, batch=limit)
            ],
            lambda s: {
                source: paged(page)
                for source, page in self.cls.pages(
                    s, self.boards, limit, targets=newest
                ).items()
            },
        )
        self.same(rng.choice(questions))
        self.page(rng, board)
        self.go_on(rng)

    def change(self, rng: random.Random, pins: list[int]) -> None:
        board = rng.choice(self.boards)
        rows = self.whole(board)
        how = rng.randrange(12)
        pin = rng.choice(pins)
        args: tuple[Any, ...] = (pin,)
        options: dict[str, int] = {}
        method = self.cls.append
        if how < 4 and len(rows) > 1:
            one, other = rng.sample(rows, 2)
            method = self.cls.move
            args = (one,)
            options = {rng.choice(("before", "after")): other}
        elif how < 6 and rows:
            method, args = self.cls.remove, (rng.choice(rows),)
        elif how == 6 and rows:
            method, args = self.cls.respace, ()
        elif how == 7 and rng.random() < 0.3:
            method, args = self.cls.clear, ()
        elif how == 8:
            method = self.cls.append_many
            args = (rng.sample(pins, rng.randrange(1, 4)),)
        with self.cluster.session() as session:
            method(session, board, *args, **options)
            if rng.random() < 0.1:
                session.rollback()
            else:
                session.commit()


class Alike(Suite):
    """Whatever is asked, while lists grow, shrink and are put in order."""

    rounds = 30

    @pytest.fixture(scope="class")
    @classmethod
    def pins(cls, cluster):
        return [stored(cluster, Pin(title=str(i)), i % 8) for i in range(14)]

    @pytest.mark.parametrize("cls", [BoardHasPins, BoardHasRatedPins])
    def test_random_changes(self, cluster, pins, rng, cls):
        boards = [stored(cluster, Board(), i) for i in (5, 5, 2)]
        asking = Asking(cluster, cls, boards)
        for _ in range(self.rounds):
            asking.change(rng, pins)
            asking.ask(rng, pins)

    @pytest.mark.parametrize("cls", [BoardHasPins, BoardHasRatedPins])
    @pytest.mark.parametrize("length", [0, 1, KEPT - 1, KEPT, KEPT + 1, 2 * KEPT + 1])
    def test_lengths(self, cluster, pins, rng, cls, length):
        board = stored(cluster, Board())
        changed(cluster, cls.append_many, board, pins[:length])
        asking = Asking(cluster, cls, [board])
        for limit in (1, KEPT - 1, KEPT, KEPT + 1, 20):
            for newest in (True, False):
                asking.same(partial(every, cls, board, limit, newest))
        asking.same(lambda s: cls.count(s, board))
        asking.same(lambda s: cls.contains(s, board, pins))
        asking.same(lambda s: [cls.position(s, board, p) for p in pins])
        asking.same(lambda s: paged(cls.pages(s, [board], KEPT)[board]))

    def test_targets(self, cluster, pins):
        """Also those that are gone, and one that is in the session."""
        board = stored(cluster, Board())
        gone = pack(2, PIN, 9_999_999)
        changed(cluster, BoardHasPins.append_many, board, [pins[0], gone, pins[1]])
        asking = Asking(cluster, BoardHasPins, [board])
        items, _ = asking.same(
            lambda s: paged(BoardHasPins.page(s, board, 5, targets=True))
        )
        assert [title for _, title, *_ in items] == ["1", None, "0"]
        with cluster.session() as session:
            held = session.get(Pin, pins[0])
            page = BoardHasPins.page(session, board, 5, targets=True)
            assert page.items[2].target is held
            assert page.items[1].target is None
            assert page.items[0].source.id == board

    def test_errors(self, cluster, pins):
        board = stored(cluster, Board())
        changed(cluster, BoardHasPins.append_many, board, pins)
        for cache in (True, False, True):
            with cluster.session(cache=cache) as session:
                page = BoardHasPins.page(session, board, 2)
                with pytest.raises(InvalidBookmarkError):
                    BoardHasPins.page(session, board, 2, "nonsense")
                with pytest.raises(InvalidBookmarkError):
                    BoardHasPins.page(session, board, 2, page.next, newest_first=False)
                with pytest.raises(ValueError):
                    BoardHasPins.page(session, board, 0)
                for ask in (
                    lambda i: BoardHasPins.contains(session, board, [i]),
                    lambda i: BoardHasPins.position(session, board, i),
                ):
                    with pytest.raises(WrongTypeError):
                        ask(pack(2, USER, 1))
                    with pytest.raises(InvalidIdError):
                        ask(-1)
                with pytest.raises(WrongTypeError):
                    BoardHasPins.page(session, pins[0], 2)


def every(cls: Any, board: int, limit: int, newest: bool, session: Any) -> list[Any]:
    """Return all pages of a list."""
    pages = []
    after = None
    while True:
        page = cls.page(session, board, limit, after, newest_first=newest)
        pages.append(paged(page))
        after = page.next
        if after is None:
            return pages


class Rows(Suite):
    """Rows that come from the cache are rows of the session."""

    @pytest.fixture
    def board(self, cluster):
        board = stored(cluster, Board())
        pins = [pack(1, PIN, 10**7 + i) for i in range(3)]
        changed(cluster, BoardHasRatedPins.append_many, board, pins)
        for _ in range(2):
            with cluster.session() as session:
                BoardHasRatedPins.page(session, board, 5)
        return board

    def test_one_object_for_a_row(self, session, board):
        with sent() as statements:
            rows = BoardHasRatedPins.page(session, board, 5).items
            again = BoardHasRatedPins.page(session, board, 5).items
        assert statements == []
        assert all(a is b for a, b in zip(rows, again, strict=True))
        assert all(row in session for row in rows)
        assert not session.dirty

    def test_changed_and_flushed(self, cluster, session, board):
        rows = BoardHasRatedPins.page(session, board, 5).items
        rows[1].stars = 1
        with session.no_autoflush:
            again = BoardHasRatedPins.page(session, board, 5).items
        assert again[1].stars == 1
        session.commit()
        with cluster.session() as other:
            rows = BoardHasRatedPins.page(other, board, 5).items
            assert [row.stars for row in rows] == [3, 1, 3]

    def test_expired_rows(self, session, board):
        rows = BoardHasRatedPins.page(session, board, 5).items
        session.expire_all()
        with sent() as statements:
            BoardHasRatedPins.page(session, board, 5)
            assert [row.stars for row in rows] == [3, 3, 3]
        assert statements == []

    def test_moved_in_the_transaction(self, cluster, session, board):
        rows = BoardHasRatedPins.page(session, board, 5).items
        order = [row.pin_id for row in rows]
        BoardHasRatedPins.move(session, board, order[2], before=order[0])
        found = BoardHasRatedPins.page(session, board, 5).items
        assert [row.pin_id for row in found] == [order[0], order[2], order[1]]
        assert found[1] is rows[2]
        session.rollback()
        found = BoardHasRatedPins.page(session, board, 5).items
        assert [row.pin_id for row in found] == order
        sequences = [row.sequence for row in found]
        assert sequences == sorted(sequences, reverse=True)

    def test_lists_of_wrong_or_no_sources(self, cluster):
        absent = pack(5, BOARD, 8_888_888)
        for _ in range(2):
            with cluster.session() as session:
                assert BoardHasPins.count(session, absent) == 0
                assert BoardHasPins.page(session, absent, 3).items == []
                assert BoardHasPins.pages(session, [], 3) == {}


cluster = CACHED.on_backend()
