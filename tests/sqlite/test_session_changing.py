"""Statements that change rows, on SQLite."""

from __future__ import annotations

from tests.shared import changing
from tests.shared.clusters import on_sqlite

cluster = on_sqlite()
pins = changing.pins_of()


class TestInserting(changing.Inserting):
    pass


class TestUpdating(changing.Updating):
    pass


class TestDeleting(changing.Deleting):
    pass
