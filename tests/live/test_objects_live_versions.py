from __future__ import annotations

from tests.object_suites.harness import OnMariaDB
from tests.object_suites.versions import VersionSuite


class TestVersions(OnMariaDB, VersionSuite):
    metadata = VersionSuite.metadata
