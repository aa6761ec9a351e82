"""Threads that change one list, on MariaDB."""

from __future__ import annotations

import pytest

from tests.shared import mapping_racing
from tests.shared.mapping_models import lists_on_mariadb

pytestmark = pytest.mark.live

cluster = lists_on_mariadb("racing", engine_options={"pool_size": 30})


class TestRacing(mapping_racing.Racing):
    pass
