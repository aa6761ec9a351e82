"""Values of the cache that were changed at random, on SQLite."""

from __future__ import annotations

from tests.shared import cache_mutations
from tests.shared.cached_models import cached_on_sqlite

cluster = cached_on_sqlite()


class TestMutated(cache_mutations.Mutated):
    pass


class TestWrongCells(cache_mutations.WrongCells):
    pass
