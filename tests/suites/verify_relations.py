"""Rows of mappings that do not fit: found, and put right."""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from time import monotonic
from typing import Any

import pytest
from sqlalchemy import delete, insert
from sqlalchemy.orm import DeclarativeBase

from sqla_shard import Cluster, MappingMixin, ObjectMixin
from sqla_shard.exc import VerifyPositionError
from sqla_shard.upkeep import verify_relations
from tests.models.backends import Clusters
from tests.models.layouts import LAYOUT, pack, unpack

PIN, BOARD, USER = 1, 2, 3
SHARDS = 4
_SECONDS = 1.0
_PATIENCE = 120


class Base(DeclarativeBase):
    id_layout = LAYOUT


class Board(ObjectMixin, Base, type_id=BOARD):
    __tablename__ = "boards"


class Pin(ObjectMixin, Base, type_id=PIN):
    __tablename__ = "pins"


class BoardHasPins(MappingMixin, Base, source=Board, target=Pin, inverse="PinInBoards"):
    pass


class PinInBoards(MappingMixin, Base, source=Pin, target=Board):
    pass


class BoardLikesBoard(
    MappingMixin,
    Base,
    source=Board,
    target=Board,
    source_column="liking_id",
    target_column="liked_id",
):
    """Has no inverse."""


ALL = [BoardHasPins, PinInBoards, BoardLikesBoard]


tables = Clusters(Base.metadata, SHARDS).on_backend()


@pytest.fixture
def cluster(tables: Cluster) -> Cluster:
    """The cluster of the tables, without rows."""
    for shard in range(SHARDS):
        with tables.begin() as session:
            for cls in (*ALL, Board, Pin):
                on(session, shard).execute(delete(cls.__table__))
    return tables


def verify(cluster: Any, **options: Any) -> Any:
    return verify_relations(cluster, ALL, **{"grace": 0.0, **options})


def counts(report: Any) -> dict[str, int]:
    found = {kind: report.found(kind) for kind in report.kinds}
    return {kind: count for kind, count in found.items() if count}


def new(session: Any, cls: Any, shard_id: int) -> int:
    one = cls(shard_id=shard_id)
    session.add(one)
    session.flush()
    object_id: int = one.id
    return object_id


def ends(cluster: Any, near: bool = False) -> tuple[int, int]:
    """Return a board and a pin, on one shard or on two."""
    board = cluster.run(new, Board, 1)
    return board, cluster.run(new, Pin, 1 if near else 2)


def on(session: Any, shard_id: int) -> Any:
    return session.connection({"shard_id": shard_id, "mapper": Board})


def plant(
    cluster: Any, cls: Any, source: int, target: int, shard: int | None = None
) -> None:
    """Insert a row behind the back of the class."""
    definition = cls.__sqla_shard_mapping__
    row = {
        definition.source.column: source,
        definition.target.column: target,
        "sequence": 10**37,
    }
    shard = unpack(source).shard_id if shard is None else shard
    with cluster.begin() as session:
        on(session, shard).execute(insert(cls.__table__).values(row))


def remove(cluster: Any, cls: Any, source: int) -> None:
    """Delete the rows of a source, or the object, behind its back."""
    table = cls.__table__
    key = next(iter(table.primary_key))
    if issubclass(cls, ObjectMixin):
        here = key == source
    else:
        here = table.c[cls.__sqla_shard_mapping__.source.column] == source
    with cluster.begin() as session:
        on(session, unpack(source).shard_id).execute(delete(table).where(here))


def everything(cluster: Any) -> set[Any]:
    """Return the pairs that there are, by class and shard."""
    found = set()
    with cluster.session() as session:
        for shard in range(SHARDS):
            for cls in ALL:
                rows = on(session, shard).execute(cls.__table__.select())
                found |= {(cls.__name__, shard, *row[:2]) for row in rows}
    return found


# -- damage: each returns the findings, and the remaining pairs


def pair(board: int, pin: int) -> set[Any]:
    return {
        ("BoardHasPins", unpack(board).shard_id, board, pin),
        ("PinInBoards", unpack(pin).shard_id, pin, board),
    }


def no_reverse(cluster: Any, near: bool) -> Any:
    board, pin = ends(cluster, near)
    plant(cluster, BoardHasPins, board, pin)
    return {"one-sided": 1}, pair(board, pin)


def no_forward(cluster: Any, near: bool) -> Any:
    board, pin = ends(cluster, near)
    plant(cluster, PinInBoards, pin, board)
    return {"one-sided": 1}, set()


def no_target(cluster: Any, near: bool) -> Any:
    board, pin = ends(cluster, near)
    plant(cluster, BoardHasPins, board, pin)
    plant(cluster, PinInBoards, pin, board)
    remove(cluster, Pin, pin)
    return {"dangling": 1}, set()


def neither_target_nor_reverse(cluster: Any, near: bool) -> Any:
    board, pin = ends(cluster, near)
    plant(cluster, BoardHasPins, board, pin)
    remove(cluster, Pin, pin)
    # A row is found once: it is deleted, and needs no reverse.
    return {"dangling": 1}, set()


def no_source(cluster: Any, near: bool) -> Any:
    board, pin = ends(cluster, near)
    plant(cluster, BoardHasPins, board, pin)
    plant(cluster, PinInBoards, pin, board)
    remove(cluster, Board, board)
    return {"dangling": 1}, set()


def nothing_but_a_reverse(cluster: Any, near: bool) -> Any:
    board, pin = ends(cluster, near)
    plant(cluster, PinInBoards, pin, board)
    remove(cluster, Board, board)
    remove(cluster, Pin, pin)
    return {"one-sided": 1}, set()


def no_target_of_one_direction(cluster: Any, near: bool) -> Any:
    board = cluster.run(new, Board, 1)
    gone = pack(1 if near else 3, BOARD, 10**9)
    plant(cluster, BoardLikesBoard, board, gone)
    return {"dangling": 1}, set()


_REPAIRED = [
    no_reverse,
    no_forward,
    no_target,
    neither_target_nor_reverse,
    no_source,
    nothing_but_a_reverse,
    no_target_of_one_direction,
]


class Damage:
    @pytest.mark.parametrize("near", [True, False], ids=["near", "far"])
    def test_all_is_well(self, cluster, near):
        board, pin = ends(cluster, near)
        cluster.run(BoardHasPins.append, board, pin)
        cluster.run(BoardLikesBoard.append, board, board)
        before = everything(cluster)
        assert pair(board, pin) <= before
        report = verify(cluster, repair=True)
        assert (report.ok, counts(report)) == (True, {})
        assert report.tallies["PinInBoards"].looked == {"rows": 1}
        assert everything(cluster) == before

    @pytest.mark.parametrize("near", [True, False], ids=["near", "far"])
    @pytest.mark.parametrize("damage", _REPAIRED, ids=lambda d: d.__name__)
    def test_found_and_repaired(self, cluster, damage, near):
        expected, left = damage(cluster, near)
        before = everything(cluster)
        report = verify(cluster)
        assert counts(report) == expected
        assert not report.ok
        assert everything(cluster) == before, "a dry run has written"
        report = verify(cluster, repair=True)
        assert counts(report) == expected
        assert report.ok
        assert everything(cluster) == left
        assert counts(verify(cluster)) == {}

    def test_reported_only(self, cluster):
        board, pin = ends(cluster)
        plant(cluster, BoardLikesBoard, board, pin)
        plant(cluster, BoardLikesBoard, board, pack(4000, BOARD, 1))
        plant(cluster, BoardLikesBoard, board, board, shard=3)
        before = everything(cluster)
        report = verify(cluster, repair=True)
        assert counts(report) == {"foreign": 2, "misplaced": 1}
        assert not report.ok
        assert everything(cluster) == before

    def test_a_source_with_more_rows_than_a_page(self, cluster):
        board, _ = ends(cluster)
        for _ in range(7):
            plant(cluster, BoardHasPins, board, ends(cluster)[1])
        report = verify(cluster, batch=3)
        assert counts(report) == {"one-sided": 7}
        assert report.tallies["BoardHasPins"].looked == {"rows": 7}

    def test_interrupted_and_resumed(self, cluster, tmp_path):
        file = tmp_path / "position.json"
        for _ in range(6):
            board, pin = ends(cluster)
            plant(cluster, BoardHasPins, board, pin)
        calls = []

        def stop(progress: Any) -> None:
            calls.append(progress)
            if len(calls) == 3:
                raise KeyboardInterrupt

        options = {"position": file, "batch": 2, "on_progress": stop}
        with pytest.raises(KeyboardInterrupt):
            verify(cluster, **options)
        with pytest.raises(VerifyPositionError, match="repair"):
            verify(cluster, repair=True, **options)
        report = verify(cluster, **options)
        assert counts(report) == {"one-sided": 6}
        assert report.tallies["BoardHasPins"].looked == {"rows": 6}
        assert not file.exists()


class ConcurrentWriters:
    def test_lists_that_change_meanwhile(self, cluster, rng, say):
        boards = [cluster.run(new, Board, i % SHARDS) for i in range(3)]
        pins = [cluster.run(new, Pin, i % SHARDS) for i in range(6)]
        until = monotonic() + _SECONDS
        ended: Counter[str] = Counter()
        lock = threading.Lock()
        orders = [
            [
                (rng.choice(boards), rng.choice(pins), rng.random() < 0.5)
                for _ in range(1000)
            ]
            for _ in range(3)
        ]

        def change(order: Any) -> None:
            for board, pin, adds in order:
                if monotonic() > until:
                    break
                way = BoardHasPins.append if adds else BoardHasPins.remove
                cluster.run(way, board, pin)
                with lock:
                    ended["appended" if adds else "removed"] += 1

        with ThreadPoolExecutor(3) as executor:
            going = [executor.submit(change, order) for order in orders]
            runs = 0
            while monotonic() < until:
                verify(cluster, repair=True, batch=3)
                runs += 1
            for one in going:
                one.result(_PATIENCE)
        say(f"{runs} runs beside {dict(ended)}")
        verify(cluster, repair=True)
        assert counts(verify(cluster)) == {}
        rows = everything(cluster)
        there = {row[2:] for row in rows if row[0] == "BoardHasPins"}
        back = {row[:1:-1] for row in rows if row[0] == "PinInBoards"}
        assert there == back


class Uncommitted:
    @pytest.mark.parametrize("end", ["source", "target"])
    def test_an_object_that_is_not_committed_yet(
        self, cluster: Cluster, end: str
    ) -> None:
        there = cluster.run(new, Board, 1)
        with cluster.begin() as session:
            late = new(session, Board, 2)
            pair = (late, there) if end == "source" else (there, late)
            plant(cluster, BoardLikesBoard, *pair)
            report = verify(cluster, repair=True)
            assert counts(report) == {}
        with cluster.session() as session:
            assert BoardLikesBoard.count(session, pair[0]) == 1
