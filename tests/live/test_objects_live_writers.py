from __future__ import annotations

from tests.object_suites.harness import OnMariaDB
from tests.object_suites.racing import InterleavingSuite
from tests.object_suites.racing import RacingSuite
from tests.object_suites.writers import WriterSuite


class TestWriters(OnMariaDB, WriterSuite):
    pass


class TestInterleavings(OnMariaDB, InterleavingSuite):
    pass


class TestRacing(OnMariaDB, RacingSuite):
    pass
