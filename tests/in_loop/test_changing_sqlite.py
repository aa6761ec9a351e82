"""Changes in event loops, on SQLite through aiosqlite."""

from __future__ import annotations

from tests.shared import inserting
from tests.shared import updating
from tests.shared.clusters import on_sqlite

sync_cluster = on_sqlite()
pins = inserting.pins_of()


class TestInserting(inserting.Inserting):
    pass


class TestUpdating(updating.Updating):
    pass


class TestDeleting(updating.Deleting):
    pass
