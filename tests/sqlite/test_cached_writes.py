"""Writes to what is cached, on SQLite."""

from __future__ import annotations

from tests.shared import cached_writes
from tests.shared.cached_models import cached_on_sqlite

cluster = cached_on_sqlite()


class TestObjects(cached_writes.Objects):
    pass


class TestRows(cached_writes.Rows):
    pass


class TestRefusals(cached_writes.Refusals):
    pass
