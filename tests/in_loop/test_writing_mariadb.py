"""Transactions in event loops, on MariaDB through asyncmy."""

from __future__ import annotations

import pytest

from tests.shared import placing
from tests.shared import writing
from tests.shared.clusters import on_mariadb

pytestmark = pytest.mark.live

sync_cluster = on_mariadb("loopwriting")
pins = writing.pair()


class TestSecondShard(writing.SecondShard):
    pass


class TestSavepoints(writing.Savepoints):
    pass


class TestPlacement(placing.Placement):
    pass
