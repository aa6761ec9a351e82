from __future__ import annotations

from tests.object_suites.harness import OnMariaDB
from tests.object_suites.hiding import HidingSuite
from tests.object_suites.hiding import TimestampSuite


class TestHiding(OnMariaDB, HidingSuite):
    pass


class TestTimestamps(OnMariaDB, TimestampSuite):
    pass
