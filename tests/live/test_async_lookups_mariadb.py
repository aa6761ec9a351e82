"""Lookups in asynchronous sessions on MariaDB, through asyncmy."""

from __future__ import annotations

import pytest

from tests.shared import lookup_awaited
from tests.shared.lookup_models import lookups_on_mariadb

pytestmark = pytest.mark.live

cluster = lookups_on_mariadb("lkawaited")


class TestAwaited(lookup_awaited.Awaited):
    pass
