"""Values that are no values, on SQLite."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from sqla_shard import Cluster
from sqla_shard.testing import sqlite_topology
from tests.shared.hostile_values import HostileValues
from tests.shared.hostile_values import ItemBase


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: Any) -> Iterator[Cluster]:
    document = sqlite_topology(tmp_path_factory.mktemp("hostile"), 2, 4)
    with Cluster.from_topology(document) as cluster:
        cluster.create_all(ItemBase.metadata)
        yield cluster


class TestHostileValues(HostileValues):
    pass
