"""Lists of a hundred, ten thousand and a million rows on real servers."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import count
from time import perf_counter
from typing import Any

from sqlalchemy.orm import DeclarativeBase, Mapped

from sqla_shard import blob_field, Cluster, MappingMixin, ObjectMixin, pack
from tests.benchmarks.servers import new_fleet
from tests.benchmarks.timing import compare, show

_SIZES = (100, 10_000, 1_000_000)
_SEED = 5


class Base(DeclarativeBase):
    pass


class Board(ObjectMixin, Base, type_id=2):
    __tablename__ = "boards"

    title: Mapped[str] = blob_field()


class Pin(ObjectMixin, Base, type_id=1):
    __tablename__ = "pins"

    title: Mapped[str] = blob_field()


class BoardHasPins(MappingMixin, Base, source=Board, target=Pin):
    pass


def run() -> None:
    """Print the tables."""
    with (
        new_fleet(servers=2, shards=16, fast=True) as fleet,
        Cluster.from_topology(
            fleet.topology_mapping(), environ=fleet.environ
        ) as cluster,
    ):
        cluster.create_all(Base.metadata)
        lists = {size: _List(cluster, size) for size in _SIZES}
        _compare("the first page, 50 rows", lists, _List.first_page)
        _compare("a page from the middle", lists, _List.middle_page)
        _compare("append and remove, 2 transactions", lists, _List.append)
        _compare("a move to a random place", lists, _List.move)
        _many(cluster)


def _compare(
    title: str, lists: dict[int, _List], what: Callable[[_List], object]
) -> None:
    show(
        title,
        compare(
            {
                f"a list of {size:,}": lambda rows=rows: what(rows)
                for size, rows in lists.items()
            },
            turns=300,
        ),
    )


class _List:
    """A list of some length."""

    def __init__(self, cluster: Cluster, size: int) -> None:
        self._cluster = cluster
        self._random = random.Random(_SEED)
        with cluster.begin(shard_id=1) as session:
            board = Board(title="pins")
            session.add(board)
            session.flush()
            self._board = board.id
        # No pin has to be there to be in a list.
        self._ids = [pack(3, 1, local) for local in range(1, size + 1)]
        self._more = count(size + 1)
        start = perf_counter()
        with cluster.begin() as session:
            BoardHasPins.append_many(session, self._board, self._ids)
        taken = perf_counter() - start
        print(f"  append_many of {size:,}: {taken:.1f} s")
        with cluster.session() as session:
            self._middle = None
            for _ in range(max(size // 2 // 5000, 1)):
                page = BoardHasPins.page(
                    session, self._board, min(5000, size // 2), self._middle
                )
                self._middle = page.next

    def first_page(self) -> None:
        """Read the newest rows."""
        self._page(None)

    def middle_page(self) -> None:
        """Read rows from the middle of the list."""
        self._page(self._middle)

    def _page(self, after: Any) -> None:
        with self._cluster.session() as session:
            page = BoardHasPins.page(session, self._board, 50, after)
            assert len(page) == 50

    def append(self) -> None:
        """Add a row, and take it out again."""
        new = pack(3, 1, next(self._more))
        with self._cluster.begin() as session:
            BoardHasPins.append(session, self._board, new)
        with self._cluster.begin() as session:
            BoardHasPins.remove(session, self._board, new)

    def move(self) -> None:
        """Move a row to where another is."""
        moved, anchor = self._random.sample(self._ids, 2)
        with self._cluster.begin() as session:
            BoardHasPins.move(session, self._board, moved, before=anchor)


def _many(cluster: Cluster) -> None:
    """Show the first pins of many boards, as a page of boards does."""
    boards = []
    for shard_id in range(16):
        with cluster.begin(shard_id=shard_id) as session:
            board = Board(title="covers")
            session.add(board)
            session.flush()
            pins = [Pin(title=str(i), shard_id=shard_id) for i in range(8)]
            session.add_all(pins)
            session.flush()
            ids = [pin.id for pin in pins]
            BoardHasPins.append_many(session, board.id, ids)
            boards.append(board.id)

    def together() -> None:
        with cluster.session() as session:
            pages = BoardHasPins.pages(session, boards, 4, targets=True)
            assert all(len(page) == 4 for page in pages.values())

    def one_by_one() -> None:
        with cluster.session() as session:
            for board_id in boards:
                page = BoardHasPins.page(session, board_id, 4, targets=True)
                assert len(page) == 4

    show(
        "4 pins of each of 16 boards on 16 shards",
        compare(
            {
                "pages(), targets too": together,
                "page() for each board, targets too": one_by_one,
            },
            turns=60,
        ),
    )
