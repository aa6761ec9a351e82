"""Finding ids by keys, on SQLite."""

from __future__ import annotations

from tests.shared import lookup_reading
from tests.shared.lookup_models import lookups_on_sqlite

cluster = lookups_on_sqlite()


class TestReading(lookup_reading.Reading):
    pass


class TestSharing(lookup_reading.Sharing):
    pass
