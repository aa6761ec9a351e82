"""The cost of reads and writes: statements, and requests to the cache."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import event, update

from sqla_shard.testing import StatementLog
from tests.models.cached_models import (
    Board,
    BoardHasPins,
    BoardHasRatedPins,
    changed,
    Pin,
    seen,
    stored,
    Suite,
    User,
)

COUNT = 50


class Requests:
    """A store that counts its requests."""

    def __init__(self, store: Any, made: list[tuple[str, int]]) -> None:
        self._store = store
        self._made = made

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)
        if name not in ("fetch", "fill", "take", "block", "unblock"):
            return method

        def call(keys: Any, *more: Any) -> Any:
            self._made.append((name, len(keys)))
            return method(keys, *more)

        return call


def taken(made: list[Any]) -> list[Any]:
    found = made[:]
    made.clear()
    return found


class Costs(Suite):
    @pytest.fixture
    def asked(self, cluster) -> Iterator[list[tuple[str, int]]]:
        """Count the requests of all classes."""
        cache = cluster.cache
        before = {kept: kept.region for kept in cache._row_caches.values()}
        regions = dict(cache.regions)
        asked: list[tuple[str, int]] = []
        for name, region in regions.items():
            cache.regions[name] = dataclasses.replace(
                region, store=Requests(region.store, asked)
            )
        for kept, region in before.items():
            kept.region = cache.regions[region.name]
        yield asked
        cache.regions.update(regions)
        for kept, region in before.items():
            kept.region = region

    @pytest.fixture(scope="class")
    @classmethod
    def board(cls, cluster):
        board = stored(cluster, Board())
        pins = [stored(cluster, Pin(title=str(i)), i % 8) for i in range(COUNT)]
        changed(cluster, BoardHasRatedPins.append_many, board, pins)
        return board

    @pytest.fixture
    def sent(self, cluster) -> Iterator[list[Any]]:
        """Collect the cluster's reports of statements."""
        records: list[Any] = []

        def listen(_: Any, record: Any) -> None:
            records.append(record)

        event.listen(cluster, "after_statement", listen)
        yield records
        event.remove(cluster, "after_statement", listen)

    def page(self, cluster, board):
        with cluster.session() as session:
            page = BoardHasRatedPins.page(session, board, COUNT, targets=True)
            assert [row.target.title for row in page] == [
                str(i) for i in reversed(range(COUNT))
            ]
            return session.in_transaction()

    def test_a_board(self, cluster, board, asked, sent):
        taken(asked)
        sent.clear()
        self.page(cluster, board)
        names = [name for name, _ in taken(asked)]
        # The list; and the pins, with the absences of their shards.
        assert names == [*("fetch", "fill"), *("fetch", "fetch", "fill", "fill")]
        assert len(sent) == 2
        sent.clear()
        with StatementLog() as log:
            self.page(cluster, board)
        assert taken(asked) == [("fetch", 1), ("fetch", COUNT)]
        assert sent == []
        assert list(log.events) == []
        assert all(one.busy == 0 for one in cluster.stats())

    def test_many_that_are_cold(self, cluster, asked, sent):
        users = [stored(cluster, User(name=str(i)), i % 8) for i in range(COUNT)]
        taken(asked)
        sent.clear()
        with cluster.session() as session:
            assert all(session.get_many(User, users))
        # The absences are those of eight shards.
        assert taken(asked) == [
            ("fetch", COUNT),
            *(("fetch", 8), ("fill", 8)),
            ("fill", COUNT),
        ]
        assert len(sent) == 1
        with cluster.session() as session:
            assert all(session.get_many(User, users))
        assert taken(asked) == [("fetch", COUNT)]
        assert len(sent) == 1

    def test_one(self, cluster, asked, sent):
        new = stored(cluster, User(name="u"))
        seen(cluster, User, new)
        taken(asked)
        sent.clear()
        seen(cluster, User, new)
        assert taken(asked) == [("fetch", 1)]
        assert sent == []

    def test_a_flush(self, cluster, asked, sent):
        new = stored(cluster, User(name="u"), warm=True)
        taken(asked)
        sent.clear()
        with cluster.begin() as session:
            session.get(User, new).name = "v"
        assert taken(asked) == [("fetch", 1), ("block", 1), ("unblock", 1)]
        assert len(sent) == 1

    def test_a_statement(self, cluster, asked, sent):
        new = stored(cluster, User(name="u"), warm=True)
        taken(asked)
        sent.clear()
        with cluster.begin() as session:
            session.execute(update(User).where(User.id == new).values(city="Rome"))
        assert taken(asked) == [("block", 1), ("unblock", 1)]
        # The SELECT of the rows, and the statement itself.
        assert len(sent) == 2

    def test_a_list(self, cluster, asked, sent):
        board = stored(cluster, Board())
        pins = [stored(cluster, Pin(title="p")) for _ in range(3)]
        changed(cluster, BoardHasPins.append_many, board, pins)
        taken(asked)
        put = [("block", 2), ("unblock", 2)]
        for change, statements, requests in (
            (lambda s: BoardHasPins.append(s, board, pins[0]), 1, []),
            (lambda s: BoardHasPins.remove(s, board, pins[0]), 2, put),
            (lambda s: BoardHasPins.append(s, board, pins[0]), 2, [("take", 2), *put]),
            (lambda s: BoardHasPins.move(s, board, pins[0], after=pins[1]), 2, put),
        ):
            sent.clear()
            cluster.run(change)
            # The list, and its length.
            assert taken(asked) == requests
            assert len(sent) == statements

    def test_an_append_to_a_cached_list(self, cluster, asked, sent):
        board = stored(cluster, Board())
        pins = [stored(cluster, Pin(title="p")) for _ in range(2)]
        cluster.run(BoardHasPins.append, board, pins[0])
        for _ in range(2):
            with cluster.session() as session:
                BoardHasPins.page(session, board, 9)
        taken(asked)
        sent.clear()
        cluster.run(BoardHasPins.append, board, pins[1])
        # The list is put back; its length was not there.
        assert taken(asked) == [
            *(("take", 2), ("block", 1)),
            *(("fill", 1), ("unblock", 1)),
        ]
        # The lock, the row, and whether keys wait.
        assert len(sent) == 3

    def test_reading_nothing_announces_nothing(self, cluster, asked):
        new = stored(cluster, User(name="u"), warm=True)
        taken(asked)
        with cluster.begin() as session:
            session.get(User, new)
        assert taken(asked) == [("fetch", 1)]
