"""Cached reads and writes in event loops, on SQLite through aiosqlite."""

from __future__ import annotations

from tests.shared import cache_mutations
from tests.shared import cached_bypass
from tests.shared import cached_lists
from tests.shared import cached_objects
from tests.shared import cached_writes
from tests.shared.cached_models import cached_on_sqlite

sync_cluster = cached_on_sqlite()


class TestEqual(cached_objects.Equal):
    pass


class TestState(cached_objects.State):
    pass


class TestMany(cached_objects.Many):
    pass


class TestAbsent(cached_objects.Absent):
    pass


class TestBypass(cached_bypass.Bypass):
    pass


class TestFlushing(cached_bypass.Flushing):
    pass


class TestSavepoints(cached_bypass.Savepoints):
    pass


class TestObjects(cached_writes.Objects):
    pass


class TestRows(cached_writes.Rows):
    pass


class TestRefusals(cached_writes.Refusals):
    pass


class TestAlike(cached_lists.Alike):
    pass


class TestRowsLists(cached_lists.Rows):
    pass


class TestMutated(cache_mutations.Mutated):
    times = 10 * cache_mutations.MANY


class TestWrongCells(cache_mutations.WrongCells):
    pass
