"""Thousands of moves into one gap: order, positions, and rows written.

What a re-spacing costs is counted in rows, on average and at most.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from typing import Any, ClassVar

import pytest

from sqla_shard.models import list_changes
from tests.models.mapping_models import (
    BoardHasPins,
    LISTS,
    NarrowList,
    new_board,
    pins,
    put,
    sequences,
)

FIRST = 1_700_000_000_000 * 10**25


class Gap:
    """The test module has a fixture ``cluster``."""

    moves = 1000
    #: Of the wide list, in which gaps take longer to fill.
    wide: ClassVar[Mapping[str, int]] = {}
    batch = 500

    @pytest.mark.parametrize("cls", [BoardHasPins, NarrowList])
    @pytest.mark.parametrize("way", ["random", "above", "below"])
    def test_moves_into_one_gap(self, cluster, cls, way, rng, monkeypatch, say):
        soak = os.environ.get("SQLA_SHARD_SOAK") == "1"
        moves = self.moves
        if cls is BoardHasPins:
            moves = self.wide.get(way, moves)
        if soak:
            moves = 10_000
        written: Counter[int] = Counter()
        write = list_changes._write

        def counted(rows: Any, changed: dict[int, int]) -> None:
            written[len(changed)] += 1
            write(rows, changed)

        monkeypatch.setattr(list_changes, "_write", counted)
        board = new_board(cluster)
        top, low, *rest = pins(200)
        # A millisecond wide; where the rows come from is far away.
        put(
            cluster,
            cls,
            board,
            {top: FIRST, low: FIRST - 10**25}
            | {pin: FIRST // 2 - i * 10**25 for i, pin in enumerate(rest)},
        )
        model = [top, low, *rest]
        for start in range(0, moves, self.batch):
            with cluster.begin() as session:
                for _ in range(start, min(start + self.batch, moves)):
                    self.one(cls, session, board, model, way, rng)
            found = sequences(cluster, cls, board)
            assert list(found) == model
            assert len(set(found.values())) == len(model)
        one = written.pop(1, 0)
        rows = sum(size * times for size, times in written.items())
        say(
            f"{cls.__name__}, {way}: {moves} moves into one gap, "
            f"{one} wrote one row; {written.total()} re-spacings wrote "
            f"{rows} rows, {max(written, default=0)} at most, "
            f"{(rows + one) / moves:.2f} for each move"
        )
        assert max(written, default=0) <= len(model)
        assert rows + one <= 12 * moves

    def one(
        self, cls: Any, session: Any, board: int, model: list[int], way: str, rng: Any
    ) -> None:
        """Move a row to somewhere between the two at the gap's sides."""
        top = model[0]
        from_end = model[1:] if way == "random" else model[-20:]
        last = rng.choice(from_end)
        model.remove(last)
        if way == "above":
            before = top
        elif way == "below":
            # Each next to the row that came before it, further down.
            before = model[min(len(model) - 1, model.index(top) + 1)]
        else:
            before = rng.choice(model[: max(1, len(model) // 20)])
        at = model.index(before) + 1
        named = {"before": before}
        if at < len(model) and rng.random() < 0.5:
            named["after"] = model[at]
        cls.move(session, board, last, **named)
        model.insert(at, last)


cluster = LISTS.on_backend()
