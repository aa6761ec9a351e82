"""Threads that change one list, on SQLite, where they take turns."""

from __future__ import annotations

from tests.shared import mapping_racing
from tests.shared.mapping_models import lists_on_sqlite

cluster = lists_on_sqlite()


class TestRacing(mapping_racing.Racing):
    rounds = 10
