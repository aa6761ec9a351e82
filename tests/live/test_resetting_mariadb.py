"""Connections that go back to their pools, on MariaDB."""

from __future__ import annotations

import pytest

from tests.shared.clusters import on_mariadb
from tests.shared.resetting import Resetting

pytestmark = pytest.mark.live

cluster = on_mariadb("resetting")


class TestResetting(Resetting):
    pass
