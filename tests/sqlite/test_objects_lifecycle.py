from __future__ import annotations

from tests.object_suites.harness import OnSQLite
from tests.object_suites.lifecycle import DetachedSuite
from tests.object_suites.lifecycle import TransactionSuite
from tests.object_suites.merging import MergeSuite


class TestTransactions(OnSQLite, TransactionSuite):
    pass


class TestDetached(OnSQLite, DetachedSuite):
    pass


class TestMerge(OnSQLite, MergeSuite):
    pass
