"""Writes to what is cached, on MariaDB with memcached."""

from __future__ import annotations

import pytest

from tests.shared import cached_writes
from tests.shared.cached_models import cached_on_mariadb

pytestmark = pytest.mark.live

cluster = cached_on_mariadb("cachedwrites")


class TestObjects(cached_writes.Objects):
    pass


class TestRows(cached_writes.Rows):
    pass


class TestRefusals(cached_writes.Refusals):
    pass
