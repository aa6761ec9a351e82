from __future__ import annotations

from tests.object_suites.attributes import AttributeSuite
from tests.object_suites.attributes import ValidatorSuite
from tests.object_suites.harness import OnSQLite


class TestAttributes(OnSQLite, AttributeSuite):
    metadata = AttributeSuite.metadata


class TestValidators(OnSQLite, ValidatorSuite):
    metadata = ValidatorSuite.metadata
