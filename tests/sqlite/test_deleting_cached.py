"""Deleting an object with what belongs to it, beside a cache."""

from __future__ import annotations

from tests.shared import deleting
from tests.shared.deleting import deleting_on_sqlite

cluster = deleting_on_sqlite(cached=True)


class TestDeleting(deleting.Deleting):
    pass
