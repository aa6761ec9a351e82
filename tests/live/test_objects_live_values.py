from __future__ import annotations

from tests.object_suites.aliases import AliasSuite
from tests.object_suites.harness import OnMariaDB
from tests.object_suites.random_values import RandomValueSuite
from tests.object_suites.values import ValueSuite


class TestValues(OnMariaDB, ValueSuite):
    pass


class TestAliases(OnMariaDB, AliasSuite):
    pass


class TestRandomValues(OnMariaDB, RandomValueSuite):
    pass
