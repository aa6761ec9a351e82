"""Looking through lookups, on SQLite."""

from __future__ import annotations

from tests.shared import verify_lookups
from tests.shared import verify_racing
from tests.shared.verify_models import verified_on_sqlite

tables, cluster = verified_on_sqlite()


class TestTogether(verify_lookups.Together):
    pass


class TestDamage(verify_lookups.Damage):
    pass


class TestRekeying(verify_lookups.Rekeying):
    pass


class TestResuming(verify_lookups.Resuming):
    pass


class TestRuns(verify_lookups.Runs):
    pass


class TestRacing(verify_racing.Racing):
    pass
