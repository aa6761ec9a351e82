from __future__ import annotations

from tests.object_suites.changes import InPlaceSuite
from tests.object_suites.harness import OnMariaDB
from tests.object_suites.sizes import TooLargeSuite


class TestInPlace(OnMariaDB, InPlaceSuite):
    pass


class TestTooLarge(OnMariaDB, TooLargeSuite):
    pass
