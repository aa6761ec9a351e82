"""Mappings that keep their reverse."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import delete, Engine, event, insert, update
from sqlalchemy.orm import DeclarativeBase

from sqla_shard import Cluster, exc, MappingMixin, ObjectMixin
from sqla_shard.models.inverse_mapping import sync_pairs
from sqla_shard.outbox import apply, operations
from sqla_shard.testing import StatementLog
from sqla_shard.testing.local_server import wait_until
from tests.models.backends import Clusters
from tests.models.layouts import LAYOUT, pack

PIN, BOARD = 1, 2
SHARDS = 8
THREADS = 8


class Base(DeclarativeBase):
    id_layout = LAYOUT


class PinInBoards(MappingMixin, Base, source="Pin", target="Board"):
    """A reverse that is declared before its mapping and its ends."""


class Board(ObjectMixin, Base, type_id=BOARD):
    __tablename__ = "boards"


class Pin(ObjectMixin, Base, type_id=PIN):
    __tablename__ = "pins"


class BoardHasPins(MappingMixin, Base, source=Board, target=Pin, inverse="PinInBoards"):
    pass


_local = iter(range(1, 1_000_000))


def boards(*shards: int) -> list[int]:
    return [pack(shard, BOARD, next(_local)) for shard in shards]


def pins(*shards: int) -> list[int]:
    return [pack(shard, PIN, next(_local)) for shard in shards]


def forward(cluster: Cluster, board: int) -> dict[int, int]:
    """Return the sequences of a board's pins, as committed."""
    with cluster.session() as session:
        rows = BoardHasPins.iterate(session, board)
        return {row.pin_id: row.sequence for row in rows}


def reverse(cluster: Cluster, pin: int) -> dict[int, int]:
    """Return the sequences of a pin's boards, newest first."""
    with cluster.session() as session:
        rows = PinInBoards.iterate(session, pin)
        return {row.board_id: row.sequence for row in rows}


def change(cluster: Cluster, how: Callable[..., Any], *args: Any) -> Any:
    return cluster.run(how, *args)


def agree(cluster: Cluster, some: list[int], others: list[int]) -> bool:
    """Tell whether the rows of boards and pins are the same pairs."""
    there = {(board, pin) for board in some for pin in forward(cluster, board)}
    back = {(board, pin) for pin in others for board in reverse(cluster, pin)}
    return there == back


class Following:
    """Changes of one side are made on the other side too."""

    @pytest.fixture(autouse=True)
    def patient(self, monkeypatch: pytest.MonkeyPatch) -> None:
        # On a busy machine a COMMIT would leave the last of several sides to
        # workers.
        monkeypatch.setattr(apply, "_APPLY_SECONDS", 120.0)

    def test_a_pin_on_the_shard_of_its_board(self, cluster: Cluster) -> None:
        (board,), (pin,) = boards(3), pins(3)
        with cluster.begin() as session:
            BoardHasPins.append(session, board, pin)
            # In the same transaction.
            assert PinInBoards.contains(session, pin, [board]) == {board}
        assert session.pending == ()
        assert reverse(cluster, pin) == {board: forward(cluster, board)[pin]}
        change(cluster, BoardHasPins.remove, board, pin)
        assert reverse(cluster, pin) == {}

    def test_a_pin_elsewhere(self, cluster: Cluster) -> None:
        (board,), (pin,) = boards(3), pins(6)
        with cluster.begin() as session:
            BoardHasPins.append(session, board, pin)
            assert PinInBoards.contains(session, pin, [board]) == set()
        assert reverse(cluster, pin) == {board: forward(cluster, board)[pin]}
        change(cluster, BoardHasPins.remove, board, pin)
        assert reverse(cluster, pin) == {}
        assert cluster.pending() == []

    def test_existing_rows(self, cluster: Cluster) -> None:
        (board,), (pin,) = boards(3), pins(6)
        assert change(cluster, BoardHasPins.append, board, pin)
        assert not change(cluster, BoardHasPins.append, board, pin)
        assert change(cluster, BoardHasPins.remove, board, pin)
        assert not change(cluster, BoardHasPins.remove, board, pin)
        assert reverse(cluster, pin) == {}

    def test_many_and_none(self, cluster: Cluster) -> None:
        (board,), some = boards(3), pins(*range(8), *range(8))
        change(cluster, BoardHasPins.append_many, board, some)
        assert [set(reverse(cluster, pin)) for pin in some] == [{board}] * 16
        assert change(cluster, BoardHasPins.clear, board) == 16
        assert [reverse(cluster, pin) for pin in some] == [{}] * 16

    def test_many_intents_are_one_statement(self, cluster: Cluster) -> None:
        (board,), some = boards(3), pins(*range(8), *range(8))
        with StatementLog() as log, cluster.begin() as session:
            BoardHasPins.append_many(session, board, some)
            written = [s for s in log.statements if "INSERT" in s]
            # The rows, those of the two pins here, and seven intents.
            assert len(written) == 4
            assert sum("sqla_shard_intent" in s for s in written) == 1

    def test_the_newest_board_comes_first(self, cluster: Cluster) -> None:
        some, (pin,) = boards(1, 2, 3, 4), pins(2)
        for board in some:
            change(cluster, BoardHasPins.append, board, pin)
        assert list(reverse(cluster, pin)) == some[::-1]
        with cluster.session() as session:
            page = PinInBoards.page(session, pin, 2)
            assert [row.board_id for row in page] == [some[3], some[2]]

    def test_a_move_stays_on_its_side(self, cluster: Cluster) -> None:
        (board,), some = boards(3), pins(3, 5)
        change(cluster, BoardHasPins.append_many, board, some)
        before = [reverse(cluster, pin) for pin in some]
        with cluster.begin() as session:
            BoardHasPins.move(session, board, some[0], before=some[1])
        assert [reverse(cluster, pin) for pin in some] == before
        change(cluster, BoardHasPins.respace, board)
        assert [reverse(cluster, pin) for pin in some] == before

    def test_rolled_back(self, cluster: Cluster) -> None:
        (board,), some = boards(3), pins(3, 5)
        with cluster.session() as session:
            BoardHasPins.append_many(session, board, some)
            session.rollback()
        assert [reverse(cluster, pin) for pin in some] == [{}, {}]
        with cluster.begin() as session:
            with session.begin_nested() as savepoint:
                BoardHasPins.append_many(session, board, some)
                savepoint.rollback()
            BoardHasPins.append(session, board, some[1])
        assert [len(reverse(cluster, pin)) for pin in some] == [0, 1]

    def test_in_an_ordered_transaction(self, cluster: Cluster) -> None:
        some, others = boards(1, 2), pins(1, 2, 3)
        with cluster.begin(cross_shard="ordered") as session:
            for board in some:
                BoardHasPins.append_many(session, board, others)
        assert [len(reverse(cluster, pin)) for pin in others] == [2, 2, 2]

    def test_two_with_the_same_targets_lock_in_one_order(
        self, cluster: Cluster
    ) -> None:
        # Each would wait for the other, else.
        (board,), targets = boards(3), pins(3, 3, 3)
        locked: list[int] = []

        def note(_: Any, __: Any, text: str, values: Any, *___: Any) -> None:
            if text.startswith("INSERT") and "pin_in_boards" in text:
                locked.append(values[0])

        event.listen(Engine, "before_cursor_execute", note)
        try:
            change(cluster, BoardHasPins.append_many, board, targets[::-1])
        finally:
            event.remove(Engine, "before_cursor_execute", note)
        assert locked == targets


class Deferred:
    """Intents that are applied late, again, and in any order."""

    @pytest.fixture(autouse=True)
    def later(self, monkeypatch: Any) -> None:
        """Do not apply operations after COMMIT, as if the process had died."""
        monkeypatch.setattr(operations, "_LEASE", 0.0)
        monkeypatch.setattr(operations, "apply_after_commit", lambda *arguments: None)

    def test_it_is_repaired(self, cluster: Cluster) -> None:
        (board,), some = boards(3), pins(3, 5, 6)
        change(cluster, BoardHasPins.append_many, board, some)
        assert [len(reverse(cluster, pin)) for pin in some] == [1, 0, 0]
        assert len(cluster.pending()) == 2
        report = cluster.repair()
        assert (report.applied, report.ok) == (2, True)
        assert [len(reverse(cluster, pin)) for pin in some] == [1, 1, 1]
        assert cluster.pending() == []
        assert cluster.repair(keep=timedelta(0)).forgotten >= 2

    def test_whatever_the_order(self, cluster: Cluster, rng: random.Random) -> None:
        some, others = boards(1, 2, 3), pins(1, 2, 3, 4)
        given: list[tuple[int, int, int | None]] = []
        for _ in range(60):
            board, pin = rng.choice(some), rng.choice(others)
            if rng.random() < 0.6:
                change(cluster, BoardHasPins.append, board, pin)
                given.append((board, pin, forward(cluster, board)[pin]))
            else:
                change(cluster, BoardHasPins.remove, board, pin)
                given.append((board, pin, None))
            if rng.random() < 0.2:
                # Another process applies them now, or once more.
                for pair in rng.sample(given, rng.randrange(len(given))):
                    cluster.run(self._settle, [pair])
        rng.shuffle(given)
        for pair in given:
            cluster.run(self._settle, [pair])
        assert agree(cluster, some, others)
        for board in some:
            for pin, sequence in forward(cluster, board).items():
                assert reverse(cluster, pin)[board] == sequence
        cluster.repair()
        assert agree(cluster, some, others)

    def _settle(self, session: Any, pairs: Any) -> int:
        # Each on the shard of its pin.
        return sync_pairs(BoardHasPins, session, pairs)


class Racing:
    """Threads that append and remove the same pairs."""

    def test_both_sides_agree(self, cluster: Cluster, rng: random.Random) -> None:
        some, others = boards(1, 2, 3), pins(1, 4, 5, 6)
        with cluster.begin(cross_shard="unordered") as session:
            # Two writers can lock a list whose source is not there.
            session.add_all([*(Board(id=b) for b in some)])
            session.add_all([*(Pin(id=p) for p in others)])
        start = threading.Barrier(THREADS)

        def work(seed: float) -> None:
            mine = random.Random(seed)
            start.wait()
            for _ in range(12):
                how = mine.choice([BoardHasPins.append, BoardHasPins.remove])
                change(cluster, how, mine.choice(some), mine.choice(others))

        with ThreadPoolExecutor(THREADS) as threads:
            jobs = [threads.submit(work, rng.random()) for _ in range(THREADS)]
        for job in jobs:
            job.result()

        # Operations that lost against others too often are retried, at once:
        # by default they are left to their writers for half a minute.
        def is_repaired() -> bool:
            return cluster.repair(now=True).ok and not cluster.pending()

        assert wait_until(is_repaired, seconds=60, every=0.1)
        assert agree(cluster, some, others)


class Refused:
    """Refusals: changes that the other side cannot follow, unfit classes."""

    def test_changes_of_the_reverse(self, cluster: Cluster) -> None:
        (board,), (pin,) = boards(3), pins(3)
        with cluster.session() as session:
            for change in (
                lambda: PinInBoards.append(session, pin, board),
                lambda: PinInBoards.append_many(session, pin, [board]),
                lambda: PinInBoards.remove(session, pin, board),
                lambda: PinInBoards.clear(session, pin),
                lambda: PinInBoards.respace(session, pin),
                lambda: PinInBoards.move(session, pin, board, after=board),
            ):
                with pytest.raises(exc.KeptMappingError) as caught:
                    change()
                assert caught.value.kept_by == "BoardHasPins"

    def test_rows_of_either(self, cluster: Cluster) -> None:
        (board,), (pin,) = boards(3), pins(3)
        for cls in (BoardHasPins, PinInBoards):
            with pytest.raises(exc.KeptMappingError), cluster.begin() as own:
                own.add(cls(board_id=board, pin_id=pin))
        change(cluster, BoardHasPins.append, board, pin)
        for cls, key in ((BoardHasPins, (board, pin)), (PinInBoards, (pin, board))):
            with pytest.raises(exc.KeptMappingError), cluster.begin() as own:
                own.delete(own.get_one(cls, key))
        assert list(reverse(cluster, pin)) == [board]

    @pytest.mark.parametrize(
        ("cls", "changed"),
        [
            (BoardHasPins, "pin_id"),
            (BoardHasPins, "board_id"),
            (PinInBoards, "board_id"),
            (PinInBoards, "sequence"),
        ],
    )
    def test_changes_of_a_row(self, cluster: Cluster, cls: Any, changed: str) -> None:
        (board, other_board), (pin, other_pin) = boards(3, 3), pins(3, 3)
        change(cluster, BoardHasPins.append, board, pin)
        key = (board, pin) if cls is BoardHasPins else (pin, board)
        values = {"board_id": other_board, "pin_id": other_pin, "sequence": 1}
        with pytest.raises(exc.KeptMappingError) as caught, cluster.begin() as s:
            setattr(s.get_one(cls, key), changed, values[changed])
        assert caught.value.mapping == cls.__name__
        with cluster.begin() as session:
            session.get_one(BoardHasPins, (board, pin)).sequence = 10**25
        assert forward(cluster, board) == {pin: 10**25}

    def test_statements(self, cluster: Cluster) -> None:
        (board,), (pin,) = boards(3), pins(3)
        row = {"board_id": board, "pin_id": pin, "sequence": 10**25}
        for statement in (
            insert(BoardHasPins).values(row),
            insert(BoardHasPins.__table__).values(row),
            delete(BoardHasPins).where(BoardHasPins.board_id == board),
            update(BoardHasPins)
            .where(BoardHasPins.board_id == board)
            .values(pin_id=pin),
            insert(PinInBoards).values(row),
            update(PinInBoards).where(PinInBoards.pin_id == pin).values(sequence=1),
            delete(PinInBoards).where(PinInBoards.pin_id == pin),
        ):
            with pytest.raises(exc.KeptMappingError), cluster.begin() as own:
                own.execute(statement)
        change(cluster, BoardHasPins.append, board, pin)
        with cluster.begin() as session:
            session.execute(
                update(BoardHasPins)
                .where(BoardHasPins.board_id == board)
                .values(sequence=10**25)
            )
        assert forward(cluster, board) == {pin: 10**25}


cluster = Clusters(Base.metadata, SHARDS).on_backend()
