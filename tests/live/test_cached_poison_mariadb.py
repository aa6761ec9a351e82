"""Strange values in the cache, on MariaDB with memcached."""

from __future__ import annotations

import pytest

from tests.shared import cached_poison
from tests.shared.cached_models import cached_on_mariadb

pytestmark = pytest.mark.live

cluster = cached_on_mariadb("cachedpoison")


class TestDamage(cached_poison.Damage):
    pass


class TestVersions(cached_poison.Versions):
    pass
