from __future__ import annotations

from tests.object_suites.harness import OnSQLite
from tests.object_suites.racing import InterleavingSuite
from tests.object_suites.racing import RacingSuite
from tests.object_suites.writers import WriterSuite


class TestWriters(OnSQLite, WriterSuite):
    pass


class TestInterleavings(OnSQLite, InterleavingSuite):
    pass


class TestRacing(OnSQLite, RacingSuite):
    pass
