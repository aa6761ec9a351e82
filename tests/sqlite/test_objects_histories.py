from __future__ import annotations

from tests.object_suites.harness import OnSQLite
from tests.object_suites.histories import HistorySuite


class TestHistories(OnSQLite, HistorySuite):
    metadata = HistorySuite.metadata
