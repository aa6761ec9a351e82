"""Pages of rows of all shards, on SQLite."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from sqla_shard import Cluster
from sqla_shard.testing import sqlite_topology
from tests.shared.scatter_pages import PagesBase
from tests.shared.scatter_pages import ScatterPages
from tests.shared.scatter_pages import things


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: Any) -> Iterator[Cluster]:
    document = sqlite_topology(tmp_path_factory.mktemp("pages"), 2, 8)
    with Cluster.from_topology(document) as cluster:
        cluster.create_all(PagesBase.metadata)
        yield cluster


filled = things()


class TestScatterPages(ScatterPages):
    pass
