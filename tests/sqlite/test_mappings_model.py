"""Lists against Python's on SQLite."""

from __future__ import annotations

from tests.shared import mapping_machine
from tests.shared.mapping_models import lists_on_sqlite

cluster = lists_on_sqlite()


class TestModels(mapping_machine.Models):
    pass
