from __future__ import annotations

from tests.object_suites.harness import OnMariaDB
from tests.object_suites.lifecycle import DetachedSuite
from tests.object_suites.lifecycle import TransactionSuite
from tests.object_suites.merging import MergeSuite


class TestTransactions(OnMariaDB, TransactionSuite):
    pass


class TestDetached(OnMariaDB, DetachedSuite):
    pass


class TestMerge(OnMariaDB, MergeSuite):
    pass
