"""Transactions in event loops, on SQLite through aiosqlite."""

from __future__ import annotations

from tests.shared import placing
from tests.shared import writing
from tests.shared.clusters import on_sqlite

sync_cluster = on_sqlite()
pins = writing.pair()


class TestSecondShard(writing.SecondShard):
    pass


class TestSavepoints(writing.Savepoints):
    pass


class TestPlacement(placing.Placement):
    pass
