from __future__ import annotations

from tests.object_suites.harness import OnSQLite
from tests.object_suites.versions import TriggerSuite
from tests.object_suites.versions import VersionSuite


class TestVersions(OnSQLite, VersionSuite):
    metadata = VersionSuite.metadata


class TestTriggers(OnSQLite, TriggerSuite):
    metadata = TriggerSuite.metadata
