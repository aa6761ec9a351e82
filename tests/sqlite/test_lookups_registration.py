"""Signing up and changing keys, on SQLite."""

from __future__ import annotations

from tests.shared import lookup_registration
from tests.shared.lookup_models import lookups_on_sqlite

cluster = lookups_on_sqlite()


class TestRegistration(lookup_registration.Registration):
    pass
