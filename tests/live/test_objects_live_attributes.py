from __future__ import annotations

from tests.object_suites.attributes import AttributeSuite
from tests.object_suites.attributes import ValidatorSuite
from tests.object_suites.harness import OnMariaDB


class TestAttributes(OnMariaDB, AttributeSuite):
    metadata = AttributeSuite.metadata


class TestValidators(OnMariaDB, ValidatorSuite):
    metadata = ValidatorSuite.metadata
