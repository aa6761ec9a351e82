"""Lookups in asynchronous sessions on SQLite, through aiosqlite."""

from __future__ import annotations

from tests.shared import lookup_awaited
from tests.shared.lookup_models import lookups_on_sqlite

cluster = lookups_on_sqlite()


class TestAwaited(lookup_awaited.Awaited):
    pass
