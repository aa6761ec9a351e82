from __future__ import annotations

from tests.object_suites.data_classes import DataclassSuite
from tests.object_suites.harness import OnMariaDB


class TestDataclasses(OnMariaDB, DataclassSuite):
    metadata = DataclassSuite.metadata
