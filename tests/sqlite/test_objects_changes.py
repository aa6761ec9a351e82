from __future__ import annotations

from tests.object_suites.changes import InPlaceSuite
from tests.object_suites.harness import OnSQLite
from tests.object_suites.sizes import TooLargeSuite


class TestInPlace(OnSQLite, InPlaceSuite):
    pass


class TestTooLarge(OnSQLite, TooLargeSuite):
    pass
