"""The unit of work on MariaDB."""

from __future__ import annotations

import pytest

from tests.shared import flushing
from tests.shared.clusters import on_mariadb

pytestmark = pytest.mark.live

cluster = on_mariadb("flushing")


class TestFlushing(flushing.Flushing):
    pass


class TestPending(flushing.Pending):
    pass


class TestColocation(flushing.Colocation):
    pass


class TestMerging(flushing.Merging):
    pass
