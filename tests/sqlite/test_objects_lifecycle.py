from __future__ import annotations

from tests.object_suites.harness import OnSQLite
from tests.object_suites.lifecycle import DetachedSuite
from tests.object_suites.lifecycle import MergeSuite
from tests.object_suites.lifecycle import TransactionSuite


class TestTransactions(OnSQLite, TransactionSuite):
    pass


class TestDetached(OnSQLite, DetachedSuite):
    pass


class TestMerge(OnSQLite, MergeSuite):
    pass
