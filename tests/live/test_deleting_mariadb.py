"""Deleting an object with what belongs to it, on MariaDB."""

from __future__ import annotations

import pytest

from tests.shared import deleting
from tests.shared.deleting import deleting_on_mariadb

pytestmark = pytest.mark.live

cluster = deleting_on_mariadb("deleting")


class TestDeleting(deleting.Deleting):
    pass
