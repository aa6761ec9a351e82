from __future__ import annotations

from tests.object_suites.filters import RandomFilterSuite
from tests.object_suites.harness import OnSQLite


class TestRandomFilters(OnSQLite, RandomFilterSuite):
    pass
