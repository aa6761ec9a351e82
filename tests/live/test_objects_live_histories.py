from __future__ import annotations

from tests.object_suites.harness import OnMariaDB
from tests.object_suites.histories import HistorySuite


class TestHistories(OnMariaDB, HistorySuite):
    metadata = HistorySuite.metadata
