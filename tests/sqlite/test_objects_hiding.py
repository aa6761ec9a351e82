from __future__ import annotations

from tests.object_suites.harness import OnSQLite
from tests.object_suites.hiding import HidingSuite
from tests.object_suites.hiding import TimestampSuite


class TestHiding(OnSQLite, HidingSuite):
    pass


class TestTimestamps(OnSQLite, TimestampSuite):
    pass
