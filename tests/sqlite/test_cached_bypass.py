"""When a cache is not asked, on SQLite."""

from __future__ import annotations

from tests.shared import cached_bypass
from tests.shared.cached_models import cached_on_sqlite

cluster = cached_on_sqlite()


class TestBypass(cached_bypass.Bypass):
    pass


class TestFlushing(cached_bypass.Flushing):
    pass


class TestSavepoints(cached_bypass.Savepoints):
    pass
