"""Threads that change one list, on MariaDB with READ COMMITTED."""

from __future__ import annotations

import pytest

from tests.shared import mapping_racing
from tests.shared.mapping_models import lists_on_mariadb

pytestmark = pytest.mark.live

cluster = lists_on_mariadb(
    "committed",
    engine_options={"pool_size": 30, "isolation_level": "READ COMMITTED"},
)


class TestRacing(mapping_racing.Racing):
    locks_gaps = False
