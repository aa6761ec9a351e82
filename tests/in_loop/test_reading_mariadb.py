"""Sessions in event loops, on MariaDB through asyncmy."""

from __future__ import annotations

import pytest

from tests.shared import flushing
from tests.shared import querying
from tests.shared import reading
from tests.shared import semantics
from tests.shared.clusters import on_mariadb

pytestmark = pytest.mark.live

sync_cluster = on_mariadb("loopreading")
data = semantics.sample()


class TestSemantics(semantics.Semantics):
    pass


class TestGet(reading.Get):
    pass


class TestGetMany(reading.GetMany):
    pass


class TestLoading(reading.Loading):
    pass


class TestByStatement(querying.ByStatement):
    pass


class TestFlushing(flushing.Flushing):
    pass


class TestPending(flushing.Pending):
    pass


class TestColocation(flushing.Colocation):
    pass


class TestMerging(flushing.Merging):
    pass
