from __future__ import annotations

from tests.object_suites.harness import OnMariaDB
from tests.object_suites.plain_models import NoGlobalSuite
from tests.object_suites.plain_models import PlainSuite
from tests.object_suites.plain_models import TwoGlobalsSuite


class TestPlain(PlainSuite, OnMariaDB):
    pass


class TestTwoGlobals(TwoGlobalsSuite, OnMariaDB):
    pass


class TestNoGlobal(NoGlobalSuite, OnMariaDB):
    pass
