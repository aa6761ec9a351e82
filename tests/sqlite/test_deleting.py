"""Deleting an object with what belongs to it, on SQLite."""

from __future__ import annotations

from tests.shared import deleting
from tests.shared.deleting import deleting_on_sqlite

cluster = deleting_on_sqlite()


class TestDeleting(deleting.Deleting):
    pass
