"""The unit of work on SQLite."""

from __future__ import annotations

from tests.shared import flushing
from tests.shared.clusters import on_sqlite

cluster = on_sqlite()


class TestFlushing(flushing.Flushing):
    pass


class TestPending(flushing.Pending):
    pass


class TestColocation(flushing.Colocation):
    pass


class TestMerging(flushing.Merging):
    pass
