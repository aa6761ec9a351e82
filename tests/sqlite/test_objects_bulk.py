from __future__ import annotations

from tests.object_suites.bulk import BlobColumnSuite
from tests.object_suites.bulk import BulkInsertSuite
from tests.object_suites.harness import OnSQLite


class TestBulkInsert(OnSQLite, BulkInsertSuite):
    pass


class TestBlobColumn(OnSQLite, BlobColumnSuite):
    pass
