"""Cached lists, on SQLite."""

from __future__ import annotations

from tests.shared import cached_lists
from tests.shared.cached_models import cached_on_sqlite

cluster = cached_on_sqlite()


class TestAlike(cached_lists.Alike):
    pass


class TestRows(cached_lists.Rows):
    pass
