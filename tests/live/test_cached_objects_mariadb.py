"""Objects from memcached, over MariaDB."""

from __future__ import annotations

import pytest

from tests.shared import cached_objects
from tests.shared.cached_models import cached_on_mariadb

pytestmark = pytest.mark.live

cluster = cached_on_mariadb("cachedobjects")


class TestEqual(cached_objects.Equal):
    pass


class TestState(cached_objects.State):
    pass


class TestMany(cached_objects.Many):
    pass


class TestAbsent(cached_objects.Absent):
    pass


class TestEnding(cached_objects.Ending):
    pass
