from __future__ import annotations

from tests.object_suites.changes import InPlaceSuite
from tests.object_suites.changes import TooLargeSuite
from tests.object_suites.harness import OnSQLite


class TestInPlace(OnSQLite, InPlaceSuite):
    pass


class TestTooLarge(OnSQLite, TooLargeSuite):
    pass
