from __future__ import annotations

from tests.object_suites.data_classes import DataclassSuite
from tests.object_suites.harness import OnSQLite


class TestDataclasses(OnSQLite, DataclassSuite):
    metadata = DataclassSuite.metadata
