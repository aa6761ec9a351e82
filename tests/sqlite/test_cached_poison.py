"""Strange values in the cache, on SQLite."""

from __future__ import annotations

from tests.shared import cached_poison
from tests.shared.cached_models import cached_on_sqlite

cluster = cached_on_sqlite()


class TestGarbage(cached_poison.Garbage):
    pass


class TestVersions(cached_poison.Versions):
    pass


class TestDamage(cached_poison.Damage):
    pass
