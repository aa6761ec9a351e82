"""Cached lists, on MariaDB with memcached."""

from __future__ import annotations

import pytest

from tests.shared import cached_lists
from tests.shared.cached_models import cached_on_mariadb

pytestmark = pytest.mark.live

cluster = cached_on_mariadb("cachedlists")


class TestAlike(cached_lists.Alike):
    rounds = 10


class TestRows(cached_lists.Rows):
    pass
