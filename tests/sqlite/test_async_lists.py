"""Lists in asynchronous sessions on SQLite, through aiosqlite."""

from __future__ import annotations

from tests.shared import awaited
from tests.shared.mapping_models import lists_on_sqlite

cluster = lists_on_sqlite()


class TestLists(awaited.Lists):
    pass
