"""AUTOCOMMIT and a cache, on MariaDB with memcached."""

from __future__ import annotations

import pytest

from tests.shared import cached_autocommit
from tests.shared.cached_models import cached_on_mariadb

pytestmark = pytest.mark.live

cluster = cached_on_mariadb(
    "cachedautocommit", engine_options={"isolation_level": "AUTOCOMMIT"}
)


class TestAutocommit(cached_autocommit.Autocommit):
    pass
