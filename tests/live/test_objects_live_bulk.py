from __future__ import annotations

from tests.object_suites.bulk import BlobColumnSuite
from tests.object_suites.bulk import BulkInsertSuite
from tests.object_suites.harness import OnMariaDB


class TestBulkInsert(OnMariaDB, BulkInsertSuite):
    pass


class TestBlobColumn(OnMariaDB, BlobColumnSuite):
    pass
