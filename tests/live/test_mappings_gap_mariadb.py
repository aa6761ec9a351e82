"""Thousands of moves into one gap on MariaDB."""

from __future__ import annotations

import pytest

from tests.shared import mapping_gap
from tests.shared.mapping_models import lists_on_mariadb

pytestmark = pytest.mark.live

cluster = lists_on_mariadb("gap")


class TestGap(mapping_gap.Gap):
    moves = 500
