"""Claims of keys, on SQLite."""

from __future__ import annotations

from tests.shared import lookup_claiming
from tests.shared.lookup_models import lookups_on_sqlite

cluster = lookups_on_sqlite()


class TestClaiming(lookup_claiming.Claiming):
    pass


class TestRacing(lookup_claiming.Racing):
    pass
