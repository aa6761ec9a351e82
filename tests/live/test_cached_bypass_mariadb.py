"""When a cache is not asked, on MariaDB with memcached."""

from __future__ import annotations

import pytest

from tests.shared import cached_bypass
from tests.shared.cached_models import cached_on_mariadb

pytestmark = pytest.mark.live

cluster = cached_on_mariadb("cachedbypass")


class TestBypass(cached_bypass.Bypass):
    pass


class TestFlushing(cached_bypass.Flushing):
    pass


class TestSavepoints(cached_bypass.Savepoints):
    pass
