from __future__ import annotations

from tests.object_suites.harness import OnSQLite
from tests.object_suites.plain_models import NoGlobalSuite
from tests.object_suites.plain_models import PlainSuite
from tests.object_suites.plain_models import TwoGlobalsSuite


class TestPlain(PlainSuite, OnSQLite):
    pass


class TestTwoGlobals(TwoGlobalsSuite, OnSQLite):
    pass


class TestNoGlobal(NoGlobalSuite, OnSQLite):
    pass
