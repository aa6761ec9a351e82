"""Objects from a cache in memory, over SQLite."""

from __future__ import annotations

from tests.shared import cached_objects
from tests.shared.cached_models import cached_on_sqlite

cluster = cached_on_sqlite()


class TestEqual(cached_objects.Equal):
    pass


class TestState(cached_objects.State):
    pass


class TestMany(cached_objects.Many):
    pass


class TestAbsent(cached_objects.Absent):
    pass


class TestEnding(cached_objects.Ending):
    pass
