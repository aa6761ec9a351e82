from __future__ import annotations

from tests.object_suites.harness import OnMariaDB
from tests.object_suites.one_table import OneTableSuite


class TestOneTable(OnMariaDB, OneTableSuite):
    metadata = OneTableSuite.metadata
