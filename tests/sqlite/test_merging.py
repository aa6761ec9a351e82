from __future__ import annotations

from tests.shared.clusters import on_sqlite
from tests.shared.merged_types import MergedTypes
from tests.shared.merged_types import stamps
from tests.shared.merging import filled_shops
from tests.shared.merging import Merging

cluster = on_sqlite()
data = filled_shops()
filled = stamps()


class TestMerging(Merging):
    # Each shard is a file.
    named = 4
    everywhere = 32


class TestTypes(MergedTypes):
    pass
