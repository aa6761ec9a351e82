from __future__ import annotations

from tests.object_suites.aliases import AliasSuite
from tests.object_suites.harness import OnSQLite
from tests.object_suites.random_values import RandomValueSuite
from tests.object_suites.values import ValueSuite


class TestValues(OnSQLite, ValueSuite):
    pass


class TestAliases(OnSQLite, AliasSuite):
    pass


class TestRandomValues(OnSQLite, RandomValueSuite):
    pass
