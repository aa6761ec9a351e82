"""Lists in asynchronous sessions on MariaDB, through asyncmy."""

from __future__ import annotations

import pytest

from tests.shared import awaited
from tests.shared.mapping_models import lists_on_mariadb

pytestmark = pytest.mark.live

cluster = lists_on_mariadb("awaited")


class TestLists(awaited.Lists):
    pass
