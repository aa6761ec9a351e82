"""Thousands of moves into one gap on SQLite."""

from __future__ import annotations

from typing import ClassVar

from tests.shared import mapping_gap
from tests.shared.mapping_models import lists_on_sqlite

cluster = lists_on_sqlite()


class TestGap(mapping_gap.Gap):
    wide: ClassVar = {"random": 3000, "above": 2000}
